"""Expressions as the server stores them (pg_node_tree): what they call, and of what they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Everything that an expression over the columns of one row is made of, in the words of Postgres 14 to 18.
# What is not here is not judged but refused: subqueries, aggregates, parameters, and what is to come.
_KNOWN_NODES_WORDS = """
ARRAY ARRAYCOERCEEXPR ARRAYEXPR BOOLEANTEST BOOLEXPR CASE CASEEXPR CASETESTEXPR CASEWHEN COALESCE
COALESCEEXPR COERCETODOMAIN COERCETODOMAINVALUE COERCEVIAIO COLLATEEXPR CONST CONVERTROWTYPEEXPR
DISTINCTEXPR FIELDSELECT FUNCEXPR JSONBEHAVIOR JSONCONSTRUCTOREXPR JSONEXPR JSONFORMAT JSONISPREDICATE
JSONRETURNING JSONVALUEEXPR MINMAX MINMAXEXPR NAMEDARGEXPR NULLIFEXPR NULLTEST OPEXPR RELABELTYPE ROW
ROWCOMPARE ROWCOMPAREEXPR ROWEXPR SCALARARRAYOPEXPR SQLVALUEFUNCTION SUBSCRIPTINGREF VAR WHEN XMLEXPR
"""
_KNOWN_NODES = frozenset(_KNOWN_NODES_WORDS.split())
FIRST_USER_OID = 16384  # what is below came with the server
_NODE = re.compile(r"(?<!\\)\{(\w+)")
_FUNCTION = re.compile(r":(?:funcid|opfuncid|hashfuncid|negfuncid) (\d+)")
_OPERATOR = re.compile(r":opno (\d+)")
_OPERATORS = re.compile(r":opnos \(o ([\d ]+)\)")
_TYPE = re.compile(r":\w*(?:type|typeid|typid|typeId) (\d+)")
# Names of objects that are resolved once and kept by number: regclass, regconfig and the like.
_OBJECT = re.compile(
    r"\{CONST :consttype (\d+) [^{}]*?:constisnull false[^{}]*?:constvalue 4 \[ ((?:-?\d+ )+)\]"
)
_OBJECT_TYPES = {
    24: "function", 2202: "function", 2203: "operator", 2204: "operator", 2205: "relation", 2206: "type",
    3734: "text search configuration", 3769: "text search dictionary",
}  # fmt: skip
# What is not a constant names an object that nobody can judge: by a text, a number, an element of an array.
_NAMED = re.compile(r":(\w*(?:type|typeid|typid|typeId)) (\d+)")
_OBJECT_ARRAY_TYPES = frozenset({1008, 2207, 2208, 2209, 2210, 2211, 3735, 3770})
_ENTRY = "{TARGETENTRY :expr "


@dataclass
class Used:
    """What one expression uses, by the numbers of the catalog."""

    functions: set[int] = field(default_factory=set)
    operators: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    relations: set[int] = field(default_factory=set)
    configurations: set[int] = field(default_factory=set)
    strange: set[str] = field(default_factory=set)  # parts that no expression over one row has

    @classmethod
    def together(cls, parts: Iterable[Used]) -> Used:
        """What several expressions use."""
        every = cls()
        for each in parts:
            every.functions |= each.functions
            every.operators |= each.operators
            every.types |= each.types
            every.relations |= each.relations
            every.configurations |= each.configurations
            every.strange |= each.strange
        return every

    @property
    def is_builtin(self) -> bool:
        """Whether all of it came with the server."""
        numbers = self.functions | self.operators | self.types | self.relations
        return all(number < FIRST_USER_OID for number in numbers)


def used_by(tree: str) -> Used:
    """What a stored expression uses."""
    used = Used(
        functions={int(each) for each in _FUNCTION.findall(tree)} - {0},
        operators={int(each) for each in _OPERATOR.findall(tree)} - {0},
        types={int(each) for each in _TYPE.findall(tree)},
        strange=set(_NODE.findall(tree)) - _KNOWN_NODES,
    )
    for each in _OPERATORS.findall(tree):
        used.operators.update(map(int, each.split()))
    for place, kind in _NAMED.findall(tree):
        is_computed = int(kind) in _OBJECT_TYPES and place not in ("consttype", "vartype")
        if is_computed or (int(kind) in _OBJECT_ARRAY_TYPES and place != "vartype"):
            used.strange.add("objects that are named by a computed value")
    _add_named_constants(used, tree)
    return used


def _add_named_constants(used: Used, tree: str) -> None:
    """Objects that constants such as 'public.t'::regclass name: their bytes are the oid."""
    for kind, content in _OBJECT.findall(tree):
        word = _OBJECT_TYPES.get(int(kind))
        if word is not None:
            number = bytes(int(each) % 256 for each in content.split())[:4]
            _numbers_of(used, word).add(int.from_bytes(number, "little"))


def _numbers_of(used: Used, word: str) -> set[int]:
    """Where the objects of one kind are."""
    if word.startswith("text"):
        return used.configurations
    kinds = {"relation": used.relations, "type": used.types, "function": used.functions}
    return kinds.get(word, used.operators)


def entries(tree: str, prefix: str) -> dict[int, str]:
    """The expressions of a stored query whose columns are called `prefix` and a number."""
    found: dict[int, str] = {}
    place = tree.find(_ENTRY)
    while place != -1:
        start = place + len(_ENTRY)
        end = _end_of_node(tree, start)
        named = re.match(rf" :resno \d+ :resname {prefix}(\d+) ", tree[end : end + 200])
        if named is not None:
            found[int(named[1])] = tree[start:end]
        place = tree.find(_ENTRY, start)
    return found


def _end_of_node(tree: str, start: int) -> int:
    depth, place = 0, start
    while place < len(tree):
        char = tree[place]
        if char == "\\":
            place += 1
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return place + 1
        place += 1
    raise ValueError("a stored tree that ends too early")
