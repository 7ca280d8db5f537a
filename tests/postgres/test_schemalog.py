"""penstock.schema_log: written from the stream, read as whole schemas, trimmed, kept over an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_listener import Listener
from fix_postgres import only_new
from penstock.lsn import Lsn
from penstock.schema.mark import CHANGE, VERSION, Mark
from penstock.schema.shape import (
    Gone,
    SchemaChange,
    TableShape,
    TypeShape,
    VersionWritten,
    as_content,
)
from penstock.source import schemalog
from penstock.source.connect import connect_source, role_of
from penstock.source.options import Tracking
from penstock.source.schemalog import (
    acknowledge_versions,
    last_lsn,
    numbered_versions,
    read_schema_version,
    read_versions,
    trim_versions,
    write_versions,
)
from penstock.source.tracking.install import install_tracking, read_tracking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from fix_postgres import Database

pytestmark = only_new


@pytest.fixture
def connection(source: Database) -> Iterator[psycopg.Connection[Any]]:
    with connect_source(source.dsn) as made:
        install_tracking(made, role_of(made))
        yield made


def transaction(
    lsn: int, version: int, *changes: SchemaChange, schema: str = "public"
) -> list[Mark]:
    contents = [(CHANGE, as_content(change)) for change in changes]
    written = VersionWritten(format=1, schema_name=schema, version=version)
    contents.append((VERSION, as_content(written)))
    return [
        Mark(Lsn(lsn), Lsn(lsn + 8), 0, 7, 0, number, kind, content)
        for number, (kind, content) in enumerate(contents)
    ]


def table(number: int, name: str, schema: str = "public") -> TableShape:
    return TableShape(id=number, schema_name=schema, name=name)


def change(*tables: TableShape, tag: str = "ALTER TABLE", **others: Any) -> SchemaChange:
    return SchemaChange(format=1, tag=tag, tables=tables, **others)


def names(connection: psycopg.Connection[Any], version: int) -> list[str]:
    found = read_schema_version(connection, "shop", "public", version)
    return [one["name"] for one in (*found["tables"], *found["types"])]


def test_versions_are_differences_that_add_up(connection: psycopg.Connection[Any]):
    mood = TypeShape(id=9, schema_name="public", name="mood", kind="enum")
    transactions = [
        transaction(
            8, 1, change(table(1, "a"), tag="REFRESH"), change(table(2, "b"), tag="REFRESH")
        ),
        transaction(24, 2, change(table(1, "z")), change(types=(mood,))),
        transaction(40, 3, change(table(2, "b", "other")), change(dropped_types=(Gone(id=9),))),
        transaction(56, 4, change(table(2, "b")), change(dropped_tables=(Gone(id=1),))),
    ]
    write_versions(connection, "shop", transactions)
    write_versions(connection, "shop", transactions)  # as after a crash
    write_versions(connection, "other", transactions[:1])

    assert [names(connection, version) for version in (1, 2, 3, 4)] == [
        ["a", "b"],
        ["b", "z", "mood"],
        ["z"],
        ["b"],
    ]
    assert [each.version for each in read_versions(connection, "shop")] == [1, 2, 3, 4]
    assert (last_lsn(connection, "shop"), last_lsn(connection, "other")) == (56, 8)
    assert numbered_versions(connection, "shop") == {"public": 4}
    acknowledge_versions(connection, "shop", Lsn(40))
    assert [each.acked for each in read_versions(connection, "shop")] == [True, True, False, False]
    assert [each.acked for each in read_versions(connection, "other")] == [False]


def test_log_keeps_the_last_versions_and_what_is_not_delivered(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(schemalog, "KEPT_VERSIONS", 5)
    monkeypatch.setattr(schemalog, "_SLACK", 2)
    write_versions(connection, "shop", [transaction(8, 1, change(table(1, "a"), tag="REFRESH"))])
    for number in range(2, 21):
        made = change(table(number, f"t{number:02}"))
        write_versions(connection, "shop", [transaction(16 * number, number, made)])
    before = {version: names(connection, version) for version in (16, 18, 20)}

    trim_versions(connection, "shop")
    assert len(read_versions(connection, "shop")) == 20, "no sink has them"
    acknowledge_versions(connection, "shop", Lsn(1000))
    trim_versions(connection, "shop")

    assert [each.version for each in read_versions(connection, "shop")] == [16, 17, 18, 19, 20]
    assert {version: names(connection, version) for version in before} == before


_FORMER = """
CREATE SCHEMA penstock;
CREATE TABLE penstock.schema_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, version bigint, schema_name text NOT NULL,
    schema jsonb, created_at timestamptz NOT NULL DEFAULT now(), acked boolean NOT NULL DEFAULT false,
    lsn pg_lsn, touched oid[], UNIQUE (schema_name, version));
CREATE INDEX schema_log_waiting ON penstock.schema_log (schema_name) WHERE version IS NULL;
CREATE INDEX schema_log_barriers ON penstock.schema_log (lsn)
WHERE version IS NOT NULL AND touched IS NOT NULL;
CREATE TABLE penstock.seal (id boolean PRIMARY KEY DEFAULT true CHECK (id), secret bytea NOT NULL);
INSERT INTO penstock.seal (secret) VALUES ('old');
CREATE FUNCTION penstock.write_versions() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RAISE EXCEPTION ''never''; END';
COMMENT ON FUNCTION penstock.write_versions() IS 'penstock tracking 3';
CREATE FUNCTION penstock.say(change jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION penstock.note_schemas(names text[], oids oid[]) RETURNS void LANGUAGE plpgsql AS
'BEGIN INSERT INTO penstock.schema_log (schema_name) SELECT unnest(names); END';
INSERT INTO penstock.schema_log (version, schema_name, schema, acked, lsn) VALUES
    (1, 'public', '{"format": 1, "tables": [{"id": 1, "name": "a"}]}', true, '0/10'),
    (2, 'public', '{"format": 1, "tables": [{"id": 2, "name": "b"}]}', false, '0/20'),
    (NULL, 'public', NULL, false, NULL);
CREATE CONSTRAINT TRIGGER penstock_write_versions AFTER INSERT ON penstock.schema_log
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION penstock.write_versions();
CREATE FUNCTION penstock.on_ddl_command_end() RETURNS event_trigger LANGUAGE plpgsql AS
'BEGIN IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE schema_name = ''public'') THEN
PERFORM penstock.note_schemas(ARRAY[''public''], NULL); END IF; END';
CREATE EVENT TRIGGER penstock_ddl_command_end ON ddl_command_end
EXECUTE FUNCTION penstock.on_ddl_command_end();
"""


def test_what_an_earlier_version_has_installed_is_replaced(source: Database):
    source.execute(_FORMER)
    with connect_source(source.dsn) as connection:
        assert not read_tracking(connection).in_force

        assert install_tracking(connection, role_of(connection))

        assert read_tracking(connection).in_force
        source.execute("CREATE TABLE a (id int PRIMARY KEY)")
        assert [(each.version, each.acked) for each in read_versions(connection, "shop")] == [
            (1, True),
            (2, False),
        ]
        assert [names(connection, 1), names(connection, 2)] == [["a"], ["b"]]
        assert numbered_versions(connection, "shop") == {"public": 2}
        assert bytes(source.value("SELECT secret FROM penstock.seal")) == b"old"
        left = "SELECT count(*) FROM pg_proc WHERE proname IN ('note_schemas', 'write_versions')"
        assert source.value(left) == 0


@pytest.mark.long
def test_many_changes_of_one_table_among_many_stay_small(source: Database, tmp_path: Path):
    source.execute(
        "DO $$BEGIN FOR i IN 1..201 LOOP EXECUTE format("
        "'CREATE TABLE t%s (id int PRIMARY KEY, a text DEFAULT ''x'', b int, c int)', i);"
        " END LOOP; END$$"
    )
    listener = Listener(source, Tracking.TRIGGERS, tmp_path)
    try:
        before = source.value("SELECT pg_current_wal_lsn()")
        for number in range(300):
            source.execute(f"ALTER TABLE t7 ALTER a SET DEFAULT 'v{number}'")
        wal = source.value("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s)", before)
        listener.receive_all()
        with connect_source(source.dsn) as connection:
            for _ in range(3):  # as polls do
                lsn = last_lsn(connection, "shop")
                write_versions(connection, "shop", listener.past_shapes.transactions_after(lsn))
                acknowledge_versions(connection, "shop", Lsn(2**63))
                trim_versions(connection, "shop")
            listed = read_versions(connection, "shop")
            last = read_schema_version(connection, "shop", "public", listed[-1].version)
        listener.past_shapes.forget_before(Lsn(2**62))
    finally:
        listener.close()

    assert [each.version for each in listed] == list(range(202, 302))
    assert len(last["tables"]) == 201
    [table] = [one for one in last["tables"] if one["name"] == "t7"]
    assert [column.get("default") for column in table["columns"]][1] == "'v299'::text"
    assert wal < 300 * 8192
    assert source.value("SELECT pg_total_relation_size('penstock.schema_log')") < 2_000_000
    assert listener.past_shapes.path.stat().st_size < 1_200_000
