"""How to do the same with one's own databases. The demo itself runs this file and this SQL."""

from __future__ import annotations

import shutil
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.demo.destinations import Destination

PIPELINE = """\
name: shop
state: ./shop-state                 # log and positions, beside this file
source:
  url: ${SHOP_URL}
  tables: ["public.*"]
sinks:
  warehouse:
    kind: postgres
    url: ${WAREHOUSE_URL}
"""

SOURCE_SQL = """\
CREATE ROLE penstock LOGIN REPLICATION PASSWORD 'secret';
GRANT shop_owner TO penstock;                -- the role that owns the tables
GRANT CREATE ON DATABASE shop TO penstock;   -- to make its publication
"""

TARGET_SQL = """\
CREATE ROLE penstock LOGIN PASSWORD 'secret';
GRANT CREATE ON DATABASE warehouse TO penstock;
GRANT CREATE ON SCHEMA public TO penstock;   -- to make the tables
-- to switch foreign keys off while it delivers; from version 15 on:
GRANT SET ON PARAMETER session_replication_role TO penstock;
"""

_ADVICE = """\
Now with your own databases: the demo ran exactly this file with these grants.

1. On the source, as a superuser; SHOW wal_level must say logical, if not:
     ALTER SYSTEM SET wal_level = 'logical';      -- and restart the server
{source_sql}
2. On the target, as a superuser:
{target_sql}
3. In a file shop.yml:
{pipeline}
4. In a shell:
{commands}"""

_COMMANDS = """\
export SHOP_URL=postgresql://penstock:secret@source-host/shop
export WAREHOUSE_URL=postgresql://penstock:secret@target-host/warehouse
penstock check shop.yml     # what is still missing, each with the SQL that fixes it
penstock init shop.yml --print-sql  # let a superuser run it, and migrations travel as well
penstock run shop.yml       # copies, then streams until Ctrl-C; goes on from there
penstock status shop.yml    # where every table stands, from another shell
"""


def advice() -> str:
    """The lines to end the demo with."""
    return _ADVICE.format(
        source_sql=_indented(SOURCE_SQL),
        target_sql=_indented(TARGET_SQL),
        pipeline=_indented(PIPELINE),
        commands=_indented(_with_path(_COMMANDS)),
    )


_DOCUMENT_ADVICE = """\
Now with your own database: the demo ran exactly this file with these grants.

1. On the source, as a superuser; SHOW wal_level must say logical, if not:
     ALTER SYSTEM SET wal_level = 'logical';      -- and restart the server
{source_sql}
2. In a file shop.yml:
{pipeline}
3. In a shell:
{commands}
More: {page}"""

_DOCUMENT_COMMANDS = """\
export SHOP_URL=postgresql://penstock:secret@source-host/shop
{exports}penstock check shop.yml     # what is still missing, each with what fixes it
penstock run shop.yml       # copies, then streams until Ctrl-C; goes on from there
penstock status shop.yml    # where every table stands, from another shell
"""


def document_advice(destination: Destination) -> str:
    """The lines to end the demo of a destination of documents with."""
    commands = _DOCUMENT_COMMANDS.format(exports=destination.exports)
    return _DOCUMENT_ADVICE.format(
        source_sql=_indented(SOURCE_SQL),
        pipeline=_indented(destination.pipeline),
        commands=_indented(_with_path(commands)),
        page=destination.page,
    )


def _with_path(commands: str) -> str:
    if shutil.which("penstock") is not None:
        return commands
    return f'export PATH="{sysconfig.get_path("scripts")}:$PATH"\n{commands}'


def _indented(text: str) -> str:
    return "".join(f"     {line}" for line in text.splitlines(keepends=True))
