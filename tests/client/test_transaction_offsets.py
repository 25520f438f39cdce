"""Offsets in a transaction: they count with its commit, by whatever name the group is given."""

from __future__ import annotations

from typing import Any

import pytest

from eoslog.client.producer import Producer
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    IllegalGeneration,
    IllegalState,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from eoslog.log import Log
from eoslog.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.client.helpers import FakeConsumer, log_sizes, visible

# --- offsets --------------------------------------------------------------------------------


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
        ({"a": 1}, "g", ConfigError),
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


@pytest.mark.parametrize(
    ("given", "group"), [("g", "'g'"), (None, "group"), ({TopicPartition("a", 0): 1}, "group")]
)
def test_what_is_no_consumer_is_refused_by_name(producer: Producer, given: Any, group: str) -> None:
    with pytest.raises(ConfigError) as caught, producer.transaction() as tx:
        tx.commit_offsets(given)
    assert str(caught.value) == (
        f"commit_offsets: expected a consumer, got {given!r}; "
        f"for a group id use send_offsets(offsets, {group})"
    )
    assert producer.transaction_state == "READY"


def test_an_exception_aborts_rewinds_and_goes_on(log: Log, producer: Producer) -> None:
    consumer = FakeConsumer()
    producer.bind(consumer)  # known before commit_offsets is reached
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        tx.produce("b", b"v")
        raise ZeroDivisionError
    assert producer.transaction_state == "READY"
    assert consumer.rewound == 1
    assert visible(log) == []


def test_offsets_of_a_topic_that_is_not_there_end_the_transaction_and_not_the_producer(
    log: Log, producer: Producer
) -> None:
    def abortable(call: Any, *arguments: Any, **options: Any) -> None:
        with pytest.raises(TransactionAbortable, match=r"abort_transaction.*'nope'") as raised:
            call(*arguments, **options)
        assert (raised.value.abortable, raised.value.retriable) == (True, False)
        assert isinstance(raised.value.__cause__, UnknownTopicOrPartition)  # at once, not a timeout

    producer.begin_transaction()
    producer.produce("b", b"v")
    nowhere = {TopicPartition("nope", 0): 1}
    abortable(producer.send_offsets_to_transaction, nowhere, "g", timeout=5)
    abortable(producer.commit_transaction)
    abortable(producer.commit_transaction)
    abortable(producer.produce, "b", b"v")
    abortable(producer.send_offsets_to_transaction, {TopicPartition("a", 0): 1}, "g")
    producer.abort_transaction()
    assert visible(log) == []
    producer.begin_transaction()
    producer.produce("b", b"next")
    producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, "g")
    producer.commit_transaction()
    assert visible(log) == [b"next"]
    assert committed(log)[TopicPartition("a", 0)].offset == 1
