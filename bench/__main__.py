"""Measure native logical replication and penstock side by side; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.backlogs import Inserts, Mixed
from bench.big import Big
from bench.brokerlive import BrokerBig, KafkaLatency
from bench.brokers import Kafka, KafkaAtLeastOnce, Nats
from bench.brokers import started as started_brokers
from bench.copies import BigTable, ManyTables
from bench.encrypted import EncryptedInserts
from bench.failure import BenchFailed
from bench.fleet import IdleSources
from bench.history import History
from bench.live import Idle, Latency, Steady
from bench.logs import LogOnKafka, LogOnNats
from bench.masks import MaskedCopy, Masks
from bench.native import Native, NativeDurable
from bench.newcomer import IdleTables, Newcomer, Newcomers
from bench.ours import Penstock
from bench.report import page, result_lines, this_machine, verdict_line
from bench.rules import FilteredInserts, SqlInserts
from bench.search import Search
from bench.servers import Servers
from bench.together import Together
from bench.tracked import Tracked
from bench.watched import WatchedIdle, WatchedMixed
from bench.webhooks import WebhookLatency, Webhooks, WebhooksBesideADeadOne
from bench.workload import Sizes, warm_up

if TYPE_CHECKING:
    from bench.workload import Result, Workload

_WORKLOADS: tuple[type[Workload], ...] = (
    Inserts,
    Mixed,
    Tracked,
    WatchedMixed,
    History,
    FilteredInserts,
    SqlInserts,
    Masks,
    EncryptedInserts,
    Together,
    Latency,
    Steady,
    Big,
    Idle,
    WatchedIdle,
    IdleSources,
    BigTable,
    MaskedCopy,
    ManyTables,
    Newcomer,
    Newcomers,
    IdleTables,
    Kafka,
    KafkaAtLeastOnce,
    Nats,
    KafkaLatency,
    BrokerBig,
    LogOnKafka,
    LogOnNats,
    Webhooks,
    WebhooksBesideADeadOne,
    WebhookLatency,
    Search,
)
_PAGE = Path("docs/benchmarks.md")


def main() -> int:
    """Run what was asked for; 0 when there are figures and both sides were equal throughout."""
    arguments = _arguments()
    # So that a SIGTERM, too, takes the servers and penstock down on its way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = Sizes(arguments.scale, arguments.rate)
    workloads = [kind(sizes) for kind in _WORKLOADS if kind.name in arguments.only]
    began = time.monotonic()
    try:
        with started_brokers, Servers(sizes.scale) as servers:
            machine = this_machine(servers.version)
            _say(f"penstock's benchmark, scale {sizes.scale:g}, on {machine}")
            measured = [(workload, _run(servers, workload)) for workload in workloads]
    except BenchFailed as failure:
        _say(f"\nFAILED: {failure}")
        if failure.tail:
            _say(failure.tail)
        return 1
    except KeyboardInterrupt:
        _say("\nstopped; everything is cleaned up")
        return 130
    minutes = (time.monotonic() - began) / 60
    _say(f"\ndone in {minutes:.1f} minutes")
    out = arguments.out
    is_whole = {kind.name for kind in _WORKLOADS if not kind.is_optional} <= set(arguments.only)
    if out is None and (sizes != Sizes() or not is_whole):
        _say(f"{_PAGE} is left as it is: this was not the whole benchmark (--out writes it anyway)")
        return 0
    out = out or _PAGE
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(machine, sizes, measured, minutes), encoding="utf-8")
    _say(f"written: {out}")
    return 0


def _run(servers: Servers, workload: Workload) -> list[Result]:
    """One workload on every system, each on fresh databases."""
    _say(f"\n{workload.name}: {workload.title}")
    systems: list[type[Native | Penstock]] = [*(workload.systems or (Native, Penstock))]
    if workload.name == Mixed.name:
        # Many small commits are where it makes a difference.
        systems.insert(1, NativeDurable)
    results = []
    for number, kind in enumerate(systems):
        with servers.pair(f"bench_{workload.name}_{number}") as pair:
            workload.prepare(pair)
            with kind(pair, copies=workload.copies) as system:
                if workload.is_warm:
                    warm_up(pair, system)
                result = workload.measure(pair, system)
        results.append(result)
        for line in result_lines(workload, result):
            _say(line)
    _say(verdict_line(workload, results))
    return results


def _arguments() -> argparse.Namespace:
    names = [kind.name for kind in _WORKLOADS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--scale", type=_positive, default=1.0, help="run so much of every workload (default 1.0)"
    )
    parser.add_argument(
        "--only",
        type=lambda given: _names(given, names),
        default=[kind.name for kind in _WORKLOADS if not kind.is_optional],
        help=f"some of {','.join(names)}",
    )
    parser.add_argument(
        "--rate",
        type=_positive,
        default=Sizes.rate,
        help="transactions a second of the steady workload (default 10000)",
    )
    parser.add_argument(
        "--out", type=Path, help=f"the page to write; {_PAGE} after a whole run at scale 1"
    )
    return parser.parse_args()


def _positive(given: str) -> float:
    value = float(given)
    if value <= 0:
        raise argparse.ArgumentTypeError("wanted more than 0")
    return value


def _names(given: str, known: list[str]) -> list[str]:
    chosen = given.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return chosen


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
