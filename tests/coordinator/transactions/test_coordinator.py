"""The coordinator's requests: life of a transaction, fencing, retries, recovery."""

from __future__ import annotations

from typing import Any

import pytest

from eoslog import errors
from eoslog.descriptions import TransactionOutcome
from eoslog.errors import ErrorCode
from eoslog.model import TopicPartition
from tests.coordinator.world import A0, A1, B0, World, Writer


def test_a_committed_transaction_is_visible_everywhere_and_bumps_the_epoch(
    any_world: World,
) -> None:
    writer = Writer(any_world, "t")
    assert (writer.epoch, writer.outcome) == (0, None)
    writer.write(A0, b"1", b"2")
    writer.write(B0, b"3")
    writer.write(A0, b"4")
    assert any_world.values(A0) == []
    assert writer.commit() == (writer.producer_id, 1)
    assert any_world.values(A0) == [b"1", b"2", b"4"]
    assert any_world.values(B0) == [b"3"]
    assert any_world.log(A0).markers() == [(writer.producer_id, 1, True)]
    assert any_world.state("t") == "CompleteCommit"


def test_an_aborted_transaction_is_visible_nowhere(any_world: World) -> None:
    writer = Writer(any_world, "t")
    writer.write(A0, b"1")
    assert writer.abort()[1] == 1
    writer.write(A0, b"2")
    writer.commit()
    assert any_world.values(A0) == [b"2"]
    assert any_world.values(A0, "read_uncommitted") == [b"1", b"2"]


def test_a_second_instance_fences_and_aborts_the_first(world: World) -> None:
    first = Writer(world, "t")
    first.write(A0, b"1")
    second = Writer(world, "t")
    assert (second.producer_id, second.epoch) == (first.producer_id, 2)  # fence + init
    assert second.outcome is not None and not second.outcome.committed
    assert second.outcome.producer_epoch == 0
    with pytest.raises(errors.ProducerFenced):
        first.commit()
    with pytest.raises(errors.ProducerFenced):
        first.write(A1, b"2")
    with pytest.raises(errors.InvalidProducerEpoch):
        first.append(A0, b"2")
    with pytest.raises(errors.ProducerFenced):
        world.coordinator.add_offsets_to_txn(*first.identity, "g")
    second.write(A0, b"3")
    second.commit()
    assert world.values(A0) == [b"3"]


def test_an_instance_that_begins_a_transaction_after_init_bumped_is_fenced(world: World) -> None:
    first = Writer(world, "t")
    Writer(world, "t")
    with pytest.raises(errors.ProducerFenced):
        first.write(A0, b"1")
    assert world.values(A0, "read_uncommitted") == []


def test_the_next_instance_learns_that_the_last_transaction_was_committed(world: World) -> None:
    first = Writer(world, "t")
    first.write(A0, b"1")
    first.commit()
    assert Writer(world, "t").outcome == TransactionOutcome("t", first.producer_id, 0, True)
    # and so does one after an instance that did nothing
    assert Writer(world, "t").outcome == TransactionOutcome("t", first.producer_id, 0, True)


def test_a_producer_without_a_transactional_id_gets_a_new_id_each_time(world: World) -> None:
    one, two = (world.coordinator.init_producer_id(None) for _ in range(2))
    assert one.producer_id != two.producer_id
    assert one.producer_epoch == two.producer_epoch == 0


@pytest.mark.parametrize(
    ("name", "timeout_ms", "producer_id", "epoch", "code"),
    [
        ("", 1000, -1, -1, ErrorCode.INVALID_REQUEST),
        ("x" * 32768, 1000, -1, -1, ErrorCode.INVALID_REQUEST),
        ("\ud800", 1000, -1, -1, ErrorCode.INVALID_REQUEST),
        ("__recovery-7", 1000, -1, -1, ErrorCode.INVALID_REQUEST),
        ("t", 1000, 5, -1, ErrorCode.INVALID_REQUEST),
        ("t", 1000, -1, 5, ErrorCode.INVALID_REQUEST),
        ("t", 0, -1, -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", -1, -1, -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_001, -1, -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_init_rejects_invalid_requests(
    world: World, name: str, timeout_ms: int, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(errors.KafkaError) as raised:
        world.coordinator.init_producer_id(name, timeout_ms, producer_id, epoch)
    assert raised.value.code is code


@pytest.mark.parametrize("name", ["x", "x" * 32767, "nul\0", "ä€😀"])
def test_init_accepts_every_valid_id(world: World, name: str) -> None:
    writer = Writer(world, name, timeout_ms=900_000)
    writer.write(A0, b"1")
    writer.commit()
    assert world.state(name) == "CompleteCommit"


def test_init_with_an_identity_bumps_once_and_answers_a_retry_alike(world: World) -> None:
    init = world.coordinator.init_producer_id
    first = init("t")
    bumped = init("t", 60_000, *first[:2])
    assert (bumped.producer_id, bumped.producer_epoch) == (first.producer_id, 1)
    again = init("t", 60_000, *first[:2])
    assert again[:2] == bumped[:2]
    assert init("t", 60_000, *bumped[:2]).producer_epoch == 2
    with pytest.raises(errors.ProducerFenced):
        init("t", 60_000, *first[:2])
    with pytest.raises(errors.ProducerFenced):
        init("t", 60_000, first.producer_id + 1, 2)


def test_init_with_an_identity_of_an_unknown_id_starts_at_epoch_0(world: World) -> None:
    found = world.coordinator.init_producer_id("t", 60_000, 777, 5)
    assert found.producer_epoch == 0
    assert found.producer_id != 777


def test_init_with_an_old_epoch_in_a_transaction_is_fenced_without_an_abort(
    world: World,
) -> None:
    writer = Writer(world, "t")
    world.coordinator.init_producer_id("t", 60_000, writer.producer_id, 0)
    writer.become(writer.producer_id, 1)
    writer.write(A0, b"1")
    with pytest.raises(errors.ProducerFenced):
        world.coordinator.init_producer_id("t", 60_000, writer.producer_id, 0)
    writer.commit()
    assert world.values(A0) == [b"1"]


def test_add_partitions_is_rejected_as_by_kafka(world: World) -> None:
    add = world.coordinator.add_partitions_to_txn
    writer = Writer(world, "t")
    with pytest.raises(errors.KafkaError) as raised:
        add("", writer.producer_id, 0, [A0])
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(errors.InvalidProducerIdMapping):
        add("other", writer.producer_id, 0, [A0])
    with pytest.raises(errors.InvalidProducerIdMapping):
        add("t", writer.producer_id + 1, 0, [A0])
    for epoch in (1, -1):
        with pytest.raises(errors.ProducerFenced):
            add("t", writer.producer_id, epoch, [A0])
    with pytest.raises(errors.UnknownTopicOrPartition):
        add("t", writer.producer_id, 0, [A0, TopicPartition("nowhere", 0)])
    assert world.state("t") == "Empty"


def test_adding_the_same_partition_again_writes_nothing(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    end = world.clog("t").log_end
    writer.write(A0, b"2")
    world.coordinator.add_partitions_to_txn(*writer.identity, [A0])
    assert world.clog("t").log_end == end


def test_the_first_append_fails_after_the_transaction_was_ended(world: World) -> None:
    """R03 of docs/contributing/regressions.md."""
    writer = Writer(world, "t")
    expect = [world.coordinator.add_partitions_to_txn(*writer.identity, [A0])]
    world.coordinator.abort_transaction("t")
    assert writer.append(A0, b"late", expect=expect) is None
    with pytest.raises(errors.ProducerFenced):
        writer.write(A0, b"late")
    assert world.values(A0, "read_uncommitted") == []


def test_a_retried_end_returns_the_same_answer(world: World) -> None:
    """R15 of docs/contributing/regressions.md."""
    for commit in (True, False):
        writer = Writer(world, f"t{commit}")
        before = writer.identity
        writer.write(A0, b"1")
        answer = writer.end(commit)
        assert world.coordinator.end_txn(*before, commit) == answer
        assert len(world.log(A0).markers()) == (1 if commit else 2)


def test_a_commit_retried_after_the_coordinator_aborted_is_fenced(world: World) -> None:
    """R12 of docs/contributing/regressions.md."""
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    assert world.coordinator.abort_transaction("t")
    with pytest.raises(errors.ProducerFenced):
        writer.commit()
    assert world.coordinator.end_txn(*writer.identity, False) == (writer.producer_id, 1)


def test_an_abort_without_a_transaction_bumps_the_epoch(world: World) -> None:
    writer = Writer(world, "t")
    assert writer.abort() == (writer.producer_id, 1)
    writer.write(A0, b"1")
    writer.commit()
    assert writer.abort() == (writer.producer_id, 3)
    with pytest.raises(errors.InvalidTxnState):
        writer.commit()


def test_a_commit_compares_the_claims_of_the_producer_with_the_log(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.spans[A0] = (0, 5)
    with pytest.raises(errors.InvalidTxnState, match="offsets 0 to 5"):
        writer.commit()
    writer.spans = {A0: (0, 0), B0: (0, 0)}
    with pytest.raises(errors.InvalidTxnState, match="b-0"):
        writer.commit()
    assert world.state("t") == "Ongoing"
    writer.spans = {A0: (0, 0)}
    writer.commit()


def test_a_commit_flushes_data_then_decision_but_no_marker(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    c = repr(world.clog("t"))
    world.directory.trail.clear()
    writer.commit()
    steps = [(what, where) for what, where, _ in world.directory.trail]
    assert sorted(steps[:2]) == [("flush", "a-0"), ("flush", "b-0")]
    assert steps[2:4] == [("append", c), ("flush", c)]
    assert sorted(steps[4:6]) == [("append", "a-0"), ("append", "b-0")]
    assert steps[6:] == [("append", c)]


def test_a_concurrent_append_makes_the_request_decide_again(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    _, other = world.open()
    world.clog("t").before_append = lambda: other.init_producer_id("t")
    with pytest.raises(errors.ProducerFenced):
        writer.commit()
    assert world.values(A0) == []


@pytest.mark.parametrize("written", [True, False])
def test_a_stale_driver_cannot_touch_the_next_transaction(world: World, written: bool) -> None:
    """The epoch also fences what the next transaction wrote.

    If it wrote nothing yet, only the coordinator's log shows it.
    """
    writer = Writer(world, "t")
    writer.write(A0, b"1")

    def go_on() -> None:
        _, other = world.open()
        other.abort_timed_out()  # another process drives n to its end
        log_end = world.log(A0).log_end
        other.drive(writer.producer_id, 0)
        assert world.log(A0).log_end == log_end
        follower = Writer.__new__(Writer)
        follower.world, follower.name, follower.coordinator = world, "t", other
        follower.become(writer.producer_id, 1)
        if written:
            follower.write(A0, b"2")

    # The driver stands before the partition's lock while all that happens.
    clog = world.clog("t")
    clog.before_append = lambda: setattr(
        world.log(A0), "before_append", lambda: _drive_and(go_on, world, writer)
    )
    writer.commit()
    assert world.values(A0) == [b"1"]
    assert [m[1:] for m in world.log(A0).markers()] == [(1, True)]


def _drive_and(then: object, world: World, writer: Writer) -> None:
    _, other = world.open()
    other.drive(writer.producer_id, 0)
    then()  # type: ignore[operator]


def test_a_partition_that_rejects_its_marker_does_not_block_others(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    world.log(A0).flush()
    world.log(A0).broken = errors.DiskFull("no space")
    producer_id, epoch = writer.commit()
    assert world.values(B0) == [b"2"]
    assert world.values(A0) == []
    assert world.state("t") == "PrepareCommit"
    with pytest.raises(errors.ConcurrentTransactions, match="no space"):
        writer.write(B0, b"3")
    with pytest.raises(errors.ConcurrentTransactions):
        world.coordinator.init_producer_id("t")
    world.log(A0).broken = None
    writer.write(B0, b"3")
    assert world.values(A0) == [b"1"]
    assert world.log(B0).markers() == [(producer_id, epoch, True)]
    writer.commit()


def test_a_failed_flush_of_a_decision_is_unknown_until_the_next_init(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.log(A0).flush()
    world.clog("t").faults["flush"] = errors.StorageError("input/output error")
    with pytest.raises(errors.CommitOutcomeUnknown):
        writer.commit()
    assert world.values(A0) == []
    follower = Writer(world, "t")
    assert follower.outcome is not None and follower.outcome.committed
    assert world.values(A0) == [b"1"]


def test_a_failed_append_of_a_decision_leaves_the_commit_open_for_a_retry(world: World) -> None:
    """R05 of docs/contributing/regressions.md."""
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.clog("t").faults["append"] = errors.DiskFull("no space")
    with pytest.raises(errors.DiskFull):
        writer.commit()
    assert world.state("t") == "Ongoing"
    writer.commit()
    assert world.values(A0) == [b"1"]


def test_init_that_cannot_write_uses_up_no_epoch(world: World) -> None:
    """R08 of docs/contributing/regressions.md."""
    Writer(world, "t")
    for _ in range(50):
        world.clog("t").faults["append"] = errors.DiskFull("no space")
        with pytest.raises(errors.DiskFull):
            world.coordinator.init_producer_id("t")
    assert world.coordinator.init_producer_id("t").producer_epoch == 1


def test_a_deleted_topic_needs_no_marker(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    del writer.spans[B0]
    world.directory.delete("b")
    world.directory.trail.append(("", "", None))
    world.directory.create("b")
    writer.commit()
    assert world.values(A0) == [b"1"]
    assert world.state("t") == "CompleteCommit"


def test_offsets_are_added_to_the_partition_of_the_group(world: World) -> None:
    writer = Writer(world, "t")
    log, end = world.coordinator.add_offsets_to_txn(*writer.identity, "g")
    assert end == log.log_end
    group = world.process.group_partition("g")
    described = world.coordinator.describe_transactions(["t"])[0]
    assert list(described.partitions) == [TopicPartition(group.topic, group.partition)]
    again = world.coordinator.add_offsets_to_txn(*writer.identity, "g")
    assert again == (log, end)
    _, later = world.coordinator.add_offsets_to_txn(*writer.identity, "g", {A0, B0})
    assert later == end + 1 == log.log_end
    assert {A0, B0} < set(world.coordinator.describe_transactions(["t"])[0].partitions)
    with pytest.raises(errors.KafkaError) as raised:
        world.coordinator.add_offsets_to_txn(*writer.identity, "")
    assert raised.value.code is ErrorCode.INVALID_GROUP_ID


def test_verification_reports_whether_a_partition_is_in_the_transaction(world: World) -> None:
    verify = world.coordinator.verify_partition_in_txn
    writer = Writer(world, "t")
    with pytest.raises(errors.TransactionAbortable):
        verify(*writer.identity, A0)
    writer.write(A0, b"1")
    assert verify(*writer.identity, A0)[1] == world.clog("t").log_end
    with pytest.raises(errors.TransactionAbortable):
        verify(*writer.identity, B0)
    with pytest.raises(errors.InvalidProducerIdMapping):
        verify("t", 99, 0, A0)
    with pytest.raises(errors.ProducerFenced):
        verify("t", writer.producer_id, 7, A0)


def test_describe_and_list_report_every_transaction(world: World) -> None:
    writer = Writer(world, "t1")
    Writer(world, "t2")
    writer.write(A1, b"1")
    world.directory.now_ms += 5000
    found = world.coordinator.describe_transactions(["t1"])[0]
    assert (found.state, found.producer_id, list(found.partitions)) == (
        "Ongoing",
        writer.producer_id,
        [A1],
    )
    with pytest.raises(errors.TransactionalIdNotFound):
        world.coordinator.describe_transactions(["nobody"])
    with pytest.raises(errors.KafkaError):
        world.coordinator.describe_transactions([""])
    names = lambda **kw: {d.transactional_id for d in world.coordinator.list_transactions(**kw)}
    assert names() == {"t1", "t2"}
    assert names(states=["Ongoing"]) == {"t1"}
    assert names(states=["Nonsense"]) == set()
    assert names(producer_ids=[writer.producer_id]) == {"t1"}
    assert names(duration_ms=1000) == {"t1"}
    assert names(duration_ms=9000) == set()
    assert names(id_pattern="t[23]") == {"t2"}
    with pytest.raises(errors.KafkaError):
        names(id_pattern="(")


def test_find_coordinator_names_the_partition(world: World) -> None:
    found = world.coordinator.find_coordinator("my-txn")
    assert (found.topic, found.partition) == ("__transaction_state", 1061187895 % 4)
    assert world.coordinator.find_coordinator("g", "group").topic == "__consumer_offsets"
    for key, kind in (("", "transaction"), ("x", "share")):
        with pytest.raises(errors.KafkaError) as raised:
            world.coordinator.find_coordinator(key, kind)
        assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_a_locked_partition_gets_its_marker_after_the_others(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    for tp in (A0, B0):
        world.log(tp).flush()
    world.log(A0).faults["append"] = errors.LockTimeout("held by process 7")
    world.directory.trail.clear()
    writer.commit()
    assert world.state("t") == "CompleteCommit"
    markers = [where for what, where, b in world.directory.trail if what == "append" and b.control]
    assert markers == ["b-0", "a-0"]


def test_a_decided_commit_succeeds_although_its_driver_fails(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.log(A0).flush()
    log = world.log(A0)
    log.before_append = lambda: setattr(log, "broken", errors.LogPoisoned("poisoned"))
    assert writer.commit() == (writer.producer_id, 1)
    log.broken = None
    assert Writer(world, "t").outcome == TransactionOutcome("t", writer.producer_id, 0, True)
    assert world.values(A0) == [b"1"]


@pytest.mark.parametrize("name", ["", "__recovery-7"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda c, name: c.end_txn(name, 1, 0, True),
        lambda c, name: c.verify_partition_in_txn(name, 1, 0, A0),
        lambda c, name: c.abort_transaction(name),
        lambda c, name: c.add_partitions_to_txn(name, 1, 0, [A0]),
    ],
    ids=["end", "verify", "abort", "add"],
)
def test_every_request_rejects_an_impossible_id(world: World, ask: Any, name: str) -> None:
    with pytest.raises(errors.KafkaError) as raised:
        ask(world.coordinator, name)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_describe_rejects_an_impossible_id(world: World) -> None:
    with pytest.raises(errors.KafkaError) as raised:
        world.coordinator.describe_transactions([""])
    assert raised.value.code is ErrorCode.INVALID_REQUEST
