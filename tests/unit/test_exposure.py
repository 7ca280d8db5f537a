"""Which connections others could listen to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.config import pipeline_from_document
from penstock.dsn import Dsn
from penstock.run.exposure import exposures, is_here, may_go_in_clear


@pytest.mark.parametrize(
    "host",
    [
        "",
        "/run/postgresql",
        "@abstract",
        "localhost",
        "LOCALHOST.",
        "127.0.0.1",
        "127.9.9.9",
        "::1",
    ],
)
def test_sockets_and_loopback_stay_here(host):
    assert is_here(host)


@pytest.mark.parametrize(
    "host", ["db1", "db1.example.com", "10.0.0.1", "192.0.2.1", "fe80::1%eth0", "2001:db8::1"]
)
def test_other_hosts_are_away(host):
    assert not is_here(host)


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("postgresql://db1/shop", True),
        ("postgresql://db1/shop?sslmode=disable", True),
        ("postgresql://db1/shop?sslmode=allow", True),
        ("postgresql://db1/shop?sslmode=prefer", True),
        ("postgresql://db1/shop?sslmode=require", False),
        ("postgresql://db1/shop?sslmode=verify-ca", False),
        ("postgresql://db1/shop?sslmode=verify-full", False),
        ("postgresql://localhost/shop", False),
        ("postgresql:///shop", False),
        ("postgresql:///shop?host=/run/postgresql", False),
        ("postgresql://localhost,db2/shop", True),
        ("host=localhost hostaddr=192.0.2.1 dbname=shop", True),
        ("service=shop", False),
    ],
)
def test_string_says_whether_a_connection_may_be_without_tls(url, exposed, monkeypatch):
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)

    assert may_go_in_clear(Dsn.parse(url)) is exposed


def test_environment_may_ask_for_tls_as_well(monkeypatch):
    monkeypatch.setenv("PGSSLMODE", "verify-full")

    assert not may_go_in_clear(Dsn.parse("postgresql://db1/shop"))


@pytest.mark.parametrize(
    ("spark", "count"),
    [
        ({}, 0),
        ({"master": "local[2]"}, 0),
        ({"conf": {"spark.authenticate": False}}, 1),
        ({"master": "spark://one:7077"}, 2),
        ({"master": "yarn", "conf": {"spark.authenticate": True}}, 1),
        (
            {
                "master": "k8s://one",
                "conf": {"spark.authenticate": True, "spark.network.crypto.enabled": True},
            },
            0,
        ),
    ],
)
def test_spark_that_takes_orders_from_anybody_is_warned_of(spark, count, tmp_path):
    document = {
        "name": "shop",
        "source": {"url": "postgresql://127.0.0.1:1/shop", "tables": ["public.*"]},
        "sinks": {"out": {"kind": "file", "path": str(tmp_path)}},
        "spark": spark,
    }

    found = exposures(pipeline_from_document(document, "test"))

    assert [each.code for each in found] == ["PEN-610"] * count


def test_token_that_is_short_is_warned_of(tmp_path):
    document = {
        "name": "shop",
        "source": {"url": "postgresql://localhost:1/shop", "tables": ["public.*"]},
        "sinks": {"out": {"kind": "stdout"}},
        "state": str(tmp_path),
    }
    for given, count in (("secret", 1), ("s" * 16, 0)):
        found = exposures(pipeline_from_document({**document, "token": given}, "test"))
        assert len([each for each in found if each.where == "token"]) == count
        assert not any("secret" in str(each) for each in found)


def test_host_that_is_away_and_does_not_answer_is_judged_by_what_the_string_says(tmp_path):
    document = {
        "name": "shop",
        "source": {"url": "postgresql://db.invalid/shop", "tables": ["public.*"]},
        "sinks": {
            "one": {"kind": "postgres", "url": "postgresql://db.invalid/shop"},
            "two": {"kind": "postgres", "url": "postgresql://db2.invalid/x?sslmode=require"},
        },
    }

    found = exposures(pipeline_from_document(document, "test"))

    assert [(each.code, each.where) for each in found] == [("PEN-610", "db.invalid:5432/shop")]


@pytest.mark.parametrize("way", ["option", "variable", "no password"])
def test_password_on_the_command_line_is_warned_of(way, tmp_path):
    secret = "" if way == "no password" else ":hunter2c4n4ry"
    url = f"postgresql://ana{secret}@127.0.0.1:1/shop"
    command = [sys.executable, "-m", "penstock", "run", "--target", "postgresql://127.0.0.1:1/x"]
    environment = {**os.environ, "PENSTOCK_SOURCE": url}
    if way != "variable":
        command += ["--source", url]
        del environment["PENSTOCK_SOURCE"]

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert ("--source holds a password" in done.stderr) is (way == "option")
    assert "hunter2c4n4ry" not in done.stderr
