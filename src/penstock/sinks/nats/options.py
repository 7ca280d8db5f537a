"""What a person may say about a NATS sink. Knows no client: nothing here needs the extra."""

import enum
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from penstock.brokers.nats.options import Servers, Storage, StreamName
from penstock.errors import BadValue
from penstock.options import (
    ByteCount,
    LocalPath,
    Seconds,
    SinkOptions,
    TlsOptions,
    fault,
    wanted,
)
from penstock.sinks.documents.patterns import problem_of

USUAL_WINDOW = 120.0  # seconds


class Discard(enum.Enum):
    """What a stream at its limit refuses or removes."""

    NEW = "new"
    OLD = "old"


class Order(enum.Enum):
    """Whether a message is taken though the one before it was not."""

    USUAL = "usual"
    STRICT = "strict"


def _read_subject(given: str) -> str:
    problem = problem_of(given, r"[A-Za-z0-9_.-]*")
    if problem is None and (given.startswith((".", "$")) or given.endswith(".") or ".." in given):
        problem = f"{given!r} has an empty token"
    if problem:
        raise fault(BadValue(problem, do="use letters, digits, '.', '_' and '-' beside the fields"))
    return given


class NatsOptions(SinkOptions):
    """Where documents are published, and what the stream is made like where it is missing."""

    kind: Literal["nats"] = "nats"
    url: Servers
    subject: Annotated[str, AfterValidator(_read_subject)] = "{pipeline}.{schema}.{table}"
    stream: StreamName | None = None  # the pipeline's name
    create_stream: bool = True
    storage: Storage = Storage.FILE
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    max_bytes: ByteCount | None = None
    # Limits that the server can hold: 64 bits, of nanoseconds where it is a time, of which it takes no less than 0.1 s.
    max_messages: Annotated[int, Field(ge=1, lt=1 << 62)] | None = None
    max_age: Annotated[float, Field(ge=0.1, lt=1e9)] | None = None  # seconds
    discard: Discard = Discard.NEW
    duplicate_window: Annotated[float, Field(ge=0.1, lt=1e9)] = USUAL_WINDOW
    order: Order = Order.USUAL
    window: Annotated[int, Field(ge=1, le=100_000)] = 1000
    timeout: Seconds = 30.0
    credentials: LocalPath | None = None
    nkey: LocalPath | None = None
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    tls: TlsOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _usual_window(cls, given: Any) -> Any:
        """NATS knows no id for longer than its message: where the age is short, the usual window is."""
        if not isinstance(given, Mapping) or "duplicate_window" in given:
            return given
        try:
            age = float(given["max_age"])
        except (KeyError, TypeError, ValueError):
            return given  # there is none, or its own check says what is wrong with it
        return {**given, "duplicate_window": age} if 0 < age < USUAL_WINDOW else given

    @model_validator(mode="after")
    def _window_within_age(self) -> Self:
        if self.max_age is not None and self.duplicate_window > self.max_age:
            raise wanted(f"at most max_age, {self.max_age:g}", "duplicate_window")
        return self

    @model_validator(mode="after")
    def _strict_without_replicas(self) -> Self:
        if self.order is Order.STRICT and self.replicas > 1:
            raise wanted("usual, where replicas is more than 1", "order")
        return self


def plain_name(text: str) -> str:
    """A name that a stream may have."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)
