"""What a person may say about a NATS sink. Knows no client: nothing here needs the extra."""

import enum
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from penstock.errors import BadValue
from penstock.options import ByteCount, LocalPath, Options, Seconds, SinkOptions, fault, wanted
from penstock.sinks.documents.patterns import problem_of


class Storage(enum.Enum):
    """Where a stream has its messages."""

    FILE = "file"
    MEMORY = "memory"


class Discard(enum.Enum):
    """What a stream at its limit refuses or removes."""

    NEW = "new"
    OLD = "old"


def _read_servers(given: Any) -> list[str]:
    servers = [given] if isinstance(given, str) else given
    if not isinstance(servers, list) or not servers:
        raise wanted("nats://host:port, or a list of them")
    for each in servers:
        if not isinstance(each, str) or not re.match(r"(nats|tls|ws|wss)://[^/\s]+$", each):
            raise wanted("nats://host:port or tls://host:port")
        if "@" in each:
            raise fault(
                BadValue(
                    "a URL with a user in it, wanted nats://host:port",
                    do="write user: and password:, token: or credentials: of the sink",
                )
            )
    return servers


def _read_subject(given: str) -> str:
    problem = problem_of(given, r"[A-Za-z0-9_.-]*")
    if problem is None and (given.startswith((".", "$")) or given.endswith(".") or ".." in given):
        problem = f"{given!r} has an empty token"
    if problem:
        raise fault(BadValue(problem, do="use letters, digits, '.', '_' and '-' beside the fields"))
    return given


def _read_stream(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", given):
        raise wanted("the name of a stream: letters, digits, '_' and '-'")
    return given


class TlsOptions(Options):
    """Certificates, as files."""

    ca: LocalPath | None = None
    certificate: LocalPath | None = None
    key: LocalPath | None = None

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise fault(BadValue("has one of certificate and key", do="give both, or neither"))
        return self


class NatsOptions(SinkOptions):
    """Where documents are published, and what the stream is made like where it is missing."""

    kind: Literal["nats"] = "nats"
    url: Annotated[list[str], BeforeValidator(_read_servers)]
    subject: Annotated[str, AfterValidator(_read_subject)] = "{pipeline}.{schema}.{table}"
    stream: Annotated[str, AfterValidator(_read_stream)] | None = None  # the pipeline's name
    create_stream: bool = True
    storage: Storage = Storage.FILE
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    max_bytes: ByteCount | None = None
    max_messages: Annotated[int, Field(ge=1)] | None = None
    max_age: Annotated[float, Field(gt=0)] | None = None  # seconds
    discard: Discard = Discard.NEW
    duplicate_window: Seconds = 120.0
    window: Annotated[int, Field(ge=1, le=100_000)] = 1000
    timeout: Seconds = 30.0
    credentials: LocalPath | None = None
    nkey: LocalPath | None = None
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    tls: TlsOptions | None = None
