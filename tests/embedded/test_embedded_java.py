"""java_home on machines with a good Java, a wrong one, and none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.embedded import java
from penstock.errors import JavaMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_java_remembered() -> Iterator[None]:
    java.java_home.cache_clear()
    yield
    java.java_home.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """A machine whose only Javas are the ones given: puts a fake one in JAVA_HOME or on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "path").mkdir()

    def install(place: str, version: int) -> Path:
        home = tmp_path / f"java-{version}"
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        spelled = f"1.{version}" if version < 9 else str(version)
        program.write_text(
            "#!/bin/sh\n"
            f'echo "    java.home = {home}" >&2\n'
            f'echo "    java.specification.version = {spelled}" >&2\n'
        )
        program.chmod(0o755)
        if place == "JAVA_HOME":
            monkeypatch.setenv("JAVA_HOME", str(home))
        else:
            (tmp_path / "path" / "java").symlink_to(program)
        return home

    return install


def test_java_home_variable_wins_over_path(machine: Callable[[str, int], Path]):
    chosen = machine("JAVA_HOME", 17)
    machine("PATH", 21)

    assert java.java_home() == chosen


def test_java_on_path_is_taken_when_the_variable_names_an_old_one(
    machine: Callable[[str, int], Path],
):
    machine("JAVA_HOME", 8)
    chosen = machine("PATH", 21)

    assert java.java_home() == chosen


@pytest.mark.parametrize("version", [11, 23, 25])
def test_wheel_is_taken_when_spark_cannot_run_on_the_machines_java(
    machine: Callable[[str, int], Path], tmp_path: Path, version: int
):
    machine("PATH", version)

    home = java.java_home()

    assert home.is_relative_to(tmp_path / "cache" / "penstock")
    assert java.probe(home / "bin" / "java").version == 21


def test_wrapper_inherited_from_a_parent_process_is_kept(
    machine: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
):
    wrapper = java.java_home()
    java.java_home.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(wrapper))

    assert java.java_home() == wrapper


def test_wheels_java_given_by_hand_is_wrapped(
    machine: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAVA_HOME", str(java._wheel_java().parents[1]))

    assert java.java_home().is_relative_to(tmp_path / "cache")


def test_machine_without_any_java_is_told_what_to_do(
    machine: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
):
    machine("PATH", 25)
    monkeypatch.setattr(java, "_wheel_java", lambda: None)

    with pytest.raises(JavaMissing, match="found Java 25 in") as caught:
        java.java_home()

    assert "penstock[embedded]" in caught.value.do


def test_java_that_does_not_run_is_named(
    machine: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr(java, "_wheel_java", lambda: None)

    with pytest.raises(JavaMissing, match="gone/bin/java, which does not run"):
        java.java_home()


def test_wrapper_drops_one_argument_and_keeps_the_others_whole(tmp_path: Path):
    echo = tmp_path / "it's a java"
    echo.write_text('#!/bin/sh\nfor one in "$@"; do printf "<%s>" "$one"; done\n')
    echo.chmod(0o755)
    home = java._placed(java._script(echo), tmp_path / "home")

    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "*", '"q"', "$x"]
    done = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )

    assert done.stdout == '<-Xmx1g><-Da=b c><><*><"q"><$x>'


def test_unusable_cache_directory_is_skipped(
    machine: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert (java.java_home() / "bin" / "java").exists()


_MAKE = """
import sys
from pathlib import Path
from penstock.embedded.java import _placed
sys.stdin.readline()
home = _placed("#!/bin/sh\\n", Path(sys.argv[1]) / "java-home")
print((home / "bin" / "java").read_text())
"""


def test_processes_that_make_the_wrapper_at_once_all_get_it(tmp_path: Path):
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]

    printed = {maker.communicate("go\n", timeout=60)[0] for maker in makers}

    assert printed == {"#!/bin/sh\n\n"}
    assert [path.name for path in tmp_path.iterdir()] == ["java-home"]


_SESSION = """
import os, sys
from pathlib import Path
from penstock.embedded import java
os.environ["JAVA_HOME"] = str(java.wrapper_home(java._wheel_java()))
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
rows = spark.sparkContext.parallelize(range(10), 2).map(lambda n: n * n).sum()
print(rows, spark.sparkContext._jvm.System.getProperty("java.version"))
spark.stop()
"""


@pytest.mark.long
def test_spark_session_runs_on_the_wheels_java(tmp_path: Path):
    # A process of its own: a JVM cannot be changed once this one has started it.
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("SPARK_SUBMIT_OPTS", None)  # names classes that another Java has archived
    done = subprocess.run(
        [sys.executable, "-c", _SESSION],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout.split()[:1] == ["285"], done.stderr[-2000:]
    assert done.stdout.split()[1].startswith("21.")
