"""Secrets that a person gives: a salt, a key. Never printed, and pickled as the name of an entry in Spark's vault."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from penstock.options import wanted
from penstock.vault import seal, unseal


class Secret:
    """Text that nobody is shown."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unsealed, seal(self._text)


def _unsealed(path: str, name: str) -> Secret:
    return Secret(unseal(path, name))


def _read_secret(given: Any) -> Secret:
    if isinstance(given, Secret):
        return given
    if not isinstance(given, str) or not given.strip():
        raise wanted("a secret text, from a variable: ${NAME}")
    return Secret(given)


SecretOption = Annotated[Secret, PlainValidator(_read_secret)]
"""A value that no message shows."""
