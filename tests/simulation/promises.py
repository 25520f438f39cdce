"""What was promised of the topics that records may be gone from: compacted, trimmed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Record = tuple[int, str]
"""(offset, value)"""


@dataclass
class Promises:
    """What clients were told of these topics.

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

    def settle(
        self, seen: dict[str, list[Record]], start: int, violated: Callable[[str], None]
    ) -> None:
        """All owners are dead and all is recovered; `seen` lacks a topic that does not exist."""
        self.deleting = 0
        for topic, records in seen.items():
            values = [value for _, value in records]
            if len(set(values)) < len(values):
                violated(f"O3 duplicate in {topic}: {values}")
            for offset, value in records:
                if self.tried.get(value, "")[:1] != topic:
                    violated(f"O3 phantom: {value} in {topic} at {offset}")
                if self.acked.get(value, offset) != offset:
                    violated(
                        f"O1 moved: {value} was at {self.acked[value]} of {topic}, is at {offset}"
                    )
                if value in self.dead:
                    violated(f"O3 back from a deleted topic: {value} in {topic} at {offset}")
        if not self.start <= start <= max(self.wanted, self.start):
            violated(f"O5 log start of d: {start}, acknowledged {self.start}, asked {self.wanted}")
        there = {value for records in seen.values() for _, value in records}
        newest = {self.tried.get(value, ""): offset for offset, value in seen.get("c", ())}
        for value, offset in self.acked.items():
            what = self.tried[value]
            gone = (what[0] == "c" and newest.get(what, -1) > offset) or (
                what == "d" and offset < start
            )
            if value not in there and not gone:
                violated(f"O1 lost: {value} was acknowledged at {offset} of {what}")
