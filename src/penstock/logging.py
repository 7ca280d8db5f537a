"""How penstock's log lines look: to stderr, as text for people or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import time


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object per line."""
        return json.dumps(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                + f".{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                "part": record.name.removeprefix("penstock."),
                "message": record.getMessage(),
            }
        )


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is stderr now: a progress bar puts itself in between while it is there."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        """Asked for at every line."""
        return sys.stderr


def set_up_logging(log_format: str, log_level: str) -> None:
    """Send penstock's own lines to stderr; other libraries keep silent below warnings."""
    handler = _ToStderr()
    if log_format == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("penstock").setLevel(log_level.upper())
    # py4j tells of connections that end when Spark is stopped; that is no news.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
