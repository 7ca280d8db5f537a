"""Types of the source that the target's tables need: made, compared by definition, altered, replaced, dropped.

A type is what its definition says, not what it is called: one that was dropped at the source and made anew
under its name is another one. penstock.types keeps which types penstock has made here, for which of the
source's, and their shapes when they were last followed: several tables may have a type, and each comes
by a change of it in its own turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import SchemaChangeRefused, TargetTableUnfit
from penstock.schema.describe import types_in_order
from penstock.schema.lines import qualified
from penstock.schema.match import match_by_id
from penstock.schema.shape import TypeShape
from penstock.sinks.postgres.ddl.alter_steps import Screened, Step, run_steps
from penstock.sinks.postgres.ddl.alter_types import is_wider
from penstock.sinks.postgres.ddl.create import (
    LONGEST_NAME,
    type_statement,
    with_known_collations,
    without_search_path,
)
from penstock.sinks.postgres.ddl.schemas import schema_steps
from penstock.sinks.postgres.ddl.type_parts import multirange_of, other_parts, types_there
from penstock.sinks.postgres.expressions.expressions import BUILTIN, Expression, ExpressionRules
from penstock.sinks.postgres.expressions.foreign_code import refuse_foreign_types
from penstock.sinks.postgres.expressions.sql_text import enclosed
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import psycopg

    from penstock.schema.shape import FieldShape

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]
    Owner = tuple[str, str]  # pipeline and source

_RECORDS = """
SELECT m.source_oid, t.oid::int8, n.nspname, t.typname, m.made_by_us, m.shape
FROM penstock.types m
JOIN pg_type t ON t.oid = m.oid AND t.typname = m.type_name
JOIN pg_namespace n ON n.oid = t.typnamespace AND n.nspname = m.schema_name
WHERE m.pipeline = %s AND m.source = %s
"""

# What belongs to the type itself depends on it internally: its array, its multirange, its functions.
_UNUSED = (
    "SELECT r.oid, r.nspname, r.typname FROM ("
    + _RECORDS
    + """) AS r(source_oid, oid, nspname, typname, made_by_us, shape)
CROSS JOIN LATERAL (
    SELECT array_agg(p.oid) || array_agg(p.typarray) AS own FROM pg_type p
    LEFT JOIN pg_range g ON g.rngtypid = r.oid
    WHERE p.oid IN (r.oid, g.rngmultitypid)) AS x
WHERE r.made_by_us AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = ANY (x.own)
    AND d.deptype = 'n' AND NOT EXISTS (
        SELECT FROM pg_depend i WHERE (i.classid, i.objid) = (d.classid, d.objid)
        AND i.refclassid = 'pg_type'::regclass AND i.refobjid = ANY (x.own) AND i.deptype = 'i'))
ORDER BY r.oid DESC
"""
)

# A range has a multirange and functions that make values of both, each named like its type.
_OF_RANGE = """
SELECT 'TYPE ' || format_type(rngmultitypid, NULL), n.nspname, t.typname
FROM pg_range JOIN pg_type t ON t.oid = rngmultitypid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE rngtypid = %(oid)s
UNION ALL
SELECT DISTINCT 'FUNCTION ' || p.oid::regprocedure, n.nspname, p.proname
FROM pg_range JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.deptype = 'i'
    AND d.refobjid IN (rngtypid, rngmultitypid) AND d.classid = 'pg_proc'::regclass
JOIN pg_proc p ON p.oid = d.objid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE rngtypid = %(oid)s
ORDER BY 1  -- functions first: their arguments are named by types
"""

_FORGET_GONE = """
DELETE FROM penstock.types m WHERE m.pipeline = %s AND m.source = %s AND NOT EXISTS (
    SELECT FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE t.oid = m.oid AND t.typname = m.type_name AND n.nspname = m.schema_name)
"""

# Nobody's but penstock's: whoever of its pipelines made it, for sources may share a type.
_IS_OURS = """
SELECT EXISTS (SELECT FROM penstock.types
               WHERE oid = %s AND (schema_name, type_name) = (%s, %s) AND made_by_us)
"""

# Tables with a column of a type, or of one that is made of it, however deep.
_WITH_COLUMNS = """
WITH RECURSIVE made_of(oid) AS (
    SELECT %s::oid
    UNION
    SELECT CASE WHEN d.classid = 'pg_type'::regclass THEN d.objid ELSE c.reltype END
    FROM made_of m JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = m.oid
    LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
    WHERE d.classid = 'pg_type'::regclass OR c.reltype <> 0
)
SELECT DISTINCT n.nspname::text, c.relname::text
FROM made_of m JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = m.oid
JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname <> 'penstock'
"""

_WORDS = {
    "enum": "an enum",
    "domain": "a domain",
    "composite": "a composite type",
    "range": "a range",
}


@dataclass(frozen=True)
class _Record:
    """What penstock.types says of a type of the target."""

    source_id: int
    id: int
    name: TableName
    made_by_us: bool
    shape: TypeShape


@dataclass(frozen=True)
class TypeRules:
    """What may become of types that are there.

    `may_take_away`: this table's rows lose what the source's lose. `losing` are all tables of the target of
    which that is so; those of others, and of the past, keep what they have. None: all do. With `sets_defaults`
    a domain gets the default that the source's has by now.
    """

    may_take_away: bool = True
    sets_defaults: bool = True
    losing: Callable[[], Collection[TableName]] | None = None


ALL_FOLLOW = TypeRules()


@dataclass
class TypePlan:
    """What is to be done so that the target has the types that a table needs.

    `replaced` are ids of the source's types, arrays among them, of which the target had another one of that
    name: columns that have it are still of the other one. `notes` have what types go without.
    """

    steps: list[Step] = field(default_factory=list)
    replaced: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def have_types(
    connection: Connection,
    owner: Owner | None,
    table: TableName,
    types: Sequence[TypeShape],
    rules: ExpressionRules = BUILTIN,
) -> None:
    """Have the target's types be what a table needs that is to be made.

    What they go without, whoever makes the table notes.

    Raises:
        TargetTableUnfit: a name is something else's at the target.
        TargetObjectsForeign: it is a type of another role's.
        SchemaChangeRefused: the target refuses.
        psycopg.Error: others are in the way, or the server went away.
    """
    if any(not each.is_array for each in types):
        with connection.transaction(), without_search_path(connection):
            plan = plan_types(connection, owner, table, types, ())
            run_steps(connection, plan.steps, table, "types that it needs", rules)


def needed_types(types: Sequence[TypeShape], columns: Iterable[int]) -> tuple[TypeShape, ...]:
    """Those that columns of such types need, however deep."""
    by_id = {each.id: each for each in types}
    wanted: set[int] = set()
    waiting = [number for number in columns if number in by_id]
    while waiting:
        number = waiting.pop()
        if number not in wanted:
            wanted.add(number)
            waiting += [part for part in by_id[number].parts if part in by_id]
    return tuple(each for each in types if each.id in wanted)


def plan_types(
    connection: Connection,
    owner: Owner | None,
    table: TableName,
    types: Sequence[TypeShape],
    before: Sequence[TypeShape],
    *,
    needed: Collection[int] | None = None,
    rules: TypeRules = ALL_FOLLOW,
) -> TypePlan:
    """What is to be done for `types`, of which the table had `before`.

    Of one that is not among the `needed` (None: all are) columns are there: where the type is not, they are
    text, and it is not made. Without an owner nothing is known of who has made what.

    Raises:
        TargetTableUnfit: a name is something else's at the target, or a type of its own would have to change.
        TargetObjectsForeign: it is a type of another role's.
        SchemaChangeRefused: rows that are to be kept would lose what they hold.
        psycopg.Error: the server went away.
    """
    used = [each for each in types if needed is None or each.id in needed]
    if used:
        # Those of an extension, too: where the target lacks it, somebody may have taken the name.
        refuse_foreign_types(connection, [_name(each) for each in used], table)
    wanted = [each for each in types if _can_be_made(each)]
    if not wanted:
        return TypePlan()
    planner = _Planner(connection, owner, table, wanted, before, needed, rules)
    planner.spelled = _spelled_anew(before, types)
    by_name = {each.qualified: each for each in wanted}
    for each in types_in_order(types):
        if each.qualified in by_name:
            planner.have(by_name[each.qualified])
    plan = planner.plan
    _replace_arrays(plan, [each for each in types if each.is_array])
    return plan


def _replace_arrays(plan: TypePlan, arrays: Sequence[TypeShape]) -> None:
    """An array is another one where its elements are; those may be arrays of multiranges in turn."""
    for _ in arrays:
        plan.replaced |= {each.id for each in arrays if plan.replaced & set(each.parts)}


def _can_be_made(shape: TypeShape) -> bool:
    """Arrays come with their elements, an extension's types with it; and others nobody can make."""
    return not shape.is_array and not shape.extension and shape.kind != "other"


def drop_unused_types(cursor: Cursor, owner: Owner) -> list[str]:
    """Drop types that penstock has made and nothing needs any more; their names.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    connection = cursor.connection
    cursor.execute(_FORGET_GONE, owner)
    dropped: list[str] = []
    while unused := cursor.execute(_UNUSED, owner).fetchall():
        for oid, schema, name in dict.fromkeys(unused):
            drop = sql.SQL("DROP TYPE {}").format(sql.Identifier(schema, name))
            kept = run_steps(connection, [Step(drop, "kept")], TableName(schema, name), "").notes
            cursor.execute("DELETE FROM penstock.types WHERE oid = %s", (oid,))
            if not kept:
                dropped.append(f"{schema}.{name}")
    return dropped


class _Planner:
    """Takes types one after the other, each after those it is made of."""

    def __init__(
        self,
        connection: Connection,
        owner: Owner | None,
        table: TableName,
        wanted: Sequence[TypeShape],
        before: Sequence[TypeShape],
        needed: Collection[int] | None,
        rules: TypeRules,
    ) -> None:
        self.plan = TypePlan()
        self._connection = connection
        self._owner = owner
        self._table = table
        self._needed = needed
        self._rules = rules
        self.spelled: dict[str, str] = {}  # how types that were renamed were written, and are now
        self._moves: dict[int, list[Step]] = {}  # of types that get another name
        self._before = {each.id: each for each in before if not each.is_array}
        names = dict.fromkeys(_name(each) for each in (*self._before.values(), *wanted))
        self._there = types_there(connection, names)
        self._records = _records(connection, owner) if owner is not None else []

    def have(self, wanted: TypeShape) -> None:
        """Plan what one needs."""
        was, name = self._before.get(wanted.id), _name(wanted)
        is_needed = self._needed is None or wanted.id in self._needed
        if was is not None and _name(was) != name:
            self._rename(was, wanted)
        found = self._there.get(name)
        if found is None:
            kept = self._under_another_name(was) if was is not None else None
            if was is not None and kept is not None:
                self._follow(was, wanted, kept)
            if is_needed:
                self._create(wanted)
        elif was is not None and found.kind == wanted.kind:
            self._follow(was, wanted, found)
        elif was is None or is_needed:
            self._use(wanted, found)

    def _under_another_name(self, was: TypeShape) -> TypeShape | None:
        """The target's own type that columns have where the source has renamed its own."""
        names = [each.name for each in self._records if each.source_id == was.id]
        name = names[0] if names else _name(was)
        found = types_there(self._connection, [name]).get(name)
        if found is None or found.kind != was.kind or self._is_ours(found):
            return None
        return found

    def _use(self, wanted: TypeShape, found: TypeShape) -> None:
        """A type of that name is there, of which the table has had none: it is used, replaced or refused."""
        mine = self._made_for(found)
        # Also where its definition reads the same: a part of it may be another one by now.
        is_old = mine is not None and mine.made_by_us and mine.source_id < wanted.id
        has_other_parts = not self.plan.replaced.isdisjoint(wanted.parts)
        if is_same_definition(found, wanted) and not has_other_parts:
            if is_old:
                self._set_default(wanted, found)
                found = found.model_copy(update={"default": wanted.default})
                self._record(wanted, made_by_us=True)
        elif is_old:
            self._replace(wanted, found)
            return
        elif _serves(found, wanted) and not has_other_parts:
            pass
        elif found.kind == wanted.kind == "enum" and _can_be_completed(found, wanted):
            nothing = wanted.model_copy(update={"labels": ()})
            self.plan.steps += _label_steps(_name(wanted), nothing, wanted, found)
            self._record(wanted, made_by_us=False)
        else:
            raise self._unfit(wanted, found, mine)
        self._note_parts(wanted, found)

    def _made_for(self, found: TypeShape) -> _Record | None:
        """The last of the source's types that this one of the target is for."""
        mine = [each for each in self._records if each.id == found.id]
        return max(mine, key=lambda each: each.source_id, default=None)

    def _create(self, wanted: TypeShape) -> None:
        """Without NOT NULL, as without checks: rows that the source has not would not hold them."""
        known = with_known_collations(self._connection, wanted)
        schemas = [
            wanted.schema_name,
            *([qualified(known.multirange)[0]] if known.multirange else []),
        ]
        for each in dict.fromkeys(schemas):
            self.plan.steps += schema_steps(self._connection, self._owner, each)
        self.plan.steps.append(Step(type_statement(sql.Identifier(*_name(wanted)), known)))
        made = known.model_copy(update={"not_null": False, "default": None})
        self._set_default(wanted, made)
        self._note_parts(wanted, made.model_copy(update={"default": wanted.default}))
        self._record(wanted, made_by_us=True)

    def _set_default(self, wanted: TypeShape, found: TypeShape) -> None:
        """Give a domain the source's default, or none where that is not taken over."""
        if not any(part.is_default for part in other_parts(wanted, found)):
            return
        domain = sql.Identifier(*_name(wanted))
        drop = Step(sql.SQL("ALTER DOMAIN {} DROP DEFAULT").format(domain))
        if wanted.default is None:
            self.plan.steps.append(drop)
            return
        undone = f"type {wanted.title} goes without its default"
        default = sql.SQL(enclosed(wanted.default))
        self.plan.steps.append(
            Step(
                sql.SQL("ALTER DOMAIN {} SET DEFAULT {}").format(domain, default),
                undone,
                (drop,),
                screened=Screened(None, (Expression("default", wanted.default),)),
                left_out=f"{undone}: not taken over",
                without=(drop,),
            )
        )

    def _note_parts(self, wanted: TypeShape, *found: TypeShape) -> None:
        lines = [part.line for each in found for part in other_parts(wanted, each)]
        self.plan.notes += [each for each in dict.fromkeys(lines) if each not in self.plan.notes]

    def _replace(self, wanted: TypeShape, found: TypeShape) -> None:
        """The other one keeps the columns that it has; unused, it is dropped in the end."""
        name = _name(found)
        moved = _old_name(name, found.id)
        for what, *called in self._connection.execute(_OF_RANGE, {"oid": found.id}).fetchall():
            other = sql.Identifier(_old_name(TableName(*called), found.id).name)
            renamed = sql.SQL("ALTER {} RENAME TO {}").format(sql.SQL(what), other)
            self.plan.steps.append(Step(renamed))
        self.plan.steps += _move_type(name, moved)
        if self._owner is not None:
            rename = sql.SQL("UPDATE penstock.types SET type_name = {} WHERE oid = {}")
            statement = rename.format(sql.Literal(moved.name), sql.Literal(found.id))
            self.plan.steps.append(Step(statement, is_record=True))
        self.plan.replaced.add(wanted.id)
        self._create(wanted)

    def _rename(self, was: TypeShape, wanted: TypeShape) -> None:
        old, new = _name(was), _name(wanted)
        found = self._there.get(old)
        if found is None or found.kind != was.kind or new in self._there:
            return
        if not self._is_ours(found):
            return  # it keeps its name, and is looked for under that
        if old.schema != new.schema:
            self.plan.steps += schema_steps(self._connection, self._owner, new.schema)
        self._moves[wanted.id] = list(_move_type(old, new))
        self.plan.steps += self._moves[wanted.id]
        found = self._there.pop(old)
        if found.kind == "range":  # its multirange keeps the name that it has
            own = sql.Identifier(*multirange_of(found)).as_string(None)
            found = found.model_copy(update={"multirange": own})
        self._there[new] = found
        self._record(was, made_by_us=False, name=new)

    def _follow(self, was: TypeShape, wanted: TypeShape, found: TypeShape) -> None:
        """The same type of the source, which was altered."""
        stored = [_picture(each.shape) for each in self._records if each.source_id == wanted.id]
        known = stored[0] if stored else _picture(was)
        if _picture(was) == _picture(wanted):
            return
        if known == _picture(wanted):  # another table has come by this change already
            self._note_parts(wanted, found)
        if known != _picture(was) or known == _picture(wanted):
            return
        # What it is made of may be called differently, and is the same: the columns of that are, too.
        was = _made_of(was, self.spelled)
        if self._is_ours(found):
            self._alter(was, wanted, _made_of(found, self.spelled))
            self._record(wanted, made_by_us=False)
            return
        # How they differed when the table was adopted is a person's choice, and rows have arrived since.
        if not is_like(was, wanted) and not _serves(found, wanted):
            self.plan.steps += self._complete(was, wanted, found)
        self._note_parts(wanted, found)
        self._record(wanted, made_by_us=False, name=_name(found))

    def _alter(self, was: TypeShape, wanted: TypeShape, found: TypeShape) -> None:
        name = _name(wanted)
        if wanted.kind == "enum":
            self.plan.steps += _label_steps(name, was, wanted, found)
            return
        known = with_known_collations(self._connection, wanted)
        if wanted.kind == "composite":
            steps = list(_field_steps(name, was, known, found))
            lost = _lost_fields(was, wanted, found)
            if lost:
                self._refuse_loss(wanted, found, lost, steps)
            self.plan.steps += steps
        elif self._rules.sets_defaults:
            self._set_default(wanted, found)
            found = found.model_copy(update={"default": wanted.default})
        self._note_parts(wanted, found, known)

    def _complete(self, was: TypeShape, wanted: TypeShape, found: TypeShape) -> list[Step]:
        """A type of the target's own, which may be in tables of its own: labels are added, and no more."""
        name = _name(found)  # it keeps that, whatever the source's is called
        if wanted.kind != "enum":
            steps = list(_field_steps(name, was, wanted, found))
            raise self._unfit(wanted, found, None, steps)
        # Rows here hold a label by the name that it had.
        known, there = {each.id: each.name for each in was.labels}, _labels(found)
        renamed = [
            each
            for each in wanted.labels
            if known.get(each.id, each.name) != each.name not in there
        ]
        if renamed or not _can_be_completed(found, wanted):
            raise self._unfit(wanted, found, None, list(_label_steps(name, was, wanted, found)))
        nothing = wanted.model_copy(update={"labels": ()})
        return list(_label_steps(name, nothing, wanted, found))

    def _refuse_loss(
        self, wanted: TypeShape, found: TypeShape, lost: list[str], steps: list[Step]
    ) -> None:
        """Keeping an attribute is no way out: the source's text does not read as the type then.

        Raises:
            SchemaChangeRefused: rows here are to keep what the attributes hold.
        """
        if not self._rules.may_take_away:
            who = "this table keeps what the source's loses"
        else:
            losing = self._rules.losing
            rows = self._connection.execute(_WITH_COLUMNS, (found.id,)).fetchall() if losing else []
            kept = {TableName(*row) for row in rows} - set(losing() if losing else ())
            if not kept:
                return
            named = ", ".join(sorted(map(str, kept)))
            who = f"tables of the target have it that keep what the source's lose: {named}"
        raise SchemaChangeRefused(
            f"type {wanted.title} has lost or narrowed {', '.join(lost)} at the source, and {who}",
            str(self._table),
            "run at the target, if what the rows there hold may go:"
            f" {_spelled([*self._moves.get(wanted.id, ()), *steps])};"
            " the table then goes on by itself",
        )

    def _is_ours(self, found: TypeShape) -> bool:
        """Whether penstock has made it, for whichever source; without an owner nobody knows."""
        if self._owner is None:
            return True
        row = self._connection.execute(_IS_OURS, (found.id, *_name(found))).fetchone()
        return row is not None and bool(row[0])

    def _record(
        self, wanted: TypeShape, *, made_by_us: bool, name: TableName | None = None
    ) -> None:
        """Note it; what penstock has made it has made, whatever is noted later."""
        if self._owner is None:
            return
        values = (*self._owner, wanted.id, made_by_us, wanted.model_dump_json())
        statement = sql.SQL(
            "INSERT INTO penstock.types"
            " (pipeline, source, source_oid, made_by_us, shape, oid, schema_name, type_name)"
            " SELECT {}, t.oid, n.nspname, t.typname"
            " FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
            " WHERE n.nspname = {} AND t.typname = {}"
            " ON CONFLICT (pipeline, source, source_oid) DO UPDATE SET shape = excluded.shape,"
            " oid = excluded.oid, schema_name = excluded.schema_name,"
            " type_name = excluded.type_name, made_by_us = excluded.made_by_us"
            " OR (types.made_by_us AND types.oid = excluded.oid)"
        ).format(
            sql.SQL(", ").join(
                sql.SQL("{}::jsonb" if place == 4 else "{}").format(sql.Literal(value))
                for place, value in enumerate(values)
            ),
            *map(sql.Literal, name or _name(wanted)),
        )
        self.plan.steps.append(Step(statement, is_record=True))

    def _unfit(
        self,
        wanted: TypeShape,
        found: TypeShape,
        mine: _Record | None,
        steps: Sequence[Step] = (),
    ) -> TargetTableUnfit:
        """`steps` are what a person can run where the target's own type is to follow."""
        title = wanted.title
        if mine is not None and mine.source_id == wanted.id:
            return TargetTableUnfit(
                f"type {title} has changed at the source, and the target has not come to that yet",
                str(self._table),
                "nothing; it is tried again once the tables that have the type have followed",
            )
        is_other = f"and at the target {found.title} is {_describe(found)}"
        if steps:
            return TargetTableUnfit(
                f"the table needs type {title}, {_describe(wanted)}, {is_other}, which penstock has not made",
                str(self._table),
                f"run at the target, if its own tables can do with it: {_spelled(steps)}",
            )
        make = type_statement(sql.Identifier(*_name(wanted)), wanted).as_string(None)
        return TargetTableUnfit(
            f"the table needs type {title}, {_describe(wanted)}, {is_other}",
            str(self._table),
            f"rename or drop what has that name at the target, or make it so: {make}",
        )


def _spelled_anew(before: Sequence[TypeShape], after: Sequence[TypeShape]) -> dict[str, str]:
    """How types, and arrays of them, are written that kept all but their names."""
    now = {each.id: each.spelled for each in after if each.spelled}
    found = {each.spelled: now.get(each.id, each.spelled) for each in before if each.spelled}
    changed = {was: spelled for was, spelled in found.items() if was != spelled}
    return {f"{was}[]": f"{spelled}[]" for was, spelled in changed.items()} | changed


def _made_of(shape: TypeShape, spelled: Mapping[str, str]) -> TypeShape:
    """A type, its parts written as they are after a change."""
    fields = tuple(
        each.model_copy(update={"type": spelled.get(each.type, each.type)}) for each in shape.fields
    )
    return shape.model_copy(update={"base": spelled.get(shape.base, shape.base), "fields": fields})


def is_same_definition(one: TypeShape, other: TypeShape) -> bool:
    """Whether two types hold the same values, written and ordered in the same way."""
    return (
        is_like(one, other)
        and one.collation == other.collation
        and (one.kind != "range" or multirange_of(one) == multirange_of(other))
        and [each.collation for each in one.fields] == [each.collation for each in other.fields]
    )


def is_like(one: TypeShape, other: TypeShape) -> bool:
    """Whether two types hold the same values, written in the same way."""
    return (
        one.kind == other.kind
        and one.base == other.base
        and [each.name for each in one.labels] == [each.name for each in other.labels]
        and [(each.name, each.type) for each in one.fields]
        == [(each.name, each.type) for each in other.fields]
    )


def holds(found: TypeShape, wanted: TypeShape) -> bool:
    """Whether every value of one type has a place in the other."""
    if found.kind != wanted.kind:
        return False
    if found.kind == "enum":
        return _is_within(_labels(wanted), _labels(found))
    return found.kind == "domain" and is_wider(wanted.base, found.base)


def _serves(found: TypeShape, wanted: TypeShape) -> bool:
    """Whether a type of the target's own can be left as it is."""
    return is_like(found, wanted) or holds(found, wanted)


def _spelled(steps: Iterable[Step]) -> str:
    return "; ".join(step.statement.as_string(None) for step in steps if not step.is_record)


def _can_be_completed(found: TypeShape, wanted: TypeShape) -> bool:
    """Whether labels that both have are in the same order: those that are missing can be added."""
    both = set(_labels(found)) & set(_labels(wanted))
    return [each for each in _labels(found) if each in both] == [
        each for each in _labels(wanted) if each in both
    ]


def _is_within(few: list[str], many: list[str]) -> bool:
    rest = iter(many)
    return all(each in rest for each in few)


def _labels(shape: TypeShape) -> list[str]:
    return [each.name for each in shape.labels]


def _describe(shape: TypeShape) -> str:
    described = _WORDS.get(shape.kind, "the row type of a table, or a type that cannot be made")
    if shape.base:
        return f"{described} over {shape.base}"
    if shape.labels:
        return f"{described} of {len(shape.labels)} labels"
    fields = ", ".join(f"{each.name} {each.type}" for each in shape.fields)
    return f"{described} ({fields})" if shape.kind == "composite" else described


def _picture(shape: TypeShape) -> dict[str, Any]:
    """What it is; in which order its parts are listed says nothing."""
    return shape.model_dump(exclude={"parts"})


def _name(shape: TypeShape) -> TableName:
    return TableName(shape.schema_name, shape.name)


def _old_name(name: TableName, number: int) -> TableName:
    """What a type is called that has lost its name to another one."""
    ending = f"_old_{number}"
    start = name.name.encode()[: LONGEST_NAME - len(ending)].decode(errors="ignore")
    return TableName(name.schema, start + ending)


def _records(connection: Connection, owner: Owner) -> list[_Record]:
    return [
        _Record(
            source_id,
            oid,
            TableName(schema, name),
            made_by_us,
            TypeShape.model_validate(shape, strict=False),
        )
        for source_id, oid, schema, name, made_by_us, shape in connection.execute(_RECORDS, owner)
    ]


def _move_type(old: TableName, new: TableName) -> Iterator[Step]:
    if old.schema != new.schema:
        yield Step(
            sql.SQL("ALTER TYPE {} SET SCHEMA {}").format(
                sql.Identifier(*old), sql.Identifier(new.schema)
            )
        )
    if old.name != new.name:
        yield Step(
            sql.SQL("ALTER TYPE {} RENAME TO {}").format(
                sql.Identifier(new.schema, old.name), sql.Identifier(new.name)
            )
        )


def _label_steps(
    name: TableName, before: TypeShape, after: TypeShape, found: TypeShape
) -> Iterator[Step]:
    """Add and rename labels. One that was added can be used once the transaction has ended."""
    enum, labels = sql.Identifier(*name), _labels(found)
    known = {label.id: label.name for label in before.labels}
    for label in after.labels:
        was = known.get(label.id)
        if was is not None and was != label.name and was in labels and label.name not in labels:
            labels[labels.index(was)] = label.name
            yield Step(
                sql.SQL("ALTER TYPE {} RENAME VALUE {} TO {}").format(
                    enum, sql.Literal(was), sql.Literal(label.name)
                )
            )
    names = _labels(after)
    for place, label in enumerate(after.labels):
        if label.id in known or label.name in labels:
            continue
        add = sql.SQL("ALTER TYPE {} ADD VALUE {}").format(enum, sql.Literal(label.name))
        follower = next((each for each in names[place + 1 :] if each in labels), None)
        if follower is not None:
            labels.insert(labels.index(follower), label.name)
            add = sql.SQL("{} BEFORE {}").format(add, sql.Literal(follower))
        else:
            labels.append(label.name)
        yield Step(add)


def _field_steps(
    name: TableName, before: TypeShape, after: TypeShape, found: TypeShape
) -> Iterator[Step]:
    """Drop, rename, alter and add attributes; what the target has already is not done again."""
    if is_like(found, after) and not is_like(found, before):
        return
    there = {each.name: each.type for each in found.fields}
    pairs = match_by_id(before.fields, after.fields)
    for was, now in pairs:
        if was is not None and now is None and was.name in there:
            del there[was.name]
            yield _alter_type(name, "DROP ATTRIBUTE {}", was.name)
    for was, now in pairs:
        if now is not None:
            yield from _attribute_steps(name, was or now, now, there)


def _attribute_steps(
    name: TableName, was: FieldShape, now: FieldShape, there: dict[str, str]
) -> Iterator[Step]:
    """Rename, add or alter one attribute; `there` are the types of those that the target will have by then."""
    if was.name != now.name and was.name in there:
        there[now.name] = there.pop(was.name)
        yield _alter_type(name, "RENAME ATTRIBUTE {} TO {}", was.name, now.name)
    kind = now.type if now.collation is None else f"{now.type} COLLATE {now.collation}"
    if now.name not in there:
        yield _alter_type(name, "ADD ATTRIBUTE {} {kind}", now.name, kind=kind)
    elif was.type != now.type != there[now.name]:
        yield _alter_type(name, "ALTER ATTRIBUTE {} TYPE {kind}", now.name, kind=kind)


def _alter_type(name: TableName, action: str, *names: str, kind: str = "") -> Step:
    named = sql.SQL(action).format(*map(sql.Identifier, names), kind=sql.SQL(kind))
    return Step(sql.SQL("ALTER TYPE {} {} CASCADE").format(sql.Identifier(*name), named))


def _lost_fields(before: TypeShape, after: TypeShape, found: TypeShape) -> list[str]:
    """Attributes of the target's type whose values those steps take away, or narrow."""
    if is_like(found, after):
        return []
    there = {each.name: each.type for each in found.fields}
    return [
        was.name
        for was, now in match_by_id(before.fields, after.fields)
        if was is not None
        and was.name in there
        and (
            now is None
            or (was.type != now.type != there[was.name] and not is_wider(there[was.name], now.type))
        )
    ]
