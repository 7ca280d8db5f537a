"""What every options class shares: the base model, and the kinds of value they have in common.

Each part of penstock declares its own options, in its own folder, from these. Nothing here knows
a key of the pipeline file, nor the file: a fault carries where it is as a path of keys, and
`config.py` finds the line.
"""

import difflib
import enum
import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from penstock.dsn import Dsn
from penstock.errors import BadTableRule, BadUrl, BadValue, NotThereYet, PenstockError, UnknownKey
from penstock.table import TableRule


def fault(error: PenstockError, *below: str | int) -> PydanticCustomError:
    """An error of ours on its way through pydantic, which keeps the path of keys to it.

    Raising `error` itself would end validation without that path. `below` goes on from there,
    for a check that sees a whole mapping.
    """
    return PydanticCustomError(
        "fault", "{what}", {"what": error.what, "error": error, "below": below}
    )


def wanted(what: str, *below: str | int) -> PydanticCustomError:
    """A value that cannot be taken; who reports it puts what was found beside `what`."""
    return PydanticCustomError(
        "wanted", "Input should be {wanted}", {"wanted": what, "below": below}
    )


def nearest(word: str, among: Sequence[str]) -> str:
    """Advice that names the one of `among` that `word` most likely meant."""
    if near := difflib.get_close_matches(word, among, n=1):
        return f"write {near[0]}"
    near = difflib.get_close_matches(word, among, n=1, cutoff=0.0)
    return f"take it out; the nearest that is known is {near[0]}"


class Options(BaseModel):
    """Options of one part: frozen, and without room for a key that nobody reads."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    # Keys that interface.md promises and no code carries out yet, each with the values that ask
    # for nothing and may therefore stand.
    later: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @classmethod
    def keys(cls) -> list[str]:
        """The keys as the file spells them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _take_known_keys(cls, given: Any) -> Any:
        if given is None:  # `log:` with nothing behind it
            return {}
        if not isinstance(given, Mapping):
            return given
        known = cls.keys()
        for key, value in given.items():
            if key in cls.later and value not in cls.later[key]:
                raise fault(
                    NotThereYet("is not there yet in this version", do=f"leave {key} out"), key
                )
            if key not in cls.later and key not in known:
                raise fault(
                    UnknownKey(
                        f"is not a known key, wanted one of {', '.join(known)}",
                        do=nearest(str(key), [*known, *cls.later]),
                    ),
                    str(key),
                )
        return {key: value for key, value in given.items() if key not in cls.later}


class OnRefused(enum.Enum):
    """What a row or document that the destination refuses means."""

    STOP = "stop"
    PARK = "park"


class SinkOptions(Options):
    """What people may say of every sink."""

    on_refused: OnRefused = OnRefused.STOP


def _read_dsn(given: Any) -> Dsn:
    if isinstance(given, Dsn):
        return given
    if not isinstance(given, str):
        raise wanted("a connection URL")
    try:
        return Dsn.parse(given)
    except BadUrl as error:
        raise fault(error) from None


def _read_rule(given: Any) -> TableRule:
    if isinstance(given, TableRule):
        return given
    if not isinstance(given, str):
        raise wanted("a table: schema.table, schema.* or *.table")
    if "://" in given and ("@" in given or '"' not in given):
        # Legal as a name, but a URL in the wrong place by far more often, and then it is secret.
        raise fault(
            BadTableRule("a URL, wanted schema.table", do='quote it if it is a name: "a://b"')
        )
    try:
        return TableRule.parse(given)
    except BadTableRule as error:
        raise fault(error) from None


_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?(?:([kmgt])?(i)?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def _read_byte_count(given: Any) -> int:
    match = None if isinstance(given, bool) else _SIZE.fullmatch(str(given).strip())
    if match is not None:
        base = 1024 if match[3] else 1000
        count = int(Decimal(match[1]) * base ** _POWERS[(match[2] or "").lower()])
        if 0 < count < 1 << 62 and not (match[3] and not match[2]):
            return count
    raise wanted("a number of bytes such as 1000, 512MiB or 10GB")


def _within_a_day(given: float) -> float:
    if not 0 < given <= 86400:  # NaN is not either
        raise wanted("a number of seconds above 0, at most 86400")
    return given


def _read_path(given: Any, info: ValidationInfo) -> Path:
    if isinstance(given, Path):
        given = str(given)
    if not isinstance(given, str) or not given.strip() or "://" in given:
        raise wanted("a path on this machine")
    directory = (info.context or {}).get("directory", Path())
    # Absolute, so that a process with another working directory finds the same place.
    return Path(os.path.abspath(directory / os.path.expanduser(given)))  # noqa: PTH100, PTH111


DsnOption = Annotated[Dsn, PlainValidator(_read_dsn)]
"""A connection URL or keyword string, as a `Dsn`."""

RuleOption = Annotated[TableRule, PlainValidator(_read_rule)]
"""One entry of a list of tables."""

ByteCount = Annotated[int, PlainValidator(_read_byte_count)]
"""A whole number of bytes; text may carry a unit, decimal (GB) or binary (GiB)."""

Seconds = Annotated[float, AfterValidator(_within_a_day)]
"""A time to wait, longer than none and short enough for every clock."""

LocalPath = Annotated[Path, PlainValidator(_read_path)]
"""An absolute path. A relative one starts at the validation context's `directory`, which
`config.py` sets to the pipeline file's, or else at the working directory; `~` is home."""


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
