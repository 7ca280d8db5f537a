"""Rules of `modifiers:` beside the tables that there are, and beside what rows were delivered by."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.errors import ModifierError, RulesEdited
from penstock.findings import Finding
from penstock.modifiers.chain import chain_for
from penstock.modifiers.places import located
from penstock.modifiers.torn_keys import torn_keys
from penstock.pipeline import wire_of
from penstock.run.members import table_name
from penstock.sinks.tables import TableState
from penstock.state.reports import SeenRules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.config import PipelineFile
    from penstock.modifiers.chain import Chain
    from penstock.modifiers.rule import Rule
    from penstock.schema.shape import TableShape
    from penstock.sinks.chosen import ChosenTables
    from penstock.sinks.sink import Sink
    from penstock.state.wire import Wire
    from penstock.table import TableName

_log = logging.getLogger(__name__)

_MOST_TABLES = 20


@dataclass(frozen=True)
class TableChain:
    """The rules of a table at a sink, in their order; "" where there are none."""

    table: TableName
    sink: str
    text: str


def find_rules(pipeline: PipelineFile, choices: Mapping[str, ChosenTables]) -> Iterator[Finding]:
    """What `penstock check` says of the rules; the same of two sinks once."""
    seen: set[str] = set()
    tables = {
        source_id: {shape.table: shape for shape in chosen.shapes}
        for source_id, chosen in choices.items()
    }
    for view in pipeline.each():
        for sink in view.sinks:
            found = list(_edited_findings(view, sink))
            if view.source_id in tables:
                found += rule_findings(view, sink, tables[view.source_id])
            for finding in _unseen(found, seen):
                yield finding if view.is_alone else finding.of_source(view.source_id)
    # Of a source that is not known nobody can say that it has no such table.
    if tables.keys() == set(pipeline.source_ids):
        for sink in pipeline.sinks:
            yield from _unseen(lost_findings(pipeline, sink, list(tables.values())), seen)


def _unseen(found: Iterable[Finding], seen: set[str]) -> Iterator[Finding]:
    for finding in found:
        if str(finding.error) not in seen:
            seen.add(str(finding.error))
            yield finding


def rule_findings(
    pipeline: PipelineFile, sink: str, shapes: Mapping[TableName, TableShape]
) -> Iterator[Finding]:
    """What is wrong with the rules of a sink, each beside the tables as the ones before leave them."""
    rules = [rule for rule in pipeline.modifiers if rule.is_for(sink)]
    for rule, left in _each_left(rules, shapes):
        for finding in rule.findings(left):
            yield _placed(finding, rule)
    yield from torn_keys(rules, shapes)


def lost_findings(
    pipeline: PipelineFile, sink: str, sources: Sequence[Mapping[TableName, TableShape]]
) -> Iterator[Finding]:
    """What the rules of a sink name that none of the sources has."""
    rules = [rule for rule in pipeline.modifiers if rule.is_for(sink)]
    for each in zip(*(_each_left(rules, shapes) for shapes in sources), strict=True):
        rule = each[0][0]
        for finding in rule.lost([shape for _, left in each for shape in left.values()]):
            yield _placed(finding, rule)


def _each_left(
    rules: Iterable[Rule], shapes: Mapping[TableName, TableShape]
) -> Iterator[tuple[Rule, Mapping[TableName, TableShape]]]:
    """Each rule, and the tables as the ones before leave them."""
    left = dict(shapes)
    for rule in rules:
        yield rule, dict(left)
        for table, shape in left.items():
            # One that does not fit is among the findings already, and leaves the table as it is.
            with suppress(ModifierError):
                modifier = rule.modifier_for(table)
                if modifier is not None:
                    left[table] = modifier.modified_shape(shape)


def idle_findings(pipeline: PipelineFile) -> Iterator[Finding]:
    """What filters say that has no effect, whatever the tables are."""
    for rule in pipeline.modifiers:
        if rule.family == "filter":
            for finding in rule.findings({}):
                yield _placed(finding, rule)


def _placed(finding: Finding, rule: Rule) -> Finding:
    error = finding.error
    where = located(rule.place, error.where)
    return replace(finding, error=type(error)(error.what, where, error.do))


def modified_choices(
    pipeline: PipelineFile, sink: str, choices: Mapping[str, ChosenTables]
) -> Mapping[str, ChosenTables]:
    """What is followed, as a sink sees it."""
    chain = chain_for(pipeline.modifiers, sink)
    if chain is None:
        return choices
    return {source_id: _modified(chain, chosen) for source_id, chosen in choices.items()}


def _modified(chain: Chain, chosen: ChosenTables) -> ChosenTables:
    shapes: list[TableShape] = []
    for shape in chosen.shapes:
        if not chain.excludes(shape.table):
            try:
                shapes.append(chain.modified_shape(shape))
            except ModifierError:
                shapes.append(shape)  # it is among the findings already
    followed = [table for table in chosen.followed if not chain.excludes(table)]
    return replace(chosen, followed=followed, shapes=shapes)


def table_chains(pipeline: PipelineFile, chosen: ChosenTables | None) -> Iterator[list[TableChain]]:
    """Of each table that has rules at any sink, what each sink does to it."""
    if chosen is None or not pipeline.modifiers:
        return
    chains = {sink: chain_for(pipeline.modifiers, sink) for sink in pipeline.sinks}
    for table in sorted(chosen.followed):
        said = [
            TableChain(table, sink, chain.describe(table) if chain is not None else "")
            for sink, chain in chains.items()
        ]
        if any(each.text for each in said):
            yield said


def chain_lines(pipeline: PipelineFile, chosen: ChosenTables | None) -> list[str]:
    """The rules of each table that has some, in one line; of each sink where they differ. Of many tables the first."""
    tables = list(table_chains(pipeline, chosen))
    lines = [line for said in tables[:_MOST_TABLES] for line in _lines_of(said)]
    if len(tables) > _MOST_TABLES:
        lines.append(
            f"and {len(tables) - _MOST_TABLES} more tables with rules: --json has them all"
        )
    return lines


def _lines_of(said: list[TableChain]) -> list[str]:
    first = said[0]
    if all(each.text == first.text for each in said):
        return [f"{first.table}: {first.text}"]
    return [f"{each.table} (sink {each.sink}): {each.text or 'as it is'}" for each in said]


def _edited_findings(view: PipelineFile, sink: str) -> Iterator[Finding]:
    seen = wire_of(view).latest(SeenRules, sink)
    if seen is None:
        return
    chain = chain_for(view.modifiers, sink)
    edited = [name for name, digest in seen.digests.items() if digest != _digest(chain, name)]
    if edited:
        yield Finding(edited_rules(sink, edited), "warning")


def edited_rules(sink: str, tables: Collection[str]) -> RulesEdited:
    """Rows of tables were delivered by other rules than the file has now."""
    named = ", ".join(sorted(tables)[:5]) + (" …" if len(tables) > 5 else "")
    return RulesEdited(
        f"the rules of {named} are not those that rows were delivered by before: those rows followed"
        " the old ones",
        f"sink {sink}",
        f"penstock tables PIPELINE.yml resync {' '.join(sorted(tables)[:5])}, to make both sides agree",
    )


def _digest(chain: Chain | None, name: str) -> str:
    return "" if chain is None else chain.digest_of(table_name(name))


class RuleWatch:
    """Remembers, beside the log, which rules the rows of each table at a sink were delivered by.

    A table that is copied has its rows by the rules of now.
    """

    def __init__(self, wire: Wire, sink: Sink, chain: Chain | None) -> None:
        self._wire = wire
        self._sink = sink
        self._chain = chain
        self._seen: dict[str, str] | None = None

    def compare(self) -> None:
        """Say which tables have other rules than before; once a run."""
        if self._seen is not None:
            return
        report = self._wire.latest(SeenRules, self._sink.name)
        self._seen = dict(report.digests) if report is not None else {}
        self.note()
        edited = [name for name, was in self._seen.items() if was != _digest(self._chain, name)]
        if edited:
            _log.warning("%s", edited_rules(self._sink.name, edited))

    def note(self) -> None:
        """Take note of tables that are new, or are copied anew; cheap where there are none."""
        if self._seen is None:
            return
        detached = self._sink.tables.detached
        waiting = {name for name, each in detached.items() if each.state != TableState.REMOVED}
        known = self._sink.tables.streaming | waiting
        copied = {name for name, each in detached.items() if each.needs_copy and name in known}
        now = {str(name): name for name in known}
        kept = {name: digest for name, digest in self._seen.items() if name in now}
        for text, name in now.items():
            if text not in kept or name in copied:
                kept[text] = "" if self._chain is None else self._chain.digest_of(name)
        if kept != self._seen:
            self._seen = kept
            self._wire.publish(SeenRules(kept), self._sink.name)
