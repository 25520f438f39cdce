"""Transactions as the producer's caller sees them: states, all or nothing, fencing, doubt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from eoslog.client.producer import Producer
from eoslog.client.transactions import PREDECESSORS, ClientState
from eoslog.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    ConfigError,
    IllegalGeneration,
    IllegalState,
    InvalidProducerEpoch,
    LockTimeout,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    TransactionAborted,
)
from eoslog.log import Log
from eoslog.log import open as open_log
from eoslog.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from eoslog.storage import files


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with open_log(str(tmp_path / "log")) as opened:
        opened.create_topic("a", 2)
        opened.create_topic("b", 1)
        yield opened
    files.disarm_failpoints()


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    with log.producer(transactional_id="x") as made:
        made.init_transactions()
        yield made


def visible(log: Log, topic: str = "b", partition: int = 0) -> list[bytes]:
    """Values that read_committed shows."""
    part = log.engine.partition(topic, partition)
    end = part.last_stable_offset  # once: what the bound covers, the abort index covers
    aborted = part.aborted(0, end)
    values = []
    for batch in part.batches(0, end):
        if batch.control or any(
            batch.producer_id == p and first <= batch.base_offset <= last
            for p, first, last in aborted
        ):
            continue
        values += [value for _, _, _, value, _ in batch.records()]
    return values


def log_sizes(log: Log) -> list[int]:
    return [part.log_end for part in log.engine.transaction_partitions()]


# --- states ---------------------------------------------------------------------------------


def test_the_legal_steps_are_kafkas_and_every_state_is_reached_from_somewhere() -> None:
    assert set(PREDECESSORS) == set(ClientState)
    assert all(PREDECESSORS.values())
    assert ClientState.READY not in PREDECESSORS[ClientState.COMMITTING]
    assert PREDECESSORS[ClientState.FATAL_ERROR] == set(ClientState)


CALLS: dict[str, Any] = {
    "init_transactions": lambda p: p.init_transactions(),
    "begin_transaction": lambda p: p.begin_transaction(),
    "commit_transaction": lambda p: p.commit_transaction(),
    "abort_transaction": lambda p: p.abort_transaction(),
    "send_offsets": lambda p: p.send_offsets_to_transaction({TopicPartition("b"): 1}, "g"),
    "produce": lambda p: p.produce("b", b"v"),
}


@pytest.mark.parametrize(
    ("reach", "legal"),
    [
        ([], {"init_transactions"}),
        (["init_transactions"], {"begin_transaction"}),
        (
            ["init_transactions", "begin_transaction"],
            {"commit_transaction", "abort_transaction", "send_offsets", "produce"},
        ),
        (["init_transactions", "begin_transaction", "commit_transaction"], {"begin_transaction"}),
        (["init_transactions", "begin_transaction", "abort_transaction"], {"begin_transaction"}),
    ],
)
def test_calls_out_of_order_raise_and_change_nothing(
    log: Log, reach: list[str], legal: set[str]
) -> None:
    with log.producer(transactional_id="x") as producer:
        for name in reach:
            CALLS[name](producer)
        state = producer.transaction_state
        for name in set(CALLS) - legal:
            with pytest.raises(IllegalState):
                CALLS[name](producer)
            assert producer.transaction_state == state


def test_a_producer_without_an_id_has_no_transactions(log: Log) -> None:
    with log.producer() as producer:
        for name in set(CALLS) - {"produce"}:
            with pytest.raises(IllegalState, match="transactional.id"):
                CALLS[name](producer)
        assert producer.transaction_state is None


# --- all or nothing -------------------------------------------------------------------------


def test_nothing_is_visible_before_the_commit_and_all_after(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        producer.produce(topic, b"v", partition=partition)
    producer.flush()
    assert [visible(log, *p) for p in (("a", 0), ("a", 1), ("b", 0))] == [[], [], []]
    producer.commit_transaction()
    assert [visible(log, *p) for p in (("a", 0), ("a", 1), ("b", 0))] == [[b"v"]] * 3
    assert log.transactions() == []


def test_begin_is_local_and_an_empty_transaction_writes_nothing(
    log: Log, producer: Producer
) -> None:
    before = log_sizes(log)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        assert log_sizes(log) == before
        end()
    assert log_sizes(log) == before
    assert producer.producer_epoch == 0


def test_an_abort_drops_what_is_buffered_and_hides_what_is_stored(
    log: Log, producer: Producer
) -> None:
    told: list[Any] = []
    producer.begin_transaction()
    producer.produce("b", b"stored")
    producer.flush()
    producer.produce("b", b"buffered", on_delivery=lambda e, m: told.append(e))
    producer.abort_transaction()
    part = log.engine.partition("b", 0)
    assert [b.count for b in part.batches(0, part.log_end)] == [1, 1]  # and the marker
    assert visible(log) == []
    assert isinstance(told[0], TransactionAborted)
    assert producer.buffered == 0
    producer.begin_transaction()
    producer.produce("b", b"next")
    producer.commit_transaction()
    assert visible(log) == [b"next"]


def test_every_end_raises_the_epoch_and_sequences_start_again(log: Log, producer: Producer) -> None:
    for i in range(3):
        producer.begin_transaction()
        producer.produce("b", b"v")
        producer.flush()
        (producer.commit_transaction if i != 1 else producer.abort_transaction)()
    part = log.engine.partition("b", 0)
    data = [b for b in part.batches(0, part.log_end) if not b.control]
    assert [(b.producer_epoch, b.base_sequence) for b in data] == [(0, 0), (1, 0), (2, 0)]
    assert producer.producer_epoch == 3


def test_many_batches_in_many_partitions(log: Log, producer: Producer) -> None:
    log.create_topic("wide", 40)
    producer.begin_transaction()
    for i in range(4000):
        producer.produce("wide", bytes(200), partition=i % 40)
    producer.commit_transaction()
    assert [len(visible(log, "wide", p)) for p in range(40)] == [100] * 40
    (described,) = [t for t in log.transactions(False) if t.transactional_id == "x"]
    assert described.state == "CompleteCommit"


def test_a_commit_survives_reopening(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.commit_transaction()
    part = log.engine.partition("b", 0)
    assert part.durable_end >= 1


def test_a_lost_acknowledgement_in_a_transaction_stores_one_copy(
    log: Log, producer: Producer
) -> None:
    for i in range(2):
        producer.begin_transaction()
        files.arm_failpoint("producer.ack_lost", "trip")
        delivery = producer.send("b", b"%d" % i)
        producer.flush()
        assert delivery.result(0).duplicate
        producer.produce("b", b"more")
        producer.commit_transaction()
    assert visible(log) == [b"0", b"more", b"1", b"more"]


# --- failures -------------------------------------------------------------------------------


def test_a_failed_record_makes_the_commit_raise_and_nothing_visible(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = log.engine.partition("a", 0)
    real = part.append

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise RecordTooLarge("no")

    monkeypatch.setattr(part, "append", refuse)
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.produce("a", b"v", partition=0)
    with pytest.raises(RecordTooLarge):
        producer.commit_transaction()
    assert producer.transaction_state == "ABORTABLE_ERROR"
    with pytest.raises(RecordTooLarge):
        producer.produce("b", b"v")
    with pytest.raises(RecordTooLarge):
        producer.commit_transaction()
    producer.abort_transaction()
    assert visible(log) == []
    monkeypatch.setattr(part, "append", real)
    producer.begin_transaction()
    producer.produce("a", b"w", partition=0)
    producer.commit_transaction()
    assert visible(log, "a", 0) == [b"w"]


def test_a_newer_instance_fences_the_older(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce("b", b"old")
    producer.flush()
    with log.producer(transactional_id="x") as newer:
        outcome = newer.init_transactions()
        assert outcome is not None and not outcome.committed
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
        assert producer.transaction_state == "FATAL_ERROR"
        with pytest.raises((ProducerFenced, IllegalState)):
            producer.begin_transaction()
        newer.begin_transaction()
        newer.produce("b", b"new")
        newer.commit_transaction()
    assert visible(log) == [b"new"]


def test_a_fenced_instance_cannot_write_either(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    with log.producer(transactional_id="x") as newer:
        newer.init_transactions()
        producer.produce("b", b"zombie")
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    assert log.engine.partition("b", 0).log_end == 0


def test_init_tells_what_became_of_the_last_transaction(log: Log) -> None:
    with log.producer(transactional_id="y") as producer:
        assert producer.init_transactions() is None
        producer.begin_transaction()
        producer.produce("b", b"v")
        producer.commit_transaction()
    with log.producer(transactional_id="y") as producer:
        outcome = producer.init_transactions()
        assert outcome is not None and outcome.committed


def test_a_commit_that_may_have_happened_is_fatal_and_neither_aborts_nor_rewinds(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*arguments: Any) -> Any:
        raise CommitOutcomeUnknown("the flush failed")

    monkeypatch.setattr(log.engine.transactions, "end_txn", unknown)
    monkeypatch.setattr(producer, "abort_transaction", None)
    consumer = FakeConsumer()
    with pytest.raises(CommitOutcomeUnknown), producer.transaction() as tx:
        tx.produce("b", b"v")
        tx.commit_offsets(consumer)
    assert producer.transaction_state == "FATAL_ERROR"
    assert consumer.rewound == 0
    monkeypatch.undo()
    with log.producer(transactional_id="x") as next_one:
        assert next_one.init_transactions() is not None  # settles it


def test_a_commit_that_times_out_may_only_be_committed_again(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = log.engine.transactions.end_txn

    def busy(*arguments: Any) -> Any:
        raise ConcurrentTransactions("markers are missing")

    producer.begin_transaction()
    producer.produce("b", b"v")
    monkeypatch.setattr(log.engine.transactions, "end_txn", busy)
    with pytest.raises(RequestTimedOut):
        producer.commit_transaction(timeout=0.05)
    with pytest.raises(IllegalState):
        producer.abort_transaction()
    with pytest.raises(IllegalState):
        producer.produce("b", b"v")
    monkeypatch.setattr(log.engine.transactions, "end_txn", real)
    producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_records_that_are_not_sent_in_time_leave_the_commit_to_be_tried_again(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = log.engine.partition("b", 0)
    real = part.append
    busy = [True]

    def append(*arguments: Any, **keywords: Any) -> Any:
        if busy[0]:
            raise LockTimeout("busy")
        return real(*arguments, **keywords)

    monkeypatch.setattr(part, "append", append)
    producer.begin_transaction()
    producer.produce("b", b"v")
    with pytest.raises(RequestTimedOut):
        producer.commit_transaction(timeout=0.05)
    busy[0] = False
    producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_a_partition_that_cannot_be_listed_gets_no_record(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise InvalidProducerEpoch("newer")

    monkeypatch.setattr(log.engine.transactions, "add_partitions_to_txn", refuse)
    producer.begin_transaction()
    producer.produce("b", b"v")
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert log.engine.partition("b", 0).log_end == 0


# --- offsets --------------------------------------------------------------------------------


class FakeConsumer:
    """What a transaction needs of a consumer."""

    def __init__(self) -> None:
        self.rewound = 0

    def positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition("a", 0): 7}

    def rewind(self) -> None:
        self.rewound += 1

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g")


def committed(log: Log, group: str = "g") -> dict[TopicPartition, OffsetAndMetadata]:
    return dict(log.engine.groups.fetch_offsets(group))


@pytest.mark.parametrize(
    "offsets",
    [
        [TopicPartition("a", 0, 5)],
        {TopicPartition("a", 0): 5},
        {TopicPartition("a", 0): OffsetAndMetadata(5)},
    ],
)
def test_offsets_count_when_the_transaction_commits(
    log: Log, producer: Producer, offsets: Any
) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, "g")
    producer.abort_transaction()
    assert committed(log).get(TopicPartition("a", 0)) is None
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.send_offsets_to_transaction(offsets, GroupMetadata("g"))
    producer.commit_transaction()
    assert committed(log)[TopicPartition("a", 0)].offset == 5
    assert visible(log) == [b"v"]


def test_the_group_may_be_taken_from_the_consumer(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("a", 1): 9}, FakeConsumer())
    producer.end_transaction(commit=True)
    assert committed(log)[TopicPartition("a", 1)].offset == 9


def test_no_offsets_are_no_write(log: Log, producer: Producer) -> None:
    before = log_sizes(log)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({}, "g")
    producer.commit_transaction()
    assert log_sizes(log) == before


@pytest.mark.parametrize(
    ("offsets", "group", "error"),
    [
        ({TopicPartition("a"): -1}, "g", ConfigError),
        ([TopicPartition("a")], "g", ConfigError),
        ({("a", 0): 1}, "g", ConfigError),
        ({TopicPartition("a"): 1}, None, ConfigError),
        ({TopicPartition("a"): 1}, "", ConfigError),
        ({TopicPartition("a"): 1}, GroupMetadata("g", "", 3), IllegalState),
    ],
)
def test_malformed_offsets_are_refused_and_the_transaction_goes_on(
    log: Log, producer: Producer, offsets: Any, group: Any, error: Any
) -> None:
    producer.begin_transaction()
    with pytest.raises(error):
        producer.send_offsets_to_transaction(offsets, group)
    producer.produce("b", b"v")
    producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_a_group_that_moved_on_is_an_abortable_error(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*arguments: Any) -> Any:
        raise IllegalGeneration("generation 3, current is 4")

    monkeypatch.setattr(log.engine.groups, "txn_offset_commit", moved)
    consumer = FakeConsumer()
    with pytest.raises(CommitFailed, match="moved on"), producer.transaction() as tx:
        tx.produce("b", b"v")
        tx.commit_offsets(consumer)
    assert producer.transaction_state == "READY"
    assert consumer.rewound == 1
    assert visible(log) == []


def test_the_context_commits_with_the_consumers_position(log: Log, producer: Producer) -> None:
    consumer = FakeConsumer()
    with producer.transaction() as tx:
        tx.produce("b", b"v")
        tx.commit_offsets(consumer)
    assert committed(log)[TopicPartition("a", 0)].offset == 7
    assert consumer.rewound == 0
    assert visible(log) == [b"v"]


def test_an_exception_aborts_rewinds_and_goes_on(log: Log, producer: Producer) -> None:
    consumer = FakeConsumer()
    producer.bind(consumer)  # known before commit_offsets is reached
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        tx.produce("b", b"v")
        raise ZeroDivisionError
    assert producer.transaction_state == "READY"
    assert consumer.rewound == 1
    assert visible(log) == []


def test_close_aborts_what_is_open(log: Log) -> None:
    producer = log.producer(transactional_id="z")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.flush()
    producer.close()
    part = log.engine.partition("b", 0)
    assert part.stable_end == part.log_end == 2
    assert visible(log) == []


def test_encoded_batches_take_part(log: Log, producer: Producer) -> None:
    from eoslog import _core

    encoded = [_core.build_batch([(1, None, b"%d" % i, ())]) for i in range(3)]
    with producer.transaction() as tx:
        tx.produce("b", b"first")
        assert tx.produce_batches("b", 0, encoded) == 3
    assert visible(log) == [b"first", b"0", b"1", b"2"]
    with pytest.raises(IllegalState):
        producer.produce_batches("b", 0, encoded)
