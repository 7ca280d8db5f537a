"""Names of types without a server, against those of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sql.type_names import type_name

if TYPE_CHECKING:
    from fix_postgres import Database

_DECLARED = (
    "int2", "int4", "int8", "oid", "bool", "text", "name", '"char"', "bytea", "float4", "float8",
    "numeric", "numeric(10,2)", "numeric(3)", "varchar", "varchar(30)", "char", "char(7)", "bpchar",
    "bit", "bit(4)", '"bit"', "varbit", "varbit(9)", "date", "time", "time(3)", "timetz",
    "timetz(0)", "timestamp", "timestamp(6)", "timestamptz", "timestamptz(2)", "interval",
    "interval(4)", "interval year to month", "interval day to second", "interval second(3)",
    "interval hour", "uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "money", "point",
    "int4range", "tsvector", "int4[]", "varchar(5)[]", "numeric(6,1)[]", "timestamptz(3)[]",
    "bpchar[]", "jsonb[]",
)  # fmt: skip


def test_name_is_the_one_of_format_type(source: Database) -> None:
    columns = ", ".join(f"c{number} {each}" for number, each in enumerate(_DECLARED))
    source.execute(f"CREATE TABLE declared ({columns})")
    found = source.query(
        "SELECT atttypid, atttypmod, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'declared'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert len(found) == len(_DECLARED)
    assert [type_name(oid, modifier) for oid, modifier, _ in found] == [each[2] for each in found]


def test_no_type_has_the_name_of_another(source: Database) -> None:
    """What is not known has none."""
    found = source.query("SELECT oid, format_type(oid, -1) FROM pg_type WHERE oid < 16384")
    wrong = [
        (oid, name, type_name(oid, -1))
        for oid, name in found
        if type_name(oid, -1) not in ("", name)
    ]
    assert wrong == []
    assert sum(1 for oid, _ in found if type_name(oid, -1)) > 100


def test_type_of_a_user_has_no_name(source: Database) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('sad')")
    assert type_name(source.query("SELECT 'mood'::regtype::oid")[0][0], -1) == ""
