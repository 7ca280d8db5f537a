"""A target that has every kind of object, as a pipeline that was started has made and listed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fix_follow import clone, shapes
from penstock.lsn import Lsn
from penstock.sinks.postgres.state.objects import make_objects
from penstock.sinks.postgres.state.shapes import ShapeStore

if TYPE_CHECKING:
    from fix_postgres import Database

OWNER = ("p", "one")

EVERYTHING = """
    CREATE TYPE mood AS ENUM ('sad', 'glad');
    CREATE DOMAIN amount AS numeric(12, 2);
    CREATE TYPE pair AS (a int, b text);
    CREATE SEQUENCE tickets INCREMENT 5;
    CREATE TABLE parent (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, code text UNIQUE);
    CREATE TABLE child (
        id serial PRIMARY KEY, p bigint NOT NULL REFERENCES parent ON DELETE CASCADE,
        m mood DEFAULT 'sad', price amount DEFAULT 1.5 NOT NULL, duo pair, ticket int DEFAULT nextval('tickets'),
        note text COLLATE "C", twice int GENERATED ALWAYS AS (id * 2) STORED, at timestamptz DEFAULT now(),
        CONSTRAINT positive CHECK (price >= 0), UNIQUE (p, note));
    CREATE INDEX child_at ON child (at DESC) WHERE note IS NOT NULL;
    CREATE UNIQUE INDEX child_lower ON child (lower(note), id);
    ALTER TABLE child ADD CONSTRAINT later CHECK (id > 0) NOT VALID;
    CREATE TABLE parted (id int, at date NOT NULL, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM ('2020-01-01') TO ('2030-01-01');
    CREATE INDEX parted_at ON parted (at);
    -- A server that parses these spells them otherwise.
    CREATE TABLE spelled (id int PRIMARY KEY CHECK (id BETWEEN 1 AND 100 AND id <> 5),
        v varchar(5) DEFAULT 'a' CHECK (v IN ('a', 'b') OR v LIKE 'c(%'), w text DEFAULT 'x' || 'y');
    CREATE INDEX spelled_v ON spelled (v) WHERE v NOT IN ('a', 'b') AND id BETWEEN 2 AND 3;
"""


def start(source: Database, target: Database, statements: str = EVERYTHING) -> None:
    """Have the target made as penstock makes it, and listed as penstock lists it."""
    source.execute(statements)
    roots = {shape.id: shape for shape in shapes(source).values()}
    if "SEQUENCE tickets" in statements:
        target.execute("CREATE SEQUENCE tickets INCREMENT 5")  # no column's, and so not the clone's
    clone(source, target)
    store = ShapeStore(*OWNER)
    with target.connect() as connection, connection.cursor() as cursor:
        make_objects(connection)
        for shape in roots.values():
            store.add(cursor, shape, Lsn(1), shape.table)
        connection.execute("UPDATE penstock.tables SET foreign_keys_due = false, copied_at = now()")
