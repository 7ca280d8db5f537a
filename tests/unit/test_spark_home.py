"""The directory of one start of Spark: nobody else's, and nothing stays of it."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress

import pytest

from fix_machine import mounted_disk
from penstock.embedded.java import java_home
from penstock.errors import SparkFailed
from penstock.spark.home import SparkHome
from penstock.spark.jvm import LAUNCHER_OPTIONS
from penstock.spark.options import SparkOptions
from penstock.spark.settings import settings_of


def test_home_and_what_is_in_it_are_for_its_user_alone(tmp_path):
    home = SparkHome(tmp_path)
    path = home.write_properties({"spark.hadoop.key": "secret"})

    assert home.path.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    home.remove()
    assert list(tmp_path.iterdir()) == []


def test_home_of_a_process_that_was_killed_is_removed_by_the_next(tmp_path):
    alive = SparkHome(tmp_path)
    dead = SparkHome(tmp_path)
    (dead.path / "connections.json").write_text("{}")
    os.close(dead._lock)

    another = SparkHome(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([alive.path, another.path])
    alive.remove()
    another.remove()


def test_home_is_short_enough_for_sockets_however_long_the_path_of_temporary_files(
    tmp_path, monkeypatch
):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    home = SparkHome()

    assert len(os.fsencode(home.path)) <= 64
    home.remove()


def test_place_that_takes_no_files_is_named(tmp_path):
    with pytest.raises(SparkFailed, match="set TMPDIR") as raised:
        SparkHome(tmp_path / "gone")
    with mounted_disk(tmp_path, "64k"):
        home = SparkHome(tmp_path)
        with suppress(OSError):
            (tmp_path / "others").write_bytes(bytes(1024 * 1024))
        with pytest.raises(SparkFailed, match="No space left") as full:
            home.write_properties({"spark.hadoop.key": "x" * 10_000})
        home.remove()

    assert raised.value.where == str(tmp_path / "gone")
    assert full.value.where == str(home.path)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("local[2]", "local[2]"),
        ("a=b: c", "a\\u003db\\u003a\\u0020c"),
        ("back\\slash\nline", "back\\u005cslash\\u000aline"),
        ("ü😀", "\\u00fc\\ud83d\\ude00"),
        ("!#", "\\u0021\\u0023"),
    ],
)
def test_properties_are_written_as_java_reads_them(tmp_path, value, written):
    home = SparkHome(tmp_path)

    path = home.write_properties({"spark.k": value})

    assert path.read_text() == f"spark.k={written}\n"
    home.remove()


def test_every_start_on_this_machine_has_another_secret(tmp_path):
    options = SparkOptions(master="local[2]")

    one, other = (settings_of("shop", options, tmp_path) for _ in range(2))

    assert one["spark.authenticate"] == "true"
    assert len(one["spark.authenticate.secret"]) == 64
    assert one["spark.authenticate.secret"] != other["spark.authenticate.secret"]
    assert one["spark.python.unix.domain.socket.dir"] == str(tmp_path)


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
def test_jvms_start_where_the_environment_chooses_a_garbage_collector(
    tmp_path, monkeypatch, variable
):
    monkeypatch.setenv(variable, "-Dfile.encoding=UTF-8 -XX:+UseParallelGC")
    java_options = settings_of("shop", SparkOptions(), tmp_path)["spark.driver.extraJavaOptions"]
    assert str(tmp_path) in java_options

    for given in (java_options, LAUNCHER_OPTIONS):
        java = [str(java_home() / "bin" / "java"), *shlex.split(given), "-version"]
        done = subprocess.run(java, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_jvm_has_the_collector_that_costs_least_where_nobody_chooses_another(tmp_path):
    options = settings_of("shop", SparkOptions(), tmp_path)["spark.driver.extraJavaOptions"]

    assert "-XX:+UseSerialGC" in options.split()


def test_settings_of_a_cluster_are_its_own(tmp_path):
    conf = {"spark.authenticate": "true", "spark.authenticate.secret": "theirs"}

    settings = settings_of("shop", SparkOptions(master="spark://one:7077", conf=conf), tmp_path)

    assert settings["spark.authenticate.secret"] == "theirs"
    assert "spark.local.dir" not in settings
    assert "spark.python.unix.domain.socket.dir" not in settings
