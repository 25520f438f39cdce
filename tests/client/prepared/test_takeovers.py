"""Producers that keep one prepared transaction: the youngest fences the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Log, Outcome, Producer, errors
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

OUTCOMES = (Outcome.COMMIT, Outcome.ABORT)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with eoslog.open(created(tmp_path / "d")) as log:
        yield log


def preparer(log: Log) -> tuple[Producer, str]:
    """A producer with an undecided transaction, and its token."""
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"kept", partition=0)
    return producer, producer.prepare_transaction().token


def keeper(log: Log) -> Producer:
    """A new producer that keeps the transaction."""
    producer = log.producer(transactional_id="till")
    producer.init_transactions(keep_prepared=True)
    return producer


def write(producer: Producer, value: bytes) -> None:
    with producer.transaction() as tx:
        tx.produce("orders", value, partition=0)


def assert_fenced(producer: Producer) -> None:
    """The producer can begin no transaction, now or later."""
    for _ in range(2):
        with pytest.raises(errors.ProducerFenced):
            producer.begin_transaction()
    assert producer.transaction_state == "FATAL_ERROR"


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("older_first", [True, False])
def test_the_youngest_keeper_takes_the_id(log: Log, outcome: Outcome, older_first: bool) -> None:
    first, token = preparer(log)
    second, third = keeper(log), keeper(log)
    log.resolve(token, outcome)
    if not older_first:
        write(third, b"next")
    assert_fenced(second)
    assert_fenced(first)
    write(third, b"last")
    kept = [b"kept"] if outcome is Outcome.COMMIT else []
    assert committed(log, "orders") == [*kept, *([] if older_first else [b"next"]), b"last"]


def test_an_older_producer_is_fenced_before_the_decision(log: Log) -> None:
    first, token = preparer(log)
    second = keeper(log)
    third = keeper(log)
    assert_fenced(first)
    assert_fenced(second)
    with pytest.raises(errors.PreparedTransactionPending):
        third.begin_transaction()
    assert log.outcome(token) is Outcome.UNKNOWN
    assert [state.token for state in log.pending()] == [token]


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "complete"])
@pytest.mark.parametrize("keeps", [True, False])
def test_an_older_producer_does_not_decide(log: Log, call: str, keeps: bool) -> None:
    older, token = preparer(log)
    if keeps:
        older = keeper(log)
    younger = keeper(log)
    with pytest.raises(errors.ProducerFenced):
        if call == "complete":
            older.complete_transaction(token)
        else:
            getattr(older, call)()
    assert log.outcome(token) is Outcome.UNKNOWN
    assert older.transaction_state == "FATAL_ERROR"
    younger.complete_transaction(token)
    write(younger, b"next")
    assert committed(log, "orders") == [b"kept", b"next"]


def test_a_keeper_is_fenced_by_an_init_after_the_decision(log: Log) -> None:
    _, token = preparer(log)
    older = keeper(log)
    log.resolve(token, Outcome.COMMIT)
    with log.producer(transactional_id="till") as younger:
        younger.init_transactions()
        younger.begin_transaction()
        younger.produce("orders", b"next", partition=0)
        younger.flush()
        assert_fenced(older)
        younger.commit_transaction()
    assert committed(log, "orders") == [b"kept", b"next"]


def test_a_prepare_that_is_repeated_after_a_takeover_is_fenced(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = log._engine.transactions.prepared
    prepare = prepared.prepare

    def late(*about: Any, **more: Any) -> Any:
        prepare(*about, **more)
        raise errors.RequestTimedOut("late")

    older = log.producer(transactional_id="till")
    older.init_transactions()
    older.begin_transaction()
    older.produce("orders", b"kept", partition=0)
    older.flush()
    monkeypatch.setattr(prepared, "prepare", late)
    with pytest.raises(errors.RequestTimedOut):
        older.prepare_transaction(timeout=0.1)
    monkeypatch.undo()
    younger = keeper(log)
    with pytest.raises(errors.ProducerFenced):
        older.prepare_transaction()
    (state,) = log.pending()
    younger.complete_transaction(state)
    assert committed(log, "orders") == [b"kept"]


def test_a_takeover_counts_after_the_transaction_was_set_aside(log: Log) -> None:
    first, token = preparer(log)
    second, third = keeper(log), keeper(log)
    assert InlineLimit(log._engine).set_aside(token)
    assert_fenced(second)
    with pytest.raises(errors.ProducerFenced):
        first.abort_transaction()
    assert log.outcome(token) is Outcome.UNKNOWN
    log.resolve(token, Outcome.COMMIT)
    write(third, b"next")
    assert committed(log, "orders") == [b"kept", b"next"]


def test_a_takeover_counts_after_the_retention_of_the_outcome(tmp_path: Path) -> None:
    with eoslog.open(created(tmp_path / "d"), outcome_retention_ms=1000) as log:
        first, token = preparer(log)
        second, third = keeper(log), keeper(log)
        log.resolve(token, Outcome.COMMIT)
        now = log._engine.clock()
        log._engine.clock = lambda: now + 2  # type: ignore[method-assign]
        log._engine.transactions.expire()
        assert_fenced(first)
        assert_fenced(second)
        write(third, b"next")
        assert committed(log, "orders") == [b"kept", b"next"]
        log._engine.transactions.expire()
        assert log.outcome(token) is None


def test_a_takeover_changes_nothing_else(log: Log) -> None:
    _, token = preparer(log)
    before = log.pending()
    keeper(log)
    assert log.pending() == before
    assert log.recheck(token)
    assert committed(log, "orders") == []


# Crashes and stops. The transaction is that of `helpers.PROGRAM`, which has exited.


def taking(child: Child, path: str, then: str = "") -> None:
    """Take over the transaction, and maybe decide it or write the next one."""
    with eoslog.open(path) as log:
        producer = log.producer(transactional_id="till")
        child.armed()
        (kept,) = producer.init_transactions(keep_prepared=True)
        child.tell("kept", kept.token)
        try:
            if then == "commit":
                producer.commit_transaction()
            elif then == "write":
                log.resolve(kept.token, Outcome.COMMIT)
                write(producer, b"late")
            child.tell("done", then)
        except errors.ProducerFenced:
            child.tell("fenced", then)


POINTS = ("takeover.read", "takeover.appended", "takeover.durable")


@pytest.mark.process
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_kill_in_a_takeover_leaves_the_transaction(
    tmp_path: Path, point: str, outcome: Outcome
) -> None:
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    assert live(taking, path, faults=((point, "kill", 1),)).killed
    with eoslog.open(path) as log:
        producer = keeper(log)
        assert [state.token for state in log.pending()] == [token]
        assert log.outcome(token) is Outcome.UNKNOWN
        assert of_transaction(log) == NOTHING
        producer.end_transaction(outcome is Outcome.COMMIT)
        assert of_transaction(log) == (RECORDS if outcome is Outcome.COMMIT else NOTHING)
        assert offset_of_readers(log) == (1 if outcome is Outcome.COMMIT else None)
        assert log.check().ok


@pytest.mark.process
@pytest.mark.parametrize("point", POINTS)
def test_of_two_takeovers_at_the_same_time_the_later_record_counts(
    tmp_path: Path, point: str
) -> None:
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    suspended = stopped(taking, path, point, "commit")
    with eoslog.open(path) as log:
        producer = keeper(log)
        life = resumed(suspended).end().fine()
        if point == "takeover.read":
            assert life.of("done") == ["commit"]
            assert_fenced(producer)
        else:
            assert life.of("fenced") == ["commit"]
            assert log.outcome(token) is Outcome.UNKNOWN
            producer.commit_transaction()
        assert of_transaction(log) == RECORDS


@pytest.mark.process
def test_a_takeover_that_is_suspended_during_the_decision_is_an_init(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    suspended = stopped(taking_decided, path, "takeover.read")
    with eoslog.open(path) as log:
        log.resolve(token, Outcome.COMMIT)
        resumed(suspended).end().fine()
        assert committed(log, "orders")[-1] == b"late"


def taking_decided(child: Child, path: str) -> None:
    with eoslog.open(path) as log:
        producer = log.producer(transactional_id="till")
        child.armed()
        assert producer.init_transactions(keep_prepared=True) == []
        write(producer, b"late")


@pytest.mark.process
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_decision_that_is_suspended_during_a_takeover_is_fenced(
    tmp_path: Path, outcome: Outcome
) -> None:
    """The older producer has checked that it is the youngest one."""
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    older = stopped(taking, path, "txn.flushed", "commit")
    with eoslog.open(path) as log:
        producer = keeper(log)
        assert resumed(older).end().fine().of("fenced") == ["commit"]
        assert log.outcome(token) is Outcome.UNKNOWN
        producer.end_transaction(outcome is Outcome.COMMIT)
        assert of_transaction(log) == (RECORDS if outcome is Outcome.COMMIT else NOTHING)


def resolving(child: Child, path: str, token: str) -> None:
    with eoslog.open(path) as log:
        child.armed()
        log.resolve(token, Outcome.COMMIT)


@pytest.mark.process
def test_a_decision_by_token_keeps_a_takeover_that_came_between(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    with eoslog.open(path) as log:
        older = keeper(log)
        decider = stopped(resolving, path, "txn.flushed", token)
        younger = keeper(log)
        resumed(decider).end().fine()
        assert_fenced(older)
        write(younger, b"next")
        assert committed(log, "orders") == [b"before", *RECORDS["orders"], b"next"]


@pytest.mark.process
def test_a_keeper_that_is_suspended_in_its_next_begin_fences_no_younger_one(
    tmp_path: Path,
) -> None:
    path = created(tmp_path / "d")
    run(path, "inline")
    older = stopped(taking, path, "takeover.identified", "write")
    with eoslog.open(path) as log, log.producer(transactional_id="till") as younger:
        younger.init_transactions()
        younger.begin_transaction()
        younger.produce("orders", b"next", partition=0)
        younger.flush()
        assert resumed(older).end().fine().of("fenced") == ["write"]
        younger.commit_transaction()
        assert committed(log, "orders") == [b"before", *RECORDS["orders"], b"next"]


@pytest.mark.process
@pytest.mark.parametrize("point", ["takeover.identified", "txn.init.appended", "txn.init.durable"])
def test_a_kill_in_the_next_begin_of_a_keeper_leaves_the_decision(
    tmp_path: Path, point: str
) -> None:
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    assert live(taking, path, "write", faults=((point, "kill", 1),)).killed
    with eoslog.open(path) as log, log.producer(transactional_id="till") as producer:
        assert log.outcome(token) is Outcome.COMMIT
        producer.init_transactions()
        write(producer, b"next")
        assert committed(log, "orders") == [b"before", *RECORDS["orders"], b"next"]
        assert of_transaction(log)["paid"] == RECORDS["paid"]
        assert log.check().ok
