"""What a person may say about a Kafka sink. Knows no client: nothing here needs the extra."""

import enum
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from penstock.errors import BadValue, NotThereYet
from penstock.options import Seconds, SinkOptions, fault, wanted
from penstock.sinks.documents.patterns import problem_of

# What penstock sets itself, and what would break a promise if somebody else did.
_OWN_SETTINGS = {
    "bootstrap.servers": "servers",
    "metadata.broker.list": "servers",
    "transactional.id": None,
    "enable.idempotence": None,
    "acks": None,
    "request.required.acks": None,
    "partitioner": None,
    "isolation.level": None,
    "group.id": None,
    "group.instance.id": None,
    "enable.auto.commit": None,
    "message.timeout.ms": "timeout",
    "delivery.timeout.ms": "timeout",
    "transaction.timeout.ms": "transaction_timeout",
}


class RecordKey(enum.Enum):
    """What a record's key is made of."""

    SCHEMA = "schema"
    TABLE = "table"
    PRIMARY_KEY = "primary_key"


class Delivery(enum.Enum):
    """How often a document may come."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Format(enum.Enum):
    """How a record's value is written."""

    JSON = "json"


def _read_servers(given: Any) -> str:
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        given = ",".join(given)
    if not isinstance(given, str) or not given.strip() or "@" in given or "://" in given:
        raise wanted("host:port of one broker or more, with commas between")
    return given.strip()


def _read_topic(given: str) -> str:
    if problem := problem_of(given, r"[A-Za-z0-9._-]*"):
        raise fault(BadValue(problem, do="use letters, digits, '.', '_' and '-' beside the fields"))
    return given


def _read_format(given: Any) -> Any:
    if given in ("debezium", "avro"):
        what = f"is {given}, which is not there yet in this version; wanted json"
        raise fault(NotThereYet(what, do="write format: json"))
    return given


def _read_setting(given: Any) -> Any:
    if isinstance(given, bool):
        return str(given).lower()
    return str(given) if isinstance(given, int | float) else given


def _check_conf(given: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for key in given:
        if key not in _OWN_SETTINGS and not key.startswith("plugin."):
            continue
        use = _OWN_SETTINGS.get(key)
        raise fault(
            BadValue(
                "is set by penstock itself",
                do=f"write {use}: of the sink" if use else "take it out",
            ),
            key,
        )
    return given


def _topic_name(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", given):
        raise wanted("the name of a topic: letters, digits, '.', '_' and '-'")
    return given


Setting = Annotated[str, BeforeValidator(_read_setting)]
SecretSetting = Annotated[SecretStr, BeforeValidator(_read_setting)]


class KafkaOptions(SinkOptions):
    """Where documents are produced, as which records, and how often."""

    kind: Literal["kafka"] = "kafka"
    servers: Annotated[str, BeforeValidator(_read_servers)]
    topic: Annotated[str, AfterValidator(_read_topic)] = "{pipeline}.{schema}.{table}"
    create_topics: bool = True
    partitions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    replication_factor: Annotated[int, Field(ge=1, le=100)] | None = None
    config: dict[str, Setting] = Field(default_factory=dict)
    key: RecordKey = RecordKey.PRIMARY_KEY
    format: Annotated[Format, BeforeValidator(_read_format)] = Format.JSON
    delivery: Delivery = Delivery.EXACTLY_ONCE
    tombstones: bool = False
    progress_topic: Annotated[str, AfterValidator(_topic_name)] = "penstock.progress"
    timeout: Seconds = 30.0
    transaction_timeout: Seconds = 600.0
    conf: Annotated[dict[str, SecretSetting], AfterValidator(_check_conf)] = Field(
        default_factory=dict
    )
