"""Assignors: each partition has one owner, with balance and stickiness.

Kafka's own examples are included.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog.coordinator.groups.assignors import ASSIGNORS, MemberSubscription, Target, assign
from eoslog.errors import ErrorCode, KafkaError

TOPICS = ("a", "b", "c", "d")
partitions_strategy = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=4)
members_strategy = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(6)]),
    st.builds(
        MemberSubscription,
        st.frozensets(st.sampled_from(TOPICS)),
        st.none(),
        st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9))),
    ),
    max_size=6,
)


def members_of(
    *names: str, topics: str = "a", **owned: set[tuple[str, int]]
) -> dict[str, MemberSubscription]:
    subscribed = frozenset(topics.split())
    return {n: MemberSubscription(subscribed, None, frozenset(owned.get(n, ()))) for n in names}


def loads(target: Target) -> list[int]:
    return sorted(len(owned) for owned in target.values())


@pytest.mark.slow
@given(st.sampled_from(sorted(ASSIGNORS)), members_strategy, partitions_strategy)
def test_every_assignor_gives_each_partition_to_one_subscriber(assignor, members, partitions):
    target = assign(assignor, members, partitions)
    assert target.keys() == members.keys()
    owned = [p for member in target.values() for p in member]
    wanted = {t for m in members.values() for t in m.topics}
    assert sorted(owned) == sorted(
        (t, p) for t in partitions if t in wanted for p in range(partitions[t])
    )
    assert all(topic in members[m].topics for m, own in target.items() for topic, _ in own)
    assert target == assign(assignor, dict(reversed(members.items())), partitions)


@pytest.mark.slow
@given(members_strategy, partitions_strategy)
def test_sticky_is_balanced_as_far_as_subscriptions_allow(members, partitions):
    target = assign("sticky", members, partitions)
    for giver, owned in target.items():
        for taker, other in target.items():
            if any(topic in members[taker].topics for topic, _ in owned):
                assert len(owned) - len(other) <= 1, (giver, taker)


@pytest.mark.slow
@given(members_strategy, partitions_strategy)
def test_sticky_moves_no_partition_without_a_reason(members, partitions):
    target = assign("sticky", members, partitions)
    again = {
        m: MemberSubscription(s.topics, None, frozenset(target[m])) for m, s in members.items()
    }
    assert assign("cooperative-sticky", again, partitions) == target


@given(st.integers(1, 30), st.integers(1, 6))
def test_sticky_moves_only_the_partitions_a_new_member_needs(count, size):
    names = [f"m{i}" for i in range(size)]
    before = assign("sticky", members_of(*names), {"a": count})
    after = assign("sticky", members_of(*names, "new", **before), {"a": count})
    moved = sum(len(before[m] - after[m]) for m in names)
    assert moved == len(after["new"]) == min(count // (size + 1), count)


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(2, 6))
def test_sticky_moves_only_the_partitions_of_a_member_that_left(count, size):
    names = [f"m{i}" for i in range(size)]
    before = assign("sticky", members_of(*names), {"a": count})
    after = assign("sticky", members_of(*names[1:], **before), {"a": count})
    assert all(before[m] <= after[m] for m in names[1:])


def test_sticky_ignores_claims_of_two_members_to_one_partition():
    target = assign("sticky", members_of("x", "y", x={("a", 0)}, y={("a", 0)}), {"a": 1})
    assert loads(target) == [0, 1]


def test_range_gives_one_more_partition_to_the_first_members():
    target = assign("range", members_of("x", "y"), {"a": 3})
    assert target == {"x": {("a", 0), ("a", 1)}, "y": {("a", 2)}}


def test_range_orders_static_members_first_by_instance():
    members = {
        "1-dynamic": MemberSubscription(frozenset("a")),
        "9-static": MemberSubscription(frozenset("a"), "i1"),
    }
    assert assign("range", members, {"a": 2})["9-static"] == {("a", 0)}


def test_round_robin_skips_members_that_do_not_subscribe_to_a_topic():
    members = {
        "c0": MemberSubscription(frozenset({"t0"})),
        "c1": MemberSubscription(frozenset({"t0", "t1"})),
        "c2": MemberSubscription(frozenset({"t0", "t1", "t2"})),
    }
    target = assign("roundrobin", members, {"t0": 1, "t1": 2, "t2": 3})
    assert target == {
        "c0": {("t0", 0)},
        "c1": {("t1", 0)},
        "c2": {("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)},
    }


def test_sticky_is_fast_with_many_partitions():
    members = members_of(
        *(f"m{i}" for i in range(50)), topics="a b", m0={("a", p) for p in range(500)}
    )
    assert set(loads(assign("sticky", members, {"a": 500, "b": 500}))) == {20}


def test_an_unknown_assignor_is_rejected():
    with pytest.raises(KafkaError, match="nearest") as caught:
        assign("nearest", {}, {})
    assert caught.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR
