"""The pipeline file: what it means."""

from __future__ import annotations

import json
import pickle

import pytest

from fix_pipeline_file import CANARY, ENVIRON, FULL, SMALL
from penstock.config import pipeline_from_document, pipeline_from_urls
from penstock.errors import PipelineFileError
from penstock.modifiers.inject import PrimaryKeyOptions
from penstock.sinks.file.options import FileOptions
from penstock.sinks.postgres.options import OnConflict, PostgresOptions
from penstock.sinks.stdout.options import StdoutOptions
from penstock.source.options import Acknowledge, SnapshotMode, Tracking
from penstock.table import TableName, TableRule


def test_full_file_gives_every_value_it_names(pipeline_of, tmp_path):
    pipeline = pipeline_of(FULL)

    assert (pipeline.name, pipeline.source_id) == ("shop", "shop")
    assert pipeline.state == tmp_path / "shop-state"
    assert pipeline.source.url.database == "shop"
    assert pipeline.source.tables.include == (TableRule("public", None),)
    assert pipeline.source.tables.exclude == (TableRule("public", "audit"),)
    assert pipeline.source.tables.insert_only == (TableRule("public", "events"),)
    assert pipeline.source.acknowledge is Acknowledge.LOGGED
    assert pipeline.source.heartbeat_seconds == 2.5
    assert pipeline.log.retain_bytes == 10_000_000_000
    assert list(pipeline.sinks) == ["warehouse", "lines", "screen"]
    warehouse = pipeline.sinks["warehouse"]
    assert isinstance(warehouse, PostgresOptions)
    assert (warehouse.schema_name, warehouse.create_tables) == ("dw", False)
    assert warehouse.on_conflict is OnConflict.KEEP
    lines = pipeline.sinks["lines"]
    assert isinstance(lines, FileOptions)
    assert lines.path == tmp_path / "out" / "changes"
    assert (lines.rotate_bytes, lines.rotate_seconds) == (1_572_864, 60.0)
    assert isinstance(pipeline.sinks["screen"], StdoutOptions)
    assert pipeline.spark.master == "local[2]"
    assert pipeline.spark.conf == {"spark.ui.enabled": "false"}


def test_small_file_gives_the_defaults(pipeline_of, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    pipeline = pipeline_of(SMALL)

    assert pipeline.state == elsewhere / ".penstock" / "shop"
    assert pipeline.source.acknowledge is Acknowledge.DELIVERED
    assert pipeline.source.heartbeat_seconds == 10.0
    assert pipeline.source.snapshot.mode is SnapshotMode.INITIAL
    assert pipeline.source.schema_options.tracking is Tracking.TRIGGERS
    assert pipeline.log.kind == "files"
    assert pipeline.log.retain_bytes == 10_000_000_000
    assert (pipeline.spark.master, pipeline.spark.conf) == ("local[*]", {})


@pytest.mark.parametrize("tracking", list(Tracking))
def test_tracking_is_one_of_three(pipeline_of, tracking):
    pipeline = pipeline_of(FULL.replace("tracking: off", f"tracking: {tracking.value}"))

    assert pipeline.source.schema_options.tracking is tracking


def test_postgres_sink_has_defaults(pipeline_of):
    sink = pipeline_of(SMALL.replace("stdout", 'postgres, url: "postgresql://db2/dw"')).sinks[
        "screen"
    ]

    assert (sink.schema_name, sink.create_tables, sink.on_conflict, sink.tables) == (
        "same",
        True,
        OnConflict.REPLACE,
        {},
    )


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"key": "table"}, 0),
        ({"key": "primary_key"}, 1),
        ({}, 1),
        ({"format": "debezium", "topic": "{schema}.{table}"}, 1),
    ],
)
def test_records_have_the_primary_key_without_a_rule_that_says_so(given, count):
    document = {
        "name": "shop",
        "source": {"url": "postgresql://h/d", "tables": ["public.*"]},
        "sinks": {"bus": {"kind": "kafka", "servers": "b:1", **given}},
    }

    rules = pipeline_from_document(document, "test").modifiers

    assert [type(rule.options) for rule in rules] == [PrimaryKeyOptions] * count
    assert all(rule.is_for("bus") and not rule.is_for("other") for rule in rules)


def test_sections_with_nothing_behind_them_take_their_defaults(pipeline_of):
    pipeline = pipeline_of(SMALL + "log:\nspark:\nmodifiers:\n")

    assert pipeline.log.retain_bytes == 10_000_000_000


def test_columns_of_prefers_the_entry_that_names_the_table_outright(pipeline_of):
    tables = 'tables: {"public.*": {columns: [id]}, orders: {columns: [id, total]}, "*.all": }'
    sink = pipeline_of(FULL.replace("tables:\n      public.orders:", f"{tables}\n    #")).sinks[
        "warehouse"
    ]

    assert list(sink.rule_of(TableName("public", "orders")).columns) == ["id", "total"]
    assert list(sink.rule_of(TableName("public", "users")).columns) == ["id"]
    assert sink.rule_of(TableName("sales", "all")).columns is None
    assert sink.rule_of(TableName("sales", "orders")).columns is None


@pytest.mark.parametrize(
    ("written", "count"),
    [("1000", 1000), ("512MiB", 512 << 20), ("10GB", 10**10), ("1 kB", 1000), ("7b", 7)],
)
def test_byte_counts_take_units(pipeline_of, written, count):
    assert pipeline_of(SMALL + f"log: {{retain_bytes: {written}}}\n").log.retain_bytes == count


def test_words_that_yaml_takes_for_truth_values_or_numbers_stay_words(pipeline_of):
    pipeline = pipeline_of(SMALL.replace("name: shop", "name: 007").replace("orders", "on"))

    assert pipeline.name == "007"
    assert pipeline.source.tables.include == (TableRule("public", "on"),)


def test_variable_may_hold_a_number_and_never_becomes_structure(pipeline_of):
    text = SMALL.replace("[orders]", "['${TABLE}']") + "log: {retain_bytes: ${RETAIN}}\n"

    pipeline = pipeline_of(text, {**ENVIRON, "TABLE": "a, b]: {c"})

    assert pipeline.log.retain_bytes == 512 << 20
    assert pipeline.source.tables.include == (TableRule("public", "a, b]: {c"),)


def test_variable_needs_no_quotes_within_braces(pipeline_of):
    text = SMALL.replace('"postgresql://db1/shop"', "${SHOP_URL}").replace(
        "[orders]", "[${T:-a#: b}, '${T:-c''d}', \ue000, ${T:-\ue000}, \"\\ue0007\\ue000\"]"
    )

    pipeline = pipeline_of(text)

    assert str(pipeline.source.url) == "db1:5432/shop"
    names = [rule.name for rule in pipeline.source.tables.include]
    assert names == ["a#: b", "c'd", "\ue000", "\ue000", "\ue0007\ue000"]


def test_variable_falls_back_to_its_default_when_unset_or_empty(pipeline_of):
    text = SMALL.replace("name: shop", "name: ${NAME:-plan}_${B:-}b")

    assert pipeline_of(text, {}).name == "plan_b"
    assert pipeline_of(text, {"NAME": ""}).name == "plan_b"
    assert pipeline_of(text, {"NAME": "shop"}).name == "shop_b"


def test_two_dollars_stand_for_one(pipeline_of):
    text = SMALL.replace("[orders]", "['a$$b', '$${C}', 'd$e']")

    names = [rule.name for rule in pipeline_of(text, {}).source.tables.include]

    assert names == ["a$b", "${C}", "d$e"]


def test_variable_in_a_comment_is_not_needed(pipeline_of):
    assert pipeline_of("# ${NOT_SET}\n" + SMALL, {}).name == "shop"


def test_password_is_not_in_the_repr_of_a_pipeline(pipeline_of):
    pipeline = pipeline_of(
        FULL.replace("conf: {", "conf: {spark.key: ${PW}, "), {**ENVIRON, "PW": CANARY}
    )

    assert CANARY in pipeline.document["source"]["url"]
    assert CANARY not in repr(pipeline)
    assert CANARY not in str(pipeline)


def test_alias_repeats_a_value(pipeline_of):
    text = SMALL.replace("tables: [orders]", "tables: &t [orders], insert_only: *t")

    assert pipeline_of(text).source.tables.insert_only == (TableRule("public", "orders"),)


def test_byte_order_mark_is_not_part_of_the_first_key(pipeline_of):
    assert pipeline_of(b"\xef\xbb\xbf" + SMALL.encode()).name == "shop"


def test_document_builds_an_equal_pipeline_in_another_directory(pipeline_of, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for text in (FULL, SMALL):
        pipeline = pipeline_of(text)
        sent = json.dumps(pipeline.document)
        with monkeypatch.context() as patch:
            patch.chdir(elsewhere)

            assert pipeline_from_document(json.loads(sent), "stdin") == pipeline


def test_pipeline_cannot_get_into_what_spark_sends(pipeline_of):
    pipeline = pipeline_of(FULL)

    with pytest.raises(TypeError, match="holds passwords"):
        pickle.dumps(pipeline)


def test_document_may_hold_numbers_and_is_not_expanded_again():
    pipeline = pipeline_from_document(
        {
            "name": "shop",
            "source": {"url": "dbname=a", "tables": ["$$a${B}"], "heartbeat_seconds": 3},
            "log": {"retain_bytes": 1000},
            "sinks": {"out": {"kind": "stdout"}},
            "spark": {"conf": {"a": True, "b": 2}},
        },
        "stdin",
    )

    assert pipeline.source.heartbeat_seconds == 3.0
    assert pipeline.source.tables.include == (TableRule("public", "$$a${B}"),)
    assert pipeline.spark.conf == {"a": "true", "b": "2"}


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"name": 5, "source": {"url": "dbname=a", "tables": ["a"]}, "sinks": {}}, "stdin name"),
        ({"name": "a", "source": {"url": 5, "tables": ["a"]}}, "stdin source.url"),
        ({"name": "\0"}, "stdin name"),
        ({"name": {1}}, "stdin name"),
        ({1: "a"}, "stdin"),
        ([], "stdin"),
        (None, "stdin"),
    ],
)
def test_bad_document_is_reported_with_the_path_of_keys(document, where):
    with pytest.raises(PipelineFileError) as caught:
        pipeline_from_document(document, "stdin")

    assert caught.value.where == where


def test_pipeline_from_urls_delivers_public_tables_to_one_sink(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    pipeline = pipeline_from_urls(ENVIRON["SHOP_URL"], "postgresql://db2/Data-Mart.1")

    assert pipeline.name.startswith("shop_to_data_mart_1_")
    assert pipeline.state == tmp_path / ".penstock" / pipeline.name
    assert pipeline.source.tables.include == (TableRule("public", None),)
    assert [sink.kind for sink in pipeline.sinks.values()] == ["postgres"]
    assert CANARY not in repr(pipeline)


def test_name_from_urls_depends_on_servers_and_not_on_passwords():
    def name(source: str, target: str = "postgresql://db2/dw", *tables: str) -> str:
        return pipeline_from_urls(source, target, list(tables)).name

    assert name("postgresql://a:1@db1/shop") == name("postgresql://b:2@db1:5432/shop")
    assert name("postgresql://db1/shop") == name(
        "postgresql://db1/shop", "postgresql://db2/dw", "a"
    )
    assert name("postgresql://db1/shop") != name("postgresql://db3/shop")
    assert name("postgresql://db1/shop") != name("postgresql://db1/shop", "postgresql://db4/dw")
    assert len(name("postgresql://db1/" + "x" * 63, "postgresql://db1/" + "y" * 63)) <= 40
    assert name("postgresql://db1/%C3%BC")


@pytest.mark.parametrize(
    ("source", "target", "tables", "where"),
    [
        (f"mysql://{CANARY}", "postgresql://db2/dw", [], "--source"),
        ("postgresql://db1/shop", f"postgresql://a:{CANARY}@db2", [], "--target"),
        ("postgresql://db1/shop", "postgresql://db2/dw", ["a", "a.b.c"], "--table"),
    ],
)
def test_faults_of_the_command_line_name_the_option(source, target, tables, where):
    with pytest.raises(PipelineFileError) as caught:
        pipeline_from_urls(source, target, tables)

    assert caught.value.where == where
    assert CANARY not in str(caught.value)


def test_each_source_of_several_has_a_place_of_its_own(pipeline_of, tmp_path):
    text = (
        "name: shop\n"
        "state: s\n"
        "sources:\n"
        "  eu: {url: 'postgresql://db1/shop', tables: [orders]}\n"
        "  us: {url: 'postgresql://db2/shop', tables: [orders]}\n"
        "sinks: {lines: {kind: file, path: out}, screen: {kind: stdout}}\n"
    )

    whole = pipeline_of(text)
    eu, us = whole.each()

    assert (eu.source_id, us.source_id) == ("eu", "us")
    assert [str(view.source.url) for view in (eu, us)] == ["db1:5432/shop", "db2:5432/shop"]
    assert (eu.state, us.state) == (tmp_path / "s" / "eu", tmp_path / "s" / "us")
    assert eu.top == us.top == whole.state == tmp_path / "s"
    assert eu.sinks["lines"].path == tmp_path / "out" / "eu"
    assert not whole.is_alone
    assert not eu.is_alone
    assert pipeline_from_document(whole.document, "again").each() == whole.each()


def test_sole_source_is_its_own_view(pipeline_of):
    pipeline = pipeline_of(SMALL)

    assert pipeline.is_alone
    assert pipeline.each() == [pipeline]
    assert pipeline.top == pipeline.state


def test_sole_entry_of_sources_has_the_layout_of_several(pipeline_of, tmp_path):
    text = SMALL.replace("source: {", "sources: {eu: {").replace("[orders]}", "[orders]}}")

    [view] = pipeline_of(f"state: s\n{text}").each()

    assert view.is_alone
    assert view.state == tmp_path / "s" / "eu"


def test_many_sources_are_polled_less_often_each(pipeline_of):
    sources = {f"s{n}": {"url": f"postgresql://db{n}/x", "tables": ["t"]} for n in range(50)}
    document = {"name": "many", "sources": sources, "sinks": {"screen": {"kind": "stdout"}}}

    many = pipeline_from_document(document, "test")

    assert many.each()[0].paced(2.0) == 20.0
    assert pipeline_of(SMALL).paced(2.0) == 2.0
