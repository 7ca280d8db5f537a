"""What a person may say about a search sink. Needs no client."""

import enum
import re
import urllib.parse
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, SecretStr, model_validator

from penstock.errors import BadValue
from penstock.options import ByteCount, Seconds, SinkOptions, TlsOptions, fault, wanted
from penstock.sinks.documents.patterns import problem_of


class Fields(enum.Enum):
    """What the fields of a document are called."""

    NAMES = "names"
    IDS = "ids"


class Numeric(enum.Enum):
    """What a numeric column is searched as."""

    SCALED = "scaled"
    KEYWORD = "keyword"
    DOUBLE = "double"


class Json(enum.Enum):
    """What a json column is searched as."""

    TEXT = "text"
    FLAT = "flat"


class Point(enum.Enum):
    """What a point is searched as."""

    KEYWORD = "keyword"
    GEO = "geo"


class Range(enum.Enum):
    """What a range of whole numbers, dates or instants is searched as."""

    RANGE = "range"
    KEYWORD = "keyword"


class Vector(enum.Enum):
    """What a vector of pgvector's is searched as."""

    VECTOR = "vector"
    TEXT = "text"


class DroppedTables(enum.Enum):
    """What becomes of the index of a table that is dropped."""

    KEEP = "keep"
    DELETE = "delete"


def _read_url(given: Any) -> str:
    given = given.strip() if isinstance(given, str) else given
    try:
        parts = urllib.parse.urlsplit(given) if isinstance(given, str) else None
        host = parts.hostname if parts is not None else None
        _ = parts.port if parts is not None else None  # raises where it is none
    except ValueError:
        parts = host = None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        raise wanted("http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        what = "has a user in it"
        raise fault(BadValue(what, do="write username: and password:, or api_key:, beside it"))
    if parts.query or parts.fragment:
        raise wanted("a URL without ? and #")
    # No request could be made of it, which would look like a server that is away.
    if re.search(r"[\s\x00-\x1f\x7f]", given) or not parts.path.isascii():
        raise wanted("a URL without spaces, and other letters than ASCII's as %XX")
    return str(given).rstrip("/")


def _read_index(given: str) -> str:
    if problem := problem_of(given, r"[a-z0-9._-]*"):
        what = "use lower-case letters, digits, '.', '_' and '-' beside the fields"
        raise fault(BadValue(problem, do=what))
    if re.match(r"[._-]", given):
        what = f"begins with {given[0]!r}, which no index may"
        raise fault(BadValue(what, do="let it begin with a letter, a digit or a field"))
    if "{schema}" not in given:
        what = "does not say which schema a document is of"
        raise fault(
            BadValue(what, do="write {schema} into it, and {table} for one index per table")
        )
    return given


class SearchTls(TlsOptions):
    """`verify: false` takes any server for the right one."""

    verify: bool = True


class SearchOptions(SinkOptions):
    """Where documents are indexed, and as what."""

    kind: Literal["search"] = "search"
    url: Annotated[str, PlainValidator(_read_url)]
    index: Annotated[str, AfterValidator(_read_index)] = "{schema}-{table}"
    fields: Fields = Fields.NAMES
    numeric_as: Numeric = Numeric.SCALED
    json_as: Json = Json.TEXT
    point_as: Point = Point.KEYWORD
    range_as: Range = Range.RANGE
    vector_as: Vector = Vector.VECTOR
    dropped_tables: DroppedTables = DroppedTables.KEEP
    shards: Annotated[int, Field(ge=1, le=1024)] | None = None
    replicas: Annotated[int, Field(ge=0, le=100)] | None = None
    gc_deletes: Seconds = 3600.0
    username: str | None = None
    password: SecretStr | None = None
    api_key: SecretStr | None = None
    tls: SearchTls | None = None
    timeout: Seconds = 60.0
    bulk_bytes: ByteCount = 4_000_000
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise fault(BadValue("has one of username and password", do="write both, or none"))
        if self.api_key is not None and self.username is not None:
            raise fault(BadValue("has both a password and an api_key", do="write one of them"))
        if self.api_key is not None and not re.fullmatch(
            r"[!-~]+", self.api_key.get_secret_value()
        ):
            what = "has a space, a line break or a letter that no header takes"
            raise fault(BadValue(what, do="see the variable that it comes from"), "api_key")
        if self.tls is not None and not self.url.startswith("https://"):
            raise fault(
                BadValue("is for https", do="write https:// in url, or take tls out"), "tls"
            )
        return self
