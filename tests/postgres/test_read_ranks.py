"""The order that a target's foreign keys ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fix_postgres import only_new
from penstock.sinks.postgres.mapping.target import read_ranks

if TYPE_CHECKING:
    from fix_postgres import Database

pytestmark = only_new


def test_child_ranks_after_its_parents_and_a_key_to_itself_counts_for_nothing(target: Database):
    target.execute(
        "CREATE TABLE root (id int PRIMARY KEY, up int REFERENCES root);"
        "CREATE TABLE middle (id int PRIMARY KEY, r int REFERENCES root);"
        "CREATE TABLE leaf (id int PRIMARY KEY, r int REFERENCES root, m int REFERENCES middle)"
    )

    with target.connect() as connection:
        ranks = read_ranks(connection)

    assert {table.name: rank for table, rank in ranks.items() if table.schema == "public"} == {
        "root": 0,
        "middle": 1,
        "leaf": 2,
    }
