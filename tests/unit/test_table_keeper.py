"""When the states of a sink's tables are read: a commit that is under way has to be waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock.lsn import Lsn
from penstock.run.tables import TableKeeper
from penstock.state.directory import StateDirectory
from penstock.state.reports import MembershipReport
from penstock.state.wire import FileWire
from penstock.timing import timing

if TYPE_CHECKING:
    from pathlib import Path


def keeper(tmp_path: Path) -> TableKeeper:
    """Of a sink without tables, whose source has reported that it has none."""
    (tmp_path / "sinks").mkdir()
    wire = FileWire(StateDirectory(tmp_path, "p"))
    tables = SimpleNamespace(detached={}, streaming=set(), objects_due=False)
    sink: Any = SimpleNamespace(name="s", tables=tables, refresh_tables=lambda _: None)
    nothing: Any = None
    reader: Any = SimpleNamespace(last_lsn=Lsn(0), left_partitions=dict, filled_partitions=dict)
    made = TableKeeper(sink, nothing, wire, reader, copies_first=False)
    wire.publish(MembershipReport(at=1.0))
    return made


def test_what_only_comes_round_is_put_off_while_a_batch_is_committed(tmp_path: Path):
    tables = keeper(tmp_path)
    assert tables.is_due(
        100.0, is_committing=True
    )  # at the start somebody may have asked for something
    tables.poll(Lsn(1), 100.0)
    idle = timing().tables_idle_seconds + 0.001
    assert not tables.is_due(100.0 + idle, is_committing=True)
    assert tables.is_due(100.0 + idle, is_committing=False)
    assert tables.is_due(100.0 + idle + timing().tables_backlog_seconds, is_committing=True)
    tables.poll_soon()
    assert tables.is_due(100.0 + idle, is_committing=True)


def test_nothing_is_put_off_while_tables_are_copied(tmp_path: Path):
    tables = keeper(tmp_path)
    tables._sink.tables.objects_due = True
    tables.poll(Lsn(1), 100.0)
    assert tables.is_due(100.0 + timing().tables_busy_seconds + 0.001, is_committing=True)
