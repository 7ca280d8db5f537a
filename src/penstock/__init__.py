"""penstock: follow Postgres and deliver every change, once, through Spark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config import PipelineFile, read_pipeline
    from penstock.errors import PenstockError
    from penstock.lsn import Lsn
    from penstock.table import TableName

    __version__: str

__all__ = ["Lsn", "PenstockError", "PipelineFile", "TableName", "read_pipeline"]

_PLACES = {
    "Lsn": "penstock.lsn",
    "PenstockError": "penstock.errors",
    "PipelineFile": "penstock.config",
    "TableName": "penstock.table",
    "read_pipeline": "penstock.config",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: the command must be able to answer Ctrl-C before all this is there.
    if name == "__version__":
        from importlib.metadata import version

        return version("penstock")
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
