"""What is seen of the pipeline while it runs: pictures of both sides, until it has caught up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import psycopg

from penstock.demo.shop import row_counts
from penstock.demo.view import Picture
from penstock.errors import RunError, recognise
from penstock.lsn import Lsn
from penstock.run.status import SinkStatus, read_status
from penstock.run.supervise import mark_now

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from penstock.config import PipelineFile
    from penstock.demo.proof import Watcher
    from penstock.demo.writer import Writer
    from penstock.sinks.postgres.options import PostgresOptions

# Counted from Spark's start. The writer begins before, so that there is something to catch up with.
_WRITE_SECONDS = 10.0
_PICTURE_SECONDS = 0.25
_PATIENCE_SECONDS = 90.0


class Interrupted(Exception):
    """A person has seen enough."""
