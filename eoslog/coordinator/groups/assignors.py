"""The assignment strategies, as pure functions.

A strategy only computes the target. Members always move towards it incrementally
(`state.reconcile`), so `sticky` and `cooperative-sticky` are the same strategy in eoslog.

Every strategy has three guarantees: each partition of a subscribed topic has exactly one owner, the
owner is subscribed to the topic, and the same input gives the same output.

Source: Kafka RangeAssignor, RoundRobinAssignor, AbstractStickyAssignor; KIP-54, KIP-341, KIP-429.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eoslog.errors import ErrorCode, error_for

Partition = tuple[str, int]
Target = dict[str, set[Partition]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The input of a strategy: a member's topics, static name and previous target."""

    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[Partition] = frozenset()


Members = Mapping[str, MemberSubscription]
PartitionCounts = Mapping[str, int]


def _in_order(members: Members) -> list[str]:
    """Order static members first, by instance id, so that restarts change nothing."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, instance_id if instance_id is not None else member_id)

    return sorted(members, key=rank)


def assign_range(members: Members, partitions: PartitionCounts) -> Target:
    """Assign each topic's partitions in ranges; the first members get one more."""
    target: Target = {member_id: set() for member_id in members}
    order = _in_order(members)
    for topic in sorted(partitions):
        subscribed = [m for m in order if topic in members[m].topics]
        if not subscribed:
            continue
        each, extra = divmod(partitions[topic], len(subscribed))
        start = 0
        for place, member_id in enumerate(subscribed):
            count = each + (place < extra)
            target[member_id].update((topic, p) for p in range(start, start + count))
            start += count
    return target


def assign_round_robin(members: Members, partitions: PartitionCounts) -> Target:
    """Assign all partitions in order, round-robin to the subscribers."""
    target: Target = {member_id: set() for member_id in members}
    order = _in_order(members)
    wanted = set().union(*(m.topics for m in members.values())) if members else set()
    turn = 0
    for topic in sorted(wanted & partitions.keys()):
        for partition in range(partitions[topic]):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            target[order[turn % len(order)]].add((topic, partition))
            turn += 1
    return target


def assign_sticky(members: Members, partitions: PartitionCounts) -> Target:
    """Assign in balance, and change the previous target as little as possible.

    Balanced means: no member owns a partition that a subscriber with at least two fewer partitions
    could own.
    """
    target = _keep_previous(members, partitions)
    order = _in_order(members)
    subscribers = {t: [m for m in order if t in members[m].topics] for t in partitions}
    rank = {member_id: place for place, member_id in enumerate(order)}
    taken = set().union(*target.values()) if target else set()
    free = [
        (topic, partition)
        for topic, count in partitions.items()
        if subscribers[topic]
        for partition in range(count)
        if (topic, partition) not in taken
    ]
    # Partitions with the fewest possible owners come first.
    free.sort(key=lambda p: (len(subscribers[p[0]]), p))
    for unowned in free:
        owner = min(subscribers[unowned[0]], key=lambda m: (len(target[m]), rank[m]))
        target[owner].add(unowned)
    _balance(target, members, subscribers, rank)
    return target


def _keep_previous(members: Members, partitions: PartitionCounts) -> Target:
    claims: dict[Partition, list[str]] = {}
    for member_id, member in members.items():
        for topic, partition in member.owned:
            if topic in member.topics and partition < partitions.get(topic, 0):
                claims.setdefault((topic, partition), []).append(member_id)
    target: Target = {member_id: set() for member_id in members}
    for claimed, claimants in claims.items():
        # If two members claim a partition, neither keeps it.
        if len(claimants) == 1:
            target[claimants[0]].add(claimed)
    return target


def _balance(
    target: Target,
    members: Members,
    subscribers: Mapping[str, list[str]],
    rank: Mapping[str, int],
) -> None:
    # Each move lowers the sum of squared loads, so the loop ends. It moves from the fullest member
    # to the emptiest, so that with equal subscriptions no partition moves twice.
    def move_from(giver: str) -> bool:
        best: tuple[int, int, str] | None = None
        for topic in {topic for topic, _ in target[giver]}:
            taker = min(subscribers[topic], key=lambda m: (len(target[m]), rank[m]))
            move = (len(target[taker]), rank[taker], topic)
            if move[0] + 1 < len(target[giver]) and (best is None or move < best):
                best = move
        if best is None:
            return False
        previous = members[giver].owned
        # A partition that the giver did not own before costs nothing to move.
        partition = min(
            (p for p in target[giver] if p[0] == best[2]), key=lambda p: (p in previous, p)
        )
        target[giver].remove(partition)
        target[order[best[1]]].add(partition)
        return True

    order = sorted(rank, key=lambda m: rank[m])
    moved = True
    while moved:
        fullest_first = sorted(target, key=lambda m: (-len(target[m]), rank[m]))
        moved = any(move_from(giver) for giver in fullest_first)


ASSIGNORS: Mapping[str, Callable[[Members, PartitionCounts], Target]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_sticky,
}

DEFAULT_ASSIGNOR = "range"


def assign(assignor: str, members: Members, partitions: PartitionCounts) -> Target:
    """Apply a strategy by name; topics without subscribers get no owner."""
    try:
        strategy = ASSIGNORS[assignor]
    except KeyError:
        known = ", ".join(ASSIGNORS)
        raise error_for(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"assignor {assignor!r}: expected one of {known}"
        ) from None
    return strategy(members, partitions)
