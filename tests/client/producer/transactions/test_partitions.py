"""Which partitions a transaction writes to: listed first; topics may go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from eoslog.client.producer.batch_dispatch import BatchDispatch
from eoslog.client.producer.producer import Producer
from eoslog.coordinator.transactions.state import OffsetSpan
from eoslog.engine.shards import shard_of
from eoslog.errors import InvalidProducerEpoch, LockTimeout, ProducerFenced, TransactionAbortable
from eoslog.log import Log
from eoslog.model import TopicPartition
from tests.client.helpers import visible

OFFSETS = [TopicPartition("a", 0, 5)]


@contextmanager
def buffering(log: Log, *topics: str) -> Iterator[Producer]:
    """A producer whose transaction has a buffered record of each topic."""
    with log.producer(transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"v", partition=0)
        yield producer


def test_a_partition_whose_registration_fails_gets_no_record(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise InvalidProducerEpoch("newer")

    monkeypatch.setattr(log._engine.transactions, "add_partitions_to_txn", refuse)
    producer.begin_transaction()
    producer.produce("b", b"v")
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert log._engine.partition("b", 0).log_end == 0


def test_a_failed_registration_is_retried_before_the_partition_is_written(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.begin_transaction()
    producer.produce("a", b"0", partition=0)
    producer.flush()
    listing = log._engine.transactions.add_partitions_to_txn
    answers: list[Any] = [LockTimeout("the coordinator's log is busy")]

    def once_busy(*arguments: Any) -> Any:
        if answers:
            raise answers.pop()
        return listing(*arguments)

    monkeypatch.setattr(log._engine.transactions, "add_partitions_to_txn", once_busy)
    producer.produce("a", b"1", partition=1)
    producer.flush()
    assert set(log.transactions()[0].partitions) == {TopicPartition("a", 0), TopicPartition("a", 1)}
    producer.commit_transaction()
    assert visible(log, "a", 0) + visible(log, "a", 1) == [b"0", b"1"]


def test_a_topic_deleted_during_registration_leaves_the_others_registered(
    log: Log,
) -> None:
    with buffering(log, "a", "b", "one") as producer:
        log.delete_topic("one")
        with pytest.raises(TransactionAbortable):
            producer.commit_transaction()
        assert set(log.transactions()[0].partitions) == {
            TopicPartition("a", 0),
            TopicPartition("b", 0),
        }
        producer.abort_transaction()
    for topic in ("a", "b"):
        part = log._engine.partition(topic, 0)
        assert part.stable_end == part.log_end == 2


def test_offsets_are_listed_together_with_partitions_of_buffered_records(log: Log) -> None:
    with buffering(log, "b") as producer:
        coordinator = log._engine.transaction_partition("x")
        before = coordinator.log_end
        producer.send_offsets_to_transaction(OFFSETS, "g")
        assert coordinator.log_end == before + 1
        group = log._engine.group_partition("g")
        assert set(log.transactions()[0].partitions) == {
            TopicPartition("b", 0),
            TopicPartition(group.topic, group.partition),
        }
        producer.flush()
        assert coordinator.log_end == before + 1
        producer.commit_transaction()
    assert visible(log, "b") == [b"v"]


def test_a_partition_that_was_listed_early_is_not_listed_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with buffering(log, "b") as producer:
        producer.send_offsets_to_transaction(OFFSETS, "g")
        monkeypatch.setattr(log._engine.transactions, "add_partitions_to_txn", None)
        producer.commit_transaction()
    assert visible(log, "b") == [b"v"]


def test_a_partition_listed_early_is_listed_again_after_other_records(log: Log) -> None:
    count = log._engine.properties.transaction_partitions
    names = map(str, itertools.count())
    neighbour = next(name for name in names if shard_of(name, count) == shard_of("x", count))
    with buffering(log, "b") as producer, log.producer(transactional_id=neighbour) as other:
        producer.send_offsets_to_transaction(OFFSETS, "g")
        other.init_transactions()
        producer.commit_transaction()
    assert visible(log, "b") == [b"v"]


def test_a_partition_listed_early_gets_no_record_after_an_unmarked_abort(log: Log) -> None:
    with buffering(log, "b") as producer:
        producer.send_offsets_to_transaction(OFFSETS, "g")
        clog = log._engine.transactions.logs.of("x")
        end = clog.refresh()
        current = clog.get("x")
        assert current is not None
        spans = dict.fromkeys(current.partitions, OffsetSpan())
        assert clog.append(current.prepared(False, spans, 0), end, 0) == end
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
        assert log._engine.partition("b", 0).log_end == 0


def test_a_partition_that_was_listed_early_needs_no_record(log: Log) -> None:
    with buffering(log, "b") as producer:
        producer.send_offsets_to_transaction(OFFSETS, "g")
        producer.abort_transaction()
        assert visible(log, "b") == []
        with producer.transaction() as tx:
            tx.produce("b", b"w", partition=0)
    assert visible(log, "b") == [b"w"]


def test_offsets_can_be_sent_after_a_topic_of_buffered_records_was_deleted(log: Log) -> None:
    with buffering(log, "one") as producer:
        log.delete_topic("one")
        producer.send_offsets_to_transaction(OFFSETS, "g")
        group = log._engine.group_partition("g")
        assert set(log.transactions()[0].partitions) == {
            TopicPartition(group.topic, group.partition)
        }
        with pytest.raises(TransactionAbortable):
            producer.commit_transaction()
        producer.abort_transaction()
    assert log._engine.groups.fetch_offsets("g") == {}


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_commit_succeeds_after_a_written_topic_was_deleted(
    log: Log, producer: Producer, again: bool
) -> None:
    with producer.transaction() as tx:
        for topic in ("a", "b"):
            tx.produce(topic, b"v", partition=0)
        producer.flush()
        log.delete_topic("b")
        if again:
            log.create_topic("b", 1)
        producer.flush()
    assert visible(log, "a") == [b"v"]
    if again:
        assert log._engine.partition("b", 0).log_end == 0


def test_a_batch_resent_to_a_re_created_topic_is_its_first(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions: list[Any] = []

    def lost_with_the_topic(sender: BatchDispatch) -> bool:
        monkeypatch.undo()
        log.delete_topic("b")
        log.create_topic("b", 1)
        new = log._engine.partition("b", 0)
        append = new.append

        def noted(*arguments: Any, **keywords: Any) -> Any:
            conditions.append(keywords.get("expect"))
            return append(*arguments, **keywords)

        monkeypatch.setattr(new, "append", noted)
        return True

    monkeypatch.setattr(BatchDispatch, "_ack_is_lost", lost_with_the_topic)
    with producer.transaction() as tx:
        tx.produce("b", b"v")
    assert conditions[0]
    assert visible(log) == [b"v"]
