"""Every error as one tree. Knows nothing of where errors are raised or printed.

    PenstockError
    ├── PipelineFileError   PEN-1xx  the command line or the file is wrong; exit code 2
    ├── SourceError         PEN-2xx  the Postgres that is followed
    ├── LogError            PEN-3xx  the durable log and the state directory
    ├── DecodeError         PEN-4xx  bytes that are not what the protocol says
    ├── SinkError           PEN-5xx  what changes are delivered to
    └── RunError            PEN-6xx  processes, Spark, locks

An exception raised in a Spark task reaches the driver as text only, so the code in the text is how
the driver recognises it (`recognise`). No message holds a password or a row value; keys are allowed.
"""

from penstock.errors.base import (
    PenstockError,
    Remedy,
    error_classes,
    recognise,
)
from penstock.errors.decode import (
    DecodeError,
    SchemaUnreadable,
)
from penstock.errors.log import (
    DiskFull,
    LogError,
    LogFull,
    StateOfAnother,
    StateUnusable,
)
from penstock.errors.pipelinefile import (
    BadTableRule,
    BadUrl,
    BadValue,
    MissingVariable,
    NotThereYet,
    PipelineFileError,
    UnknownKey,
)
from penstock.errors.run import (
    EmbeddedServerFailed,
    Exposed,
    JavaMissing,
    PositionTaken,
    RunError,
    SecondInstance,
    SidesDiffer,
    SparkDies,
    SparkFailed,
    SparkGone,
    VaultUnreadable,
)
from penstock.errors.sink import (
    PositionMissing,
    ReaderGone,
    RowRefused,
    SchemaChangeRefused,
    SchemaChangeStops,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
    SinkTooOld,
    TargetTableMissing,
    TargetTableUnfit,
)
from penstock.errors.source import (
    DecodingFailed,
    NoSlotLeft,
    OtherCluster,
    PoolerInTheWay,
    PublicationChanged,
    SlotInUse,
    SlotLost,
    SlotMissing,
    SlotMoved,
    SnapshotGone,
    SourceDatabaseMissing,
    SourceError,
    SourceLoginRefused,
    SourcePrivilegeMissing,
    SourceRestored,
    SourceTooOld,
    SourceTwice,
    TableMissing,
    TableRewritten,
    TableUnreadable,
    TableWithoutKey,
    TrackingBroken,
    WalLevelTooLow,
)

__all__ = [
    "BadTableRule",
    "BadUrl",
    "BadValue",
    "DecodeError",
    "DecodingFailed",
    "DiskFull",
    "EmbeddedServerFailed",
    "Exposed",
    "JavaMissing",
    "LogError",
    "LogFull",
    "MissingVariable",
    "NoSlotLeft",
    "NotThereYet",
    "OtherCluster",
    "PenstockError",
    "PipelineFileError",
    "PoolerInTheWay",
    "PositionMissing",
    "PositionTaken",
    "PublicationChanged",
    "ReaderGone",
    "Remedy",
    "RowRefused",
    "RunError",
    "SchemaChangeRefused",
    "SchemaChangeStops",
    "SchemaUnreadable",
    "SecondInstance",
    "SidesDiffer",
    "SinkError",
    "SinkLoginRefused",
    "SinkPrivilegeMissing",
    "SinkTooOld",
    "SlotInUse",
    "SlotLost",
    "SlotMissing",
    "SlotMoved",
    "SnapshotGone",
    "SourceDatabaseMissing",
    "SourceError",
    "SourceLoginRefused",
    "SourcePrivilegeMissing",
    "SourceRestored",
    "SourceTooOld",
    "SourceTwice",
    "SparkDies",
    "SparkFailed",
    "SparkGone",
    "StateOfAnother",
    "StateUnusable",
    "TableMissing",
    "TableRewritten",
    "TableUnreadable",
    "TableWithoutKey",
    "TargetTableMissing",
    "TargetTableUnfit",
    "TrackingBroken",
    "UnknownKey",
    "VaultUnreadable",
    "WalLevelTooLow",
    "error_classes",
    "recognise",
]
