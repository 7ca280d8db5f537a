"""What a transformer is: options of a rule, and a function from values to values, all rows at once."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from penstock.errors import BadValue
from penstock.modifiers.transform.draws import Draws
from penstock.modifiers.transform.pgtypes import Family
from penstock.options import Options, fault
from penstock.sql.column_types import without_padding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.changes.cells import Mask
    from penstock.modifiers.transform.pgtypes import ColumnType
    from penstock.secret import Secret

Generator = Literal["deterministic", "random"]


class Collisions(enum.Enum):
    """Whether two values can become one."""

    NEVER = "never"
    UNLIKELY = "unlikely"  # as two files have one checksum: 80 bits or more
    LIKELY = "likely"


@dataclass
class Batch:
    """The values of one column that are to be transformed, and what else may be looked at.

    `values` are Postgres's text, binary, without nulls, and without the blanks that pad a char(n). `others` are columns that parameters name, of the same
    rows, without such blanks, too; they may have nulls. What fails is marked, with the first reason, and does not end the batch.
    """

    values: pa.Array
    type: ColumnType
    others: Mapping[str, pa.Array] = field(default_factory=dict)
    salt: Secret | None = None
    stamps: pa.Array | None = None
    failed: Mask | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.type.is_padded:
            self.values = without_padding(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def text(self) -> pa.Array:
        """The values as strings; those that are not UTF-8 fail."""
        try:
            return self.values.cast(pa.string())
        except pa.ArrowInvalid:
            good = [_is_text(one.as_buffer().to_pybytes()) for one in self.values]
            self.fail(~np.array(good, np.bool_), "it is not UTF-8")
            return pc.if_else(pa.array(good), self.values, pa.scalar(b"", pa.binary())).cast(
                pa.string()
            )

    def fail(self, mask: Mask, reason: str) -> None:
        """These rows cannot be transformed. The reason shows no value."""
        if not bool(mask.any()):
            return
        self.failed = mask.copy() if self.failed is None else self.failed | mask
        self.reason = self.reason or reason

    def rows(self, places: npt.NDArray[np.int64]) -> Batch:
        """Some of the rows, without other columns, as a batch of its own."""
        taken = pa.array(places)
        stamps = None if self.stamps is None else self.stamps.take(taken)
        return Batch(self.values.take(taken), self.type, salt=self.salt, stamps=stamps)

    def fail_rows(self, places: npt.NDArray[np.int64], part: Batch) -> None:
        """What failed in a part fails here; `places` are the rows that it is made of."""
        if part.failed is not None:
            mask = np.zeros(len(self), np.bool_)
            mask[places[part.failed]] = True
            self.fail(mask, part.reason)

    def draws(self, purpose: str, generator: Generator) -> Draws:
        """What to choose by. Values that are equal in Postgres are equal here."""
        assert self.salt is not None, "the rule was refused without a salt"
        stamps = self.stamps if generator == "random" else None
        values = self.values
        if self.type.is_caseless:
            values = pc.utf8_lower(self.text()).cast(pa.binary())
        return Draws.of(self.salt, purpose, values, stamps)

    def each_distinct(self, function: Callable[..., bytes | None], *others: str) -> pa.Array:
        """A function of Python's over distinct values: (value, and those of other columns) -> result.

        `ValueError` from it fails the row; its text is the reason, and shows no value.
        """
        columns = [self.values, *(self.others[name] for name in others)]
        firsts, which = _distinct(columns)
        arguments = [one.take(firsts).to_pylist() for one in columns]
        results: list[bytes | None] = []
        bad: list[int] = []
        reason = ""
        for place, row in enumerate(zip(*arguments, strict=True)):
            try:
                results.append(function(*row))
            except (ValueError, ArithmeticError, RecursionError) as error:
                reason = reason or _reason(error)
                bad.append(place)
                results.append(b"")
        if bad:
            self.fail(np.isin(which, np.array(bad)), reason)
        return pa.array(results, pa.binary()).take(pa.array(which))


def _reason(error: Exception) -> str:
    """In words that show no value: those of the library may."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if type(error) is ValueError else "it cannot be computed with"


def _distinct(columns: list[pa.Array]) -> tuple[pa.Array, Any]:
    """Rows such that no two are equal, and for each row of all which of those equals it."""
    firsts, numbers = np.zeros(0, np.int64), np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = column.dictionary_encode(null_encoding="encode")
        together = numbers * (len(codes.dictionary) + 1) + np.asarray(codes.indices)
        _, firsts, numbers = np.unique(together, return_index=True, return_inverse=True)
    return pa.array(firsts), numbers


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


_BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "on", "1"), "t"),
    **dict.fromkeys(("f", "false", "n", "no", "off", "0"), "f"),
}


def spelled(text: str, type_: ColumnType) -> str:
    """A result of the file as Postgres would print it; documents are made of that."""
    return _BOOLEANS.get(text.lower(), text) if type_.family == "boolean" else text


class OtherColumn(Options):
    """Where the value of a parameter is read from."""

    column: str


class Transformer(Options):
    """What is done to a value. Its fields are the parameters that the file gives. Picklable."""

    takes: ClassVar[frozenset[Family]] = frozenset({"text"})
    collisions: ClassVar[Collisions] = Collisions.LIKELY
    # Parameters that may be read from another column of the row.
    dynamic: ClassVar[frozenset[str]] = frozenset()

    dynamic_parameters: dict[str, OtherColumn] = Field(default_factory=dict)

    @field_validator("dynamic_parameters")
    @classmethod
    def _known_parameters(cls, given: dict[str, OtherColumn]) -> dict[str, OtherColumn]:
        for name in given:
            if name not in cls.dynamic:
                can = ", ".join(sorted(cls.dynamic)) or "none of this transformer's"
                what = f"{name} cannot be read from another column; those that can: {can}"
                raise fault(BadValue(what, do="write its value among the parameters"), name)
        return given

    @property
    def draws(self) -> bool:
        """Whether it needs a salt."""
        return False

    @property
    def is_repeatable(self) -> bool:
        """Whether equal values get equal results, whatever the row."""
        return True

    @property
    def meetings(self) -> Collisions:
        """Whether two values can become one, with the parameters that are given."""
        return self.collisions

    @property
    def revision(self) -> int:
        """How often the same parameters have come to give other results, counted from 1."""
        return 1

    @property
    def columns(self) -> tuple[str, ...]:
        """Other columns of the row that it reads, by name."""
        return tuple(one.column for one in self.dynamic_parameters.values())

    def from_column(self, parameter: str, batch: Batch) -> pa.Array | None:
        """The values of a parameter, row by row, where another column has them."""
        other = self.dynamic_parameters.get(parameter)
        return None if other is None else batch.others[other.column]

    @property
    def fixed_results(self) -> tuple[str, ...]:
        """All results there can be, where the file says them."""
        return ()

    def depends_on(self, type_: ColumnType) -> object:  # noqa: ARG002
        """What of a column's type results depend on, beside the value: equal for types that give the same."""
        return None

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed; strings or binary, a null is NULL."""
        raise NotImplementedError

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has, where it can be known; `given`: the longest value."""
        return given

    def complaints(self, type_: ColumnType) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """What is wrong with it for a column of a type that it takes: what, and what to do."""
        return iter(())


class Drawing(Transformer):
    """A transformer that chooses its results."""

    generator: Generator = "deterministic"

    @property
    def draws(self) -> bool:
        """Whether it needs a salt."""
        return True

    @property
    def is_repeatable(self) -> bool:
        """Whether equal values get equal results, whatever the row."""
        return self.generator == "deterministic"
