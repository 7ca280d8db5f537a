"""What tests of sinks and of changes need. Public: under semantic versioning, as `penstock.sink` is.

`SinkContract` tests a document sink, `RowSinkContract` one of rows; the rest makes pgoutput messages by hand, and logs of them.
"""

from penstock.testing.contract import RowSinkContract, SinkContract
from penstock.testing.stream import (
    TYPE_OIDS,
    UNCHANGED,
    Unchanged,
    Value,
    begin,
    changes,
    commit,
    delete,
    insert,
    joined,
    logical_message,
    read_log,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    table,
    transaction,
    truncate,
    update,
    write_log,
)

__all__ = [
    "TYPE_OIDS",
    "UNCHANGED",
    "RowSinkContract",
    "SinkContract",
    "Unchanged",
    "Value",
    "begin",
    "changes",
    "commit",
    "delete",
    "insert",
    "joined",
    "logical_message",
    "read_log",
    "relation",
    "stream_abort",
    "stream_commit",
    "stream_start",
    "stream_stop",
    "table",
    "transaction",
    "truncate",
    "update",
    "write_log",
]
