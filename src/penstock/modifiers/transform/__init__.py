"""transform: values replaced on their way, by rules.

    options   one entry of the file, as rules       rules       which columns, when, with which transformer
    modifier  the rules of one table, applied       findings    what `check` says of rules and catalog
    registry  the transformers by name              cmac, draws what deterministic results are drawn from

Each transformer is a class whose fields are its parameters: plain, masks, words, people, numbers, times, documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.modifiers.transform.findings import findings
from penstock.modifiers.transform.modifier import table_transform
from penstock.modifiers.transform.options import TransformOptions

if TYPE_CHECKING:
    from penstock.modifiers.modifier import TableModifier
    from penstock.table import TableName

__all__ = ["OPTIONS", "TransformOptions", "findings", "modifier_for"]

OPTIONS = TransformOptions


def modifier_for(options: TransformOptions, table: TableName) -> TableModifier | None:
    """What an entry does to a table; None if nothing."""
    if options.set:
        return _set_columns(options, table)
    return table_transform(options, table)


def _set_columns(options: TransformOptions, table: TableName) -> TableModifier | None:
    if not options.table.matches(table):
        return None
    from penstock.modifiers.sql import set_columns

    return set_columns(options.set, table)
