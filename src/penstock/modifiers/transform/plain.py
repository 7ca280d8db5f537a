"""Transformers that put something fixed, or nothing, or a function of the user's, in a value's place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import pyarrow as pa
from pydantic import field_validator

from penstock.errors import BadValue
from penstock.modifiers.transform.pgtypes import Family
from penstock.modifiers.transform.transformer import Batch, Collisions, Transformer, spelled
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from collections.abc import Callable


EVERY: frozenset[Family] = frozenset(get_args(Family))


class Keep(Transformer):
    """The value as it is: a rule that says so is a rule."""

    takes: ClassVar = EVERY
    collisions: ClassVar = Collisions.NEVER

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        return batch.values


class Literal(Transformer):
    """The same text for all."""

    takes: ClassVar = EVERY

    literal: str

    @field_validator("literal", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return "true" if given else "false"
        return str(given) if isinstance(given, int | float) else given

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        text = spelled(self.literal, batch.type)
        return pa.repeat(pa.scalar(text.encode(), pa.binary()), len(batch))

    @property
    def fixed_results(self) -> tuple[str, ...]:
        """All results there can be."""
        return (self.literal,)

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return len(self.literal)


class Null(Transformer):
    """NULL for all."""

    takes: ClassVar = EVERY

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        return pa.nulls(len(batch), pa.binary())

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return 0


class Python(Transformer):
    """A function of the user's: strings in, as many strings out. Imported where it runs."""

    takes: ClassVar = EVERY

    function: str

    @field_validator("function")
    @classmethod
    def _importable(cls, given: str) -> str:
        module, _, name = given.rpartition(".")
        if not module or not name.isidentifier():
            raise wanted("module.function")
        try:
            _imported(given)
        except Exception as error:  # noqa: BLE001 - a module of the user's may raise anything
            what = f"{given!r} cannot be used: {type(error).__name__}"
            do = "give a function of a module that this Python, and Spark's executors, can import"
            raise fault(BadValue(what, do=do)) from None
        return given

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        try:
            given = _imported(self.function)(batch.text())
        except Exception as error:  # noqa: BLE001 - it is not ours; its text may show values
            raise BadResult(f"{self.function} raised {type(error).__name__}") from None
        if isinstance(given, pa.ChunkedArray):
            given = given.combine_chunks()
        if not isinstance(given, pa.Array) or len(given) != len(batch):
            found = f"{len(given)} values" if isinstance(given, pa.Array) else type(given).__name__
            raise BadResult(f"{self.function} gave {found}, wanted an array of {len(batch)}")
        if not (pa.types.is_string(given.type) or pa.types.is_binary(given.type)):
            try:
                given = given.cast(pa.string())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise BadResult(f"{self.function} gave {given.type}, wanted strings") from None
        return given

    def longest(self, given: int | None) -> None:  # noqa: ARG002
        """Nobody knows."""
        return


class BadResult(Exception):
    """What a user's function gave cannot be taken. Its text shows no value."""


def _imported(path: str) -> Callable[[pa.Array], Any]:
    module, _, name = path.rpartition(".")
    function: Callable[[pa.Array], Any] = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(path)
    return function
