"""Clients of one Kafka: how they are made and ended, how one waits for them, and what their errors mean.

A client is ended by who made it, and never by the garbage collector, which has done harm in three ways. At work in the
thread in which an admin client calls back, it ends the client from there, and librdkafka aborts the process. At Python's
own end that thread is gone, and the client waits for ever for an answer to be taken. After a fork it waits for threads
that are not here. So nothing that outlives a call refers to a client: no cycle, no exception that somebody keeps, no callback.

The package is an extra: it is imported only when a sink or a log of this kind is made.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
import time
import weakref
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.brokers.errors import OF_SINK, WAIT
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.brokers.errors import ErrorFamily
    from penstock.brokers.kafka.options import Connecting
    from penstock.errors import PenstockError

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)

_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
_PRIVILEGE = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
# What a broker says of one record, or of its topic: the others can go on.
REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,  # sent together with such a one
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_MSG,
}
# Waiting helps against these; of what is in no list, a broker that is not well is the likeliest cause.
_PERSON = {
    KafkaError._INVALID_ARG,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.SECURITY_DISABLED,
}
_EXPLAINED_BY_BROKER = {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
}


def said_by(error: KafkaError) -> str:
    """An error's name, and of what a broker refuses its own words: they name what stands in the way."""
    text = error.str() or ""
    is_general = text.startswith("Broker:")  # the client's own, which says no more than the name
    if error.code() not in _EXPLAINED_BY_BROKER or is_general:
        return str(error.name())
    return f"{error.name()}: {' '.join(text.split())[:400]}"


class Complaint:
    """Why clients cannot connect, which they say only in passing. Their callback, and so no part of a cycle."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Called by any client when a connection fails."""
        if self.error is None or error.code() in _LOGIN:
            self.error = error


class Clients:
    """Makes the clients of one sink or log, waits for them, and says what their errors mean."""

    def __init__(self, options: Connecting, place: str, errors: ErrorFamily = OF_SINK) -> None:
        self._options = options
        # A sink's are given up by who delivers, in the time that a batch has to end.
        self._ends_with_process = errors is not OF_SINK
        self._errors = errors
        self.place = place
        self._admin: AdminClient | None = None
        self._made_by = os.getpid()
        self._complaint = Complaint()
        self._given_up = threading.Event()

    # --- making --------------------------------------------------------------------------------

    def conf(self, **more: Any) -> dict[str, Any]:
        """Settings that all clients share. They hold secrets: never print them."""
        given = {key: value.get_secret_value() for key, value in self._options.conf.items()}
        return {
            "bootstrap.servers": self._options.servers,
            "client.id": "penstock",
            "error_cb": self._complaint,
            "logger": _client_log,
            # As shipped a broker that comes back is waited for up to 10 s, longer than some time-outs.
            "reconnect.backoff.max.ms": 1000,
            **given,
            **more,
        }

    @property
    def admin(self) -> AdminClient:
        """Asks and makes; the same one each time."""
        if self._admin is not None and self._made_by != os.getpid():
            self.close()
        if self._admin is None:
            known = {key: value for key, value in self.conf().items() if not _is_producers(key)}
            self._admin = self.made(AdminClient, known)
            self._made_by = os.getpid()
            _open.add(self)
        return self._admin

    def made(self, client: Callable[[dict[str, Any]], Answer], conf: dict[str, Any]) -> Answer:
        """A client of a class.

        Raises:
            DestinationRefuses: a setting of `conf:` is none.
        """
        try:
            return client(conf)
        except (KafkaException, ValueError, TypeError) as error:
            _log.debug("settings refused", exc_info=error)
            given = ", ".join(sorted(self._options.conf)) or "none"
            code = error.args[0] if error.args else None
            # The text names the setting; of a value it may hold all, so that only known ones are said.
            said = code.str() if isinstance(code, KafkaError) and "value" not in code.str() else ""
            raise self._errors.refused(
                f"the client does not take these settings: {said or type(error).__name__}"
                f" (given in conf: {given})",
                self.place,
                f"correct conf: of {self._errors.user}; its keys and values are those of librdkafka",
            ) from None

    def close(self) -> None:
        """End the admin client; answers that it still waits for are lost."""
        admin, self._admin = self._admin, None
        if admin is None:
            return
        if self._made_by != os.getpid():
            leave_to_parent(admin)
        else:
            end_client(admin, lambda: admin.__exit__(None, None, None))

    # --- waiting -------------------------------------------------------------------------------

    def give_up(self) -> None:
        """End every wait, from another thread."""
        self._given_up.set()

    def go_on(self) -> None:
        """Wait again from now on."""
        self._given_up.clear()
        self._complaint.error = None

    def raise_if_given_up(self) -> None:
        """End a piece of work that was interrupted."""
        if self._given_up.is_set() or (self._ends_with_process and is_in_vain()):
            raise self._errors.away(
                "waiting for the broker was cancelled: penstock stops",
                self.place,
                "nothing; it goes on when penstock runs again",
            )

    def hear_complaints(self) -> None:
        """Clients call back only when they are polled; others than this one are as they work."""
        if self._admin is not None:
            self._admin.poll(0)

    def steps(self, what: str) -> Waiting:
        """A wait of at most the time-out."""
        return Waiting(self, what, self._options.timeout)

    def ask(
        self, call: Callable[[], Future[Answer]], what: str, first: Future[Answer] | None = None
    ) -> Answer:
        """What a call of the admin client gives; made again while the brokers are not ready for it.

        Args:
            call: asks.
            what: what for, in words.
            first: the same, asked for together with others.

        Raises:
            PenstockError: it gives nothing.
        """
        waiting = self.steps(what)
        future = first or call()
        while True:
            try:
                # Not `result`: what is raised there, and kept by the future, is a cycle with this frame.
                error = future.exception(timing().broker_step_seconds)
            except NotYet:
                waiting.go_on()
                continue
            if error is None:
                return future.result()
            assert isinstance(error, KafkaException), type(error)
            if not _passes_at_once(error.args[0]):
                raise self.explained(error.args[0], what) from error
            waiting.go_on()
            # It may not know yet that it is the one to ask.
            time.sleep(timing().broker_ask_pause_seconds)
            future = call()

    def metadata(self, client: Any, what: str) -> Any:
        """All topics and brokers, as a client sees them."""
        waiting = self.steps(what)
        while True:
            try:
                return client.list_topics(timeout=timing().broker_step_seconds)
            except KafkaException as error:
                if not _passes_at_once(error.args[0]):
                    raise self.explained(error.args[0], what) from None
                waiting.go_on()

    # --- what errors mean ----------------------------------------------------------------------

    def explained(self, error: KafkaError, what: str) -> PenstockError:
        """An error of the client's as one of ours."""
        cause = (self._complaint.error or error) if _passes_at_once(error) else error
        said = f"{what}: Kafka says {said_by(cause)}"
        if cause.code() in _LOGIN:
            return self._errors.login(
                said,
                self.place,
                f"correct user, password or certificates in conf: of {self._errors.user}",
            )
        if cause.code() in _PRIVILEGE:
            return self._errors.privilege(
                said, self.place, "grant penstock's user what docs/howto/kafka.md lists"
            )
        if cause.code() in _PERSON:
            return self._errors.refused(
                said,
                self.place,
                f"correct the options of {self._errors.user}, or the broker's settings",
            )
        return self._errors.away(said, self.place, WAIT)

    def timed_out(self, what: str) -> PenstockError:
        """Nothing came within the sink's time-out."""
        if self._complaint.error is not None:
            return self.explained(self._complaint.error, what)
        return self._errors.away(
            f"{what}: no answer within {self._options.timeout:g} s",
            self.place,
            WAIT,
        )

    @property
    def login_was_refused(self) -> bool:
        """Whether waiting on is in vain."""
        error = self._complaint.error
        return error is not None and error.code() in _LOGIN


# Those whose admin client may have to be ended when the process does.
_open: weakref.WeakSet[Clients] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for clients in list(_open):
        clients.close()


class Waiting:
    """Counts the time of one wait."""

    def __init__(self, clients: Clients, what: str, seconds: float) -> None:
        self._clients = clients
        self._what = what
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def begin_anew(self) -> None:
        """Something has come: count from now on."""
        self._deadline = time.monotonic() + self._seconds

    @property
    def is_over(self) -> bool:
        """Whether it has lasted as long as it may."""
        return time.monotonic() >= self._deadline

    def go_on(self) -> None:
        """Raise where there is no point in waiting on."""
        self._clients.hear_complaints()
        self._clients.raise_if_given_up()
        if self.is_over or self._clients.login_was_refused:
            raise self._clients.timed_out(self._what)


def end_client(client: Any, end: Callable[[], Any]) -> None:
    """End a client, in so much time at most.

    Where its broker died, librdkafka may wait for the thread of that connection for ever. It is left then, and ends
    with the process.
    """
    ending = threading.Thread(target=end, name="end of a Kafka client", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # Python itself ends, and starts no threads any more
        leave_to_parent(client)
        return
    ending.join(timing().kafka_end_seconds)
    if ending.is_alive():
        _log.debug("a client does not end, and is left")
        leave_to_parent(client)


def leave_to_parent(client: Any) -> None:
    """Never end a client here that another process made: its threads are not in this one.

    A reference too many, so that not even Python's own end ends it.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def _passes_at_once(error: KafkaError) -> bool:
    """Whether an error says no more than that an answer has yet to come."""
    return error.code() in (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        # Of a topic that was just made, or a broker that just came back.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )


def _is_producers(key: str) -> bool:
    """Settings that only a producer takes; others warn about them."""
    return key.startswith(("queue.buffering.", "batch.", "linger", "compression", "message.send"))


def _client_logger() -> logging.Logger:
    """The clients' own log. They complain about each attempt to connect: for who debugs."""
    logger = logging.getLogger(f"{__name__}.librdkafka")
    logger.addFilter(lambda _record: _log.isEnabledFor(logging.DEBUG))
    return logger


_client_log = _client_logger()
