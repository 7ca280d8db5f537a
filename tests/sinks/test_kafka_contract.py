"""The Kafka sink keeps the contract, once and at least once, on a real broker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.sinks.kafka.kind import KafkaKind
from penstock.sinks.kafka.options import KafkaOptions
from penstock.sinks.kafka.producing import Producing
from penstock.testing import SinkContract

if TYPE_CHECKING:
    from pathlib import Path


class _KafkaContract(SinkContract):
    delivery: str

    @pytest.fixture(autouse=True)
    def _broker(self, kafka, monkeypatch) -> None:
        self.kafka = kafka
        self._refused: set[tuple[str, int]] = set()
        known = Producing.refused

        def refused(producing: Producing, batch: Any) -> dict[str, str]:
            # A real broker refuses by size and by topic alone, not by key: from here on all is as with those.
            found = known(producing, batch)
            for row in batch.to_pylist():
                if (row["table"], row["key"]) in self._refused:
                    found[row["id"]] = "the test does not want it"
            return found

        monkeypatch.setattr(Producing, "refused", refused)

    def refuse(self, options: KafkaOptions, key: int) -> bool:
        self._refused.add(("orders", f'{{"id":{key}}}'))
        return True

    def accept(self, options: KafkaOptions) -> None:
        self._refused.clear()

    def kind(self) -> KafkaKind:
        return KafkaKind()

    def options(self, directory: Path) -> KafkaOptions:
        # One partition: the suite compares the order of everything. Topics of this test's own.
        name = f"t{uuid.uuid4().hex[:12]}"
        return KafkaOptions(
            servers=self.kafka.servers,
            topic=name,
            partitions=1,
            progress_topic=f"{name}.progress",
            delivery=self.delivery,
        )

    def delivered(self, options: KafkaOptions) -> list[dict[str, Any]]:
        return self.kafka.documents(options.topic)


class TestExactlyOnce(_KafkaContract):
    delivery = "exactly_once"
    # Each time the group waits for the member that was killed, until its session is over.
    kills_after = (2,)


@pytest.mark.long
class TestExactlyOnceAtEveryKill(_KafkaContract):
    delivery = "exactly_once"


class TestAtLeastOnce(_KafkaContract):
    is_exclusive = False  # the position is in the state directory, which one process delivers from
    delivery = "at_least_once"

    def delivered(self, options: KafkaOptions) -> list[dict[str, Any]]:
        # Between keys no order is promised.
        found = super().delivered(options)
        return sorted(found, key=lambda one: (one["op"] != "read", _place(one)))


def _place(one: dict[str, Any]) -> tuple[int, int]:
    high, low = one["commit_lsn"].split("/")
    return int(high, 16) << 32 | int(low, 16), one["ordinal"]
