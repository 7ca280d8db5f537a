"""What a person may say about a log on Kafka. Knows no client: nothing here needs the extra."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from penstock.brokers.kafka.options import Conf, Servers, Setting
from penstock.brokers.names import name_with
from penstock.log.options import LogOptions
from penstock.options import Seconds, wanted


def _read_topic(given: str) -> str:
    if not name_with(given, r"[A-Za-z0-9._-]", ("pipeline", "source")):
        raise wanted("a topic: letters, digits, '.', '_' and '-', {pipeline} and {source}")
    return given


def _read_state_topic(given: str) -> str:
    if not name_with(given, r"[A-Za-z0-9._-]", ("pipeline",)):
        raise wanted("a topic: letters, digits, '.', '_' and '-', and {pipeline}")
    return given


class KafkaLogOptions(LogOptions):
    """Topics: one for the log of each source, one for what the halves report to each other."""

    kind: Literal["kafka"] = "kafka"
    servers: Servers
    topic: Annotated[str, AfterValidator(_read_topic)] = "penstock.{pipeline}.{source}.log"
    state_topic: Annotated[str, AfterValidator(_read_state_topic)] = "penstock.{pipeline}.state"
    create_topics: bool = True
    replication_factor: Annotated[int, Field(ge=1, le=100)] | None = None
    config: dict[str, Setting] = Field(default_factory=dict)
    timeout: Seconds = 10.0
    conf: Conf = Field(default_factory=dict)
