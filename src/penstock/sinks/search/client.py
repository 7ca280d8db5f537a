"""HTTP to a search server, and what its answers mean. The standard library: see docs/decisions/0019.

Connections are kept open and belong to one thread at a time. Nothing of an answer is repeated but types of errors and names
of fields: its texts quote values of rows.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import ssl
import threading
import urllib.parse
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import (
    ClusterUnavailable,
    DestinationRefuses,
    IndexReadOnly,
    PenstockError,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
)
from penstock.retry import BackOff

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sinks.search.options import SearchOptions

NOT_FOUND, CONFLICT, TOO_LARGE, TOO_MANY = 404, 409, 413, 429
REFUSED, LOGIN, FORBIDDEN = 400, 401, 403
UNAVAILABLE = 503
_TRIES = 8
_NDJSON = "application/x-ndjson"


class Answer(NamedTuple):
    """What the server says."""

    status: int
    content: Any
    size: int = 0  # in bytes

    @property
    def error_type(self) -> str:
        """The type of the error, as the server calls it; "" where there is none."""
        return error_type(self.content)


def error_type(content: Any) -> str:
    """The type of an error in an answer, or in an item of one."""
    error = content.get("error") if isinstance(content, dict) else None
    if not isinstance(error, dict):
        return ""
    return str(error.get("type", ""))


def is_read_only(content: Any) -> bool:
    """Whether an index takes no writes: its disk is nearly full, or somebody has set it so, or closed it."""
    return error_type(content) in ("cluster_block_exception", "index_closed_exception")


MAKE_ROOM = (
    "raise cluster.max_shards_per_node, remove indexes, or write smaller shards: and replicas:"
)


def has_no_room(answer: Answer) -> bool:
    """Whether a new index would have more shards than the cluster may have."""
    return answer.error_type == "validation_exception" and "shards open" in str(answer.content)


_FIELD = re.compile(r"failed to parse field \[([^\]]{1,200})\] of type \[([a-z_]+)\]")
_STRICT = re.compile(r"introduction of \[([^\]]{1,200})\]")


def reason_of(error: dict[str, Any]) -> str:
    """Why a document is refused, without values: the type of the error, and the field where it is known."""
    kind, text = str(error.get("type", "unknown")), str(error.get("reason", ""))
    said = f"the server says {kind}"
    if found := _FIELD.search(text):
        return f"{said} for field {found[1]} of type {found[2]}"
    if found := _STRICT.search(text):
        return f"{said} for field {found[1]}"
    return said


# What a connection says that the other side has ended: over TLS it depends on what is written, and how it was ended.
_ENDED = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)


class Client:
    """Talks to one server, for several threads; used by the process that made it."""

    def __init__(self, options: SearchOptions, where: str) -> None:
        self._options = options
        self.where = where
        parts = urllib.parse.urlsplit(options.url)
        # Without a port the end of an address of IPv6 would be taken for one.
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._base = parts.path
        self._tls = self._context() if parts.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._given_up = threading.Event()
        # How many documents are read at once: few, until somebody has seen how large they are.
        self.read_at_once = 8

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, not one that it was forked from."""
        return self._pid == os.getpid()

    def _context(self) -> ssl.SSLContext:
        tls = self._options.tls
        try:
            context = ssl.create_default_context(cafile=tls.ca if tls is not None else None)
            if tls is not None and tls.certificate is not None and tls.key is not None:
                # Without a password OpenSSL would ask whoever sits at the terminal, and wait.
                context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise SinkLoginRefused(
                f"a file of certificates cannot be used: {type(error).__name__}",
                self.where,
                "see ca, certificate and key under tls:; the key must not be encrypted",
            ) from None
        if tls is not None and not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _headers(self) -> dict[str, str]:
        options = self._options
        if options.api_key is not None:
            return {"Authorization": f"ApiKey {options.api_key.get_secret_value()}"}
        if options.username is not None and options.password is not None:
            login = f"{options.username}:{options.password.get_secret_value()}"
            return {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        return {}

    # --- requests ------------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: Any = None, *accepted: int, exact: bool = False
    ) -> Answer:
        """One request that works, or is answered with one of the statuses that are accepted.

        `exact`: numbers are read digit for digit, as `Digits`.

        Raises:
            PenstockError: it is answered otherwise, or not at all.
        """
        data = None if body is None else json.dumps(body).encode()
        waits = BackOff()
        while True:
            answer = self._once(
                method, path, data, "application/json", read_exactly if exact else json.loads
            )
            if answer.status < 300 or answer.status in accepted:
                return answer
            error = self.explained(answer, f"{method} {_plain(path)}")
            if not _passes(answer.status) or waits.attempt_count >= _TRIES:
                raise error
            self.wait(waits.next_seconds(), error)

    def bulk(self, path: str, body: Any, read: Callable[[bytes], Any] = json.loads) -> Answer:
        """One bulk request; the answer, whatever it is, as `read` has it.

        Raises:
            PenstockError: there is none.
        """
        return self._once("POST", path, body, _NDJSON, read)

    def wait(self, seconds: float, error: PenstockError) -> None:
        """Wait before another attempt.

        Raises:
            PenstockError: somebody has said that nothing is to be waited for.
        """
        if self._given_up.wait(seconds):
            raise error

    def give_up(self) -> None:
        """Wait for nothing any more, from another thread; requests under way end."""
        self._given_up.set()
        self.close()
        with self._lock:
            sockets = [each.sock for each in self._busy if each.sock is not None]
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def go_on(self) -> None:
        """Take that back."""
        self._given_up.clear()

    def _once(
        self, method: str, path: str, data: Any, content_type: str, read: Callable[[bytes], Any]
    ) -> Answer:
        headers = {**self._headers(), "Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = content_type
        if self._given_up.is_set():
            raise self._no_answer(method, path, "cancelled")
        connection = self._connection()
        is_used = connection.sock is not None
        try:
            try:
                answer = self._exchange(connection, method, path, data, headers, read)
            except _ENDED:
                # A connection that lay idle may have been ended by the server; versions make a repeat harmless.
                connection.close()
                if not is_used or self._given_up.is_set():
                    raise
                answer = self._exchange(connection, method, path, data, headers, read)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise self._bad_certificate(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            why = type(error).__name__
            if isinstance(error, ssl.SSLError) and error.reason:
                why = f"{why} ({error.reason})"  # which of both sides does not speak TLS, say
            raise self._no_answer(method, path, why) from None
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)
        with self._lock:
            self._idle.append(connection)
        return answer

    def _no_answer(self, method: str, path: str, why: str) -> SinkError:
        return SinkError(
            f"no answer to {method} {_plain(path)}: {why}",
            f"{self.where} at {self._options.url}",
            "check that the server is up and can be reached; a running pipeline tries again by itself",
        )

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: Any,
        headers: dict[str, str],
        read: Callable[[bytes], Any],
    ) -> Answer:
        try:
            connection.request(method, self._base + path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except _ENDED as error:
            answer, text = _early_answer(connection, error)
        try:
            content = read(text) if text else {}
        except ValueError:
            content = {}  # a proxy's page
        return Answer(answer.status, content, len(text))

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            made = self._idle.pop() if self._idle else self._another()
            self._busy.add(made)
        return made

    def _another(self) -> http.client.HTTPConnection:
        timeout = self._options.timeout
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def close(self) -> None:
        """End connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    # --- what answers mean ---------------------------------------------------------------------

    def explained(self, answer: Answer, what: str) -> PenstockError:
        """An answer that is no success as an error."""
        place = f"{self.where} at {self._options.url}"
        if answer.status == LOGIN:
            return SinkLoginRefused(
                "the server refuses the login",
                place,
                "see username and password, or api_key, and the variables that they come from",
            )
        if is_read_only(answer.content):
            return self.read_only(what)
        if answer.status == FORBIDDEN:
            return SinkPrivilegeMissing(
                f"the user may not do this: {what}",
                place,
                "let it create, read, write and delete the indexes of the sink and the index penstock, and see the"
                " state of the cluster (monitor)",
            )
        if _passes(answer.status):
            kind = answer.error_type
            if kind in ("unavailable_shards_exception", "no_shard_available_action_exception"):
                return self.unavailable(f"{what}: shards are not there")
            return SinkError(
                f"{what}: the server answers {answer.status} {kind}".strip(),
                place,
                "nothing, penstock tries again by itself",
            )
        return DestinationRefuses(
            f"{what}: the server answers {answer.status} {answer.error_type}".strip(),
            place,
            MAKE_ROOM if has_no_room(answer) else "see the server's log for the reason",
        )

    def read_only(self, what: str) -> PenstockError:
        """The error of an index that takes no writes."""
        return IndexReadOnly(
            f"{what}: an index takes no writes, as when its disk is nearly full, or it is closed",
            f"{self.where} at {self._options.url}",
            "free space, or set index.blocks.read_only_allow_delete to null, or open the index;"
            " penstock goes on by itself",
        )

    def unavailable(self, what: str) -> PenstockError:
        """The error of a cluster that lacks shards."""
        return ClusterUnavailable(
            what,
            f"{self.where} at {self._options.url}",
            "bring the missing nodes back; penstock goes on by itself",
        )

    def _bad_certificate(self, error: ssl.SSLCertVerificationError) -> PenstockError:
        return SinkLoginRefused(
            f"the server's certificate is refused: {error.verify_message}",
            f"{self.where} at {self._options.url}",
            "renew it, or name the authority that signed it as ca under tls:",
        )


def _early_answer(
    connection: http.client.HTTPConnection, error: Exception
) -> tuple[http.client.HTTPResponse, bytes]:
    """A refusal that was sent before all of a request was read, as of one that is too large; else the error goes on."""
    try:
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException):
        raise error from None
    connection.close()
    if answer.status < REFUSED:
        raise error
    return answer, text


class Digits(str):
    """A number of JSON as it is spelled: as a keyword it is found by that alone, and it may be longer than Python reads."""

    __slots__ = ()


def read_exactly(text: bytes) -> Any:
    """JSON, with numbers as `Digits`."""
    return json.loads(text, parse_int=Digits, parse_float=Digits)


def _passes(status: int) -> bool:
    return status in (408, TOO_MANY) or status >= 500


def _plain(path: str) -> str:
    """A path without its query."""
    return path.partition("?")[0]


# As many sinks as a process is likely to have.
_MOST_IDLE = 8
_idle: list[tuple[Any, Client]] = []


def taken(options: SearchOptions, where: str) -> Client:
    """The client that a task of this process has left, or a new one."""
    for number, (its_options, client) in enumerate(_idle):
        if client.is_ours and its_options == options:
            del _idle[number]
            client.where = where
            client.go_on()
            return client
    return Client(options, where)


def given_back(options: SearchOptions, client: Client) -> None:
    """Leave a client to the next task of this process."""
    _idle.append((options, client))
    while len(_idle) > _MOST_IDLE:
        _idle.pop(0)[1].close()
