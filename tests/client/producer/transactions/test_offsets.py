"""Offsets in a transaction count with its commit, however the group is named."""

from __future__ import annotations

from typing import Any

import pytest

from eoslog.client.producer.producer import Producer
from eoslog.descriptions import GroupMetadata
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    IllegalGeneration,
    IllegalState,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from eoslog.log import Log
from eoslog.model import OffsetAndMetadata, TopicPartition
from tests.client.helpers import FakeConsumer, log_sizes, visible

# --- offsets --------------------------------------------------------------------------------


def committed(log: Log, group: str = "g") -> dict[TopicPartition, OffsetAndMetadata]:
    return dict(log._engine.groups.fetch_offsets(group))


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


def test_send_offsets_accepts_the_group_metadata_of_a_consumer(
    log: Log, producer: Producer
) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("a", 1): 9}, FakeConsumer(log))
    producer.end_transaction(commit=True)
    assert committed(log)[TopicPartition("a", 1)].offset == 9


def test_sending_no_offsets_writes_nothing(log: Log, producer: Producer) -> None:
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
def test_malformed_offsets_are_rejected_and_the_transaction_continues(
    log: Log, producer: Producer, offsets: Any, group: Any, error: Any
) -> None:
    producer.begin_transaction()
    with pytest.raises(error):
        producer.send_offsets_to_transaction(offsets, group)
    producer.produce("b", b"v")
    producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_a_group_that_rebalanced_raises_an_abortable_error(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*arguments: Any) -> Any:
        raise IllegalGeneration("generation 3, current is 4")

    monkeypatch.setattr(log._engine.groups, "txn_offset_commit", moved)
    consumer = FakeConsumer(log)
    with pytest.raises(CommitFailed, match="rebalanced"), producer.transaction() as tx:
        tx.produce("b", b"v")
        tx.commit_offsets(consumer)
    assert producer.transaction_state == "READY"
    assert consumer.rewound == 1
    assert visible(log) == []


def test_tx_commit_offsets_commits_the_position_of_the_consumer(
    log: Log, producer: Producer
) -> None:
    consumer = FakeConsumer(log)
    with producer.transaction() as tx:
        tx.produce("b", b"v")
        tx.commit_offsets(consumer)
    assert committed(log)[TopicPartition("a", 0)].offset == 7
    assert consumer.rewound == 0
    assert visible(log) == [b"v"]


@pytest.mark.parametrize(
    ("given", "group"), [("g", "'g'"), (None, "group"), ({TopicPartition("a", 0): 1}, "group")]
)
def test_commit_offsets_names_an_argument_that_is_not_a_consumer(
    producer: Producer, given: Any, group: str
) -> None:
    with pytest.raises(ConfigError) as caught, producer.transaction() as tx:
        tx.commit_offsets(given)
    assert str(caught.value) == (
        f"commit_offsets: expected a consumer, got {given!r}; "
        f"for a group id use send_offsets(offsets, {group})"
    )
    assert producer.transaction_state == "READY"


def test_an_exception_aborts_rewinds_and_leaves_the_producer_ready(
    log: Log, producer: Producer
) -> None:
    consumer = FakeConsumer(log)
    consumer._link.bind(producer._link)  # known before commit_offsets is reached
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        tx.produce("b", b"v")
        raise ZeroDivisionError
    assert producer.transaction_state == "READY"
    assert consumer.rewound == 1
    assert visible(log) == []


def test_offsets_of_a_missing_topic_end_the_transaction_but_not_the_producer(
    log: Log, producer: Producer
) -> None:
    def abortable(call: Any, *arguments: Any, **options: Any) -> None:
        with pytest.raises(TransactionAbortable, match=r"'nope'.*call abort_transaction") as raised:
            call(*arguments, **options)
        assert (raised.value.abortable, raised.value.retriable) == (True, False)
        assert isinstance(
            raised.value.__cause__, UnknownTopicOrPartition
        )  # immediately, not after a timeout

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
