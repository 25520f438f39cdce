"""Publishing ids commit and abort with the records of a transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, errors
from eoslog.client.producer.transactions.manager import TransactionManager
from eoslog.engine.inline_limit import InlineLimit


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 4)
        yield opened


@pytest.fixture
def producer(log: eoslog.Log) -> Iterator[eoslog.NamedProducer]:
    with log.producer(name="relay") as made:
        made.init_transactions()
        yield made


def values(log: eoslog.Log, partition: int = 0) -> list[bytes]:
    return [record.value for record in log.read("t", partitions=[partition])]


def test_an_aborted_transaction_does_not_advance_the_ids(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    producer.begin_transaction()
    producer.produce("t", "lost", partition=0, publishing_id=5)
    producer.flush()
    producer.abort_transaction()
    assert log.last_publishing_id("relay", "t", 0) is None
    with producer.transaction() as tx:
        tx.produce("t", "kept", partition=0, publishing_id=5)
        repeat = tx.send("t", "again", partition=0, publishing_id=5)
        assert repeat.result(0).duplicate
    assert values(log) == [b"kept"] and log.last_publishing_id("relay", "t", 0) == 5


def test_a_commit_that_timed_out_with_its_ids_written_is_continued(
    log: eoslog.Log, producer: eoslog.NamedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer.transaction() as tx:
        tx.produce("t", "1", partition=0, publishing_id=1)
    producer.begin_transaction()
    producer.produce("t", "late", partition=0, publishing_id=9)

    def late(*_: Any, **__: Any) -> None:
        raise errors.RequestTimedOut("the coordinator does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionManager, "end", late)
        with pytest.raises(errors.RequestTimedOut):
            producer.commit_transaction()
    producer.commit_transaction()
    assert log.last_publishing_id("relay", "t", 0) == 9 and values(log)[-1] == b"late"


def test_ids_that_a_failed_commit_has_written_are_aborted_with_it(
    log: eoslog.Log, producer: eoslog.NamedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer.transaction() as tx:
        tx.produce("t", "1", partition=0, publishing_id=1)
    producer.begin_transaction()
    producer.produce("t", "9", partition=0, publishing_id=9)
    producer._write_ids(time.monotonic() + 60, "test")
    producer.abort_transaction()
    assert log.last_publishing_id("relay", "t", 0) == 1
    with producer.transaction() as tx:
        tx.produce("t", "2", partition=0, publishing_id=2)
    assert values(log) == [b"1", b"2"]


def test_records_offsets_and_ids_commit_together(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    with producer.transaction() as tx:
        assert tx.produce_many("t", ["a", "b"], partition=0, publishing_ids=[1, 2]) == 2
        tx.send_offsets({TopicPartition("t", 1): 7}, "group")
    assert log.committed("group")[TopicPartition("t", 1)].offset == 7
    assert log.last_publishing_id("relay", "t", 0) == 2
    with pytest.raises(RuntimeError), producer.transaction() as tx:
        tx.produce("t", "c", partition=0, publishing_id=3)
        tx.send_offsets({TopicPartition("t", 1): 8}, "group")
        raise RuntimeError
    assert log.committed("group")[TopicPartition("t", 1)].offset == 7
    assert log.last_publishing_id("relay", "t", 0) == 2


def test_a_transaction_of_duplicates_writes_nothing(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    with producer.transaction() as tx:
        tx.produce("t", "a", partition=0, publishing_id=1)
    end, logs = log.offsets("t", 0).log_end, log._engine.transaction_partitions()
    ends = [part.log_end for part in logs]
    with producer.transaction() as tx:
        tx.produce("t", "a", partition=0, publishing_id=1)
    assert log.offsets("t", 0).log_end == end and [part.log_end for part in logs] == ends


def test_ids_that_a_callback_of_the_commit_produces_are_committed_too(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    told: list[int] = []

    def more(_: Any, metadata: eoslog.RecordMetadata) -> None:
        told.append(metadata.offset)
        if len(told) == 1:
            producer.produce("t", "b", partition=0, publishing_id=2, on_delivery=more)

    producer.begin_transaction()
    producer.produce("t", "a", partition=0, publishing_id=1, on_delivery=more)
    producer.commit_transaction()
    assert values(log) == [b"a", b"b"] and log.last_publishing_id("relay", "t", 0) == 2


def test_an_interrupt_while_a_record_is_buffered_fails_the_transaction(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    producer.begin_transaction()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer._ids, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.produce("t", "a", partition=0, publishing_id=1)
    with pytest.raises(errors.TransactionAbortable, match="an interrupt came while"):
        producer.produce("t", "a", partition=0, publishing_id=1)
    with pytest.raises(errors.TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction() as tx:
        tx.produce("t", "a", partition=0, publishing_id=1)
    assert values(log) == [b"a"]


def test_an_interrupt_stops_a_producer_that_commits_automatically(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with log.producer(name="alone", linger_ms=60_000) as producer:
        delivery = producer.send("t", "a", partition=0, publishing_id=1)
        with monkeypatch.context() as patch:
            patch.setattr(producer._ids, "advance", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.produce("t", "b", partition=0, publishing_id=2)
        with pytest.raises(errors.IllegalState, match="an interrupt came while"):
            producer.produce("t", "b", partition=0, publishing_id=2)
        assert isinstance(delivery.exception(0), errors.TransactionAbortable)
        with pytest.raises(errors.TransactionAbortable):
            producer.flush()  # the record without a callback
    assert values(log) == [] and log.last_publishing_id("alone", "t", 0) is None


def test_a_commit_that_times_out_is_continued(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def end(self: Any, *_: Any) -> None:
        self.asked = True
        asked.append(True)
        raise errors.RequestTimedOut("no answer")

    with log.producer(name="alone", linger_ms=60_000) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(TransactionManager, "end", end)
            delivery = producer.send("t", "a", partition=0, publishing_id=1)
            while not asked:  # a timeout of 0 may end before the data is flushed
                assert producer.flush(timeout=0) == 1 and not delivery.done()
            with pytest.raises(errors.RequestTimedOut):
                producer.produce("t", "b", partition=0, publishing_id=2)
        assert producer.flush() == 0
        assert delivery.result(0).offset == 0
        producer.produce("t", "b", partition=0, publishing_id=2)
    assert values(log) == [b"a", b"b"]


def test_a_commit_that_never_ends_fails_after_the_delivery_timeout(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(self: Any, *_: Any) -> None:
        self.asked = True
        raise errors.RequestTimedOut("no answer")

    monkeypatch.setattr(TransactionManager, "end", end)
    producer = log.producer(name="alone", linger_ms=0, delivery_timeout_ms=3000)
    delivery = producer.send("t", "a", partition=0, publishing_id=1)
    assert isinstance(delivery.exception(60), errors.DeliveryTimeout)
    with pytest.raises(
        errors.IllegalState, match="not committed within delivery.timeout.ms = 3000"
    ):
        producer.produce("t", "b", partition=0, publishing_id=2)
    producer.close()


def test_an_unknown_outcome_is_settled_by_sending_again(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = TransactionManager.end

    def unknown(self: Any, commit: bool, deadline: float) -> None:
        end(self, commit, deadline)
        if commit and self.transactional_id == "__name-alone" and not told:
            told.append(True)
            raise self.fail(errors.CommitOutcomeUnknown("interrupted"))

    told: list[bool] = []
    monkeypatch.setattr(TransactionManager, "end", unknown)
    for _ in range(2):
        producer = log.producer(name="alone", linger_ms=60_000)
        deliveries = [producer.send("t", b"%d" % n, partition=n, publishing_id=n) for n in range(4)]
        producer.flush()
        if told == [True]:
            assert all(isinstance(d.exception(0), errors.CommitOutcomeUnknown) for d in deliveries)
            told.append(False)
        else:
            assert all(d.result(0).duplicate for d in deliveries)
        producer.close()
    assert [values(log, n) for n in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


def test_calls_of_transactions_need_init_transactions(log: eoslog.Log) -> None:
    with log.producer(name="alone") as producer:
        calls = (
            producer.begin_transaction, producer.commit_transaction, producer.abort_transaction,
            producer.transaction, lambda: producer.send_offsets_to_transaction({}, "g"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(errors.IllegalState, match="call init_transactions"):
                call()
        assert producer.transaction_state is None
        producer.produce("t", "a", partition=0, publishing_id=1)
        for call in calls:
            with pytest.raises(errors.IllegalState, match="call init_transactions"):
                call()
        with pytest.raises(errors.IllegalState, match="commits its records automatically"):
            producer.init_transactions()
    assert values(log) == [b"a"]


def test_a_record_outside_of_a_transaction_is_refused(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    with pytest.raises(errors.IllegalState, match="no transaction is open"):
        producer.produce("t", "a", partition=0, publishing_id=1)
    with producer.transaction() as tx:
        tx.produce("t", "a", partition=0, publishing_id=1)
    with pytest.raises(errors.IllegalState):
        producer.send("t", "a", partition=0, publishing_id=1)
    assert producer.transaction_state == "READY" and producer.name == "relay"


def test_a_fenced_transaction_leaves_the_ids_to_the_new_owner(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    producer.begin_transaction()
    producer.produce("t", "old", partition=0, publishing_id=1)
    producer.flush()
    with log.producer(name="relay") as second:
        second.init_transactions()
        with second.transaction() as tx:
            tx.produce("t", "new", partition=0, publishing_id=1)
    with pytest.raises(errors.ProducerFenced):
        producer.commit_transaction()
    assert values(log) == [b"new"]


def test_a_topic_that_is_re_created_during_a_transaction_fails_it(log: eoslog.Log) -> None:
    with log.producer(name="relay", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", "old", partition=0, publishing_id=9)
        log.delete_topic("t")
        log.create_topic("t", 4)
        with pytest.raises(errors.TransactionAbortable, match="re-created during the transaction"):
            producer.produce("t", "new", partition=0, publishing_id=1)
        with pytest.raises(errors.EoslogError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction() as tx:
            tx.produce("t", "new", partition=0, publishing_id=1)
    assert values(log) == [b"new"] and log.last_publishing_id("relay", "t", 0) == 1


def test_last_publishing_id_waits_for_an_open_transaction(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    producer.begin_transaction()
    producer.produce("t", "a", partition=0, publishing_id=4)
    producer._write_ids(time.monotonic() + 60, "test")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(log.last_publishing_id("relay", "t", 0)))
    waiting.start()
    producer.commit_transaction()
    waiting.join(60)
    assert found == [4]


@pytest.mark.parametrize("outcome", [eoslog.Outcome.COMMIT, eoslog.Outcome.ABORT])
def test_the_ids_of_a_prepared_transaction_follow_its_outcome(
    log: eoslog.Log, producer: eoslog.NamedProducer, outcome: eoslog.Outcome
) -> None:
    producer.begin_transaction()
    producer.produce("t", "prepared", partition=0, publishing_id=3)
    state = producer.prepare_transaction()
    with pytest.raises(errors.PreparedTransactionPending):
        producer.begin_transaction()
    with pytest.raises(errors.IllegalState):
        producer.produce("t", "x", partition=0, publishing_id=4)
    log.resolve(state.token, outcome)
    commit = outcome is eoslog.Outcome.COMMIT
    assert log.last_publishing_id("relay", "t", 0) == (3 if commit else None)
    with producer.transaction() as tx:
        assert tx.produce_many("t", ["again"], partition=0, publishing_ids=[3]) == (not commit)
    assert values(log) == [b"prepared" if commit else b"again"]


def test_a_new_producer_of_a_name_keeps_the_prepared_transaction(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    producer.begin_transaction()
    producer.produce("t", "prepared", partition=0, publishing_id=3)
    state = producer.prepare_transaction()
    with log.producer(name="relay") as alone:
        with pytest.raises(errors.PreparedTransactionPending):
            alone.produce("t", "x", partition=0, publishing_id=3)
    with log.producer(name="relay") as second:
        (kept,) = second.init_transactions(keep_prepared=True)
        assert kept.token == state.token
        second.complete_transaction(state)
        with second.transaction() as tx:
            assert tx.produce_many("t", ["again", "b"], partition=0, publishing_ids=[3, 4]) == 1
    assert values(log) == [b"prepared", b"b"]


def test_a_staged_transaction_takes_no_ids(log: eoslog.Log, producer: eoslog.NamedProducer) -> None:
    with producer.transaction(mode="staged") as tx:
        with pytest.raises(errors.IllegalState, match='begin it with mode="inline"'):
            tx.produce("t", "x", partition=0, publishing_id=1)
        tx.produce("t", "without", partition=0)
    assert values(log) == [b"without"]


@pytest.mark.parametrize("outcome", [eoslog.Outcome.COMMIT, eoslog.Outcome.ABORT])
def test_ids_wait_for_a_prepared_transaction_that_was_set_aside(
    log: eoslog.Log, producer: eoslog.NamedProducer, outcome: eoslog.Outcome
) -> None:
    producer.begin_transaction()
    producer.produce("t", "prepared", partition=0, publishing_id=3)
    state = producer.prepare_transaction()
    assert InlineLimit(log._engine).set_aside(state.token)
    assert log.last_publishing_id("relay", "t", 0) is None
    with pytest.raises(errors.PreparedTransactionPending, match="has publishing ids"):
        with producer.transaction() as tx:
            tx.produce("t", "without", partition=0)
            tx.produce("t", "x", partition=0, publishing_id=3)
    with log.producer(name="relay") as alone:
        with pytest.raises(errors.PreparedTransactionPending):
            alone.produce("t", "x", partition=0, publishing_id=3)
    log.resolve(state.token, outcome)
    commit = outcome is eoslog.Outcome.COMMIT
    with log.producer(name="relay") as alone:
        delivery = alone.send("t", "again", partition=0, publishing_id=3)
        assert delivery.result(60).duplicate is commit
    assert values(log) == [b"prepared" if commit else b"again"]
    assert log.last_publishing_id("relay", "t", 0) == 3


def test_ids_follow_a_set_aside_transaction_that_is_not_delivered_yet(
    log: eoslog.Log, producer: eoslog.NamedProducer
) -> None:
    producer.begin_transaction()
    producer.produce("t", "prepared", partition=0, publishing_id=3)
    state = producer.prepare_transaction()
    assert InlineLimit(log._engine).set_aside(state.token)
    prepared = log._engine.transactions.prepared
    clog, entry = prepared.index.find(state.token)
    assert prepared._decide_staged(clog, entry, True)  # as a process that dies before the delivery
    assert values(log) == []
    with producer.transaction() as tx:
        assert tx.produce_many("t", ["again", "b"], partition=0, publishing_ids=[3, 4]) == 1
    assert values(log) == [b"prepared", b"b"]
