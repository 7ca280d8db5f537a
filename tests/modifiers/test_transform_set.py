"""`transform: {set: …}` is read, applied and checked through the SQL of modifiers."""

from __future__ import annotations

import pytest

from fix_transform import applied, read_transform, shape_of
from penstock.errors import PipelineFileError
from penstock.modifiers.transform import findings
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
