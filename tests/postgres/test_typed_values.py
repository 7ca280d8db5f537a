"""Typed Arrow columns hold what Postgres holds, as psycopg reads it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fix_postgres import only_new
from penstock.changes.copyrows import parse_rows
from penstock.changes.typed import arrow_type, to_arrow

if TYPE_CHECKING:
    from fix_postgres import Database

# Types, and values of them as SQL.
COLUMNS = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["'-2147483648'", "2147483647"],
    "bigint": ["'-9223372036854775808'", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "real": ["'3.4028235e38'", "'1e-45'", "0.1", "'Infinity'", "'-Infinity'", "'-0'"],
    "double precision": ["'1.7976931348623157e308'", "'5e-324'", "0.1", "pi()", "'-Infinity'"],
    "numeric(12,3)": ["123456789.125", "-0.001", "0", "1"],
    "numeric(76,38)": ["('-' || repeat('9', 38) || '.' || repeat('9', 38))::numeric"],
    "numeric(3,-2)": ["99900", "-100"],
    "numeric(2,5)": ["0.00099"],
    "numeric": ["1e-200", "123456789012345678901234567890.5"],
    "date": ["'2026-11-15'", "'0001-01-01'", "'9999-12-31'", "'2024-02-29'"],
    "timestamp": ["'2026-11-15 09:51:49.7'", "'0001-01-01'", "'9999-12-31 23:59:59.999999'"],
    "timestamptz": ["'2026-11-15 09:51:49.736833+02'", "'1890-06-01'", "'2026-07-01'"],
    "time": ["'00:00'", "'23:59:59.999999'", "'09:51:49.7'"],
    "timetz": ["'23:59:59.999999+05:30'"],
    "interval": ["'1 day 02:03:04'"],
    "uuid": ["gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'"],
    "bytea": ["'\\x'", "'\\x00ff0a5c'"],
    "text": ["''", "E'tab\\tline\\nback\\\\slash'", "'żółć'", "'\\N'"],
    "char(3)": ["'a'"],
    "jsonb": ["""'{"a": [1, null, "x"]}'"""],
    "json": ["""'{"a":  [1]}'"""],
    "inet": ["'10.0.0.1/8'"],
    "mood": ["'sad'", "'very happy'"],
    "integer[]": ["'{}'", "'{1,NULL,-3}'"],
    "text[]": ["""ARRAY['', 'a,b', '{c}', 'say "no"', E'back\\\\slash', NULL, 'NULL', 'plain']"""],
    "numeric(5,1)[]": ["'{1.5,-2}'"],
    "date[]": ["'{2026-11-15,NULL}'"],
    "timestamptz[]": ["ARRAY['2026-11-15 09:51:49.5+00'::timestamptz, NULL]"],
    "boolean[]": ["'{t,f}'"],
    "bytea[]": ["ARRAY['\\x00ff'::bytea, '\\x']"],
    "uuid[]": ["ARRAY[gen_random_uuid()]"],
}
# What the Arrow type of each cannot hold.
UNFIT = {
    "date": "'infinity'",
    "timestamp": "'-infinity'",
    "timestamptz": "'infinity'",
    "numeric(12,3)": "'NaN'",
    "time": "'24:00'",
    "integer[]": "'{{1,2},{3,4}}'",
    "text[]": "'[0:1]={a,b}'",
}


@pytest.fixture
def table(source: Database) -> Database:
    """Table t, a column for each type, one value in a row, and rows that hold NULL."""
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy')")
    declared = ", ".join(f"c{place} {kind}" for place, kind in enumerate(COLUMNS))
    source.execute(f"CREATE TABLE t (n serial, {declared})")
    for place, (kind, values) in enumerate(COLUMNS.items()):
        for value in [*values, *([UNFIT[kind]] if kind in UNFIT else [])]:
            source.execute(f"INSERT INTO t (c{place}) VALUES ({value})")
    return source


def columns_of(source: Database, zone: str):
    """By column: its type, and the typed values of all rows, as COPY sends them."""
    declared = source.query(
        "SELECT attname, atttypid::int8, atttypmod, typtype = 'e' FROM pg_attribute"
        " JOIN pg_type y ON y.oid = atttypid WHERE attrelid = 't'::regclass AND attnum > 1"
        " ORDER BY attnum"
    )
    raw = io.BytesIO()
    with source.connect() as connection:
        connection.execute(f"SET TimeZone = '{zone}'")
        names = ", ".join(name for name, *_ in declared)
        with connection.cursor().copy(f"COPY (SELECT {names} FROM t ORDER BY n) TO STDOUT") as copy:
            for block in copy:
                raw.write(block)
    rows = parse_rows(raw.getvalue(), len(declared))
    return {
        name: to_arrow(cells, arrow_type(oid, modifier, enums={oid} if is_enum else ()))
        for (name, oid, modifier, is_enum), cells in zip(declared, rows.cells, strict=True)
    }


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Europe/Paris"])
@only_new
def test_typed_columns_hold_what_psycopg_reads(table: Database, zone: str) -> None:
    columns = columns_of(table, zone)

    for place, kind in enumerate(COLUMNS):
        typed = columns[f"c{place}"]
        assert len(typed.unfit) == (kind in UNFIT), kind
        reported = typed.values.drop_null().to_pylist()
        value = f"c{place}"
        if pa.types.is_string(typed.values.type):
            value = (
                f"format('%%s', {value})"  # as it is printed: a cast cuts the spaces of a char(3)
            )
        elif kind == "real":
            value += "::float8"  # else psycopg reads 0.1 as Python does, not as Postgres
        wanted = [
            found
            for (found,) in table.query(
                f"SELECT {value} FROM t WHERE c{place} IS NOT NULL AND NOT (n = ANY (%s)) ORDER BY n",
                [int(row) + 1 for row in typed.unfit],
            )
        ]
        assert reported == [_plain(found) for found in wanted], kind


def _plain(value):
    """What psycopg reads as Arrow gives it."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return getattr(value, "bytes", value)  # of a uuid


@only_new
def test_days_and_moments_outside_of_pythons_calendar_are_those_of_postgres(
    source: Database,
) -> None:
    source.execute("CREATE TABLE t (n serial, day date, at timestamp, zoned timestamptz)")
    for text in ("0001-12-31 BC", "0044-03-15 BC", "4714-11-24 BC", "10000-01-01", "294246-12-31"):
        at = text.replace(" BC", " 12:34:56.789 BC") if "BC" in text else f"{text} 12:34:56.789"
        source.execute("INSERT INTO t (day, at, zoned) VALUES (%s, %s, %s)", text, at, at)

    columns = columns_of(source, "Europe/Paris")

    assert columns["day"].values.view(pa.int32()).to_pylist() == [
        days for (days,) in source.query("SELECT day - date '1970-01-01' FROM t ORDER BY n")
    ]
    for name in ("at", "zoned"):
        assert columns[name].values.view(pa.int64()).to_pylist() == [
            int(one)
            for (one,) in source.query(
                f"SELECT extract(epoch FROM {name}) * 1000000 FROM t ORDER BY n"
            )
        ]
