"""Who may do what: the gate in front of every route.

- Reading needs the token, unless the server listens on loopback alone. Actions always need it.
- `Host` must be a name of this server where it listens on loopback: a web page elsewhere could have its own
  name point at 127.0.0.1. Elsewhere everything but the empty page needs the token, which no browser sends by itself.
- `Origin`, where a browser sends one, must be the server itself; so must what `Sec-Fetch-Site` says.
- A body is read whole, up to a limit, before anybody looks at it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import traceback
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, RequestRefused
from penstock.listen import Address
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.listen import ServerOptions

_log = logging.getLogger(__name__)

MOST_BODY_BYTES = 64 * 1024

# Nothing of the pipeline is in these; `/ready` gives no texts without the token, and names on loopback alone.
OPEN_PATHS = frozenset({"/", "/docs", "/page.js", "/page.css", "/icon.svg", "/health", "/ready"})
# What names keys of rows is for those with the token alone, on loopback as well.
_KEPT_PATHS = ("/api/parked",)
_READING = frozenset({"GET", "HEAD"})
# Probes and proxies ask for these with HEAD. Not for what is streamed, or asks a server of the user's.
_HEAD_PATHS = OPEN_PATHS | {"/status", "/metrics"}
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
            b" connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
]


class Refusal(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, what: str, do: str) -> None:
        super().__init__(what)
        self.status = status
        self.error = RequestRefused(what, "", do)


class WrongToken(Refusal):
    """A token was shown, and it is not the one."""


class _Refused:
    """Who tries tokens is reported, now and then: as many lines as there are guesses would fill a disk."""

    def __init__(self) -> None:
        self._count = 0
        self._report_at = float("-inf")

    def report(self, scope: Any) -> None:
        """One more."""
        self._count += 1
        now = asyncio.get_running_loop().time()
        if now < self._report_at:
            return
        self._report_at = now + timing().server_refused_seconds
        peer = scope["client"][0] if scope.get("client") else "unknown"
        many = "a wrong token" if self._count == 1 else f"{self._count} wrong tokens"
        _log.warning("refused %s, the last from %s", many, peer)
        self._count = 0


def as_json(error: PenstockError) -> dict[str, Any]:
    """An error as the API answers it."""
    return {
        "error": {
            "code": error.code,
            "what": error.what,
            "where": error.where,
            "do": error.do,
        }
    }


class Access:
    """An ASGI application that lets through to another what may pass.

    What passes has `state["is_trusted"]`: whether the request showed the token.
    """

    def __init__(self, app: Any, options: ServerOptions) -> None:
        assert options.listen is not None
        self._app = app
        self._is_local = options.listen.is_loopback
        self._hosts = _LOOPBACK_HOSTS | {_host(options.listen)}
        self._refused = _Refused()
        # Without TLS of its own it may stand behind a proxy that has it.
        self._schemes = ("https",) if options.cert is not None else ("http", "https")
        self._digest = _digest(options.token.encode()) if options.token is not None else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message.get("headers", ())}
                more = [each for each in _HEADERS if each[0] not in own]
                more.append((b"date", formatdate(usegmt=True).encode()))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            # Before anything is refused: who still sends would not read the answer.
            body = await _read_body(scope, receive)
            is_trusted = self._check(scope)
        except Refusal as refusal:
            if isinstance(refusal, WrongToken):
                self._refused.report(scope)
            await _answer(refusal, send_safely)
            return
        scope.setdefault("state", {}).update(is_trusted=is_trusted, is_local=self._is_local)
        asked = scope
        if scope["method"] == "HEAD" and scope["path"] in _HEAD_PATHS:
            asked = {**scope, "method": "GET"}  # uvicorn, which knows what was asked, sends no body
        try:
            await self._app(asked, _replayed(body, receive), send_safely)
        except Exception as error:  # noqa: BLE001 - answered already, and none of the run's business
            _log_defect(scope, error)

    def _check(self, scope: Any) -> bool:
        """Whether the request showed the token.

        Raises:
            Refusal: it may not pass.
        """
        headers = _headers(scope)
        host = self._check_host(headers.get("host", ""))
        is_reading = scope["method"] in _READING
        self._check_origin(headers, host, is_page=is_reading and scope["path"] in OPEN_PATHS)
        is_trusted = self._check_token(headers.get("authorization"))
        if is_trusted:
            return True
        if not is_reading:
            self._require_token("an action")
        if scope["path"].startswith(_KEPT_PATHS):
            self._require_token("what names keys of rows")
        if not self._is_local and scope["path"] not in OPEN_PATHS:
            self._require_token("reading from another machine")
        return False

    def _check_host(self, host: str) -> str:
        try:
            found = Address.parse(host)
        except ValueError:
            raise Refusal(400, "no usable Host header", "name host and port") from None
        if self._is_local and _host(found) not in self._hosts:
            what = f"Host {host!r} is not this server, which listens on loopback alone"
            raise Refusal(421, what, "use http://127.0.0.1, or listen: elsewhere with a token")
        return host

    def _check_origin(self, headers: dict[str, str], host: str, *, is_page: bool) -> None:
        origin = headers.get("origin")
        if origin is not None and origin not in [f"{each}://{host}" for each in self._schemes]:
            raise Refusal(403, "a page of another origin asks", "open penstock's own page")
        site = headers.get("sec-fetch-site", "none")
        # A link elsewhere may lead to the page; nothing else may be fetched from there.
        is_link = is_page and headers.get("sec-fetch-mode", "navigate") == "navigate"
        if site not in ("none", "same-origin") and not is_link:
            raise Refusal(403, "a page of another origin asks", "open penstock's own page")

    def _check_token(self, authorization: str | None) -> bool:
        if authorization is None:
            return False
        scheme, _, token = authorization.partition(" ")
        digest = self._digest or _digest(b"")
        is_right = hmac.compare_digest(_digest(token.strip().encode(errors="replace")), digest)
        if scheme.lower() != "bearer" or self._digest is None or not is_right:
            raise WrongToken(401, "the token is wrong", "send the token: of the pipeline file")
        return True

    def _require_token(self, what: str) -> None:
        if self._digest is None:
            raise Refusal(
                403,
                f"{what} needs a token, and the pipeline file has none",
                "write token: ${PENSTOCK_TOKEN} into the file, and start penstock again",
            )
        raise Refusal(401, f"{what} needs the token", "send Authorization: Bearer and the token")


def _host(address: Address) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host.lower()


def _log_defect(scope: Any, error: Exception) -> None:
    """Say what a request came to grief of: not in its own words, which may be values of rows."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    _log.error(
        "%s %s: an unexpected %s in %s, line %d; please report it",
        scope["method"],
        scope["path"],
        type(error).__name__,
        last.filename,
        last.lineno or 0,
    )
    _log.debug("in its own words", exc_info=error)


def _digest(token: bytes) -> bytes:
    # Of one length, so that the comparison takes the same time whatever is sent.
    return hashlib.sha256(token).digest()


def _headers(scope: Any) -> dict[str, str]:
    """By their names; one that is there twice is refused, for readers differ in which they take."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        if key in found and key in ("host", "origin", "authorization", "content-length"):
            raise Refusal(400, f"{key} is there twice", "send it once")
        found[key] = value.decode("latin-1")
    return found


async def _read_body(scope: Any, receive: Any) -> bytes:
    """The whole body.

    Raises:
        Refusal: it is too large, or takes too long to come.
    """
    if scope["method"] in _READING:
        return b""
    declared = _headers(scope).get("content-length", "0")
    if not declared.isdigit() or int(declared) > MOST_BODY_BYTES:
        raise _too_large()
    body = b""
    deadline = asyncio.get_running_loop().time() + timing().server_body_seconds
    while True:
        left = deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, left))
        except TimeoutError:
            raise Refusal(408, "the body did not come in time", "send it at once") from None
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the body broke off", "send all of it")
        more: bytes = message.get("body", b"")
        body += more
        if len(body) > MOST_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body"):
            return body


def _too_large() -> Refusal:
    return Refusal(413, f"a body above {MOST_BODY_BYTES} bytes", "name fewer tables at a time")


def _replayed(body: bytes, receive: Any) -> Any:
    is_given = False

    async def replay() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _answer(refusal: Refusal, send: Any) -> None:
    content = json.dumps(as_json(refusal.error)).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
