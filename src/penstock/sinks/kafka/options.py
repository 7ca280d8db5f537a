"""What a person may say about a Kafka sink. Knows no client: nothing here needs the extra."""

import enum
import re
import urllib.parse
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from penstock.brokers.kafka.options import Conf, Servers, Setting, TopicName
from penstock.errors import BadValue
from penstock.options import LocalPath, Options, Seconds, SinkOptions, fault, wanted
from penstock.sinks.documents.patterns import problem_of


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
    DEBEZIUM = "debezium"
    AVRO = "avro"


class Decimals(enum.Enum):
    """How `format: debezium` writes a numeric."""

    PRECISE = "precise"
    DOUBLE = "double"
    STRING = "string"


class Compatibility(enum.Enum):
    """What a registry is to let pass when a table changes; `registry`: what it says itself."""

    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    REGISTRY = "registry"


def _read_topic(given: str) -> str:
    if problem := problem_of(given, r"[A-Za-z0-9._-]*"):
        raise fault(BadValue(problem, do="use letters, digits, '.', '_' and '-' beside the fields"))
    return given


def _read_registry_url(given: str) -> str:
    if not re.fullmatch(r"https?://[^/@\s]+(/\S*)?", given) or not _has_host(given):
        raise wanted(
            "http:// or https://, a host, and no login: that goes to username and password"
        )
    return given


def _has_host(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return bool(host) and parts.port != 0
    except ValueError:
        return False


class RegistryOptions(Options):
    """Where the schemas of `format: avro` are registered."""

    url: Annotated[str, AfterValidator(_read_registry_url)]
    username: str | None = None
    password: SecretStr | None = None
    ca: LocalPath | None = None
    timeout: Seconds = 10.0
    compatibility: Compatibility = Compatibility.BACKWARD

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise fault(BadValue("has one of username and password", do="write both, or none"))
        return self


class KafkaOptions(SinkOptions):
    """Where documents are produced, as which records, and how often."""

    kind: Literal["kafka"] = "kafka"
    servers: Servers
    topic: Annotated[str, AfterValidator(_read_topic)] = "{pipeline}.{schema}.{table}"
    create_topics: bool = True
    partitions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    replication_factor: Annotated[int, Field(ge=1, le=100)] | None = None
    config: dict[str, Setting] = Field(default_factory=dict)
    key: RecordKey = RecordKey.PRIMARY_KEY
    format: Format = Format.JSON
    decimals: Decimals | None = None
    registry: RegistryOptions | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    tombstones: bool | None = None
    progress_topic: TopicName = "penstock.progress"
    timeout: Seconds = 30.0
    # At least 1: librdkafka's rule.
    transaction_timeout: Annotated[Seconds, Field(ge=1)] = 600.0
    conf: Conf = Field(default_factory=dict)

    @property
    def writes_tombstones(self) -> bool:
        """Whether deletes are followed by one: as Debezium does, unless somebody says otherwise."""
        return self.format is not Format.JSON if self.tombstones is None else self.tombstones

    @property
    def _is_by_table(self) -> bool:
        return {"{schema}", "{table}"} <= set(re.findall(r"\{[a-z]+\}", self.topic))

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.format is not Format.JSON and self.key is not RecordKey.PRIMARY_KEY:
            what = f"is {self.key.value}, and records of format {self.format.value} have the primary key"
            raise fault(BadValue(what, do="take key: out, or write format: json"), "key")
        if self.tombstones and self.key is not RecordKey.PRIMARY_KEY:
            what = f"is true, and the key is the {self.key.value}: a delete would be one of all its rows"
            raise fault(BadValue(what, do="write key: primary_key, or take it out"), "tombstones")
        if self.format is Format.DEBEZIUM and self.writes_tombstones and not self._is_by_table:
            what = "is for several tables, and keys of format: debezium do not say of which: a tombstone would be one for rows of all"
            do = "write {schema} and {table} into it, or tombstones: false"
            raise fault(BadValue(what, do=do), "topic")
        if self.decimals is not None and self.format is not Format.DEBEZIUM:
            raise fault(BadValue("is for format: debezium", do="take it out"), "decimals")
        if self.format is not Format.AVRO:
            if self.registry is not None:
                raise fault(BadValue("is for format: avro", do="take it out"), "registry")
            return self
        if self.registry is None:
            what = "is missing, and format: avro registers schemas"
            raise fault(BadValue(what, do="write registry: {url: …}"), "registry")
        if not self._is_by_table:
            what = "is for several tables, and the schemas of format: avro belong to one topic each"
            raise fault(BadValue(what, do="write {schema} and {table} into it"), "topic")
        return self
