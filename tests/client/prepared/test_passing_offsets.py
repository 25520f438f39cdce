"""No commit passes the offset of an undecided staged transaction.

If that is aborted, its records are read again. A larger offset that was committed before the
decision would skip them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import eoslog
from eoslog import Consumer, Log, Outcome, TopicPartition, errors
from eoslog.storage.fs import files
from tests.client.prepared.helpers import await_stop, created, resumed
from tests.faults.harness import Child, live, start

INPUT = TopicPartition("orders", 0)


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with eoslog.open(created(tmp_path / "d")) as opened:
        with opened.producer() as producer:
            producer.produce_many("orders", [b"0", b"1", b"2", b"3"], partition=0)
        yield opened


def reader(log: Log) -> Consumer:
    return log.consumer(
        "orders", group_id="readers", auto_offset_reset="earliest", enable_auto_commit=False
    )


def prepare(log: Log, offset: int, group: Any = "readers") -> str:
    """Prepare a staged transaction with an offset of the group."""
    with log.producer(transactional_id="till") as producer:
        producer.init_transactions()
        with producer.transaction(mode="staged") as tx:
            tx.produce("paid", b"paid", partition=0)
            tx.send_offsets({INPUT: offset}, group)
            return producer.prepare_transaction().token


def position(log: Log) -> int | None:
    """Where a new member of the group begins; None: it has no offset."""
    found = log._engine.groups.fetch_offsets("readers", [INPUT], timeout=0.0)
    return found[INPUT].offset if INPUT in found else None


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_a_plain_commit_is_refused_until_the_decision(log: Log, outcome: Outcome) -> None:
    token = prepare(log, 2)
    with log.consumer(group_id="readers", enable_auto_commit=False) as consumer:
        with pytest.raises(errors.PreparedTransactionPending, match=token):
            consumer.commit({INPUT: 4})
        log.resolve(token, outcome)
        assert position(log) == (2 if outcome is Outcome.COMMIT else None)
        consumer.commit({INPUT: 4})
    assert position(log) == 4


def test_a_plain_commit_of_another_partition_is_not_refused(log: Log) -> None:
    prepare(log, 2)
    other = TopicPartition("paid", 1)
    with log.consumer(group_id="readers", enable_auto_commit=False) as consumer:
        consumer.commit({other: 0})
    assert log._engine.groups.fetch_offsets("readers", [other], timeout=0.0)[other].offset == 0


def sending(child: Child, path: str) -> None:
    """Send a later offset of the group in an inline transaction."""
    with eoslog.open(path) as log, log.producer(transactional_id="other") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("paid", b"too far", partition=0)
        producer.send_offsets_to_transaction({INPUT: 4}, "readers")
        try:
            producer.commit_transaction()
        except errors.PreparedTransactionPending as error:
            child.tell("refused", str(error))
        producer.abort_transaction()


@pytest.mark.process
def test_an_inline_transaction_of_another_process_is_refused(log: Log) -> None:
    token = prepare(log, 2)
    (message,) = live(sending, log.path).fine().of("refused")
    assert token in message
    log.resolve(token, Outcome.ABORT)
    assert position(log) is None


def test_a_repeated_call_does_not_refuse_its_own_transaction(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = log._engine.transactions.prepared
    stage = prepared.stage

    def late(*about: Any) -> Any:
        stage(*about)
        raise errors.RequestTimedOut("late")

    with log.producer(transactional_id="till") as producer:
        producer.init_transactions()
        producer.begin_transaction(mode="staged")
        producer.send_offsets_to_transaction({INPUT: 2}, "readers")
        monkeypatch.setattr(prepared, "stage", late)
        with pytest.raises(errors.RequestTimedOut):
            producer.prepare_transaction(timeout=0.1)
        monkeypatch.undo()
        token = producer.prepare_transaction().token
    assert [one.token for one in log.pending()] == [token]


def stopping_in_the_append(child: Child, path: str) -> None:
    """Stop while the token is appended, after the group was checked, and after that."""
    with eoslog.open(path) as log, reader(log) as consumer:
        groups = log._engine.groups
        check, looks = groups.check_staged_offsets, 0

        def looked(*about: Any, **more: Any) -> Any:
            nonlocal looks
            found = check(*about, **more)
            looks += 1
            if looks == 2:  # the condition of the append
                files.arm_failpoint("pwrite", "stop")
                files.arm_failpoint("stage.appended", "stop")
            return found

        groups.check_staged_offsets = looked  # type: ignore[method-assign]
        assert len(consumer.consume(2, timeout=60)) == 2
        with log.producer(transactional_id="till") as producer:
            producer.init_transactions()
            producer.begin_transaction(mode="staged")
            producer.produce("paid", b"paid", partition=0)
            producer.send_offsets_to_transaction({INPUT: 2}, consumer)
            with contextlib.suppress(errors.CommitFailed):
                producer.prepare_transaction()
        child.tell("done", 1)


@pytest.mark.process
@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_a_successor_waits_for_an_append_that_has_checked_the_group(
    log: Log, outcome: Outcome
) -> None:
    late = start(stopping_in_the_append, log.path)
    with contextlib.ExitStack() as stack:
        stack.callback(late.kill)  # also if an assertion fails: it holds a lock
        await_stop(late)
        (member,) = log.describe_group("readers").members
        log._engine.groups.remove_members("readers", [member.member_id])
        successor = stack.enter_context(reader(log))
        assert successor.consume(4, timeout=1) == []
        assert successor.assignment() == [INPUT]
        resumed(late)
        await_stop(late)  # before its second look at the group
        log.resolve(log.pending()[0].token, outcome)
        wanted = [b"2", b"3"] if outcome is Outcome.COMMIT else [b"0", b"1", b"2", b"3"]
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while len(found) < len(wanted) and time.monotonic() < deadline:
            found += [record.value for record in successor.consume(4, timeout=1)]
        assert found == wanted
        resumed(late).heard("done")
