"""kill -9 while tables are copied into files and written to: no document lost, none doubled."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from fix_copies import read, replay, stands
from fix_event_sinks import hidden
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_copies import Writer
    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = only_new


class Scene:
    """Two tables that are copied and written to; each part of `t` is a range of its own."""

    def __init__(self, source: Database, path: Path, directory: Path, command: Any) -> None:
        self.source = source
        self.path = path
        self.directory = directory
        self.command = command

    def make_tables(self) -> None:
        """Rows that are there before."""
        self.source.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int, pad text) PARTITION BY HASH (id);"
            + "".join(
                f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (MODULUS 4, REMAINDER {n});"
                for n in range(4)
            )
            + "CREATE TABLE u (LIKE t INCLUDING ALL)"
        )
        for table in "tu":
            self.source.execute(
                f"INSERT INTO {table} SELECT g, 0, repeat('x', 300) FROM generate_series(1, 1000) g"
            )

    def strike(self, fault: str) -> None:
        """Run until a fault strikes the command or one of its workers."""
        command = self.command("run", str(self.path), env={"PENSTOCK_FAULT": fault})
        wait_until(lambda: _struck(command), 90, what=f"the fault at {fault} to strike")
        assert command.process.poll() in (None, -signal.SIGKILL), command.stderr
        command.kill()

    def assert_whole(self) -> None:
        """Run to the end; every row came once as read, every change after it, in order."""
        again = self.command("run", str(self.path), "--until-caught-up")
        assert again.wait() == 0, again.stderr
        found = read(self.directory)
        for table in "tu":
            reads = [one for one in found if one["op"] == "read" and one["table"] == table]
            assert len({one["commit_lsn"] for one in reads}) == 1, "of one copy"
            assert len(reads) >= 990
            assert replay(found, table) == stands(self.source, table)
        assert hidden(self.directory) == [".copies", ".lock", ".position.json"]
        left = sorted(path.name for path in (self.directory / ".copies").iterdir())
        assert [name for name in left if name.startswith("copying")] == []


def _struck(command: Command) -> bool:
    return command.process.poll() is not None or "a job failed" in command.stderr


@pytest.fixture
def scene(
    source: Database,
    directory: Path,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> Scene:
    sink = {"kind": "file", "path": str(directory), "rotate_bytes": 30_000}
    path = pipeline_file(
        source, None, tables=("public.*",), sink=sink, source_options={"snapshot": "initial"}
    )
    scene = Scene(source, path, directory, penstock_command)
    scene.make_tables()
    return scene


@pytest.mark.long
def test_kill_while_a_copy_is_published_loses_and_doubles_nothing(
    scene: Scene, writer_of: Callable[..., Writer]
) -> None:
    writers = [writer_of(table) for table in "tu"]

    scene.strike("file.after_append:9")
    for writer in writers:
        writer.stop()

    scene.assert_whole()


@pytest.mark.long
def test_kill_again_and_again_loses_and_doubles_nothing(
    scene: Scene, writer_of: Callable[..., Writer]
) -> None:
    writers = [writer_of(table) for table in "tu"]

    for fault in ("copy.after_finish", "file.after_append:4", "catch_up.before_join"):
        scene.strike(fault)
    for writer in writers:
        writer.stop()

    scene.assert_whole()


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        *(
            "copy.after_snapshot",
            "copy.before_range:2",
            "copy.inside_range:3",
            "copy.after_range:3",
        ),
        *("copy.before_finish", "copy.before_finish:2", "copy.after_finish:2"),
        *("catch_up.before_commit", "catch_up.before_join"),
        *("file.after_append", "file.after_append:30"),
        *("file.after_position", "file.after_position:9", "file.after_position:25"),
        *("deliver.after_job:2", "deliver.after_commit:2"),
    ],
)
def test_kill_at_each_point_loses_and_doubles_nothing(
    fault: str, scene: Scene, writer_of: Callable[..., Writer]
) -> None:
    writers = [writer_of(table) for table in "tu"]

    scene.strike(fault)
    for writer in writers:
        writer.stop()

    scene.assert_whole()
