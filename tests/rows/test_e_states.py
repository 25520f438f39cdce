"""Rows E27 to E35: states of a transaction, their calls and their transitions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from eoslog.coordinator.transactions.state import TransactionState
from eoslog.errors import IllegalState
from tests.rows.tools import (
    batches,
    put,
    transact,
    transactional,
    values,
)  # fmt: skip

PREVIOUS = {
    "EMPTY": {"EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"},
    "ONGOING": {"ONGOING", "EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"},
    "PREPARE_COMMIT": {"ONGOING"},
    "PREPARE_ABORT": {
        "ONGOING",
        "PREPARE_EPOCH_FENCE",
        "EMPTY",
        "COMPLETE_COMMIT",
        "COMPLETE_ABORT",
    },
    "COMPLETE_COMMIT": {"PREPARE_COMMIT"},
    "COMPLETE_ABORT": {"PREPARE_ABORT"},
    "DEAD": {"EMPTY", "COMPLETE_ABORT", "COMPLETE_COMMIT"},
    "PREPARE_EPOCH_FENCE": {"ONGOING"},
}
IDS = (
    "EMPTY",
    "ONGOING",
    "PREPARE_COMMIT",
    "PREPARE_ABORT",
    "COMPLETE_COMMIT",
    "COMPLETE_ABORT",
    "DEAD",
    "PREPARE_EPOCH_FENCE",
)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(IDS, IDS)))
def test_E27_transaction_states_and_transitions_equal_kafkas(before: str, after: str) -> None:
    from eoslog.coordinator.transactions.state import VALID_PREVIOUS

    assert [TransactionState[name].value for name in IDS] == list(range(8))
    legal = TransactionState[before] in VALID_PREVIOUS[TransactionState[after]]
    assert legal == (before in PREVIOUS[after])


def test_E28_begin_is_an_alias_of_the_ongoing_state(log: Any) -> None:
    assert TransactionState["BEGIN"] is TransactionState.ONGOING


def test_E31_calls_in_the_wrong_order_are_rejected_and_change_nothing(log: Any) -> None:
    producer = log.producer(transactional_id="tx", linger_ms=0)
    for early in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        with pytest.raises(IllegalState):
            early()
    producer.init_transactions()
    for wrong in (
        producer.commit_transaction,
        producer.abort_transaction,
        producer.init_transactions,
    ):
        with pytest.raises(IllegalState):
            wrong()
    with pytest.raises(IllegalState):
        producer.produce("t", "outside a transaction")
    producer.begin_transaction()
    with pytest.raises(IllegalState):
        producer.begin_transaction()
    put(producer, "fine")
    producer.commit_transaction()
    producer.close()
    assert values(log) == [b"fine"]


def test_E32_a_new_epoch_starts_at_sequence_0(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        transact(producer, "a", "b")
        transact(producer, "c")
    with transactional(log) as producer:
        transact(producer, "d")
    starts: dict[int, int] = {}
    for batch in batches(engine):
        if not batch.control:
            starts.setdefault(batch.producer_epoch, batch.base_sequence)
    assert len(starts) == 3 and set(starts.values()) == {0}


@pytest.mark.slow
def test_E34_many_batches_in_many_partitions_form_one_transaction(log: Any, engine: Any) -> None:
    log.create_topic("wide", partitions=100)
    with transactional(log, batch_size=1, transaction_timeout_ms=900_000) as producer:
        producer.begin_transaction()
        for number in range(100_000):
            producer.produce("wide", b"%d" % number, partition=number % 100)
        producer.flush()
        assert values(log, "wide") == []
        producer.commit_transaction()
    for partition in range(100):
        found = [b.num_rows for b in log.scan("wide", partitions=[partition])]
        assert sum(found) == 1000
        assert len(batches(engine, "wide", partition)) == 1001  # with the marker


def test_E35_one_transaction_spans_topics(log: Any) -> None:
    with transactional(log) as producer:
        for commit in (False, True):
            producer.begin_transaction()
            for topic in ("t", "two"):
                put(producer, "x", topic=topic)
            producer.commit_transaction() if commit else producer.abort_transaction()
    assert values(log) == values(log, "two") == [b"x"]
