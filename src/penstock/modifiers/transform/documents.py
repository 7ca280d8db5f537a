"""Transformers that compute with each distinct value: template, json, hstore, aes_siv."""

from __future__ import annotations

import base64
import functools
import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from penstock.document import Unquoted
from penstock.errors import BadValue, CryptoMissing
from penstock.modifiers.transform.hstore import format_hstore, parse_hstore
from penstock.modifiers.transform.jsonpath import (
    EACH,
    MISSING,
    change_path,
    delete_path,
    dump_json,
    load_json,
    parse_path,
    read_path,
    set_path,
)
from penstock.modifiers.transform.template_text import BadTemplate, Row, Template
from penstock.modifiers.transform.transformer import Batch, Collisions, Transformer
from penstock.options import Options, fault, wanted
from penstock.secret import SecretOption  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.modifiers.transform.pgtypes import Family


# Functions that gave other results once: div and mod of negative numbers, title of words with capitals.
_REVISED = frozenset({"div", "mod", "title"})


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Template:
    return Template.parse(text)


def _check_template(text: str, *below: str) -> str:
    try:
        _compiled(text)
    except BadTemplate as error:
        raise fault(BadValue(f"cannot be read: {error}", do=error.do), *below) from None
    return text


def _typed(value: bytes | None, family: Family) -> Any:
    """A value as a template compares it: numbers as numbers, booleans as booleans."""
    if value is None:
        return None
    text = value.decode()
    if family == "integer":
        return int(text)
    if family == "boolean":
        return text == "t"
    if family == "number":
        try:
            return Decimal(text)
        except InvalidOperation:
            return text
    return text


class Templated(Transformer):
    """Text with values in it, in a part of Go's template language."""

    takes: ClassVar = frozenset(
        {"text", "integer", "number", "boolean", "date", "timestamp", "uuid", "enum", "unknown"}
    )

    template: str

    @field_validator("template")
    @classmethod
    def _readable(cls, given: str) -> str:
        return _check_template(given)

    @property
    def columns(self) -> tuple[str, ...]:
        """Other columns of the row that it reads, by name."""
        return _compiled(self.template).columns

    @property
    def revision(self) -> int:
        """2 where results may be other ones than once."""
        return 2 if _compiled(self.template).functions & _REVISED else super().revision

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        template, family = _compiled(self.template), batch.type.family

        def one(value: bytes, *others: bytes | None) -> bytes:
            named = dict(zip(template.columns, _texts(others), strict=True))
            return template.run(Row(_typed(value, family), named)).encode()

        return batch.each_distinct(one, *template.columns)

    def longest(self, given: int | None) -> None:  # noqa: ARG002
        """It depends on the value."""
        return


def _texts(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode() for value in values]


class _Operation(Options):
    """One thing to do to a document, in turn."""

    operation: Literal["set", "delete"]
    value: Any = None
    value_template: str | None = None
    skip_not_exist: bool = True
    error_not_exist: bool = False

    @field_validator("value_template")
    @classmethod
    def _readable(cls, given: str | None) -> str | None:
        return given if given is None else _check_template(given)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        has_value = "value" in self.model_fields_set
        if self.operation == "set" and has_value == (self.value_template is not None):
            what = "set wants one of value and value_template"
            raise fault(BadValue(what, do="write value: …"), "operation")
        return self

    @property
    def template(self) -> Template | None:
        return None if self.value_template is None else _compiled(self.value_template)


class JsonOperation(_Operation):
    """What is done at one path: a.b.0.c, or a.#.c for each entry of a list."""

    path: str

    @field_validator("path")
    @classmethod
    def _path(cls, given: str) -> str:
        if not parse_path(given):
            raise wanted("a path such as user.email or items.#.price")
        return given

    @field_validator("value")
    @classmethod
    def _typed(cls, given: Any) -> Any:
        return _json_value(given)

    @property
    def has_typed_value(self) -> bool:
        """Whether a number or a truth value stands in it."""
        return any(isinstance(one, bool | int | float | Decimal) for one in _leaves(self.value))


def _sets_in_entries(one: JsonOperation) -> bool:
    return one.operation == "set" and one.template is None and EACH in parse_path(one.path)


_TRUTH_VALUES = ("true", "false")


def _json_value(given: Any) -> Any:
    """Numbers and truth values that stand without quotes as what they are; numbers keep their digits."""
    if isinstance(given, list):
        return [_json_value(one) for one in given]
    if isinstance(given, dict):
        return {key: _json_value(one) for key, one in given.items()}
    if not isinstance(given, Unquoted):
        return given
    text = str(given)
    known = text.lower() if text.lower() in _TRUTH_VALUES else text.removeprefix("+")
    try:
        return load_json(known.encode())
    except ValueError:
        return text  # a number of YAML's own: 0x1F


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value


class HstoreOperation(_Operation):
    """What is done to one key."""

    key: str


class _Operated(Transformer):
    """A document that operations are carried out on, in turn."""

    operations: tuple[_Operation, ...]

    @field_validator("operations", mode="before")
    @classmethod
    def _at_least_one(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple) or not given:
            raise wanted("a list with at least one operation")
        return given

    @property
    def columns(self) -> tuple[str, ...]:
        """Other columns of the row that it reads, by name."""
        templates = [one.template for one in self.operations if one.template is not None]
        return tuple(dict.fromkeys(name for one in templates for name in one.columns))

    @property
    def revision(self) -> int:
        """2 where results may be other ones than once."""
        templates = [one.template for one in self.operations if one.template is not None]
        return 2 if any(one.functions & _REVISED for one in templates) else super().revision

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        names = self.columns

        def one(value: bytes, *others: bytes | None) -> bytes:
            named = dict(zip(names, _texts(others), strict=True))
            document = self._parsed(value)
            for operation in self.operations:
                document = self._changed(document, operation, named)
            return self._text(document).encode()

        return batch.each_distinct(one, *names)

    def longest(self, given: int | None) -> None:  # noqa: ARG002
        """It depends on the value."""
        return

    def _parsed(self, value: bytes) -> Any:
        raise NotImplementedError

    def _changed(self, document: Any, operation: Any, others: dict[str, str | None]) -> Any:
        """The document after one operation, which may change it in place."""
        raise NotImplementedError

    def _text(self, document: Any) -> str:
        raise NotImplementedError


class Json(_Operated):
    """Parts of a JSON document set or deleted."""

    takes: ClassVar = frozenset({"json", "text"})

    operations: tuple[JsonOperation, ...]

    @property
    def revision(self) -> int:
        """One more where numbers or truth values are set, which were set as text before; and one where something is set
        in entries, which made a key called # where there was no list."""
        is_typed = any(one.has_typed_value for one in self.operations)
        return (2 if is_typed else super().revision) + any(map(_sets_in_entries, self.operations))

    def _parsed(self, value: bytes) -> Any:
        return load_json(value)

    def _changed(
        self, document: Any, operation: JsonOperation, others: dict[str, str | None]
    ) -> Any:
        path = parse_path(operation.path)
        template = operation.template
        is_plain_set = operation.operation == "set" and template is None
        is_there = read_path(document, path) is not MISSING
        if not is_there and operation.error_not_exist and not is_plain_set:
            raise ValueError(f"there is nothing at {operation.path}")
        if operation.operation == "delete":
            return delete_path(document, path)
        if template is None:
            return set_path(document, path, operation.value)
        return change_path(
            document, path, functools.partial(self._templated, operation, template, others)
        )

    def _templated(
        self,
        operation: JsonOperation,
        template: Template,
        others: dict[str, str | None],
        found: Any,
    ) -> Any:
        """What the template makes of one value; MISSING where nothing is to be made."""
        if found is MISSING and operation.error_not_exist:
            raise ValueError(f"there is nothing at {operation.path}")
        if found is MISSING and operation.skip_not_exist:
            return MISSING
        made = template.run(Row(None if found is MISSING else _plain(found), others))
        try:
            return load_json(made.encode())
        except ValueError:
            raise ValueError(
                f"the template for {operation.path} gives no JSON: text needs quotes of its own"
            ) from None

    def _text(self, document: Any) -> str:
        return dump_json(document)


def _plain(found: Any) -> Any:
    return dump_json(found) if isinstance(found, dict | list) else found


class Hstore(_Operated):
    """Keys of an hstore set or deleted."""

    takes: ClassVar = frozenset({"hstore", "unknown"})

    operations: tuple[HstoreOperation, ...]

    def _parsed(self, value: bytes) -> dict[str, str | None]:
        return parse_hstore(value.decode())

    def _changed(
        self,
        document: dict[str, str | None],
        operation: HstoreOperation,
        others: dict[str, str | None],
    ) -> dict[str, str | None]:
        key, template = operation.key, operation.template
        if key not in document and operation.error_not_exist:
            raise ValueError(f"there is no key {key}")
        if operation.operation == "delete":
            document.pop(key, None)
        elif template is None:
            value = operation.value
            document[key] = value if value is None or isinstance(value, str) else json.dumps(value)
        else:
            # A template over a key that is not there, or NULL, has no value to print.
            missing = document.get(key) is None and ".GetValue" in (operation.value_template or "")
            document[key] = None if missing else template.run(Row(document.get(key), others))
        return document

    def _text(self, document: dict[str, str | None]) -> str:
        return format_hstore(document)


class AesSiv(Transformer):
    """AES-SIV, deterministic and reversible by whoever has the key; base64url without padding."""

    collisions: ClassVar = Collisions.NEVER

    key_hex: SecretOption
    associated_data: str = ""

    @field_validator("key_hex")
    @classmethod
    def _a_key(cls, given: Any) -> Any:
        if not re.fullmatch(r"[0-9a-fA-F]{128}", given.reveal()):
            raise wanted("64 bytes as 128 hexadecimal digits, from a variable: ${NAME}")
        return given

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        cipher = _siv(self.key_hex.reveal())
        associated = [self.associated_data.encode()]

        def one(value: bytes) -> bytes:
            sealed = cipher.encrypt(value, associated)
            return base64.urlsafe_b64encode(sealed).rstrip(b"=")

        return batch.each_distinct(one)

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has, were all of the value's ASCII."""
        return None if given is None else (4 * (given + 16) + 2) // 3


@functools.lru_cache(maxsize=16)
def _siv(key_hex: str) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ImportError:
        raise CryptoMissing(
            "aes_siv needs the package cryptography, which is not installed",
            "modifiers",
            "pip install 'penstock[crypto]', also where Spark's executors run",
        ) from None
    return AESSIV(bytes.fromhex(key_hex))
