"""A connection to NATS for code without coroutines: a loop in a thread of its own, from `open` to `close`.

The package is an extra: it is imported only when a sink or a log of this kind is made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.js import errors as js_errors

from penstock.brokers.errors import OF_SINK, WAIT
from penstock.errors import PenstockError
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.brokers.errors import ErrorFamily
    from penstock.brokers.nats.options import Connecting

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)

# What the client raises where a connection is, or goes, away. It cancels what waits for an answer then.
_KNOWN = (
    nats_errors.Error,
    OSError,
    EOFError,
    concurrent.futures.TimeoutError,
    concurrent.futures.CancelledError,
)
_MOST_PENDING_BYTES = 16 * 1024 * 1024
# The server calls these its own failure, but they are of what was asked for: replicas without a cluster, and a
# configuration that no stream can have.
_NO_SUCH_STREAM = (10052, 10074)
# A file of this machine, named in the options: waiting gives nobody a right to it.
_UNREADABLE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_NO_JETSTREAM = (10039, 10076)  # for this account, or at all


class _Client(Client):  # type: ignore[misc]
    """Says nothing without TLS where TLS is wanted: as it comes, the client takes a server's word for whether there is any."""

    def __init__(self, *, wants_tls: bool) -> None:
        super().__init__()
        self._wants_tls = wants_tls

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        scheme = self._current_server.uri.scheme
        is_wanted = scheme == "tls" or (self._wants_tls and scheme != "wss")
        is_required = bool(info.get("tls_required")) and scheme != "ws"  # which has none within
        if initial_connection and is_wanted and not is_required:
            if scheme == "ws" or not info.get("tls_available"):
                raise nats_errors.SecureConnWantedError
            info["tls_required"] = True  # the client looks there next, and before it logs in
        await super()._process_info(info, initial_connection)


class Connection:
    """One connection and the thread that it lives in."""

    def __init__(self, options: Connecting, place: str, errors: ErrorFamily = OF_SINK) -> None:
        self._options = options
        self._errors = errors
        # A sink's is given up by who delivers, in the time that a batch has to end.
        self._ends_with_process = errors is not OF_SINK
        self.place = place
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self._given_up = threading.Event()
        self._last_error: Exception | None = None
        self._denial = ""
        self._denials = 0
        self._moves = 0

    @property
    def client(self) -> Any:
        """The client of `nats-py`; only within coroutines that `run` is given."""
        return self._client

    @property
    def is_open(self) -> bool:
        """Whether the connection is there."""
        return self._client is not None and self._client.is_connected

    @property
    def was_denied(self) -> bool:
        """Whether the server has said in passing that something is not allowed; it does not answer then."""
        return _is_denial(self._last_error)

    @property
    def denials(self) -> int:
        """How often it has said so."""
        return self._denials

    def denied_since(self, denials: int, what: str) -> PenstockError | None:
        """What the server has said is not allowed, since it had said so this often; None where that is nothing."""
        if self._denials == denials or self._is_given_up:
            return None
        page = "nats" if self._errors is OF_SINK else "log-on-a-broker"
        return self._errors.privilege(
            f"{what}: NATS says {self._denial}",
            self.place,
            f"grant penstock's user what docs/howto/{page}.md lists",
        )

    @property
    def timeout(self) -> float:
        """How long an answer is waited for, in seconds."""
        return self._options.timeout

    @property
    def max_payload(self) -> int:
        """How many bytes a message may have, headers included."""
        return int(self._client.max_payload)

    def open(self) -> None:
        """Connect.

        Raises:
            PenstockError: that does not work.
        """
        self.close()
        self._given_up.clear()
        self._last_error = None
        self._denials = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        self.run(self._connect(), "connecting")

    async def _connect(self) -> None:
        options = self._options
        given: dict[str, Any] = {
            "user": options.user,
            "password": options.password and options.password.get_secret_value(),
            "token": options.token and options.token.get_secret_value(),
            "user_credentials": options.credentials and str(options.credentials),
            "nkeys_seed": options.nkey and str(options.nkey),
            "tls": self._tls(),
        }
        self._client = _Client(wants_tls=options.tls is not None)
        try:
            await self._client.connect(
                list(options.url),
                error_cb=self._note,
                name="penstock",
                # What was not acknowledged is delivered again as a whole, in its order: by `open`.
                allow_reconnect=False,
                # Each server twice, and then it is penstock's to wait; 0 would be for ever.
                max_reconnect_attempts=1,
                reconnect_time_wait=timing().broker_ask_pause_seconds,
                # They are made here, of tokens that are escaped.
                skip_subject_validation=True,
                connect_timeout=max(1, int(options.timeout)),
                pending_size=_MOST_PENDING_BYTES,
                **{key: value for key, value in given.items() if value is not None},
            )
        except nats_errors.SecureConnWantedError:
            raise self._errors.login(
                "connecting: the server offers no TLS, and nothing is said to it without",
                self.place,
                f"run the server with TLS; or take tls: out and write nats:// in url: of {self._errors.user}",
            ) from None
        except _KNOWN:
            raise
        except Exception:
            # What the client makes of a file that holds no key is any error at all, and may say what the file holds.
            if options.credentials is None and options.nkey is None:
                raise
            which = "credentials" if options.credentials is not None else "nkey"
            raise self._errors.login(
                f"connecting: the file of {which} holds nothing to log in with",
                self.place,
                f"correct {which} of {self._errors.user}",
            ) from None

    def _tls(self) -> ssl.SSLContext | None:
        wanted = self._options.tls
        if wanted is None:
            return None
        context = ssl.create_default_context(cafile=wanted.ca and str(wanted.ca))
        if wanted.certificate is not None:
            # Without a password OpenSSL would ask whoever sits at the terminal, and wait.
            context.load_cert_chain(str(wanted.certificate), str(wanted.key), password="")
        return context

    async def _note(self, error: Exception) -> None:
        self._last_error = error
        if _is_denial(error):
            self._denials += 1
            self._denial = str(error).removeprefix("nats: ")
        _log.debug("said in passing: %s", type(error).__name__)

    def run(self, work: Coroutine[Any, Any, Answer], what: str) -> Answer:
        """Do something in the loop's thread, and wait for it at most the sink's time-out since it last moved on.

        Raises:
            PenstockError: it does not come to an end, or ends with an error of NATS.
        """
        if self._loop is None:
            work.close()
            raise self._errors.away("not connected", self.place, WAIT)
        denials = self.denials
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        deadline, moves = time.monotonic() + self._options.timeout, self._moves
        while True:
            try:
                return future.result(timing().broker_step_seconds)
            except concurrent.futures.TimeoutError as error:
                # To what is not allowed there is no answer: the server says so in passing.
                if future.done():  # the work's own
                    found = self.denied_since(denials, what) or self.explained(error, what)
                    raise found from None
                if moves != self._moves:
                    deadline, moves = time.monotonic() + self._options.timeout, self._moves
                if self._is_given_up or time.monotonic() > deadline:
                    future.cancel()
                    raise (self.denied_since(denials, what) or self._ended(what)) from None
            except PenstockError:
                raise
            except Exception as error:
                raise self.explained(error, what) from error

    def move_on(self) -> None:
        """Called by work that takes several answers, for each of them: who waits for it goes on waiting."""
        self._moves += 1

    @property
    def _is_given_up(self) -> bool:
        return self._given_up.is_set() or (self._ends_with_process and is_in_vain())

    def _ended(self, what: str) -> PenstockError:
        if self._is_given_up:
            return self._errors.away(
                "waiting for the server was cancelled: penstock stops",
                self.place,
                "nothing; it goes on when penstock runs again",
            )
        return self._errors.away(
            f"{what}: no answer within {self._options.timeout:g} s",
            self.place,
            WAIT,
        )

    def call_soon(self, call: Callable[[], Any]) -> None:
        """Have something done in the loop's thread, soon; nothing where the connection is gone."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call)

    def give_up(self) -> None:
        """End every wait, from another thread."""
        self._given_up.set()

    def close(self) -> None:
        """Hang up, and end the thread."""
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        if loop is None:
            return
        closing = asyncio.run_coroutine_threadsafe(_close(client), loop)
        concurrent.futures.wait([closing], timeout=2 * timing().nats_close_seconds)
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(timing().nats_close_seconds)
            self._thread = None
        if not loop.is_running():
            loop.close()

    def explained(self, error: Exception, what: str) -> PenstockError:
        """An exception of the client's as one of ours. Its text may hold a URL, so that only known ones are said."""
        said = f"{what}: NATS says {_name(error)}"
        cause = self._last_error if isinstance(error, nats_errors.NoServersError) else error
        text = str(cause or error).lower()
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, (ssl.SSLError, *_UNREADABLE)) or "authorization" in text:
            return self._errors.login(
                said, self.place, f"correct credentials, user, token or tls of {self._errors.user}"
            )
        if isinstance(cause, nats_errors.InvalidUserCredentialsError | ssl.SSLError):
            return self._errors.login(
                said, self.place, f"correct credentials or nkey of {self._errors.user}"
            )
        if "permissions" in text:
            return self._errors.privilege(
                said, self.place, "grant penstock's user what docs/howto/nats.md lists"
            )
        if isinstance(error, js_errors.BadRequestError) or (
            isinstance(error, js_errors.APIError) and error.err_code in _NO_SUCH_STREAM
        ):
            return self._errors.refused(
                said,
                self.place,
                f"correct the options of {self._errors.user}, or the stream's configuration",
            )
        if not isinstance(error, _KNOWN):
            raise error
        do = WAIT
        if _is_without_jetstream(error):
            said = f"{what}: no JetStream answers there"
            do = (
                "nothing while the servers start; else run them with JetStream (`jetstream {}` in their file, or -js),"
                " and allow it to the account of penstock's user"
            )
        return self._errors.away(said, self.place, do)


async def _close(client: Any) -> None:
    """Hang up, and let nothing go on in the loop. A server with TLS may not answer to the farewell."""
    try:
        if client is not None:
            await asyncio.wait_for(client.close(), timing().nats_close_seconds)
    except (nats_errors.Error, OSError, TimeoutError) as error:  # it is gone as it is
        _log.debug("closing: %s", type(error).__name__)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _is_denial(error: Exception | None) -> bool:
    return "permissions violation" in str(error or "").lower()


def _is_without_jetstream(error: Exception) -> bool:
    """Whether nobody takes what is asked of JetStream; what it says itself has a description."""
    if not isinstance(error, js_errors.ServiceUnavailableError):
        return False
    return not error.description or error.err_code in _NO_JETSTREAM


def _name(error: Exception) -> str:
    if isinstance(error, js_errors.APIError) and error.description:
        # The server's own words: they name the stream and what is wrong with it.
        return f"{error.err_code}: {error.description}"
    return type(error).__name__
