"""Membership: targets, incremental hand-over, liveness, static members, fencing."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eoslog.coordinator.groups import liveness as group_watch
from eoslog.coordinator.groups.coordinator import GroupCoordinator, Heartbeat
from eoslog.coordinator.groups.local_members import member_hash
from eoslog.coordinator.groups.state import GroupTable
from eoslog.errors import (
    ConfigError,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupNotFound,
    NonEmptyGroup,
    StaleMemberEpoch,
    StorageError,
    UnknownMember,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.fs import files
from tests.coordinator.fake_host import FakeDisk, FakeHost


@pytest.fixture(autouse=True)
def always_watch(monkeypatch):
    monkeypatch.setattr(group_watch, "_WATCH_INTERVAL_S", 0.0)


class Client:
    """A member that does what a consumer does: follow, let go, follow."""

    def __init__(self, host: FakeHost, group: str = "g", topics=("t",), **options) -> None:
        self.host, self.group = host, group
        self.groups = GroupCoordinator(host)
        self.options = options
        self.instance = options.get("instance_id")
        self.id = self.groups.join(group, subscription=topics, **options)
        self.epoch, self.owned = 0, frozenset()

    def beat(self) -> Heartbeat:
        answer = self.groups.heartbeat(
            self.group, self.id, self.epoch, self.owned, instance_id=self.instance
        )
        self.epoch = answer.member_epoch
        return answer

    def poll(self) -> list[int]:
        answer = self.beat()
        if answer.to_revoke:
            self.owned -= answer.to_revoke
            answer = self.beat()
        self.owned = answer.assigned
        return self.partitions

    @property
    def partitions(self) -> list[int]:
        return sorted(p.partition for p in self.owned)

    def commit(self, offsets: dict[int, int]) -> None:
        self.groups.commit_offsets(
            self.group, self.id, self.epoch,
            {TopicPartition("t", p): OffsetAndMetadata(o) for p, o in offsets.items()},
            instance_id=self.instance,
        )  # fmt: skip


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.metadata.create("t", 4)
    return disk


def replayed(host: FakeHost, group: str = "g") -> GroupTable:
    table = GroupTable()
    for batch in host.group_partition(group).batches(0, 10**9):
        table.apply(batch)
    return table


def test_a_lone_member_gets_all_partitions_at_its_first_heartbeat(disk):
    client = Client(FakeHost(disk))
    assert client.poll() == [0, 1, 2, 3]
    assert client.epoch == 1
    description = client.groups.describe_group("g")
    assert (description.state, description.generation) == ("Stable", 1)
    assert description.members[0].subscription == ("t",)


def test_a_partition_moves_only_after_its_owner_revoked_it(disk):
    a = Client(FakeHost(disk, 0), assignor="cooperative-sticky")
    a.poll()
    b = Client(FakeHost(disk, 1), assignor="cooperative-sticky")
    assert b.poll() == []
    answer = a.beat()
    assert {p.partition for p in answer.to_revoke} == {2, 3} or len(answer.to_revoke) == 2
    assert answer.member_epoch == 1, "the epoch stays until the partitions are let go"
    assert b.poll() == []
    a.owned -= answer.to_revoke
    assert a.beat().member_epoch == 2
    assert len(b.poll()) == 2
    assert a.owned.isdisjoint(b.owned)
    assert a.groups.describe_group("g").state == "Stable"


def test_a_member_may_commit_offsets_while_revoking(disk):
    a = Client(FakeHost(disk, 0))
    a.poll()
    Client(FakeHost(disk, 1)).poll()
    assert a.beat().to_revoke
    a.commit({0: 5, 3: 7})
    assert a.groups.fetch_offsets("g")[TopicPartition("t", 3)].offset == 7


def test_a_killed_member_is_removed_immediately(disk):
    a, b = Client(FakeHost(disk, 0)), Client(FakeHost(disk, 1))
    a.poll(), b.poll(), a.poll(), b.poll()
    assert (len(a.owned), len(b.owned)) == (2, 2)
    b.host.die()
    assert a.poll() == [0, 1, 2, 3]
    with pytest.raises(UnknownMember):
        b.beat()


def test_a_suspended_member_is_removed_at_its_session_timeout_and_fenced(disk):
    a = Client(FakeHost(disk, 0), session_timeout_ms=10_000)
    b = Client(FakeHost(disk, 1), session_timeout_ms=10_000)
    a.poll(), b.poll(), a.poll(), b.poll()
    disk.living[1, 1001] = 9.0
    assert len(a.poll()) == 2
    disk.living[1, 1001] = 11.0
    assert len(a.poll()) == 4
    disk.living[1, 1001] = 0.0
    with pytest.raises(UnknownMember):
        b.commit({3: 1})


def test_a_member_that_stops_polling_is_removed_by_its_own_process(disk):
    a = Client(FakeHost(disk), rebalance_timeout_ms=1)
    a.poll()
    time.sleep(0.01)
    [(_, tick)] = a.host.scheduled
    tick()
    assert a.groups.describe_group("g").members == []
    with pytest.raises(UnknownMember):
        a.commit({0: 1})


def test_a_member_that_polls_after_its_removal_failed_stays(disk):
    a = Client(FakeHost(disk), rebalance_timeout_ms=5_000)
    a.poll()
    [(_, tick)] = a.host.scheduled
    time.sleep(5.1)
    files.arm_failpoint("group.decided", "EIO")
    try:
        with contextlib.suppress(OSError):
            tick()
    finally:
        files.disarm_failpoints()
    a.poll()
    tick()
    assert len(a.groups.describe_group("g").members) == 1


@contextlib.contextmanager
def failing_appends():
    files.arm_failpoint("group.decided", "EIO")
    try:
        with pytest.raises(StorageError):
            yield
    finally:
        files.disarm_failpoints()


def test_a_member_that_could_not_join_is_not_reported_as_idle(disk):
    host = FakeHost(disk)
    groups = GroupCoordinator(host)
    with failing_appends():
        groups.join("g", subscription=["t"])
    member = groups.join("g", subscription=["t"])
    [(_, tick)] = host.scheduled
    tick()
    assert host.idle_member == member_hash("g", member)


def test_a_member_whose_subscription_could_not_be_changed_stays(disk):
    a = Client(FakeHost(disk))
    a.poll()
    with failing_appends():
        a.groups.join("g", a.id, subscription=["other"])
    [(_, tick)] = a.host.scheduled
    tick()
    assert a.poll() == [0, 1, 2, 3]
    assert a.host.idle_member == member_hash("g", a.id)


def test_leaving_a_group_frees_the_partitions(disk):
    a, b = Client(FakeHost(disk, 0)), Client(FakeHost(disk, 1))
    for _ in range(2):
        a.poll(), b.poll()
    a.groups.leave("g", a.id)
    a.groups.leave("g", a.id)
    assert b.poll() == [0, 1, 2, 3]


def test_a_static_member_rejoins_without_a_new_generation(disk):
    a = Client(FakeHost(disk, 0), instance_id="one")
    b = Client(FakeHost(disk, 1), instance_id="two")
    for _ in range(2):
        a.poll(), b.poll()
    before, generation = b.partitions, a.groups.describe_group("g").generation
    b.host.die()
    assert len(a.poll()) == 2, "its place is kept for the session"
    again = Client(FakeHost(disk, 2), instance_id="two")
    assert again.id != b.id
    assert again.poll() == before
    assert a.groups.describe_group("g").generation == generation
    assert len(a.poll()) == 2


def test_a_static_member_that_left_keeps_its_partitions_until_its_timeout(disk, monkeypatch):
    a = Client(FakeHost(disk, 0))
    b = Client(FakeHost(disk, 1), instance_id="two", session_timeout_ms=10_000)
    for _ in range(2):
        a.poll(), b.poll()
    b.groups.leave("g", b.id)
    assert len(a.poll()) == 2
    now = group_watch.time.monotonic()
    monkeypatch.setattr(group_watch.time, "monotonic", lambda: now + 11)
    assert len(a.poll()) == 4


def test_a_takeover_of_a_static_name_fences_the_previous_holder(disk):
    old = Client(FakeHost(disk, 0), instance_id="one")
    old.poll()
    new = Client(FakeHost(disk, 1), instance_id="one")
    with pytest.raises(FencedInstanceId):
        old.beat()
    with pytest.raises(FencedInstanceId):
        old.commit({0: 1})
    assert new.poll() == [0, 1, 2, 3]


def test_a_stale_member_epoch_is_rejected(disk):
    a = Client(FakeHost(disk, 0))
    a.poll()
    with pytest.raises(FencedMemberEpoch):
        a.groups.heartbeat("g", a.id, 7, a.owned)
    a.epoch = 0
    with pytest.raises(StaleMemberEpoch):
        a.commit({0: 1})


def test_a_late_heartbeat_does_not_release_partitions_granted_since(disk):
    a = Client(FakeHost(disk, 0))
    b = Client(FakeHost(disk, 1))
    a.poll(), b.poll(), a.poll()
    late = (a.epoch, a.owned)
    b.groups.leave("g", b.id)
    assert a.poll() == [0, 1, 2, 3]
    c = Client(FakeHost(disk, 2))
    assert a.beat().to_revoke
    with pytest.raises(FencedMemberEpoch):
        a.groups.heartbeat("g", a.id, *late)
    assert c.poll() == [], "a still reads all of them"


def test_a_static_member_that_leaves_keeps_no_partition_it_was_revoking(disk):
    a = Client(FakeHost(disk, 0), instance_id="one")
    a.poll()
    b = Client(FakeHost(disk, 1))
    assert b.poll() == []
    assert a.beat().to_revoke
    [described] = [m for m in b.groups.describe_group("g").members if m.member_id == a.id]
    assert len(described.assigned) == 4, "what it has not let go of is its own"
    a.groups.leave("g", a.id)
    assert len(b.poll()) == 2


def test_a_member_may_repeat_a_heartbeat_whose_answer_was_lost(disk):
    a = Client(FakeHost(disk, 0))
    a.groups.heartbeat("g", a.id, 0, ())
    assert a.groups.heartbeat("g", a.id, 0, ()).member_epoch == 1


def test_new_partitions_and_topics_reach_a_pattern_subscription(disk):
    import re

    a = Client(FakeHost(disk), topics=re.compile("T|u.*", re.IGNORECASE))
    assert a.poll() == [0, 1, 2, 3]
    disk.metadata.create("u-1", 2)
    disk.metadata.create("__u", 1)
    assert {p.topic for p in a.poll() and a.owned} == {"t", "u-1"}
    disk.metadata.topics["t"].partitions[4] = None
    a.poll()
    assert TopicPartition("t", 4) in a.owned


def test_a_description_has_the_names_and_the_pattern_of_a_subscription(disk):
    a = Client(FakeHost(disk), topics=["t", "^u.*"])
    a.poll()
    (member,) = a.groups.describe_group("g").members
    assert member.subscription == ("t", "(?:^u.*)")


def test_a_re_created_topic_is_revoked_and_assigned_again(disk):
    a = Client(FakeHost(disk))
    a.poll()
    disk.metadata.create("t", 2)
    assert len(a.beat().to_revoke) == 4
    assert a.poll() == [0, 1]


def test_an_invalid_pattern_raises_a_config_error(disk):
    with pytest.raises(ConfigError):
        Client(FakeHost(disk), topics="^(")


def test_a_group_with_members_cannot_be_reset_or_deleted(disk):
    a = Client(FakeHost(disk))
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(3)}
    for call in (a.groups.delete_group, lambda g: a.groups.reset_offsets(g, offsets)):
        with pytest.raises(NonEmptyGroup):
            call("g")
    a.groups.leave("g", a.id)
    a.groups.reset_offsets("g", offsets)
    assert a.groups.list_groups() == ["g"]
    a.groups.delete_group("g")
    assert a.groups.list_groups() == []
    assert replayed(a.host) == GroupTable()
    with pytest.raises(GroupNotFound):
        a.groups.delete_group("g")


def test_a_concurrent_change_makes_the_coordinator_decide_again(disk):
    host = FakeHost(disk)
    host.group_partition("g").refusals = 20
    assert Client(host).poll() == [0, 1, 2, 3]


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "join-static", "poll", "beat", "leave", "die"]), st.integers(0, 5)
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(["range", "roundrobin", "sticky"]), st.integers(0, 7), steps)
def test_no_partition_has_two_owners_and_all_are_owned_in_the_end(assignor, count, steps):
    """R79 of docs/contributing/regressions.md."""
    disk = FakeDisk()
    disk.metadata.create("t", count)
    clients: list[Client] = []
    made = 0
    for action, choice in steps:
        if action.startswith("join"):
            made += 1
            options = {"instance_id": f"i{choice}"} if action == "join-static" else {}
            clients.append(Client(FakeHost(disk, made), assignor=assignor, **options))
            fenced = [c for c in clients[:-1] if c.instance and c.instance == clients[-1].instance]
            for client in fenced:
                clients.remove(client)
        elif clients:
            client = clients[choice % len(clients)]
            if action == "poll":
                client.poll()
            elif action == "beat":
                client.beat()
            else:
                if client.instance:
                    continue
                clients.remove(client)
                client.groups.leave("g", client.id) if action == "leave" else client.host.die()
        for client in clients:
            others = [o for o in clients if o is not client]
            assert all(client.owned.isdisjoint(o.owned) for o in others)
    for _ in range(4):
        for client in clients:
            client.poll()
    if clients:
        assert sorted(p for c in clients for p in c.partitions) == list(range(count))
        description = clients[0].groups.describe_group("g")
        assert description.state == "Stable"
        with clients[0].groups._shards.of("g").folded() as (table, _):
            assert table == replayed(clients[0].host)


def test_a_group_whose_members_were_all_killed_can_be_reset_and_deleted(disk):
    a = Client(FakeHost(disk, 0))
    a.poll()
    a.host.die()
    admin = GroupCoordinator(FakeHost(disk, 1))
    assert admin.describe_group("g").members == []
    admin.reset_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(3)})
    admin.delete_group("g")
    assert admin.list_groups() == []
