"""What a person may say about a log on NATS. Knows no client: nothing here needs the extra."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from penstock.brokers.names import name_with
from penstock.brokers.nats.options import Servers
from penstock.log.options import LogOptions
from penstock.options import LocalPath, Seconds, TlsOptions, wanted


def _read_stream(given: str) -> str:
    if not name_with(given, r"[A-Za-z0-9_-]", ("pipeline", "source")):
        raise wanted("a stream: letters, digits, '_' and '-', {pipeline} and {source}")
    return given


def _read_bucket(given: str) -> str:
    if not name_with(given, r"[A-Za-z0-9_-]", ("pipeline",)):
        raise wanted("a bucket: letters, digits, '_' and '-', and {pipeline}")
    return given


class NatsLogOptions(LogOptions):
    """JetStream: a stream for the log of each source, a bucket for what the halves report to each other."""

    kind: Literal["nats"] = "nats"
    url: Servers
    stream: Annotated[str, AfterValidator(_read_stream)] = "penstock-{pipeline}-{source}-log"
    bucket: Annotated[str, AfterValidator(_read_bucket)] = "penstock-{pipeline}-state"
    create_streams: bool = True
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    timeout: Seconds = 10.0
    credentials: LocalPath | None = None
    nkey: LocalPath | None = None
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    tls: TlsOptions | None = None
