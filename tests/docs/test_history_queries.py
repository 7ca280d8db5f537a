"""The queries that docs/howto/history.md hands out answer what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fix_postgres import only_new

if TYPE_CHECKING:
    from fix_postgres import Database

PAGE = Path(__file__).parents[2] / "docs/howto/history.md"

ALWAYS, STILL = "1900-01-01", "9999-01-01"
# The example of the document that asked for histories, and two colleagues.
ROWS = [
    (1, "John", 1000, ALWAYS, "2026-01-10", False),
    (1, "John", 1200, "2026-01-10", "2026-03-01", False),
    (1, "John", 2000, "2026-03-01", "2026-06-01", True),
    (2, "Jane", 3000, ALWAYS, STILL, False),
    (3, "Jim", 100, ALWAYS, "2019-01-01", False),
    (3, "Jim", 200, "2019-01-01", "2026-02-01", True),
    (3, "Jim", 300, "2026-04-01", STILL, False),
]


def _queries() -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


@only_new
def test_queries_of_the_page_answer_what_it_says(target: Database) -> None:
    target.execute(
        "CREATE TABLE employees (id int, name text, salary int, kvsz_start timestamptz,"
        " kvsz_end timestamptz, kvsz_deleted boolean, PRIMARY KEY (id, kvsz_start));"
    )
    target.execute(
        "CREATE UNIQUE INDEX ON employees (id) WHERE kvsz_end = '9999-01-01 00:00:00+00'"
    )
    target.execute(f"ALTER DATABASE \"{target.name}\" SET TimeZone = 'UTC'")
    for row in ROWS:
        target.execute("INSERT INTO employees VALUES (%s, %s, %s, %s, %s, %s)", *row)
    current, at_moment, of_one, deleted, changed, old = _queries()

    def salaries(query: str) -> list[tuple[Any, ...]]:
        return sorted((row[0], row[2]) for row in target.query(query))

    assert salaries(current) == [(2, 3000), (3, 300)]
    # At the very instant of a change one row answers, the new one.
    assert salaries(at_moment) == [(1, 2000), (2, 3000)]
    assert [row[2] for row in target.query(of_one)] == [1000, 1200, 2000]
    assert salaries(deleted) == [(1, 2000)]
    assert [row[:3] for row in target.query(changed)] == [(1, 1000, 1200), (1, 1200, 2000)]
    target.execute(old)
    assert target.query("SELECT salary FROM employees WHERE id = 3 ORDER BY 1") == [(200,), (300,)]
