"""What a person asks of a pipeline's tables, whether it runs or not: add, remove, copy again.

Nothing here waits: a request is written where the pipeline will find it, and carried out by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import BadTableRule, BadValue, TableMissing, recognise
from penstock.run.delivered import ask_for_copies, is_delivered_here, post_copy_request
from penstock.run.status import read_status
from penstock.source.connect import connect_source
from penstock.source.subscription import change_tables
from penstock.table import TableName, TableRule
from penstock.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.config import PipelineFile

    CarryOut = Callable[[PipelineFile, Sequence[str]], list[TableName]]


DONE = {
    "add": "followed from now on; copied first",
    "remove": "followed no more; its rows at the sinks stay",
    "resync": "copied again, as soon as the pipeline runs",
}
"""What is said of a table when a request is written."""


def change_followed(
    pipeline: PipelineFile, action: str, names: Sequence[str], source_id: str | None = None
) -> list[str]:
    """Add, remove or resync tables at one source, or at all that have them; a line for each.

    Raises:
        PenstockError: a name stands for nothing, or a server cannot be asked.
    """
    carry_out = {"add": add_tables, "remove": remove_tables, "resync": resync_tables}[action]
    done = at_each_source(choose_sources(pipeline, source_id), names, carry_out)
    return [
        printable(f"{'' if view.is_alone else f'{view.source_id}/'}{table}: {DONE[action]}")
        for view, table in done
    ]


def choose_sources(pipeline: PipelineFile, source_id: str | None) -> list[PipelineFile]:
    """The source that a person has named, or all.

    Raises:
        BadValue: there is none of that name.
    """
    if source_id is None:
        return pipeline.each()
    if source_id not in pipeline.sources:
        raise BadValue(
            f"no source {source_id!r}, wanted one of {', '.join(pipeline.sources)}",
            "--source",
            "name a source as the file does",
        )
    return [pipeline.of(source_id)]


def choose_sinks(pipeline: PipelineFile, name: str | None) -> list[str]:
    """The sink that a person has named, or all.

    Raises:
        BadValue: there is none of that name.
    """
    if name is None:
        return list(pipeline.sinks)
    if name not in pipeline.sinks:
        raise BadValue(
            f"no sink {name!r}, wanted one of {', '.join(pipeline.sinks)}",
            "--sink",
            "name a sink as the file does",
        )
    return [name]


def at_each_source(
    views: Sequence[PipelineFile], names: Sequence[str], carry_out: CarryOut
) -> list[tuple[PipelineFile, TableName]]:
    """Carry out a request at every source that has such tables; which these were.

    Raises:
        TableMissing: no source has one of them.
    """
    if len(views) == 1:
        return [(view, table) for view in views for table in carry_out(view, names)]
    done: list[tuple[PipelineFile, TableName]] = []
    for name in names:
        missing: TableMissing | None = None
        count = len(done)
        for view in views:
            try:
                done += [(view, table) for table in carry_out(view, [name])]
            except TableMissing as error:
                missing = missing or error
        if missing is not None and len(done) == count:
            raise missing
    return done


def add_tables(pipeline: PipelineFile, names: Sequence[str]) -> list[TableName]:
    """Follow tables from now on, whatever the file says.

    Raises:
        PenstockError: one of them cannot be followed; then nothing has changed.
    """
    tables = [_table(name) for name in names]
    with connect_source(pipeline.source.url, "penstock tables") as connection:
        change_tables(connection, pipeline.name, pipeline.source.tables, added=tables)
    return tables


def remove_tables(pipeline: PipelineFile, names: Sequence[str]) -> list[TableName]:
    """Follow tables no more, whatever the file says; what is at the sinks stays.

    Raises:
        TableMissing: one of them is not followed; then nothing has changed.
    """
    tables = known_tables(pipeline, names)
    with connect_source(pipeline.source.url, "penstock tables") as connection:
        change_tables(connection, pipeline.name, pipeline.source.tables, removed=tables)
    return tables


def resync_tables(pipeline: PipelineFile, names: Sequence[str]) -> list[TableName]:
    """Have tables copied again, at every sink.

    Raises:
        TableMissing: one of them is not followed; then nothing has changed.
        SinkError: a sink cannot be reached.
        LogUnreachable: a sink is delivered on another machine, and the broker is away.
    """
    tables = known_tables(pipeline, names)
    for name in pipeline.sinks:
        ask = ask_for_copies if is_delivered_here(pipeline, name) else post_copy_request
        ask(pipeline, name, tables)
    return tables


def known_tables(pipeline: PipelineFile, names: Sequence[str]) -> list[TableName]:
    """The followed tables that names or wildcards stand for.

    Raises:
        TableMissing: one stands for none.
        PenstockError: one stands for none that is known of, and a server could not be asked.
    """
    status = read_status(pipeline)
    known = {
        _table(name)
        for sink in status.sinks.values()
        for name, entry in sink.tables.items()
        if entry.state != "removed"
    }
    found: dict[TableName, None] = {}
    for name in names:
        rule = TableRule.parse(name)
        matching = sorted(table for table in known if rule.matches(table))
        if not matching:
            # Who cannot be asked cannot say which tables there are.
            for text in status.errors:
                if (error := recognise(text)) is not None:
                    raise error
            raise TableMissing(
                "the pipeline does not follow such a table",
                name,
                f"penstock tables PIPELINE.yml list shows those it follows ({len(known)})"
                if known
                else "penstock run PIPELINE.yml first: it has no tables yet",
            )
        found |= dict.fromkeys(matching)
    return list(found)


def _table(name: str) -> TableName:
    rule = TableRule.parse(name)
    if rule.schema is None or rule.name is None:
        raise BadTableRule(
            f"{name!r} is a wildcard, wanted one table",
            do="name the tables one by one, or put the wildcard into `tables:` of the file",
        )
    return TableName(rule.schema, rule.name)
