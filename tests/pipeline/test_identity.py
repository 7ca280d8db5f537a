"""Which row a change is of: every replica identity, every operation, every kind of table.

The matrix of the document that asked for it: UPDATE with the old key (K), with the whole old row (O), with
neither; DELETE with the key, or with the whole row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_postgres import only_new

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

KINDS = ("clone", "append", "history")
# How the table says which of its rows is which.
IDENTITIES = {
    "default": "ALTER TABLE {0} ADD PRIMARY KEY (id)",
    "index": "CREATE UNIQUE INDEX {0}_id ON {0} (id); ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_id",
    "full_with_key": "ALTER TABLE {0} ADD PRIMARY KEY (id); ALTER TABLE {0} REPLICA IDENTITY FULL",
    "full": "ALTER TABLE {0} REPLICA IDENTITY FULL",
    "nothing": "ALTER TABLE {0} REPLICA IDENTITY NOTHING",
}

FIRST = [(1, "a", None), (2, "b", "x"), (3, "c", None), (4, "d", None), (5, "e", "y")]
CHANGES = {
    "update": "UPDATE {0} SET v = 'changed' WHERE id = 1",
    "update of a row with NULLs": "UPDATE {0} SET v = NULL, w = 'told' WHERE id = 3",
    "update of the key": "UPDATE {0} SET id = 20 WHERE id = 2",
    "delete": "DELETE FROM {0} WHERE id = 5",
    "delete of a row with NULLs": "DELETE FROM {0} WHERE id = 4",
}
LAST = [(1, "changed", None), (3, None, "told"), (20, "b", "x")]
DELETED = [(4, "d", None), (5, "e", "y")]
CHANGED = [(1, "a", None), (2, "b", "x"), (3, "c", None)]


@pytest.mark.parametrize("cut", [False, True], ids=["one batch", "one by one"])
def test_every_operation_finds_its_row_whatever_the_identity_and_the_kind(
    source: Database, target: Database, make_pipeline: Make, cut: bool
) -> None:
    names = [f"{kind}_{identity}" for kind in KINDS for identity in IDENTITIES]
    for name in names:
        source.execute(f"CREATE TABLE {name} (id int NOT NULL, v text, w text)")
        source.execute(IDENTITIES[name.split("_", 1)[1]].format(name))
    pipeline = make_pipeline(
        source,
        target,
        sink={"tables": {name: {"kind": name.split("_")[0]} for name in names}},
        source_options={"insert_only": [name for name in names if name.endswith("nothing")]},
    )

    for name in names:
        for row in FIRST:
            source.execute(f"INSERT INTO {name} VALUES (%s, %s, %s)", *row)
    for change in CHANGES.values():
        if cut:
            pipeline.catch_up()
        for name in names:
            source.execute(change.format(name))
    pipeline.catch_up()

    assert not pipeline.deliveries[0].stopped_tables
    for name in names:
        kind, identity = name.split("_", 1)
        assert _kept(target, name, kind) == _wanted(kind, identity), name
    odd = target.query(
        "SELECT table_name FROM penstock.tables"
        " WHERE insert_exists + update_missing + delete_missing > 0"
    )
    assert odd == []


def _kept(target: Database, name: str, kind: str) -> list[tuple[Any, ...]]:
    """The rows; of a history with whether they are current and were deleted."""
    also = (
        ", kvsz_end = '9999-01-01 00:00:00+00', kvsz_deleted, kvsz_start > '1901-01-01'"
        if kind == "history"
        else ""
    )
    return sorted(target.query(f"SELECT id, v, w{also} FROM {name}"), key=repr)


def _wanted(kind: str, identity: str) -> list[tuple[Any, ...]]:
    still, ended, deleted = (True, False), (False, False), (False, True)
    if identity == "nothing":
        # Nothing but its INSERTs is sent.
        rows: list[tuple[Any, ...]] = [(*row, *still, False) for row in FIRST]
    else:
        rows = [(*row, *still, True) for row in LAST]
        rows += [(*row, *ended, False) for row in CHANGED]
        rows += [(*row, *deleted, False) for row in DELETED]
    if kind == "history":
        return sorted(rows, key=repr)
    if kind == "clone" or identity == "nothing":
        return sorted((row[:3] for row in rows if row[3]), key=repr)
    return sorted([*LAST, *DELETED], key=repr)


@pytest.mark.parametrize("kind", KINDS)
def test_of_equal_rows_without_a_key_one_changes_and_one_goes(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    source.execute("CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline = make_pipeline(source, target, sink={"tables": {"t": {"kind": kind}}})

    source.execute("INSERT INTO t VALUES (1, NULL), (1, NULL), (1, NULL), (1, 'x'), (NULL, NULL)")
    pipeline.catch_up()
    source.execute("UPDATE t SET b = 'new' WHERE ctid = (SELECT min(ctid) FROM t WHERE b IS NULL)")
    source.execute("DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE a = 1 AND b IS NULL)")
    source.execute("DELETE FROM t WHERE a IS NULL")
    pipeline.catch_up()

    still = " WHERE kvsz_end = '9999-01-01 00:00:00+00'" if kind == "history" else ""
    found = sorted(target.query(f"SELECT a, b FROM t{still}"), key=repr)
    now = sorted(source.query("SELECT a, b FROM t"), key=repr)
    gone = [(1, None), (None, None)] if kind == "append" else []
    assert found == sorted([*now, *gone], key=repr)
    if kind == "history":
        ended = target.query("SELECT a, b, kvsz_deleted FROM t WHERE kvsz_end < '9998-01-01'")
        wanted = [(1, None, False), (1, None, True), (None, None, True)]
        assert sorted(ended, key=repr) == sorted(wanted, key=repr)
