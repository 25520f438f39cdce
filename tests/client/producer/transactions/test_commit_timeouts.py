"""`with producer.transaction()`: a commit that was asked for and timed out."""

from __future__ import annotations

import pytest

import eoslog
from eoslog.errors import ConcurrentTransactions, RequestTimedOut
from eoslog.model import TopicPartition


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path) as log:
        log.create_topic("in")
        log.create_topic("out")
        with log.producer() as producer:
            producer.produce_many("in", [b"0", b"1", b"2"], partition=0)
        yield log


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_commit_that_timed_out_after_its_request_rewinds_nothing(
    log, opened, monkeypatch, by_hand
):
    """It can only be committed again: what was read in it is not to be read again."""

    def busy(*arguments):
        raise ConcurrentTransactions("markers are missing")

    producer = log.producer(transactional_id="tx", max_block_ms=3000)
    opened.append(producer)
    producer.init_transactions()
    consumer = log.consumer(
        producer=producer, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    )
    opened.append(consumer)
    consumer.assign([TopicPartition("in", 0)])

    def pass_on(tx, count):
        for _ in range(count):
            tx.produce("out", consumer.poll(60).value)
        tx.commit_offsets(consumer)

    tx = producer.transaction()
    with monkeypatch.context() as coordinator, pytest.raises(RequestTimedOut), tx:
        pass_on(tx, 1)
        coordinator.setattr(log._engine.transactions, "end_txn", busy)
        if by_hand:
            producer.commit_transaction()
    assert "outcome unknown" in repr(tx)
    producer.commit_transaction()
    with producer.transaction() as tx:
        pass_on(tx, 2)
    values = [value for batch in log.scan("out") for value in batch.column("value").to_pylist()]
    assert values == [b"0", b"1", b"2"]
