"""Functions of templates over text and its words, and over lists: sprig's, with characters where Go counts bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.modifiers.transform.template_values import LONGEST, listed, shown, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SHORTEST = 4  # of abbrev: a letter and three dots
_GO_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}
_HTML = str.maketrans({"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"})
_SEPARATORS = re.compile("[ _-]")


def quoted(text: str) -> str:
    """As %q of Go writes it."""

    def escaped(character: str) -> str:
        if character in _GO_ESCAPES or character.isprintable():
            return _GO_ESCAPES.get(character, character)
        code = ord(character)
        if code < 0x80:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

    return '"' + "".join(map(escaped, text)) + '"'


def quote(*values: Any) -> str:
    """Each in quotes, as Go writes them."""
    return " ".join(quoted(shown(value)) for value in values if value is not None)


def squote(*values: Any) -> str:
    """Each in single quotes, nothing escaped."""
    return " ".join(f"'{shown(value)}'" for value in values if value is not None)


def _one(letter: str, other: str) -> str:
    """Go maps a letter to one letter: ß has no upper one."""
    return other if len(other) == 1 else letter


def _each_word(text: str, change: Callable[[str], str]) -> str:
    """The first character of each word changed; words stand between blanks."""
    return re.sub(r"(?<!\S)\S", lambda match: _one(match[0], change(match[0])), text)


def title(text: Any) -> str:
    """Every letter that begins a word in upper case; the others stay."""
    return re.sub(r"(?<![\w])[^\W\d_]", lambda match: _one(match[0], match[0].upper()), shown(text))


def untitle(text: Any) -> str:
    """The first letter of each word in lower case."""
    return _each_word(shown(text), str.lower)


def initials(text: Any) -> str:
    """The first character of each word."""
    return "".join(word[0] for word in shown(text).split())


def swapcase(text: Any) -> str:
    """Upper to lower, lower to upper."""
    return "".join(_one(each, each.swapcase()) for each in shown(text))


def abbrev(width: Any, text: Any) -> str:
    """Cut, with three dots, which count."""
    size, given = whole_number(width), shown(text)
    return given if size < _SHORTEST or len(given) <= size else given[: size - 3] + "..."


def _words(text: str, joint: str) -> str:
    """HTTPServer GO-path -> http_server_go_path. Digits stay with what is before them."""
    parts = _SEPARATORS.sub(joint, text)
    made: list[str] = []
    for place, letter in enumerate(parts):
        before = parts[place - 1] if place else joint
        after = parts[place + 1 : place + 2]
        begins = letter.isupper() and before != joint
        # The last capital of an abbreviation begins the word behind it.
        goes_on = before.isupper() and not (after and not after.isupper() and after != joint)
        made.append((joint if begins and not goes_on else "") + _one(letter, letter.lower()))
    return "".join(made)


def snakecase(text: Any) -> str:
    """Words in lower case, with _ between them."""
    return _words(shown(text), "_")


def kebabcase(text: Any) -> str:
    """Words in lower case, with - between them."""
    return _words(shown(text), "-")


def camelcase(text: Any) -> str:
    """Words that _, - or blanks part, each with a capital, without what parts them; at the ends that stays."""
    given = shown(text)
    body = given.strip(" _-")
    if not body:
        return given
    before, after = given[: given.index(body)], given[given.index(body) + len(body) :]
    # Of two and more that stand together one goes.
    made = re.sub(
        r"(^|[ _-])([^ _-])([^ _-]*)",
        lambda match: _one(match[2], match[2].upper()) + match[3].lower(),
        body,
    )
    return before + made + after


def wrap(width: Any, text: Any) -> str:
    """Lines of so many characters at most, parted at blanks; a longer word is a line."""
    size, given = max(whole_number(width), 1), shown(text)
    lines: list[str] = []
    at = 0
    while len(given) - at > size:
        if given[at] == " ":
            at += 1
            continue
        end = given.rfind(" ", at, at + size + 1)
        if end < 0:
            end = given.find(" ", at + size)
        if end < 0:
            break
        lines.append(given[at:end])
        at = end + 1
    return "\n".join([*lines, given[at:]])


def indent(spaces: Any, text: Any) -> str:
    """Every line behind so many blanks."""
    count, given = whole_number(spaces), shown(text)
    if count < 0 or (given.count("\n") + 1) * count + len(given) > LONGEST:
        raise ValueError("indent gives more than a megabyte")
    return " " * count + given.replace("\n", "\n" + " " * count)


def found_by(pattern: Any, text: Any) -> list[str]:
    """All that a pattern of RE2's matches, from left to right."""
    given = shown(text).replace("\0", "")
    try:
        marked = pc.replace_substring_regex(
            pa.array([given]), pattern=shown(pattern), replacement="\0\\0\0"
        )
    except pa.ArrowInvalid:
        raise ValueError("the pattern is none of RE2's") from None
    return str(marked[0].as_py()).split("\0")[1::2]


def regex_find(pattern: Any, text: Any) -> str:
    """The first match, or nothing."""
    return next(iter(found_by(pattern, text)), "")


def regex_find_all(pattern: Any, text: Any, count: Any) -> list[str]:
    """The first matches, all of them with -1."""
    found, most = found_by(pattern, text), whole_number(count)
    return found if most < 0 else found[:most]


def split(separator: Any, text: Any) -> dict[str, str]:
    """Parts by their place: _0, _1, …"""
    given, between = shown(text), shown(separator)
    parts = given.split(between) if between else list(given)
    return {f"_{place}": part for place, part in enumerate(parts)}


def index(value: Any, *places: Any) -> Any:
    """What stands at a place of a list, or under a key."""
    for place in places:
        if isinstance(value, dict):
            value = value.get(shown(place), "")
            continue
        items, at = listed(value), whole_number(place)
        if not 0 <= at < len(items):
            raise ValueError("index: there is no such place")
        value = items[at]
    return value


def slice_of(value: Any, *ends: Any) -> Any:
    """A part of a list, or of a text: from a place, up to another one."""
    given = value if isinstance(value, str) else listed(value)
    begin = whole_number(ends[0]) if ends else 0
    end = whole_number(ends[1]) if ends[1:] else len(given)
    if not 0 <= begin <= end <= len(given):
        raise ValueError("slice: there is no such part")
    return given[begin:end]


def uniq(value: Any) -> list[Any]:
    """Each item once."""
    found: list[Any] = []
    for item in listed(value):
        if not any(_same(item, other) for other in found):
            found.append(item)
    return found


def has(item: Any, value: Any) -> bool:
    """Whether a list has the item."""
    return any(_same(item, other) for other in listed(value))


def _same(one: Any, other: Any) -> bool:
    # For Go 1 and true, and 1 and "1", are not equal.
    return type(one) is type(other) and bool(one == other)


def to_json(value: Any) -> str:
    """As Go writes it: < > & as escapes, no blanks."""
    return to_raw_json(value).translate(_HTML)


def to_raw_json(value: Any) -> str:
    """The same, < > & as they are."""

    def plain(one: Any) -> Any:
        if one is None or isinstance(one, str | bool | int):
            return one
        if isinstance(one, list):
            return [plain(each) for each in one]
        if isinstance(one, dict):
            return {key: plain(one[key]) for key in sorted(one)}
        return _Number(shown(one))

    return _dumped(plain(value))


class _Number(str):
    """A number as it is to be written."""

    __slots__ = ()


def _dumped(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_dumped, value)) + "]"
    if isinstance(value, dict):
        pairs = (f"{_dumped(key)}:{_dumped(one)}" for key, one in value.items())
        return "{" + ",".join(pairs) + "}"
    return json.dumps(value, ensure_ascii=False)


def printed(values: Sequence[Any]) -> str:
    """As Go's print: a blank between two of which none is text."""
    made = ""
    for place, value in enumerate(values):
        is_parted = place and not isinstance(value, str) and not isinstance(values[place - 1], str)
        made += (" " if is_parted else "") + shown(value)
    return made
