"""Tables of the target whose policies would decide which rows are found and which may be written.

A DELETE that a policy lets find nothing deletes nothing, and says nothing. So such a table is refused,
as Postgres's own subscriptions do. Sessions have `row_security = off` besides: where it is switched on
later, the server itself refuses the next statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import PenstockError, TargetTableUnfit
from penstock.sinks.postgres.connect import classify_target_error, connect_target
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.dsn import Dsn

# For the role that asks: not for superusers, not with BYPASSRLS, for the owner if it is forced.
_FILTERED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relrowsecurity AND row_security_active(c.oid)
  AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY n.nspname, c.relname
"""


def filtered(source: TableName, target: TableName) -> TargetTableUnfit:
    """The error for a table whose policies hold for penstock's role."""
    return TargetTableUnfit(
        f"row-level security is on for {target}, and holds for penstock's role: rows that its policies"
        " hide would be neither changed nor deleted",
        str(source),
        f"ALTER ROLE … BYPASSRLS for the role of the sink's url, or ALTER TABLE {target} DISABLE ROW LEVEL"
        " SECURITY; its changes wait in the log",
    )


def filtered_tables(dsn: Dsn, targets: Mapping[TableName, TableName]) -> list[PenstockError]:
    """One error for each of the target tables that is such a one. `targets` say what goes there."""
    try:
        with connect_target(dsn, "penstock check") as connection:
            rows: list[Any] = connection.execute(_FILTERED, as_columns(targets)).fetchall()
    except psycopg.Error as error:
        return [classify_target_error(error, dsn)]
    except PenstockError as error:
        return [error]
    found = [TableName(*row) for row in rows]
    return [filtered(targets[target], target) for target in found]
