"""What is peculiar to logs on brokers: fencing, places that are deleted, retention, boards and roles."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from fix_nats import NatsServer
from fix_wait import wait_until
from penstock.config import pipeline_from_document
from penstock.errors import (
    LogAtRisk,
    LogGone,
    LogRefused,
    LogUnreachable,
    SecondInstance,
    StateOfAnother,
)
from penstock.log import registry
from penstock.log.contract import LogOwner
from penstock.log.kafka.clients import Reading, Settings
from penstock.log.kafka.locator import _fetcher
from penstock.log.nats.connections import Settings as NatsSettings
from penstock.log.nats.connections import connection_of
from penstock.log.nats.stream import StreamTail, find
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn
from penstock.pipeline import log_of, wire_of
from penstock.run.check import find as find_faults
from penstock.run.status import read_status
from penstock.schema.mark import Mark
from penstock.schema.past_shapes import PastShapes
from penstock.state.boardshapes import BoardLines
from penstock.state.reports import DeliveryReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_kafka import KafkaServer
    from fix_proxy import Proxy
    from penstock.log.contract import Board, Log, LogKind, LogWriter
    from penstock.log.options import LogOptions


class Place:
    """A kind of log, where it is, and a pipeline that no other test has."""

    def __init__(self, kind: str, given: dict[str, Any], directory: Path) -> None:
        self.kind: LogKind = registry.kind_of(kind)
        self.options: LogOptions = self.kind.options.model_validate(given)
        self.pipeline = f"shop_{uuid.uuid4().hex[:12]}"
        self.owner = LogOwner(self.pipeline, "a", directory)

    def log(self) -> Log:
        return self.kind.log_of(self.options, self.owner)

    def board(self) -> Board:
        board = self.kind.board_of(self.options, self.pipeline)
        assert board is not None
        return board

    def elsewhere(self) -> Board:
        """The same board as another process sees it."""
        board: Any = self.board()
        name = getattr(board, "_topic", None) or board._bucket
        return type(board)(self.options, name, self.pipeline)


@pytest.fixture(params=["kafka", "nats"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "kafka":
        given = {"servers": request.getfixturevalue("kafka").servers}
    else:
        given = {"url": request.getfixturevalue("nats_server").url}
    return Place(request.param, given, tmp_path)


@pytest.fixture
def on_kafka(kafka: KafkaServer, tmp_path: Path) -> Place:
    return Place("kafka", {"servers": kafka.servers}, tmp_path)


def append(writer: LogWriter, end_lsn: int, text: str = "x") -> None:
    data, lsn = text.encode(), Lsn(end_lsn)
    head = SliceHead(SliceKind.WHOLE, lsn, lsn, lsn, committed_at=end_lsn)
    writer.append(head, data, np.array([len(data)], np.uint32))


def ends(log: Log, after: int = 0) -> list[int]:
    reader = log.reader(Lsn(after))
    try:
        return [int(each.head.end_lsn) for each in reader.read(1 << 60)]
    finally:
        reader.close()


def opened(log: Log, start: int = 0) -> LogWriter:
    writer = log.writer()
    writer.open(Lsn(start))
    return writer


def test_writer_that_was_taken_over_from_appends_nothing(place: Place):
    """A process that was paused, say, while another one began to capture."""
    first = opened(place.log())
    append(first, 8)
    second = opened(place.log())
    append(second, 16)

    with pytest.raises(SecondInstance):
        append(first, 24)

    append(second, 32)
    assert ends(place.log()) == [8, 16, 32]
    first.close()
    second.close()


def test_writer_goes_on_after_a_failure_from_what_the_broker_has(place: Place):
    writer = opened(place.log())
    append(writer, 8)
    writer.restart()
    append(writer, 16)
    writer.restart()

    assert (writer.durable_lsn, ends(place.log())) == (16, [8, 16])
    writer.close()


def test_log_of_another_source_is_refused(on_kafka: Place):
    writer = opened(on_kafka.log())
    append(writer, 8)
    writer.close()
    topic = f"penstock.{on_kafka.pipeline}.a.log"
    options = on_kafka.kind.options.model_validate(
        {"servers": on_kafka.options.servers, "topic": topic}
    )
    other = on_kafka.kind.log_of(options, replace(on_kafka.owner, source_id="b"))

    with pytest.raises(StateOfAnother, match="belongs to"):
        other.writer().open(Lsn(0))


def test_places_of_another_pipeline_are_refused_found_by_check_and_not_deleted(
    nats_server: NatsServer, tmp_path: Path
):
    own = uuid.uuid4().hex
    names = {"stream": f"log-{own}", "bucket": f"state-{own}"}
    first, second = (Place("nats", {"url": nats_server.url, **names}, tmp_path) for _ in range(2))
    writer = opened(first.log())
    for end in range(1, 30):
        append(writer, 8 * end)
    writer.end_segment()
    append(writer, 400)
    writer.discard_before(Lsn(300))
    writer.end_segment()
    append(writer, 500)
    writer.discard_before(Lsn(400))
    board = first.board()
    with board.hold("deliver/out"):
        board.put("main/tables.json", b"of the first")

    with pytest.raises(StateOfAnother, match="belongs to"):
        second.log().writer().open(Lsn(0))
    with pytest.raises(StateOfAnother, match="belongs to"):
        second.log().reader(Lsn(450)).read(1)
    with pytest.raises(StateOfAnother, match=f"pipeline {first.pipeline} "):
        second.board().get("main/tables.json")
    with pytest.raises(StateOfAnother), second.board().hold("deliver/out"):
        pass
    found = second.kind.check(second.options, [second.owner])
    assert [type(each) for each in found if isinstance(each, StateOfAnother)] == [
        StateOfAnother
    ] * 2
    for forget in (
        lambda: second.kind.forget(second.options, [second.owner]),
        second.board().forget,
    ):
        with pytest.raises(StateOfAnother):
            forget()

    append(writer, 600)
    writer.close()
    assert ends(first.log(), 450) == [500, 600]
    assert not any(
        isinstance(each, StateOfAnother) for each in first.kind.check(first.options, [first.owner])
    )
    first.kind.forget(first.options, [first.owner])
    assert first.board().forget() == [f"bucket state-{own}"]


def test_log_that_is_deleted_and_made_anew_is_not_read_on(place: Place):
    writer = opened(place.log())
    for end in (8, 16):
        append(writer, end)
    reader = place.log().reader(Lsn(0))
    assert len(reader.read(1 << 60)) == 2
    writer.close()
    place.kind.forget(place.options, [place.owner])
    wait_until(lambda: place.log().end_lsn() == 0, what="it to be gone")

    again = opened(place.log(), 100)
    for end in (108, 116, 124, 132):
        append(again, end)

    def read_on() -> bool:
        try:
            found = reader.read(1 << 60)
        except (LogGone, LogUnreachable):
            return True  # who opens it again is told the rest
        assert found == [], "what is another log's was handed out"
        return False

    wait_until(read_on, 60, "the reader to notice")
    with pytest.raises(LogGone, match="begins at 0/64, wanted 0/10"):
        ends(place.log(), 16)
    assert ends(place.log(), 100) == [108, 116, 124, 132]
    again.close()


def test_topic_without_a_partition_for_pieces_is_refused(kafka: KafkaServer, on_kafka: Place):
    from confluent_kafka.admin import NewTopic

    topic = f"penstock.{on_kafka.pipeline}.a.log"
    kafka.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    with pytest.raises(LogRefused, match="has 1 partitions, wanted 2"):
        opened(on_kafka.log())


def test_topic_that_is_compacted_is_refused(kafka: KafkaServer, on_kafka: Place):
    """Kafka takes no record without a key there: capture would try again for ever."""
    topic = f"penstock.{on_kafka.pipeline}.a.log"
    config = {"cleanup.policy": "compact"}
    kafka.admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(30)

    with pytest.raises(LogRefused, match="is compact, wanted delete"):
        opened(on_kafka.log())


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"retention": RetentionPolicy.INTEREST}, "retention interest, wanted limits"),
        ({"retention": RetentionPolicy.WORK_QUEUE}, "retention workqueue, wanted limits"),
        ({"no_ack": True}, "acknowledges nothing"),
        ({"allow_direct": False}, "direct gets: False"),
    ],
)
def test_stream_that_keeps_nothing_for_sinks_is_refused_and_found_by_check(
    nats_server: NatsServer, tmp_path: Path, setting: dict[str, Any], wanted: str
):
    """With the retention `interest` NATS acknowledges a change and has deleted it then."""
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    stream = f"penstock-{place.pipeline}-a-log"
    make_stream(nats_server, stream, **{"allow_direct": True, **setting})

    found = place.kind.check(place.options, [place.owner])

    assert any(isinstance(each, LogRefused) and wanted in each.what for each in found), found
    with pytest.raises(LogRefused, match=wanted):
        opened(place.log())


@pytest.mark.parametrize("denied", ["$JS.API.STREAM.CREATE.>", "*.entries", "$JS.API.DIRECT.GET.>"])
def test_who_lacks_a_right_is_told_so_and_capture_does_not_wait_for_ever(
    tmp_path: Path, denied: str
):
    settings = (
        'authorization { users: [ { user: "p", password: "s", permissions: {'
        f' publish: {{ allow: ">", deny: "{denied}" }} }} }} ] }}'
    )
    with NatsServer(settings).running() as server:
        given = {"url": server.url, "user": "p", "password": "s", "timeout": 1.0}

        with pytest.raises(LogRefused, match="permissions violation"):
            opened(Place("nats", given, tmp_path).log())


def make_stream(server: NatsServer, name: str, **settings: Any) -> None:
    """One that a person has made for a log."""
    config = StreamConfig(name=name, subjects=[f"{name}.entries", f"{name}.pieces"], **settings)
    server.manage(lambda manager: manager.add_stream(config))


def test_stream_in_memory_is_reported(nats_server: NatsServer, tmp_path: Path):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    stream = f"penstock-{place.pipeline}-a-log"
    make_stream(nats_server, stream, allow_direct=True, storage=StorageType.MEMORY)

    found = [each.what for each in place.kind.check(place.options, [place.owner])]

    assert any("lies in memory" in each for each in found), found


def test_log_that_would_be_lost_with_one_disk_is_reported_before_it_is_made(place: Place):
    (found,) = place.kind.check(place.options, [place.owner])

    assert isinstance(found, LogAtRisk)
    assert "lost with its disk" in found.what
    assert place.log().span().end_lsn == 0, "nothing was made"


def test_stream_that_is_missing_and_may_not_be_made_is_reported(
    nats_server: NatsServer, tmp_path: Path
):
    place = Place("nats", {"url": nats_server.url, "create_streams": False}, tmp_path)

    found = place.kind.check(place.options, [place.owner])

    assert [type(each) for each in found] == [LogRefused] * 2
    assert [each.where.split()[0] for each in found] == ["stream", "bucket"]
    assert all("is not there, and log.create_streams is false" in each.what for each in found)


def test_sources_that_would_share_a_stream_are_refused(nats_server: NatsServer, tmp_path: Path):
    place = Place("nats", {"url": nats_server.url, "stream": "log-{pipeline}"}, tmp_path)
    owners = [place.owner, replace(place.owner, source_id="b")]

    (found,) = place.kind.check(place.options, owners)

    assert isinstance(found, LogRefused)
    assert "2 sources have one stream" in found.what


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {("PEN-310", "warning")}),
        ({"create_streams": False}, {("PEN-308", "error")}),
        ({"url": "nats://127.0.0.1:1"}, {("PEN-307", "error")}),
    ],
)
def test_log_that_a_run_cannot_use_is_an_error_of_check_and_a_risk_is_a_warning(
    nats_server: NatsServer, tmp_path: Path, given: dict[str, Any], wanted: set[tuple[str, str]]
):
    document = {
        "name": f"shop_{uuid.uuid4().hex[:12]}",
        "state": str(tmp_path / "state"),
        "source": {"url": "postgresql://127.0.0.1:1/none", "tables": ["*.*"]},
        "sinks": {"out": {"kind": "stdout"}},
        "log": {"kind": "nats", "url": nats_server.url, "timeout": 2.0, **given},
    }

    found = find_faults(pipeline_from_document(document, "test"))

    of_log = {(each.code, each.severity) for each in found if each.code.startswith("PEN-3")}
    assert of_log == wanted


def test_settings_of_a_topic_that_is_yet_to_be_made_are_judged(kafka: KafkaServer, tmp_path: Path):
    config = {"retention.ms": "1000", "min.insync.replicas": "2"}
    given = {"servers": kafka.servers, "replication_factor": 3, "config": config}
    place = Place("kafka", given, tmp_path)

    found = [each.what for each in place.kind.check(place.options, [place.owner])]

    assert len(found) == 2, found
    assert "replication_factor is 3, and there are 1 brokers" in found[0]
    assert "retention.ms is 1000" in found[1]


def test_replication_and_retention_are_reported_before_and_while_it_runs(
    kafka: KafkaServer, on_kafka: Place
):
    from confluent_kafka.admin import NewTopic

    topic = f"penstock.{on_kafka.pipeline}.a.log"
    config = {"retention.ms": "100000", "retention.bytes": "100000"}
    kafka.admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(30)
    wait_until(lambda: topic in kafka.topics(topic), what="the topic")

    found = on_kafka.kind.check(on_kafka.options, [on_kafka.owner])

    assert [type(each) for each in found] == [LogAtRisk] * 3
    assert "min.insync.replicas 1" in found[0].what
    assert "retention.ms is 100000" in found[1].what
    assert "retention.bytes is 100000" in found[2].what
    writer = opened(on_kafka.log())
    assert writer.risk(Lsn(0)) is None
    append(writer, 8, "x" * 90_000)
    assert writer.risk(Lsn(8)) is None
    risk = writer.risk(Lsn(0))
    assert isinstance(risk, LogAtRisk)
    assert "Kafka keeps 100" in risk.what
    writer.close()


def test_retention_is_reported_while_nobody_writes(
    kafka: KafkaServer, on_kafka: Place, monkeypatch: pytest.MonkeyPatch
):
    assert on_kafka.log().risk(Lsn(0)) is None  # there is none yet
    topic = f"penstock.{on_kafka.pipeline}.a.log"
    config = {"retention.ms": "5000000"}
    kafka.admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(30)
    wait_until(lambda: topic in kafka.topics(topic), what="the topic")
    writer = opened(on_kafka.log())
    append(writer, 8)
    append(writer, 16)
    writer.close()

    assert on_kafka.log().risk(Lsn(0)) is None
    later = time.time() + 3600
    monkeypatch.setattr("penstock.log.kafka.transport.time", SimpleNamespace(time=lambda: later))

    assert on_kafka.log().risk(Lsn(16)) is None
    risk = on_kafka.log().risk(Lsn(8))
    assert isinstance(risk, LogAtRisk)
    assert "1.0 hours old, and Kafka deletes after 1.4" in risk.what


def test_parts_of_a_transaction_that_every_sink_has_are_not_needed(
    nats_server: NatsServer, tmp_path: Path
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    writer = opened(place.log())
    lengths = np.array([1], np.uint32)
    for part in range(6):
        kind, end = (SliceKind.PART, Lsn(0)) if part < 5 else (SliceKind.LAST, Lsn(8))
        head = SliceHead(kind, Lsn(8), Lsn(8), end, committed_at=8, meta={"part": part})
        writer.append(head, b"x", lengths)
    writer.close()
    nats_server.change_stream(f"penstock-{place.pipeline}-a-log", max_msgs_per_subject=10)

    assert place.log().risk(Lsn(0)) is not None
    assert place.log().risk(Lsn(8)) is None


def test_status_says_while_capture_is_stopped_what_will_delete_what_a_sink_needs(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = f"shop_{uuid.uuid4().hex[:12]}"
    document = {
        "name": name,
        "state": str(tmp_path / "state"),
        "source": {"url": "postgresql://127.0.0.1:1/none", "tables": ["*.*"]},
        "sinks": {"out": {"kind": "stdout"}},
        "log": {"kind": "nats", "url": nats_server.url},
    }
    file = pipeline_from_document(document, "test")
    writer = opened(log_of(file))
    append(writer, 8)
    writer.close()
    nats_server.change_stream(f"penstock-{name}-{name}-log", max_age=5000)

    def warning() -> str | None:
        (found,) = read_status(file).sources.values()
        return found.warning

    assert warning() is None
    later = time.time() + 3600
    monkeypatch.setattr("penstock.log.nats.transport.time", SimpleNamespace(time=lambda: later))
    assert "1.0 hours old, and NATS deletes after 1.4" in (warning() or "")
    wire_of(file).publish(DeliveryReport(delivered_lsn=Lsn(8), safe_lsn=Lsn(8)), "out")
    assert warning() is None


def test_what_is_put_on_a_board_is_seen_by_all_and_after_a_restart(place: Place):
    one, other = place.board(), place.elsewhere()
    assert (one.get("a/b.json"), other.keys("")) == (None, [])

    one.put("a/b.json", b"one")
    one.put("a/c.json", b"c" * 3_000_000)
    other.sync()
    assert other.get("a/b.json").value == b"one"
    assert other.get("a/c.json").value == b"c" * 3_000_000

    other.put("a/b.json", b"two")
    other.put("a/c.json", b"short")
    one.sync()
    assert (one.get("a/b.json").value, one.get("a/c.json").value) == (b"two", b"short")
    assert one.get("a/b.json").at > 1.7e9
    one.put("a/b.json", None)
    wait_until(lambda: other.get("a/b.json") is None, what="it to be taken back")
    assert place.elsewhere().keys("a/") == ["a/c.json"]


def test_role_is_held_by_one_at_a_time(place: Place):
    one, other = place.board(), place.elsewhere()
    assert other.run_of("deliver/warehouse") is None
    with one.hold("deliver/warehouse"):
        run = one.run_of("deliver/warehouse")
        assert run is not None
        wait_until(lambda: other.run_of("deliver/warehouse") == run, what="the other to see it")
        with pytest.raises(SecondInstance), other.hold("deliver/warehouse"):
            pass
        with other.hold("deliver/lines"):
            assert other.run_of("deliver/lines") not in (None, run)
    with other.hold("deliver/warehouse"):
        assert other.run_of("deliver/warehouse") not in (None, run)


def test_role_of_a_process_that_is_too_slow_to_answer_is_not_taken(
    nats_server: NatsServer, tmp_path: Path, use_timing: Callable[..., None]
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    one, other = place.board(), place.elsewhere()
    use_timing(nats_claim_alone_seconds=0.0)  # nobody can be as quick

    with (
        one.hold("deliver/warehouse"),
        pytest.raises(SecondInstance),
        other.hold("deliver/warehouse"),
    ):
        pass


def test_process_whose_role_was_taken_over_puts_nothing_more(place: Place):
    """As one that was suspended: it cannot know before it reads."""
    one, other = cast("Any", place.board()), cast("Any", place.elsewhere())
    with one.hold("capture/a"):
        one.put("a/capture.json", b"one")
        other.sync()
        other._hold("capture/a", "another run")
        other.put("a/capture.json", b"two")
        one._doubt_at = 0.0  # it has not put anything for a while

        with pytest.raises(SecondInstance, match="taken over"):
            one.put("a/capture.json", b"late")

        other._leave_role("capture/a")
    assert place.elsewhere().get("a/capture.json").value == b"two"


def test_place_that_is_out_of_range_for_a_moment_is_not_gone(kafka: KafkaServer):
    """A broker that was killed and comes back may not know at once how far a partition goes."""
    topic = f"t{uuid.uuid4().hex[:10]}"
    kafka.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    reading = Reading(Settings(kafka.servers, 10.0), f"topic {topic}", **{"fetch.wait.max.ms": 10})
    producer = Producer({"bootstrap.servers": kafka.servers})
    reading.assign(topic, 0, 2)

    def poll() -> Any:
        return reading.poll(0.1, "reading the log")

    try:
        wait_until(lambda: poll() is None and reading._doubt_until is not None, 10)
        for number in range(3):
            producer.produce(topic, str(number).encode())
        producer.flush(10)

        wait_until(lambda: (one := poll()) is not None and one.value() == b"2", 10)
    finally:
        reading.close()


def test_place_that_stays_out_of_range_is_gone(kafka: KafkaServer, use_timing: Callable[..., None]):
    use_timing(kafka_doubt_seconds=0.5)
    topic = f"t{uuid.uuid4().hex[:10]}"
    kafka.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    reading = Reading(Settings(kafka.servers, 10.0), f"topic {topic}", **{"fetch.wait.max.ms": 10})
    reading.assign(topic, 0, 2)
    try:
        with pytest.raises(LogGone):
            wait_until(lambda: reading.poll(0.1, "reading the log") is not None, 20)
    finally:
        reading.close()


def test_value_fits_into_messages_as_small_as_the_topic_takes(kafka: KafkaServer, tmp_path: Path):
    given = {"servers": kafka.servers, "config": {"max.message.bytes": "50000"}}
    small = Place("kafka", given, tmp_path)
    value = np.random.default_rng(7).bytes(400_000)

    small.board().put("a/sinks/s.json", value)

    found = small.elsewhere().get("a/sinks/s.json")
    assert found is not None
    assert found.value == value


def test_value_fits_into_messages_as_small_as_the_bucket_takes(
    nats_server: NatsServer, tmp_path: Path
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    place.board().put("a/b", b"c")
    nats_server.change_stream(f"KV_penstock-{place.pipeline}-state", max_msg_size=10_000)
    value = bytes(np.random.default_rng(7).integers(0, 256, 30_000, np.uint8))

    place.elsewhere().put("a/b", value)

    posted = place.elsewhere().get("a/b")
    assert posted is not None
    assert posted.value == value


def test_shapes_on_a_board_are_those_of_a_file(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Written by one process, read by another, and forgotten in between."""
    monkeypatch.setattr("penstock.schema.past_shapes._LEAST_BYTES", 1000)

    def mark(lsn: int) -> Mark:
        return Mark(Lsn(lsn), Lsn(lsn), 0, 0, 0, 0, "other", "x" * 200)

    writing = PastShapes(BoardLines(place.board(), "a/shapes"))
    reading = PastShapes(BoardLines(place.elsewhere(), "a/shapes"))
    writing.open_for_writing()
    for lsn in (8, 16, 24, 32):
        writing.append([mark(lsn)])
    writing.append([mark(16)])  # comes again
    assert reading.last_lsn == 32
    assert [each[0].commit_lsn for each in reading.transactions_after(Lsn(8))] == [16, 24, 32]

    assert writing.forget_before(Lsn(24))
    writing.append([mark(40)])

    assert reading.last_lsn == 40
    assert [each[0].commit_lsn for each in reading.transactions_after(Lsn(0))] == [24, 32, 40]
    again = PastShapes(BoardLines(place.elsewhere(), "a/shapes"))
    again.open_for_writing()
    again.append([mark(48)])
    assert [each[0].commit_lsn for each in again.transactions_after(Lsn(32))] == [40, 48]


def test_line_of_shapes_that_was_taken_without_an_answer_keeps_its_place(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)

    def mark(lsn: int) -> Mark:
        return Mark(Lsn(lsn), Lsn(lsn), 0, 0, 0, 0, "other", "x")

    def listed(shapes: PastShapes) -> list[int]:
        return [int(each[0].commit_lsn) for each in shapes.transactions_after(Lsn(0))]

    board: Any = place.board()
    writing = PastShapes(BoardLines(board, "a/shapes"))
    reading = PastShapes(BoardLines(place.elsewhere(), "a/shapes"))
    writing.open_for_writing()
    for number, again in ((8, 8), (16, 24)):
        with monkeypatch.context() as patching:
            patching.setattr(
                board, "_put_one", lambda key, value: board._post(key, value) and away()
            )
            # What is appended next is so at once, before the answer of the broker is here.
            patching.setattr(board, "_drain", lambda: None)
            with pytest.raises(LogUnreachable):
                writing.append([mark(number)])
            reading.refresh()
            patching.setattr(board, "_put_one", type(board)._put_one.__get__(board))
            writing.append([mark(again)])

    assert reading.last_lsn == 24
    assert listed(reading) == [8, 16, 24]


def away() -> None:
    raise LogUnreachable("no answer")


@pytest.mark.parametrize("at", [0, 3, 5])
def test_lines_of_shapes_that_are_replaced_while_they_are_read_are_read_whole(
    nats_server: NatsServer, tmp_path: Path, at: int
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    writing = BoardLines(place.board(), "a/shapes")
    writing.open_for_writing()
    for line in (b"one", b"two", b"three"):
        writing.append(line)
    board: Any = place.elsewhere()
    gets = 0

    class Meanwhile:
        """The board, on which something happens between two questions."""

        def __getattr__(self, name: str) -> Any:
            return getattr(board, name)

        def get(self, key: str) -> Any:
            nonlocal gets
            gets += 1
            if gets == at + 1:
                writing.replace([b"one and two and three"])
                board.sync()
            return board.get(key)

    reading = BoardLines(cast("Board", Meanwhile()), "a/shapes")

    assert reading.read_new() == (False, [b"one and two and three"])

    gets = at + 1
    writing.append(b"four")
    assert reading.read_new() == (False, [b"four"])


def test_line_of_shapes_that_is_gone_is_an_error_and_not_taken_for_the_end(place: Place):
    writing, reading = (BoardLines(each, "a/shapes") for each in (place.board(), place.elsewhere()))
    writing.open_for_writing()
    for line in (b"one", b"two", b"three"):
        writing.append(line)
    assert reading.read_new() == (False, [b"one", b"two", b"three"])

    place.board().put("a/shapes/000000/000000001", None)

    for damaged in (BoardLines(place.elsewhere(), "a/shapes") for _ in range(2)):
        with pytest.raises(LogGone, match="line 1 of the shapes of tables is gone"):
            damaged.read_all()
        with pytest.raises(LogGone):
            damaged.read_new()


def test_state_topic_is_made_for_itself_and_one_that_deletes_is_refused(
    kafka: KafkaServer, tmp_path: Path
):
    config = {"cleanup.policy": "delete", "retention.ms": "100000", "max.message.bytes": "60000"}
    place = Place("kafka", {"servers": kafka.servers, "config": config}, tmp_path)
    board: Any = place.board()
    board.put("a/b", b"c")
    facts = board._log_topic.facts()
    assert facts.config["cleanup.policy"] == "compact"
    assert facts.config["retention.ms"] != "100000"
    assert facts.limit == 60_000

    other = Place("kafka", {"servers": kafka.servers}, tmp_path)
    topic = f"penstock.{other.pipeline}.state"
    kafka.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    wait_until(lambda: topic in kafka.topics(topic), what="the topic")
    found = [each for each in other.kind.check(other.options, [other.owner]) if topic in each.where]

    assert "cleanup.policy is delete, wanted compact" in found[0].what
    assert "replication factor 1" in found[1].what
    with pytest.raises(LogRefused, match="wanted compact"):
        other.board().put("a/b", b"c")


def test_topics_that_kafka_takes_no_names_of_are_reported(kafka: KafkaServer, on_kafka: Place):
    topic = f"penstock_{on_kafka.pipeline}_a_log"
    kafka.admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    wait_until(lambda: topic in kafka.topics(topic), what="the topic")

    (found,) = on_kafka.kind.check(on_kafka.options, [on_kafka.owner])

    assert isinstance(found, LogRefused)
    assert f"collides with {topic}" in found.what


def test_bucket_with_an_age_is_reported_and_refused(nats_server: NatsServer, tmp_path: Path):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    place.board().put("a/b", b"c")
    stream = f"KV_penstock-{place.pipeline}-state"
    nats_server.change_stream(stream, max_age=100_000, max_bytes=1_000_000)

    found = [
        each.what
        for each in place.kind.check(place.options, [place.owner])
        if "bucket" in each.where
    ]

    assert "NATS deletes positions, requests and shapes of tables: max_age" in found[0]
    assert "NATS refuses more than that: max_bytes of the bucket is 1e+06" in found[1]
    assert "one replica" in found[2]
    with pytest.raises(LogRefused, match="max_age"):
        place.elsewhere().put("a/b", b"d")


def test_reader_that_is_closed_leaves_no_consumer_at_the_server(
    nats_server: NatsServer, tmp_path: Path
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    writer = opened(place.log())
    for end in range(1, 700):
        append(writer, 8 * end)
    connection = connection_of(NatsSettings.of(place.options), "log")

    def count() -> int:
        found = find(connection, f"penstock-{place.pipeline}-a-log")
        return int(found.state.consumer_count)

    for _ in range(5):
        assert ends(place.log(), 8 * 690)[-1] == 8 * 699

    wait_until(lambda: count() == 0, what="consumers to be gone")
    writer.close()


def test_reader_that_has_emptied_what_was_full_wants_more(nats_server: NatsServer, tmp_path: Path):
    """It may do so between the look that finds it full and the word that says so."""
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    writer = opened(place.log())
    append(writer, 8)
    stream = f"penstock-{place.pipeline}-a-log"
    connection = connection_of(NatsSettings.of(place.options), "log")
    tail: Any = StreamTail(connection, stream, f"{stream}.entries", 1)
    wait_until(lambda: tail.poll(0.0) is None and tail.has_caught_up)
    connection.call_soon(tail._room.clear)
    append(writer, 16)
    tail._waiting.get(timeout=10)  # taken before the word

    append(writer, 24)

    wait_until(lambda: tail.poll(0.0), 10, "the next one")
    tail.close()
    writer.close()


@pytest.mark.parametrize(
    "limit",
    [
        {"max_msgs": 10, "discard": DiscardPolicy.OLD},
        {"max_msgs_per_subject": 10},
    ],
)
def test_limits_of_a_stream_by_number_are_reported_before_and_while_it_runs(
    nats_server: NatsServer, tmp_path: Path, limit: dict[str, Any]
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    writer = opened(place.log())
    append(writer, 8)
    assert writer.risk(Lsn(0)) is None

    nats_server.change_stream(f"penstock-{place.pipeline}-a-log", **limit)
    found = [each.what for each in place.kind.check(place.options, [place.owner])]
    for end in range(16, 80, 8):
        append(writer, end)
    writer.flush()

    assert any(f"{next(iter(limit))} of the stream is 10" in each for each in found)
    risk = writer.risk(Lsn(0))
    assert isinstance(risk, LogAtRisk)
    assert "NATS keeps 10" in risk.what
    writer.close()
    while_stopped = place.log().risk(Lsn(0))
    assert isinstance(while_stopped, LogAtRisk)
    assert while_stopped.what == risk.what
    assert place.log().risk(Lsn(72)) is None


def test_entry_that_is_too_long_for_a_message_keeps_its_pieces_while_it_is_needed(place: Place):
    def begun() -> Any:
        writer: Any = opened(place.log())
        writer._writer._transport.piece_bytes = 4000
        return writer

    dice = np.random.default_rng(7)
    writer = begun()
    append(writer, 8)
    writer.end_segment()
    append(writer, 16, dice.bytes(10_000).hex())  # its entry holds it, and lies in pieces itself
    writer.end_segment()
    append(writer, 24, dice.bytes(50_000).hex())

    assert writer.discard_before(Lsn(8))
    assert ends(place.log(), 8) == [16, 24]
    writer.close()
    again = begun()  # who knows it from reading
    append(again, 32, dice.bytes(50_000).hex())
    again.discard_before(Lsn(8))

    assert ends(place.log(), 8) == [16, 24, 32]
    again.close()


def test_board_remembers_nothing_of_what_was_taken_back(place: Place):
    one, other = cast("Any", place.board()), cast("Any", place.elsewhere())
    dice = np.random.default_rng(7)
    for _ in range(5):
        one.put("a/large.json", dice.bytes(600_000))
    one.put("a/small.json", b"x")
    one.put("a/small.json", None)
    other.sync()
    one.sync()

    wanted = one.get("a/large.json")
    for board in (one, other, cast("Any", place.elsewhere())):
        board.sync()
        assert board.get("a/large.json").value == wanted.value
        assert board.get("a/small.json") is None
        assert sorted(board._posted) == sorted(["a/large.json", *one._pieces_of("a/large.json")])


def test_bucket_holds_the_last_value_of_a_long_report_and_no_trace_of_others(
    nats_server: NatsServer, tmp_path: Path
):
    place = Place("nats", {"url": nats_server.url}, tmp_path)
    board, dice = cast("Any", place.board()), np.random.default_rng(7)

    for _ in range(5):
        board.put("a/large.json", dice.bytes(600_000))

    found = find(board._connection, board._stream)
    assert found.state.messages == 1 + len(board._pieces_of("a/large.json"))


@pytest.mark.long  # clients take their time to see that a topic is gone
def test_board_whose_topic_was_deleted_is_made_anew(kafka: KafkaServer, on_kafka: Place):
    board = cast("Any", on_kafka.board())
    board.put("a/b.json", b"one")
    kafka.admin.delete_topics([board._topic])[board._topic].result(30)
    wait_until(lambda: not kafka.topics(board._topic), what="the topic to be gone")

    def puts() -> bool:
        try:
            board.put("a/b.json", b"two")
        except LogUnreachable:
            return False
        return True

    wait_until(puts, 60, "a report to be taken")
    assert on_kafka.elsewhere().get("a/b.json").value == b"two"


def append_slowly(place: Place, proxy: Proxy) -> None:
    """A slice that takes longer than the time-out, in messages each of which takes less."""
    writer = opened(place.log())
    proxy.bytes_per_second = 200_000

    append(writer, 8, long_text(2_400_000))
    writer.flush()

    proxy.bytes_per_second = 0
    assert ends(place.log()) == [8]
    writer.close()


def read_slowly(
    place: Place, proxy: Proxy, length: int = 1_200_000, bytes_per_second: int = 200_000
) -> None:
    """The same, read. Each attempt as in another process: a task that fails ends its own."""
    text = long_text(length)
    writer = opened(place.log())
    append(writer, 8, text)
    writer.close()
    (found,) = place.log().reader(Lsn(0)).read(1 << 60)
    proxy.bytes_per_second = bytes_per_second

    def comes() -> bool:
        _fetcher.cache_clear()
        try:
            return found.read()[0] == text.encode()
        except LogUnreachable:
            return False

    wait_until(comes, 60, "the slice")
    proxy.bytes_per_second = 0


def long_text(length: int) -> str:
    """Text of so many characters that hardly gets shorter."""
    return np.random.default_rng(7).bytes(length // 2).hex()


@pytest.fixture
def slow_nats(
    tmp_path: Path, make_proxy: Callable[[int], Proxy]
) -> Iterator[Callable[..., tuple[Place, Proxy]]]:
    """A server with settings of a test's own, behind a proxy."""
    with ExitStack() as stack:

        def slow_nats(settings: str, timeout: float) -> tuple[Place, Proxy]:
            server = stack.enter_context(NatsServer(settings).running())
            proxy = make_proxy(server.port)
            given = {"url": f"nats://127.0.0.1:{proxy.port}", "timeout": timeout}
            return Place("nats", given, tmp_path), proxy

        yield slow_nats


# Of so large messages eight take longer than a time-out of 1.5 s.
_SMALL = "max_payload: 65536"


@pytest.mark.long  # so that a busy machine is no slow server
def test_slow_link_to_nats_is_no_server_that_does_not_answer(
    slow_nats: Callable[..., tuple[Place, Proxy]],
):
    append_slowly(*slow_nats(_SMALL, 3.0))


@pytest.mark.long
def test_slice_is_read_from_nats_over_a_slow_link(
    slow_nats: Callable[..., tuple[Place, Proxy]], use_timing: Callable[..., None]
):
    use_timing(broker_ask_seconds=1.5)
    read_slowly(*slow_nats(_SMALL, 1.5))


@pytest.mark.long
def test_server_of_nats_does_not_hang_up_on_who_reads_large_pieces_slowly(
    slow_nats: Callable[..., tuple[Place, Proxy]],
):
    place, proxy = slow_nats("write_deadline: '1s'", 5.0)
    read_slowly(place, proxy, 8_000_000, 1_000_000)
    assert proxy.accepted_count == 1


@pytest.fixture
def slow_kafka(proxied_kafka: tuple[KafkaServer, Proxy], tmp_path: Path) -> tuple[Place, Proxy]:
    server, proxy = proxied_kafka
    config = {"max.message.bytes": "65536"}
    given = {"servers": server.servers, "timeout": 2, "config": config}
    return Place("kafka", given, tmp_path), proxy


@pytest.mark.long  # a broker of its own
def test_slow_link_to_kafka_is_no_broker_that_does_not_answer(slow_kafka: tuple[Place, Proxy]):
    append_slowly(*slow_kafka)


@pytest.mark.long
def test_slice_is_read_from_kafka_over_a_slow_link(
    proxied_kafka: tuple[KafkaServer, Proxy], tmp_path: Path, use_timing: Callable[..., None]
):
    """A piece takes longer than an answer is usually waited for."""
    server, proxy = proxied_kafka
    use_timing(log_read_seconds=1.0)
    place = Place("kafka", {"servers": server.servers, "timeout": 1}, tmp_path)
    read_slowly(place, proxy, 3_000_000, 400_000)


def test_board_with_a_producer_beyond_repair_makes_another_one(on_kafka: Place):
    """Where a callback was run meanwhile, Python hides the client's exception behind its own."""
    board = cast("Any", on_kafka.board())
    board.put("a/b.json", b"one")
    client = board._producer._client

    class Broken:
        produce, purge = client.produce, client.purge

        def __len__(self) -> int:
            return 1

        def flush(self, _seconds: float) -> int:
            raise SystemError from KafkaException(KafkaError(KafkaError._FATAL))

    board._producer._client = Broken()
    with pytest.raises(LogUnreachable, match="_FATAL"):
        board.put("a/b.json", b"two")

    board.put("a/b.json", b"three")
    assert on_kafka.elsewhere().get("a/b.json").value == b"three"
