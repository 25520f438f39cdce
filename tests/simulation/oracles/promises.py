"""The promises for topics that lose records, and for a topic that grows.

The topics are compacted, trimmed, deleted or aged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Record = tuple[int, str]
"""(offset, value)"""
RETENTION_MS, SLACK_MS = 100_000, 10_000
RETENTION_BYTES = 2400


@dataclass
class Seen:
    """What is there of these topics; one that does not exist is missing.

    `records` by topic, by "p NUMBER" where there are partitions; `starts`: log starts by topic.
    """

    records: dict[str, list[Record]]
    starts: dict[str, int]
    partitions: int


@dataclass
class Promises:
    """What clients got acknowledged for these topics.

    Invariants:
        - `acked` holds what must be there unless something newer of its key, the log start or a deletion says else
        - what is in `dead` was acknowledged to be deleted
    """

    tried: dict[str, str] = field(default_factory=dict)  # value -> topic, and its key in `c`
    acked: dict[str, int] = field(default_factory=dict)  # value -> offset
    start: int = 0  # log start of `d` that was acknowledged
    wanted: int = 0  # ... that was asked for
    deletions: int = 0  # begun
    deleting: int = 0  # under way
    dead: set[str] = field(default_factory=set)
    sent_ms: dict[str, int] = field(
        default_factory=dict
    )  # of a value in `g`: no later than its time
    now_ms: int = 0  # the latest that any cleaner can have gone by
    partitions: int = 1  # of `p`, acknowledged
    partitions_wanted: int = 1

    def passes(self, now_ms: int) -> None:
        """Set the wall clock to `now_ms`; each process run starts its own clock."""
        self.now_ms = max(self.now_ms, now_ms)

    def settle(self, seen: Seen, violated: Callable[[str], None]) -> None:
        """All owners are dead and all is recovered."""
        self.deleting = 0
        self._settle_records(seen.records, violated)
        start = seen.starts.get("d", 0)
        if not self.start <= start <= max(self.wanted, self.start):
            violated(f"O5 log start of d: {start}, acknowledged {self.start}, asked {self.wanted}")
        if not self.partitions <= seen.partitions <= max(self.partitions_wanted, self.partitions):
            violated(f"O4 p has {seen.partitions} partitions, acknowledged {self.partitions}")
        there = {value for records in seen.records.values() for _, value in records}
        newest = {self.tried.get(value, ""): offset for offset, value in seen.records.get("c", ())}
        for value, offset in self.acked.items():
            what = self.tried[value]
            gone = (what[0] == "c" and newest.get(what, -1) > offset) or (
                what in seen.starts and offset < seen.starts[what] and not self._is_young(value)
            )
            if value not in there and not gone:
                violated(f"O1 lost: {value} was acknowledged at {offset} of {what}")

    def _is_young(self, value: str) -> bool:
        """Whether no retention by time can have taken it."""
        return (
            value in self.sent_ms and self.sent_ms[value] >= self.now_ms - RETENTION_MS + SLACK_MS
        )

    def _settle_records(
        self, seen: dict[str, list[Record]], violated: Callable[[str], None]
    ) -> None:
        for topic, records in seen.items():
            values = [value for _, value in records]
            if len(set(values)) < len(values):
                violated(f"O3 duplicate in {topic}: {values}")
            for offset, value in records:
                if self.tried.get(value, "").partition(" ")[0] != topic.partition(" ")[0]:
                    violated(f"O3 phantom: {value} in {topic} at {offset}")
                if topic[0] == "p" and self.tried.get(value) != topic:
                    violated(f"O3 {value} of {self.tried.get(value)} is in {topic} at {offset}")
                if self.acked.get(value, offset) != offset:
                    violated(
                        f"O1 moved: {value} was at {self.acked[value]} of {topic}, is at {offset}"
                    )
                if value in self.dead:
                    violated(f"O3 back from a deleted topic: {value} in {topic} at {offset}")
