"""`penstock demo` as a newcomer runs it, and what its proof is worth."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from fix_kafka import kafka_jars
from fix_postgres import only_new
from fix_search import search_jars
from fix_wait import wait_until
from penstock.demo.destinations import destination, names
from penstock.demo.keeper import Keeper
from penstock.demo.proof import (
    Watcher,
    compare,
    compare_once_read,
    require_equal,
    require_none_twice,
)
from penstock.demo.shop import PRODUCT_COUNT, SCHEMA, STOCK_EACH, TABLES, row_counts
from penstock.embedded import search as embedded_search
from penstock.embedded.java import Java
from penstock.errors import EmbeddedServerFailed, PackageMissing, RunError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fix_postgres import Database


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A TMPDIR for one demo alone, that the servers' user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="test-demo-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def _start(cwd: Path, scratch: Path, *options: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo", *options],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _processes_of(scratch: Path) -> list[str]:
    """Servers name the directory on their command line, the others have it as TMPDIR."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            traces = [*command, process.environ().get("TMPDIR", "")]
        except psutil.Error:
            # It has ended, or is a zombie, which runs nothing any more.
            continue
        if process.pid != os.getpid() and any(str(scratch) in trace for trace in traces):
            found.append(" ".join(command))
    return found


def test_demo_proves_that_both_sides_are_equal_and_leaves_nothing_behind(
    tmp_path: Path, scratch: Path
) -> None:
    out, err = _start(tmp_path, scratch).communicate(timeout=240)

    assert "both sides are equal, every row and every value" in out, err
    for table in TABLES:
        rows = re.search(rf"  {table} +([\d,]+)  (\w{{12}}) +([\d,]+)  (\w{{12}}) +equal", out)
        assert rows is not None
        assert rows[1] == rows[3]
        assert rows[2] == rows[4]
    counts = re.search(r"([\d,]+) rows copied, ([\d,]+) changes delivered after that", out)
    assert counts is not None
    assert "0" not in (counts[1], counts[2])
    assert "never half a transaction" in out
    for command in ("check", "run", "status"):
        assert f"penstock {command} shop.yml" in out
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    assert list(scratch.iterdir()) == []
    assert _processes_of(scratch) == []


@pytest.fixture
def kafka_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kafka's jars where an unpacked Kafka has them."""
    home = tmp_path_factory.mktemp("kafka")
    (home / "libs").symlink_to(kafka_jars())
    return str(home)


@pytest.fixture
def search_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's cache that has OpenSearch's jars."""
    cache = tmp_path_factory.mktemp("cache")
    jars = search_jars(embedded_search.newest_version())
    (cache / "penstock").mkdir()
    (cache / "penstock" / jars.name).symlink_to(jars)
    return str(cache)


_GIVEN = {"kafka": ("KAFKA_HOME", "kafka_home"), "search": ("XDG_CACHE_HOME", "search_cache")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("sink", "reader", "proof"),
    [
        (
            "webhook",
            "receiver",
            r"[\d,]+ requests, [\d,]+ with a copied row; every signature holds",
        ),
        pytest.param(
            "kafka",
            "consumer",
            r"[\d,]+ records, [\d,]+ of copied rows; each exactly once",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "search",
            "index",
            r"[\d,]+ documents, each under its row's key and its last change's",
            marks=pytest.mark.long,
        ),
    ],
)
def test_demo_of_documents_proves_that_a_reader_has_what_the_source_has(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    scratch: Path,
    sink: str,
    reader: str,
    proof: str,
) -> None:
    env = {}
    if sink in _GIVEN:
        variable, fixture = _GIVEN[sink]
        env[variable] = request.getfixturevalue(fixture)
    out, err = _start(tmp_path, scratch, "--sink", sink, **env).communicate(timeout=280)

    assert f"the {reader} has every row and every value of the source" in out, err
    for table in TABLES:
        rows = re.search(rf"  {table} +([\d,]+)  (\w{{12}}) +([\d,]+)  (\w{{12}}) +equal", out)
        assert rows is not None
        assert (rows[1], rows[2]) == (rows[3], rows[4])
        assert rows[1] != "0"
    assert re.search(proof, out)
    assert f"kind: {sink}" in out
    assert "penstock run shop.yml" in out
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    assert list(scratch.iterdir()) == []
    assert _processes_of(scratch) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("sink", "started"), [("kafka", "a Kafka broker on port"), ("search", "node on port")]
)
def test_demo_that_is_killed_leaves_no_server(
    request: pytest.FixtureRequest, tmp_path: Path, scratch: Path, sink: str, started: str
) -> None:
    variable, fixture = _GIVEN[sink]
    env = {variable: request.getfixturevalue(fixture)}
    demo = _start(tmp_path, scratch, "--sink", sink, **env)
    assert demo.stdout is not None
    while started not in (line := demo.stdout.readline()):
        assert line

    demo.kill()
    demo.communicate(timeout=60)

    wait_until(lambda: not _processes_of(scratch), 60, "everything to be gone")
    wait_until(lambda: not list(scratch.iterdir()), 60, "its files to be gone")


def test_demo_of_an_unknown_sink_says_which_there_are(tmp_path: Path, scratch: Path) -> None:
    demo = _start(tmp_path, scratch, "--sink", "nonsense")
    _, err = demo.communicate(timeout=60)

    assert demo.returncode == 2
    assert (
        "PEN-103 --sink: no demo of a sink 'nonsense', wanted one of kafka, search, webhook" in err
    )


def test_demo_says_what_a_sink_needs_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(EmbeddedServerFailed, match="there is no mvn") as failure:
        destination("kafka").require()
    assert "KAFKA_HOME" in failure.value.do

    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedServerFailed, match=r"without libs/kafka_2"):
        destination("kafka").require()

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for sink in set(names()) - {"search"}:  # which needs no package
        with pytest.raises(PackageMissing) as failure:
            destination(sink).require()
        assert f"penstock[{sink}]" in failure.value.do


def test_demo_says_what_a_search_server_needs_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = Java(tmp_path / "java", 21)
    (java.home / "bin").mkdir(parents=True)
    (java.home / "bin" / "java").write_text("#!/bin/sh\necho java.base@21\n")
    (java.home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded_search, "javas", list)
    with pytest.raises(EmbeddedServerFailed, match="no Java 17") as failure:
        destination("search").require()
    assert "install a JDK" in failure.value.do

    monkeypatch.setattr(embedded_search, "javas", lambda: [java])
    with pytest.raises(EmbeddedServerFailed, match="is no JDK") as failure:
        destination("search").require()
    assert "install a JDK" in failure.value.do

    (java.home / "bin" / "java").write_text("#!/bin/sh\necho jdk.compiler@21\n")
    with pytest.raises(EmbeddedServerFailed, match=r"no opensearch-3.* no mvn") as failure:
        destination("search").require()
    assert failure.value.do == "install Maven"

    (tmp_path / "mvn").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "mvn").chmod(0o755)
    with pytest.raises(EmbeddedServerFailed, match="mvn cannot fetch opensearch-3") as failure:
        destination("search").require()
    assert "repository" in failure.value.do


def test_keeper_has_the_newest_of_each_row_in_whatever_order_documents_come() -> None:
    def document(lsn: int, op: str, key: int, after: Any, **more: Any) -> str:
        made = {"id": f"{lsn}", "op": op, "table": "t", "commit_lsn": f"0/{lsn:X}", "ordinal": 0}
        return json.dumps({**made, "key": {"id": key}, "before": None, "after": after, **more})

    documents = [
        document(16, "read", 1, {"id": 1, "old": 1.50}),
        document(17, "read", 2, {"id": 2, "old": 2}),
        document(18, "update", 9, {"id": 9, "old": 3}, before={"id": 2}),
        document(19, "schema", 0, None, difference=[
            {"op": "rename_column", "before": "old", "after": "new"}]),
        document(20, "insert", 3, {"id": 3, "new": 12345678901234567890}),
        document(21, "insert", 4, {"id": 4, "new": None}),
        document(22, "delete", 4, None),
    ]  # fmt: skip
    for order in (documents, documents[::-1], [*documents[3:], *documents]):
        keeper = Keeper()
        for each in order:
            keeper.take(each)

        assert keeper.row_counts() == {"t": 3}
        assert sorted(keeper.rows("t")) == [
            '{"id":1,"new":1.5}',
            '{"id":3,"new":12345678901234567890}',
            '{"id":9,"new":3}',
        ]
        assert keeper.repeated_count == len(order) - len(documents)


def test_demo_stopped_by_ctrl_c_removes_everything(tmp_path: Path, scratch: Path) -> None:
    demo = _start(tmp_path, scratch)
    assert demo.stdout is not None
    while "slot penstock_shop_" not in (line := demo.stdout.readline()):
        assert line

    os.killpg(demo.pid, signal.SIGINT)
    out, err = demo.communicate(timeout=60)

    assert (demo.returncode, err) == (0, "")
    assert "Stopped early. Everything is removed." in out
    assert list(tmp_path.iterdir()) == []
    assert list(scratch.iterdir()) == []
    assert _processes_of(scratch) == []


@pytest.mark.long
def test_demo_opens_its_page_which_shows_the_pipeline_while_it_runs(
    tmp_path: Path, scratch: Path
) -> None:
    opened = scratch.parent / f"{scratch.name}.opened"
    browser = scratch.parent / f"{scratch.name}.browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    try:
        demo = _start(tmp_path, scratch, "--open", BROWSER=str(browser))
        assert demo.stdout is not None
        while (
            found := re.search(
                r"its page: (http://\S+)/#token=(\S+)", line := demo.stdout.readline()
            )
        ) is None:
            assert line, demo.communicate()[1]

        def status() -> dict[str, Any]:
            asked = urllib.request.Request(
                f"{found[1]}/status", headers={"Authorization": f"Bearer {found[2]}"}
            )
            try:
                with urllib.request.urlopen(asked, timeout=10) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError:  # no status yet
                return {"phase": "starting"}

        wait_until(lambda: status()["phase"] == "streaming", 90, "the page to show it", 0.1)
        os.killpg(demo.pid, signal.SIGINT)
        _, err = demo.communicate(timeout=60)

        assert (demo.returncode, err) == (0, "")
        assert opened.read_text().strip() == f"{found[1]}/#token={found[2]}"
        assert list(scratch.iterdir()) == []
        assert _processes_of(scratch) == []
    finally:
        opened.unlink(missing_ok=True)
        browser.unlink()


@only_new
def test_proof_fails_when_one_value_differs(source: Database, target: Database) -> None:
    for side in (source, target):
        side.execute(SCHEMA)
        side.execute("INSERT INTO customers (email, joined_at) VALUES ('a@example.org', 'epoch')")
    with source.connect() as here, target.connect() as there:
        require_equal(compare(here, there))
        target.execute("UPDATE customers SET preferences = '{\"news\": true}'")
        compared = compare(here, there)

    with pytest.raises(RunError, match="customers has 1 rows, checksum") as failure:
        require_equal(compared)

    assert failure.value.exit_code == 1
    assert [each.table for each in compared if not each.is_equal] == ["customers"]


@only_new
def test_proof_waits_for_a_reader_that_has_as_many_rows_and_not_yet_the_same(
    source: Database,
) -> None:
    source.execute(SCHEMA)
    source.execute("INSERT INTO customers (email) VALUES ('a@example.org'), ('b@example.org')")
    source.execute("DELETE FROM customers WHERE id = 1")
    source.execute("ALTER TABLE customers RENAME COLUMN joined_at TO customer_since")
    there = source.value("SELECT to_json(c)::text FROM customers c")
    # Neither the insert of one row, nor the delete of another, nor the rename.
    behind = there.replace("customer_since", "joined_at").replace('"id":2', '"id":1')
    waits = []

    def rows(table: str) -> list[str]:
        return [] if table != "customers" else [there if waits else behind]

    with source.connect() as here:
        compared = compare_once_read(here, rows, lambda: waits.append(None))

    require_equal(compared)
    assert len(waits) == 1


def test_proof_fails_when_a_change_was_delivered_twice() -> None:
    with pytest.raises(RunError, match="3 changes were delivered, wanted at most the 2 written"):
        require_none_twice(2, 3)


@only_new
def test_watcher_sees_half_a_transfer(target: Database) -> None:
    target.execute(SCHEMA)
    target.execute("CREATE SCHEMA penstock; CREATE TABLE penstock.progress (delivered_lsn pg_lsn)")
    target.execute(
        "CREATE TABLE penstock.tables AS SELECT 'streaming' AS state FROM generate_series(1, 4)"
    )
    stock = f"SELECT n, n, 1, {STOCK_EACH} FROM generate_series(1, {PRODUCT_COUNT}) n"
    target.execute(f"INSERT INTO products (sku, title, price, stock) {stock}")
    watcher = Watcher(target.url)
    wait_until(lambda: watcher.poll_count)
    watcher.require_whole()

    target.execute("UPDATE products SET stock = stock - 5 WHERE sku = '1'")
    wait_until(lambda: watcher.torn_count)
    watcher.stop()

    with pytest.raises(RunError, match="saw half a transaction: 39995 pieces, wanted 40000"):
        watcher.require_whole()


@only_new
def test_rows_can_be_counted_while_a_migration_waits_for_its_next_table(source: Database) -> None:
    source.execute(SCHEMA)
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    counted: list[dict[str, int]] = []
    with source.connect(autocommit=False) as migrating, source.connect() as counting:
        migrating.execute("LOCK TABLE orders")
        counter = threading.Thread(target=lambda: counted.append(row_counts(counting)))
        counter.start()
        wait_until(lambda: source.value(waits), what="the count to wait for orders")

        migrating.execute("LOCK TABLE customers NOWAIT")
        migrating.rollback()
        counter.join(30)

    assert counted == [dict.fromkeys(TABLES, 0)]
