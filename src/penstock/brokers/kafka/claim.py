"""A claim that ends with the process: membership in a consumer group that nobody reads with.

The broker fences a producer when another one begins with its transactional id, so that nothing is ever doubled; but then the
newcomer wins, and a second instance started by mistake would end the first. So who delivers is also a member of a group of
that name, and who opens the sink asks first who is in it. The client's own thread keeps the membership alive, however
long a batch takes.

A killed process stays a member until its session ends. One of this machine is seen to be dead at once, by its number
and when it began; one of another machine is waited for.

A process that was suspended for longer than its session is no member any more when it goes on. Its client learns of it from the next
heartbeat, but joins again only where it is polled: that is what `keep` is for. Whoever has come meanwhile has the claim,
and it is for who holds one to see that before it writes.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer

from penstock.brokers.kafka.client import end_client, leave_to_parent
from penstock.errors import LogRefused, PenstockError, SecondInstance, SinkPrivilegeMissing
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.brokers.kafka.client import Clients


@dataclass(frozen=True)
class Holder:
    """A process as its client id says: which machine since which start, which process since when."""

    machine: str
    pid: int
    began: str
    instance: str

    @classmethod
    def here(cls) -> Holder:
        """This process, as one holder of many that it may be."""
        return cls(_machine(), os.getpid(), _began(os.getpid()), uuid.uuid4().hex)

    @classmethod
    def parse(cls, client_id: str) -> Holder | None:
        """Who made a client; None where it is not one of ours."""
        parts = client_id.split("/")
        if len(parts) != 5 or parts[0] != "penstock" or not parts[2].isdecimal():
            return None
        return cls(parts[1], int(parts[2]), parts[3], parts[4])

    def __str__(self) -> str:
        return f"penstock/{self.machine}/{self.pid}/{self.began}/{self.instance}"

    @property
    def is_dead(self) -> bool:
        """Whether it is known to hold nothing any more: only of this machine's own can that be said.

        The broker may learn late of who has left, and of who was killed.
        """
        if self.machine != _machine():
            return False
        if self.pid == os.getpid():
            return self.instance not in _held
        return _began(self.pid) != self.began


# Claims of this process.
_held: set[str] = set()


class Claim:
    """One claim, of a sink or of a role. `take` may be called again while it is held."""

    def __init__(
        self, clients: Clients, group: str, topic: str, does: str = "delivers there"
    ) -> None:
        self._does = does
        self._clients = clients
        self._group = group
        self._topic = topic
        self._me = Holder.here()
        self._member: Consumer | None = None

    def take(self) -> None:
        """Become the one who delivers.

        Raises:
            SecondInstance: another process is.
            PenstockError: the broker cannot be asked.
        """
        if self._me.pid != os.getpid():  # forked
            self.release()
            self._me = Holder.here()
        deadline = time.monotonic() + timing().kafka_session_seconds + 1
        while others := self.others():
            is_elsewhere = all(each.machine != _machine() for each in others)
            if not is_elsewhere or time.monotonic() > deadline:
                raise SecondInstance(
                    f"another process {self._does}, {others[0].pid} on {others[0].machine}",
                    self._clients.place,
                    "stop it first",
                )
            self._clients.raise_if_given_up()
            time.sleep(
                timing().kafka_claim_poll_seconds
            )  # a dead one is forgotten by the broker in its time
        self._join()

    def others(self) -> list[Holder]:
        """Who else is in the group and lives, as far as can be known."""
        found = (Holder.parse(each.client_id) for each in self._members())
        return [each for each in found if each and each != self._me and not each.is_dead]

    @property
    def instance(self) -> str:
        """An id that no other holder has."""
        return self._me.instance

    def keep(self) -> None:
        """Let the client do what is due, such as to join again after the broker has given it up; cheap."""
        if self._member is not None and self._me.pid == os.getpid():
            self._member.poll(0)

    def release(self) -> None:
        """Leave the group."""
        member, self._member = self._member, None
        _held.discard(self._me.instance)
        if member is None:
            return
        # To leave takes seconds where the broker does not answer: then it notices by itself.
        if self._me.pid != os.getpid() or is_in_vain():
            leave_to_parent(member)
        else:
            end_client(member, member.close)

    def _members(self) -> list[Any]:
        admin, group = self._clients.admin, self._group
        found = self._clients.ask(
            lambda: admin.describe_consumer_groups(
                [group], request_timeout=timing().broker_ask_seconds
            )[group],
            f"asking who is in group {group}",
        )
        return list(found.members)

    def _join(self) -> None:
        """Be in the group: make the member, where there is none, and wait until the broker lists it."""
        if self._member is None:
            self._member = self._clients.made(Consumer, self._conf())
            _held.add(self._me.instance)
            self._member.subscribe([self._topic])
        waiting = self._clients.steps(f"joining group {self._group}")
        try:
            while not any(each.client_id == str(self._me) for each in self._members()):
                self._member.poll(timing().broker_ask_pause_seconds)
                waiting.go_on()
        except PenstockError:
            self.release()  # another one may find its way
            raise

    def _conf(self) -> dict[str, Any]:
        return self._clients.conf(
            **{
                "client.id": str(self._me),
                "group.id": self._group,
                "session.timeout.ms": int(1000 * timing().kafka_session_seconds),
                "heartbeat.interval.ms": int(1000 * timing().kafka_session_seconds / 3),
                "max.poll.interval.ms": 86_400_000,  # nothing is read: who lives is who heartbeats
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 64,  # of what it is assigned nothing is looked at
                "queued.min.messages": 1,
            }
        )

    def forget(self) -> None:
        """Remove the group, where nobody is in it any more."""
        self.release()
        admin, group = self._clients.admin, self._group
        try:
            self._clients.ask(
                lambda: admin.delete_consumer_groups(
                    [group], request_timeout=timing().broker_ask_seconds
                )[group],
                f"removing group {group}",
            )
        except (SinkPrivilegeMissing, LogRefused):
            raise
        except PenstockError:
            return  # not there; or somebody joins it, and it is in use


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        boot = "0"
    # Containers of one machine share the boot's id, but do not see each other's processes.
    space = Path("/proc/self/ns/pid")
    namespace = space.stat().st_ino if space.exists() else 0
    return f"{socket.gethostname().replace('/', '-')}.{boot}.{namespace}"


def _began(pid: int) -> str:
    """When a process of this machine began, in clock ticks; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] == "Z" else stat[19]
