"""TableName and the rules that choose tables. Pure names: no server, no file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadTableRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_TOLD_BY_NAME = 5
_PLACES = re.compile(r"\{schema\}|\{table\}")


class TableName(NamedTuple):
    """Schema and name as the catalog spells them, unquoted. Prints as `schema.name`."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{_spell(self.schema)}.{_spell(self.name)}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """What a name has printed itself as.

        Raises:
            BadTableRule: it is no such text.
        """
        schema, name = _split(text)
        assert schema is not None, "a table has both"
        assert name is not None, "a table has both"
        return cls(schema, name)


def as_columns(tables: Iterable[TableName]) -> tuple[list[str], list[str]]:
    """Schemas and names, as `unnest(%s::text[], %s::text[])` takes them."""
    listed = list(tables)
    return [table.schema for table in listed], [table.name for table in listed]


def name_tables(tables: Collection[TableName]) -> str:
    """A few tables by name, many by number; for log lines."""
    if len(tables) > _TOLD_BY_NAME:
        return f"{len(tables)} tables"
    return ", ".join(map(str, sorted(tables)))


def _spell(part: str) -> str:
    """A part as a person would write it in a rule: quoted only where it must be to read the same."""
    if part and not any(char in '."*' or char.isspace() for char in part):
        return part
    return '"' + part.replace('"', '""') + '"'


@dataclass(frozen=True)
class TableRule:
    """One entry of a list: two parts, each a name or `*` standing for every name."""

    schema: str | None
    name: str | None

    @classmethod
    def parse(cls, text: str) -> TableRule:
        """Read `orders`, `public.*`, `*.orders`, `*.*` or `"odd.name"."x"`.

        Raises:
            BadTableRule: three parts, an empty part, a half-open quote, or `*` inside a part.
        """
        parts = _split(text)
        if len(parts) == 1:
            parts = ["public", *parts]
        if len(parts) != 2:
            raise BadTableRule(
                f"{text!r} has {len(parts)} parts, wanted schema.table",
                do='write "schema.table"; quote a part that holds a dot: "odd.name".orders',
            )
        return cls(parts[0], parts[1])

    @property
    def is_outright(self) -> bool:
        """Whether the rule names exactly one table."""
        return self.schema is not None and self.name is not None

    def overlaps(self, other: TableRule) -> bool:
        """Whether there can be a table that both choose."""
        return all(
            None in pair or pair[0] == pair[1]
            for pair in ((self.schema, other.schema), (self.name, other.name))
        )

    def matches(self, table: TableName) -> bool:
        """Whether the rule chooses the table."""
        return self.schema in (None, table.schema) and self.name in (None, table.name)

    def __str__(self) -> str:
        schema = "*" if self.schema is None else _spell(self.schema)
        return f"{schema}.{'*' if self.name is None else _spell(self.name)}"


def _closing_quote(text: str) -> int | None:
    """Where the quote ends that begins the text; two quotes stand for one inside it."""
    end = 1
    while (end := text.find('"', end)) != -1 and text[end : end + 2] == '""':
        end += 2
    return None if end == -1 else end


def _split(text: str) -> list[str | None]:
    """The parts of a rule; None stands for `*`."""
    parts: list[str | None] = []
    rest = text.strip()
    while True:
        quoted = rest.startswith('"')
        if quoted:
            end = _closing_quote(rest)
            if end is None:
                raise BadTableRule(f"{text!r} has an open quote", do="close the quote")
            part, rest = rest[1:end].replace('""', '"'), rest[end + 1 :]
        else:
            part, dot, rest = rest.partition(".")
            rest = dot + rest
        if not part:
            raise BadTableRule(
                f"{text!r} has an empty part, wanted schema.table", do="name the table"
            )
        if not quoted and part != "*" and "*" in part:
            raise BadTableRule(
                f"{text!r} has * inside a part, wanted * as a whole part",
                do="write schema.* or *.table, or name the tables one by one",
            )
        parts.append(None if part == "*" and not quoted else part)
        if not rest:
            return parts
        if not rest.startswith("."):
            raise BadTableRule(
                f"{text!r} goes on after a quote, wanted a dot", do="write schema.table"
            )
        rest = rest[1:]


@dataclass(frozen=True)
class TableRules:
    """What a source follows: chosen by `include`, less `exclude`.

    `added` and `removed` were said later, of single tables, and outweigh both.
    """

    include: tuple[TableRule, ...]
    exclude: tuple[TableRule, ...] = ()
    insert_only: tuple[TableRule, ...] = ()
    added: frozenset[TableName] = frozenset()
    removed: frozenset[TableName] = frozenset()

    def chooses(self, table: TableName) -> bool:
        """Whether the rules choose the table at all."""
        included = not self.include or any(rule.matches(table) for rule in self.include)
        return table in self.added or (included and not self.excludes(table))

    def excludes(self, table: TableName) -> bool:
        """Whether the table is kept out, whatever includes it."""
        if table in self.added:
            return False
        return table in self.removed or any(rule.matches(table) for rule in self.exclude)

    def takes_inserts_only(self, table: TableName) -> bool:
        """Whether the table is followed for its inserts alone."""
        return any(rule.matches(table) for rule in self.insert_only)

    def names_outright(self, table: TableName) -> bool:
        """Whether a rule names this very table, so that leaving it out would be wrong."""
        return any(rule.is_outright and rule.matches(table) for rule in self.include)


@dataclass(frozen=True)
class Route:
    """Where tables go: `target` may hold `{schema}` and `{table}`, which stand for the table's own.

    None: to one of the same name. `names_columns`: the rule says something of their columns.
    """

    rule: TableRule
    target: TableName | None
    names_columns: bool = False


def filled(target: TableName, table: TableName) -> TableName:
    """A target whose `{schema}` and `{table}` are those of a table."""

    def fill(part: str) -> str:
        # At once: a name may itself hold {table}.
        known = {"{schema}": table.schema, "{table}": table.name}
        return _PLACES.sub(lambda match: known[match[0]], part)

    return TableName(*map(fill, target))


def may_be_shared(rule: TableRule, target: TableName) -> bool:
    """Whether several tables that a rule chooses may go to one target."""
    written = "".join(target)
    misses_schema = rule.schema is None and "{schema}" not in written
    return misses_schema or (rule.name is None and "{table}" not in written)


@dataclass(frozen=True)
class Routes:
    """Where the tables of a sink go that are routed. A rule that names a table outright weighs more."""

    routes: tuple[Route, ...] = ()

    def of(self, table: TableName) -> TableName | None:
        """Where a table goes; None where nothing is said of it."""
        matching = [
            (each.rule.is_outright, each.target)
            for each in self.routes
            if each.target is not None and each.rule.matches(table)
        ]
        matching.sort(key=lambda each: not each[0])
        return filled(matching[0][1], table) if matching else None

    @property
    def moves_tables(self) -> bool:
        """Whether some go to tables of other names."""
        return any(each.target is not None for each in self.routes)


NO_ROUTES = Routes()
