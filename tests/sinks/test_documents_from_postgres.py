"""Documents of a real server's changes, through real Spark, into files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_documents import Number, parse
from fix_event_sinks import hidden, visible
from fix_subscription import ALL, rules
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.subscription import ensure_subscription

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]


def read(directory: Path) -> list[dict[str, Any]]:
    text = b"".join(path.read_bytes() for path in visible(directory))
    return [parse(line) for line in text.split(b"\n")[:-1]]


def test_values_of_a_real_server_look_as_promised(
    source: Database, make_pipeline: Make, directory: Path
) -> None:
    source.execute("SET timezone = 'Asia/Kolkata'; CREATE TYPE mood AS ENUM ('it''s \"fine\"')")
    columns = {
        "a bool": ("true", True),
        "b int8": ("9223372036854775807", Number("9223372036854775807")),
        "c numeric": ("'1.500'", Number("1.500")),
        "d numeric": ("'NaN'", "NaN"),
        "e float8": ("'-0'", Number("-0")),
        "f float8": ("1e300", Number("1e+300")),
        "g float4": ("'-Infinity'", "-Infinity"),
        "h bytea": (r"'\x00ff10'", "AP8Q"),
        "i date": ("'2024-02-29'", "2024-02-29"),
        "j timestamp": ("'2024-02-29 01:02:03.04'", "2024-02-29T01:02:03.04"),
        "k timestamptz": ("'2024-02-29 01:02:03+05:30'", "2024-02-28T19:32:03+00:00"),
        "l timestamptz": ("'infinity'", "infinity"),
        "m timestamp": ("'0044-03-15 12:00 BC'", "0044-03-15 12:00:00 BC"),
        "n time": ("'24:00'", "24:00:00"),
        "o timetz": ("'01:02:03-08'", "01:02:03-08:00"),
        "p json": ('E\'{"a":\\n [1.50, "\\\\n"]}\'', {"a": [Number("1.50"), "\n"]}),
        "q jsonb": ("'{\"b\": null}'", {"b": None}),
        "r interval": ("'1 month 2 days'", "1 mon 2 days"),
        "s text[]": ("'{a,NULL}'", "{a,NULL}"),
        "t mood": ("'it''s \"fine\"'", 'it\'s "fine"'),
        "u oid": ("4294967295", Number("4294967295")),
        "v text": ("E'\\t\\x01\"\\\\ż'", '\t\x01"\\ż'),
        "w text": ("NULL", None),
    }
    source.execute(f"CREATE TABLE t ({', '.join(columns)})")
    pipeline = make_pipeline(
        source, sink={"kind": "file", "path": str(directory)}, source_options={"insert_only": ["t"]}
    )

    source.execute(f"INSERT INTO t VALUES ({', '.join(value for value, _ in columns.values())})")
    pipeline.catch_up()
    pipeline.stop()

    (found,) = read(directory)
    assert found["after"] == {name.split()[0]: wanted for name, (_, wanted) in columns.items()}
    assert found["key"] is None


def test_every_change_is_in_the_files_once_in_source_order_across_restarts(
    source: Database, make_pipeline: Make, directory: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    sink = {"kind": "file", "path": str(directory), "rotate_bytes": 20_000}
    pipeline = make_pipeline(source, sink=sink)

    source.execute("INSERT INTO t SELECT g, 0, repeat('x', 3000) FROM generate_series(1, 50) g")
    pipeline.catch_up()
    pipeline.stop()
    source.execute("UPDATE t SET n = 1")
    source.execute("UPDATE t SET id = id + 100 WHERE id <= 10")
    pipeline.start()
    source.execute("DELETE FROM t WHERE id > 100")
    source.execute("TRUNCATE t")
    pipeline.catch_up()
    pipeline.stop()

    found = read(directory)
    operations = ["insert"] * 50 + ["update"] * 60 + ["delete"] * 10 + ["truncate"]
    assert [one["op"] for one in found] == operations
    positions = [(one["commit_lsn"], int(one["ordinal"].digits)) for one in found]
    assert len(set(positions)) == len(found)
    assert all(one["unchanged"] == ["big"] for one in found[50:110])
    moved = found[105]
    assert int(moved["key"]["id"].digits) == int(moved["before"]["id"].digits) + 100
    assert len(visible(directory)) >= 2
    assert hidden(directory) == [".lock", ".position.json"]


@pytest.mark.long
def test_table_that_changes_between_init_and_the_first_start_is_reported_once(
    source: Database, make_pipeline: Make, directory: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "test", rules(*ALL), Tracking.TRIGGERS)
    source.execute("INSERT INTO t VALUES (1, 'x')")
    source.execute("ALTER TABLE t ADD b int DEFAULT 7")

    pipeline = make_pipeline(source, sink={"kind": "file", "path": str(directory)})
    source.execute("INSERT INTO t VALUES (2, 'y')")
    pipeline.catch_up()
    pipeline.stop()

    first, change, second = read(directory)
    assert first["after"] == {"id": Number("1"), "a": "x"}
    assert [(each["op"], each["part"]) for each in change["difference"]] == [("add_column", "b")]
    assert second["after"] == {"id": Number("2"), "a": "y", "b": Number("7")}
