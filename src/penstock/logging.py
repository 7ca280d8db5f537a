"""The format of penstock's log lines: to stderr, as text for people or JSON for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from penstock.text import printable, printable_lines

# Which source and which sink the work of this thread is for, where a pipeline has several.
_source: ContextVar[str] = ContextVar("source", default="")
_sink: ContextVar[str] = ContextVar("sink", default="")
# Which batch it is about, and its trace.
_batch: ContextVar[tuple[int | None, str | None]] = ContextVar("batch", default=(None, None))


def speak_for(source_id: str) -> None:
    """Have lines of this thread name a source; "" for none."""
    _source.set(source_id)


def speak_of_sink(name: str) -> None:
    """Have lines of this thread name a sink; "" for none."""
    _sink.set(name)


def speak_of_batch(number: int | None, trace_id: str | None = None) -> None:
    """Have lines of this thread in JSON name a batch and its trace; None for none."""
    _batch.set((number, trace_id))


def _of_batch() -> dict[str, Any]:
    number, trace_id = _batch.get()
    named = {} if number is None else {"batch": number}
    return {**named, "trace_id": trace_id} if trace_id else named


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object per line."""
        return json.dumps(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                + f".{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                "part": record.name.removeprefix("penstock."),
                **({"source": _source.get()} if _source.get() else {}),
                **({"sink": _sink.get()} if _sink.get() else {}),
                **_of_batch(),
                "message": record.getMessage(),
                **self._error(record),
            }
        )

    def _error(self, record: logging.LogRecord) -> dict[str, Any]:
        """What Python prints of a defect; its lines are within the one of JSON."""
        if not record.exc_info or record.exc_info[0] is None:
            return {}
        return {"error": self.formatException(record.exc_info)}


def json_lines() -> logging.Formatter:
    """How `--log-format json` writes lines, for handlers of somebody else's."""
    return _JsonLines()


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The time, the source and the sink if there are several, the message.

        What others have a say in is in the arguments. Each is on one line, or is an error with its
        advice; what Python prints of a defect is indented, so that no line of it can be taken for one of ours.
        """
        text = str(record.msg)
        if record.args:
            text %= _safe(record.args)
        if record.exc_info:
            trace = printable_lines(self.formatException(record.exc_info))
            text += "".join(f"\n    {line}" for line in trace.split("\n"))
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        sink = f"sink {_sink.get()}: " if _sink.get() else ""
        if not text.startswith(sink):  # some lines name it themselves
            text = sink + text
        return f"{at} {_source.get()}: {text}" if _source.get() else f"{at} {text}"


_ADVICE = re.compile(r"(PEN-\d{3} [^\n]*\n  Do: )([^\n]*)")


def _safe(args: Any) -> Any:
    if isinstance(args, Mapping):
        return {name: _safe_one(arg) for name, arg in args.items()}
    return tuple(map(_safe_one, args))


def _safe_one(arg: object) -> object:
    text = str(arg)
    safe = printable_lines(text) if _ADVICE.fullmatch(text) else printable(text)
    return arg if safe == text else safe  # as it is: it may be a number


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is stderr now: a progress bar puts itself in between while it is there."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        """Asked for at every line."""
        return sys.stderr


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Whether a line is not about a connection to the JVM, some of which py4j logs in nobody's name.

    Connections end when Spark is stopped, and when it dies, which is reported by who notices it.
    """
    return "/py4j/" not in record.pathname


def set_up_logging(log_format: str, log_level: str) -> None:
    """Send penstock's own lines to stderr; other libraries keep silent below warnings."""
    handler = _ToStderr()
    if log_format == "json":
        handler.setFormatter(json_lines())
    else:
        handler.setFormatter(_TextLines("%(message)s"))
    handler.addFilter(_is_not_py4j)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("penstock").setLevel(log_level.upper())
