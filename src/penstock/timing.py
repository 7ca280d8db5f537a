"""How long penstock waits, and how often it polls: all such times in one place.

Knows nothing of what is waited for. Times that a user sets are options of their part; time-outs that
a server keeps are written where they are sent.

For tests only: `PENSTOCK_TIMING=0.1` shortens what is merely waiting to a tenth, in the process that
reads it and in all that it starts. Single times can be set, too:
`PENSTOCK_TIMING="0.1 state_lock_patience_seconds=0.5"`. Limits keep their length: they decide what
happens, or a user was promised them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import Any

VARIABLE = "PENSTOCK_TIMING"

# To poll more often than this costs more than it saves.
_LEAST_PAUSE_SECONDS = 0.02


def _pause(seconds: float) -> Any:
    """A time that is merely waited: nothing else happens when it is shorter."""
    return field(default=seconds, metadata={"is_pause": True})


def _limit(seconds: float) -> Any:
    """A time that decides what happens."""
    return field(default=seconds, metadata={"is_pause": False})


@dataclass(frozen=True)
class Timing:
    """All times, in seconds."""

    # -- capture ---------------------------------------------------------------------------------
    # A slice is sealed when the socket has been empty for this long, or a transaction has waited that
    # long: small enough not to be felt, large enough for one fsync to serve many transactions.
    capture_quiet_seconds: float = _limit(0.0003)
    capture_longest_wait_seconds: float = _limit(0.05)
    # How long it waits for the socket: so late it notices a stop. With many sources each waits longer,
    # up to the second.
    capture_wait_seconds: float = _pause(0.25)
    capture_longest_stop_seconds: float = _limit(1.0)
    # How often what is delivered is acknowledged and forgotten; and how often an idle source reports
    # all the same.
    capture_status_seconds: float = _pause(1.0)
    capture_quiet_status_seconds: float = _limit(10.0)
    # How long a connection is kept while nothing is taken from it, since the log is full.
    capture_full_seconds: float = _limit(5.0)
    # How long the server may need to notice that we have hung up.
    capture_free_seconds: float = _limit(10.0)
    # An idle slot moves by a commit at every sink: with many sources, not more often than this in each.
    capture_paced_beat_seconds: float = _limit(3.0)
    # How often the catalog is asked which tables there are, and the slot how much WAL it may keep.
    membership_poll_seconds: float = _pause(2.0)
    membership_slot_seconds: float = _limit(30.0)
    # A child process of capture is watched this often; of the 10 s a stop may take it gets so much.
    capture_process_poll_seconds: float = _pause(0.1)
    capture_process_stop_seconds: float = _limit(8.0)

    # -- source ----------------------------------------------------------------------------------
    # A server that is shutting down asks for replies so quickly; see _SHUTDOWN_REQUESTS.
    stream_shutdown_seconds: float = _limit(2.0)
    # The server begins to answer at once, or is being restarted.
    stream_answer_seconds: float = _limit(30.0)
    # In a dense stream messages are let arrive for so long before they are taken, in a backlog longer.
    stream_gather_seconds: float = _limit(0.001)
    stream_longest_gather_seconds: float = _limit(0.016)
    # The socket is read so long at a time, and the server asked this often how far it is.
    last_commit_wait_seconds: float = _limit(0.1)
    last_commit_ask_seconds: float = _pause(1.0)
    # How long transactions that were open when a slot was ready are waited for, and until that is reported.
    slot_open_seconds: float = _limit(120.0)
    slot_open_report_seconds: float = _limit(5.0)
    # The server may take so long to decode what a slot holds, for a number in `status`.
    slot_peek_seconds: float = _limit(3.0)
    slot_poll_seconds: float = _pause(0.1)
    # A snapshot waits for every transaction that writes: polled this often, and said after so long.
    snapshot_poll_seconds: float = _pause(0.1)
    snapshot_report_seconds: float = _limit(5.0)

    # -- delivery --------------------------------------------------------------------------------
    # How often the log is polled: often while changes come and for a while after, seldom else.
    flow_busy_seconds: float = _limit(0.002)
    flow_idle_seconds: float = _limit(0.03)
    flow_stays_busy_seconds: float = _pause(1.0)
    # A sink's position is written to the state directory no more often than this.
    flow_report_seconds: float = _limit(0.25)
    # Working files that other machines do not see are read for the report so often.
    flow_files_seconds: float = _pause(1.0)
    # In a backlog a batch waits so long to become large.
    flow_grow_seconds: float = _limit(0.25)
    # How long tables that catch up may keep the others waiting at a time.
    flow_catch_up_seconds: float = _limit(2.0)
    # How often the states of tables are read: at once when there is news, often while some are being
    # copied, seldom else, and so much later while one commit follows another.
    tables_news_seconds: float = _pause(0.05)
    tables_busy_seconds: float = _pause(0.25)
    tables_idle_seconds: float = _pause(2.0)
    tables_backlog_seconds: float = _pause(8.0)
    # Of the 10 s a stop may take: how long a batch under way may need before it is cancelled.
    delivery_patience_seconds: float = _limit(6.0)

    # -- brokers ---------------------------------------------------------------------------------
    # A call is waited for in steps of this length, so that it can be given up within the time of a stop.
    broker_step_seconds: float = _limit(0.5)
    # Of the 10 s a stop may take: so long a broker is waited for in all.
    broker_stop_seconds: float = _limit(2.0)
    # One call, before it is made again; and how long to wait until then.
    broker_ask_seconds: float = _limit(5.0)
    broker_ask_pause_seconds: float = _pause(0.05)
    # How long Kafka takes a member of a group for alive: the least that brokers allow as they are shipped.
    kafka_session_seconds: float = _limit(6.0)
    kafka_claim_poll_seconds: float = _pause(0.2)
    # To end a client is waited for so long: to leave a group takes a silent broker's 3 s.
    kafka_end_seconds: float = _limit(4.0)
    # Who else delivers may be connected to another server of a cluster of NATS, or to the same.
    nats_claim_seconds: float = _limit(1.0)
    nats_claim_alone_seconds: float = _limit(0.1)
    # A holder of a role whose connection is there and who does not answer for so long is given up.
    nats_session_seconds: float = _limit(6.0)
    nats_close_seconds: float = _limit(1.0)

    # A log on a broker: an answer to a read is waited for so long; one that is not there yet is asked for again
    # after so long; who holds a role is asked for no more often than this.
    log_read_seconds: float = _limit(10.0)
    # So long librdkafka waits for an answer, unless its settings say otherwise, before it asks again.
    kafka_answer_seconds: float = _limit(60.0)
    log_absent_seconds: float = _limit(0.25)
    log_holder_seconds: float = _limit(1.0)
    # How often capture asks whether the broker may delete what is still needed.
    log_risk_seconds: float = _pause(60.0)
    # What is let go at once is no older than this when the next begins.
    log_unit_seconds: float = _limit(3600.0)
    # A transaction of Kafka's: longer than a process may be suspended, for one that the broker ends fences its
    # producer.
    log_transaction_seconds: float = _limit(600.0)
    # A report is not waited for longer, since the next one follows; joining a group of a busy broker is.
    board_report_seconds: float = _limit(5.0)
    board_join_seconds: float = _limit(30.0)
    # Who has not put anything for so long may have been suspended, and reads first who has taken over meanwhile.
    board_doubt_seconds: float = _limit(2.0)
    # A broker that just came back may not know for a moment how far its partitions go: so long a place behind the end
    # may come to be there.
    kafka_doubt_seconds: float = _limit(10.0)
    # After the broker did not answer, reports are not offered to it for so long.
    board_rest_seconds: float = _pause(2.0)
    # -- the demo's servers -----------------------------------------------------------------------
    embedded_kafka_start_seconds: float = _limit(90.0)
    embedded_search_start_seconds: float = _limit(180.0)
    embedded_fetch_seconds: float = _limit(600.0)
    embedded_compile_seconds: float = _limit(120.0)

    # -- webhooks --------------------------------------------------------------------------------
    # A receiver that fails is tried again after so long, then after ever longer pauses up to the second.
    webhook_retry_seconds: float = _pause(1.0)
    webhook_last_retry_seconds: float = _pause(180.0)
    # A batch waits so much longer for receivers that are slower than the fastest; less once they have
    # been, so that nobody is delayed by another again and again.
    webhook_patience_seconds: float = _limit(1.0)
    # How often it is recorded how far deliveries are, and asked what people have changed; how often what
    # everybody has is deleted.
    webhook_record_seconds: float = _pause(0.2)
    webhook_prune_seconds: float = _pause(1.0)
    # The database is waited for so long by who has time, and tried again after so long by who has not.
    webhook_open_seconds: float = _limit(10.0)
    webhook_busy_seconds: float = _limit(0.02)
    # A wait for receivers can be given up within the first; at the end requests under way have the second.
    webhook_step_seconds: float = _limit(0.5)
    webhook_stop_seconds: float = _limit(1.0)
    # So long the addresses of a receiver's name are known before they are asked for again.
    webhook_name_seconds: float = _limit(10.0)
    # So long the rest of an answer is waited for, so that its connection can be used again.
    webhook_answer_seconds: float = _limit(1.0)
    # So long a filter may take for the documents of one entry.
    webhook_filter_seconds: float = _limit(10.0)
    # So long a secret that was replaced signs beside the new one.
    webhook_rotation_seconds: float = _limit(86400.0)

    # -- copies ----------------------------------------------------------------------------------
    # How often a copier asks for tables to copy that nobody has woken it for.
    copier_poll_seconds: float = _pause(2.0)
    # After the last sign of something to do it stays awake so long, then it lets go of the sink.
    copier_awake_seconds: float = _limit(10.0)
    # Nobody need wake it to stop; who does so is not kept waiting.
    copier_nap_seconds: float = _pause(1.0)
    # Of the 10 s a stop may take: how long tables may be finished before that is cancelled, and what
    # the target may need to do so.
    copier_patience_seconds: float = _limit(4.0)
    copier_cancel_seconds: float = _limit(2.0)
    # How often a round asks what has arrived, which Spark does not say while the job runs.
    round_poll_seconds: float = _pause(0.1)
    # `penstock snapshot` polls for the end, and gives its copiers so long to stop.
    snapshot_command_poll_seconds: float = _pause(0.5)
    snapshot_command_stop_seconds: float = _limit(8.0)

    # -- processes -------------------------------------------------------------------------------
    # How often `run` sees to its parts, and to sources that are late.
    supervise_poll_seconds: float = _pause(0.1)
    supervise_late_poll_seconds: float = _pause(1.0)
    # Once all others have caught up, a source that is down is waited for so long.
    supervise_down_seconds: float = _limit(30.0)
    # How often it is seen which sources have started.
    sources_poll_seconds: float = _pause(0.05)
    # How long a source waits for those before it in the file, to see which database each is.
    sources_patience_seconds: float = _limit(2.0)
    # A source that went so long without an error begins its waits anew.
    sources_sound_seconds: float = _limit(60.0)
    # A predecessor that was killed may take a moment to be gone.
    state_lock_patience_seconds: float = _limit(5.0)
    state_lock_poll_seconds: float = _pause(0.1)
    # Spark that dies several times within so long will die again.
    spark_deaths_seconds: float = _limit(600.0)
    spark_poll_seconds: float = _pause(0.05)
    spark_stop_seconds: float = _limit(2.0)
    # The JVM writes its port into a file; it ends in order within so long, or is killed; its
    # connections are closed a moment before it is gone.
    jvm_poll_seconds: float = _pause(0.05)
    jvm_end_seconds: float = _limit(4.0)
    jvm_gone_seconds: float = _limit(1.0)

    # -- attempts --------------------------------------------------------------------------------
    # Waits double from the first to the last.
    retry_first_seconds: float = _pause(0.2)
    retry_last_seconds: float = _pause(15.0)
    # What only a person can fix is not tried again so soon.
    retry_person_seconds: float = _pause(10.0)
    # A process that died, capture's or Spark's, is started again no sooner than this.
    process_retry_first_seconds: float = _pause(0.5)
    # A source that does not start, a table that catches up and fails, a disk that was full.
    slow_retry_first_seconds: float = _pause(1.0)
    slow_retry_last_seconds: float = _pause(30.0)

    # -- sinks -----------------------------------------------------------------------------------
    # Two that want the same claim poll for it; whoever waits longer than this says so.
    claim_poll_seconds: float = _pause(0.05)
    claim_report_seconds: float = _limit(5.0)
    # A predecessor that has just ended may take a moment to let go.
    claim_patience_seconds: float = _limit(5.0)
    # How long documents of copies may keep the others waiting at a time.
    publish_seconds: float = _limit(2.0)
    # A copy whose documents were refused is made anew after this long.
    copy_refused_seconds: float = _limit(30.0)
    # A copy that failed is tried again after 5 s, 10 s, 20 s … up to 10 minutes. It is stored when.
    copy_retry_first_seconds: float = _limit(5.0)
    copy_retry_last_seconds: float = _limit(600.0)
    # How long an index stays that its alias leads to no more: searches that have begun there end meanwhile.
    search_grace_seconds: float = _pause(10.0)
    # How often a reader who takes nothing is asked whether there is a stop.
    stdout_poll_seconds: float = _pause(0.1)
    # An internal error is said of a table that is altered at this moment: keys are tried again then.
    foreign_key_pause_seconds: float = _pause(0.2)
    # Between two short waits for a lock, others may have it.
    lock_pause_seconds: float = _pause(0.1)
    # A person may alter a target table; what penstock knows of it is read again this often.
    plan_seconds: float = _limit(30.0)
    # All tables of a batch are ranked at once.
    rank_seconds: float = _limit(1.0)
    # How often notes on tables are compared with the target.
    review_seconds: float = _limit(30.0)
    # How often tables that have no notes are looked at for what somebody has altered or dropped.
    review_marks_seconds: float = _limit(300.0)
    # When a foreign key that could not be made is tried again; each time twice as late.
    review_retry_first_seconds: float = _limit(60.0)
    review_retry_last_seconds: float = _limit(3600.0)
    # Of the 10 s a stop may take: a server that does not answer a cancel is waited for no longer.
    cancel_seconds: float = _limit(2.0)

    # -- what people see -------------------------------------------------------------------------
    # Without a terminal a copy says how far it is this often.
    progress_line_seconds: float = _limit(5.0)
    # Who watches a run has a status of it that is so old at most: what is reported in the state directory, and
    # what servers are asked. Shorter while somebody looks at the page; servers are asked most often while a table is
    # being copied, or after somebody has asked for something.
    watch_seconds: float = _pause(5.0)
    watch_asking_seconds: float = _pause(30.0)
    watch_live_seconds: float = _pause(1.0)
    watch_seen_asking_seconds: float = _pause(10.0)
    watch_live_asking_seconds: float = _pause(2.0)
    watch_effect_seconds: float = _limit(10.0)
    # For so long after a request for the page's events.
    watch_interest_seconds: float = _limit(5.0)
    # A status, or a report of capture, that is older says that something hangs.
    watch_stale_seconds: float = _limit(60.0)
    # How often the loop of a sink asks whether it is paused.
    pause_poll_seconds: float = _pause(1.0)

    # -- HTTP server -----------------------------------------------------------------------------
    server_start_seconds: float = _limit(10.0)
    server_stop_seconds: float = _limit(2.0)
    # A body that takes longer is not read.
    server_body_seconds: float = _limit(10.0)
    # Tokens that are wrong are reported this often.
    server_refused_seconds: float = _limit(60.0)
    # A connection on which no request comes, or whose client takes nothing of the answer, is closed.
    server_head_seconds: float = _limit(10.0)
    server_reading_seconds: float = _limit(30.0)
    # Of the 10 s a stop may take: for what is left to be pushed to a collector.
    push_end_seconds: float = _limit(2.0)
    # How often a stream of events asks for news, and says that it lives.
    server_event_seconds: float = _pause(0.5)
    server_alive_seconds: float = _limit(15.0)
    # The charts have a point this often.
    history_point_seconds: float = _limit(5.0)
    # Rates of tables are over so long at least.
    table_rate_seconds: float = _limit(2.0)
    # A table that is gone for so long has no series of its own any more.
    table_label_seconds: float = _limit(3600.0)
    # Which processes are ours is asked this often.
    process_list_seconds: float = _limit(60.0)
    # What they use is measured once for all who ask within so long.
    process_usage_seconds: float = _limit(0.5)

    # -- tests of sinks --------------------------------------------------------------------------
    # Longer than any sink takes to open and to deliver a few documents on a busy machine.
    forked_work_seconds: float = _limit(80.0)
    forked_poll_seconds: float = _limit(0.005)

    def shortened(self, factor: float) -> Timing:
        """The same with pauses of this part of their length."""
        pauses = [one.name for one in fields(self) if one.metadata["is_pause"]]
        return replace(self, **{name: _shorter(getattr(self, name), factor) for name in pauses})


def _shorter(seconds: float, factor: float) -> float:
    return max(seconds * factor, min(seconds, _LEAST_PAUSE_SECONDS))


def parse_timing(text: str) -> Timing:
    """The timing that the variable's text asks for.

    Raises:
        ValueError: it is no factor from 0 to 1, or names a time that is not there.
    """
    found, known = Timing(), {one.name for one in fields(Timing)}
    for word in text.split():
        name, sign, number = word.rpartition("=")
        if not sign:
            factor = float(number)
            if not 0 < factor <= 1:
                raise ValueError(f"{VARIABLE} is {number}, wanted a number above 0 and up to 1")
            found = found.shortened(factor)
        elif name in known:
            found = replace(found, **{name: float(number)})
        else:
            raise ValueError(f"{VARIABLE} names {name!r}, which is no field of Timing")
    return found


_current = parse_timing(os.environ.get(VARIABLE, ""))


def timing() -> Timing:
    """This process's timing: read from the environment once, when it started."""
    return _current
