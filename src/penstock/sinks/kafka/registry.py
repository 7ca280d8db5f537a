"""A schema registry with Confluent's REST interface: gives ids to schemas, and refuses those that readers could not read.

Subjects are `<topic>-key` and `<topic>-value` (TopicNameStrategy). Of a subject that is new, penstock sets the level of
compatibility, unless the registry's own is wanted. Three calls of HTTP: the standard library does.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import vault
from penstock.errors import (
    PenstockError,
    RecordSchemaRefused,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
)
from penstock.findings import Finding
from penstock.sinks.kafka.options import Compatibility, RegistryOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND, _CONFLICT, _UNPROCESSABLE, _LOGIN, _FORBIDDEN = 404, 409, 422, 401, 403

# What this process has been told: by registry, subject and schema. Ids never change.
_ids: dict[tuple[str, str, str], int] = {}


class _Answer(Exception):
    """The registry says no."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


@dataclass(frozen=True)
class Registry:
    """Where schemas are registered. Pickled without what people have said of it, passwords included."""

    options: RegistryOptions
    place: str

    def __reduce__(self) -> tuple[Any, tuple[str, str, str]]:
        given = self.options.model_dump(mode="json")
        if self.options.password is not None:
            given["password"] = self.options.password.get_secret_value()
        return _unsealed, (*vault.seal(json.dumps(given)), self.place)

    def id_of(self, subject: str, schema: str, table: str) -> int:
        """The id of a schema under a subject; registers it where it is new.

        Raises:
            RecordSchemaRefused: it is not compatible with the schema that is there.
            SinkError: the registry does not answer, or refuses us.
        """
        known = (self.options.url, subject, schema)
        if known not in _ids:
            _ids[known] = self._registered(subject, schema, table)
        return _ids[known]

    def _registered(self, subject: str, schema: str, table: str) -> int:
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}"
        latest = self._latest(path)
        if latest is None:
            self._set_compatibility(subject)
        else:
            problem = reread(latest, schema)
            if problem and self._level(subject) != "NONE":
                raise _refused(problem, subject, table)
        try:
            return int(self._call("POST", f"{path}/versions", {"schema": schema})["id"])
        except _Answer as answer:
            if answer.status in (_CONFLICT, _UNPROCESSABLE):
                why = "what was written before could not be read by it"
                if answer.status == _UNPROCESSABLE:
                    why = "it finds it invalid"
                raise _refused(f"the registry refuses the schema: {why}", subject, table) from None
            raise self._explained(answer, f"registering a schema of {subject}") from None

    def _latest(self, path: str) -> str | None:
        try:
            return str(self._call("GET", f"{path}/versions/latest")["schema"])
        except _Answer as answer:
            if answer.status == _NOT_FOUND:
                return None
            raise self._explained(answer, "reading a schema") from None

    def _set_compatibility(self, subject: str) -> None:
        """Before the first schema: killed in between, there is still none, and it is set again."""
        if self.options.compatibility is Compatibility.REGISTRY:
            return
        try:
            wanted = {"compatibility": self.options.compatibility.value}
            self._call("PUT", _config(subject), wanted)
        except _Answer as answer:
            raise self._explained(answer, f"setting the compatibility of {subject}") from None

    def _level(self, subject: str) -> str | None:
        """What a person has set for the subject, where somebody has."""
        try:
            return str(self._call("GET", _config(subject)).get("compatibilityLevel"))
        except _Answer as answer:
            if answer.status == _NOT_FOUND:
                return None
            raise self._explained(answer, f"reading the compatibility of {subject}") from None

    def findings(self) -> Iterator[Finding]:
        """Whether the registry answers us. Changes nothing."""
        try:
            self._call("GET", "/subjects")
        except _Answer as answer:
            yield Finding(self._explained(answer, "listing subjects"))
        except PenstockError as error:
            yield Finding(error)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        options = self.options
        headers = {"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE}
        if options.username is not None and options.password is not None:
            login = f"{options.username}:{options.password.get_secret_value()}"
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked with the options
            options.url.rstrip("/") + path, data, headers, method=method
        )
        opener = urllib.request.build_opener(_NoRedirect, *self._tls())
        try:
            with opener.open(request, timeout=options.timeout) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            raise _Answer(error.code) from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLError):
                raise SinkLoginRefused(
                    f"TLS with the schema registry fails: {reason.reason or 'no reason given'}",
                    self.place,
                    "set registry.ca to the certificate of who signed the registry's",
                ) from None
            raise self._silent(type(reason).__name__) from None
        except ValueError:
            raise self._silent("what it says is no JSON") from None

    def _tls(self) -> list[urllib.request.BaseHandler]:
        if not self.options.url.startswith("https:"):
            return []
        ca = self.options.ca
        try:
            context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except OSError as error:  # of TLS as well
            raise SinkLoginRefused(
                f"registry.ca cannot be used ({type(error).__name__})",
                self.place,
                "set registry.ca to a file with the certificate of who signed the registry's",
            ) from None
        return [urllib.request.HTTPSHandler(context=context)]

    def _silent(self, why: str) -> SinkError:
        return SinkError(
            f"the schema registry does not answer ({why})",
            self.place,
            "nothing, penstock tries again; see that registry.url is right and the registry runs",
        )

    def _explained(self, answer: _Answer, what: str) -> PenstockError:
        if answer.status == _LOGIN:
            return SinkLoginRefused(
                f"{what}: the schema registry refuses the login",
                self.place,
                "correct registry.username and registry.password",
            )
        if answer.status == _FORBIDDEN:
            return SinkPrivilegeMissing(
                f"{what}: the schema registry does not allow it",
                self.place,
                "allow penstock's user to read and write subjects, and their compatibility; or set"
                " registry.compatibility: registry",
            )
        return SinkError(
            f"{what}: the schema registry answers with HTTP {answer.status}",
            self.place,
            "nothing, penstock tries again; see the registry's log",
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Nobody is sent elsewhere with the login."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Never."""
        del args, kwargs


def _config(subject: str) -> str:
    return f"/config/{urllib.parse.quote(subject, safe='')}"


def _unsealed(path: str, name: str, place: str) -> Registry:
    return Registry(RegistryOptions.model_validate(json.loads(vault.unseal(path, name))), place)


def _refused(what: str, subject: str, table: str) -> RecordSchemaRefused:
    return RecordSchemaRefused(
        f"{what} (subject {subject})",
        table,
        "delete the subject's versions or set its compatibility to NONE, once its readers are ready,"
        " and penstock goes on by itself; or send the table to another topic",
    )


def reread(before: str, after: str) -> str | None:
    """What readers of a new schema would misread of old records, though registries let it pass.

    Registries compare types; what a number means, such as the scale of a decimal, they may not. `before` may be
    anything that somebody has registered; `after` is ours.
    """
    old, new = _columns(before), _columns(after)
    if old is None or new is None:
        return "the subject has a schema of another kind, which is no record of a key or of changes"
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            return f"column {name} was {_said(old[name])} and is {_said(new[name])}: old values would be misread"
    return None


def _columns(schema: str) -> dict[str, tuple[str | None, int | None]] | None:
    """What the values of each column mean beside their type: the logical type, and the scale of a decimal.

    None where the schema is none of a key or of changes.
    """
    try:
        record = json.loads(schema)
    except ValueError:  # Protobuf, for instance
        return None
    fields = _fields(record)
    if fields is not None and record.get("name") == "Envelope":
        row = fields.get("before")
        fields = _fields(row[-1]) if isinstance(row, list) and row else None
    return None if fields is None else {name: _meaning(kind) for name, kind in fields.items()}


def _fields(record: Any) -> dict[str, Any] | None:
    """The types of a record's fields."""
    if not isinstance(record, dict) or record.get("type") != "record":
        return None
    return {field["name"]: field["type"] for field in record["fields"]}


def _meaning(kind: Any) -> tuple[str | None, int | None]:
    if isinstance(kind, list):
        return _meaning(kind[-1]) if kind else (None, None)
    if not isinstance(kind, dict):
        return None, None
    if kind.get("type") == "array":
        return _meaning(kind.get("items"))
    logical = kind.get("logicalType")
    # A uuid is a text like others.
    return (None if logical == "uuid" else logical), kind.get("scale")


def _said(meaning: tuple[str | None, int | None]) -> str:
    logical, scale = meaning
    return (logical or "plain") if scale is None else f"{logical} of scale {scale}"
