"""Names of topics and streams with fields in braces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def name_with(text: str, letters: str, fields: Sequence[str]) -> bool:
    """Whether a text is a name of such letters, with no other fields than these in it."""
    known = "|".join(rf"\{{{field}\}}" for field in fields)
    return re.fullmatch(rf"(?:{letters}|{known})+", text) is not None and len(text) < 200


def fill(text: str, **fields: str) -> str:
    """The name, with its fields filled in."""
    for field, value in fields.items():
        text = text.replace(f"{{{field}}}", value)
    return text
