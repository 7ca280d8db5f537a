"""Transformers that draw text: string, hash, uuid, phone_number, email."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from penstock.changes.arrayliterals import split_arrays
from penstock.changes.cells import gather
from penstock.errors import BadValue
from penstock.modifiers.transform.arrays import first_of, laid_out, of_width
from penstock.modifiers.transform.pgtypes import ColumnType
from penstock.modifiers.transform.transformer import Batch, Collisions, Drawing
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from penstock.modifiers.transform.draws import Draws

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE32 = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
# 16 letters of 5 bits: 80 bits, with which a million rows have two equal ones once in 10^12 times.
_BOX = 16
# A flat array as Postgres prints it. Any other text in braces is one value.
_ITEM = r'(?:"(?:[^"\\]|\\.)*"|[^"\\{},]*)'
_LIST = rf"(?s)^\{{{_ITEM}(?:,{_ITEM})*\}}$"
# What an element of an array needs quotes for: array_out of Postgres's arrayfuncs.c.
_IN_QUOTES = r'(?i)^null$|^$|[{}",\\\s\x0b]'
_ELEMENTS = {1009: 25, 1014: 1042, 1015: 1043}
_NO_TEXT = pa.array([], pa.string())


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

    Of a list, text[] or a text like `{a@x,b@y}`, each. An address of an excluded domain stays, and so does a
    value of less than two characters.
    """

    takes: ClassVar = frozenset({"text", "text[]"})
    collisions: ClassVar = Collisions.UNLIKELY

    replacement_domain: str = "@example.com"
    exclude_domain: str = ""
    excluded_domains: tuple[str, ...] = ()
    preserve_domain: bool = False
    preserve_length: bool = False  # one letter before the domain at least
    max_length: int | None = Field(default=None, ge=1)
    invalid_email_action: Literal["generate", "passthrough", "null", "reject"] = "generate"

    @field_validator("invalid_email_action", mode="before")
    @classmethod
    def _null_of_yaml(cls, given: Any) -> Any:
        return "null" if given is None else given

    @field_validator("replacement_domain")
    @classmethod
    def _with_at(cls, given: str) -> str:
        return given if given.startswith("@") else f"@{given}"

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.max_length is not None and self.max_length <= len(self.replacement_domain):
            what = f"is {self.max_length}, and {self.replacement_domain} has {len(self.replacement_domain)} characters"
            raise fault(
                BadValue(what, do="set a greater one, or a shorter replacement_domain"),
                "max_length",
            )
        return self

    @property
    def _box(self) -> int:
        """How many letters stand before the domain."""
        room = (self.max_length or _BOX + len(self.replacement_domain)) - len(
            self.replacement_domain
        )
        return min(_BOX, room)

    @property
    def revision(self) -> int:
        """2 where domains stay: what stood behind them stayed once, too."""
        return 2 if self.preserve_domain else super().revision

    @property
    def is_short(self) -> bool:
        """Whether lengths may leave fewer letters than it has else."""
        return self.preserve_length or self._box < _BOX

    @property
    def meetings(self) -> Collisions:
        """Whether two values can become one: with few letters they do."""
        return Collisions.LIKELY if self.is_short else self.collisions

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        if batch.type.family == "text[]":
            return self._lists(batch)
        text = batch.text()
        if not pc.any(pc.starts_with(text, "{")).as_py():
            return self._each(batch, text)
        are_lists = np.asarray(pc.match_substring_regex(text, _LIST))
        lists, others = np.flatnonzero(are_lists), np.flatnonzero(~are_lists)
        if len(lists) == 0:
            return self._each(batch, text)
        of_lists, of_others = batch.rows(lists), batch.rows(others)
        done = [self._lists(of_lists), self._each(of_others, of_others.text()).cast(pa.binary())]
        batch.fail_rows(lists, of_lists)
        batch.fail_rows(others, of_others)
        return pa.concat_arrays(done).take(pa.array(np.argsort(np.concatenate((lists, others)))))

    def _lists(self, batch: Batch) -> pa.Array:
        """Arrays as Postgres prints them, of one dimension."""
        arrays = split_arrays(batch.text().cast(pa.binary()))
        unfit = np.zeros(len(batch), np.bool_)
        unfit[arrays.unfit] = True
        batch.fail(unfit, "an array of several dimensions, or with bounds of its own, is not taken")
        values = gather(arrays.elements)
        is_value = np.asarray(values.is_valid())
        of_row = np.repeat(np.arange(len(batch)), np.diff(arrays.offsets))[is_value]
        element = ColumnType(_ELEMENTS.get(batch.type.oid, batch.type.oid), -1, "text")
        items = Batch(
            values.drop_null(),
            replace(element, is_caseless=batch.type.is_caseless),
            salt=batch.salt,
            stamps=None if batch.stamps is None else batch.stamps.take(pa.array(of_row)),
        )
        done = self._each(items, items.text()).cast(pa.string()) if len(items) else _NO_TEXT
        batch.fail_rows(of_row, items)
        place = pa.array(np.cumsum(is_value) - 1, mask=~is_value)
        # NULL among the items is written without quotes.
        elements = pc.fill_null(_quoted(done).take(place), "NULL")
        offsets = pa.array(arrays.offsets, pa.int32())
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), ",")
        return pc.binary_join_element_wise("{", joined, "}", "").cast(pa.binary())

    def _each(self, batch: Batch, text: pa.Array) -> pa.Array:
        draws = batch.draws("email", self.generator)
        if self.preserve_domain:
            domains: Any = _plain_domains(text)
            fallback = pa.scalar(self.replacement_domain.encode(), pa.binary())
            domains = pc.if_else(pc.equal(pc.binary_length(domains), 0), fallback, domains)
        else:
            domains = pa.scalar(self.replacement_domain.encode(), pa.binary())
        made = pc.binary_join_element_wise(self._boxes(batch, draws, text, domains), domains, b"")
        kept = self._kept(text)
        made = made if kept is None else pc.if_else(kept, batch.values, made)
        if self.invalid_email_action in ("null", "reject"):
            return self._without_invalid(batch, text, made)
        return made

    def _boxes(self, batch: Batch, draws: Draws, text: pa.Array, domains: Any) -> pa.Array:
        """What stands before the domains."""
        widths: Any = len(self.replacement_domain)
        if self.preserve_domain and (self.preserve_length or self.max_length is not None):
            widths = np.asarray(pc.utf8_length(domains.cast(pa.string()))).astype(np.int64)
        if not self.preserve_length:
            self._require_room(batch, self._box + widths)
            return of_width(_BASE32[draws.matrix(_BOX) & 31][:, : self._box])
        lengths = np.asarray(pc.utf8_length(text)).astype(np.int64)
        if self.max_length is not None:
            lengths = np.minimum(lengths, self.max_length)
        letters_before = np.maximum(lengths - widths, 1)
        self._require_room(batch, letters_before + widths)
        return letters(draws, letters_before, _BASE32.tobytes().decode())

    def _require_room(self, batch: Batch, lengths: Any) -> None:
        if self.max_length is not None and self.preserve_domain:
            batch.fail(lengths > self.max_length, "with its domain it is longer than max_length")

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
        domain = len(self.replacement_domain)
        made: int | None = self._box + domain
        if self.preserve_length:
            made = None if given is None else max(given, 1 + domain)
        elif self.preserve_domain:
            made = None if given is None else self._box + max(given, domain)
        if self.max_length is not None:
            made = self.max_length if made is None else min(made, self.max_length)
        if made is None:
            return None
        stays = self.exclude_domain or self.excluded_domains
        return (
            max(made, given or 0) if stays or self.invalid_email_action == "passthrough" else made
        )


def _quoted(items: pa.Array) -> pa.Array:
    """Elements as Postgres writes them in an array."""
    escaped = pc.replace_substring_regex(items, pattern=r'([\\"])', replacement=r"\\\1")
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    return pc.if_else(pc.match_substring_regex(items, _IN_QUOTES), quoted, items)


def _domains(text: pa.Array) -> pa.Array:
    """From the first @ on; nothing where there is none."""
    return pc.replace_substring_regex(text, pattern="(?s)^[^@]*", replacement="").cast(pa.binary())


def _plain_domains(text: pa.Array) -> pa.Array:
    """From the last @ on, where nothing but a domain is behind it: that could be another address, or a note."""
    pattern = r"(?s)^(?:.*(@[\pL\pN\pM._-]+)\s*|.*)$"
    return pc.replace_substring_regex(text, pattern=pattern, replacement=r"\1").cast(pa.binary())


def _invalid(text: pa.Array) -> pa.Array:
    return pc.invert(pc.match_substring_regex(text, pattern=r"^[^@\s]+@[^@\s]+$"))
