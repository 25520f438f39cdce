"""Consumer offsets in a staged transaction: each record has one result.

Until the decision, the offset is neither committed nor free. A member that starts waits for it, as
it does for an inline transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import eoslog
from eoslog import Consumer, Log, Outcome, TopicPartition, errors
from eoslog.engine.inline_limit import InlineLimit
from tests.client.prepared.helpers import committed, created, resumed, stopped
from tests.faults.harness import Child, live

INPUT = TopicPartition("orders", 0)
HOUR_MS = 3_600_000


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with eoslog.open(created(tmp_path / "d")) as opened:
        filled(opened)
        yield opened


def filled(log: Log) -> None:
    """Four records to read."""
    with log.producer() as producer:
        producer.produce_many("orders", [b"0", b"1", b"2", b"3"], partition=0)


def reader(log: Log) -> Consumer:
    """A member of the group."""
    return log.consumer(
        "orders", group_id="readers", auto_offset_reset="earliest", enable_auto_commit=False
    )


def staged(log: Log, offset: int, group: Any = "readers", name: str = "till", **about: Any) -> str:
    """Prepare a staged transaction of one result with the group's offset."""
    producer = log.producer(transactional_id=name)
    producer.init_transactions()
    with producer.transaction(mode="staged") as tx:
        tx.produce("paid", f"up to {offset}".encode(), partition=0)
        tx.send_offsets({INPUT: offset}, group)
        return producer.prepare_transaction(**about).token


def moved(log: Log, offset: int) -> str:
    """Prepare an inline transaction, and set it aside."""
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    with producer.transaction() as tx:
        tx.produce("paid", f"up to {offset}".encode(), partition=0)
        tx.send_offsets({INPUT: offset}, "readers")
        token = producer.prepare_transaction().token
    assert InlineLimit(log._engine).set_aside(token)
    return token


def position(log: Log) -> int | None:
    """Where a new member of the group begins; None: it has no offset."""
    found = log._engine.groups.fetch_offsets("readers", [INPUT], timeout=0.0)
    return found[INPUT].offset if INPUT in found else None


def undecided(log: Log) -> bool:
    """Whether a new member must wait for a decision."""
    try:
        position(log)
    except errors.KafkaError as error:
        return error.code == errors.ErrorCode.UNSTABLE_OFFSET_COMMIT
    return False


@pytest.mark.parametrize("prepare", [staged, moved])
@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_a_member_that_starts_waits_for_the_decision(
    log: Log, prepare: Any, outcome: Outcome
) -> None:
    token = prepare(log, 2)
    with reader(log) as consumer:
        assert consumer.consume(4, timeout=0.5) == []
        assert undecided(log)
        log.resolve(token, outcome)
        wanted = [b"2", b"3"] if outcome is Outcome.COMMIT else [b"0", b"1", b"2", b"3"]
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while len(found) < len(wanted) and time.monotonic() < deadline:
            found += [record.value for record in consumer.consume(4, timeout=1)]
        assert found == wanted


def test_other_partitions_and_groups_do_not_wait(log: Log) -> None:
    staged(log, 2)
    other = TopicPartition("paid", 1)
    log.reset_offsets("others", {INPUT: 3})
    assert log._engine.groups.fetch_offsets("readers", [other], timeout=0.0) == {}
    assert log._engine.groups.fetch_offsets("others", timeout=0.0)[INPUT].offset == 3


def test_a_reader_of_the_targets_does_not_wait(log: Log) -> None:
    staged(log, 2)
    with log.producer() as producer:
        producer.produce("paid", b"plain", partition=0)
    assert committed(log, "paid") == [b"plain"]


def test_a_committed_offset_counts_before_its_records_are_delivered(log: Log) -> None:
    token = staged(log, 2, deliver_at=log._engine.clock_ms() + HOUR_MS)
    assert undecided(log)
    log.resolve(token, Outcome.COMMIT)
    assert committed(log, "paid") == []
    assert position(log) == 2
    assert log.committed("readers")[INPUT].offset == 2


def test_an_offset_that_is_delivered_between_two_looks_is_found(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's log was read before it, and the coordinator's log after it."""
    token = staged(log, 2)
    transactions = log._engine.transactions
    look = transactions.held_offsets

    def decided_first(group_id: str) -> Any:
        monkeypatch.undo()
        log.resolve(token, Outcome.COMMIT)
        return look(group_id)

    monkeypatch.setattr(transactions, "held_offsets", decided_first)
    assert position(log) == 2


def deciding(child: Child, path: str, token: str) -> None:
    with eoslog.open(path) as log:
        child.armed()
        log.resolve(token, Outcome.COMMIT)


@pytest.mark.process
def test_a_member_acts_only_on_a_durable_decision(log: Log) -> None:
    token = staged(log, 2)
    decider = stopped(deciding, log.path, "resolve.appended", token)
    clog, entry = log._engine.transactions.prepared.index.find(token)
    assert not clog.is_durable(entry.offset)
    assert position(log) == 2
    assert clog.is_durable(entry.offset)
    decider.kill()


def test_a_late_delivery_does_not_set_the_group_back(log: Log) -> None:
    later = log._engine.clock_ms() + HOUR_MS
    token = staged(log, 2, deliver_at=later)
    log.resolve(token, Outcome.COMMIT)
    with reader(log) as consumer:
        assert [record.value for record in consumer.consume(2, timeout=60)] == [b"2", b"3"]
        consumer.commit()
    log._engine.clock_ms = lambda: later + 1  # type: ignore[method-assign]
    assert log._engine.transactions.prepared.deliver(token)
    assert committed(log, "paid") == [b"up to 2"]
    assert position(log) == 4


def test_a_group_has_one_undecided_offset_of_a_partition(log: Log) -> None:
    """If the first one is aborted, a later offset would skip its records."""
    first = staged(log, 2)
    with pytest.raises(errors.PreparedTransactionPending, match=first):
        staged(log, 4, name="other")
    assert [one.token for one in log.pending()] == [first]
    log.resolve(first, Outcome.COMMIT)
    log.resolve(staged(log, 4, name="other"), Outcome.COMMIT)
    assert position(log) == 4


def staging(child: Child, path: str) -> None:
    with eoslog.open(path) as log:
        try:
            staged(log, 4, name="other")
        except errors.PreparedTransactionPending as error:
            child.tell("refused", str(error))


@pytest.mark.process
def test_an_undecided_offset_of_another_process_is_named(log: Log) -> None:
    first = staged(log, 2)
    (message,) = live(staging, log.path).fine().of("refused")
    assert first in message
    assert [one.token for one in log.pending()] == [first]


@pytest.mark.parametrize("mode", ["inline", "staged"])
@pytest.mark.parametrize("aborted", ["before", "within", "never"])
def test_a_later_transaction_does_not_skip_what_an_undecided_one_has_read(
    log: Log, mode: Any, aborted: str
) -> None:
    with log.producer(transactional_id="till") as producer, reader(log) as consumer:
        producer.init_transactions()
        with producer.transaction(mode="staged") as tx:
            assert [one.value for one in consumer.consume(2, timeout=60)] == [b"0", b"1"]
            tx.commit_offsets(consumer)
            token = producer.prepare_transaction().token
        if aborted == "before":
            log.resolve(token, Outcome.ABORT)
        with (
            pytest.raises((errors.CommitFailed, errors.PreparedTransactionPending)) as found,
            producer.transaction(mode=mode) as tx,
        ):
            assert [one.value for one in consumer.consume(2, timeout=60)] == [b"2", b"3"]
            tx.commit_offsets(consumer)
            if aborted == "within":
                log.resolve(token, Outcome.ABORT)
        assert isinstance(found.value, errors.CommitFailed) is (aborted != "never")
        if aborted == "never":
            log.resolve(token, Outcome.ABORT)
        with producer.transaction(mode=mode) as tx:
            assert [one.value for one in consumer.consume(4, timeout=60)] == [
                b"0", b"1", b"2", b"3",
            ]  # fmt: skip
            tx.commit_offsets(consumer)
        assert position(log) == 4


def test_a_member_that_lost_its_partition_prepares_nothing(log: Log) -> None:
    gone = eoslog.GroupMetadata("readers", "gone", 7)
    with pytest.raises(errors.CommitFailed):
        staged(log, 2, gone)
    assert log.pending() == []
    assert position(log) is None


def test_a_member_prepares_no_offset_of_another_members_partition(log: Log) -> None:
    with log.consumer("paid", group_id="pair", enable_auto_commit=False) as one:
        with log.consumer("paid", group_id="pair", enable_auto_commit=False) as two:
            deadline = time.monotonic() + 60
            while not (len(one.assignment()) == len(two.assignment()) == 1):
                assert time.monotonic() < deadline
                one.poll(0.05)
                two.poll(0.05)
            producer = log.producer(transactional_id="till")
            producer.init_transactions()
            (foreign,) = two.assignment()
            with pytest.raises(errors.CommitFailed), producer.transaction(mode="staged") as tx:
                tx.send_offsets({foreign: 1}, one)
                producer.prepare_transaction()
            assert log.pending() == []


def test_a_topic_that_is_created_again_has_no_held_offset(log: Log) -> None:
    staged(log, 2)
    log.delete_topic("orders")
    log.create_topic("orders")
    assert position(log) is None


def test_metadata_that_no_delivery_could_commit_is_refused(log: Log) -> None:
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    with pytest.raises(errors.KafkaError) as found, producer.transaction(mode="staged") as tx:
        tx.send_offsets({INPUT: eoslog.OffsetAndMetadata(2, -1, "x" * 5000)}, "readers")
        producer.prepare_transaction()
    assert found.value.code == errors.ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert log.pending() == []


def test_blockers_name_the_token_for_which_a_group_waits(log: Log) -> None:
    token = staged(log, 2)
    log.reset_offsets("readers", {TopicPartition("paid", 0): 0})
    (found,) = log.blockers("readers")
    assert (found.kind, found.token, found.topic, found.partition) == (
        "prepared_transaction", token, "orders", 0,
    )  # fmt: skip


def forwarding(child: Child, path: str) -> None:
    """Read two records, and prepare their result."""
    with eoslog.open(path) as log, reader(log) as consumer:
        assert len(consumer.consume(2, timeout=60)) == 2
        child.armed()
        try:
            child.tell("token", staged(log, 2, consumer))
        except errors.CommitFailed:
            child.tell("refused", True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "prepared"),
    [("stage.identified", False), ("stage.payload_durable", False), ("stage.appended", True)],
)
def test_a_suspended_member_and_its_successor_do_not_process_a_record_twice(
    tmp_path: Any, point: str, prepared: bool
) -> None:
    path = created(tmp_path / "d")
    with eoslog.open(path) as log:
        filled(log)
    member = stopped(forwarding, path, point)
    with eoslog.open(path) as log:
        (about,) = log.describe_group("readers").members
        log._engine.groups.leave("readers", about.member_id)
        with reader(log) as consumer:
            assert len(consumer.consume(4, timeout=1 if prepared else 60)) == 4 * (not prepared)
            assert undecided(log) is prepared
        life = resumed(member).end()
        assert life.of("refused") == [True]
        assert life.of("token") == []
        assert log.pending() == []
        assert position(log) is None
