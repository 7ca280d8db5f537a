"""Inserts to four receivers, beside a bare loop of the same client that has the same documents ready in memory."""

from __future__ import annotations

import asyncio
import atexit
import json
import socket
import subprocess
import sys
import time
import urllib.request
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.brokers import Bare, Broker, BrokerBacklog
from bench.failure import BenchFailed
from bench.live import Latency
from bench.probe import percentile
from bench.processes import Meter
from bench.workload import Result, growth

if TYPE_CHECKING:
    from bench.brokers import Record
    from bench.servers import Pair

_RECEIVERS = 4
_CONCURRENCY = 8
_SECRET = "whsec_" + "A" * 43 + "="
_MOST_P50_MS = 80.0
_LEAST_REQUESTS = 5000
_FIRST_ID = 100_000_001


@cache
def receiver() -> str:
    """One receiver for all figures; its URL."""
    command = [sys.executable, "-m", "bench.receiver"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    assert process.stdout is not None
    return f"http://127.0.0.1:{process.stdout.readline().strip()}"


@cache
def _silent() -> str:
    """The URL of a port at which the kernel accepts, and nobody reads."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    atexit.register(listening.close)
    return f"http://127.0.0.1:{listening.getsockname()[1]}/"


def received() -> dict[str, Any]:
    """What it has."""
    with urllib.request.urlopen(receiver()) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _urls() -> list[dict[str, str]]:
    return [{"url": f"{receiver()}/{number}", "secret": _SECRET} for number in range(_RECEIVERS)]


class BareWebhooks(Bare):
    """As many requests under way, each signed, to the same receivers."""

    def deliver(self, records: list[Record]) -> None:
        """See Bare."""
        asyncio.run(self._send(records))

    async def _send(self, records: list[Record]) -> None:
        import aiohttp

        from penstock.sinks.webhook.signature import key_of, signatures

        key = key_of(_SECRET)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def lane(url: str, some: list[Record]) -> None:
                for value, _, headers in some:
                    id_, now = headers[0][1], int(time.time())
                    sent = {
                        "content-type": "application/json",
                        "webhook-id": id_,
                        "idempotency-key": id_,
                        "webhook-timestamp": str(now),
                        "webhook-signature": signatures([key], id_, now, value),
                    }
                    async with session.post(
                        url, data=value, headers=sent, allow_redirects=False
                    ) as answer:
                        await answer.read()

            lanes = [
                lane(each["url"], records[number::_CONCURRENCY])
                for each in _urls()
                for number in range(_CONCURRENCY)
            ]
            await asyncio.gather(*lanes)


class IntoWebhooks(Broker):
    """penstock with receivers."""

    @property
    def dead(self) -> tuple[str, ...]:
        """Receivers that never answer."""
        return ()

    def sink(self) -> dict[str, Any]:
        """See Broker."""
        return {
            "kind": "webhook",
            "urls": [*_urls(), *self.dead],
            "allow": ["127.0.0.1"],
            "concurrency": _CONCURRENCY,
        }


class AllAlive(IntoWebhooks):
    """The same, to be compared with."""

    name = "all alive"


class BesideADeadOne(IntoWebhooks):
    """The same, and one that takes connections and never answers."""

    @property
    def dead(self) -> tuple[str, ...]:
        """See IntoWebhooks."""
        return (_silent(),)


class Webhooks(BrokerBacklog):
    """A backlog, one request for each document and receiver."""

    name = "webhook"
    required = f"≥ {_LEAST_REQUESTS:,} requests/s, and ≥ 0.7 of a bare loop of aiohttp with as many under way"
    least_ratio = 0.7
    least_per_second = 50  # below that it is given up; what is required is above
    systems = (BareWebhooks, IntoWebhooks)

    @property
    def count(self) -> int:
        """How many rows."""
        return self.sizes.count(20_000, 1000)

    @property
    def warm_count(self) -> int:
        """See BrokerBacklog. Nothing is compiled, and each is a request to each receiver."""
        return 1000

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts to {_RECEIVERS} webhooks, one request each"

    def measure(self, pair: Pair, system: Any) -> Result:
        """See Workload."""
        before = received()["count"]
        result = super().measure(pair, system)
        least = before + _RECEIVERS * self.count
        if (found := received()["count"]) < least:
            raise BenchFailed(f"{system.name}: {found:,} requests came, wanted {least:,}")
        return result

    def figure(self, result: Result) -> str:
        """See Workload."""
        return f"{_RECEIVERS * result.per_second:,.0f} requests/s"

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        if _RECEIVERS * ours.per_second < _LEAST_REQUESTS:
            return False
        return super().reached(native, ours)


class WebhooksBesideADeadOne(Webhooks):
    """The same, with a receiver that does not answer, beside the same without it."""

    name = "webhook_dead"
    required = "≥ 0.95 of the same without the dead one: nothing that can be measured"
    least_ratio = 0.95
    baseline = AllAlive.name
    systems = (AllAlive, BesideADeadOne)

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload. How many it must be is asked of those that are alive."""
        return BrokerBacklog.reached(self, native, ours)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"{super().title}, beside a dead one"


class WebhookLatency(Latency):
    """From the return of COMMIT until a receiver has the request."""

    name = "webhook_latency"
    required = f"p50 ≤ {_MOST_P50_MS:.0f} ms"
    is_warm = False
    systems = (IntoWebhooks,)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"{super().title.partition(',')[0]}, commit to request at {_RECEIVERS} webhooks"

    def measure(self, pair: Pair, system: Any) -> Result:
        """See Workload."""
        # The receiver remembers the first time of each id: no other figure has these.
        self._await(system, self.write(pair, 50, first=_FIRST_ID))
        pair.source.execute("DELETE FROM orders")
        count = round(self.seconds * 50)
        before = system.seconds()
        with Meter(pair, system.pid) as meter:
            began = time.perf_counter()
            committed = self.write(pair, count, first=_FIRST_ID + 1000)
            arrivals = self._await(system, committed)
            seconds = time.perf_counter() - began
        found = sorted(1000 * (arrivals[key] - at) for key, at in committed.items())
        result = Result(self.name, system.name, count, seconds, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)):
            result.figures[name] = percentile(found, percent)
        return result

    def _await(self, system: Any, committed: dict[int, float]) -> dict[int, float]:
        deadline = time.monotonic() + 60
        while True:
            found = {int(key): at for key, at in received()["arrivals"].items()}
            if committed.keys() <= found.keys():
                return {key: found[key] for key in committed}
            system.check()
            if time.monotonic() > deadline:
                missing = len(committed.keys() - found.keys())
                raise BenchFailed(f"{system.name}: {missing} rows did not come")
            time.sleep(0.1)

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        return ours.figures["p50"] <= _MOST_P50_MS
