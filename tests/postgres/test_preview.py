"""`penstock modifiers … preview` of rows at a server. No Spark, no log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_command import run_penstock
from fix_postgres import only_new
from penstock.config import read_pipeline
from penstock.errors import BadValue
from penstock.run.preview import destination, preview

if TYPE_CHECKING:
    from pathlib import Path

    from fix_postgres import Database

pytestmark = only_new


def written(source: Database, directory: Path, *rules: dict[str, Any]) -> Path:
    document = {
        "name": "test",
        "source": {"url": source.url, "tables": ["*.*"]},
        "modifiers": list(rules),
        "sinks": {"lines": {"kind": "stdout"}},
    }
    path = directory / "shop.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_table_that_is_only_sent_elsewhere_is_shown_as_it_is(
    source: Database, tmp_path: Path
) -> None:
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text); INSERT INTO users VALUES (1, 'Ann')"
    )
    source.execute("CREATE TABLE others (id int PRIMARY KEY)")
    path = written(source, tmp_path, {"route": {"table": "users", "target": "crm.{table}"}})
    pipeline = read_pipeline(path)

    [row] = preview(pipeline, "users", sink=None, rows=5, from_log=False)
    shown = run_penstock("modifiers", path, "preview", "--table", "users")

    assert row.before == row.after == {"id": "1", "name": "Ann"}
    assert str(destination(pipeline, "users", None)) == "crm.users"
    assert "1 shown, 1 delivered to crm.users" in shown.stdout, shown.stderr
    with pytest.raises(BadValue, match="no rule"):
        preview(pipeline, "others", sink=None, rows=5, from_log=False)
