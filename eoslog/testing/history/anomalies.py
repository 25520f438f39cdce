"""Anomalies of a history, named as in Jepsen's Kafka tests and Elle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

ANOMALIES = {
    "inconsistent-offset": "one offset of one partition held two values",
    "duplicate": "one value is at two offsets",
    "phantom": "a value was read that was never sent",
    "aborted-read": "read_committed showed a value of an aborted transaction or refused send (G1a)",
    "dirty-read": "read_committed showed a value before its commit was requested",
    "precommitted-read": "a process read its own value before it requested the commit",
    "lost-write": "an acknowledged value is not in the log",
    "torn-txn": "a part of a transaction took effect, and another part did not",
    "read-then-lost": "a value was read, and is no longer in the log",
    "nonmonotonic-send": "a producer's values are not in the order in which they were sent",
    "nonmonotonic-poll": "a consumer went back without a seek or a rewind",
    "poll-skip": "a reader passed a committed value without returning it",
    "lso-went-back": "the last stable offset or the high watermark decreased",
    "read-past-lso": "read_committed showed an offset that a later last stable offset excludes",
    "zombie-commit": "a fenced producer's transaction was committed",
    "two-decisions": "a prepared transaction was reported as committed and as aborted",
    "unasked-decision": "a prepared transaction has an outcome that no process requested",
    "undecided-again": "an outcome was unknown after its decision, or was lost",
    "consumed-twice": "two committed transactions consumed the same input",
    "consumed-not-produced": "a group's offset is beyond the end of the log",
    "offset-went-back": "a group's committed offset decreased",
    "stale-read": "a read that began after a commit did not show it, and no transaction blocked it",
    "G1c": "transactions read each other's writes in a cycle",
}  # fmt: skip
"""Name and meaning. Not in the list, since Kafka's model allows them: write-write cycles between
transactions (G0) and values of other transactions between two of one's own."""


@dataclass(frozen=True)
class Anomaly:
    """One finding: a name out of `ANOMALIES`, and the values that disagree."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass
class Report:
    """The result of a check and its extent: a check of nothing proves nothing."""

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    undrained: list[str] = field(default_factory=list)
    """Partitions with acknowledged values and without a drain: losses in them are not found."""

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.anomalies

    @property
    def names(self) -> set[str]:
        """Which kinds were found."""
        return {anomaly.name for anomaly in self.anomalies}

    def lines(self, most: int = 20) -> Sequence[str]:
        """The findings as text, the first `most` of them."""
        shown = [str(anomaly) for anomaly in self.anomalies[:most]]
        rest = len(self.anomalies) - len(shown)
        return [*shown, f"and {rest} more"] if rest else shown
