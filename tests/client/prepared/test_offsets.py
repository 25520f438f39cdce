"""Consumer offsets in a staged transaction: each record has one result.

Until the decision, the offset is neither committed nor free. A member that starts waits for it, as
it does for an inline transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import eoslog
from eoslog import Consumer, Log, Outcome, Producer, TopicPartition, errors
from eoslog.client.consumer import blocked_partitions
from eoslog.engine.inline_limit import InlineLimit
from eoslog.storage.fs import files
from tests.client.prepared.helpers import await_stop, committed, created, resumed, stopped
from tests.faults.harness import Child, live, start
from tests.waiting import until

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


def test_lag_and_description_count_it_before_its_records_are_delivered(log: Log) -> None:
    log.reset_offsets("readers", {INPUT: 1})
    token = staged(log, 3, deliver_at=log._engine.clock_ms() + HOUR_MS)
    assert log.lag("readers") == {INPUT: 3}
    log.resolve(token, Outcome.COMMIT)
    assert log.lag("readers") == {INPUT: 1}
    assert log.describe_group("readers").offsets[INPUT].offset == 3


def test_a_group_whose_only_offset_is_staged_exists(log: Log) -> None:
    token = staged(log, 2, deliver_at=log._engine.clock_ms() + HOUR_MS)
    assert log.groups() == ["readers"]
    about = log.describe_group("readers")
    assert about.offsets == {}
    assert [one.token for one in about.blocked_by] == [token]
    log.resolve(token, Outcome.COMMIT)
    assert log.groups() == ["readers"]
    assert log.lag("readers") == {INPUT: 2}
    with pytest.raises(errors.PreparedTransactionPending, match="delivery"):
        log.delete_group("readers")


def test_a_group_that_had_members_is_not_deleted_before_its_staged_offset(log: Log) -> None:
    with log.consumer("paid", group_id="readers", enable_auto_commit=False) as consumer:
        consumer.poll(1)
    staged(log, 2)
    with pytest.raises(errors.PreparedTransactionPending, match="delivery"):
        log.delete_group("readers")
    assert log.groups() == ["readers"]


def test_a_group_whose_only_offset_was_aborted_does_not_exist(log: Log) -> None:
    log.resolve(staged(log, 2), Outcome.ABORT)
    assert log.groups() == []
    with pytest.raises(errors.GroupNotFound):
        log.describe_group("readers")
    with pytest.raises(errors.GroupNotFound):
        log.delete_group("readers")


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
        child.armed()
        try:
            staged(log, 4, name="other")
        except errors.PreparedTransactionPending as error:
            child.tell("refused", str(error))


def test_a_staged_transaction_takes_any_number_of_offsets_of_its_groups(log: Log) -> None:
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction(mode="staged")
    for offset in range(20):
        producer.send_offsets_to_transaction({INPUT: offset % 4 + 1}, "readers")
        producer.send_offsets_to_transaction({INPUT: 2}, "others")
    log.resolve(producer.prepare_transaction().token, Outcome.COMMIT)
    assert position(log) == 4


def test_offsets_of_too_many_groups_are_refused_before_the_prepare(log: Log) -> None:
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction(mode="staged")
    for number in range(40):  # in more than 6 of 50 partitions
        producer.send_offsets_to_transaction({INPUT: 1}, f"group {number}")
    with pytest.raises(errors.PolicyViolation, match="40 groups .* at most 6 are allowed"):
        producer.prepare_transaction()
    assert log.pending() == []
    producer.abort_transaction()
    with producer.transaction(mode="staged") as tx:  # a plain commit takes them all
        for number in range(40):
            tx.send_offsets({INPUT: 1}, f"group {number}")
    assert log.committed("group 39", [INPUT])[INPUT].offset == 1


def test_offsets_of_groups_in_six_partitions_are_prepared_together(log: Log) -> None:
    names = (f"group {number}" for number in range(100))
    groups = {log._engine.group_partition(name).partition: name for name in names}
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction(mode="staged")
    for name in [*groups.values()][:6]:
        producer.send_offsets_to_transaction({INPUT: 1}, name)
    log.resolve(producer.prepare_transaction().token, Outcome.COMMIT)
    assert all(log.committed(name, [INPUT]) for name in [*groups.values()][:6])


def test_a_delivery_commits_metadata_that_has_become_too_long(log: Log) -> None:
    offset = eoslog.OffsetAndMetadata(2, metadata="m" * 200)
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction(mode="staged")
    producer.send_offsets_to_transaction({INPUT: offset}, "readers")
    token = producer.prepare_transaction().token
    log.close()
    with eoslog.open(log.path, offset_metadata_max_bytes=100) as again:
        again.resolve(token, Outcome.COMMIT)
        assert again.pending() == []
        assert position(again) == 2


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


def prepared_by(producer: Producer, consumer: Consumer) -> str:
    """Prepare a staged transaction with the position after two records."""
    with producer.transaction(mode="staged") as tx:
        assert len(consumer.consume(2, timeout=60)) == 2
        tx.commit_offsets(consumer)
        return producer.prepare_transaction().token


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    with log.producer(transactional_id="till") as made:
        made.init_transactions()
        yield made


@pytest.fixture
def consumer(log: Log) -> Iterator[Consumer]:
    with reader(log) as made:
        yield made


def test_an_abort_that_another_producer_notices_fails_the_later_one(
    log: Log, producer: Producer, consumer: Consumer
) -> None:
    token = prepared_by(producer, consumer)
    with log.producer(transactional_id="other") as other:
        other.init_transactions()
        with pytest.raises(errors.CommitFailed, match=token), producer.transaction() as tx:
            assert len(consumer.consume(2, timeout=60)) == 2
            tx.commit_offsets(consumer)
            log.resolve(token, Outcome.ABORT)
            with other.transaction() as unrelated:
                unrelated.produce("paid", b"other", partition=0)
    with producer.transaction() as tx:
        assert len(consumer.consume(4, timeout=60)) == 4
        tx.commit_offsets(consumer)
    assert position(log) == 4


@pytest.mark.parametrize("mode", ["inline", "staged"])
def test_offsets_sent_by_hand_do_not_skip_the_records_of_an_aborted_one(
    log: Log, producer: Producer, consumer: Consumer, mode: str
) -> None:
    token = prepared_by(producer, consumer)
    log.resolve(token, Outcome.ABORT)
    producer.begin_transaction(mode=mode)
    assert len(consumer.consume(2, timeout=60)) == 2
    producer.send_offsets_to_transaction({INPUT: 4}, consumer)
    with pytest.raises(errors.CommitFailed, match=token):
        producer.commit_transaction()
    producer.abort_transaction()
    consumer.seek(TopicPartition("orders", 0, 0))
    producer.begin_transaction(mode=mode)
    assert len(consumer.consume(4, timeout=60)) == 4
    producer.send_offsets_to_transaction({INPUT: 4}, consumer)
    producer.commit_transaction()
    assert position(log) == 4


@pytest.mark.parametrize("mode", ["inline", "staged"])
def test_a_later_transaction_is_not_prepared_before_the_decision(
    log: Log, producer: Producer, consumer: Consumer, mode: str
) -> None:
    token = prepared_by(producer, consumer)
    producer.begin_transaction(mode=mode)
    assert len(consumer.consume(2, timeout=60)) == 2
    producer.send_offsets_to_transaction({INPUT: 4}, consumer)
    with pytest.raises(errors.PreparedTransactionPending, match=token):
        producer.prepare_transaction()
    producer.abort_transaction()
    assert [one.token for one in log.pending()] == [token]


@pytest.mark.parametrize("error", [errors.CorruptRecord("damaged"), KeyboardInterrupt()])
def test_a_commit_that_cannot_read_an_earlier_outcome_can_be_aborted(
    log: Log,
    producer: Producer,
    consumer: Consumer,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = prepared_by(producer, consumer)

    def unreadable(token: str) -> Any:
        raise error

    producer.begin_transaction()
    assert len(consumer.consume(2, timeout=60)) == 2
    producer.send_offsets_to_transaction({INPUT: 4}, consumer)
    log.resolve(token, Outcome.ABORT)
    monkeypatch.setattr(log._engine.transactions.prepared, "outcome", unreadable)
    with pytest.raises((errors.TransactionAbortable, KeyboardInterrupt)):
        producer.commit_transaction()
    monkeypatch.undo()
    producer.abort_transaction()
    consumer.rewind()
    with producer.transaction() as tx:
        assert len(consumer.consume(4, timeout=60)) == 4
        tx.commit_offsets(consumer)
    assert position(log) == 4


def test_the_last_offset_of_a_partition_counts_before_its_delivery_too(
    log: Log, producer: Producer
) -> None:
    later = log._engine.clock_ms() + HOUR_MS
    with producer.transaction(mode="staged") as tx:
        tx.send_offsets({INPUT: 4}, "readers")
        tx.send_offsets({INPUT: 2}, "readers")
        token = producer.prepare_transaction(deliver_at=later).token
    log.resolve(token, Outcome.COMMIT)
    assert position(log) == 2
    log._engine.clock_ms = lambda: later + 1  # type: ignore[method-assign]
    assert log._engine.transactions.prepared.deliver(token)
    assert position(log) == 2


@pytest.mark.parametrize("call", ["held_offsets", "resolve_blockers"])
def test_a_look_ends_while_other_groups_commit_all_the_time(
    log: Log, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(log, 2)
    wanted = INPUT if call == "resolve_blockers" else TopicPartition("paid", 0)
    transactions, groups = log._engine.transactions, log._engine.groups
    original, looks = getattr(transactions, call), 0

    def busy(argument: Any) -> Any:
        nonlocal looks
        looks += 1
        assert looks < 10
        groups.commit_offsets("readers", "", -1, {TopicPartition("paid", 1): offset_of(looks)})
        return original(argument)

    monkeypatch.setattr(transactions, call, busy)
    if wanted is INPUT:
        assert undecided(log)
    else:
        assert groups.fetch_offsets("readers", [wanted], timeout=0.0) == {}
    assert looks > 0


def offset_of(offset: int) -> eoslog.OffsetAndMetadata:
    return eoslog.OffsetAndMetadata(offset)


def test_a_token_that_was_committed_before_the_second_check_is_returned(
    log: Log, producer: Producer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = log._engine.transactions.prepared
    stage = prepared.stage

    def decided(*about: Any) -> Any:
        found = stage(*about)
        log.resolve(found[0], Outcome.COMMIT)
        (member,) = log.describe_group("readers").members
        log._engine.groups.leave("readers", member.member_id)
        return found

    monkeypatch.setattr(prepared, "stage", decided)
    token = prepared_by(producer, consumer)
    assert prepared.outcome(token) is Outcome.COMMIT
    assert producer.transaction_state == "READY"
    assert position(log) == 2


def test_a_producer_continues_after_an_abort_that_came_too_late(
    log: Log, producer: Producer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = log._engine.transactions.prepared
    stage = prepared.stage

    def decided(*about: Any) -> Any:
        log.resolve(stage(*about)[0], Outcome.COMMIT)
        raise errors.RequestTimedOut("late")

    monkeypatch.setattr(prepared, "stage", decided)
    producer.begin_transaction(mode="staged")
    assert len(consumer.consume(2, timeout=60)) == 2
    producer.send_offsets_to_transaction({INPUT: 2}, consumer)
    with pytest.raises(errors.RequestTimedOut):
        producer.prepare_transaction(timeout=0.1)
    with pytest.raises(errors.OutcomeConflict):
        producer.abort_transaction()
    monkeypatch.undo()
    with producer.transaction() as tx:
        assert [one.value for one in consumer.consume(2, timeout=60)] == [b"2", b"3"]
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


def recreated(log: Log) -> None:
    """Give the name of the input to a new topic with four records."""
    log.delete_topic("orders")
    log.create_topic("orders")
    filled(log)


@pytest.mark.parametrize("mode", ["inline", "staged"])
@pytest.mark.parametrize("outcome", Outcome)
def test_a_staged_offset_of_a_deleted_topic_refuses_none_of_the_new_topic(
    log: Log, producer: Producer, mode: str, outcome: Outcome
) -> None:
    """Plain numbers count in the topic that has the name when they are sent."""
    with producer.transaction(mode="staged") as tx:
        tx.send_offsets({INPUT: 2}, "readers")
        token = producer.prepare_transaction().token
    recreated(log)
    if outcome is not Outcome.UNKNOWN:
        log.resolve(token, outcome)
    with producer.transaction(mode=mode) as tx:
        tx.send_offsets({INPUT: 1}, "readers")
    assert position(log) == 1
    if outcome is Outcome.UNKNOWN:
        log.resolve(token, Outcome.COMMIT)
        assert position(log) == 1


@pytest.mark.parametrize("mode", ["inline", "staged"])
def test_a_reader_of_the_new_topic_does_not_wait_for_the_deleted_one(
    log: Log, producer: Producer, mode: str
) -> None:
    with reader(log) as old:
        token = prepared_by(producer, old)
    recreated(log)
    with reader(log) as consumer, producer.transaction(mode=mode) as tx:
        assert len(consumer.consume(3, timeout=60)) == 3
        tx.commit_offsets(consumer)
    assert position(log) == 3
    log.resolve(token, Outcome.ABORT)
    assert position(log) == 3


def test_an_undecided_offset_of_the_new_topic_still_refuses_later_ones(
    log: Log, producer: Producer
) -> None:
    for _ in range(2):
        with producer.transaction(mode="staged") as tx:
            tx.send_offsets({INPUT: 2}, "readers")
            token = producer.prepare_transaction().token
        with (
            pytest.raises(errors.PreparedTransactionPending, match=token),
            producer.transaction() as tx,
        ):
            tx.send_offsets({INPUT: 4}, "readers")
        recreated(log)
    assert position(log) is None


def test_a_staged_commit_of_offsets_of_a_deleted_topic_is_refused(
    log: Log, producer: Producer
) -> None:
    with pytest.raises(errors.TransactionAbortable), producer.transaction(mode="staged") as tx:
        tx.send_offsets({INPUT: 2}, "readers")
        recreated(log)
    assert position(log) is None


def test_a_staged_commit_of_a_deleted_topic_is_none_of_the_new_topic(
    log: Log, producer: Producer
) -> None:
    """An abort rewinds the reader, although both topics have the same offset."""
    with reader(log) as old:
        token = prepared_by(producer, old)
    recreated(log)
    log.resolve(token, Outcome.COMMIT)
    with reader(log) as consumer:
        assert len(consumer.consume(1, timeout=60)) == 1
        producer.begin_transaction()  # notices the commit
        assert len(consumer.consume(1, timeout=60)) == 1
        producer.abort_transaction()
        with pytest.raises(errors.CommitFailed), producer.transaction() as tx:
            tx.commit_offsets(consumer)
        with producer.transaction() as tx:
            assert [one.value for one in consumer.consume(2, timeout=60)] == [b"0", b"1"]
            tx.commit_offsets(consumer)
    assert position(log) == 2


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


@pytest.mark.process
def test_two_processes_do_not_prepare_an_offset_at_the_same_time(log: Log) -> None:
    late = stopped(staging, log.path, "stage.payload_durable")
    first = staged(log, 2)
    (message,) = resumed(late).end().fine().of("refused")
    assert first in message
    assert [one.token for one in log.pending()] == [first]


def test_a_resolver_commits_no_token_of_a_member_that_was_replaced(
    log: Log, producer: Producer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member is suspended before its token is written, and after that."""
    prepared = log._engine.transactions.prepared
    stage = prepared.stage

    def replaced(*about: Any) -> Any:
        *mine, check = about

        def checked() -> Any:
            found = check()
            (member,) = log.describe_group("readers").members
            log._engine.groups.leave("readers", member.member_id)
            with reader(log) as successor:
                assert len(successor.consume(4, timeout=60)) == 4
            return found

        found = stage(*mine, checked)
        log.resolve(found[0], Outcome.COMMIT)
        return found

    monkeypatch.setattr(prepared, "stage", replaced)
    with pytest.raises(errors.CommitFailed):
        prepared_by(producer, consumer)
    assert log.pending() == []
    assert position(log) is None


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
    log: Log, outcome: Outcome, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_partitions, "_AFTER_S", 0.1)
    late = start(stopping_in_the_append, log.path)
    with contextlib.ExitStack() as stack:
        stack.callback(late.kill)  # also if an assertion fails: it holds a lock
        await_stop(late)
        (member,) = log.describe_group("readers").members
        log._engine.groups.remove_members("readers", [member.member_id])
        successor = stack.enter_context(reader(log))
        until(lambda: successor.consume(4, timeout=0.2) == [] and "no records for" in caplog.text)
        assert successor.assignment() == [INPUT]
        (said,) = [r.getMessage() for r in caplog.records if "no records for" in r.getMessage()]
        assert "waiting for the committed offset of group 'readers': the append lock of " in said
        assert f"kill -CONT {late.pid}" in said
        assert log.committed("readers") == {}, "only a member waits"
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
