"""Several sinks, or several sources, of one pipeline on one broker: each has everything, once and in order."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_documents import parse
from fix_pipeline import ALWAYS_COPIED
from fix_postgres import only_new
from fix_replay import assert_order_per_key, replayed, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_kafka import KafkaServer
    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres


def in_full(records: list[tuple[Any, dict[str, Any]]], source: Database, *tables: str) -> None:
    """Documents come once, in order, and hold what the source has."""
    assert_order_per_key(records)
    documents = [document for _, document in records]
    assert len(documents) == len({one["id"] for one in documents})
    assert replayed(documents) == rows_of(source, *tables)


def of_kafka(server: KafkaServer, prefix: str) -> list[tuple[Any, dict[str, Any]]]:
    return [
        (each.key(), parse(each.value())) for each in server.records(*server.topics(f"{prefix}."))
    ]


@only_new
@pytest.mark.parametrize("kind", ["kafka", "nats"])
def test_two_sinks_on_one_broker_have_all_of_it_each(
    kind: str,
    source: Database,
    make_pipeline: Callable[..., RunningPipeline],
    request: pytest.FixtureRequest,
) -> None:
    own = f"s{uuid.uuid4().hex[:8]}"
    server: Any = request.getfixturevalue("kafka" if kind == "kafka" else "nats_server")
    sinks: dict[str, dict[str, Any]] = {}
    for name in ("one", "two"):
        place = f"{own}{name}"
        if kind == "kafka":
            sinks[name] = {
                "kind": "kafka",
                "servers": server.servers,
                "topic": f"{place}.{{table}}",
                "progress_topic": f"progress.{own}",
            }
        else:
            subject = f"{place}.{{table}}"
            sinks[name] = {"kind": "nats", "url": server.url, "stream": place, "subject": subject}
    source.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    source.execute("INSERT INTO a SELECT g, 0 FROM generate_series(1, 50) g")
    pipeline = make_pipeline(source, source_options=ALWAYS_COPIED, sinks=sinks)

    for number in range(2):
        if number:
            pipeline.start()
        source.execute(
            f"INSERT INTO a SELECT g, 1 FROM generate_series(1{number}00, 1{number}50) g"
        )
        source.execute("UPDATE a SET n = n + 1 WHERE id % 3 = 0")
        source.execute(f"DELETE FROM a WHERE id = {number + 1}")
        pipeline.catch_up()
        pipeline.stop()

    for name in sinks:
        place = f"{own}{name}"
        if kind == "kafka":
            records = of_kafka(server, place)
        else:
            records = [(each.subject, parse(each.data)) for each in server.messages(place)]
        in_full(records, source, "a")


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_two_sources_of_one_sink_have_all_of_it_each_also_after_a_kill(
    delivery: str,
    kafka: KafkaServer,
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    """Of the same tables, whose positions lie in one topic."""
    own = f"m{uuid.uuid4().hex[:8]}"
    sources = {name: make_database(pg_new, name) for name in ("eu", "us")}
    for number, database in enumerate(sources.values()):
        database.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
        database.execute(f"INSERT INTO a SELECT g, {number} FROM generate_series(1, 100) g")
    document = {
        "name": own,
        "state": str(tmp_path / "state"),
        "sources": {
            name: {"url": each.url, "tables": ["public.a"]} for name, each in sources.items()
        },
        "sinks": {
            "bus": {
                "kind": "kafka",
                "servers": kafka.servers,
                "topic": f"{own}.{{source}}.{{table}}",
                "progress_topic": f"progress.{own}",
                "delivery": delivery,
            }
        },
        "spark": {"master": "local[2]"},
    }
    path = tmp_path / "many.yml"
    path.write_text(yaml.safe_dump(document))

    for number in range(3):
        point = "kafka.before_commit" if delivery == "exactly_once" else "documents.after_deliver"
        env = {"PENSTOCK_FAULT": f"{point}:{number + 2}"} if number < 2 else None
        command = penstock_command("run", str(path), "--until-caught-up", env=env)
        for each in sources.values():
            each.execute(
                f"INSERT INTO a SELECT g, 5 FROM generate_series({number + 1}000, {number + 1}200) g"
            )
            each.execute("UPDATE a SET n = n + 1 WHERE id % 2 = 0")
        code = command.wait(240)
        assert number < 2 or code == 0, command.stderr
    # What came while the last run was about to end.
    assert penstock_command("run", str(path), "--until-caught-up").wait(240) == 0

    for name, database in sources.items():
        records = of_kafka(kafka, f"{own}.{name}")
        assert_order_per_key(records)
        documents = [one for _, one in records]
        assert {one["source"] for one in documents} == {name}
        if delivery == "exactly_once":
            assert len(documents) == len({one["id"] for one in documents})
        assert replayed(documents) == rows_of(database, "a")
