"""What `penstock status` shows of the working files of a sink of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.sinks.documents.parked import Parked
from penstock.sinks.documents.workspace import copying_of
from penstock.sinks.status import TableStatus

if TYPE_CHECKING:
    from penstock.sinks.documents.contract import DocumentKind
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.status import SinkStatus


def add_working_files(kind: DocumentKind[Any], place: SinkPlace[Any], status: SinkStatus) -> None:
    """Add how far copies have got, which are asked for, and how many documents are parked."""
    copying = copying_of(kind, place)
    try:
        under_way, asked = copying.under_way(), copying.asked()
        status.parked = Parked(kind.workspace(place).parked).count()
    except PenstockError as error:
        status.error = str(error)
        return
    for table, (arrived, range_count) in under_way.items():
        entry = status.tables.setdefault(str(table), TableStatus("copying"))
        entry.ranges_done, entry.ranges_total = len(arrived.ranges), range_count
        entry.rows_copied, entry.bytes_copied = arrived.row_count, arrived.byte_count
    for table in asked:
        if str(table) in status.tables:
            status.tables[str(table)].request = "resync"
