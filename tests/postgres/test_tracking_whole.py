"""What the triggers say, statement by statement, adds up to what the whole catalog says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.catalog import read_shapes_by_id
from penstock.schema.lines import FIRST_UNFIXED_ID, fixed_kind
from penstock.source.connect import connect_source
from penstock.source.shapes import qualified_names

if TYPE_CHECKING:
    from conftest import Tracked
    from fix_postgres import Database
    from penstock.schema.shape import TableShape

_GIVEN = """
CREATE SCHEMA other;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN happy AS mood;
CREATE TYPE pair AS (a int, b happy[]);
CREATE TYPE span AS RANGE (subtype = int);
CREATE SEQUENCE alone;
CREATE TABLE p (id int PRIMARY KEY, n int);
CREATE TABLE t (id serial PRIMARY KEY, a int CONSTRAINT positive CHECK (a > 0), m pair[],
                p int REFERENCES p);
CREATE INDEX i ON t (a);
CREATE TABLE rows (id int, whole p, words text DEFAULT 'sad'::mood::text);
CREATE TABLE other.o (id int PRIMARY KEY, t int REFERENCES t, m mood, n int DEFAULT nextval('alone'));
CREATE TABLE root (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9);
CREATE TABLE parent (a int); CREATE TABLE child (b int) INHERITS (parent);
CREATE TABLE typed OF pair;
CREATE TABLE bystander (id int PRIMARY KEY);
CREATE FUNCTION rename_p() RETURNS void LANGUAGE sql AS 'ALTER TABLE p RENAME n TO m';
CREATE FUNCTION rename_back() RETURNS void LANGUAGE sql AS 'ALTER TABLE p RENAME m TO n';
"""

_STATEMENTS = [
    "CREATE TABLE a (id bigserial, b int GENERATED ALWAYS AS IDENTITY)",
    "CREATE TABLE b AS SELECT 1 AS a",
    'CREATE TABLE "Z" (id int); CREATE TABLE "a b" (id int)',
    "ALTER TABLE t ADD b text DEFAULT 'x'",
    "ALTER TABLE t ALTER b TYPE varchar(9)",
    "ALTER TABLE t ALTER a TYPE bigint",
    "ALTER TABLE t RENAME b TO c",
    "ALTER TABLE t DROP c",
    "ALTER TABLE p ADD z int",
    "ALTER TABLE p DROP z",
    "ALTER TABLE p RENAME TO q",
    "ALTER TABLE q RENAME id TO key",
    "ALTER INDEX q RENAME TO p",
    "ALTER TABLE p RENAME key TO id",
    "SELECT rename_p()",
    "SELECT rename_back()",
    "ALTER TABLE t RENAME CONSTRAINT positive TO above",
    "ALTER TABLE t DROP CONSTRAINT above",
    "ALTER TABLE t ADD CONSTRAINT x CHECK (a > 1) NOT VALID",
    "ALTER TABLE t VALIDATE CONSTRAINT x",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "ALTER TABLE parent ADD c int",
    "ALTER TABLE child NO INHERIT parent",
    "ALTER TABLE root ADD c int",
    "ALTER TABLE root DETACH PARTITION part",
    "ALTER TABLE root ATTACH PARTITION part DEFAULT",
    "CREATE UNIQUE INDEX j ON t ((a + 1)) WHERE a > 0",
    "ALTER INDEX i RENAME TO k",
    "DROP INDEX k",
    "COMMENT ON TABLE t IS 'it'",
    "COMMENT ON COLUMN t.a IS 'it'",
    "CREATE TYPE late AS ENUM ()",
    "ALTER TYPE mood ADD VALUE 'bad'",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    "ALTER TYPE mood RENAME TO temper",
    "ALTER TYPE temper SET SCHEMA other",
    "ALTER TYPE pair ADD ATTRIBUTE c int CASCADE",
    "ALTER DOMAIN happy SET DEFAULT 'ok'",
    "DROP TYPE late",
    "CREATE SEQUENCE s",
    "ALTER SEQUENCE s INCREMENT 7",
    "ALTER SEQUENCE s RENAME TO r",
    "ALTER SEQUENCE alone RENAME TO lonely",
    "ALTER SEQUENCE t_id_seq INCREMENT 7",
    "ALTER SEQUENCE t_id_seq OWNED BY NONE",
    "ALTER SEQUENCE t_id_seq OWNED BY t.id",
    "DROP SEQUENCE r",
    "ALTER TABLE t SET SCHEMA other",
    "ALTER TABLE other.t SET SCHEMA public",
    "TRUNCATE bystander; COMMENT ON TABLE p IS 'p'",
    "ALTER TABLE bystander SET UNLOGGED",
    "CREATE TABLE other.n (id int, p int REFERENCES p)",
    "ALTER SCHEMA other RENAME TO another",
    "ALTER SCHEMA another RENAME TO other",
    "DROP TABLE a, b",
    "CREATE TABLE a (id int)",
    "CREATE TYPE inner_ AS (x int); CREATE TYPE outer_ AS (y inner_, z int)",
    "CREATE TABLE nested (o outer_)",
    "DROP TYPE inner_ CASCADE",
    "DROP TYPE other.temper CASCADE",
    "DROP TABLE p CASCADE",
    "DROP SCHEMA other CASCADE",
    # Names and definitions of which a part could be taken for another.
    """CREATE TABLE "K" ("a,b" int, "q""x" text, period int, "PERIOD" int, "back\\slash" int DEFAULT 1,
       UNIQUE NULLS NOT DISTINCT (period, "PERIOD"), PRIMARY KEY ("a,b", "q""x"))""",
    """CREATE TABLE k2 (x int, y text, z int, FOREIGN KEY (x, y) REFERENCES "K"
       ON UPDATE CASCADE ON DELETE SET NULL (y) DEFERRABLE INITIALLY DEFERRED)""",
    """CREATE TABLE k3 (x int, z int, FOREIGN KEY (x, z) REFERENCES "K" (period, "PERIOD") MATCH FULL
       ON DELETE RESTRICT)""",
    """CREATE TABLE g (a int, b text COLLATE "C", c name, d name COLLATE "default",
       e int GENERATED ALWAYS AS (a + 1) STORED, f int4range, m int4multirange, i inet[],
       bb bytea DEFAULT '\\xdead', ts timestamptz DEFAULT '2020-01-01 00:00+02')""",
    """COMMENT ON COLUMN g.a IS 'a "quoted", (x) \\ nextval( line
two'""",
    "ALTER TABLE g ADD zz int DEFAULT 7",
    """CREATE UNIQUE INDEX "I USING x" ON g (lower(b), a DESC NULLS LAST) INCLUDE (c) WHERE a > 0""",
    "ALTER TABLE g ADD CONSTRAINT ex EXCLUDE USING gist (f WITH &&)",
    'CREATE DOMAIN plain AS text; CREATE DOMAIN latin AS text COLLATE "C"',
    """CREATE TABLE domains (a plain, b latin, c latin COLLATE "default", d plain COLLATE "POSIX",
       e information_schema.cardinal_number, f plain[])""",
    """CREATE SEQUENCE free; CREATE TABLE counts (a int DEFAULT nextval('free'), "C d" serial)""",
    "ALTER TABLE counts ADD c int DEFAULT nextval('free') + 1",
    "CREATE TABLE leads (a int); ALTER TABLE leads ADD b int, ADD FOREIGN KEY (a, b) REFERENCES root",
    "ALTER TABLE leads ADD c int",
    "CREATE TABLE self (a int PRIMARY KEY, b int REFERENCES self)",
    "ALTER TABLE self REPLICA IDENTITY USING INDEX self_pkey",
    "ALTER TABLE self DROP CONSTRAINT self_pkey CASCADE",
    "CREATE TABLE heir () INHERITS (child); CREATE TABLE heirs_heir () INHERITS (heir)",
    "ALTER TABLE child ADD later int",
    "ALTER TABLE child RENAME later TO latest",
    "CREATE SCHEMA made CREATE TABLE within (id int PRIMARY KEY)",
    # What types are besides the values that they hold.
    """CREATE DOMAIN kept AS text COLLATE "C" DEFAULT 'x'; CREATE DOMAIN must AS int NOT NULL;
       CREATE DOMAIN filled AS int DEFAULT 7; CREATE DOMAIN of_filled AS filled DEFAULT 8""",
    """CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = "C", MULTIRANGE_TYPE_NAME = all_words);
       CREATE TYPE numbersrange AS RANGE (SUBTYPE = numeric)""",
    'CREATE TYPE spoken AS (a text COLLATE "C", b must, c varchar(9))',
    """CREATE TABLE parted (a kept, b must, c filled[], d words, e all_words, f spoken, g of_filled,
       h numbersrange, i numbersmultirange)""",
    "CREATE TABLE parted_filled (a filled)",
    "ALTER DOMAIN filled SET DEFAULT 9",
    "ALTER DOMAIN filled DROP DEFAULT",
    "ALTER DOMAIN must DROP NOT NULL",
    "ALTER DOMAIN latin SET NOT NULL",
    "ALTER TABLE domains ADD z int",
    "ALTER TYPE words RENAME TO phrases",
    "ALTER TYPE numbersrange RENAME TO numerals",
    'ALTER TYPE spoken ADD ATTRIBUTE d text COLLATE "POSIX"',
    'CREATE TABLE tinted (a text COLLATE "C"); CREATE TABLE of_tinted (t tinted)',
    'ALTER TABLE tinted ADD b text COLLATE "POSIX"',
]


# How other tables spell what was renamed is seen when they are described the next time.
_SPELLED = {
    "columns": {"__all__": {"default", "expression"}},
    "constraints": {"__all__": {"definition"}},
    "indexes": {"__all__": {"definition"}},
}


def assert_known_is_what_there_is(tracked: Tracked) -> None:
    with connect_source(tracked.source.dsn) as connection:
        oids = [oid for (oid,) in connection.execute(_ALL_TABLES)]
        with qualified_names(connection):
            found = read_shapes_by_id(connection, oids)
    # One that was attached as a partition is its root's from then on, and nothing is reported of it.
    attached = {oid for (oid,) in tracked.source.query(_PARTITIONS)}
    assert tracked.known.keys() - attached == found.keys()
    for oid, shape in found.items():
        assert plain(tracked.known[oid]) == plain(shape)


def plain(shape: TableShape) -> dict[str, Any]:
    """What TRUNCATE changes no event reports; and the parts of a type are a set."""
    types = [{**each.model_dump(), "parts": set(each.parts)} for each in shape.types]
    return {**shape.model_dump(exclude={**_SPELLED, "filenode": True}), "types": types}


_PARTITIONS = "SELECT oid::int8 FROM pg_class WHERE relispartition"
_ALL_TABLES = """
SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^pg_'
  AND n.nspname NOT IN ('information_schema', 'penstock')
"""


def test_ids_that_every_database_has_are_of_the_kind_that_is_known(source: Database):
    query = "SELECT oid::int8, typtype::text FROM pg_type WHERE oid < %s AND typtype <> 'p'"

    found = dict(source.query(query, FIRST_UNFIXED_ID))

    assert found == {oid: fixed_kind(oid) for oid in found}


def test_what_is_reported_of_each_statement_adds_up_to_what_the_catalog_says(tracked: Tracked):
    warnings: list[str] = []
    with tracked.source.connect() as connection:
        connection.add_notice_handler(
            lambda notice: (
                warnings.append(str(notice.message_primary))
                if notice.severity_nonlocalized == "WARNING"
                else None
            )
        )
        connection.execute("SET search_path = public")
        connection.execute(_GIVEN)
        tracked.heard()
        assert_known_is_what_there_is(tracked)

        for statement in _STATEMENTS:
            connection.execute(statement)
            tracked.heard()
            assert_known_is_what_there_is(tracked)

    assert warnings == []
