"""`penstock check` reports rules that no table is meant by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fix_command import run_penstock
from fix_pipeline import INITIAL
from fix_postgres import only_new
from penstock.config import pipeline_from_document
from penstock.run.check import find
from penstock.run.requests import add_tables

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

pytestmark = only_new

HISTORY: dict[str, Any] = {"kind": "history"}


def test_rule_that_matches_no_followed_table_is_a_warning_that_names_it(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    source.execute(
        "CREATE TABLE salary (id int PRIMARY KEY); CREATE TABLE kept_out (id int PRIMARY KEY)"
    )
    source.execute("CREATE TABLE keyless (v text)")  # a finding of its own
    rules = {
        "salary": HISTORY,
        "public.salery": HISTORY,
        "kept_out": {},
        "keyless": {},
        "public.*": {},
    }
    path = pipeline_file(
        source,
        target,
        tables={"include": ["*.*"], "exclude": ["kept_out"]},
        sink={"tables": rules},
    )

    def check(*options: str) -> subprocess.CompletedProcess[str]:
        return run_penstock("check", path, *options)

    reported, plain = check("--json"), check()

    assert reported.returncode == plain.returncode == 0, reported.stderr + plain.stderr
    found = [each for each in json.loads(reported.stdout) if each["code"] == "PEN-107"]
    assert [(each["severity"], each["place"], each["what"]) for each in found] == [
        ("warning", "sinks.target.tables", f"the rule {name} matches no table that is followed")
        for name in ("public.kept_out", "public.salery")
    ]
    assert all("correct its name" in each["do"] for each in found)
    assert "the rule public.salery matches no table that is followed" in plain.stderr


def test_rule_of_a_table_that_was_renamed_or_added_since_is_meant(
    source: Database, target: Database, make_pipeline: Callable[..., RunningPipeline]
) -> None:
    source.execute(
        "CREATE TABLE salary (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(
        source,
        target,
        tables={"include": ["*.*"], "exclude": ["late"]},
        sink={"tables": {"salary": HISTORY, "late": {}, "gone": {}}},
        source_options=INITIAL,
    )
    add_tables(pipeline.file, ["late"])
    source.execute("INSERT INTO salary VALUES (1)")
    pipeline.catch_up()
    source.execute("ALTER TABLE salary RENAME TO wages")
    source.execute("INSERT INTO wages VALUES (2)")
    pipeline.catch_up()

    reported = [each.what for each in find(pipeline.file) if each.code == "PEN-107"]

    assert reported == ["the rule public.gone matches no table that is followed"]


def test_rules_are_not_judged_by_a_source_that_does_not_answer(
    source: Database, target: Database
) -> None:
    url = source.url.replace(source.name, "nowhere")
    document = {
        "name": "test",
        "source": {"url": url, "tables": ["*.*"]},
        "sinks": {"target": {"kind": "postgres", "url": target.url, "tables": {"salery": HISTORY}}},
    }

    codes = {each.code for each in find(pipeline_from_document(document, "test"))}

    assert codes
    assert "PEN-107" not in codes


def test_check_says_what_is_followed_and_what_the_target_lacks(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    source.execute(
        "CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION btree_gist;"
        "CREATE TABLE a (id int PRIMARY KEY, v citext, w hstore[]);"
        "CREATE TABLE b (id int PRIMARY KEY, n int); CREATE INDEX ON b USING gist (n);"
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)"
    )
    for number in range(4):
        source.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
    target.execute("CREATE EXTENSION hstore")
    path = pipeline_file(source, target)

    done = run_penstock("check", path)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == ("tables: 7 (public.a, public.b, public.p, public.t0, public.t1 and 2 more)")
    assert lines[1] == "partitioned, plain where penstock creates them: 1 (public.p)"
    missing = [line for line in done.stderr.splitlines() if "PEN-515" in line]
    assert ["citext" in line for line in missing] == [False, True]
    assert "btree_gist" in missing[0]
    assert "public.b" in missing[0]
    assert "Do: CREATE EXTENSION" in done.stderr


def test_check_says_which_sequences_will_look_different(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    source.execute(
        "CREATE TABLE a (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY);"
        "CREATE SEQUENCE loose; CREATE SEQUENCE spare; CREATE SCHEMA elsewhere;"
        "CREATE SEQUENCE elsewhere.hidden;"
        "CREATE TABLE b (id int PRIMARY KEY DEFAULT nextval('loose'), m int DEFAULT nextval('loose'));"
        "CREATE TABLE unseen (id serial PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY DEFAULT nextval('unseen_id_seq'));"
        "CREATE TABLE d (id int PRIMARY KEY DEFAULT nextval('a_id_seq'), t text);"
        "CREATE SEQUENCE own OWNED BY d.t; ALTER TABLE d ALTER t SET DEFAULT 'D' || nextval('own')"
    )
    rules = {"include": ["public.*"], "exclude": ["public.unseen"]}
    path = pipeline_file(source, target, source_options={"tables": rules})

    done = run_penstock("check", path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:-2] == [
        "tables: 4 (public.a, public.b, public.c, public.d)",
        "identity ALWAYS, BY DEFAULT where penstock creates them: 1 (public.a)",
        (
            "sequences, behind at the target until penstock sync-sequences: 4"
            " (public.a_id_seq, public.a_n_seq, public.loose, public.own)"
        ),
        "sequences of no serial column, created under their own names: 2 (public.loose, public.own)",
        (
            "sequences that several columns count with, one at the target as well: 2"
            " (public.a_id_seq, public.loose)"
        ),
        "sequences left out, with the defaults that name them: 1 (public.unseen_id_seq)",
        "sequences left out, no followed column counts with them: 1 (public.spare)",
    ]


def test_check_names_no_sequences_where_no_table_is_created(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    source.execute("CREATE TABLE a (id serial PRIMARY KEY); CREATE SEQUENCE spare")
    target.execute("CREATE TABLE a (id int PRIMARY KEY)")
    path = pipeline_file(source, target, sink={"create_tables": False})

    done = run_penstock("check", path)

    assert done.returncode == 0, done.stderr
    assert "sequences" not in done.stdout
