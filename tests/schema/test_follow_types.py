"""Types at the target are what the source's are by definition, whatever has their names."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from fix_follow import follow_at, rows_of, shape_of, shapes
from fix_postgres import only_new
from penstock.errors import SchemaChangeRefused, TargetTableUnfit
from penstock.schema.describe import description_of
from penstock.sinks.postgres.ddl.alter import Others
from penstock.sinks.postgres.ddl.create import create_table
from penstock.sinks.postgres.ddl.user_types import drop_unused_types, have_types
from penstock.sinks.postgres.state.objects import statements

if TYPE_CHECKING:
    from fix_postgres import Database
    from penstock.schema.shape import TableShape

OWNER = ("shop", "main")

KINDS = {
    "domain": ("DOMAIN {} AS numeric(8,2)", "DOMAIN {} AS numeric(12,4)", "1.25", "1.2345"),
    "enum": ("TYPE {} AS ENUM ('a', 'b')", "TYPE {} AS ENUM ('c', 'a')", "a", "c"),
    "composite": ("TYPE {} AS (x int)", "TYPE {} AS (x int, y text)", "(1)", '(1,"a b")'),
    "range": (
        "TYPE {} AS RANGE (SUBTYPE = int)",
        "TYPE {} AS RANGE (SUBTYPE = numeric)",
        "[1,2)",
        "[1.5,2.5)",
    ),
    "another kind": ("DOMAIN {} AS int", "TYPE {} AS ENUM ('a', 'c')", "1", "c"),
}


def make(target: Database, shape: TableShape) -> list[str]:
    """Make the table as a copy makes it; what is noted on it."""
    with target.connect() as connection:
        connection.execute(statements())
        have_types(connection, OWNER, shape.table, shape.types)
        return create_table(connection, description_of(shape), shape.table, None)


def tidy(target: Database) -> list[str]:
    with target.connect() as connection:
        return drop_unused_types(connection.cursor(), OWNER)


def types_of(database: Database) -> list[tuple[str, str]]:
    return database.query(
        "SELECT typname, typtype FROM pg_type t WHERE typnamespace = 'public'::regnamespace AND NOT"
        " EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid) AND typrelid NOT IN"
        " (SELECT oid FROM pg_class WHERE relkind <> 'c') ORDER BY 1"
    )


@pytest.mark.parametrize("array", ["", "[]"], ids=["plain", "array"])
@pytest.mark.parametrize("kind", KINDS)
def test_type_made_anew_under_its_old_name_is_another_one(
    kind: str, array: str, source: Database, target: Database
):
    first, second, _, value = KINDS[kind]
    source.execute(f"CREATE {first.format('m')}; CREATE TABLE t (id int PRIMARY KEY, v m{array})")
    make(target, shape_of(source))
    before = shape_of(source)

    word = second.split()[0] if kind != "another kind" else "DOMAIN"
    source.execute(
        f"ALTER TABLE t ALTER v TYPE text; DROP {word} m; CREATE {second.format('m')};"
        f"ALTER TABLE t ALTER v TYPE m{array} USING v::m{array}"
    )
    follow_at(target, before, shape_of(source), owner=OWNER)
    tidy(target)

    literal = f"{{{value!r}}}".replace("'", '"') if array and kind != "composite" else value
    literal = '{"(1,\\"a b\\")"}' if array and kind == "composite" else literal
    for database in (source, target):
        database.execute("INSERT INTO t VALUES (2, %s)", literal)
    assert rows_of(target, shape_of(target)) == rows_of(source, shape_of(source))
    assert types_of(target) == types_of(source)
    assert follow_at(target, before, shape_of(source), owner=OWNER).statements == []


def test_type_of_another_table_that_is_behind_is_not_touched(source: Database, target: Database):
    source.execute(
        "CREATE DOMAIN m AS numeric(8,2); CREATE TABLE t (id int PRIMARY KEY, v m);"
        "CREATE TABLE u (id int PRIMARY KEY, v m)"
    )
    for shape in shapes(source).values():
        make(target, shape)
    before = {shape.name: shape for shape in shapes(source).values()}
    source.execute(
        "ALTER TABLE t ALTER v TYPE numeric; ALTER TABLE u ALTER v TYPE numeric; DROP DOMAIN m;"
        "CREATE DOMAIN m AS numeric(12,4); ALTER TABLE t ALTER v TYPE m; ALTER TABLE u ALTER v TYPE m"
    )
    after = {shape.name: shape for shape in shapes(source).values()}

    follow_at(target, before["t"], after["t"], owner=OWNER)
    assert tidy(target) == []
    target.execute("INSERT INTO t VALUES (1, 1.2345); INSERT INTO u VALUES (1, 1.25)")
    follow_at(target, before["u"], after["u"], before["u"].table, owner=OWNER)
    (dropped,) = tidy(target)

    assert dropped.startswith("public.m_old_")
    assert target.query("SELECT v::text FROM t UNION ALL SELECT v::text FROM u") == [
        ("1.2345",),
        ("1.2500",),
    ]


FIELDS = {
    "add": "ALTER TYPE ct ADD ATTRIBUTE z numeric(5,2)",
    "drop": "ALTER TYPE ct DROP ATTRIBUTE x",
    "rename": "ALTER TYPE ct RENAME ATTRIBUTE x TO xx",
    "several": "ALTER TYPE ct ADD ATTRIBUTE z text, DROP ATTRIBUTE y; ALTER TYPE ct RENAME ATTRIBUTE x TO y",
    "drop and add": "ALTER TYPE ct DROP ATTRIBUTE x; ALTER TYPE ct ADD ATTRIBUTE x text",
}


@pytest.mark.parametrize("name", FIELDS)
def test_attributes_of_a_composite_are_followed(name: str, source: Database, target: Database):
    source.execute(
        "CREATE TYPE ct AS (x int, y text); CREATE TABLE t (id int PRIMARY KEY, v ct, w ct[]);"
        "CREATE TABLE u (id int PRIMARY KEY, v ct)"
    )
    for shape in shapes(source).values():
        make(target, shape)
    rows = "INSERT INTO t VALUES (1, '(7,seven)', '{\"(1,one)\"}'), (2, NULL, '{}')"
    source.execute(rows)
    target.execute(rows)
    before = {shape.name: shape for shape in shapes(source).values()}

    source.execute(FIELDS[name])
    after = {shape.name: shape for shape in shapes(source).values()}
    followed = follow_at(target, before["t"], after["t"], owner=OWNER)
    of_other = follow_at(target, before["u"], after["u"], before["u"].table, owner=OWNER)

    assert followed.notes == []
    assert of_other.statements == [], "another table comes by the same change"
    assert rows_of(target, shape_of(target)) == rows_of(source, shape_of(source))
    for database in (source, target):
        database.execute("INSERT INTO t SELECT 3, v FROM t WHERE id = 1")
    assert rows_of(target, shape_of(target)) == rows_of(source, shape_of(source))


NESTED = {
    "attribute": "TYPE outer_type AS (x inner_type, y text)",
    "attribute of arrays": "TYPE outer_type AS (x inner_type[], y text)",
    "domain": "DOMAIN outer_type AS inner_type",
    "array of a domain": "DOMAIN outer_type AS inner_type[]",
}
NAMED_ANEW = {
    "renamed": "ALTER TYPE inner_type RENAME TO other_type",
    "moved": "CREATE SCHEMA s; ALTER TYPE inner_type SET SCHEMA s",
    "swapped": (
        "CREATE TYPE other_type AS (k int); ALTER TYPE inner_type RENAME TO third_type;"
        "ALTER TYPE other_type RENAME TO inner_type; ALTER TABLE t ADD z inner_type"
    ),
}


@pytest.mark.parametrize(
    ("name", "ours"),
    # Of the target's own, the name that another of the source's has now is not free.
    [*((name, True) for name in NAMED_ANEW), ("renamed", False), ("moved", False)],
)
@pytest.mark.parametrize("nested", NESTED)
@only_new
def test_type_is_the_same_when_what_it_is_made_of_has_another_name(
    nested: str, name: str, ours: bool, source: Database, target: Database
):
    types = f"CREATE TYPE inner_type AS (a int); CREATE {NESTED[nested]}"
    source.execute(
        f"{types}; CREATE TABLE t (id int PRIMARY KEY, v outer_type, w outer_type[]);"
        "CREATE TABLE u (id int PRIMARY KEY, w outer_type)"
    )
    if not ours:
        target.execute(types)
    for shape in shapes(source).values():
        make(target, shape)
    before = {shape.name: shape for shape in shapes(source).values()}

    source.execute(NAMED_ANEW[name])
    after = {shape.name: shape for shape in shapes(source).values()}
    for table, shape in before.items():
        follow_at(target, shape, after[table], shape.table, owner=OWNER)
    if ours:
        assert {c.name: c.type for c in shape_of(target).columns} == {
            c.name: c.type for c in after["t"].columns
        }
        # And what comes later is followed as ever.
        source.execute("ALTER TABLE u ADD more outer_type")
        before, after = after, {shape.name: shape for shape in shapes(source).values()}
        follow_at(target, before["u"], after["u"], before["u"].table, owner=OWNER)
    assert follow_at(target, before["t"], after["t"], owner=OWNER).statements == []


def test_table_that_is_behind_undoes_nothing(source: Database, target: Database):
    source.execute(
        "CREATE TYPE ct AS (x int, y text); CREATE TABLE t (id int PRIMARY KEY, v ct);"
        "CREATE TABLE u (id int PRIMARY KEY, v ct)"
    )
    for shape in shapes(source).values():
        make(target, shape)
    pictures = [{shape.name: shape for shape in shapes(source).values()}]
    for ddl in (
        "ALTER TYPE ct DROP ATTRIBUTE y",
        "ALTER TYPE ct ADD ATTRIBUTE y text",
        "ALTER TYPE ct ADD ATTRIBUTE z int",
    ):
        source.execute(ddl)
        pictures.append({shape.name: shape for shape in shapes(source).values()})
    for before, after in itertools.pairwise(pictures):
        follow_at(target, before["t"], after["t"], owner=OWNER)
    target.execute("INSERT INTO t VALUES (1, '(1,one,2)')")

    for before, after in itertools.pairwise(pictures):
        follow_at(target, before["u"], after["u"], before["u"].table, owner=OWNER)

    assert target.value("SELECT v::text FROM t") == "(1,one,2)"


PAIR = (
    "CREATE TYPE ct AS (x int, y text); CREATE TABLE t (id int PRIMARY KEY, v ct);"
    "CREATE TABLE u (id int PRIMARY KEY, w ct[])"
)
LOSSES = {
    "drop": "ALTER TYPE ct DROP ATTRIBUTE y",
    "rename and drop": "ALTER TYPE ct RENAME TO pair; ALTER TYPE pair DROP ATTRIBUTE y",
    "anew": "ALTER TYPE ct DROP ATTRIBUTE y; ALTER TYPE ct ADD ATTRIBUTE y int",
}


def made_pair(source: Database, target: Database) -> dict[str, TableShape]:
    """Two tables with a composite, each with a row at the target."""
    source.execute(PAIR)
    found = {shape.name: shape for shape in shapes(source).values()}
    for shape in found.values():
        make(target, shape)
    target.execute(
        "INSERT INTO t VALUES (1, '(7,kept)'); INSERT INTO u VALUES (1, '{\"(8,kept)\"}')"
    )
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_table_that_keeps_what_the_source_drops_stops_when_its_type_loses_an_attribute(
    name: str, source: Database, target: Database
):
    before = made_pair(source, target)
    source.execute(LOSSES[name])
    after = shape_of(source)

    with pytest.raises(
        SchemaChangeRefused, match="has lost or narrowed y at the source"
    ) as refused:
        follow_at(target, before["t"], after, owner=OWNER, policy="additive")

    assert 'DROP ATTRIBUTE "y" CASCADE' in refused.value.do
    assert target.value("SELECT v::text FROM t") == "(7,kept)"
    # A person does what the message says, and it goes on.
    target.execute(refused.value.do.partition(": ")[2].rpartition(";")[0])
    assert follow_at(target, before["t"], after, owner=OWNER, policy="additive").notes == []


def test_table_that_keeps_what_the_source_drops_follows_what_takes_nothing_away(
    source: Database, target: Database
):
    before = made_pair(source, target)
    source.execute("ALTER TYPE ct ADD ATTRIBUTE z int; ALTER TYPE ct RENAME ATTRIBUTE x TO xx")

    followed = follow_at(target, before["t"], shape_of(source), owner=OWNER, policy="additive")

    assert len(followed.statements) == 2
    assert target.value("SELECT v::text FROM t") == "(7,kept,)"


def test_type_does_not_lose_an_attribute_while_another_table_keeps_it(
    source: Database, target: Database
):
    before = made_pair(source, target)
    target.execute(
        "CREATE TYPE whole AS (c ct); CREATE TABLE mine (w whole[]);"
        'INSERT INTO mine VALUES (\'{"(\\"(9,kept)\\")"}\')'
    )
    source.execute("ALTER TYPE ct DROP ATTRIBUTE y")
    after = shape_of(source)

    with pytest.raises(SchemaChangeRefused, match=r"keep what the source's lose: public\.mine, "):
        follow_at(target, before["t"], after, owner=OWNER, losing=list)
    with pytest.raises(SchemaChangeRefused, match=r"lose: public\.mine(?!,)"):
        follow_at(target, before["t"], after, owner=OWNER, losing=lambda: [before["u"].table])
    target.execute("DROP TABLE mine")
    follow_at(target, before["t"], after, owner=OWNER, losing=lambda: [before["u"].table])

    assert target.query("SELECT v::text FROM t UNION ALL SELECT w::text FROM u") == [
        ("(7)",),
        ("{(8)}",),
    ]


@pytest.mark.parametrize("name", [*LOSSES, "add", "rename"])
def test_composite_of_the_targets_own_is_never_altered(
    name: str, source: Database, target: Database
):
    target.execute(
        "CREATE TYPE ct AS (x int, y text); CREATE TABLE mine (v ct);"
        "INSERT INTO mine VALUES ('(9,kept)')"
    )
    before = made_pair(source, target)

    source.execute({**LOSSES, **FIELDS}[name])
    with pytest.raises(TargetTableUnfit, match="at the target"):
        follow_at(target, before["t"], shape_of(source), owner=OWNER)

    assert target.query("SELECT v::text FROM mine UNION ALL SELECT v::text FROM t") == [
        ("(9,kept)",),
        ("(7,kept)",),
    ]


def test_type_of_the_targets_own_keeps_its_name_and_labels_and_gets_those_that_it_lacks(
    source: Database, target: Database
):
    make_it = "CREATE TYPE e AS ENUM ('a', 'b')"
    target.execute(f"{make_it}; CREATE TABLE mine (v e); INSERT INTO mine VALUES ('a')")
    source.execute(f"{make_it}; CREATE TABLE t (id int PRIMARY KEY, v e)")
    make(target, shape_of(source))
    pictures = [shape_of(source)]
    for ddl in (
        "ALTER TYPE e ADD VALUE 'c'",
        "ALTER TYPE e RENAME VALUE 'a' TO 'aa'",
        "ALTER TYPE e RENAME TO other",
    ):
        source.execute(ddl)
        pictures.append(shape_of(source))

    follow_at(target, pictures[0], pictures[1], owner=OWNER)
    with pytest.raises(TargetTableUnfit, match="RENAME VALUE 'a' TO 'aa'"):
        follow_at(target, pictures[1], pictures[2], owner=OWNER)
    target.execute("ALTER TYPE e RENAME VALUE 'a' TO 'aa'")
    follow_at(target, pictures[1], pictures[2], owner=OWNER)
    follow_at(target, pictures[2], pictures[3], owner=OWNER)

    assert types_of(target) == [("e", "e")]
    target.execute("INSERT INTO t VALUES (1, 'c'), (2, 'aa')")


PARTS = {
    "domain": (
        "CREATE COLLATION own FROM \"C\"; CREATE DOMAIN m AS text COLLATE own DEFAULT 'x' NOT NULL",
        "CREATE DOMAIN m AS varchar(255)",
        "ALTER DOMAIN m SET DEFAULT 'y'",
        "ALTER DOMAIN m DROP NOT NULL",
    ),
    "composite": (
        'CREATE COLLATION own FROM "C"; CREATE TYPE m AS (a text COLLATE own, b int)',
        "CREATE TYPE m AS (a varchar(255), b bigint)",
    ),
}


@only_new
@pytest.mark.parametrize("policy", ["apply", "additive", "stop"])
@pytest.mark.parametrize("kind", PARTS)
def test_type_of_the_targets_own_stops_no_table_while_the_source_changes_no_values(
    kind: str, policy: str, source: Database, target: Database
):
    at_source, at_target, *later = PARTS[kind]
    table = "CREATE TABLE t (id int PRIMARY KEY, v m)"
    source.execute(f"{at_source}; {table}")
    target.execute(f"{at_target}; {table}")
    with target.connect() as connection:
        connection.execute(statements())
    pictures = [without_parts(shape_of(source)), shape_of(source)]
    for ddl in (*later, "ALTER TYPE m RENAME TO mm"):
        source.execute(ddl)
        pictures.append(shape_of(source))

    followed = [
        follow_at(target, before, after, owner=OWNER, policy=policy, made_by_us=False)
        for before, after in itertools.pairwise(pictures)
    ]

    assert [each.statements for each in followed] == [[]] * len(followed)
    assert any("collation default, wanted public.own" in note for note in followed[0].notes)
    assert types_of(target) == [("m", "d" if kind == "domain" else "c")]


RENAMED = {
    "one after the other": [
        "ALTER TYPE e RENAME TO other",
        "ALTER TYPE other ADD VALUE 'c'",
        "ALTER TYPE other RENAME TO third; ALTER TYPE third SET SCHEMA elsewhere",
        "ALTER TYPE elsewhere.third ADD VALUE 'd' BEFORE 'a'",
    ],
    "at once": [
        "ALTER TYPE e RENAME TO other; ALTER TYPE other ADD VALUE 'c'",
        "ALTER TYPE other RENAME TO third; ALTER TYPE third ADD VALUE 'd' BEFORE 'a'",
    ],
    "and back": [
        "ALTER TYPE e RENAME TO other",
        "ALTER TYPE other RENAME TO e",
        "ALTER TYPE e ADD VALUE 'c'",
        "ALTER TYPE e ADD VALUE 'd' BEFORE 'a'",
    ],
}


@only_new
@pytest.mark.parametrize("name", RENAMED)
def test_enum_of_the_targets_own_gets_labels_after_the_source_has_renamed_its_own(
    name: str, source: Database, target: Database
):
    make_it = "CREATE TYPE e AS ENUM ('a', 'b')"
    tables = "CREATE TABLE t (id int PRIMARY KEY, v e); CREATE TABLE u (id int PRIMARY KEY, v e[])"
    source.execute(f"{make_it}; {tables}; CREATE SCHEMA elsewhere")
    target.execute(f"{make_it}; {tables}")
    with target.connect() as connection:
        connection.execute(statements())
    pictures = [{shape.name: shape for shape in shapes(source).values()}]
    for ddl in RENAMED[name]:
        source.execute(ddl)
        pictures.append({shape.name: shape for shape in shapes(source).values()})

    for before, after in itertools.pairwise(pictures):
        for each in ("t", "u"):
            options = {"owner": OWNER, "made_by_us": False}
            follow_at(target, before[each], after[each], before[each].table, **options)
            again = follow_at(target, before[each], after[each], before[each].table, **options)
            assert again.statements == []

    assert types_of(target) == [("e", "e")]
    assert target.value("SELECT enum_range(NULL::e)::text") == "{d,a,b,c}"
    assert tidy(target) == []


@only_new
def test_label_that_cannot_be_added_to_the_targets_own_enum_is_said_under_its_name_there(
    source: Database, target: Database
):
    make_it = "CREATE TYPE e AS ENUM ('a', 'b'); CREATE TABLE t (id int PRIMARY KEY, v e)"
    source.execute(make_it)
    target.execute(make_it)
    with target.connect() as connection:
        connection.execute(statements())
    pictures = [shape_of(source)]
    for ddl in ("ALTER TYPE e RENAME TO other", "ALTER TYPE other RENAME VALUE 'a' TO 'aa'"):
        source.execute(ddl)
        pictures.append(shape_of(source))

    follow_at(target, pictures[0], pictures[1], owner=OWNER, made_by_us=False)
    with pytest.raises(TargetTableUnfit, match=r'ALTER TYPE "public"\."e" RENAME VALUE'):
        follow_at(target, pictures[1], pictures[2], owner=OWNER, made_by_us=False)


@only_new
def test_type_that_another_source_has_made_is_followed(source: Database, target: Database):
    before = made_pair(source, target)
    source.execute("ALTER TYPE ct ADD ATTRIBUTE z int")

    follow_at(target, before["t"], shape_of(source), owner=("shop", "second"))

    assert target.value("SELECT v::text FROM t") == "(7,kept,)"


COLLATED = (
    "CREATE COLLATION own FROM \"C\"; CREATE DOMAIN d AS text COLLATE own DEFAULT lower('A') NOT NULL;"
    "CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = own, MULTIRANGE_TYPE_NAME = all_words);"
    "CREATE TYPE spoken AS (a text COLLATE own, b d);"
    "CREATE TABLE t (id int PRIMARY KEY, d d, r words, m all_words, s spoken)"
)


def parts_of(shape: TableShape) -> dict[str, object]:
    """What types are besides the values that they hold."""
    return {
        each.name: (
            each.collation,
            each.multirange,
            each.default,
            [f.collation for f in each.fields],
        )
        for each in shape.types
    }


def without_parts(shape: TableShape) -> TableShape:
    """A shape as versions described it that knew of values alone."""
    types = tuple(
        each.model_copy(
            update={
                "collation": None,
                "multirange": None,
                "not_null": False,
                "default": None,
                "fields": tuple(f.model_copy(update={"collation": None}) for f in each.fields),
            }
        )
        for each in shape.types
    )
    return shape.model_copy(update={"types": types})


def test_types_are_made_with_collations_defaults_and_multiranges(
    source: Database, target: Database
):
    source.execute(COLLATED)
    target.execute('CREATE COLLATION own FROM "C"')

    notes = make(target, shape_of(source))

    assert parts_of(shape_of(target)) == parts_of(shape_of(source))
    # Of the table's types only what is claimed of values is not carried over.
    assert notes == ["type public.d lacks NOT NULL"]
    row = "INSERT INTO t (id, r, m, s) VALUES (1, '[B,a)', '{[B,a)}', '(x,y)')"
    for database in (source, target):
        database.execute(row)
    assert rows_of(target, shape_of(target)) == rows_of(source, shape_of(source))
    assert target.value("SELECT d FROM t") == "a"


def test_types_go_without_a_collation_that_the_target_lacks_and_that_is_noted(
    source: Database, target: Database
):
    source.execute(f"{COLLATED}; CREATE TABLE u (id int PRIMARY KEY, d d, s spoken)")
    found = {shape.name: shape for shape in shapes(source).values()}

    notes = make(target, found["t"])
    of_second = make(target, found["u"])

    wanted = [
        "type public.d has collation default, wanted public.own",
        "type public.d lacks NOT NULL",
        "type public.spoken has attribute a with collation default, wanted public.own",
    ]
    assert sorted(of_second) == wanted
    assert sorted(notes) == [*wanted, "type public.words has collation default, wanted public.own"]


@only_new
def test_default_of_a_domain_that_calls_what_it_may_not_is_left_out(
    source: Database, target: Database
):
    function = "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 7'"
    source.execute(f"{function}; CREATE DOMAIN d AS int DEFAULT f()")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v d)")
    target.execute(function)

    notes = make(target, shape_of(source))
    before = shape_of(source)
    source.execute("ALTER DOMAIN d SET DEFAULT f() + 1")
    followed = follow_at(target, before, shape_of(source), owner=OWNER)

    assert notes == ["type public.d lacks its default public.f()"]
    assert followed.notes == [
        "type public.d goes without its default: not taken over, it calls public.f"
    ]
    target.execute("INSERT INTO t VALUES (1)")
    assert target.value("SELECT v FROM t") is None


def test_parts_of_types_are_followed(source: Database, target: Database):
    for database in (source, target):
        database.execute('CREATE COLLATION own FROM "C"')
    source.execute(
        "CREATE DOMAIN d AS text; CREATE TYPE ct AS (x int); CREATE TABLE t (id int PRIMARY KEY, v d, c ct)"
    )
    make(target, shape_of(source))
    source.execute("INSERT INTO t VALUES (1)")
    target.execute("INSERT INTO t VALUES (1)")
    for ddl in (
        "ALTER DOMAIN d SET DEFAULT 'one'",
        "ALTER TYPE ct ADD ATTRIBUTE y text COLLATE own",
        (
            "CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = own, MULTIRANGE_TYPE_NAME = many);"
            "ALTER TABLE t ADD m many"
        ),
        "ALTER TABLE t ADD w d",
        "ALTER DOMAIN d DROP DEFAULT",
        "CREATE TYPE fewrange AS RANGE (SUBTYPE = int); ALTER TABLE t ADD f fewmultirange",
        "ALTER TYPE fewrange RENAME TO few; ALTER TYPE words RENAME TO phrases",
        "CREATE DOMAIN late AS text COLLATE own DEFAULT 'two'; ALTER TABLE t ADD l late",
    ):
        before = shape_of(source)
        source.execute(ddl)
        followed = follow_at(target, before, shape_of(source), owner=OWNER)
        assert followed.notes == []
        assert parts_of(shape_of(target)) == parts_of(shape_of(source)), ddl
        for database in (source, target):
            database.execute("INSERT INTO t (id) SELECT max(id) + 1 FROM t")
        assert rows_of(target, shape_of(target)) == rows_of(source, shape_of(source)), ddl


@only_new
def test_table_that_is_behind_gets_no_default_of_later(source: Database, target: Database):
    source.execute("CREATE DOMAIN d AS text; CREATE TABLE t (id int PRIMARY KEY, v d)")
    source.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
    for shape in shapes(source).values():
        make(target, shape)
    target.execute("INSERT INTO u VALUES (1)")
    first = {shape.name: shape for shape in shapes(source).values()}
    source.execute("ALTER TABLE u ADD v d")
    second = {shape.name: shape for shape in shapes(source).values()}
    source.execute("ALTER DOMAIN d SET DEFAULT 'late'")
    third = {shape.name: shape for shape in shapes(source).values()}

    follow_at(target, first["t"], third["t"], owner=OWNER)
    for before, after in itertools.pairwise((first["u"], second["u"], third["u"])):
        follow_at(target, before, after, before.table, owner=OWNER)
    target.execute("INSERT INTO u VALUES (2)")

    assert target.query("SELECT v FROM u ORDER BY id") == [(None,), ("late",)]


LATE = {
    "with the column": ["CREATE DOMAIN d AS text DEFAULT 'ours'; ALTER TABLE t ADD v d"],
    "later": [
        "CREATE DOMAIN d AS text; ALTER TABLE t ADD v d",
        "ALTER DOMAIN d SET DEFAULT 'ours'",
    ],
}


@only_new
@pytest.mark.parametrize("ours", ["t.sid = 'one'", None], ids=["by source", "history"])
@pytest.mark.parametrize("name", LATE)
def test_default_of_a_domain_is_not_given_to_rows_of_other_sources(
    name: str, ours: str | None, source: Database, target: Database
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    target.execute(
        "CREATE TABLE t (sid text, id int, PRIMARY KEY (sid, id));"
        "INSERT INTO t VALUES ('one', 1), ('two', 1)"
    )
    with target.connect() as connection:
        connection.execute(statements())
    pictures = [shape_of(source)]
    for ddl in LATE[name]:
        source.execute(ddl)
        pictures.append(shape_of(source))

    others = Others(sql.SQL(ours) if ours else None)
    options = {"owner": OWNER, "others": others, "policy": "additive", "made_by_us": False}
    followed = [
        follow_at(target, before, after, **options)
        for before, after in itertools.pairwise(pictures)
    ]
    target.execute("INSERT INTO t VALUES ('two', 2)")

    is_known = name == "with the column"
    value = "ours" if is_known and ours else None
    assert target.query("SELECT sid, id, v FROM t ORDER BY 1, 2") == [
        ("one", 1, value),
        ("two", 1, None),
        ("two", 2, None),
    ]
    assert followed[0].needs_copy == (is_known and ours is None)


@pytest.mark.parametrize("policy", ["apply", "additive", "stop"])
def test_type_that_an_earlier_version_made_stops_no_table_and_is_noted(
    policy: str, source: Database, target: Database
):
    source.execute(COLLATED.replace(", m all_words", ""))
    source.execute("CREATE TABLE u (id int PRIMARY KEY, s spoken, r words)")
    target.execute('CREATE COLLATION own FROM "C"')
    after = shape_of(source)
    before = without_parts(after)
    make(target, before)

    followed = follow_at(target, before, after, owner=OWNER, policy=policy)
    of_second = make(target, shape_of(source, after.table._replace(name="u")))

    is_set = policy != "stop"
    default = [] if is_set else ["type public.d lacks its default lower('A'::text)"]
    wanted = sorted(
        [
            "type public.d has collation default, wanted public.own",
            "type public.d lacks NOT NULL",
            *default,
            "type public.spoken has attribute a with collation default, wanted public.own",
            "type public.words has collation default, wanted public.own",
            "type public.words has the multirange default, wanted public.all_words",
        ]
    )
    assert len(followed.statements) == int(is_set)
    assert sorted(followed.notes) == wanted
    assert sorted(of_second) == wanted


TAKEN = {
    "a table": "CREATE TABLE m (id int)",
    "a domain": "CREATE DOMAIN m AS int",
    "other labels": "CREATE TYPE m AS ENUM ('b', 'a')",
    "a composite": "CREATE TYPE m AS (x int)",
}


@only_new
@pytest.mark.parametrize("what", TAKEN)
def test_name_that_is_something_else_at_the_target_stops_the_table(
    what: str, source: Database, target: Database
):
    source.execute("CREATE TYPE m AS ENUM ('a', 'b'); CREATE TABLE t (id int PRIMARY KEY, v m)")
    target.execute(TAKEN[what])

    with pytest.raises(
        TargetTableUnfit, match=r"needs type public\.m, an enum of 2 labels, and at"
    ):
        make(target, shape_of(source))
    target.execute("CREATE TABLE t (id int PRIMARY KEY)")
    after = shape_of(source)
    before = after.model_copy(update={"columns": after.columns[:1], "types": ()})
    with pytest.raises(TargetTableUnfit, match="rename or drop what has that name"):
        follow_at(target, before, after, owner=OWNER)

    assert target.query("SELECT * FROM penstock.types") == []


@only_new
def test_types_that_somebody_else_has_made_are_used_where_they_hold_all_and_never_replaced(
    source: Database, target: Database
):
    source.execute(
        "CREATE TYPE e AS ENUM ('a', 'c'); CREATE DOMAIN d AS numeric(8,2);"
        "CREATE TABLE t (id int PRIMARY KEY, v e, w d)"
    )
    target.execute("CREATE TYPE e AS ENUM ('a', 'b'); CREATE DOMAIN d AS numeric")
    make(target, shape_of(source))
    target.execute("INSERT INTO t VALUES (1, 'c', 1.25)")
    before = shape_of(source)

    source.execute(
        "ALTER TABLE t DROP v; DROP TYPE e; CREATE TYPE e AS ENUM ('c', 'a'); ALTER TABLE t ADD v e"
    )
    with pytest.raises(TargetTableUnfit, match=r"type public\.e"):
        follow_at(target, before, shape_of(source), owner=OWNER)
    target.execute("DROP TABLE t")

    assert tidy(target) == []
    assert types_of(target) == [("d", "d"), ("e", "e")]


@only_new
def test_name_of_an_array_is_free_and_so_is_what_no_column_needs(
    source: Database, target: Database
):
    source.execute(
        "CREATE TYPE _ct AS (y int); CREATE TYPE ct AS (x int); CREATE TYPE status AS ENUM ('new');"
        "CREATE TABLE t (id int PRIMARY KEY, a ct[], b _ct)"
    )
    target.execute("CREATE TYPE ct AS (x int); CREATE TABLE status (id int)")

    make(target, shape_of(source))

    target.execute("INSERT INTO t VALUES (1, '{(1)}', '(2)')")
    assert types_of(target) == [("_ct", "c"), ("ct", "c")]


@only_new
def test_types_go_with_the_last_that_needs_them(source: Database, target: Database):
    source.execute(
        "CREATE DOMAIN d AS int; CREATE TYPE ct AS (x d); CREATE TYPE r AS RANGE (SUBTYPE = numeric);"
        "CREATE TYPE e AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, a ct[], b r, c e)"
    )
    make(target, shape_of(source))
    target.execute("CREATE TYPE own AS ENUM ('x'); CREATE TABLE mine (e e)")

    assert tidy(target) == []
    target.execute("DROP TABLE t")

    assert sorted(tidy(target)) == ["public.ct", "public.d", "public.r"]
    assert types_of(target) == [("e", "e"), ("own", "e")]
    target.execute("DROP TABLE mine")
    assert tidy(target) == ["public.e"]
