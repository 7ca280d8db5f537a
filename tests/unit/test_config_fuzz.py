"""Any input gives a pipeline or a PenstockError, and no password shows in either."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import PipelineFile, pipeline_from_document, pipeline_from_urls, read_pipeline
from penstock.errors import PipelineFileError, recognise

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "hunter2c4n4ry"
ENVIRON = {"URL": f"postgresql://ana:{CANARY}@db1/shop", "N": "10"}

VALID = f"""\
name: shop
state: ./shop-state
source:
  url: ${{URL}}
  tables: {{include: ["public.*"], exclude: [audit]}}
  insert_only: [events]
  acknowledge: logged
  heartbeat_seconds: ${{N}}
log: {{kind: files, retain_bytes: 10GB}}
modifiers: []
sinks:
  warehouse:
    kind: postgres
    url: "postgresql://ana:{CANARY}@db2:5432/dw"
    schema: same
    on_conflict: replace
    tables:
      public.orders: {{kind: clone, columns: [id, total]}}
  lines:
    kind: file
    path: ${{OUT:-out}}
spark: {{master: "local[*]", conf: {{a: b}}}}
"""

# Words of the format, of YAML and of the trade, so that a mutation often still means something.
WORDS = st.sampled_from(
    [
        *"{}[]:,-?!&*|>'\"%@`#\t\n$~=<\\",
        ": ", "- ", "\n  ", "\n    ", "? ", "<<: ", "!!set ", "!x ", "&a ", "*a ", "---\n", "...\n",
        "${", "${URL}", "${N}", "${NO}", "${NO:-x}", "$$", "null", "true", "off", "0", "-1", "1e999",
        "nan", "9" * 5000, "10GB", "kind: kafka", "snapshot: initial", "tables", "url", "password",
        "a.b.c", "\"a", "*.*", "\\0", "\\ud800", "\\UFFFFFFFF", "\ue0000\ue000", "\x85", "\u2028",
        "\ufeff", "postgresql://", "postgresql://h/d", "host=h", "é", "🐘", "[" * 400, "{a: " * 60,
    ]
)  # fmt: skip
PIECES = st.one_of(WORDS, st.text(max_size=8))
EDITS = st.lists(
    st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), PIECES), min_size=1, max_size=4
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PIECES, inner, max_size=3),
    max_leaves=8,
)


def outcome(build: Callable[[], PipelineFile]) -> PipelineFile | PipelineFileError:
    """What `build` gives; any other exception than ours is a traceback and fails the test."""
    try:
        return build()
    except PipelineFileError as error:
        return error


def check(build: Callable[[], PipelineFile]) -> None:
    result = outcome(build)
    if isinstance(result, PipelineFile):
        assert CANARY not in repr(result)
        assert result.state.is_absolute()
        assert pipeline_from_document(json.loads(json.dumps(result.document)), "x") == result
    else:
        assert CANARY not in str(result)
        assert result.where
        assert result.do
        assert "\n" not in result.what
        assert recognise(str(result)).code == result.code


def read(content: bytes) -> PipelineFile:
    # Not tmp_path: hypothesis runs many examples in one call of the test.
    descriptor, name = tempfile.mkstemp(suffix=".yml")
    try:
        os.write(descriptor, content)
        os.close(descriptor)
        return read_pipeline(Path(name), ENVIRON)
    finally:
        Path(name).unlink()


def test_the_file_that_is_mutated_is_valid():
    assert read(VALID.encode()).name == "shop"


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(PIECES, max_size=12).map(lambda s: "".join(s).encode("utf-8", "replace"))
)
def test_random_bytes_never_end_in_a_traceback(content):
    check(lambda: read(content))


@settings(max_examples=250, deadline=None)
@given(EDITS)
def test_mutated_file_never_ends_in_a_traceback_and_shows_no_password(edits):
    text = VALID
    for at, cut, piece in edits:
        text = text[:at] + piece + text[at + cut :]

    check(lambda: read(text.encode("utf-8", "replace")))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, VALID.count("\n") - 1), min_size=1, max_size=30))
def test_file_of_shuffled_lines_never_ends_in_a_traceback_and_shows_no_password(order):
    lines = VALID.splitlines(keepends=True)

    check(lambda: read("".join(lines[number] for number in order).encode()))


PATHS = st.sampled_from(
    [
        ("name",), ("state",), ("source",), ("source", "url"), ("source", "tables"),
        ("source", "tables", "include"), ("source", "insert_only"), ("source", "acknowledge"),
        ("source", "heartbeat_seconds"), ("source", "snapshot"), ("source", "schema"),
        ("log",), ("log", "kind"), ("log", "retain_bytes"), ("modifiers",), ("sources",),
        ("sinks",), ("sinks", "lines"), ("sinks", "lines", "kind"), ("sinks", "lines", "path"),
        ("sinks", "lines", "rotate_seconds"), ("sinks", "warehouse", "schema"),
        ("sinks", "warehouse", "create_tables"), ("sinks", "warehouse", "create_indexes"),
        ("sinks", "warehouse", "on_conflict"), ("sinks", "warehouse", "tables"),
        ("sinks", "warehouse", "tables", "public.orders"),
        ("sinks", "warehouse", "tables", "public.orders", "columns"),
        ("spark",), ("spark", "master"), ("spark", "conf"), ("spark", "conf", "a"),
    ]
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(PATHS, JSON)
def test_any_value_under_any_key_never_ends_in_a_traceback(path, value):
    document = json.loads(json.dumps(read(VALID.encode()).document))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value

    check(lambda: pipeline_from_document(document, "document"))


@settings(max_examples=100, deadline=None)
@given(PIECES, PIECES, st.lists(PIECES, max_size=2))
def test_any_command_line_never_ends_in_a_traceback(source, target, tables):
    check(lambda: pipeline_from_urls(f"postgresql://a:{CANARY}@{source}/d", target, tables))
