"""The pipeline file: what is said about a wrong one."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal, Self

import pytest
from pydantic import field_validator, model_validator

from fix_machine import not_as_root
from fix_pipeline_file import CANARY, ENVIRON, FULL, SMALL
from penstock.config import read_pipeline
from penstock.errors import (
    BadTableRule,
    BadUrl,
    BadValue,
    MissingVariable,
    NotThereYet,
    PipelineFileError,
    UnknownKey,
)
from penstock.sink import DocumentKind, DocumentSink, SinkOptions, SinkPlace
from penstock.sinks.registry import GROUP, sink_kinds


@pytest.mark.parametrize("written", ["0", "-1", "10XB", "1e9", "9" * 30, "0.1", "iB", "[1]", ""])
def test_byte_counts_refuse_what_is_not_a_size(fault_of, written):
    error = fault_of(SMALL + f"log: {{retain_bytes: {written}}}\n")

    assert isinstance(error, BadValue)
    assert "wanted a number of bytes" in error.what


@pytest.mark.parametrize("listen", ["", "listen: 127.0.0.1:8750\n", "listen: localhost\n"])
def test_short_token_is_no_fault_where_nobody_else_reaches_the_server(pipeline_of, listen):
    assert pipeline_of(SMALL + listen + "token: secret\n").server.token == "secret"


def test_short_token_is_a_fault_where_others_reach_the_server(fault_of):
    error = fault_of(SMALL + "listen: 0.0.0.0:8750\ntoken: hidden\n")

    assert isinstance(error, BadValue)
    assert "wanted at least 16 characters" in error.what
    assert error.where.endswith(f":{SMALL.count(chr(10)) + 2}")
    assert "hidden" not in str(error)


def test_port_alone_is_no_address_to_listen_at(fault_of):
    error = fault_of(SMALL + "listen: 8750\n")

    assert "listen is '8750', wanted host:port" in error.what


@pytest.mark.parametrize("written", ["''", "' padded-with-blanks '", "[]"])
def test_token_that_cannot_be_sent_is_a_fault(fault_of, written):
    assert "wanted a token" in fault_of(SMALL + f"token: {written}\n").what


def test_missing_variable_is_named_with_its_line(fault_of):
    error = fault_of(FULL, {})

    assert isinstance(error, MissingVariable)
    assert error.where == "shop.yml:4"
    assert "SHOP_URL" in error.what


@pytest.mark.parametrize("written", ["${", "${}", "${1A}", "${A-b}", "${A B}"])
def test_dollar_brace_without_a_variable_is_an_error(fault_of, written):
    error = fault_of(SMALL.replace("name: shop", f"name: '{written}'"))

    assert error.where == "shop.yml:1"
    assert "does not name a variable" in error.what


@pytest.mark.parametrize(
    ("found", "written", "line", "name", "near"),
    [
        ("name: shop", "nam: shop", 1, "nam", "name"),
        ("  acknowledge:", "  acknowlege:", 9, "source.acknowlege", "acknowledge"),
        ("exclude:", "exclud:", 5, "source.tables.exclud", "exclude"),
        ("retain_bytes:", "retain_byte:", 11, "log.retain_byte", "retain_bytes"),
        (
            "    create_tables:",
            "    create_table:",
            18,
            "sinks.warehouse.create_table",
            "create_tables",
        ),
        ("columns:", "colums:", 23, "sinks.warehouse.tables.public.orders.colums", "columns"),
        ("rotate_bytes:", "rotate_byte:", 24, "sinks.lines.rotate_byte", "rotate_bytes"),
        ("master:", "mastr:", 26, "spark.mastr", "master"),
    ],
)
def test_unknown_key_is_named_with_line_and_nearest_key(fault_of, found, written, line, name, near):
    error = fault_of(FULL.replace(found, written, 1))

    assert isinstance(error, UnknownKey)
    assert error.where == f"shop.yml:{line}"
    assert error.what.startswith(f"{name} is not a known key, wanted one of ")
    assert near in error.what.split("wanted one of")[1]
    assert near in error.do


@pytest.mark.parametrize(
    ("found", "written", "line", "name"),
    [
        *(
            ("kind: stdout", f"kind: {kind}", 25, "sinks.screen.kind")
            for kind in ("delta", "iceberg", "parquet")
        ),
    ],
)
def test_promised_key_is_refused_as_not_there_yet(fault_of, found, written, line, name):
    error = fault_of(FULL.replace(found, written, 1))

    assert isinstance(error, NotThereYet)
    assert error.where == f"shop.yml:{line}"
    assert error.what.startswith(f"{name} is ")
    assert "not there yet" in error.what


@pytest.mark.parametrize(
    ("found", "written", "line", "what"),
    [
        ("name: shop", "name: Shop!", 1, "name is 'Shop!', wanted a name of 1 to 40 of a-z"),
        ("name: shop", f"name: {'x' * 41}", 1, "wanted a name of 1 to 40"),
        ("name: shop\n", "", 1, "name is missing"),
        ("state: ./shop-state", "state: s3://bucket", 2, "wanted a path on this machine"),
        ("state: ./shop-state", "state: ''", 2, "state is '', wanted a path"),
        ("  url: ${SHOP_URL}\n  t", "  t", 3, "source.url is missing"),
        (
            "snapshot: never",
            "snapshot: nevr",
            7,
            "source.snapshot is 'nevr', wanted 'initial' or 'never'",
        ),
        (
            "snapshot: never",
            "snapshot: {mode: initial, parallel: 0}",
            7,
            "source.snapshot.parallel is '0', wanted a whole number of at least 1",
        ),
        (
            "snapshot: never",
            "snapshot: {max_rows_per_second: fast}",
            7,
            "source.snapshot.max_rows_per_second is 'fast', wanted a whole number of at least 1",
        ),
        ("logged", "later", 9, "source.acknowledge is 'later', wanted 'delivered' or 'logged'"),
        (
            "${HEARTBEAT:-2.5}",
            "0",
            10,
            "heartbeat_seconds is '0', wanted a number of seconds above",
        ),
        ("${HEARTBEAT:-2.5}", "nan", 10, "heartbeat_seconds is 'nan', wanted a number of seconds"),
        ("${HEARTBEAT:-2.5}", "1e9", 10, "heartbeat_seconds is '1e9', wanted a number of seconds"),
        ("${HEARTBEAT:-2.5}", "soon", 10, "heartbeat_seconds is 'soon', wanted a number"),
        ("${HEARTBEAT:-2.5}", "[1]", 10, "heartbeat_seconds is a list, wanted a number"),
        ("${HEARTBEAT:-2.5}", "", 10, "heartbeat_seconds is nothing, wanted a number"),
        ("{kind: files, retain_bytes: 10GB}", "files", 11, "log is 'files', wanted a mapping"),
        ("kind: postgres", "kind: postgras", 15, "'postgras' is no kind of sink, wanted postgres"),
        ("kind: stdout", "", 25, "sinks.screen: no kind of sink, wanted postgres, file, stdout"),
        ("{kind: stdout}", "stdout", 25, "sinks.screen is 'stdout', wanted a mapping with a kind"),
        ("schema: dw", f"schema: {'x' * 64}", 17, "wanted a name of 1 to 63 bytes"),
        ("create_tables: no", "create_tables: maybe", 18, "is 'maybe', wanted true or false"),
        ("keep", "merge", 21, "on_conflict is 'merge', wanted 'replace', 'keep' or 'stop'"),
        ("[id, total]", "[]", 23, "columns is a list, wanted a list of at least one column"),
        ("[id, total]", "[id, id]", 23, "each one once"),
        ("[id, total]", "id", 23, "columns is 'id', wanted a list"),
        ("  screen:", "  Screen-1:", 25, "sinks.Screen-1 is not allowed as a key, wanted a name"),
        ("local[2]", "lokal", 26, "spark.master is 'lokal', wanted local[*], spark://"),
        ("conf: {", "conf: {a: [1], ", 26, "spark.conf.a is a list, wanted text"),
    ],
)
def test_bad_value_is_reported_with_found_beside_wanted(fault_of, found, written, line, what):
    assert found in FULL

    error = fault_of(FULL.replace(found, written, 1))

    assert isinstance(error, BadValue)
    assert error.where == f"shop.yml:{line}"
    assert what in error.what


def test_file_without_a_sink_is_refused(fault_of):
    assert "at least one sink" in fault_of(SMALL.replace("{screen: {kind: stdout}}", "{}")).what
    assert "sinks is missing" in fault_of(SMALL.replace("sinks: {screen: {kind: stdout}}", "")).what


def test_first_fault_by_line_is_the_one_reported(fault_of):
    error = fault_of(FULL.replace("local[2]", "").replace("keep", "x").replace("logged", "x"))

    assert error.where == "shop.yml:9"


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("[a.b.c]", "source.tables[0]: 'a.b.c' has 3 parts"),
        ("[ok, 'or*']", "source.tables[1]: 'or*' has * inside a part"),
        ("{include: [], exclude: ['a..b']}", "source.tables.exclude[0]: 'a..b' has an empty part"),
        ("[]", "source.tables: no table is named"),
        ("{include: [], exclude: []}", "source.tables: no table is named"),
        ("", "source.tables: no table is named"),
        ("[ok], insert_only: ['\"a']", "source.insert_only[0]: '\"a' has an open quote"),
        (f"['x://{CANARY}']", "source.tables[0]: a URL, wanted schema.table"),
    ],
)
def test_bad_table_rule_is_reported_with_its_line(fault_of, written, what):
    error = fault_of(SMALL.replace("[orders]", written))

    assert isinstance(error, BadTableRule)
    assert error.where == "shop.yml:2"
    assert what in error.what


def test_source_without_tables_is_refused(fault_of):
    assert isinstance(fault_of(SMALL.replace(", tables: [orders]", "")), BadTableRule)


def test_table_of_a_sink_written_in_two_ways_is_refused(fault_of):
    error = fault_of(FULL.replace("public.orders:", "orders: {}\n      public.orders:"))

    assert isinstance(error, BadTableRule)
    assert error.where == "shop.yml:24"


@pytest.mark.parametrize(
    "url", [f"mysql://ana:{CANARY}@h/d", f"postgresql://ana:{CANARY}@h", f"host=h pasword={CANARY}"]
)
def test_bad_url_is_reported_without_showing_it(fault_of, url):
    error = fault_of(FULL, {"SHOP_URL": url})

    assert isinstance(error, BadUrl)
    assert error.where == "shop.yml:4"
    assert error.what.startswith("source.url: ")


@pytest.mark.parametrize(
    ("found", "written"),
    [
        ("name: shop", f"name: postgresql://a:{CANARY}@h/d"),
        ("name: shop", "name: ${SHOP_URL}"),
        ("url: ${SHOP_URL}", f"url: [{CANARY}]"),
        ("url: ${SHOP_URL}", f"url: {{{CANARY}: {CANARY}}}"),
        ("url: ${SHOP_URL}", f"password: {CANARY}"),
        ("url: ${SHOP_URL}", "${SHOP_URL}: x"),
        ("public.orders:", "${SHOP_URL}.b.c:"),
        ("public.orders:", "${SHOP_URL}:"),
        ("[audit]", "['\"${SHOP_URL}\"']"),
        ("[id, total]", "['${SHOP_URL}']"),
        ("schema: dw", "schema: ${SHOP_URL}"),
        ("local[2]", "${SHOP_URL}"),
        ("path: out/changes", "path: '${SHOP_URL}'"),
        ("${HEARTBEAT:-2.5}", "${PASSWORD}"),
        ("[audit]", "[a.b.${PASSWORD}]"),
        ("public.orders:", "a.b.${PASSWORD}:"),
        ("name: shop", f"name: *{CANARY}"),
        ("name: shop", f"name: !{CANARY} x"),
    ],
)
def test_secret_in_the_wrong_place_is_not_shown(fault_of, found, written):
    fault_of(FULL.replace(found, written, 1), {**ENVIRON, "PASSWORD": CANARY})


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        ("", "shop.yml", "empty"),
        ("# only a comment\n", "shop.yml", "empty"),
        ("- a\n- b\n", "shop.yml:1", "not a mapping"),
        ("just text", "shop.yml:1", "not a mapping"),
        ("name: shop\n  source: x\n", "shop.yml:2", "not YAML: mapping values"),
        ("name: shop\nsource: {url: x\n", "shop.yml:3", "not YAML: expected ',' or '}'"),
        ("name: shop\n\tstate: x\n", "shop.yml:2", "not YAML: found character '\\t'"),
        ("a: 1\n---\nb: 2\n", "shop.yml:2", "not YAML"),
        ("a: 1\nb: 2\na: 3\n", "shop.yml:3", "the key 'a' is there twice"),
        ("a: &x [*x]\n", "shop.yml:1", "nested too deep"),
        ("a: " + "[" * 2000, "shop.yml", "nested too deep"),
        ("? [a]\n: b\n", "shop.yml:1", "a key is not text"),
        ("a: &m {b: c}\nd: {<<: *m}\n", "shop.yml:2", "merge key"),
        ("a: !!python/name:os.system x\n", "shop.yml:1", "a tag"),
        ('a: "\\UFFFFFFFF"\n', "shop.yml", "not YAML"),
        ('a: "\\0"\n', "shop.yml:1", "zero byte"),
        ('a: "\\ud800"\n', "shop.yml:1", "not UTF-8"),
        ("a: 1\nb: \x07\n", "shop.yml:2", "a character that YAML does not allow"),
        (b"a: 1\nb: \xff\n", "shop.yml:2", "not UTF-8"),
        (b"a: " + b"x" * 300_000, "shop.yml", "longer than"),
    ],
)
def test_file_that_is_not_one_yaml_mapping_is_refused_with_its_line(fault_of, content, place, what):
    error = fault_of(content)

    assert type(error) is PipelineFileError
    assert error.where == place
    assert what in error.what


def test_aliases_that_multiply_are_refused(fault_of):
    rows = [f"r{n + 1}: &r{n + 1} [{', '.join([f'*r{n}'] * 9)}]\n" for n in range(6)]

    assert "nested too deep" in fault_of("r0: &r0 [x]\n" + "".join(rows)).what


def test_file_that_cannot_be_read_is_named(tmp_path):
    for path, what in [
        (tmp_path / "missing.yml", "no such file"),
        (tmp_path, "cannot be read"),
        (Path("a\0b"), "cannot be read"),
    ]:
        with pytest.raises(PipelineFileError, match=what) as caught:
            read_pipeline(path)

        assert caught.value.where == str(path)


def test_file_without_permission_is_named(tmp_path):
    path = tmp_path / "shop.yml"
    path.write_text(SMALL)
    path.chmod(0)

    with not_as_root(), pytest.raises(PipelineFileError, match="Permission denied") as caught:
        read_pipeline(path)

    assert caught.value.where == str(path)


SOURCES = """\
name: shop
sources:
  eu: {url: "postgresql://u:p@db1/shop", tables: [orders]}
  us:
    url: postgresql://u:p@db2/shop
    tables: [orders]
sinks: {screen: {kind: stdout}}
"""


@pytest.mark.parametrize(
    ("found", "written", "line", "what"),
    [
        (
            "sources:",
            "source: {url: 'postgresql://db3/x', tables: [t]}\nsources:",
            3,
            "one of the two",
        ),
        (SOURCES[SOURCES.index("sources:") : SOURCES.index("sinks")], "", 1, "source is missing"),
        (
            SOURCES[SOURCES.index("\n  eu") : SOURCES.index("sinks") - 1],
            " {}",
            2,
            "at least one source",
        ),
        ("  us:", "  U.S:", 4, "a name of 1 to 40 of a-z"),
        ("  us:", "  eu:", 4, "eu"),
        ("@db2/", "@db1/", 5, "sources.us.url: the same as that of eu"),
        ("    tables: [orders]", "    tabels: [orders]", 6, "sources.us.tabels is not a known key"),
        ("    tables:", "    acknowledge: no\n    tables:", 6, "sources.us.acknowledge"),
    ],
)
def test_fault_in_sources_is_reported_with_its_line(fault_of, found, written, line, what):
    assert found in SOURCES
    error = fault_of(SOURCES.replace(found, written, 1))

    assert error.where == f"shop.yml:{line}"
    assert what in error.what


@pytest.mark.parametrize(
    ("columns", "written", "reported"),
    [
        ("columns: {id: sid}", "_column: sid", "another name than sid"),
        ("columns: {id: kvsz_end}, kind: history", "_column: null", "another name than kvsz_end"),
        ("kind: history", "_column: kvsz_end", "another name than that of a history's column"),
        ("target: penstock.progress", "_column: null", "a table that is not penstock's own"),
        (f"target: dw.{'x' * 64}", "_column: null", "a name of 1 to 63 bytes"),
        ("target: a.b.c", "_column: null", "wanted schema.table"),
        ("target: dw.*", "_column: null", "one table"),
        ("columns: {}", "_column: null", "at least one column"),
        ("columns: {a: x, b: x}", "_column: null", "each column of the target is there once"),
        ("columns: {a: , b: a}", "_column: null", "each column of the target is there once"),
        ("kind: histroy", "_column: null", "history"),
    ],
)
def test_rule_that_cannot_hold_is_refused(fault_of, columns, written, reported):
    text = FULL.replace("_column: null", written)
    start = text.index("public.orders:")
    line = text[start : text.index("\n", start)]
    error = fault_of(text.replace(line, f"public.orders: {{{columns}}}", 1))

    assert reported in f"{error.what} {error.do}"
    assert error.where.startswith("shop.yml:")


class LimitedOptions(SinkOptions):
    kind: Literal["limited"] = "limited"
    a: int = 0
    b: int = 0
    password: str = ""

    @field_validator("a")
    @classmethod
    def _at_most_5(cls, given: int) -> int:
        if given > 5:
            raise ValueError("a must be at most 5")
        return given

    @field_validator("password")
    @classmethod
    def _long(cls, given: str) -> str:
        assert len(given) > 3 or not given, f"{given} is too short"
        return given

    @model_validator(mode="after")
    def _b_is_more(self) -> Self:
        if self.b < self.a:
            raise ValueError("b must not be below a")
        return self


class LimitedKind(DocumentKind[LimitedOptions]):
    name = "limited"
    options = LimitedOptions

    def sink(self, place: SinkPlace[LimitedOptions]) -> DocumentSink:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a: 9", "sinks.warehouse.a: a must be at most 5"),
        ("a: 3", "sinks.warehouse: b must not be below a"),
        ("password: abc", "sinks.warehouse.password: is not accepted; why is not shown"),
        ("a: x", "sinks.warehouse.a is"),
    ],
)
def test_validator_of_another_package_is_quoted_behind_the_key(
    fault_of, monkeypatch, written, said
):
    entry = EntryPoint("limited", f"{__name__}:LimitedKind", GROUP)
    monkeypatch.setattr("penstock.config.KINDS", sink_kinds(lambda: [entry]))
    head, _, _ = SMALL.partition("sinks:")

    error = fault_of(f"{head}sinks:\n  warehouse:\n    kind: limited\n    {written}\n")

    assert isinstance(error, BadValue)
    assert error.what.startswith(said)
    assert "Value error" not in error.what
    assert "abc" not in str(error)


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("url: nats://h", "url: nats://h:4222", True),
        ("url: nats://h, stream: A", "url: [nats://g, nats://H:4222], stream: A", True),
        ("url: nats://h, stream: shop", "url: nats://h", True),
        ("url: nats://h", "url: nats://h, stream: B", False),
        ("url: nats://h", "url: nats://g", False),
        ("url: nats://h, user: a", "url: nats://h, user: b", False),
    ],
)
def test_two_sinks_on_one_stream_are_refused(pipeline_of, fault_of, first, second, is_refused):
    written = SMALL.split("sinks:", maxsplit=1)[0] + (
        f"sinks:\n  one: {{kind: nats, {first}}}\n  two: {{kind: nats, {second}}}\n"
    )
    if not is_refused:
        pipeline_of(written)
        return

    error = fault_of(written)

    assert isinstance(error, BadValue)
    assert "as sink one does" in error.what
    assert "sinks.two" in error.what
