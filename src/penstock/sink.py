"""What a sink is written against. Public: what stands here changes by semantic versioning alone.

A **document sink** delivers JSON documents, one for each change. Its author writes a class with about
five methods (`DocumentSink`), says what people may write in the pipeline file (`SinkOptions`), and ties
the two together (`DocumentKind`), which a package announces under the entry-point group `penstock.sinks`.

A **row sink** gets rows instead: the net changes of a table per key, as typed Arrow columns (`RowSink`, `RowKind`).

Everything else is penstock's: which changes are next, workers, order, copied rows, which table is at
which position, trying again, parking what the destination refuses. docs/howto/write-a-sink.md walks
through an example; `penstock.testing.SinkContract`
and `RowSinkContract` test a sink.
"""

from penstock.changes.documents import DOCUMENTS, json_lines
from penstock.changes.netbatch import NetBatch
from penstock.changes.typed import Unfit
from penstock.dsn import Dsn
from penstock.errors import (
    PenstockError,
    SecondInstance,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
)
from penstock.failpoints import fault_point
from penstock.findings import Finding
from penstock.options import ByteCount, DsnOption, LocalPath, Options, Seconds, SinkOptions
from penstock.sinks.describe import WholeSchema
from penstock.sinks.documents.contract import DocumentKind, DocumentSink, DocumentsRefused
from penstock.sinks.documents.format import DocumentFormat
from penstock.sinks.documents.workspace import Workspace
from penstock.sinks.kind import SinkKind, SinkPlace
from penstock.sinks.rows.contract import (
    RowChanges,
    RowKind,
    RowSink,
    TableAltered,
    TableChange,
    TableEmptied,
)
from penstock.table import TableName

__all__ = [
    "DOCUMENTS",
    "ByteCount",
    "DocumentFormat",
    "DocumentKind",
    "DocumentSink",
    "DocumentsRefused",
    "Dsn",
    "DsnOption",
    "Finding",
    "LocalPath",
    "NetBatch",
    "Options",
    "PenstockError",
    "RowChanges",
    "RowKind",
    "RowSink",
    "SecondInstance",
    "Seconds",
    "SinkError",
    "SinkKind",
    "SinkLoginRefused",
    "SinkOptions",
    "SinkPlace",
    "SinkPrivilegeMissing",
    "TableAltered",
    "TableChange",
    "TableEmptied",
    "TableName",
    "Unfit",
    "WholeSchema",
    "Workspace",
    "fault_point",
    "json_lines",
]
