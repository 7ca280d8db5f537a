"""Transformers that draw text: string, hash, uuid, phone_number, email."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from penstock.errors import BadValue
from penstock.modifiers.transform.arrays import first_of, laid_out, of_width
from penstock.modifiers.transform.transformer import Batch, Collisions, Drawing
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.modifiers.transform.draws import Draws
    from penstock.modifiers.transform.pgtypes import ColumnType

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE32 = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
# 16 letters of 5 bits: 80 bits, with which a million rows have two equal ones once in 10^12 times.
_BOX = 16


class String(Drawing):
    """Letters: as many as the value has, or between `min_length` and `max_length`."""

    symbols: str = _LETTERS
    min_length: int | None = Field(default=None, ge=1)
    max_length: int | None = Field(default=None, ge=1)
    preserve_length: bool = False  # whatever the two say

    @field_validator("symbols")
    @classmethod
    def _ascii(cls, given: str) -> str:
        if not given or not given.isascii() or len(given) > 256:
            raise wanted("1 to 256 ASCII characters")
        return given

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        require_order(self.min_length or 1, self.max_length, "max_length")
        return self

    @property
    def _keeps_length(self) -> bool:
        return self.preserve_length or (self.min_length is None and self.max_length is None)

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("string", self.generator)
        if self._keeps_length:
            lengths = np.asarray(pc.utf8_length(batch.text())).astype(np.int64)
        else:
            least, most = self.min_length or 1, self.max_length or max(100, self.min_length or 1)
            lengths = least + draws.below(most - least + 1)
        return letters(draws, lengths, self.symbols)

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has."""
        if self._keeps_length:
            return given
        return self.max_length or max(100, self.min_length or 1)


def letters(draws: Draws, lengths: Any, symbols: str) -> pa.Array:
    """So many symbols for each row."""
    table = np.frombuffer(symbols.encode(), np.uint8)
    drawn = draws.bytes_of(lengths).astype(np.uint16)
    return laid_out(table[(drawn * np.uint16(len(table))) >> 8], lengths)


def require_order(least: int, most: int | None, key: str) -> None:
    """Refuse a range that is none."""
    if most is not None and most < least:
        what = f"is {most}, below the least, {least}"
        raise fault(BadValue(what, do=f"set {key} to {least} or more"), key)


class Hash(Drawing):
    """A keyed hash, hexadecimal: the same for the same value, and nothing to be guessed from without the salt."""

    takes: ClassVar = frozenset({"text", "bytea"})
    collisions: ClassVar = Collisions.UNLIKELY

    length: int = Field(default=32, ge=20, le=32)

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        digits = hexadecimal(batch.draws("hash", self.generator).matrix(16))[:, : self.length]
        if batch.type.family != "bytea":
            return of_width(digits)
        # Whole bytes, in the spelling of bytea.
        whole = digits[:, : self.length // 2 * 2]
        mark = np.broadcast_to(np.frombuffer(b"\\x", np.uint8), (len(whole), 2))
        return of_width(np.concatenate((mark, whole), axis=1))

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return self.length


def hexadecimal(data: Any) -> Any:
    """Each byte as two digits."""
    digits = np.empty((len(data), 2 * data.shape[1]), np.uint8)
    digits[:, 0::2] = _HEX[data >> 4]
    digits[:, 1::2] = _HEX[data & 15]
    return digits


class Uuid(Drawing):
    """A UUID of version 4."""

    takes: ClassVar = frozenset({"uuid", "text"})
    collisions: ClassVar = Collisions.UNLIKELY

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        data = batch.draws("uuid", self.generator).matrix(16).copy()
        data[:, 6] = (data[:, 6] & 0x0F) | 0x40
        data[:, 8] = (data[:, 8] & 0x3F) | 0x80
        digits = hexadecimal(data)
        text = np.full((len(data), 36), ord("-"), np.uint8)
        at = 0
        for begin, end in ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36)):
            text[:, begin:end] = digits[:, at : at + end - begin]
            at += end - begin
        return of_width(text)

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return 36


class PhoneNumber(Drawing):
    """Digits behind a prefix; both together are between `min_length` and `max_length` long."""

    dynamic: ClassVar = frozenset({"prefix"})

    prefix: str = ""
    min_length: int = Field(default=6, ge=1, le=64)
    max_length: int = Field(default=10, ge=1, le=64)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        require_order(self.min_length, self.max_length, "max_length")
        if len(self.prefix) > self.min_length:
            what = f"is longer than min_length, {self.min_length}"
            raise fault(BadValue(what, do="set a longer min_length, or a shorter prefix"), "prefix")
        return self

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("phone_number", self.generator)
        lengths = self.min_length + draws.below(self.max_length - self.min_length + 1)
        prefix = self.from_column("prefix", batch)
        if prefix is None:
            before: Any = pa.scalar(self.prefix.encode(), pa.binary())
            lengths = lengths - len(self.prefix)
        else:
            before = pc.fill_null(prefix, self.prefix.encode()).cast(pa.binary())
            width = np.asarray(pc.binary_length(before)).astype(np.int64)
            batch.fail(width > self.min_length, "the prefix is longer than min_length")
            lengths = np.maximum(lengths - width, 0)
        digits = (draws.matrix(self.max_length).astype(np.uint16) * 10 >> 8).astype(np.uint8) + 48
        numbers = first_of(digits, lengths)
        if prefix is None and not self.prefix:
            return numbers
        return pc.binary_join_element_wise(before, numbers, b"")

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return self.max_length


class Email(Drawing):
    """Sixteen letters and digits out of the whole address, at another domain.

    A list `{a@x,b@y}`, as text or as text[], is done one by one. An address of an excluded domain stays, and so
    does a value of less than two characters.
    """

    takes: ClassVar = frozenset({"text", "text[]"})
    collisions: ClassVar = Collisions.UNLIKELY

    replacement_domain: str = "@example.com"
    exclude_domain: str = ""
    excluded_domains: tuple[str, ...] = ()
    preserve_domain: bool = False
    invalid_email_action: Literal["generate", "passthrough", "null", "reject"] = "generate"

    @field_validator("invalid_email_action", mode="before")
    @classmethod
    def _null_of_yaml(cls, given: Any) -> Any:
        return "null" if given is None else given

    @field_validator("replacement_domain")
    @classmethod
    def _with_at(cls, given: str) -> str:
        return given if given.startswith("@") else f"@{given}"

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        text = batch.text()
        listed = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
        if not pc.any(listed).as_py():
            return self._each(batch, text)
        return pc.if_else(listed, self._lists(batch, text), self._each(batch, text))

    def _lists(self, batch: Batch, text: pa.Array) -> pa.Array:
        inner = pc.utf8_slice_codeunits(text, start=1, stop=-1)
        parts = pc.split_pattern(inner, ",")
        items = pc.replace_substring(parts.flatten(), pattern='"', replacement="")
        of_items = Batch(items.cast(pa.binary()), batch.type, salt=batch.salt)
        if batch.stamps is not None:
            rows = np.repeat(np.arange(len(text)), np.diff(np.asarray(parts.offsets)))
            of_items.stamps = batch.stamps.take(pa.array(rows))
        done = self._each(of_items, items).cast(pa.string())
        # NULL among the items is written without quotes.
        done = pc.if_else(pc.equal(items, "NULL"), items, done)
        joined = pc.binary_join(pa.ListArray.from_arrays(parts.offsets, done), ",")
        return pc.binary_join_element_wise("{", joined, "}", "").cast(pa.binary())

    def _each(self, batch: Batch, text: pa.Array) -> pa.Array:
        draws = batch.draws("email", self.generator)
        boxes = of_width(_BASE32[draws.matrix(_BOX) & 31])
        if self.preserve_domain:
            domains: Any = _domains(text)
            fallback = pa.scalar(self.replacement_domain.encode(), pa.binary())
            domains = pc.if_else(pc.equal(pc.binary_length(domains), 0), fallback, domains)
        else:
            domains = pa.scalar(self.replacement_domain.encode(), pa.binary())
        made = pc.binary_join_element_wise(boxes, domains, b"")
        kept = self._kept(text)
        made = made if kept is None else pc.if_else(kept, batch.values, made)
        if self.invalid_email_action in ("null", "reject"):
            return self._without_invalid(batch, text, made)
        return made

    def _kept(self, text: pa.Array) -> pa.Array | None:
        """Which values stay as they are."""
        short = pc.less(pc.binary_length(text), 2)
        kept = short if pc.any(short).as_py() else None
        excluded = [one for one in (self.exclude_domain, *self.excluded_domains) if one]
        if excluded:
            wanted_domains = pa.array([f"@{one.removeprefix('@')}".encode() for one in excluded])
            is_in = pc.is_in(_domains(text), wanted_domains.cast(pa.binary()))
            kept = is_in if kept is None else pc.or_(kept, is_in)
        if self.invalid_email_action == "passthrough":
            invalid = _invalid(text)
            kept = invalid if kept is None else pc.or_(kept, invalid)
        return kept

    def _without_invalid(self, batch: Batch, text: pa.Array, made: pa.Array) -> pa.Array:
        invalid = _invalid(text)
        if self.invalid_email_action == "null":
            return pc.if_else(invalid, pa.scalar(None, pa.binary()), made)
        batch.fail(np.asarray(invalid), "it is no e-mail address")
        return made

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has."""
        if self.preserve_domain:
            return None if given is None else _BOX + max(given, len(self.replacement_domain))
        made = _BOX + len(self.replacement_domain)
        stays = self.exclude_domain or self.excluded_domains
        return (
            max(made, given or 0) if stays or self.invalid_email_action == "passthrough" else made
        )

    def complaints(self, type_: ColumnType) -> Iterator[tuple[str, str]]:
        """What is wrong with it for a column of a type that it takes."""
        if type_.family == "text[]" and self.invalid_email_action in ("null", "reject"):
            yield (
                "invalid_email_action is not looked at inside a list",
                "write invalid_email_action: generate",
            )


def _domains(text: pa.Array) -> pa.Array:
    """From the first @ on; nothing where there is none."""
    return pc.replace_substring_regex(text, pattern="(?s)^[^@]*", replacement="").cast(pa.binary())


def _invalid(text: pa.Array) -> pa.Array:
    return pc.invert(pc.match_substring_regex(text, pattern=r"^[^@\s]+@[^@\s]+$"))
