"""Networks that break, servers that restart, disks that fill, databases that are idle."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_pipeline import assert_equal, row_count, rows
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database, TwoServers
    from fix_proxy import Proxy

    Make = Callable[..., RunningPipeline]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


class Writer:
    """Inserts and updates until stopped; a server that is away is waited for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.connect() as connection:
                    while not self._stop.wait(0.002):
                        connection.execute(
                            "WITH gone AS (UPDATE t SET v = v || '.' WHERE id = %s)"
                            " INSERT INTO t VALUES (%s, 'v') ON CONFLICT DO NOTHING",
                            (self.count // 2, self.count),
                        )
                        self.count += 1
            except psycopg.Error:
                self._stop.wait(0.05)

    def go_on(self, count: int) -> None:
        """Wait for that many more writes."""
        mark = self.count
        wait_until(lambda: self.count > mark + count, 60, what="the writer to go on")


@only_new
def test_cut_and_silent_connections_lose_nothing(
    source: Database,
    target: Database,
    make_proxy: Callable[[int], Proxy],
    make_pipeline: Make,
) -> None:
    source.execute(TABLE)
    at_source = make_proxy(source.server.port)
    at_target = make_proxy(target.server.port)
    # A silent peer is given up after two seconds instead of 45: same road, shorter wait.
    patience = "?tcp_user_timeout=2000&keepalives_idle=1&keepalives_interval=1&keepalives_count=1&connect_timeout=2"
    pipeline = make_pipeline(
        at_source.url(source) + patience, at_target.url(target) + patience, tables=("public.t",)
    )

    with Writer(source) as writer:
        for break_it in (at_source.cut, at_target.cut, at_source.cut, at_target.cut):
            writer.go_on(100)
            break_it()
        for proxy in (at_source, at_target):
            writer.go_on(100)
            proxy.blackhole()
            writer.go_on(400)
            proxy.cut()
            proxy.heal()
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
def test_restarts_of_both_servers_lose_nothing_and_are_not_held_up(
    two_servers: TwoServers, make_pipeline: Make
) -> None:
    source, target = two_servers
    source.execute(TABLE)
    pipeline = make_pipeline(source, target)

    with Writer(source) as writer:
        for database, mode in (
            (source, "fast"),
            (target, "fast"),
            (source, "immediate"),
            (target, "immediate"),
        ):
            writer.go_on(150)
            began = time.monotonic()
            database.server.stop(mode)
            took = time.monotonic() - began
            assert took < 10, f"a {mode} shutdown took {took:.1f} s"
            database.server.start()
    wait_until(lambda: source.value("SELECT 1") == 1, what="the source to answer")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
def test_server_shuts_down_although_the_target_is_away(
    two_servers: TwoServers, make_pipeline: Make
) -> None:
    source, target = two_servers
    source.execute(TABLE)
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO t VALUES (0, 'x')")
    pipeline.catch_up()
    target.server.stop()

    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 1000) g")
    began = time.monotonic()
    source.server.stop("fast")
    took = time.monotonic() - began
    source.server.start()
    target.server.start()
    pipeline.catch_up()

    assert took < 10
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_idle_source_advances_while_another_database_writes(
    source: Database,
    target: Database,
    make_database: Callable[..., Database],
    make_pipeline: Make,
) -> None:
    source.execute(TABLE)
    other = make_database(source.server, "other")
    other.execute("CREATE TABLE noise (v text)")
    pipeline = make_pipeline(source, target, source_options={"heartbeat_seconds": 0.3})
    with source.connect(autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO t VALUES (1, 'open for long')")
        other.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        written = Lsn.parse(other.value("SELECT pg_current_wal_lsn()::text"))

        def confirmed() -> Lsn:
            query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = %s"
            return Lsn.parse(source.value(query, source.name))

        wait_until(lambda: confirmed() >= written, 30, what="the slot to advance past the noise")
        open_transaction.commit()
    pipeline.catch_up()

    assert rows(target, "t") == [('(1,"open for long")',)]


@only_new
def test_interleaved_commits_survive_a_restart_between_them(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(TABLE)
    pipeline = make_pipeline(source, target)

    with source.connect(autocommit=False) as first:
        first.execute("INSERT INTO t VALUES (1, 'began first')")
        source.execute("INSERT INTO t VALUES (2, 'committed first')")
        pipeline.catch_up()
        pipeline.stop()
        pipeline.start()
        first.commit()
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.parametrize("when", ["running", pytest.param("stopped", marks=pytest.mark.long)])
def test_target_that_lost_its_last_commits_gets_them_again(
    two_servers: TwoServers, make_pipeline: Make, when: str
) -> None:
    source, target = two_servers
    source.execute(TABLE)
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
    pipeline.catch_up()
    snapshot = target.server.data_dir.parent / "snapshot"
    target.server.stop()
    subprocess.run(["cp", "-a", target.server.data_dir, snapshot], check=True)
    target.server.start()
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(101, 200) g")
    pipeline.catch_up()
    delivered = pipeline.delivered_lsn
    confirmed = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots"
    wait_until(lambda: source.value(confirmed, str(delivered)), what="it to be acknowledged")

    if when == "stopped":
        pipeline.stop()
    target.server.stop()
    subprocess.run(["rm", "-r", target.server.data_dir], check=True)
    subprocess.run(["cp", "-a", snapshot, target.server.data_dir], check=True)
    target.server.start()
    if when == "stopped":
        pipeline.start()
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(201, 300) g")
    pipeline.catch_up()

    wait_until(lambda: row_count(target, "t") == 300, what="all rows to be there")
    assert_equal(source, target, "t")


@only_new
def test_log_that_is_full_holds_capture_back_and_loses_nothing(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(TABLE)
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text CHECK (v <> 'bad'))")
    pipeline = make_pipeline(source, target, log={"retain_bytes": "1MB"})
    source.execute("INSERT INTO t VALUES (0, 'bad')")
    pipeline.catch_up()
    state = pipeline.file.state

    for round_number in range(12):
        source.execute(
            "INSERT INTO t SELECT g, repeat('x', 200)"
            f" FROM generate_series({round_number * 1000 + 1}, {round_number * 1000 + 1000}) g"
        )
    source.execute("INSERT INTO other VALUES (1)")
    wait_until(lambda: "PEN-303" in (state / "capture.json").read_text(), what="the log to be full")
    size = sum(path.stat().st_size for path in (state / "log").iterdir())
    target.execute("ALTER TABLE t DROP CONSTRAINT t_v_check")
    pipeline.catch_up()
    wait_until(lambda: not pipeline.deliveries[0].stopped_tables, 60, what="t to catch up")
    pipeline.catch_up()

    assert size < 8_000_000
    assert_equal(source, target, "t", "other")


@only_new
@pytest.mark.parametrize("way", [pytest.param("in parts", marks=pytest.mark.long), "streamed"])
def test_transaction_that_is_larger_than_the_log_may_be_arrives(
    source: Database,
    target: Database,
    make_pipeline: Make,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setattr("penstock.source.assemble.SLICE_BYTES", 200_000)
    source.execute(TABLE)
    pipeline = make_pipeline(source, target, log={"retain_bytes": "1MB"})
    source.execute("INSERT INTO t VALUES (0, 'x')")
    pipeline.catch_up()

    rows = "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({}, {}) g"
    with source.connect(autocommit=False) as connection:
        if way == "streamed":
            source.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
            source.execute("SELECT pg_reload_conf()")
        connection.execute(rows.format(1, 20_000))
        source.execute(rows.format(20_001, 21_000))  # sinks are behind, and then they are not
        pipeline.catch_up()
    source.execute("ALTER SYSTEM RESET logical_decoding_work_mem")
    source.execute("SELECT pg_reload_conf()")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
def test_server_shuts_down_although_the_log_is_full(
    two_servers: TwoServers, make_pipeline: Make
) -> None:
    source, target = two_servers
    source.execute(TABLE)
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text CHECK (v <> 'bad'))")
    pipeline = make_pipeline(source, target, log={"retain_bytes": "1MB"})
    source.execute("INSERT INTO t VALUES (0, 'bad')")
    pipeline.catch_up()
    state = pipeline.file.state
    source.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 30000) g")
    source.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(30001, 90000) g")
    wait_until(lambda: "PEN-303" in (state / "capture.json").read_text(), what="the log to be full")

    began = time.monotonic()
    source.server.stop("fast")
    took = time.monotonic() - began
    source.server.start()
    target.execute("ALTER TABLE t DROP CONSTRAINT t_v_check")
    wait_until(lambda: not pipeline.deliveries[0].stopped_tables, 60, what="t to catch up")
    pipeline.catch_up()

    assert took < 10
    assert_equal(source, target, "t")


@only_new
def test_segments_are_deleted_once_every_sink_has_passed_them(
    source: Database, target: Database, make_pipeline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.files.writer.SEGMENT_BYTES", 100_000)
    source.execute(TABLE)
    pipeline = make_pipeline(source, target)

    for number in range(10):
        source.execute(
            "INSERT INTO t SELECT g, repeat('x', 100)"
            f" FROM generate_series({number * 1000}, {number * 1000 + 999}) g"
        )
        pipeline.catch_up()

    log = pipeline.file.state / "log"
    wait_until(lambda: len(list(log.iterdir())) <= 2, what="old segments to go")
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_disk_that_is_full_makes_capture_wait_and_loses_nothing(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    path = pipeline_file(source, target, tables=("public.t",))
    assert penstock_command("init", str(path)).wait() == 0
    source.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g")

    # A limit on file size fails a write just as a full disk does, and needs no mount.
    limited = penstock_command("capture", str(path), file_size_limit=4_000_000)
    wait_until(lambda: "PEN-302" in limited.stderr, 60, what="the disk to be full")
    is_running = limited.process.poll() is None
    code = limited.terminate()
    again = penstock_command("run", str(path), "--until-caught-up")

    assert is_running
    assert code == 0
    assert "Traceback" not in limited.stderr
    assert again.wait() == 0, again.stderr
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
@pytest.mark.parametrize("stopping", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.long)])
def test_a_signal_stops_the_run_within_ten_seconds(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
    stopping: str,
) -> None:
    import signal

    source.execute(TABLE)
    path = pipeline_file(source, target, tables=("public.t",))
    assert penstock_command("init", str(path)).wait() == 0
    command = penstock_command("run", str(path))
    with Writer(source) as writer:
        wait_until(lambda: rows(target, "t"), 60, what="rows to arrive")
        writer.go_on(50)
        began = time.monotonic()
        command.process.send_signal(getattr(signal, stopping))
        code = command.wait(30)
        took = time.monotonic() - began
    again = penstock_command("run", str(path), "--until-caught-up")

    assert code == 0, command.stderr
    assert took < 10
    assert "Traceback" not in command.stderr
    assert again.wait() == 0, again.stderr
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_documents_of_a_run_are_whole_in_order_and_once(
    source: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    import json

    source.execute(TABLE)
    out = tmp_path / "out"
    path = pipeline_file(
        source, None, tables=("public.t",), sink={"kind": "file", "path": str(out)}
    )
    assert penstock_command("init", str(path)).wait() == 0
    for number in range(3):
        source.execute(f"INSERT INTO t VALUES ({number}, 'v'); UPDATE t SET v = v || '{number}'")
        assert penstock_command("run", str(path), "--until-caught-up").wait() == 0

    documents = [
        json.loads(line)
        for file in sorted(out.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    positions = [(Lsn.parse(each["commit_lsn"]), each["ordinal"]) for each in documents]
    assert positions == sorted(set(positions))
    assert [each["op"] for each in documents].count("insert") == 3
    assert [each["op"] for each in documents].count("update") == 1 + 2 + 3


@pytest.mark.long
@only_new
def test_same_pipeline_runs_on_a_cluster(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    import yaml

    source.execute(TABLE)
    path = pipeline_file(source, target, tables=("public.t",))
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    document["spark"] = {"master": "local-cluster[2,1,1024]"}
    path.write_text(yaml.safe_dump(document))
    assert penstock_command("init", str(path)).wait() == 0
    source.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 200000) g")
    source.execute("UPDATE t SET v = 'y' WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0")

    command = penstock_command("run", str(path), "--until-caught-up")

    assert command.wait(180) == 0, command.stderr
    checksum = "SELECT count(*), sum(id), sum(hashtext(v)) FROM t"
    assert target.query(checksum) == source.query(checksum)


@pytest.fixture(autouse=True)
def _no_thread_survives() -> Iterator[None]:
    yield
    left = [each.name for each in threading.enumerate() if each.name.startswith("commit ")]
    assert left == []
