"""Recovery after power losses, dead owners, timeouts and expiry."""

from __future__ import annotations

import pytest

from eoslog import errors
from eoslog._core import build_batch
from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.coordinator.transactions.records import encode_key
from eoslog.coordinator.transactions.state import TransactionMetadata, TransactionState
from eoslog.model import AppendOrigin, TopicPartition
from tests.coordinator.world import A0, A1, B0, World, Writer

C_TOPIC = "__transaction_state"


def put(world: World, metadata: TransactionMetadata) -> None:
    """A record in C as if it had always been there."""
    from eoslog._core import build_batch, transaction_value

    row = (0, encode_key(metadata.transactional_id), transaction_value(metadata), ())
    log = world.clog(metadata.transactional_id)
    log.append(build_batch([row]), origin=AppendOrigin.COORDINATOR)
    log.flush()


# -- power cuts


def test_no_marker_is_written_for_a_prepare_that_is_not_durable(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    c = world.clog("t")
    for tp in (A0, B0):
        world.log(tp).flush()
    c.flush()
    c.faults["flush"] = errors.StorageError("lost")
    with pytest.raises(errors.CommitOutcomeUnknown):
        writer.commit()
    # Readers of another process come while the decision is published, not durable, and stays so.
    _, other = world.open()
    c.broken = errors.LogPoisoned("poisoned")
    for tp in (A0, B0):
        with pytest.raises(errors.LogPoisoned):
            other.resolver.resolve_blockers(world.log(tp), grace_s=0.0)
        assert world.log(tp).markers() == []
    # The power goes, every P was written back, PREPARE was not: aborted everywhere.
    world.crash(a0=99, b0=99)
    assert world.values(A0) == world.values(B0) == []
    assert [m[2] for m in world.log(A0).markers()] == [False]
    assert [m[2] for m in world.log(B0).markers()] == [False]


def test_a_committed_transaction_survives_lost_markers_after_the_next(world: World) -> None:
    """R07 of docs/contributing/regressions.md."""
    writer = Writer(world, "t")
    writer.write(A0, b"n")
    writer.write(A1, b"n")
    writer.commit()
    writer.write(B0, b"n+1")
    writer.commit()
    for tp in (A0, A1):
        assert world.log(tp).durable_end == 1, "the marker is in the page cache only"
    world.crash()
    assert [world.values(tp) for tp in (A0, A1, B0)] == [[b"n"], [b"n"], [b"n+1"]]
    # A second, immediate power loss, with everything half written, changes nothing.
    world.crash()
    assert [world.values(tp) for tp in (A0, A1, B0)] == [[b"n"], [b"n"], [b"n+1"]]


def test_an_epoch_is_durable_before_its_first_batch(world: World) -> None:
    for _ in range(3):
        found = world.coordinator.init_producer_id("t")
        world.crash()
        again = world.coordinator.init_producer_id("t")
        assert (again.producer_id, again.producer_epoch) == (
            found.producer_id,
            found.producer_epoch + 1,
        )
    ids = {world.coordinator.init_producer_id(None).producer_id for _ in range(3)}
    world.crash()
    assert world.coordinator.init_producer_id(None).producer_id not in ids


def test_the_answer_to_a_commit_holds_after_a_power_loss(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    identity = writer.identity
    answer = writer.commit()
    world.crash()
    assert world.coordinator.end_txn(*identity, True) == answer
    assert world.values(A0) == [b"1"]


def test_a_transaction_whose_ongoing_record_was_lost_is_aborted_under_its_id(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.log(A0).flush()
    world.crash()
    assert world.values(A0) == []
    assert world.log(A0).markers() == [(writer.producer_id, 1, False)]
    follower = Writer(world, "t")
    assert (follower.producer_id, follower.epoch) == (writer.producer_id, 2)
    with pytest.raises(errors.ProducerFenced):
        world.coordinator.end_txn(*writer.identity, True)


def test_the_next_transaction_is_aborted_if_its_ongoing_record_was_lost(
    world: World,
) -> None:
    """The coordinator's log ends with PREPARE_COMMIT of the previous transaction.

    That transaction is completed, then the open one is ended.
    """
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.commit()
    writer.write(A0, b"2")
    writer.write(B0, b"3")
    for tp in (A0, B0):
        world.log(tp).flush()  # the data of the second is durable, its Ongoing is not
    world.crash()
    assert world.values(A0) == [b"1"]
    assert world.values(B0) == []
    assert world.log(A0).open_transactions() == world.log(B0).open_transactions() == []


def test_an_abort_reaches_partitions_whose_registration_was_lost(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.clog("t").flush()  # Ongoing{A0} is durable, Ongoing{A0, B0} is not
    writer.write(B0, b"2")
    world.log(A0).flush()
    world.log(B0).flush()
    world.crash()
    for tp in (A0, B0):
        assert world.log(tp).markers() == [(writer.producer_id, 1, False)]
        assert world.log(tp).stable_end == world.log(tp).log_end


def test_open_data_without_an_id_is_aborted_under_a_reserved_id(world: World) -> None:
    writer = Writer(world, "t")
    for tp in (A0, B0):
        writer.write(tp, b"1")
        world.log(tp).flush()
    world.clog("t").replay(0)  # C is gone, init record and all
    coordinator = world.crash()
    for tp in (A0, B0):
        assert world.log(tp).markers() == [(writer.producer_id, 1, False)]
    found = coordinator.describe_transactions()
    assert [d.transactional_id for d in found] == [f"__recovery-{writer.producer_id}"]
    assert found[0].state == "CompleteAbort"
    assert coordinator.expire() == 1
    assert coordinator.describe_transactions() == []


def test_a_commit_over_lost_data_is_rejected_as_corruption(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2", b"3")
    c = world.clog("t")
    c.faults["flush"] = errors.StorageError("later")
    with pytest.raises(errors.CommitOutcomeUnknown):
        writer.commit()
    c.flush()
    world.log(B0).replay(0)  # a copy made at the wrong moment
    _, other = world.open()
    assert not other.drive(writer.producer_id, 0)
    assert world.values(A0) == [b"1"]
    assert world.log(B0).markers() == []
    with pytest.raises(errors.ConcurrentTransactions, match="offsets up to 1"):
        other.init_producer_id("t")


# -- owners, timeouts, operators


def test_only_the_transaction_of_a_dead_owner_is_due_immediately(world: World) -> None:
    process, coordinator = world.open()
    writer = Writer(world, "t", coordinator)
    writer.write(A0, b"1")
    world.log(A0).flush()
    assert world.coordinator.resolve_blockers(world.log(A0)) == 0
    assert world.coordinator.abort_timed_out() == 0
    process.kill()
    assert world.coordinator.resolve_blockers(world.log(A0)) == 1
    assert world.log(A0).stable_end == world.log(A0).log_end
    with pytest.raises(errors.ProducerFenced):
        writer.commit()


def test_the_owner_of_a_transaction_is_the_process_that_called_init(world: World) -> None:
    helper, helping = world.open()
    writer = Writer(world, "t")
    hand = Writer.__new__(Writer)
    hand.world, hand.name, hand.coordinator = world, "t", helping
    hand.become(writer.producer_id, writer.epoch)
    hand.write(A0, b"1")
    helper.kill()
    assert world.coordinator.abort_timed_out() == 0
    writer.spans = hand.spans
    writer.commit()
    assert world.values(A0) == [b"1"]


def test_the_sweep_aborts_a_transaction_that_takes_too_long(world: World) -> None:
    now = [100.0]
    writer = Writer(world, "t", timeout_ms=5000)
    clog = world.coordinator.logs.of("t")
    clog._clock = lambda: now[0]
    writer.write(A0, b"1")
    clog.refresh()
    world.directory.now_ms += 10**9  # a wall clock that jumps makes nothing due
    now[0] += 4.9
    assert world.coordinator.abort_timed_out() == 0
    now[0] += 0.2
    assert world.coordinator.abort_timed_out() == 1
    assert world.log(A0).markers() == [(writer.producer_id, 1, False)]
    with pytest.raises(errors.ProducerFenced):
        writer.write(A0, b"2")
    with pytest.raises(errors.InvalidProducerEpoch):
        writer.append(A0, b"2")
    with pytest.raises(errors.ProducerFenced):
        writer.commit()
    # and it may continue from there: the retried abort returns the new epoch
    assert world.coordinator.end_txn(*writer.identity, False) == (writer.producer_id, 1)


def test_the_timeout_of_each_transaction_starts_at_its_first_partition(world: World) -> None:
    now = [0.0]
    writer = Writer(world, "t", timeout_ms=5000)
    world.coordinator.logs.of("t")._clock = lambda: now[0]
    for _ in range(3):
        now[0] += 4.0
        writer.write(A0, b"1")
        world.coordinator.logs.of("t").refresh()
        now[0] += 4.0
        assert world.coordinator.abort_timed_out() == 0
        writer.commit()


def test_the_sweep_completes_decided_transactions_and_skips_failures(world: World) -> None:
    stuck, free = Writer(world, "stuck"), Writer(world, "free")
    stuck.write(A0, b"1")
    world.log(A0).flush()
    world.log(A0).broken = errors.DiskFull("no space")
    stuck.commit()
    free.write(B0, b"2")
    world.process.kill()
    _, coordinator = world.open()
    assert coordinator.abort_timed_out() == 1
    assert world.log(B0).stable_end == world.log(B0).log_end
    assert world.state("stuck") == "PrepareCommit"
    world.log(A0).broken = None
    coordinator.resolver.resolve_blockers(world.log(A0), grace_s=0.0)
    assert world.state("stuck") == "CompleteCommit"


def test_a_recent_decision_is_left_to_its_own_driver(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.log(A0).flush()
    world.log(A0).broken = errors.DiskFull("no space")
    writer.commit()
    world.log(A0).broken = None
    now = [0.0]
    _, other = world.open()
    for clog in other.logs.all():
        clog._clock = lambda: now[0]
        clog._times.decided = dict.fromkeys(clog._times.decided, 0.0)
    assert other.resolve_blockers(world.log(A0)) == 0
    now[0] = 0.06
    assert other.resolve_blockers(world.log(A0)) == 1
    assert world.values(A0) == [b"1"]


def test_the_transaction_of_a_dead_decider_is_completed_without_delay(world: World) -> None:
    process, coordinator = world.open()
    writer = Writer(world, "t", coordinator)
    writer.write(A0, b"1")
    world.log(A0).flush()
    world.log(A0).broken = errors.DiskFull("no space")
    writer.commit()
    world.log(A0).broken = None
    process.kill()
    assert world.coordinator.resolve_blockers(world.log(A0)) == 1
    assert world.values(A0) == [b"1"]


def test_an_operator_can_abort_only_an_open_transaction(world: World) -> None:
    writer = Writer(world, "t")
    assert not world.coordinator.abort_transaction("t")
    writer.write(A0, b"1")
    assert world.coordinator.abort_transaction("t")
    assert not world.coordinator.abort_transaction("t")
    with pytest.raises(errors.TransactionalIdNotFound):
        world.coordinator.abort_transaction("nobody")
    with pytest.raises(errors.ProducerFenced):
        writer.commit()


def test_markers_written_by_an_operator_follow_the_decision(world: World) -> None:
    from eoslog.coordinator.transactions.requests import TransactionMarker as Marker

    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.log(A0).flush()
    answer = lambda *a: world.coordinator.write_txn_markers([Marker(*a)])[0]  # noqa: E731
    nowhere = TopicPartition("nowhere", 0)
    found = answer(writer.producer_id, 0, True, [A0, B0, nowhere])
    assert isinstance(found[A0], errors.InvalidTxnState)  # no process decided to commit
    assert found[B0] is None  # nothing is open there
    assert isinstance(found[nowhere], errors.UnknownTopicOrPartition)
    assert answer(writer.producer_id, 0, False, [A0]) == {A0: None}
    assert world.values(A0) == []
    assert world.state("t") == "CompleteAbort"
    with pytest.raises(errors.ProducerFenced):
        writer.commit()


# -- epochs that run out


@pytest.mark.parametrize("commit", [True, False])
def test_the_producer_id_rotates_after_its_last_epoch(world: World, commit: bool) -> None:
    """R09 of docs/contributing/regressions.md."""
    put(world, TransactionMetadata("t", 500, 32765, 60_000, owner=(1, 1000)))
    writer = Writer(world, "t")
    assert writer.identity == ("t", 500, 32766)
    writer.write(A0, b"1")
    identity = writer.identity
    fresh = writer.end(commit)
    assert fresh[0] != 500
    assert fresh[1] == 0
    assert world.log(A0).markers() == [(500, 32767, commit)]
    assert world.coordinator.end_txn(*identity, commit) == fresh  # the lost answer
    world.crash()
    assert world.coordinator.end_txn(*identity, commit) == fresh
    with pytest.raises(errors.InvalidTxnState):
        world.coordinator.end_txn("t", *fresh, True)
    writer.write(B0, b"2")
    writer.commit()
    assert world.values(B0) == [b"2"]


def test_a_fence_at_the_last_epoch_rotates_the_id_at_its_own_init(world: World) -> None:
    put(world, TransactionMetadata("t", 500, 32766, 60_000, owner=(1, 1000)))
    old = Writer.__new__(Writer)
    old.world, old.name, old.coordinator = world, "t", world.coordinator
    old.become(500, 32766)
    old.write(A0, b"1")
    new = Writer(world, "t")
    assert new.epoch == 0
    assert new.producer_id != 500
    assert world.log(A0).markers() == [(500, 32767, False)]
    with pytest.raises(errors.KafkaError):
        old.commit()
    with pytest.raises(errors.KafkaError):
        old.write(A0, b"2")


def test_a_timeout_at_the_last_epoch_lets_the_producer_continue(world: World) -> None:
    """R09 of docs/contributing/regressions.md."""
    put(world, TransactionMetadata("t", 500, 32766, 60_000, owner=(9, 9)))
    put(
        world,
        TransactionMetadata(
            "t", 500, 32766, 60_000, TransactionState.ONGOING, frozenset({A0}), owner=(9, 9)
        ),
    )
    assert world.coordinator.abort_timed_out() == 1  # its owner is dead
    fresh = world.coordinator.end_txn("t", 500, 32766, False)
    assert fresh[1] == 0
    assert fresh[0] != 500


def test_init_with_an_identity_is_answered_alike_across_a_rotation(world: World) -> None:
    """R10 of docs/contributing/regressions.md."""
    init = world.coordinator.init_producer_id
    put(world, TransactionMetadata("t", 500, 32766, 60_000))
    fresh = init("t", 60_000, 500, 32766)
    assert fresh.producer_epoch == 0
    assert init("t", 60_000, 500, 32766)[:2] == fresh[:2]
    with pytest.raises(errors.ProducerFenced):
        init("t", 60_000, 500, 32765)


# -- expiry and what is kept


def test_inactive_ids_expire_and_ids_with_a_transaction_do_not(world: World) -> None:
    """R26 of docs/contributing/regressions.md."""
    idle, busy, done = (Writer(world, name) for name in ("idle", "busy", "done"))
    busy.write(A0, b"1")
    done.write(A1, b"1")
    done.commit()
    world.directory.now_ms += 604_800_001
    assert world.coordinator.expire() == 2
    _, fresh = world.open()
    assert [d.transactional_id for d in fresh.describe_transactions()] == ["busy"]
    for writer in (idle, done):
        with pytest.raises(errors.InvalidProducerIdMapping):
            writer.write(B0, b"2")
    busy.commit()
    again = Writer(world, "idle")
    assert again.producer_id != idle.producer_id


@pytest.mark.slow
def test_many_ids_expire_in_batches(world: World) -> None:
    """R23 of docs/contributing/regressions.md."""
    for i in range(2500):
        put(world, TransactionMetadata(f"id-{i}", i, 0, 1000, last_update_timestamp=0))
    assert world.coordinator.expire() == 2500
    tombstones = [b for b in world.clog("id-0").stored if b.records()[0][3] is None]
    assert 0 < len(tombstones) <= 3


def test_decisions_are_kept_until_their_markers_are_durable(world: World) -> None:
    """R16 of docs/contributing/regressions.md."""
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"1")
    prepare_at = world.clog("t").log_end
    writer.commit()
    partition = world.clog("t").partition
    assert world.coordinator.uncleanable_offset(partition) == prepare_at
    world.log(A0).flush()
    assert world.coordinator.uncleanable_offset(partition) == prepare_at
    world.log(B0).flush()
    assert world.coordinator.uncleanable_offset(partition) == world.clog("t").log_end
    assert list(world.coordinator.logs.decisions()) == []


def test_a_rewritten_marker_is_durable_before_its_decision_is_dropped(
    world: World,
) -> None:
    """The marker follows batches that other processes have appended and flushed.

    Only its writer has seen it there.
    """
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    prepare_at = world.clog("t").log_end
    writer.commit()
    world.clog("t").flush()
    recoverer = world.crash_unrecovered()
    other = world.open()[1]
    log, partition = world.log(A0), world.clog("t").partition
    assert log.log_end == 1  # the marker is lost
    log.append(build_batch([(0, None, b"another", ())]))
    log.flush()
    assert other.uncleanable_offset(partition) == prepare_at  # open yet
    recoverer.recover_partition(log)
    assert world.values(A0) == [b"1", b"another"]
    for process in (other, recoverer):
        assert process.uncleanable_offset(partition) == prepare_at
    log.flush()
    for process in (other, recoverer):
        assert process.uncleanable_offset(partition) == world.clog("t").log_end


def test_live_and_replayed_state_are_equal(world: World) -> None:
    """R29 of docs/contributing/regressions.md."""
    one, two = Writer(world, "one"), Writer(world, "two")
    one.write(A0, b"1")
    one.commit()
    one.write(A0, b"2")
    two.write(B0, b"3")
    two.abort()
    for live in world.coordinator.logs.all():
        replayed = TransactionLog(live.log)
        replayed.refresh()
        assert replayed._fold.table == live._fold.table
        assert replayed._fold.decisions == live._fold.decisions
        assert replayed._fold.ids == live._fold.ids


def test_the_next_transaction_never_writes_over_an_older_open_one(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.commit()
    # The marker is lost and no process has recovered the partition yet.
    world.log(A0).replay(1)
    writer.write(A0, b"2")
    assert world.values(A0) == [b"1"]
    writer.abort()
    assert world.values(A0) == [b"1"]
