"""Consumers never loop without a wait, and every wait ends when its log closes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.client.consumer.consumer import Consumer
from eoslog.client.consumer.fetcher import Fetcher
from eoslog.errors import CommitFailed, IllegalState
from eoslog.log import Log
from tests.client.consumer.group_process import GroupProcess
from tests.waiting import until, until_asleep

T0 = TopicPartition("t", 0)
ENDED_S = 120.0
"""A thread that has not ended by then waits for ever."""
EARLIEST = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t")
        yield opened


def write(log: Log, count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.produce("t", b"%d" % number, partition=0)


@pytest.fixture
def hanging(log: Log) -> Iterator[Log]:
    """Ten records of an open transaction, of which the first five were deleted."""
    with log.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(10):
            producer.produce("t", b"%d" % number, partition=0)
        producer.flush()
        log.delete_records({T0: 5})
        yield log
        producer.abort_transaction()


# B1


def test_field_B1_the_stable_offset_is_never_below_the_log_start(hanging: Log) -> None:
    offsets = hanging.offsets("t", 0)
    assert (offsets.log_start, offsets.last_stable, offsets.log_end) == (5, 5, 10)
    assert list(hanging.read("t")) == []
    assert hanging.scan("t", start=5).to_table().num_rows == 0
    assert hanging.snapshot() == {T0: 5}
    end = hanging.snapshot()
    assert hanging.scan("t", end=end).to_table().num_rows == 0


def test_field_B1_an_open_transaction_keeps_its_segments_below_the_log_start(hanging: Log) -> None:
    partition = hanging._engine.partition("t", 0)
    partition.roll()
    hanging._engine.topics.alter("t", {"retention.bytes": 0, "cleanup.policy": "delete"})
    hanging.clean("t")
    assert partition.segments.bases()[0] == 0
    assert len(partition.open_transactions()) == 1


@pytest.mark.parametrize("reset", ["latest", "earliest"])
@pytest.mark.parametrize("how", ["poll", "consume", "consume_arrow"])
def test_field_B1_a_reader_waits_while_an_open_transaction_is_deleted(
    hanging: Log, reset: str, how: str, caplog: Any, monkeypatch: Any
) -> None:
    looks = [0]
    real = Fetcher.readable

    def counted(self: Any, state: Any) -> Any:
        looks[0] += 1
        return real(self, state)

    monkeypatch.setattr(Fetcher, "readable", counted)
    with hanging.consumer("t", auto_offset_reset=reset) as consumer:
        assert not getattr(consumer, how)(timeout=0.5)
    assert looks[0] <= 40  # a look each 50 ms, some more by load
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 1


def test_field_B1_a_reader_does_not_spin_if_reads_below_the_bound_are_empty(
    log: Log, monkeypatch: Any
) -> None:
    """Each read returns nothing although the bound says that there is more."""
    write(log, 3)
    partition = log._engine.partition("t", 0)
    reads = [0]

    def nothing(*_: Any) -> list[Any]:
        reads[0] += 1
        return []

    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        monkeypatch.setattr(partition, "read", nothing)
        assert consumer.poll(0.5) is consumer.poll(0.5) is None
        monkeypatch.undo()
        assert 2 <= reads[0] <= 80
        assert len(consumer.consume(10, timeout=60)) == 3


def test_field_B1_a_position_that_is_out_of_range_repeatedly_waits(
    log: Log, monkeypatch: Any, caplog: Any
) -> None:
    write(log, 3)
    partition = log._engine.partition("t", 0)
    reads = [0]

    def refused(*_: Any) -> list[Any]:
        reads[0] += 1
        raise eoslog.errors.OffsetOutOfRange("t-0: offset 0, the log has [1, 3)")

    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        monkeypatch.setattr(partition, "read", refused)
        assert consumer.poll(0.5) is consumer.poll(0.5) is None
        consumer.wakeup()
        assert consumer.poll(None) is None
        monkeypatch.undo()
        assert 2 <= reads[0] <= 120
    assert len([r for r in caplog.records if "out" in r.message or "offset" in r.message]) == 1


def test_field_B1_a_wakeup_ends_a_poll_of_a_deleted_open_transaction(hanging: Log) -> None:
    with hanging.consumer("t", auto_offset_reset="latest") as consumer:
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        assert consumer.poll(None) is None
        timer.join()


# B4


def ended(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """The call in a thread, and what it returned or raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until_asleep(thread)
    return thread, found


WAITS: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(None),
    "consume": lambda consumer: consumer.consume(5, timeout=None),
    "iteration": lambda consumer: list(consumer),
    "consume_arrow": lambda consumer: consumer.consume_arrow(timeout=None).num_rows,
}


@pytest.mark.parametrize("group", ["g", None])
@pytest.mark.parametrize("who", ["consumer", "log"])
@pytest.mark.parametrize("how", WAITS)
def test_field_B4_a_wait_ends_when_another_thread_closes(
    tmp_path: Any, how: str, who: str, group: str | None
) -> None:
    log = eoslog.open(tmp_path / "log")
    log.create_topic("t")
    consumer = log.consumer("t", group_id=group)
    thread, found = ended(lambda: WAITS[how](consumer))
    (consumer if who == "consumer" else log).close()
    thread.join(ENDED_S)
    assert found in ([None], [[]], [0])
    assert consumer.closed
    with pytest.raises(IllegalState, match="closed"):
        consumer.poll(0)
    log.close()
    with eoslog.open(tmp_path / "log") as again:
        assert group is None or again.describe_group(group).members == []


@pytest.mark.parametrize("how", WAITS)
def test_field_B4_a_wait_ends_when_a_signal_handler_closes(log: Log, how: str) -> None:
    consumer = log.consumer("t", group_id="g")
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())

    def interrupt() -> None:
        until_asleep(threading.main_thread())
        os.kill(os.getpid(), signal.SIGUSR1)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        found = WAITS[how](consumer)
    finally:
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)
    assert found in (None, [], 0)
    assert consumer.closed
    assert log.describe_group("g").members == []


def test_field_B4_a_reader_of_a_read_only_log_ends_when_the_log_closes(tmp_path: Any) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        reader = eoslog.open(tmp_path / "log", read_only=True)
        consumer = reader.consumer("t")
        thread, found = ended(lambda: consumer.poll(None))
        reader.close()
        thread.join(ENDED_S)
    assert found == [None]


def test_field_B4_records_that_a_closed_poll_returned_are_not_committed(log: Log) -> None:
    """The records reach a thread that could not process them before the close."""
    write(log, 3)

    def close_inside(data: bytes) -> bytes:
        consumer.close()
        return data

    consumer = log.consumer(
        "t", group_id="g", auto_offset_reset="earliest", value_deserializer=close_inside
    )
    found = consumer.consume(10, timeout=60)
    assert consumer.closed
    assert len(found) in (0, 3)
    assert log.describe_group("g").offsets.get(T0) is None


def test_field_B4_committed_ends_when_another_thread_closes(log: Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 1}, "g")
        consumer = log.consumer(group_id="g")
        consumer.assign([T0])
        thread, found = ended(lambda: consumer.committed(T0, timeout=600))
        consumer.close()
        thread.join(ENDED_S)
        assert [type(error) for error in found] == [IllegalState]
        producer.abort_transaction()


def test_field_B4_a_producer_that_waits_for_callbacks_ends_when_closed(log: Log) -> None:
    producer = log.producer()
    thread, _ = ended(lambda: producer.poll(600))
    log.close()
    thread.join(ENDED_S)
    assert not thread.is_alive()


def test_field_B4_a_repeating_transactional_call_ends_when_closed(log: Log) -> None:
    """A suspended process holds the append lock of the coordinator's partition."""
    producer = log.producer(transactional_id="x", max_block_ms=600_000)
    partition = log._engine.transaction_partition("x")
    box: list[Any] = []

    def refused(*_: Any, **__: Any) -> Any:
        box.append(1)
        raise eoslog.errors.LockTimeout("held by a process that is stopped", retriable=True)

    real, partition.append = partition.append, refused  # type: ignore[method-assign]
    thread, found = ended(producer.init_transactions)
    closing = threading.Thread(target=log.close)
    closing.start()
    thread.join(ENDED_S)
    partition.append = real  # type: ignore[method-assign]
    closing.join(ENDED_S)
    assert [type(error).__name__ for error in found] == ["RequestTimedOut"]
    assert "before the producer closed" in str(found[0])
    assert box
    assert not closing.is_alive()


# B6


def test_field_B6_a_dropped_consumer_leaves_its_group(log: Log) -> None:
    write(log, 3)

    def cell() -> int:
        consumer = log.consumer("t", group_id="dropped", **EARLIEST)
        return len(consumer.consume(10, timeout=60))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert cell() == 3  # no gc.collect(): no cycle keeps it
    [one] = [w for w in told if "'dropped'" in str(w.message)]  # others may be of earlier tests
    assert one.category is ResourceWarning
    assert "close()" in str(one.message)
    until(lambda: not log.describe_group("dropped").members)
    with log.consumer("t", group_id="dropped", **EARLIEST) as second:
        assert len(second.consume(10, timeout=60)) == 3


def test_field_B6_a_closed_consumer_is_dropped_silently(log: Log) -> None:
    consumer = log.consumer("t", group_id="closed")
    consumer.poll(0)
    consumer.close()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del consumer
        gc.collect()
    assert [w for w in told if "'closed'" in str(w.message)] == []  # others: of earlier tests


def test_field_B6_a_consumer_dropped_with_its_log_leaves_its_group(tmp_path: Any) -> None:
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")

    def cell() -> tuple[Any, Any]:
        log = eoslog.open(path)
        consumer = log.consumer("t", group_id="g")
        consumer.poll(0)
        return weakref.ref(consumer), log._engine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gone, engine = cell()
        gc.collect()
    assert gone() is None
    with eoslog.open(path) as log:
        until(lambda: not log.describe_group("g").members)
    engine.close()  # what the dropped log had


def test_field_B6_a_finalizer_waits_for_no_lock(log: Log) -> None:
    """It runs while its thread holds the lock that leaving the group needs."""
    box = [log.consumer("t", group_id="g")]
    box[0].poll(0)
    box[0].poll(0.2)
    shard = log._engine.groups._shards.of("g")
    ended_here = threading.Event()

    def drop() -> None:
        with shard.folded(), warnings.catch_warnings():
            warnings.simplefilter("error")  # the warning is an error: nothing may be raised
            box.clear()
            gc.collect()
        ended_here.set()

    threading.Thread(target=drop, daemon=True).start()
    assert ended_here.wait(ENDED_S)
    until(lambda: not log.describe_group("g").members)


def test_field_B6_a_member_without_partitions_logs_which_process_holds_them(
    log: Log, caplog: Any
) -> None:
    holder = GroupProcess(log.path, "t", group_id="g")
    try:
        until(lambda: holder.consume(1, 0.1) == [] and holder.assignment() == [0])
        with log.consumer("t", group_id="g") as second:
            until(lambda: second.poll(0.2) is None and "has had no partition" in caplog.text)
            for _ in range(5):
                second.poll(0.2)
            [told] = [r for r in caplog.records if "has had no partition" in r.getMessage()]
            text = told.getMessage()
            mine = second.group_metadata().member_id
        member = holder.ask("member")[0]
        for part in ("group g", mine, member, f"pid {holder.pid}", "t-0"):
            assert part in text
    finally:
        holder.kill()


# B7


def slow(log: Log) -> Consumer:
    consumer = log.consumer("t", group_id="g", max_poll_interval_ms=500, **EARLIEST)
    assert len(consumer.consume(10, timeout=60)) == 3
    until(lambda: not log.describe_group("g").members)  # the handler takes so long
    return consumer


def named(text: str) -> bool:
    return all(
        p in text for p in ("max.poll.interval.ms is 500", "max.poll.records", "its last poll was")
    )


def test_field_B7_an_error_about_a_late_commit_names_the_limit(log: Log, caplog: Any) -> None:
    write(log, 3)
    with slow(log) as consumer:
        with pytest.raises(CommitFailed) as first:
            consumer.commit()
        consumer.poll(0)
        assert named(str(first.value))
    # The thread of the groups warns after the removal is visible.
    until(lambda: any(named(r.getMessage()) for r in caplog.records if r.name == "eoslog.groups"))
    assert any(named(r.getMessage()) for r in caplog.records if "rejoining" in r.getMessage())


def test_field_B7_an_error_about_late_transaction_offsets_names_the_limit(log: Log) -> None:
    write(log, 3)
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with slow(log) as consumer, pytest.raises(CommitFailed) as error:  # noqa: SIM117
            with producer.transaction() as tx:
                tx.commit_offsets(consumer)
    assert named(str(error.value))


def test_field_B7_an_error_of_a_suspended_process_names_the_session_timeout(log: Log) -> None:
    write(log, 1)
    member = GroupProcess(
        log.path, "t", group_id="g", session_timeout_ms=6000, auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    try:
        until(lambda: member.consume(10, 0.2))
        member.signal(signal.SIGSTOP)
        with log.consumer("t", group_id="g", **EARLIEST) as second:
            until(lambda: second.consume(10, timeout=0.2))
            member.signal(signal.SIGCONT)
            answer = member.commit()
        assert answer["error"] == "CommitFailed"
        assert "session.timeout.ms is 6000" in answer["message"]
        assert "its last poll was" in answer["message"]
    finally:
        member.signal(signal.SIGCONT)
        member.kill()


# B8


@pytest.mark.parametrize("committed", [True, False])
def test_field_B8_records_that_a_seek_took_back_count_as_not_returned(
    log: Log, committed: bool
) -> None:
    log.create_topic("two", 2)
    with log.producer() as producer:
        for number in range(10):
            producer.produce("two", b"%d" % number, partition=number % 2)
    if committed:
        log.reset_offsets("g", {TopicPartition("two", 0): 0, TopicPartition("two", 1): 0})
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with log.consumer("two", group_id="g", **EARLIEST) as consumer:
            until(lambda: len(consumer.assignment()) == 2 or consumer.poll(0.05))
            record = consumer.poll(60)
            assert record is not None
            for tp in consumer.assignment():
                consumer.seek(tp, 0)
            consumer.pause(consumer.assignment())
            with log.consumer("two", group_id="g", **EARLIEST) as other:
                until(lambda: consumer.poll(0.05) or other.poll(0.05) or other.assignment())
                until(lambda: len(consumer.assignment()) == 1)
                with producer.transaction() as tx:
                    tx.commit_offsets(consumer)


def test_field_B8_records_above_the_committed_offset_must_be_read_again(log: Log) -> None:
    write(log, 5)
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with log.consumer("t", group_id="g", **EARLIEST) as consumer:
            assert len(consumer.consume(5, timeout=60)) == 5
            consumer.seek(T0, 2)  # offsets 0 and 1 were returned and are not read again
            consumer._subscription.remove([T0])  # as a rebalance does
            with pytest.raises(CommitFailed, match="was reassigned"):  # noqa: SIM117
                with producer.transaction() as tx:
                    tx.commit_offsets(consumer)


# B9


def commit_by(consumer: Consumer, records: list[Any], how: str, producer: Any) -> None:
    if how == "positions":
        consumer.commit()
    elif how == "record":
        consumer.commit(records[-1])
    elif how == "offset":
        consumer.commit({T0: records[-1].offset + 1})
    else:
        with producer.transaction() as tx:
            tx.send_offsets({T0: records[-1].offset + 1}, consumer)


@pytest.mark.parametrize("how", ["positions", "record", "offset", "transaction"])
@pytest.mark.parametrize("tail", ["marker", "aborted"])
def test_field_B9_the_lag_is_0_when_no_visible_record_is_left(
    log: Log, how: str, tail: str
) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            for number in range(3):
                tx.produce("t", b"%d" % number, partition=0)
        with log.consumer("t", group_id="g", **EARLIEST) as consumer:
            records = consumer.consume(3, timeout=60)
            assert len(records) == 3
            if tail == "aborted":
                producer.begin_transaction()
                producer.produce("t", b"aborted", partition=0)
                producer.flush()
                producer.abort_transaction()
            commit_by(consumer, records, how, producer)
            end = log._engine.partition("t", 0).log_end
            until(lambda: log.offsets("t", 0).last_stable == end)  # markers are flushed later
            assert log.lag("g") == {T0: 0}
            assert consumer.current_lag(T0) == 0
            with producer.transaction() as tx:
                tx.produce("t", b"more", partition=0)
            assert log.lag("g")[T0] >= 1
            assert consumer.current_lag(T0) >= 1


def test_field_B9_the_lag_counts_a_record_after_aborted_ones(log: Log) -> None:
    log.reset_offsets("g", {T0: 0})
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for _ in range(5):
            producer.begin_transaction()
            producer.produce("t", b"aborted", partition=0)
            producer.flush()
            producer.abort_transaction()
    until(lambda: log.offsets("t", 0).last_stable == 10)
    assert log.lag("g") == {T0: 0}
    write(log, 1)
    assert log.lag("g") == {T0: 11}
