"""An in-memory model of the promises to the clients, and their violations.

Values are unique, so a value names its record. A transaction counts as aborted until its owner
requests a commit. From then on it is unknown, until the call returns (committed) or reports a
fence (aborted). The first check after a crash resolves what is unknown, and the result is
final.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.oracles.promises import Promises

Place = tuple[str, int]
Seen = dict[Place, list[tuple[int, str]]]
"""Per partition (offset, value) of what read_committed shows, in order."""


@dataclass(eq=False)
class Txn:
    """A transaction as its producer knows it."""

    name: str
    values: dict[Place, list[str]] = field(default_factory=dict)
    position: int = -1  # the offset it commits for its group, -1: none
    group: str = ""
    outcome: str = "aborted"  # or unknown, committed
    began: int = 0  # on the model's own count of events
    finished: int = -1

    def all_values(self) -> list[str]:
        return [value for values in self.values.values() for value in values]


@dataclass(eq=False)
class Half:
    """A transaction that a process tried to prepare, and its decision."""

    txn: Txn
    token: str = ""
    tried: bool = False
    prepared: bool = False  # acknowledged
    asked: set[bool] = field(default_factory=set)
    told: bool | None = None


@dataclass
class Model:
    """Everything that was promised so far."""

    tried: set[str] = field(default_factory=set)
    acked: dict[str, tuple[Place, int]] = field(default_factory=dict)
    order: dict[tuple[str, Place], list[str]] = field(default_factory=dict)  # by producer, as sent
    txns: list[Txn] = field(default_factory=list)
    txn_of: dict[str, Txn] = field(default_factory=dict)
    halves: dict[str, Half] = field(default_factory=dict)  # by the name of the transaction
    at: dict[tuple[Place, int], str] = field(
        default_factory=dict
    )  # seen or acknowledged: permanent
    positions: dict[str, set[int]] = field(
        default_factory=dict
    )  # of a group: what may be committed
    floor: dict[str, int] = field(
        default_factory=dict
    )  # ... of a group with one owner, acknowledged last
    watermarks: dict[Place, int] = field(
        default_factory=dict
    )  # a power loss leaves what is below them
    events: int = 0
    committing: int = 0  # processes that are inside commit_transaction
    topics: set[str] = field(default_factory=set)
    cleaned: bool = False  # a compaction has run: offsets may have gaps in compacted topics
    chores: Promises = field(default_factory=Promises)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def violated(self, what: str) -> None:
        self.violations.append(what)

    def version(self) -> int:
        """Changes with what was promised."""
        told = (self.tried, self.acked, self.at, self.topics, self.chores.tried, self.chores.acked)
        return hash((
            *map(len, told), self.events, sum(map(len, self.positions.values())), tuple(self.floor.items()),
            self.chores.start, self.chores.wanted, self.chores.deletions, self.chores.deleting, len(self.chores.dead),
            self.chores.partitions, self.chores.partitions_wanted,
        ))  # fmt: skip

    # -- what clients tell ------------------------------------------------------------------------

    def begin(self, name: str) -> Txn:
        self.events += 1
        self.txns.append(Txn(name, began=self.events))
        return self.txns[-1]

    def sent(self, producer: str, place: Place, value: str, txn: Txn | None = None) -> None:
        self.tried.add(value)
        self.order.setdefault((producer, place), []).append(value)
        if txn is not None:
            txn.values.setdefault(place, []).append(value)
            self.txn_of[value] = txn

    def acknowledged(self, place: Place, offset: int, value: str) -> None:
        """acks=all told where it is."""
        self.counts["acked"] += 1
        self.acked[value] = (place, offset)
        self._fix(place, offset, value)

    def _fix(self, place: Place, offset: int, value: str) -> None:
        known = self.at.setdefault((place, offset), value)
        if known != value:
            self.violated(f"O4 inconsistent offset: {place} {offset} was {known}, is {value}")

    def ended(self, txn: Txn, outcome: str) -> None:
        """`unknown` before commit is called, then what the call told."""
        self.counts[outcome] += 1
        self.events += 1
        txn.outcome, txn.finished = outcome, self.events

    # -- what readers see ---------------------------------------------------------------------------

    def read(self, place: Place, records: list[tuple[int, str]]) -> None:
        """Check a read_committed read from the start of the partition, under writes."""
        self.counts["reads"] += 1
        last, found = -1, set()
        for offset, value in records:
            if offset <= last:
                self.violated(f"O4 offsets go back: {place} {offset} after {last}")
            if value in found:
                self.violated(f"O3 duplicate: {value} twice in {place}")
            found.add(value)
            last = offset
            self._fix(place, offset, value)
            if value not in self.tried:
                self.violated(f"O3 phantom: {value} in {place} at {offset}")
            txn = self.txn_of.get(value)
            if txn is not None and txn.outcome == "aborted":
                self.violated(f"O3 aborted read: {value} of {txn.name} in {place} at {offset}")
        for (where, offset), value in self.at.items():
            if where == place and offset <= last and value not in found and self._certain(value):
                self.violated(f"O1 gone: {value} was at {place} {offset}")

    def shown(self, place: Place, records: list[tuple[int, str]]) -> None:
        """Check a read of a part of a partition, from any offset on."""
        for offset, value in records:
            self._fix(place, offset, value)
            if value not in self.tried:
                self.violated(f"O3 phantom: {value} in {place} at {offset}")
            txn = self.txn_of.get(value)
            if txn is not None and txn.outcome == "aborted":
                self.violated(f"O3 aborted read: {value} of {txn.name} in {place} at {offset}")

    def _certain(self, value: str) -> bool:
        txn = self.txn_of.get(value)
        return txn is None or txn.outcome == "committed"

    def cut(self, seen: Seen) -> None:
        """A snapshot divides no transaction."""
        visible = {value for records in seen.values() for _, value in records}
        for txn in self.txns:
            values = txn.all_values()
            inside = sum(value in visible for value in values)
            if 0 < inside < len(values):
                self.violated(f"O2 snapshot divides {txn.name}: {inside} of {len(values)}")

    # -- after a crash --------------------------------------------------------------------------------

    def settle(self, seen: Seen, positions: dict[str, int]) -> None:
        """Check that everything is as promised after the crash of all owners.

        All is recovered, and the state is final.
        """
        visible: dict[str, tuple[Place, int]] = {}
        for place, records in seen.items():
            self.read(place, records)
            for offset, value in records:
                if value in visible:
                    self.violated(
                        f"O3 duplicate: {value} at {visible[value]} and {(place, offset)}"
                    )
                visible[value] = (place, offset)
        for value, where in self.acked.items():
            if where[0] in seen and visible.get(value) != where:
                self.violated(
                    f"O1 lost: {value} was acknowledged at {where}, is at {visible.get(value)}"
                )
        for (place, offset), value in self.at.items():
            if place in seen and visible.get(value) != (place, offset):
                self.violated(
                    f"O1 unread: {value} was seen at {place} {offset}, is at {visible.get(value)}"
                )
        for txn in self.txns:
            self._settle(txn, visible)
        for group, tried in self.positions.items():
            self._settle_group(group, tried, positions.get(group))
        for (producer, place), values in self.order.items():
            if place in seen:
                there = [visible[v][1] for v in values if v in visible]
                if there != sorted(there):
                    self.violated(f"O4 order of {producer} in {place}: {there}")

    def _settle_group(self, group: str, tried: set[int], found: int | None) -> None:
        """Check that a group's offset is that of the latest committed transaction."""
        if found is not None and found not in tried:
            self.violated(f"O3 offsets of {group}: {found} was never committed")
        if (
            found is not None
            and found < self.floor.get(group, -1)
            or (found is None and group in self.floor)
        ):
            self.violated(
                f"O1 offsets of {group}: {self.floor[group]} was acknowledged, found {found}"
            )
        mine = [t for t in self.txns if t.group == group]
        holder = next((t for t in mine if t.position == found), None)
        if holder is not None and holder.outcome != "committed":
            self.violated(
                f"O2 torn: offset {found} of {group} is of {holder.name}, which is {holder.outcome}"
            )
        for txn in mine:
            if txn.outcome == "committed" and (holder is None or holder.finished < txn.began):
                self.violated(
                    f"O1 offsets of {group}: {txn.name} committed {txn.position}, found {found}"
                )

    def _settle(self, txn: Txn, visible: dict[str, tuple[Place, int]]) -> None:
        values = txn.all_values()
        there = [value for value in values if value in visible]
        if there and len(there) < len(values):
            self.violated(
                f"O2 torn: {txn.name} ({txn.outcome}) shows {len(there)} of {len(values)}: {there[:3]}"
            )
        if txn.outcome == "unknown":
            self.ended(txn, "committed" if there else "aborted")
            for value in there:
                self._fix(*visible[value], value)
        elif txn.outcome == "committed" and len(there) < len(values):
            self.violated(f"O1 lost: committed {txn.name} shows {len(there)} of {len(values)}")
        elif txn.outcome == "aborted" and there:
            self.violated(f"O3 aborted {txn.name} shows {there[:3]}")
