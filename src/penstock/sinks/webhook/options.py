"""What a person may say about a webhook sink. Knows no client: nothing here needs the extra."""

import ipaddress
import re
import urllib.parse
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    SecretStr,
    model_validator,
)

from penstock.errors import BadValue
from penstock.options import (
    ByteCount,
    Options,
    RuleOption,
    Seconds,
    SinkOptions,
    TlsOptions,
    fault,
    wanted,
)
from penstock.sinks.webhook.addresses import AddressRule, Network
from penstock.sinks.webhook.formats import Format
from penstock.sinks.webhook.signature import key_of
from penstock.sql.text import SqlText, read_strangers_expression

MOST_URL_CHARACTERS = 2048
MOST_FILTER_CHARACTERS = 4000

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(s|min|h|d)?")
_UNITS = {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86400}


def check_url(given: Any) -> str:
    """A URL that requests can go to; what was given may hold a secret, and is not repeated.

    Raises:
        BadValue: it is none.
    """
    problem = "no URL, wanted https://host/path"
    try:
        parts = urllib.parse.urlsplit(given) if isinstance(given, str) else None
        host = parts.hostname if parts is not None else None
        _ = parts.port if parts is not None else None  # raises where it is none
    except ValueError:
        parts = host = None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        raise BadValue(problem, "url", "give a URL of http or https")
    if not given.isprintable() or " " in given or len(given) > MOST_URL_CHARACTERS:
        raise BadValue(
            f"a URL with blanks or above {MOST_URL_CHARACTERS} characters", "url", "shorten it"
        )
    if parts.username is not None or parts.password is not None:
        raise BadValue(
            "a URL with a user in it", "url", "receivers know us by the signature: give a secret"
        )
    if parts.fragment:
        raise BadValue("a URL with a fragment (#)", "url", "take it out: it is never sent")
    return str(given)


def _read_url(given: Any) -> str:
    try:
        return check_url(given)
    except BadValue as error:
        raise fault(error) from None


def _read_secret(given: SecretStr) -> SecretStr:
    try:
        key_of(given.get_secret_value())
    except BadValue as error:
        raise fault(error) from None
    return given


def _secrets(given: Any) -> Any:
    if given is None:
        return ()
    many = given if isinstance(given, list | tuple) else [given]
    if not 1 <= len(many) <= 2:
        raise wanted("one secret, or two while one is replaced: the new one first")
    return many


def _read_id(given: Any) -> str:
    if not isinstance(given, str) or not _ID.fullmatch(given) or given.startswith("sub_"):
        raise wanted(
            "up to 64 letters, digits, - and _, the first no - or _; not sub_ as over HTTP"
        )
    return given


def _read_network(given: Any) -> Network:
    try:
        return ipaddress.ip_network(given)
    except ValueError:
        raise wanted("an address or a network, such as 127.0.0.1 or 10.0.0.0/8") from None


def _read_duration(given: Any) -> float:
    match = None if isinstance(given, bool) else _DURATION.fullmatch(str(given).strip())
    if match is None or not float(match[1]):
        raise wanted("a time such as 3d, 12h, 30min or a number of seconds")
    return float(match[1]) * _UNITS[match[2]]


def _one_or_many(given: Any) -> Any:
    many = given if isinstance(given, list | tuple) else [given]
    return [{"url": each} if isinstance(each, str) else each for each in many]


def _read_filter(given: Any) -> SqlText:
    if not isinstance(given, str) or len(given) > MOST_FILTER_CHARACTERS:
        raise wanted(f"SQL over the columns of a row, of up to {MOST_FILTER_CHARACTERS} characters")
    return read_strangers_expression(given)


FilterText = Annotated[SqlText, PlainValidator(_read_filter)]
Url = Annotated[str, PlainValidator(_read_url)]
Secret = Annotated[SecretStr, AfterValidator(_read_secret)]
ReceiverId = Annotated[str, PlainValidator(_read_id)]
Operation = Literal["insert", "update", "delete", "truncate", "read", "schema"]
# A document has some hundred bytes beside its row: a lower limit would refuse them all.
BodyBytes = Annotated[ByteCount, Field(ge=1000)]
BatchSize = Annotated[int, Field(ge=1, le=1000)]


class Receiver(Options):
    """A receiver and what it wants, without what signs."""

    url: Annotated[Url, Field(repr=False)]  # may hold a secret
    tables: tuple[RuleOption, ...] = ()  # all
    operations: tuple[Operation, ...] = ()  # all
    format: Format = Format.PENSTOCK
    batch_size: BatchSize = 1
    filter: FilterText | None = None

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        if self.format is Format.PGSTREAM and self.batch_size > 1:
            raise fault(
                BadValue(
                    f"batch_size {self.batch_size} with format pgstream, wanted 1",
                    do="choose another format: pgstream's receivers take one event at a time",
                )
            )
        return self

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.filter is not None and not self.tables:
            raise fault(
                BadValue(
                    "a filter for all tables, wanted tables: beside it",
                    do="name the tables that have its columns",
                ),
                "filter",
            )
        return self


class Wanted(Receiver):
    """What a subscription is to be, without who made it and how far it is."""

    secret: Secret | None = None


class NamedReceiver(Receiver):
    """One that the file names. `id` keeps its place when its URL changes; of two secrets both sign, the new one first."""

    id: ReceiverId | None = None
    secret: Annotated[tuple[Secret, ...], BeforeValidator(_secrets)] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """As they sign."""
        return tuple(each.get_secret_value() for each in self.secret)


class WebhookOptions(SinkOptions):
    """Receivers that the file names, and what holds for all."""

    kind: Literal["webhook"] = "webhook"
    urls: Annotated[tuple[NamedReceiver, ...], BeforeValidator(_one_or_many)] = ()
    allow: tuple[Annotated[Network, PlainValidator(_read_network)], ...] = ()
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    connect_timeout: Seconds = 5.0
    timeout: Seconds = 30.0
    give_up_after: Annotated[float, PlainValidator(_read_duration)] = 3 * 86400.0
    retain_bytes: ByteCount = 10_000_000_000
    max_body_bytes: BodyBytes = 10_000_000
    tls: TlsOptions | None = None

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        known: set[str] = set()
        for each in self.urls:
            if each.id is not None and each.id in known:
                raise fault(
                    BadValue(
                        f"id {each.id} twice, wanted another one for each receiver",
                        do="choose another id: how far a receiver is, is known by it",
                    ),
                    "urls",
                )
            known |= {each.id} if each.id is not None else set()
        return self

    @property
    def addresses(self) -> AddressRule:
        """Where requests may go."""
        return AddressRule(self.allow)
