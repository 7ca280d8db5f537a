"""Requests to receivers: what is sent, and what an answer means.

aiohttp, since a request costs it less than a tenth of what it costs httpx (docs/decisions/0018, 0020: why no HTTP/2). Redirects are not
followed, cookies not kept, proxies of the environment not used; of an answer no more is read than a little, and nothing
of it is repeated anywhere.
"""

from __future__ import annotations

import asyncio
import email.utils
import enum
import os
import ssl
import time
from datetime import UTC
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from penstock.errors import SinkLoginRefused
from penstock.sinks.webhook.addresses import AddressRefused
from penstock.sinks.webhook.signature import signatures
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sinks.webhook.formats import Message
    from penstock.sinks.webhook.options import WebhookOptions

# An answer says what it has to say by its status.
_MOST_ANSWER_BYTES = 64 * 1024
_MOST_HEADER_BYTES = 8190
_LONGEST_RETRY_AFTER = 86400.0
# Between a request that is too old for the receiver and one that it would take, time decides.
_LATER = (408, 425, 429)


class Meaning(enum.Enum):
    """What an answer means for a document."""

    DONE = "done"
    LATER = "later"
    REFUSED = "refused"
    GONE = "gone"


class Answer(NamedTuple):
    """What came of a request. `reason` is for people, and holds nothing that the receiver sent."""

    meaning: Meaning
    reason: str = ""
    retry_after: float | None = None


class Client:
    """Keeps connections to receivers; lives in one event loop."""

    def __init__(self, options: WebhookOptions, place: str) -> None:
        self._options = options
        self._place = place
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Be ready to send.

        Raises:
            SinkLoginRefused: the certificates of `tls:` cannot be read.
        """
        options = self._options
        connector = aiohttp.TCPConnector(
            limit=0,  # deliveries bound themselves, each for its own receiver
            ssl=self._tls(),
            keepalive_timeout=15.0,
            # Who moves a receiver is followed soon; and what is looked up is looked up once at a time.
            ttl_dns_cache=int(timing().webhook_name_seconds),
            socket_factory=options.addresses.make_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=options.timeout, sock_connect=options.connect_timeout
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
            headers={"user-agent": "penstock"},
            skip_auto_headers=("accept-encoding",),
        )

    def _tls(self) -> ssl.SSLContext:
        wanted = self._options.tls
        try:
            context = ssl.create_default_context()
            if wanted is not None and wanted.ca is not None:
                context.load_verify_locations(str(wanted.ca))
            if wanted is not None and wanted.certificate is not None:
                # Without a password OpenSSL would ask whoever sits at the terminal, and wait.
                context.load_cert_chain(str(wanted.certificate), str(wanted.key), password="")
        except (OSError, ssl.SSLError) as error:
            raise SinkLoginRefused(
                f"the certificates cannot be used: {error.strerror or type(error).__name__}",
                self._place,
                "correct ca, certificate and key of tls:; the key must not be encrypted",
            ) from None
        return context

    async def close(self) -> None:
        """Hang up."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, url: str, message: Message, keys: Sequence[bytes]) -> Answer:
        """Send a message once; what came of it. Signed where there are keys."""
        timestamp = int(time.time())
        headers = {**message.headers, "webhook-timestamp": str(timestamp)}
        if keys:
            headers["webhook-signature"] = signatures(keys, message.id, timestamp, message.body)
        try:
            return await self._post(url, message.body, headers)
        except (
            aiohttp.ServerDisconnectedError,
            ConnectionResetError,
            aiohttp.ClientOSError,
        ) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                return Answer(Meaning.LATER, _reason(error))
            # As a rule a connection that was kept and that the receiver closed just then: not its failure.
            try:
                return await self._post(url, message.body, headers)
            except (aiohttp.ClientError, OSError, TimeoutError) as again:
                return Answer(Meaning.LATER, _reason(again))
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeError) as error:
            return Answer(Meaning.LATER, _reason(error))

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        assert self._session is not None, "opened first"
        async with self._session.post(
            url, data=body, headers=headers, allow_redirects=False
        ) as response:
            answer = _meaning(response.status, response.headers.get("retry-after"))
            if response.content_length != 0 and not await _is_read(response):
                response.close()  # the rest of it is not waited for
            return answer


async def _is_read(response: aiohttp.ClientResponse) -> bool:
    """Read an answer to its end, so that the connection can be used again; False where that is far, or fails.

    The status has said already what it means.
    """
    left = _MOST_ANSWER_BYTES
    try:
        async with asyncio.timeout(timing().webhook_answer_seconds):
            while left > 0:
                block = await response.content.read(min(left, 16384))
                if not block:
                    return True
                left -= len(block)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
    return response.content.at_eof()


def _meaning(status: int, retry_after: str | None) -> Answer:
    if 200 <= status < 300:
        return Answer(Meaning.DONE)
    reason = f"the receiver answered {status}"
    if status == 410:
        return Answer(Meaning.GONE, reason)
    if status in _LATER or status >= 500:
        return Answer(Meaning.LATER, reason, _seconds_of(retry_after))
    if 300 <= status < 400:
        return Answer(Meaning.LATER, f"{reason}, and redirects are not followed")
    # Below 200 only an upgrade is an answer, which nobody has asked for.
    return Answer(Meaning.REFUSED if status >= 400 else Meaning.LATER, reason)


def _seconds_of(retry_after: str | None) -> float | None:
    """What `Retry-After` asks for: seconds, or an hour of the day."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text.lstrip("0")[:9] or "0"), _LONGEST_RETRY_AFTER)
    try:
        until = email.utils.parsedate_to_datetime(text)
        if until.tzinfo is None:  # the form of C's asctime, which HTTP has, too
            until = until.replace(tzinfo=UTC)
        left = until.timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(left, 0.0), _LONGEST_RETRY_AFTER)


def _reason(error: BaseException) -> str:
    """Why there was no answer; never a URL, which may hold a secret."""
    certificate = getattr(error, "certificate_error", error)
    if isinstance(certificate, ssl.SSLCertVerificationError):
        said = getattr(certificate, "verify_message", "")
        return f"no connection: its certificate is not trusted: {said}"
    for cause in (error, error.__cause__, getattr(error, "os_error", None)):
        if isinstance(cause, AddressRefused):
            return f"no connection: {cause}; allow: of the sink may name it"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {_why_not(error)}"
    if isinstance(error, UnicodeError):  # a name with an empty part, or one above 63 characters
        return "no connection: its name cannot be resolved"
    if isinstance(error, TimeoutError):
        is_early = isinstance(error, aiohttp.ConnectionTimeoutError)
        return "no connection in time" if is_early else "no answer in time"
    return f"no answer: {type(error).__name__}"


def _why_not(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    text = error.os_error.strerror or str(error.os_error)
    if "reserved" in text:  # of several addresses, each refused
        return "its addresses are private, loopback, link-local or reserved"
    # Its own text names addresses.
    number = error.os_error.errno
    return os.strerror(number).lower() if number else type(error.os_error).__name__
