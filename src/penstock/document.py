"""A YAML text as plain values, with the place of each. Knows no key of the pipeline file.

Every scalar stays text (or None): the option that takes it decides whether it is a number, so
`tracking: off` is not `False`, `name: 007` is not 7, and a number may come out of a variable.
Where a value of any type may stand, under `value:`, text without quotes is marked (`Unquoted`).
`${NAME}` is replaced in scalars after YAML has been read, so that no value of a variable can
become structure. Places keep what was written, not what the variable held: that may be secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from penstock.errors import MissingVariable, PipelineFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

Path = tuple[str | int, ...]

_DEPTH = 30  # a pipeline file is six deep; an alias inside its own anchor is endless
_NODES = 20_000  # aliases of aliases grow without end

_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + kind for kind in ("str", "int", "float", "bool", "timestamp", "value")}
_OF_ANY_TYPE = "value"
_KEY = re.compile(r"[\w.*$\"{}-]{1,80}")

# Stands for a variable while YAML is read: the braces of ${A} would end a flow mapping. A default
# with a quote or a backslash is left to YAML, which knows what they mean in which kind of scalar.
_STAND_IN = "\ue000"
_HIDDEN = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}\n\"'\\]*)?\}|" + _STAND_IN)
_STOOD_IN = re.compile(_STAND_IN + "([0-9]{1,6})" + _STAND_IN)
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")


class Unquoted(str):
    """Text that stands without quotes, and that no variable is part of: it may be meant as a number."""

    __slots__ = ()


@dataclass(frozen=True)
class Mark:
    """Where a value stands, and what was written there before variables were replaced."""

    where: str
    line: int = 0
    key: str = ""
    text: str | None = None


@dataclass(frozen=True)
class Document:
    """Plain values (mappings, lists, text, None), and a mark for each path of keys to one."""

    values: dict[str, Any] = field(repr=False)
    place: str
    marks: Mapping[Path, Mark] = field(default_factory=dict, repr=False)

    def value_at(self, path: Path) -> Any:
        """The value at the end of a path that the document has."""
        value: Any = self.values
        for step in path:
            value = value[step]
        return value

    def find(self, path: Path) -> Path:
        """The path as the document has it: steps that are not there are left out."""
        found: Path = ()
        for step in path:
            if (*found, step) in self.marks:
                found = (*found, step)
        return found


def read_document(text: str, place: str, environ: Mapping[str, str]) -> Document:
    """Read YAML and replace its variables.

    Raises:
        PipelineFileError: not YAML, not one mapping, a key twice, or a tag or merge key.
        MissingVariable: `${NAME}` without a default, and the environment has no NAME.
    """
    hidden: list[str] = []

    def hide(match: re.Match[str]) -> str:
        hidden.append(match[0])
        return f"{_STAND_IN}{len(hidden) - 1}{_STAND_IN}"

    node = _compose(_HIDDEN.sub(hide, text), place)
    if node is None:
        raise PipelineFileError(
            "the file is empty, wanted a mapping", place, "start with name:, source: and sinks:"
        )
    if not isinstance(node, yaml.MappingNode):
        raise PipelineFileError(
            "the file is not a mapping of keys to values",
            f"{place}:{_line(node)}",
            "start with name:, source: and sinks:",
        )
    reader = _Reader(place, environ, hidden)
    values = reader.read(node, ())
    return Document(values, place, reader.marks)


def document_of(values: object, place: str) -> Document:
    """The document that plain values already are, such as parsed JSON; nothing is replaced.

    Raises:
        PipelineFileError: not a mapping, or a value that JSON and Postgres cannot hold.
    """
    marks: dict[Path, Mark] = {}
    copied = _copy(values, (), place, marks)
    if not isinstance(copied, dict):
        raise PipelineFileError(
            "the pipeline is not a mapping of keys to values", place, "give one JSON object"
        )
    return Document(copied, place, marks)


def _copy(value: object, path: Path, place: str, marks: dict[Path, Mark]) -> Any:
    where = f"{place} {'.'.join(named(str(step)) for step in path)}".strip()
    marks[path] = Mark(where, key=str(path[-1]) if path else "")
    if len(path) > _DEPTH:
        raise PipelineFileError("the pipeline is nested too deep", place, "take the nesting out")
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        # Keys are checked before they become part of a place.
        return {
            _fit(key, place): _copy(item, (*path, key), place, marks) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_copy(item, (*path, index), place, marks) for index, item in enumerate(value)]
    if isinstance(value, str):
        return _fit(value, where)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise PipelineFileError(
        f"a value is a {type(value).__name__}, wanted what JSON can hold", where, "write it as text"
    )


def _fit(text: str, where: str) -> str:
    """The text, which Postgres, libpq and JSON can all hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        fits = False  # half of a surrogate pair, from an escape or an undecodable variable
    else:
        fits = "\0" not in text
    if not fits:
        raise PipelineFileError(
            "a value holds a zero byte or is not UTF-8", where, "take the odd character out"
        )
    return text


def shown(text: str) -> str:
    """Text from a file for use in an error: cut, and withheld where it may hold a password."""
    if "@" in text or "://" in text or "passw" in text.lower():
        return "a text that is not shown"
    return repr(text if len(text) <= 60 else text[:60] + "…")


def named(key: str) -> str:
    """A key for use in an error: bare where it can be."""
    return key if _KEY.fullmatch(key) else shown(key)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _compose(text: str, place: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)  # type: ignore[no-any-return]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = _without_quotes(error.problem or error.context or "")
    except yaml.reader.ReaderError as error:
        line = f":{text.count(chr(10), 0, error.position) + 1}"
        problem = "a character that YAML does not allow"
    except RecursionError:
        line, problem = "", "nested too deep"
    except (ValueError, ArithmeticError):
        # PyYAML hands escapes such as \UFFFFFFFF to chr() as they are.
        line, problem = "", "an escape or a number that stands for no character"
    raise PipelineFileError(
        f"the file is not YAML: {problem}",
        f"{place}{line}",
        "fix the line, or the one above it; indent with spaces, and quote text with : # { } [ ] or @",
    )


def _without_quotes(problem: str) -> str:
    """PyYAML's complaint without names from the file; single characters and its own words stay."""

    def keep(match: re.Match[str]) -> str:
        ours = len(match[1]) < 2 or match[1][0] in "<\\"
        return match[0] if ours else "(not shown)"

    return re.sub(r"'([^']*)'", keep, problem)


class _Reader:
    """One walk over the nodes of a file."""

    def __init__(self, place: str, environ: Mapping[str, str], hidden: list[str]) -> None:
        self.place = place
        self.environ = environ
        self.hidden = hidden
        self.marks: dict[Path, Mark] = {}
        self.node_count = 0

    def read(self, node: yaml.Node, path: Path, key: yaml.Node | None = None) -> Any:
        where = f"{self.place}:{_line(key or node)}"
        self.node_count += 1
        if self.node_count > _NODES or len(path) > _DEPTH:
            raise PipelineFileError("the file is nested too deep", where, "use fewer aliases")
        written = self._written(node) if isinstance(node, yaml.ScalarNode) else ""
        self.marks[path] = Mark(
            where,
            _line(key or node),
            self._written(key) if key else "",
            written if "$" in written else None,
        )
        match node:
            case yaml.MappingNode(tag=tag) if tag == _TAG + "map":
                return self._mapping(node, path)
            case yaml.SequenceNode(tag=tag) if tag == _TAG + "seq":
                return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
            case yaml.ScalarNode(tag=tag) if tag == _TAG + "null":
                return None
            case yaml.ScalarNode(tag=tag) if tag in _SCALARS:
                text = self._expand(written, where)
                is_bare = node.style is None and _OF_ANY_TYPE in path and text == node.value
                return Unquoted(text) if is_bare else text
        raise PipelineFileError("a tag (!) that is not read here", where, "take the tag out")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self.place}:{_line(key_node)}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise PipelineFileError("a key is not text", where, "write key: value")
            if key_node.tag == _TAG + "merge":
                raise PipelineFileError(
                    "the merge key << is not read here", where, "write the keys out"
                )
            key = self._expand(self._written(key_node), where)
            if key in values:
                raise PipelineFileError(
                    f"the key {shown(self._written(key_node))} is there twice",
                    where,
                    "take one of the two out",
                )
            values[key] = self.read(value_node, (*path, key), key_node)
        return values

    def _written(self, node: yaml.Node) -> str:
        def restore(match: re.Match[str]) -> str:
            index = int(match[1])
            # A stand-in that was itself written, as an escape, stays what it is.
            return self.hidden[index] if index < len(self.hidden) else match[0]

        return _STOOD_IN.sub(restore, str(node.value))

    def _expand(self, text: str, where: str) -> str:
        def replace(match: re.Match[str]) -> str:
            name, default = match.groups()
            if match[0] == "$$":
                return "$"
            if name is None:
                raise PipelineFileError(
                    "${ does not name a variable",
                    where,
                    "write ${NAME} or ${NAME:-default}; for the characters themselves write $${",
                )
            value = self.environ.get(name)
            # As in a shell, :- also replaces a variable that is set to nothing.
            if value or (value is not None and default is None):
                return value
            if default is None:
                raise MissingVariable(
                    f"the variable {name} is not set",
                    where,
                    f"export {name}=..., or write ${{{name}:-default}}",
                )
            return default

        return _fit(_VARIABLE.sub(replace, text), where)
