"""Which operations a rule looks at."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import BeforeValidator

from penstock.changes.pgoutput import DELETE, INSERT, UPDATE
from penstock.options import wanted


class Operation(enum.Enum):
    """What a rule looks at."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


ALL_OPERATIONS = frozenset(Operation)
_LETTERS = {Operation.INSERT: INSERT, Operation.UPDATE: UPDATE, Operation.DELETE: DELETE}


def letters_of(operations: frozenset[Operation]) -> list[int]:
    """As changes have them."""
    return [_LETTERS[each] for each in operations]


def _read_operations(given: Any) -> Any:
    if given is None:
        return ALL_OPERATIONS
    if not isinstance(given, list | tuple | set | frozenset) or not given:
        raise wanted("a list of at least one of insert, update, delete")
    return [each.lower() if isinstance(each, str) else each for each in given]


Operations = Annotated[frozenset[Operation], BeforeValidator(_read_operations)]
"""Operations that a rule looks at; all of them where nothing is said."""
