"""penstock: follow Postgres and deliver every change, once, through Spark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config import PipelineFile, read_pipeline
    from penstock.errors import PenstockError
    from penstock.findings import Finding
    from penstock.lsn import Lsn
    from penstock.run.functions import check, run, status
    from penstock.run.status import PipelineStatus
    from penstock.table import TableName

    __version__: str

__all__ = [
    "Finding",
    "Lsn",
    "PenstockError",
    "PipelineFile",
    "PipelineStatus",
    "TableName",
    "check",
    "read_pipeline",
    "run",
    "status",
]

_PLACES = {
    "Finding": "penstock.findings",
    "Lsn": "penstock.lsn",
    "PenstockError": "penstock.errors",
    "PipelineFile": "penstock.config",
    "PipelineStatus": "penstock.run.status",
    "TableName": "penstock.table",
    "check": "penstock.run.functions",
    "read_pipeline": "penstock.config",
    "status": "penstock.run.functions",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: the command must be able to answer Ctrl-C before all this is there.
    if name == "__version__":
        from importlib.metadata import version

        return version("penstock")
    if name == "run":
        return import_module("penstock.run")  # the package itself, which can be called
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
