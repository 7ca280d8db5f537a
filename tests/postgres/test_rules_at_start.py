"""Rules of `modifiers:` beside the tables of several sources, at the start. No Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import pipeline_from_document
from penstock.errors import RuleUnfit
from penstock.run.start import start

if TYPE_CHECKING:
    from pathlib import Path

    from fix_postgres import Database
    from penstock.config import PipelineFile


def pipeline_of(urls: dict[str, str], table: str, state: Path) -> PipelineFile:
    document: dict[str, Any] = {
        "name": "test",
        "state": str(state),
        "sources": {name: {"url": url, "tables": ["public.*"]} for name, url in urls.items()},
        "modifiers": [{"filter": {"table": table, "rows": "none"}}],
        "sinks": {"lines": {"kind": "stdout"}},
    }
    return pipeline_from_document(document, "shop")


def test_rule_for_a_table_of_another_source_lets_a_source_start(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    target.execute("CREATE TABLE users (id int PRIMARY KEY)")
    urls = {"eu": source.url, "us": target.url}

    with pytest.raises(RuleUnfit, match="not followed") as caught:
        start(pipeline_of(urls, "ordres", tmp_path / "one").of("us"))
    started = start(pipeline_of(urls, "orders", tmp_path / "two").of("us"))

    assert caught.value.do == "write public.orders"
    assert started.slot is not None


def test_source_that_does_not_answer_may_have_the_table_of_a_rule(
    source: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    urls = {"eu": source.url, "us": "postgresql://nobody@127.0.0.1:1/away"}

    with caplog.at_level(logging.WARNING):
        start(pipeline_of(urls, "users", tmp_path).of("eu"))

    assert "public.users: rules are for a table that is not followed" in caplog.text
