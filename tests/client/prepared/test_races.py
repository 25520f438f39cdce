"""Processes that stop or die at the worst moment of a prepared transaction."""

from __future__ import annotations

import os
import signal

import pytest

import eoslog
from eoslog import Outcome, errors
from eoslog.engine.inline_limit import InlineLimit
from tests.client.prepared.helpers import (
    NOTHING,
    RECORDS,
    committed,
    created,
    of_transaction,
    offset_of_readers,
    resumed,
    run,
    stopped,
)
from tests.faults.harness import Child, live

pytestmark = pytest.mark.process


def fresh(log: eoslog.Log, topic: str, value: bytes, transactional_id: str) -> None:
    """Commit a transaction of one record."""
    with log.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.produce(topic, value, partition=0)


def setting_aside(child: Child, path: str, token: str) -> None:
    with eoslog.open(path) as log:
        log.pending()
        child.armed()
        child.tell("aside", InlineLimit(log._engine).set_aside(token))


def test_the_loser_of_two_that_set_aside_keeps_the_winners_records(tmp_path):
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    late = stopped(setting_aside, path, "inline.copied", token)
    early = live(setting_aside, path, token).fine()
    assert early.of("aside") == [True]
    assert resumed(late).end().fine().of("aside") == [False]
    with eoslog.open(path) as log:
        log.clean(roll=True)
        assert log._engine.staged.sweep() == 0
        log.resolve(token, Outcome.COMMIT)
        assert of_transaction(log) == RECORDS


def preparing(child: Child, path: str) -> None:
    """Prepare a staged transaction, and die."""
    log = eoslog.open(path)
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction(mode="staged")
    producer.produce("orders", b"1", partition=0)
    child.armed()
    child.tell("token", producer.prepare_transaction().token)
    os.kill(os.getpid(), signal.SIGKILL)


def sweeping(child: Child, path: str) -> None:
    with eoslog.open(path) as log:
        child.armed()
        child.tell("swept", log._engine.staged.sweep())


def test_a_sweep_keeps_the_records_of_a_process_that_prepares_and_dies(tmp_path):
    path = created(tmp_path / "d")
    writer = stopped(preparing, path, "stage.payload_durable")
    sweeper = stopped(sweeping, path, "sweep.asked")
    life = resumed(writer).end()
    assert life.killed
    (token,) = life.of("token")
    assert resumed(sweeper).end().fine().of("swept") == [0]
    with eoslog.open(path) as log:
        log.resolve(token, Outcome.COMMIT)
        assert committed(log, "orders") == [b"1"]


def deciding(child: Child, path: str, token: str) -> None:
    with eoslog.open(path) as log:
        child.armed()
        log.resolve(token, Outcome.COMMIT)


@pytest.mark.parametrize(
    ("mode", "point"), [("staged", "resolve.appended"), ("inline", "txn.prepared")]
)
@pytest.mark.parametrize("asks", [True, False])
def test_a_decision_that_another_process_learns_of_is_durable(tmp_path, mode, point, asks):
    path = created(tmp_path / "d")
    (token,) = run(path, mode)
    decider = stopped(deciding, path, point, token)
    with eoslog.open(path) as log:
        clog, entry = log._engine.transactions.prepared.index.find(token)
        if asks:
            assert log.outcome(token) is Outcome.COMMIT
        else:
            with pytest.raises(errors.OutcomeConflict):
                log.resolve(token, Outcome.ABORT)
        assert clog.is_durable(entry.offset)
    decider.kill()


def test_an_interrupted_delivery_without_topics_is_repeated(tmp_path):
    path = created(tmp_path / "d", transaction_state_log_num_partitions=1)
    with eoslog.open(path) as log:
        (token,) = run(path, "staged")
        log.delete_topic("paid")
        log.delete_topic("orders")
        log.create_topic("other")
    # Offsets of deleted topics are dropped, too, so the delivery writes nothing.
    decider = stopped(deciding, path, "deliver.nothing", token)
    with eoslog.open(path) as log:
        fresh(log, "other", b"1", "between")
    resumed(decider).end().fine()
    with eoslog.open(path) as log:
        log.resolve(token, Outcome.COMMIT)
        assert log._engine.transactions.prepared.index.undelivered() == []
        assert log._engine.staged.sweep() == 0


def test_a_producer_that_is_fenced_while_it_prepares_prepares_nothing(tmp_path):
    path = created(tmp_path / "d", transaction_state_log_num_partitions=1)
    with eoslog.open(path) as log:
        fresh(log, "orders", b"before", "till")
    zombie = stopped(preparing, path, "stage.identified")
    with eoslog.open(path) as log:
        fresh(log, "orders", b"after", "till")
        life = resumed(zombie).end()
        assert "ProducerFenced" in (life.error or ""), life
        assert log.pending() == []
        assert committed(log, "orders") == [b"before", b"after"]


def committing(child: Child, path: str) -> None:
    """Commit a staged transaction, which prepares nothing."""
    with eoslog.open(path) as log, log.producer(transactional_id="till") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.produce("orders", b"before", partition=0)
        child.armed()
        producer.begin_transaction(mode="staged")
        for number in range(3):
            producer.produce("orders", f"{number}".encode(), partition=0)
            producer.produce("paid", f"{number}".encode(), partition=number % 2)
        producer.send_offsets_to_transaction({eoslog.TopicPartition("orders", 0): 1}, "readers")
        producer.commit_transaction()
        child.tell("committed")


@pytest.mark.parametrize("nth", range(1, 12, 2))
def test_a_kill_in_a_staged_commit_leaves_nothing_to_decide(tmp_path, nth):
    path = created(tmp_path / "d")
    life = live(committing, path, faults=(("pwrite", "kill", nth),))
    with eoslog.open(path) as log:
        assert log.pending() == []
        log._engine.transactions.abort_timed_out()
        found = of_transaction(log)
        assert found in (RECORDS, NOTHING)
        assert found == RECORDS or not life.of("committed")


def test_the_commit_of_a_staged_transaction_checks_the_member_of_the_group(tmp_path):
    with eoslog.open(created(tmp_path / "d")) as log:
        producer = log.producer(transactional_id="till")
        producer.init_transactions()
        gone = eoslog.GroupMetadata("readers", "gone", 7)
        with pytest.raises(errors.CommitFailed), producer.transaction(mode="staged") as tx:
            tx.produce("orders", b"1", partition=0)
            tx.send_offsets({eoslog.TopicPartition("orders", 0): 1}, gone)
        assert committed(log, "orders") == []
        with producer.transaction(mode="staged") as tx:
            tx.produce("orders", b"2", partition=0)
        assert committed(log, "orders") == [b"2"]


def test_a_transaction_that_another_process_aborts_rewinds_its_consumer(tmp_path):
    with eoslog.open(created(tmp_path / "d")) as log:
        with log.producer() as plain:
            for number in range(4):
                plain.produce("orders", b"%d" % number, partition=0)
        producer = log.producer(transactional_id="till")
        producer.init_transactions()
        consumer = log.consumer(group_id="readers", auto_offset_reset="earliest", producer=producer)
        consumer.subscribe(["orders"])
        with producer.transaction() as tx:
            records = consumer.consume(2, timeout=60)
            tx.commit_offsets(consumer)
            token = producer.prepare_transaction().token
        assert len(records) == 2
        live(aborting, log.path, token).fine()
        with pytest.raises(errors.CommitFailed), producer.transaction() as tx:
            consumer.consume(1, timeout=60)
            tx.commit_offsets(consumer)
        with producer.transaction() as tx:
            assert [record.value for record in consumer.consume(2, timeout=60)] == [b"0", b"1"]
            tx.commit_offsets(consumer)


def aborting(child: Child, path: str, token: str) -> None:
    with eoslog.open(path) as log:
        log.resolve(token, Outcome.ABORT)


def recreated(log: eoslog.Log) -> None:
    log.delete_topic("orders")
    log.create_topic("orders")
    fresh(log, "orders", b"new", "other")


def test_a_suspended_delivery_commits_no_offset_in_a_new_topic(tmp_path):
    """The group would begin after records that it has not read."""
    path = created(tmp_path / "d")
    with eoslog.open(path) as log:
        fresh(log, "orders", b"before", "till")
        with log.producer(transactional_id="till") as producer:
            producer.init_transactions()
            producer.begin_transaction(mode="staged")
            producer.produce("paid", b"1", partition=0)
            for group in ("first", "readers"):
                producer.send_offsets_to_transaction({eoslog.TopicPartition("orders", 0): 1}, group)
            token = producer.prepare_transaction().token
    decider = stopped(deciding, path, "deliver.offsets", token)  # of the first group
    with eoslog.open(path) as log:
        recreated(log)
    resumed(decider).end().fine()
    with eoslog.open(path) as log:
        assert log.outcome(token) is Outcome.COMMIT
        assert committed(log, "paid") == [b"1"]
        assert offset_of_readers(log) is None


def test_a_transaction_that_is_set_aside_takes_no_offset_to_a_new_topic(tmp_path):
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    with eoslog.open(path) as log:
        recreated(log)
        assert InlineLimit(log._engine).set_aside(token)
        log.resolve(token, Outcome.COMMIT)
        assert committed(log, "paid") == RECORDS["paid"]
        assert offset_of_readers(log) is None
