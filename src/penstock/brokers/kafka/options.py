"""What a person may say about Kafka, whoever uses it. Knows no client: nothing here needs the extra."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BeforeValidator, SecretStr

from penstock.errors import BadValue
from penstock.options import fault, wanted

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
    # Python's client takes these beside librdkafka's, and no text for them.
    "logger": None,
    "default.topic.config": None,
}


def _read_servers(given: Any) -> str:
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        given = ",".join(given)
    if not isinstance(given, str) or not given.strip() or "@" in given or "://" in given:
        raise wanted("host:port of one broker or more, with commas between")
    if not all(map(_is_server, given.split(","))):
        raise wanted("host:port of one broker or more, with commas between; a port is up to 65535")
    return given.strip()


def _is_server(given: str) -> bool:
    match = re.fullmatch(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:;\[\]]+)(?::([0-9]{1,5}))?", given.strip())
    return match is not None and 0 < int(match[1] or 1) <= 65535


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
                do=f"write {use}: of the same mapping" if use else "take it out",
            ),
            key,
        )
    return given


def _topic_name(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", given):
        raise wanted("the name of a topic: letters, digits, '.', '_' and '-'")
    return given


class Connecting(Protocol):
    """What clients need to know."""

    @property
    def servers(self) -> str:
        """Brokers, with commas between."""
        ...

    @property
    def conf(self) -> Mapping[str, SecretStr]:
        """Settings of librdkafka."""
        ...

    @property
    def timeout(self) -> float:
        """How long an answer is waited for, in seconds."""
        ...


Servers = Annotated[str, BeforeValidator(_read_servers)]
"""Brokers: a text, or a list of texts."""

Setting = Annotated[str, BeforeValidator(_read_setting)]
SecretSetting = Annotated[SecretStr, BeforeValidator(_read_setting)]

Conf = Annotated[dict[str, SecretSetting], AfterValidator(_check_conf)]
"""Settings of librdkafka, any of which may be a secret."""

TopicName = Annotated[str, AfterValidator(_topic_name)]
"""The name of one topic."""
