"""Committed offsets: permission to commit, pending ones, stable reads, replay."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eoslog import _core
from eoslog.coordinator.groups.coordinator import GroupCoordinator
from eoslog.coordinator.groups.offset_records import (
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.coordinator.groups.state import GroupTable
from eoslog.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    InvalidProducerEpoch,
    KafkaError,
    StaleMemberEpoch,
    TransactionAbortable,
    UnknownMember,
    UnknownTopicOrPartition,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.format.serde import Writer
from tests.coordinator.fake_host import FakeDisk, FakeHost

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PID = 4000


@pytest.fixture
def host() -> FakeHost:
    disk = FakeDisk()
    disk.metadata.create("t", 4)
    disk.metadata.create("u", 1)
    return FakeHost(disk)


@pytest.fixture
def groups(host) -> GroupCoordinator:
    return GroupCoordinator(host)


def commit(groups, offsets, member="", epoch=-1, group="g", **options):
    groups.commit_offsets(group, member, epoch, at(offsets), **options)


def txn_commit(
    groups, offsets, member="", epoch=-1, *, group="g", pid=PID, pepoch=0, instance=None
):
    return groups.txn_offset_commit(group, "tx", pid, pepoch, member, epoch, instance, at(offsets))


def at(offsets):
    return {TopicPartition("t", p): OffsetAndMetadata(o) for p, o in offsets.items()}


def visible(groups, group="g", **options):
    found = groups.fetch_offsets(group, require_stable=False, **options)
    return {p.partition: o.offset for p, o in found.items()}


def replayed(host, group="g") -> GroupTable:
    table = GroupTable()
    for batch in host.group_partition(group).batches(0, 10**9):
        table.apply(batch)
    return table


def test_H08_an_unknown_group_accepts_commits_without_membership(host, groups):
    commit(groups, {0: 5, 1: 6})
    assert visible(groups) == {0: 5, 1: 6}
    assert host.group_partition("g").flushed == 2
    assert groups.describe_group("g").state == "Empty"
    assert GroupCoordinator(host).fetch_offsets("g", [T1]) == {T1: OffsetAndMetadata(6)}
    assert groups.fetch_offsets("other") == {}


def test_committed_offsets_keep_metadata_and_leader_epoch(groups):
    groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(5, 3, "note")})
    assert groups.fetch_offsets("g")[T0] == OffsetAndMetadata(5, 3, "note")


def test_offset_metadata_over_the_limit_fails_only_its_partition(groups):
    """R74 of docs/contributing/regressions.md."""
    with pytest.raises(KafkaError) as caught:
        groups.commit_offsets(
            "g", "", -1, {T0: OffsetAndMetadata(1, -1, "ü" * 4097), T1: OffsetAndMetadata(2)}
        )
    assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert visible(groups) == {1: 2}
    groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(1, -1, "ü" * 4096)})


def test_unknown_partitions_and_impossible_offsets_are_rejected(groups):
    """R64 of docs/contributing/regressions.md."""
    with pytest.raises(UnknownTopicOrPartition):
        commit(groups, {9: 1})
    with pytest.raises(UnknownTopicOrPartition):
        groups.commit_offsets("g", "", -1, {TopicPartition("nope"): OffsetAndMetadata(1)})
    with pytest.raises(KafkaError):
        commit(groups, {0: -1})
    with pytest.raises(KafkaError, match="group id"):
        commit(groups, {0: 1}, group="")


@pytest.mark.parametrize(
    ("transactional", "stale"), [(False, StaleMemberEpoch), (True, IllegalGeneration)]
)
def test_A15_commits_are_checked_against_the_membership(host, groups, transactional, stale):
    write = txn_commit if transactional else commit
    with pytest.raises(IllegalGeneration):
        write(groups, {0: 1}, "nobody", 3)
    member = groups.join("g", subscription=["t"])
    epoch = groups.heartbeat("g", member, 0, ()).member_epoch
    with pytest.raises(UnknownMember):
        write(groups, {0: 1}, "nobody", epoch)
    for wrong in (epoch - 1, epoch + 1):
        with pytest.raises(stale):
            write(groups, {0: 1}, member, wrong)
    write(groups, {0: 1}, member, epoch)
    if transactional:
        write(groups, {0: 1})  # A producer that only knows the group's name is let in.
    else:
        with pytest.raises(UnknownMember):
            write(groups, {0: 1})
    groups.leave("g", member)
    with pytest.raises(UnknownMember):
        write(groups, {0: 1}, member, epoch)


def test_A15_a_late_commit_for_a_reassigned_partition_is_rejected(host, groups):
    a = groups.join("g", subscription=["t"])
    first = groups.heartbeat("g", a, 0, ())
    b = groups.join("g", subscription=["t"])
    lost = groups.heartbeat("g", a, first.member_epoch, first.assigned).to_revoke
    epoch = groups.heartbeat("g", a, first.member_epoch, first.assigned - lost).member_epoch
    gone, kept = max(lost), max(first.assigned - lost)
    commit(groups, {gone.partition: 4}, a, epoch)  # No member owns it yet.
    assert gone in groups.heartbeat("g", b, 0, ()).assigned
    with pytest.raises(StaleMemberEpoch, match=f"t-{gone.partition} is assigned to"):
        commit(groups, {kept.partition: 9, gone.partition: 9}, a, epoch)
    with pytest.raises(IllegalGeneration):
        txn_commit(groups, {gone.partition: 9}, a, epoch)
    commit(groups, {kept.partition: 9}, a, epoch)
    assert visible(groups) == {kept.partition: 9, gone.partition: 4}


def test_A15_a_takeover_of_a_static_name_fences_its_previous_holder(groups):
    old = groups.join("g", subscription=["t"], instance_id="i")
    epoch = groups.heartbeat("g", old, 0, ()).member_epoch
    groups.join("g", subscription=["t"], instance_id="i")
    for write in (commit, txn_commit):
        option = {"instance_id": "i"} if write is commit else {"instance": "i"}
        with pytest.raises(FencedInstanceId):
            write(groups, {0: 1}, old, epoch, **option)


def test_E16_transactional_offsets_are_invisible_until_the_marker(host, groups):
    commit(groups, {0: 1})
    place = txn_commit(groups, {0: 7, 1: 8})
    log = host.group_partition("g")
    assert (place, place.offset) == (TopicPartition(log.topic, log.partition), 1)
    assert visible(groups) == {0: 1}
    log.mark(PID, 0, commit=True)
    assert visible(groups) == {0: 7, 1: 8}
    assert host.transactions.added == [("tx", PID, 0, "g")]


def test_A12_an_abort_drops_pending_offsets(host, groups):
    commit(groups, {0: 1})
    txn_commit(groups, {0: 7, 1: 8})
    host.group_partition("g").mark(PID, 0, commit=False)
    assert visible(groups) == {0: 1}
    host.group_partition("g").mark(PID, 0, commit=True)
    assert visible(groups) == {0: 1}, "a marker without anything pending does nothing"


def test_E15_a_fenced_producer_cannot_write_offsets(groups):
    txn_commit(groups, {0: 7}, pepoch=1)
    with pytest.raises(InvalidProducerEpoch):
        txn_commit(groups, {0: 9}, pepoch=0)


def test_the_later_record_wins_between_plain_and_transactional_commits(host, groups):
    """R76 of docs/contributing/regressions.md."""
    log = host.group_partition("g")
    txn_commit(groups, {0: 7})
    commit(groups, {0: 3})
    log.mark(PID, 0, commit=True)
    assert visible(groups) == {0: 3}
    commit(groups, {1: 3})
    txn_commit(groups, {1: 7}, pepoch=1)
    log.mark(PID, 1, commit=True)
    assert visible(groups) == {0: 3, 1: 7}


def test_each_marker_resolves_only_its_producer_and_group(host, groups):
    other = next(
        f"h{i}" for i in range(999) if host.group_partition(f"h{i}") is host.group_partition("g")
    )
    txn_commit(groups, {0: 1}, pid=1)
    txn_commit(groups, {1: 2}, pid=2)
    txn_commit(groups, {0: 3}, pid=2, group=other)
    log = host.group_partition("g")
    log.mark(2, 0, commit=True)
    assert (visible(groups), visible(groups, other)) == ({1: 2}, {0: 3})
    log.mark(1, 0, commit=False)
    assert visible(groups) == {1: 2}


def test_A17_a_stable_read_completes_pending_offsets(host, groups):
    commit(groups, {0: 1})
    txn_commit(groups, {0: 7})
    host.transactions.resolve = lambda log: log.mark(PID, 0, commit=True)
    assert groups.fetch_offsets("g") == {T0: OffsetAndMetadata(7)}


def test_a_stable_read_of_an_open_transaction_raises_a_timeout(host, groups):
    txn_commit(groups, {0: 7})
    assert groups.fetch_offsets("g", [T1], timeout=0.0) == {}
    with pytest.raises(KafkaError, match="t-0") as caught:
        groups.fetch_offsets("g", timeout=0.12)
    assert caught.value.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert caught.value.retriable


def test_replay_equals_live_state_with_committed_aborted_and_pending_offsets(host, groups):
    """R77 of docs/contributing/regressions.md."""
    log = host.group_partition("g")
    member = groups.join("g", subscription=["t"])
    epoch = groups.heartbeat("g", member, 0, ()).member_epoch
    commit(groups, {0: 1}, member, epoch)
    for pid, outcome in ((1, True), (2, False), (3, None)):
        txn_commit(groups, {pid: 10 + pid}, member, epoch, pid=pid)
        if outcome is not None:
            log.mark(pid, 0, commit=outcome)
    with groups._shards.of("g").folded() as (table, _):
        assert table == replayed(host)
        assert list(table.pending) == [3]
    assert visible(groups) == {0: 1, 1: 11}


def test_deleting_offsets_also_deletes_pending_offsets(host, groups):
    """R74 of docs/contributing/regressions.md."""
    commit(groups, {0: 1, 1: 2})
    txn_commit(groups, {0: 7})
    groups.delete_offsets("g", [T0])
    host.group_partition("g").mark(PID, 0, commit=True)
    assert visible(groups) == {1: 2}
    member = groups.join("g", subscription=["t"])
    with pytest.raises(KafkaError) as caught:
        groups.delete_offsets("g", [T1])
    assert caught.value.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    groups.leave("g", member)


def test_offsets_of_a_group_with_only_undecided_offsets_can_be_deleted(host, groups):
    txn_commit(groups, {0: 7})
    groups.delete_offsets("g", [T0])
    host.group_partition("g").mark(PID, 0, commit=True)
    assert visible(groups) == {}


def test_deleting_a_topic_deletes_its_offsets(host, groups):
    groups.commit_offsets(
        "g", "", -1, {T0: OffsetAndMetadata(1), TopicPartition("u"): OffsetAndMetadata(2)}
    )
    groups.forget_topic("t", host.topic("t").topic_id)
    assert groups.fetch_offsets("g") == {TopicPartition("u"): OffsetAndMetadata(2)}


def overtake(log, change):
    """Make a change of another process just before the next append."""
    append = log.append

    def overtaken(*arguments, **keywords):
        log.append = append
        change()
        return append(*arguments, **keywords)

    log.append = overtaken


def make_again(host):
    """Delete "t" and make it again, as another process does."""
    old = host.metadata.topics.pop("t")
    GroupCoordinator(host).forget_topic("t", old.topic_id)
    host.metadata.create("t", 4)


@pytest.mark.parametrize(
    ("write", "error"),
    [(commit, UnknownTopicOrPartition), (txn_commit, TransactionAbortable)],
    ids=["plain", "transactional"],
)
def test_a_commit_during_a_topic_deletion_gives_the_new_topic_no_offset(host, groups, write, error):
    log = host.group_partition("g")
    overtake(log, lambda: make_again(host))
    with pytest.raises(error, match="'t' was deleted and re-created"):
        write(groups, {0: 5})
    log.mark(PID, 0, commit=True)
    assert visible(groups) == {}


@pytest.mark.parametrize(
    ("write", "error"),
    [(commit, UnknownTopicOrPartition), (txn_commit, TransactionAbortable)],
    ids=["plain", "transactional"],
)
def test_a_commit_after_a_topic_deletion_is_rejected(host, groups, write, error):
    conditions = host.transactions.add_offsets_to_txn

    def deleted_meanwhile(*arguments):
        del host.metadata.topics["t"]
        return conditions(*arguments)

    host.transactions.add_offsets_to_txn = deleted_meanwhile
    if write is commit:
        del host.metadata.topics["t"]
    with pytest.raises(error):
        write(groups, {0: 5})
    assert not host.group_partition("g").entries


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda g, o: g.commit_offsets("g", "", -1, o), UnknownTopicOrPartition),
        (
            lambda g, o: g.txn_offset_commit("g", "tx", PID, 0, "", -1, None, o),
            TransactionAbortable,
        ),
        (lambda g, o: g.reset_offsets("g", o, forward_only=True), UnknownTopicOrPartition),
    ],
    ids=["plain", "transactional", "forward"],
)
def test_offsets_with_the_id_of_a_deleted_topic_are_rejected(host, groups, call, error):
    mine = {T0: OffsetAndMetadata(5, topic_id=host.topic("t").topic_id)}
    call(groups, mine)
    host.group_partition("g").mark(PID, 0, commit=True)
    assert visible(groups) == {0: 5}
    make_again(host)
    with pytest.raises(error, match="'t' was deleted and re-created"):
        call(groups, mine)
    assert visible(groups) == {}


def test_a_late_deletion_keeps_the_offsets_of_a_re_created_topic(host, groups):
    old = host.topic("t").topic_id
    make_again(host)
    commit(groups, {0: 5})
    groups.forget_topic("t", old)
    assert visible(groups) == {0: 5}


def test_loading_skips_unknown_records_and_reads_a_classic_group(host, groups):
    classic = Writer().i16(3).string("consumer").i32(4).nullable_string(None)
    classic.nullable_string(None).i64(1000).array(1)
    classic.string("m").nullable_string("static").string("client").string("host")
    classic.i32(60_000).i32(45_000).bytes_(b"").bytes_(b"")
    records = [
        (0, Writer().i16(11).string("share").take(), b"?", ()),
        (0, Writer().i16(2).string("g").take(), classic.take(), ()),
        (0, encode_offset_key("g", "t", 0), encode_offset_value(OffsetValue(4)), ()),
        (0, encode_offset_key("g", "t", 1), None, ()),
    ]
    host.group_partition("g").append(_core.build_batch(records))
    assert visible(groups) == {0: 4}
    assert groups.describe_group("g").state == "Empty", "its members went with their broker"
    member = groups.join("g", subscription=["t"])
    assert groups.heartbeat("g", member, 0, ()).member_epoch == 5, "after the classic generation"


def test_a_fold_that_ends_below_the_log_start_is_rebuilt(host, groups):
    commit(groups, {0: 1})
    assert visible(groups) == {0: 1}
    log = host.group_partition("g")
    log.append(_core.build_batch([(0, encode_offset_key("x", "t", 0), None, ())]))
    log.log_start = log.log_end
    log.entries.clear()
    assert visible(groups) == {}


class OffsetsMachine(RuleBasedStateMachine):
    """Random commits and deletions against two dictionaries.

    Some commits are transactional and get markers.
    """

    def __init__(self) -> None:
        super().__init__()
        disk = FakeDisk()
        disk.metadata.create("t", 3)
        self.host = FakeHost(disk)
        self.visible: dict[int, tuple[int, int]] = {}  # partition: (record offset, offset)
        self.pending: dict[int, dict[int, tuple[int, int]]] = {}

    def _end(self) -> int:
        return self.host.group_partition("g").log_end

    @rule(partition=st.integers(0, 2), offset=st.integers(0, 99))
    def plain(self, partition: int, offset: int) -> None:
        self.visible[partition] = (self._end(), offset)
        commit(self.host.groups, {partition: offset})

    @rule(pid=st.integers(1, 3), partition=st.integers(0, 2), offset=st.integers(0, 99))
    def transactional(self, pid: int, partition: int, offset: int) -> None:
        self.pending.setdefault(pid, {})[partition] = (self._end(), offset)
        txn_commit(self.host.groups, {partition: offset}, pid=pid)

    @rule(pid=st.integers(1, 3), outcome=st.booleans())
    def marker(self, pid: int, outcome: bool) -> None:
        self.host.group_partition("g").mark(pid, 0, commit=outcome)
        for partition, told in self.pending.pop(pid, {}).items():
            if outcome:
                self.visible[partition] = max(self.visible.get(partition, (-1, -1)), told)

    @precondition(lambda self: self.visible)
    @rule(partition=st.integers(0, 2))
    def delete(self, partition: int) -> None:
        self.host.groups.delete_offsets("g", [TopicPartition("t", partition)])
        self.visible.pop(partition, None)
        for offsets in self.pending.values():
            offsets.pop(partition, None)

    @invariant()
    def as_the_model(self) -> None:
        assert visible(self.host.groups) == {p: offset for p, (_, offset) in self.visible.items()}
        assert visible(GroupCoordinator(self.host)) == visible(self.host.groups)


TestOffsetsMachine = pytest.mark.slow(OffsetsMachine.TestCase)
TestOffsetsMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize(
    "change",
    [
        lambda groups: groups.commit_offsets("g", "", -1, at({1: 6})),
        lambda groups: groups.delete_offsets("g", [T0]),
        lambda groups: groups.delete_group("g"),
        lambda groups: groups.forget_topic("t", (1).to_bytes(16, "big")),
        lambda groups: groups.expire_offsets(0),
    ],
    ids=["commit_offsets", "delete_offsets", "delete_group", "forget_topic", "expire_offsets"],
)
def test_a_change_of_committed_offsets_is_durable_on_return(host, groups, change):
    commit(groups, {0: 5})
    host.clock_ms = lambda: 10**15
    log = host.group_partition("g")
    end = log.log_end
    change(groups)
    assert log.log_end > end
    assert log.flushed == log.log_end


def test_a_reset_forward_leaves_out_offsets_that_are_not_larger(groups):
    commit(groups, {0: 5, 1: 5, 2: 5})
    groups.reset_offsets("g", at({0: 4, 1: 5, 2: 6, 3: 0}), forward_only=True)
    assert visible(groups) == {0: 5, 1: 5, 2: 6, 3: 0}


@pytest.mark.parametrize("theirs", [9, 2])
def test_a_reset_forward_compares_again_after_a_commit_of_another_process(host, groups, theirs):
    log = host.group_partition("g")
    overtake(log, lambda: commit(FakeHost(host.disk).groups, {0: theirs}))
    groups.reset_offsets("g", at({0: 4}), forward_only=True)
    assert visible(groups) == {0: max(theirs, 4)}


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_a_reset_forward_waits_for_an_undecided_offset(host, groups, late, committed):
    """A later record would win over the pending one, with its smaller offset."""
    log = host.group_partition("g")

    def send():
        txn_commit(FakeHost(host.disk).groups, {0: 9})

    if late:
        overtake(log, send)
    else:
        send()
    host.transactions.resolve = lambda log: log.mark(PID, 0, commit=committed)
    groups.reset_offsets("g", at({0: 4}), forward_only=True)
    log.mark(PID, 0, commit=committed)
    assert visible(groups) == {0: 9 if committed else 4}


def test_a_reset_forward_past_an_open_transaction_raises_a_timeout(groups):
    txn_commit(groups, {0: 2})
    with pytest.raises(KafkaError, match="t-0") as caught:
        groups.reset_offsets("g", at({0: 4}), forward_only=True, timeout=0.0)
    assert caught.value.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.reset_offsets("g", at({1: 4}), forward_only=True, timeout=0.0)
    assert visible(groups) == {1: 4}


def test_a_larger_offset_is_durable_when_a_reset_forward_leaves_it(host, groups):
    """Another process has committed it, and not flushed it yet."""
    log = host.group_partition("g")

    def commit_unflushed():
        commit(FakeHost(host.disk).groups, {0: 9})
        log.flushed = 0

    overtake(log, commit_unflushed)
    groups.reset_offsets("g", at({0: 4}), forward_only=True)
    assert log.flushed == log.log_end


def test_committed_versions_of_a_spark_application_never_expire(host, groups):
    """The version of a Spark application: its next run would write it again."""
    groups.commit_offsets("__eoslog-spark-daily", "", -1, at({0: 5}))
    groups.commit_offsets("g", "", -1, at({0: 5}))
    host.clock_ms = lambda: 10**15
    groups.expire_offsets(0)
    assert groups.fetch_offsets("__eoslog-spark-daily", [T0])[T0].offset == 5
    assert groups.fetch_offsets("g", [T0]).get(T0) is None


def test_committed_offsets_are_durable_before_they_are_returned(host, groups):
    """Another process has committed them, and died before its flush."""
    commit(groups, {0: 5})
    log = host.group_partition("g")
    log.flushed = 0
    assert groups.fetch_offsets("g") == {T0: OffsetAndMetadata(5)}
    assert log.flushed == log.log_end


def test_transactional_offsets_of_unknown_partitions_are_rejected(host, groups):
    gone = {TopicPartition("t", 99): OffsetAndMetadata(1)}
    with pytest.raises(UnknownTopicOrPartition):
        groups.txn_offset_commit("g", "tx", PID, 0, "", -1, None, gone)
    assert host.group_partition("g").log_end == 0
