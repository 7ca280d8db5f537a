"""transform: values replaced on their way, by rules.

    options   one entry of the file, as rules       rules       which columns, when, with which transformer
    modifier  the rules of one table, applied       findings    what `check` says of rules and catalog
    registry  the transformers by name              cmac, draws what deterministic results are drawn from

Each transformer is a class whose fields are its parameters: plain, masks, words, people, numbers, times, documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.modifiers.effects import Effect
from penstock.modifiers.transform.findings import findings, lost
from penstock.modifiers.transform.modifier import rules_of, table_transform
from penstock.modifiers.transform.options import TransformOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.modifiers.modifier import TableModifier
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

__all__ = ["OPTIONS", "TransformOptions", "effects", "findings", "lost", "modifier_for"]

OPTIONS = TransformOptions


def modifier_for(options: TransformOptions, table: TableName) -> TableModifier | None:
    """What an entry does to a table; None if nothing."""
    if options.set:
        return _set_columns(options, table)
    return table_transform(options, table)


def effects(options: TransformOptions, shape: TableShape) -> Iterator[Effect]:
    """What is done to each column, and whether each must have a rule."""
    if options.set:
        if options.table.matches(shape.table):
            ids = {column.name: column.id for column in shape.columns}
            for name, text in options.set.items():
                is_own = options.table.is_outright
                what = ("set", text) if name in ids else ("set", name, text)
                yield Effect("transform", ids.get(name, 0), what, is_own)
        return
    rules = rules_of(options, shape.table)
    if rules is not None:
        yield from rules.effects(shape)


def _set_columns(options: TransformOptions, table: TableName) -> TableModifier | None:
    if not options.table.matches(table):
        return None
    from penstock.modifiers.sql import set_columns

    return set_columns(options.set, table)
