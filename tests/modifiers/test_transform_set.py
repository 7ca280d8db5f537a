"""`transform: {set: …}` is read, applied and checked through the SQL of modifiers."""

from __future__ import annotations

import pytest

from fix_transform import applied, read_transform, shape_of
from penstock.errors import PipelineFileError
from penstock.modifiers.transform import findings
from penstock.schema.shape import ConstraintShape
from penstock.table import TableName
from penstock.testing import insert, table

USERS = table(16400, "users", {"id": "int8", "country": "text"}, key=["id"])
SHAPE = shape_of("users", {"id": "int8", "country": "text"}, key=["id"])


def test_column_is_computed():
    options = read_transform("transform: {table: users, set: {country: 'upper(country)'}}")
    row = insert(USERS, ["1", "de"])

    assert applied(options, USERS, row, shape=SHAPE) == [("I", ("1", "DE"), None)]


def test_sql_that_does_not_parse_is_an_error_of_the_file():
    with pytest.raises(PipelineFileError, match=r"shop.yml:2: .*country"):
        read_transform("transform:\n  set: {country: 'upper('}")


def test_unknown_column_is_found_by_check():
    options = read_transform("transform: {table: users, set: {country: 'upper(land)'}}")

    [one] = findings(options, {TableName("public", "users"): SHAPE})

    assert "land" in one.what


@pytest.mark.parametrize("column", ["id", "code"])
def test_sql_on_a_unique_column_is_refused_unless_collisions_are_allowed(column):
    shape = shape_of("users", {"id": "int8", "code": "text"}, key=["id"], unique=["code"])
    entry = f"table: users, set: {{{column}: 'coalesce({column}, {column})', new: '1'}}"

    [one] = findings(read_transform(f"transform: {{{entry}}}"), {shape.table: shape})
    allowed = read_transform(f"transform: {{{entry}, allow_collisions: true}}")

    assert "can make two values equal" in one.what
    assert one.place == f"public.users.{column}"
    assert "allow_collisions: true" in one.do
    assert list(findings(allowed, {shape.table: shape})) == []


def test_check_warns_of_a_constraint_on_a_computed_column():
    check = ConstraintShape(id=7, name="shouts", kind="c", definition="", used=(2,))
    shape = shape_of("users", {"id": "int8", "country": "text"}, key=["id"], constraints=(check,))
    options = read_transform("transform: {table: users, set: {country: 'upper(country)'}}")

    [one] = findings(options, {shape.table: shape})

    assert (one.severity, one.place) == ("warning", "public.users.country")
    assert "shouts checks the column" in one.what
