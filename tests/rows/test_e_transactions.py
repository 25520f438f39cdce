"""Rows E: the transaction API and its life cycle."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.engine.engine import Engine
from eoslog.errors import ConfigError, IllegalState, KafkaError, RecordTooLarge
from tests.rows.tools import (
    SCALE,
    assigned,
    batches,
    data,
    drain,
    locked_elsewhere,
    markers,
    put,
    reader,
    state_of,
    transact,
    transactional,
    values,
)  # fmt: skip
from tests.waiting import until

T0 = TopicPartition("t", 0)


def test_E01_the_five_transactional_calls_succeed_in_order(log: Any) -> None:
    producer = log.producer(transactional_id="tx")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", "a")
    producer.send_offsets_to_transaction({T0: 1}, "g")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    producer.close()
    assert values(log) == [b"a"]
    with reader(log, "g") as consumer:
        assert consumer.committed([T0])[0].offset == 1


def test_E02_offsets_are_committed_by_a_consumer_or_a_group_name(log: Any) -> None:
    with transactional(log) as producer, reader(log, "g") as consumer:
        with log.producer() as plain:
            put(plain, "a", "b")
        consumer.subscribe(["t"])
        consumer.poll(60)
        with producer.transaction() as tx:
            tx.commit_offsets(consumer)
        assert consumer.committed([T0])[0].offset == 1
        for commit, position in ((False, 1), (True, 2)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({T0: 2}, consumer)
            producer.end_transaction(commit)
            assert consumer.committed([T0])[0].offset == position


def test_E03_an_empty_transaction_writes_nothing_and_offsets_alone_commit(
    log: Any, directory: Path
) -> None:
    with transactional(log) as producer:

        def size() -> int:
            return sum(p.stat().st_size for p in directory.rglob("*.log"))

        before = size()
        for commit in (True, False):
            producer.begin_transaction()
            producer.commit_transaction() if commit else producer.abort_transaction()
        assert size() == before
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 0}, "g")
        producer.commit_transaction()
        assert size() > before


@pytest.mark.parametrize(
    "wrong",
    [
        {"enable_auto_commit": True},
        {"enable_auto_commit": False, "isolation_level": "read_uncommitted"},
    ],
)
def test_E04_offsets_of_an_auto_committing_consumer_are_rejected(
    log: Any, wrong: dict[str, Any]
) -> None:
    with log.producer() as plain:
        put(plain, "a")
    with (
        transactional(log) as producer,
        log.consumer(group_id="g", auto_offset_reset="earliest", **wrong) as consumer,
    ):
        consumer.subscribe(["t"])
        consumer.poll(60)
        with pytest.raises((IllegalState, ConfigError)), producer.transaction() as tx:
            tx.produce("two", "x")
            tx.commit_offsets(consumer)
    assert values(log, "two") == []


def test_E05_a_transaction_commits_on_exit_and_aborts_on_an_exception(log: Any) -> None:
    with transactional(log) as producer:
        with producer.transaction() as tx:
            tx.produce("t", "a")
            tx.produce("two", "b")
        with pytest.raises(KeyError), producer.transaction() as tx:
            tx.produce("t", "never")
            raise KeyError("caller")
    assert values(log) == [b"a"] and values(log, "two") == [b"b"]


def test_E06_a_consume_transform_produce_loop_writes_each_output_once(log: Any) -> None:
    with log.producer() as plain:
        put(plain, *map(str, range(30)))
    done = 0
    with transactional(log) as producer, reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        while done < 30:
            records = consumer.consume(7, 60)
            with producer.transaction() as tx:
                for record in records:
                    tx.produce("two", str(2 * int(record.value)), partition=0)
                tx.commit_offsets(consumer)
            done += len(records)
            assert consumer.committed([T0])[0].offset == done
    assert values(log, "two") == [b"%d" % (2 * n) for n in range(30)]


@pytest.mark.slow
def test_E07_no_transaction_begins_after_an_empty_poll(log: Any, engine: Any) -> None:
    with transactional(log) as producer, reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        begun = 0
        for round_ in range(4):
            if round_ == 2:
                with log.producer() as plain:
                    put(plain, "a", "b")
            end = engine.transaction_partition("tx").log_end
            if records := consumer.consume(10, 0.2):
                producer.begin_transaction()
                begun += 1
                for record in records:
                    producer.produce("two", record.value.upper(), partition=0)
                producer.send_offsets_to_transaction(consumer.positions(), consumer)
                producer.commit_transaction()
            else:
                producer.begin_transaction()  # the older samples do: it must cost nothing
                producer.commit_transaction()
                assert engine.transaction_partition("tx").log_end == end
        assert begun == 1 and consumer.committed([T0])[0].offset == 2
    assert values(log, "two") == [b"A", b"B"]


def test_E08_a_producer_continues_after_it_aborts_a_non_fatal_error(log: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        put(producer, "a")
        with pytest.raises(RecordTooLarge):
            producer.produce("t", bytes(2_000_000))
        producer.abort_transaction()
        transact(producer, "b")
    assert values(log) == [b"b"]


def lingering(log: Any) -> Any:
    """A producer that sends nothing before it must."""
    settings = {"delivery_timeout_ms": 120_000, "linger_ms": 60_000}
    producer = log.producer(transactional_id="tx", **settings)
    producer.init_transactions()
    return producer


def test_E08_a_record_that_failed_in_the_background_requires_an_abort(log: Any) -> None:
    with lingering(log) as producer:
        producer.begin_transaction()
        put(producer, "a", topic="two")
        producer.produce("t", "b")
        log.delete_topic("t")
        with pytest.raises(KafkaError) as failed:
            producer.commit_transaction()
        assert not failed.value.fatal
        producer.abort_transaction()
        transact(producer, "c", topic="two")
    assert values(log, "two") == [b"c"]


def test_E09_begin_writes_nothing(log: Any, directory: Path) -> None:
    with transactional(log) as producer:

        def digest() -> list[str]:
            return [
                hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.rglob("*.log"))
            ]

        before = digest()
        producer.begin_transaction()
        assert digest() == before


def test_E10_a_transaction_is_ongoing_from_its_first_record(log: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        assert log.transactions() == []
        before = time.time() * 1000 - 1
        put(producer, "a")
        (row,) = log.transactions()
        assert before <= row.start_time_ms <= time.time() * 1000
        assert row.state == "Ongoing" and list(row.partitions) == [T0]


def test_E11_a_registered_partition_without_data_ends_harmlessly(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        engine.transactions.add_partitions_to_txn(
            "tx", producer.producer_id, producer.producer_epoch, [T0]
        )
        put(producer, "a", topic="two")
        producer.abort_transaction()
        assert [m.control_type for m in markers(engine)] == [0]  # on an empty partition
        transact(producer, "b")
    assert values(log) == [b"b"]


def test_E12_batches_carry_id_epoch_and_sequence(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        pid, epoch = producer.producer_id, producer.producer_epoch
        transact(producer, "a", "b")
    first, marker = batches(engine)[0], batches(engine)[-1]
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.transactional) == (
        pid,
        epoch,
        0,
        True,
    )
    assert (marker.producer_id, marker.producer_epoch, marker.control) == (pid, epoch + 1, True)


def test_E13_an_abort_changes_no_byte_that_was_written(log: Any, directory: Path) -> None:
    file = directory / "t-0" / "00000000000000000000.log"
    with transactional(log) as producer:
        producer.begin_transaction()
        put(producer, "a", "b")
        before = file.read_bytes()
        producer.abort_transaction()
    assert file.read_bytes()[: len(before)] == before
    assert values(log) == []
    assert values(log, isolation="read_uncommitted") == [b"a", b"b"]


def test_E14_the_partition_of_a_group_is_registered_once(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 1}, "g")
        coordinator = engine.transaction_partition("tx")
        before = coordinator.log_end
        producer.send_offsets_to_transaction({T0: 2}, "g")
        assert coordinator.log_end == before
        producer.commit_transaction()


def test_E15_offsets_of_a_transaction_carry_its_identity(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        pid, epoch = producer.producer_id, producer.producer_epoch
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 1}, "g")
        producer.commit_transaction()
    group = engine.group_partition("g")
    rows = [b for b in group.batches(0, group.log_end) if b.producer_id == pid]
    assert [(b.producer_epoch, b.transactional, b.control) for b in rows] == [
        (epoch, True, False),
        (epoch + 1, True, True),
    ]


@pytest.mark.slow
def test_E16_pending_offsets_are_invisible_until_the_commit(log: Any) -> None:
    with transactional(log) as producer, reader(log, "g") as consumer:
        with log.producer() as plain:
            put(plain, *"abc")
        consumer.subscribe(["t"])
        consumer.poll(60)
        consumer.commit({T0: 1})
        seen: list[Any] = []
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 3}, consumer.group_metadata())
        thread = threading.Thread(target=lambda: seen.append(consumer.committed([T0])[0].offset))
        thread.start()
        thread.join(0.5)  # it may wait for the outcome, but may not show what is undecided
        assert seen in ([], [1])
        producer.commit_transaction()
        thread.join(60)
        assert seen in ([1], [3])
        assert consumer.committed([T0])[0].offset == 3


def test_E17_commit_flushes_buffered_records(log: Any) -> None:
    with log.producer(transactional_id="tx", linger_ms=60_000, batch_size=1 << 20) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(50):
            producer.produce("t", str(number))
        producer.commit_transaction()
        assert len(values(log)) == 50


def test_E18_abort_discards_buffered_records(log: Any) -> None:
    with log.producer(transactional_id="tx", linger_ms=60_000, batch_size=1 << 20) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(50):
            producer.produce("t", str(number))
        producer.abort_transaction()
    assert values(log, isolation="read_uncommitted") == []


@pytest.mark.parametrize("commit", [True, False])
def test_E19_end_txn_ends_a_transaction_with_commit_or_abort(
    log: Any, engine: Any, commit: bool
) -> None:
    pid, epoch, _ = engine.transactions.init_producer_id("raw", 60_000)
    coordinator, end = engine.transactions.add_partitions_to_txn("raw", pid, epoch, [T0])
    log_t = engine.partition("t", 0)
    batch = data(["a"], producer_id=pid, epoch=epoch, sequence=0, transactional=True)
    assert log_t.append(batch, expect=[(coordinator, end)]).base_offset == 0
    assert engine.transactions.end_txn("raw", pid, epoch, commit, {T0: (0, 0)}) == (pid, epoch + 1)
    assert [m.control_type for m in markers(engine)] == [int(commit)]
    assert values(log) == ([b"a"] if commit else [])


def test_E21_every_touched_partition_gets_one_marker(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        for partition in (0, 1):
            put(producer, "x", topic="two", partition=partition)
        producer.send_offsets_to_transaction({T0: 0}, "g")
        producer.commit_transaction()
    for partition in (0, 1):
        assert [m.control_type for m in markers(engine, "two", partition)] == [1]
    group = engine.group_partition("g")
    assert [b.control_type for b in group.batches(0, group.log_end) if b.control] == [1]
    assert markers(engine, "t") == []


@pytest.mark.parametrize(
    ("commit", "expected"), [(True, "CompleteCommit"), (False, "CompleteAbort")]
)
def test_E22_the_coordinator_records_the_end(log: Any, commit: bool, expected: str) -> None:
    with transactional(log) as producer:
        transact(producer, "a", commit=commit)
        assert state_of(log) == expected


@pytest.mark.slow
def test_E23_a_thousand_transactions_leave_one_state(tmp_path: Path) -> None:
    count = 2000 * SCALE
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t")
        with transactional(log) as producer:
            for _ in range(count):
                transact(producer, "x")
            engine = Engine.open(tmp_path / "log")
            kept = len(list(engine.transactions.logs.decisions()))
            engine.close()
            assert kept < 1000  # memory does not grow with what is over
    with eoslog.open(tmp_path / "log") as log:
        assert [row.transactional_id for row in log.transactions(open_only=False)] == ["tx"]
        assert len(values(log)) == count


def test_E25_a_partition_without_its_marker_blocks_only_itself(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        for partition in (0, 1):
            put(producer, "x", topic="two", partition=partition)
        held = engine.partition("two", 0)
        commit = threading.Thread(target=producer.commit_transaction)
        with locked_elsewhere(held):
            commit.start()
            until(lambda: values(log, "two"))
            assert [b.num_rows for b in log.scan("two", partitions=[1])] == [1]
            assert list(log.scan("two", partitions=[0])) == [] and held.stable_end == 0
        commit.join()
        until(
            lambda: len(values(log, "two")) == 2,
            step=lambda: engine.transactions.resolve_blockers(held),
        )
    assert values(log, "two") == [b"x", b"x"]


def test_E26_a_reader_right_after_commit_sees_everything(log: Any) -> None:
    with transactional(log) as producer:
        for number in range(20):
            producer.begin_transaction()
            for partition in (0, 1):
                put(producer, str(number), topic="two", partition=partition)
            producer.commit_transaction()
            assert len(values(log, "two")) == 2 * (number + 1)


def test_E29_outputs_and_offsets_appear_together(log: Any) -> None:
    with transactional(log) as producer:
        for commit in (False, True):
            producer.begin_transaction()
            put(producer, "out", topic="two")
            producer.send_offsets_to_transaction({T0: 1}, "g")
            producer.commit_transaction() if commit else producer.abort_transaction()
            with reader(log, "g") as consumer:
                position = consumer.committed([T0])[0].offset
            assert (values(log, "two"), position == 1) == ([b"out"] if commit else [], commit)


@pytest.mark.slow
def test_E30_a_snapshot_never_splits_a_transaction(tmp_path: Path) -> None:
    """Six producers and a reader of snapshots, until there were so many transactions."""
    wanted = 1000 * SCALE
    stop = threading.Event()
    log = eoslog.open(tmp_path / "log", durability="os")
    log.create_topic("two", partitions=2)

    def write(name: str) -> None:
        with transactional(log, name) as producer:
            for number in itertools.count():
                if stop.is_set():
                    return
                producer.begin_transaction()
                for partition in (0, 1):
                    put(producer, f"{name}-{number}", topic="two", partition=partition)
                producer.commit_transaction() if number % 3 else producer.abort_transaction()

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    try:
        earlier: dict[Any, int] = {}
        snapshots = 0
        seen: set[bytes] = set()
        while len(seen) < wanted or snapshots < 100:
            snapshots += 1
            cut = log.snapshot(["two"])
            assert all(cut[tp] >= offset for tp, offset in earlier.items())
            start, earlier = earlier or None, cut
            halves: list[set[bytes]] = [set(), set()]
            for batch in log.scan("two", start=start, end=cut):
                for partition, value in zip(
                    batch.column("partition").to_pylist(),
                    batch.column("value").to_pylist(),
                    strict=True,
                ):
                    halves[partition].add(value)
            assert halves[0] == halves[1]
            seen |= halves[0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        log.close()


def test_E33_records_marker_and_final_state_are_written_in_order(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        transact(producer, "a")
    kinds = ["marker" if b.control else "data" for b in batches(engine)]
    assert kinds == ["data", "marker"]
    assert state_of(log) == "CompleteCommit"


def test_E17_a_failed_delivery_fails_the_commit(log: Any, engine: Any) -> None:
    with lingering(log) as producer:
        producer.begin_transaction()
        put(producer, "first", topic="two")
        producer.produce("t", "a")
        log.delete_topic("t")
        with pytest.raises(KafkaError):
            producer.commit_transaction()
        assert values(log, "two") == []
        producer.abort_transaction()
        transact(producer, "b", topic="two")
    assert values(log, "two") == [b"b"]


@pytest.mark.slow
def test_E01_read_committed_consumers_follow_a_live_producer(log: Any) -> None:
    with transactional(log) as producer, assigned(log) as consumer:
        for commit in (True, False, True):
            transact(producer, "x", commit=commit)
        assert len(drain(consumer)) == 2
        transact(producer, "y")
        assert drain(consumer) == [b"y"]
