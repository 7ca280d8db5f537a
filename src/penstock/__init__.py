"""penstock: follow Postgres and deliver every change, once, through Spark."""

from importlib.metadata import version as _version

from penstock.config import PipelineFile, read_pipeline
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.table import TableName

__version__ = _version("penstock")

__all__ = ["Lsn", "PenstockError", "PipelineFile", "TableName", "read_pipeline"]
