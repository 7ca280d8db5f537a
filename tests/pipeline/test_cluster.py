"""A standalone cluster that authenticates and encrypts, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_pipeline import assert_equal, pipeline_document, row_count
from fix_postgres import only_new
from fix_processes import command_line, tree_of
from fix_wait import wait_until
from penstock.embedded.java import java_home
from penstock.embedded.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = [only_new, pytest.mark.long]

SECRET, PASSWORD = "cl0st3rc4n4ry", "t4rg3tc4n4ry"
SETTINGS = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": SECRET,
    "spark.network.crypto.enabled": "true",
}


class Cluster:
    """A master and one worker."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._directory = directory
        self._properties = directory / "cluster.properties"
        self._properties.write_text("".join(f"{k} {v}\n" for k, v in SETTINGS.items()))
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self.processes = [
            self._start("master.Master", "master.log", "--port", str(port)),
        ]
        wait_until(lambda: self.has_said("master.log", "I have been elected leader"), 60)
        sized = ["--cores", "2", "--memory", "1G", "--work-dir", str(directory / "work")]
        self.processes.append(self._start("worker.Worker", "worker.log", *sized, self.master))
        wait_until(lambda: self.has_said("worker.log", "Successfully registered"), 60)

    def has_said(self, log: str, text: str) -> bool:
        return text in (self._directory / log).read_text()

    def _start(self, role: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        common = ["--host", "127.0.0.1", "--webui-port", "0", "--properties-file"]
        with (self._directory / log).open("wb") as file:
            return subprocess.Popen(
                [
                    str(self._home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{role}",
                    *common,
                    str(self._properties),
                    *arguments,
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "JAVA_HOME": str(java_home()),
                    "SPARK_HOME": str(self._home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    made = Cluster(directory)
    yield made
    made.stop()


def pipeline_on(
    master: str, source: Database, target: Database, directory: Path, settings: dict[str, Any]
) -> Path:
    url = f"{target.url}{'&' if '?' in target.url else '?'}password={PASSWORD}"
    document = pipeline_document(source, url, directory)
    document["source"]["snapshot"] = "initial"
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", **settings}
    document["spark"] = {"master": master, "conf": conf}
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_pipeline_runs_on_a_cluster_that_authenticates(
    source: Database,
    target: Database,
    cluster: Cluster,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(1, 9000) g")
    path = pipeline_on(cluster.master, source, target, tmp_path, SETTINGS)
    command = penstock_command("run", str(path), env={"SPARK_LOCAL_IP": "127.0.0.1"})
    wait_until(lambda: row_count(target, "t") == 9000, 90, what="the copy")
    source.execute("INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(9001, 30000) g")
    wait_until(lambda: row_count(target, "t") == 30_000, 90, what="the stream")

    everything = [command.process.pid, *(process.pid for process in cluster.processes)]
    shown = "\0".join(
        word for pid in everything for each in tree_of(pid) for word in command_line(each)
    )
    kept = list((tmp_path / "test-state").glob("penstock-spark-*/connections.json"))

    assert SECRET not in shown
    assert PASSWORD not in shown
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600]
    assert command.terminate() == 0, command.stderr
    assert not kept[0].parent.exists()
    assert_equal(source, target, "t")
