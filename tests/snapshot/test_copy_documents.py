"""Rows that were there before come as `read` documents, before any later change of the same key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_copies import make_table, read, replay, stands
from fix_documents import parse
from fix_event_sinks import hidden, visible
from fix_pipeline import ALWAYS_COPIED
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.pipeline import build_copying
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_copies import Writer
    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

TIDY = [".copies", ".lock", ".position.json"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_rows_come_once_as_read_and_changes_during_and_after_the_copy_follow(
    source: Database,
    make_pipeline: Make,
    directory: Path,
    small_ranges: Callable[[int], None],
    writer_of: Callable[..., Writer],
) -> None:
    small_ranges(3)
    make_table(source)
    source.execute("CREATE TABLE empty (id int PRIMARY KEY, n int, pad text)")
    source.execute("CREATE TABLE bare (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    writer = writer_of()
    wait_until(lambda: writer.count > 20, what="changes before the copy")
    sink = {"kind": "file", "path": str(directory), "rotate_bytes": 20_000}

    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    mark = writer.count
    wait_until(lambda: writer.count > mark + 20, what="changes after the copy")
    writer.stop()
    source.execute("INSERT INTO empty VALUES (1, 2, 'x')")
    pipeline.catch_up()
    pipeline.stop()

    found = read(directory)
    reads = [one for one in found if one["op"] == "read"]
    (lsn,) = {one["commit_lsn"] for one in reads}
    assert replay(found) == stands(source)
    assert replay(found, "empty") == stands(source, "empty")
    assert {one["table"] for one in reads} == {"t"}
    ordinals = [int(one["ordinal"].digits) for one in reads]
    assert ordinals == sorted(set(ordinals)), "in order, each once"
    assert ordinals[-1] > 1 << 32, "of several ranges"
    assert {one["op"] for one in found} == {"read", "insert", "update", "delete"}
    head = {"schema": "public", "xid": None, "committed_at": None, "source": "test"}
    assert reads[0].items() >= {**head, "before": None, "unchanged": []}.items()
    assert lsn > "0/0"
    copies = [path for path in visible(directory) if b'"op":"read"' in path.read_bytes()[:100]]
    assert len(copies) > 5
    assert all(path.stat().st_size < 21_000 for path in copies[:-1]), "cut at rotate_bytes"
    assert hidden(directory) == TIDY


def spelled(directory: Path) -> list[tuple[str, bytes, bytes]]:
    """Of each document the op, and key and row as they are spelled."""
    lines = b"".join(path.read_bytes() for path in visible(directory)).split(b"\n")[:-1]
    found = []
    for line in lines:
        rest, after = line.split(b',"after":', 1)
        found.append((parse(line)["op"], rest.split(b',"key":', 1)[1], after))
    return found


# Of every kind a value that is easily spelled in another way.
VALUES = {
    "bool": "true",
    "int2": "-32768",
    "int8": "9223372036854775807",
    "numeric": "'1.500'",
    "numeric(10,2)": "'NaN'",
    "float4": "'-Infinity'",
    "float8": "0.1::float8 + 0.2",
    "money": "'-1234.5'",
    "oid": "4294967295",
    "bytea": r"'\x00ff5c0a'",
    "date": "'0044-03-15 BC'",
    "timestamp": "'2024-02-29 01:02:03.04'",
    "timestamptz": "'2024-02-29 01:02:03+05:30'",
    "time": "'24:00'",
    "timetz": "'01:02:03-08'",
    "interval": "'1 month -2 days 3 seconds'",
    "uuid": "'00000000-0000-0000-0000-00000000000a'",
    "inet": "'10.0.0.1/8'",
    "bit(3)": "B'101'",
    "point": "'(1,2.5)'",
    "json": r"""E'{"a":\n\t[1.50, "\\\\n\\\\\\\\"]}'""",
    "jsonb": r"""'{"b": "\\ \" ż"}'""",
    "text[]": r"""ARRAY['a', NULL, 'x\y', E'n\nn', '"', '']""",
    "int4range": "'[1,5)'",
    "tsvector": r"""'it''s \\ back'""",
    "mood": "'it''s \\ \"fine\"'",
    "small": "7",
    "pair": r"""ROW(1, E'a\\b\n"c"')""",
    "bpchar(5)": "'a'",
    "text": r"E'\b\f\n\r\t\x0b\x01\"\\ż𝄞'",
    "varchar": r"'\.'",
    "name": r"'\N'",
}
TEXTS = [
    "''",
    "'\\'",
    "'\\\\'",
    "E'\\t'",
    "E'\\n'",
    "'\\n'",
    "'\\N'",
    "'\\.'",
    "' '",
    "NULL",
    "'null'",
]


def test_values_are_spelled_as_in_an_insert(
    source: Database, make_pipeline: Make, directory: Path
) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('it''s \\ \"fine\"'); CREATE DOMAIN small AS int;"
        " CREATE TYPE pair AS (a int, b text); SET timezone = 'Asia/Kolkata'"
    )
    columns = [f'"c{n} ""{kind}" {kind}' for n, kind in enumerate(VALUES)]
    texts = [f"t{n} text" for n in range(len(TEXTS))]
    source.execute(f"CREATE TABLE t ({', '.join([*columns, *texts])}, last text, h text)")
    values = ", ".join([*VALUES.values(), *TEXTS])
    for last in ("'x'", "NULL", "''"):
        source.execute(f"INSERT INTO t VALUES ({values}, {last})")
    source.execute("INSERT INTO t DEFAULT VALUES")
    pipeline = make_pipeline(
        source,
        sink={"kind": "file", "path": str(directory)},
        source_options={**ALWAYS_COPIED, "insert_only": ["t"]},
    )
    pipeline.catch_up()

    source.execute("INSERT INTO t SELECT * FROM t")
    pipeline.catch_up()
    pipeline.stop()

    found = spelled(directory)
    assert [op for op, _, _ in found] == ["read"] * 4 + ["insert"] * 4
    for read_row, inserted in zip(found[:4], found[4:], strict=True):
        assert read_row[1:] == inserted[1:]
    assert b"\\u0001" in found[0][2]
    assert found[3][2].count(b":null") == len(columns) + len(texts) + 2


@pytest.mark.parametrize(
    "identity",
    ["DEFAULT", "FULL", "NOTHING", "USING INDEX by_code"],
    ids=lambda one: one.split()[0],
)
def test_key_and_columns_are_those_of_an_insert(
    identity: str, source: Database, make_pipeline: Make, directory: Path
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " gone text, code text NOT NULL, note text)"
    )
    source.execute("CREATE UNIQUE INDEX by_code ON t (code)")
    source.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}; ALTER TABLE t DROP gone")
    source.execute("CREATE TABLE bare (note text)")
    source.execute("INSERT INTO t VALUES (5, default, 'c', 'n'); INSERT INTO bare VALUES (NULL)")
    pipeline = make_pipeline(
        source,
        sink={"kind": "file", "path": str(directory)},
        source_options={**ALWAYS_COPIED, "insert_only": ["t", "bare"]},
    )
    pipeline.catch_up()

    source.execute("CREATE TABLE kept AS SELECT id, code, note FROM t; TRUNCATE t")
    source.execute("INSERT INTO t (id, code, note) TABLE kept; INSERT INTO bare VALUES (NULL)")
    pipeline.catch_up()
    pipeline.stop()

    found = [one for one in read(directory) if one["table"] != "kept" and one["op"] != "truncate"]
    for table in ("t", "bare"):
        copied, inserted = [one for one in found if one["table"] == table]
        assert (copied["op"], inserted["op"]) == ("read", "insert")
        for field in ("key", "before", "after", "unchanged", "schema", "source"):
            assert copied[field] == inserted[field], field
        assert list(copied) == list(inserted), "the same fields in the same order"


def test_many_rows_and_long_ones_all_come(
    source: Database, make_pipeline: Make, directory: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, pad text)")
    source.execute(
        "INSERT INTO t SELECT g, g, repeat(chr(92) || 'x', 1500) FROM generate_series(1, 2000) g"
    )
    source.execute("UPDATE t SET pad = repeat('long', 1000000) WHERE id = 1000")

    pipeline = make_pipeline(
        source, sink={"kind": "file", "path": str(directory)}, source_options=ALWAYS_COPIED
    )
    pipeline.catch_up()
    pipeline.stop()

    found = read(directory)
    assert [int(one["ordinal"].digits) for one in found] == list(range(2000))
    assert replay(found) == stands(source)


def test_table_that_appears_later_is_copied_while_others_stream(
    source: Database,
    make_pipeline: Make,
    directory: Path,
    small_ranges: Callable[[int], None],
    writer_of: Callable[..., Writer],
) -> None:
    small_ranges(3)
    make_table(source)
    pipeline = make_pipeline(
        source,
        sink={"kind": "file", "path": str(directory)},
        source_options=ALWAYS_COPIED,
    )
    pipeline.catch_up()
    writers = [writer_of()]

    with source.connect(autocommit=False) as connection:
        connection.execute("CREATE TABLE u (LIKE t INCLUDING ALL)")
        connection.execute("INSERT INTO u SELECT * FROM t")
        connection.commit()
    writers.append(writer_of("u"))
    (delivery,) = pipeline.deliveries
    wait_until(
        lambda: TableName("public", "u") in delivery._sink.tables.streaming, 60, "u to stream"
    )
    marks = [writer.count for writer in writers]
    wait_until(
        lambda: all(writer.count > mark + 20 for writer, mark in zip(writers, marks, strict=True)),
        what="changes of both",
    )
    for writer in writers:
        writer.stop()
    pipeline.catch_up()
    pipeline.stop()

    found = read(directory)
    assert replay(found) == stands(source)
    assert replay(found, "u") == stands(source, "u")
    first = next(place for place, one in enumerate(found) if one["table"] == "u")
    assert found[first]["op"] == "read"
    assert any(one["op"] == "update" and one["table"] == "t" for one in found[:first])


def test_table_that_is_asked_for_again_comes_anew_as_a_whole(
    source: Database,
    make_pipeline: Make,
    directory: Path,
    small_ranges: Callable[[int], None],
    writer_of: Callable[..., Writer],
) -> None:
    small_ranges(3)
    make_table(source)
    make_table(source, "u", 10)
    pipeline = make_pipeline(
        source, sink={"kind": "file", "path": str(directory)}, source_options=ALWAYS_COPIED
    )
    pipeline.catch_up()
    writer = writer_of()
    table = TableName("public", "t")

    assert build_copying(pipeline.file, "target").ask([table]) == [table]
    (delivery,) = pipeline.deliveries
    wait_until(
        lambda: not list((directory / ".copies").glob("ask-*")), what="the request to be seen"
    )
    wait_until(lambda: table in delivery._sink.tables.streaming, 60, "t to stream")
    mark = writer.count
    wait_until(lambda: writer.count > mark + 20, what="changes after the copy")
    writer.stop()
    pipeline.catch_up()
    pipeline.stop()

    found = [one for one in read(directory) if one["table"] == "t"]
    _, second = dict.fromkeys(one["commit_lsn"] for one in found if one["op"] == "read")
    again = next(place for place, one in enumerate(found) if one["commit_lsn"] == second)
    assert found[again]["op"] == "read"
    assert replay(found[again:]) == stands(source)
    replay(found[:again])
    assert replay(read(directory), "u") == stands(source, "u"), "which was not asked for"


@pytest.mark.long
def test_copy_is_printed_before_later_changes(
    source: Database, pipeline_file: Callable[..., Path], penstock_command: Callable[..., Command]
) -> None:
    make_table(source, rows=50)
    path = pipeline_file(source, None, sink={"kind": "stdout"}, source_options=ALWAYS_COPIED)
    command = penstock_command("run", str(path), "--until-caught-up")
    assert command.wait() == 0, command.stderr
    source.execute("UPDATE t SET n = 1 WHERE id <= 10; DELETE FROM t WHERE id = 50")
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr

    printed = command.process.stdout.read() + again.process.stdout.read()
    found = [parse(line) for line in printed.split(b"\n")[:-1]]
    assert [one["op"] for one in found] == ["read"] * 50 + ["update"] * 10 + ["delete"]
    assert replay(found) == stands(source)
