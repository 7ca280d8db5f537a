"""Random changes of tables and rows, with restarts between: both sides are the same after every few."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest
from test_travel_hard import assert_same, settle

from fix_chaos import BEFORE, KEYLESS, Chaos
from fix_pipeline import INITIAL

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]


def transact(connection: psycopg.Connection[Any], chaos: Chaos, choice: random.Random) -> list[str]:
    """A transaction of a few statements, some of them undone; what was tried and did not fail."""
    done = []
    for _ in range(choice.choice([1, 1, 2, 5])):
        statement = chaos.statement()
        undone = choice.random() < 0.15
        connection.execute("SAVEPOINT one")
        try:
            connection.execute(statement)
            if connection.execute(KEYLESS, (chaos.schemas,)).fetchone() != (0,):
                undone = True
        except psycopg.Error:
            undone = True
        else:
            done.append(f"{statement}{' -- undone' if undone else ''}")
        connection.execute("ROLLBACK TO one" if undone else "RELEASE one")
    if choice.random() < 0.1:
        connection.rollback()
        done.append("ROLLBACK")
    else:
        try:
            connection.commit()
        except psycopg.Error:
            connection.rollback()
            done.append("ROLLBACK, for COMMIT failed")
    return ["BEGIN", *done] if done else []


def play(seed: int, steps: int, source: Database, target: Database, make_pipeline: Make) -> None:
    source.execute(BEFORE)
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    settle(pipeline, target)
    done: list[str] = []
    choice = random.Random(-seed - 1)
    with source.connect(autocommit=False) as connection:
        chaos = Chaos(seed, connection)
        for step in range(steps):
            is_stopped = choice.random() < 0.3
            if is_stopped:
                pipeline.stop()
                done.append("-- stopped")
            for _ in range(choice.choice([1, 3, 6])):
                done += transact(connection, chaos, choice)
            if is_stopped:
                pipeline.start()
                done.append("-- started")
            try:
                assert_same(pipeline, source, target)
            except BaseException:
                print(";\n".join(done))
                raise
            done.append(f"-- same after step {step}")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_both_sides_are_the_same_whatever_is_done(
    seed: int, source: Database, target: Database, make_pipeline: Make
) -> None:
    play(seed, 5, source, target, make_pipeline)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_both_sides_are_the_same_whatever_is_done_for_long(
    seed: int, source: Database, target: Database, make_pipeline: Make
) -> None:
    play(seed, 15, source, target, make_pipeline)
