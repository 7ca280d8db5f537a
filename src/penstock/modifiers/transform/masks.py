"""Transformers that hide characters of a value and show the others: masking, mask, regex."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from penstock.errors import BadValue
from penstock.modifiers.transform.arrays import starred
from penstock.modifiers.transform.transformer import Batch, Transformer
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.modifiers.transform.arrays import Counts

Kind = Literal[
    "default",
    "custom",
    "password",
    "name",
    "address",
    "email",
    "mobile",
    "tel",
    "id",
    "credit_card",
    "url",
]
_EDGES = ("mask_begin", "mask_end", "unmask_begin", "unmask_end")
# user:password@ behind any //, or at the beginning, where a scheme may be left out. The user may be an address.
# Behind // a password may also have what a URL would write otherwise (/ ? #), unless it begins like a port.
_URL = (
    r"((?:^|//)[^:/?#]*:)[^/?#]*@"
    r"|(//[^:/?#\[]*:)[0-9]*[^0-9/?#,\s@][^\s@]*@"
)
_LAST_FOUR = 4


class Edge(NamedTuple):
    """A place in a value: so many characters, or so many hundredths of them, from its beginning."""

    number: int
    is_percent: bool

    @classmethod
    def parse(cls, given: Any) -> Edge:
        """Read 4, "4" or "40%"; what lies outside of the value is its nearest end."""
        match = re.fullmatch(r"\s*(-?\d{1,9})\s*(%?)\s*", str(given))
        if match is None or isinstance(given, bool | float):
            raise wanted('a number of characters, or a part such as "40%"')
        return cls(int(match[1]), bool(match[2]))

    def places(self, lengths: Counts) -> Counts:
        """Where it is in values of these lengths."""
        if self.is_percent:
            return lengths * min(max(self.number, 0), 100) // 100
        return np.minimum(max(self.number, 0), lengths)


class Masking(Transformer):
    """Stars for a part of the value, by the kind of thing that it is."""

    type: Kind = "default"
    mask_begin: str | None = None
    mask_end: str | None = None
    unmask_begin: str | None = None
    unmask_end: str | None = None

    @field_validator(*_EDGES, mode="before")
    @classmethod
    def _edge(cls, given: Any) -> str | None:
        if given is not None:
            Edge.parse(given)
        return None if given is None else str(given)

    @model_validator(mode="after")
    def _sensible(self) -> Masking:
        given = [name for name in _EDGES if getattr(self, name) is not None]
        if given and self.type != "custom":
            what = f"stands beside type: {self.type}, which has its own places"
            raise fault(BadValue(what, do="write type: custom, or take it out"), given[0])
        shows = [name for name in given if name.startswith("unmask")]
        if shows and len(shows) < len(given):
            what = "mask and unmask stand beside each other, wanted one of the two"
            raise fault(BadValue(what, do="say what to hide, or what to show"), shows[0])
        if self.type == "custom" and self._hides_nothing(bool(shows)):
            what = "hides no character of any value"
            raise fault(BadValue(what, do="set another begin or end"), (given or ["type"])[0])
        return self

    def _hides_nothing(self, shows: bool) -> bool:
        # At a few lengths: what hides nothing there hides nothing at any.
        lengths = np.arange(1, 1000)
        begin, end = self._hidden(lengths)
        hidden = (lengths - (end - begin)) if shows else (end - begin)
        return not bool(hidden.any())

    def _hidden(self, lengths: Counts) -> tuple[Counts, Counts]:
        begin, end = (
            Edge.parse(found if found is not None else default)
            for found, default in (
                (self.mask_begin or self.unmask_begin, "0%"),
                (self.mask_end or self.unmask_end, "100%"),
            )
        )
        places = begin.places(lengths), end.places(lengths)
        return np.minimum(*places), np.maximum(*places)

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        text = batch.text()
        if self.type == "custom":
            return self._custom(text)
        hidden = _KINDS[self.type](text)
        return pc.if_else(pc.equal(pc.binary_length(text), 0), text, hidden)

    def _custom(self, text: pa.Array) -> pa.Array:
        lengths = np.asarray(pc.utf8_length(text)).astype(np.int64)
        begin, end = self._hidden(lengths)
        if self.unmask_begin is None and self.unmask_end is None:
            return starred(text, begin, end, "*")
        shown = starred(text, np.zeros_like(begin), begin, "*")
        return starred(shown, end, lengths, "*")

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has."""
        most = {"password": 12, "address": 12}.get(self.type)
        if most is not None:
            return most
        if self.type in ("default", "custom") or given is None:
            return given
        if self.type == "name":  # a name of single letters: "a b c" is "** ** **"
            return given + given // 2 + 1
        # A text may hold several passwords, of no character each: //:@//:@
        return max(
            given, {"tel": 13, "url": given + 5 * (given // 4 + 1)}.get(self.type, given + 6)
        )

    @property
    def revision(self) -> int:
        """3 of URLs: twice some passwords were not seen before."""
        return 3 if self.type == "url" else super().revision


def _overlaid(begin: int, end: int, stars: str) -> Callable[[pa.Array], pa.Array]:
    """Characters from `begin` to `end` replaced; a value that is shorter has the stars behind it."""
    return lambda text: pc.utf8_replace_slice(text, start=begin, stop=end, replacement=stars)


def _name(text: pa.Array) -> pa.Array:
    words = pc.split_pattern(text, " ")
    flat = words.flatten()
    length = pc.utf8_length(flat)
    hidden = pc.case_when(
        pc.make_struct(pc.equal(length, 0), pc.equal(length, 1), pc.less(length, 4)),
        flat,
        pa.scalar("**"),
        pc.utf8_replace_slice(flat, start=1, stop=2, replacement="**"),
        pc.utf8_replace_slice(flat, start=1, stop=3, replacement="**"),
    )
    return pc.binary_join(pa.ListArray.from_arrays(words.offsets, hidden), " ")


def _address(text: pa.Array) -> pa.Array:
    shown = pc.utf8_slice_codeunits(text, start=0, stop=6)
    short = pc.less_equal(pc.utf8_length(text), 6)
    return pc.binary_join_element_wise(pc.if_else(short, "", shown), "******", "")


def _tel(text: pa.Array) -> pa.Array:
    digits = text
    for character in " ()-":
        digits = pc.replace_substring(digits, pattern=character, replacement="")
    length = pc.utf8_length(digits)
    part = pc.utf8_slice_codeunits
    of_ten = pc.binary_join_element_wise(
        "(", part(digits, start=0, stop=2), ")", part(digits, start=2, stop=6), "-****", ""
    )
    of_eight = pc.binary_join_element_wise(part(digits, start=0, stop=4), "-****", "")
    # Of another length no part is known to be harmless but the beginning.
    counts = np.asarray(length).astype(np.int64)
    other = starred(digits, np.maximum(counts - _LAST_FOUR, 0), counts, "*").cast(pa.string())
    return pc.case_when(
        pc.make_struct(pc.equal(length, 10), pc.equal(length, 8)), of_ten, of_eight, other
    )


def _email(text: pa.Array) -> pa.Array:
    """Four stars for the characters from the fourth to the seventh, as far as they are before the @."""
    hidden = pc.utf8_replace_slice(text, start=3, stop=7, replacement="****")
    boxes = pc.replace_substring_regex(
        pc.utf8_slice_codeunits(text, start=0, stop=7), pattern="(?s)@.*", replacement=""
    )
    length = pc.utf8_length(boxes)
    has_at = pc.match_substring(text, "@")
    for count in range(7):
        short = pc.and_(pc.equal(length, count), has_at)
        if pc.any(short).as_py():
            begin = min(count, 3)
            other = pc.utf8_replace_slice(text, start=begin, stop=count, replacement="****")
            hidden = pc.if_else(short, other, hidden)
    return hidden


def _stars(text: pa.Array) -> pa.Array:
    return pc.binary_repeat("*", pc.utf8_length(text))


_KINDS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "default": _stars,
    "password": lambda text: pa.repeat(pa.scalar("*" * 12), len(text)),
    "name": _name,
    "address": _address,
    "email": _email,
    "mobile": _overlaid(4, 7, "***"),
    "tel": _tel,
    "id": _overlaid(6, 10, "****"),
    "credit_card": _overlaid(6, 12, "******"),
    "url": lambda text: pc.replace_substring_regex(text, pattern=_URL, replacement=r"\1\2xxxxx@"),
}


class Mask(Transformer):
    """The first and the last characters as they are, stars between. A value of no more than these is left."""

    mask_char: str = "*"
    keep_first: int = 1
    keep_last: int = 1

    @field_validator("mask_char")
    @classmethod
    def _one(cls, given: str) -> str:
        if len(given) != 1 or not given.isascii() or not given.isprintable():
            raise wanted("one printable ASCII character")
        return given

    @field_validator("keep_first", "keep_last")
    @classmethod
    def _count(cls, given: int) -> int:
        if given < 0:
            raise wanted("a number of characters, 0 or more")
        return given

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        text = batch.text()
        lengths = np.asarray(pc.utf8_length(text)).astype(np.int64)
        begin = np.full(len(text), self.keep_first, np.int64)
        return starred(text, begin, np.maximum(lengths - self.keep_last, 0), self.mask_char)


class Regex(Transformer):
    """Every match replaced. RE2; $1 and ${name} stand for groups, $$ for a dollar."""

    pattern: str
    replace: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, given: str) -> str:
        try:
            pc.replace_substring_regex(pa.array(["x"]), pattern=given, replacement="")
        except pa.ArrowInvalid as error:
            reason = str(error).rpartition(": ")[2] or "it does not compile"
            what = f"{given!r} is no pattern of RE2: {reason}"
            raise fault(
                BadValue(what, do="see https://github.com/google/re2/wiki/Syntax")
            ) from None
        return given

    @model_validator(mode="after")
    def _groups(self) -> Regex:
        self._replacement()
        return self

    def _replacement(self) -> str:
        return expanded(self.pattern, self.replace)

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        return pc.replace_substring_regex(
            batch.text(), pattern=self.pattern, replacement=self._replacement()
        )

    def longest(self, given: int | None) -> None:  # noqa: ARG002
        """It depends on the value."""
        return


def expanded(pattern: str, replacement: str) -> str:
    """A replacement with $1 and ${name} as Arrow wants it.

    Raises:
        PydanticCustomError: a fault: it names a group that the pattern does not have.
    """
    names = _group_names(pattern)
    return re.sub(
        r"\$(?:\$|\{(\w+)\}|(\w+))|\\",
        lambda match: _rewritten(match, names),
        replacement,
    )


def _rewritten(match: re.Match[str], names: list[str | None]) -> str:
    if match[0] == "\\":
        return "\\\\"
    if match[0] == "$$":
        return "$"
    wanted_group = match[1] or match[2]
    number = int(wanted_group) if wanted_group.isdigit() else None
    if number is None and wanted_group in names:
        number = names.index(wanted_group) + 1
    if number is None or number > min(len(names), 9):
        what = f"names group {wanted_group}, and the pattern has {len(names)}"
        do = "write ${1} where a letter or digit follows; $$ for a dollar"
        raise fault(BadValue(what, do=do), "replace")
    return f"\\{number}"


def _group_names(pattern: str) -> list[str | None]:
    """The groups that a pattern captures, in order; of those without a name None."""
    bare = re.sub(r"\\Q.*?\\E|\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]])*\]", "", pattern, flags=re.S)
    found = re.findall(r"\((?:\?P?<(\w+)>|(?!\?))", bare)
    return [name or None for name in found]
