"""Which transformers there are, by the names that a file may give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadValue
from penstock.modifiers.transform import documents, masks, numbers, people, plain, times, words
from penstock.options import fault, nearest, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.modifiers.transform.transformer import Transformer

TRANSFORMERS: dict[str, type[Transformer]] = {
    "aes_siv": documents.AesSiv,
    "boolean": numbers.Boolean,
    "choice": numbers.Choice,
    "date": times.Date,
    "email": words.Email,
    "first_name": people.FirstName,
    "float": numbers.Float,
    "full_name": people.FullName,
    "hash": words.Hash,
    "hstore": documents.Hstore,
    "integer": numbers.Integer,
    "json": documents.Json,
    "keep": plain.Keep,
    "last_name": people.LastName,
    "literal": plain.Literal,
    "mask": masks.Mask,
    "masking": masks.Masking,
    "null": plain.Null,
    "phone_number": words.PhoneNumber,
    "python": plain.Python,
    "regex": masks.Regex,
    "string": words.String,
    "template": documents.Templated,
    "timestamp": times.Timestamp,
    "unix_timestamp": times.UnixTimestamp,
    "uuid": words.Uuid,
}
"""The transformers by their own names."""


def _first_revision(_: Any) -> int:
    return 1


class Alias(NamedTuple):
    """Another name: of which transformer, what is the default there.

    `ignored` are parameters of there that mean nothing here: they are taken, and `check` says so. `revision` counts
    how often the same parameters have come to give other results; a transformer that it changes is to be copied again.
    """

    name: str
    defaults: Mapping[str, Any] = {}
    ignored: tuple[str, ...] = ()
    revision: Callable[[Any], int] = _first_revision


_LONGEST_OF_NEOSYNC = 100


def _revision_of_email(made: words.Email) -> int:
    """One more where lengths matter: they were ignored before they held."""
    is_cut = made.max_length is not None and made.max_length < _LONGEST_OF_NEOSYNC
    is_later = made.is_short or (made.preserve_domain and is_cut)
    return made.revision + 1 if is_later else 1


# Other names of parameters, by transformers.
_LIMITS = {"min": "min_value", "max": "max_value"}
_RENAMED: dict[str, Mapping[str, str]] = {"float": _LIMITS, "integer": _LIMITS}

_ONE_TO_HUNDRED = {"min_length": 1, "max_length": 100}
_SEED = ("seed",)
_ALNUM = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890"

ALIASES: dict[str, Alias] = {
    "": Alias("keep"),
    "noop": Alias("keep"),
    "encrypted_aes_siv": Alias("aes_siv"),
    "greenmask_boolean": Alias("boolean"),
    "greenmask_choice": Alias("choice"),
    "greenmask_date": Alias("date"),
    "greenmask_firstname": Alias("first_name"),
    "greenmask_float": Alias("float"),
    "greenmask_integer": Alias("integer", {"size": 4}),
    "greenmask_string": Alias("string", {**_ONE_TO_HUNDRED, "symbols": _ALNUM}),
    "greenmask_unix_timestamp": Alias("unix_timestamp"),
    "greenmask_utc_timestamp": Alias("timestamp"),
    "greenmask_uuid": Alias("uuid"),
    "literal_string": Alias("literal"),
    "neosync_email": Alias(
        "email",
        {"invalid_email_action": "reject", "max_length": _LONGEST_OF_NEOSYNC},
        ignored=("seed", "email_type"),
        revision=_revision_of_email,
    ),
    "neosync_firstname": Alias("first_name", ignored=_SEED),
    "neosync_fullname": Alias("full_name", ignored=_SEED),
    "neosync_lastname": Alias("last_name", ignored=_SEED),
    "neosync_string": Alias("string", _ONE_TO_HUNDRED, ignored=_SEED),
}
"""Names of pgstream's, for rules that come from there."""

_REFUSED = {
    "shuffle": (
        "is not offered: it needs all values of a column at once, and a stream never has them",
        "take string, choice or integer, which keep the look of a value, or hash, which keeps joins",
    ),
    "pg_anonymizer": (
        "is not offered: it would ask the source for every value",
        "take the transformer that does the same here: anon.fake_email is email, anon.partial is mask",
    ),
}


def find_transformer(name: Any) -> tuple[type[Transformer], Alias]:
    """The transformer that a file names, and what the name says of its parameters.

    Raises:
        PydanticCustomError: a fault: there is none.
    """
    # YAML reads `with: null` as nothing; NULL is also the harmless reading of a name that was forgotten.
    given = "null" if name is None else name
    if not isinstance(given, str):
        raise wanted("a transformer's name")
    if given in _REFUSED:
        what, do = _REFUSED[given]
        raise fault(BadValue(f"{given} {what}", do=do))
    alias = ALIASES.get(given, Alias(given))
    kind = TRANSFORMERS.get(alias.name)
    if kind is None:
        what = f"{given!r} is no transformer, wanted one of {', '.join(TRANSFORMERS)}"
        raise fault(BadValue(what, do=nearest(given, [*TRANSFORMERS, *ALIASES])))
    return kind, alias


def renamed(alias: Alias, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as the transformer calls them.

    Raises:
        PydanticCustomError: a fault: one is there under both names.
    """
    names = _RENAMED.get(alias.name, {})
    for key, own in names.items():
        if key in parameters and own in parameters:
            raise fault(BadValue(f"stands beside {own}, which is the same", do="write one"), key)
    return {names.get(key, key): value for key, value in parameters.items()}


def name_of(transformer: Transformer) -> str:
    """Its own name."""
    return next(name for name, kind in TRANSFORMERS.items() if type(transformer) is kind)
