"""What `check` prints of the rules of each table: the first in lines, all of them as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fix_rules import document
from penstock.config import pipeline_from_document
from penstock.run.rules import chain_lines, table_chains
from penstock.schema.sequences import FoundSequences
from penstock.sinks.chosen import ChosenTables
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.config import PipelineFile

PAID = {"column": "id", "operator": "gt", "value": 1}


SINKS = {"lines": {"kind": "stdout"}, "file": {"kind": "file", "path": "out"}}


def pipeline_of(**filtered: Any) -> PipelineFile:
    return pipeline_from_document(
        document({"filter": {"where": PAID, **filtered}}, sinks=SINKS), "test"
    )


def chosen_of(count: int) -> ChosenTables:
    followed = [TableName("public", f"t{number:02}") for number in range(count)]
    return ChosenTables([*followed, TableName("other", "t")], [], [], {}, FoundSequences())


def test_first_tables_are_printed_and_the_others_counted() -> None:
    pipeline, chosen = pipeline_of(table="public.*"), chosen_of(23)

    lines, every = chain_lines(pipeline, chosen), list(table_chains(pipeline, chosen))

    assert len(lines) == 21
    assert lines[0].startswith("public.t00: filter (")
    assert lines[-1] == "and 3 more tables with rules: --json has them all"
    assert [each[0].table.name for each in every] == [f"t{number:02}" for number in range(23)]
    assert {chain.sink for each in every for chain in each} == {"lines", "file"}


def test_sinks_whose_rules_differ_have_a_line_each() -> None:
    lines = chain_lines(pipeline_of(table="t00", sinks=["lines"]), chosen_of(2))

    assert lines[0].startswith("public.t00 (sink lines): filter (")
    assert lines[1:] == ["public.t00 (sink file): as it is"]
