"""Reports of check, repair, backup, import and applications, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eoslog.shown_paths import shown

__all__ = [
    "BackupReport",
    "CheckReport",
    "Damage",
    "ImportReport",
    "Problem",
    "RepairReport",
    "RunReport",
    "TornTransaction",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding of a check, or a change of a repair.

    Reports contain it::

        for problem in log.check().problems:
            print(problem.path, problem.position, problem.message)

    Attributes:
        path: the file.
        position: the position in the file, in bytes.
        message: what is wrong, or what was changed.
        lost_records: the number of records that are lost.
    """

    path: str
    position: int
    message: str
    lost_records: int = 0

    def __post_init__(self) -> None:
        """Translate internal file names into the caller's paths."""
        object.__setattr__(self, "path", shown(self.path))
        object.__setattr__(self, "message", shown(self.message))


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `Log.check` and `eoslog.check`.

    `ok` is True if there are no problems::

        report = log.check()
        print(report.ok, report.records)

    Attributes:
        partitions: the number of partitions that were read.
        batches: the number of complete batches in them.
        records: the number of records in these batches.
        problems: the problems that were found.
        notes: traces of an earlier repair, which are not damage: offsets without records, and
            copies of removed bytes.
        rebuilt: the paths of derived files that `fix_indexes` rebuilt.
    """

    partitions: int
    batches: int
    records: int
    problems: Sequence[Problem] = ()
    notes: Sequence[Problem] = ()
    rebuilt: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of `Log.backup`.

    It has the size of the copy, and the problems that a check of the copy found::

        report = log.backup("shop-copy")
        print(report.path, report.bytes, report.problems)

    Attributes:
        path: the directory of the copy.
        partitions: the number of partitions, including those of internal topics.
        bytes: the number of bytes.
        problems: the problems in the copy, which are in the original too.
    """

    path: str
    partitions: int
    bytes: int
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of `import_kafka_dir`.

    It lists the topics that were imported::

        report = eoslog.import_kafka_dir("kafka-logs", "imported")
        print(report.topics, report.problems)

    Attributes:
        path: the new log directory.
        topics: the imported topics.
        partitions: the number of partitions.
        bytes_linked: the bytes of `.log` files that were hard-linked.
        bytes_copied: the bytes of `.log` files that were copied.
        bytes_cut: the bytes that recovery truncated.
        problems: what recovery truncated, what a log lacks, and what was left out.
    """

    path: str
    topics: Sequence[str]
    partitions: int
    bytes_linked: int = 0
    bytes_copied: int = 0
    bytes_cut: int = 0
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged run of bytes in a segment, and what each repair of it would lose.

    `RepairReport.damage` contains it::

        for damage in eoslog.repair("shop").damage:
            print(damage.path, damage.position, damage.size)

    Attributes:
        topic: the topic.
        partition: the partition number.
        path: the segment's `.log` file.
        position: the position of its first byte in the file.
        size: the number of bytes.
        first_offset: the first offset that is lost.
        last_offset: the last offset that is lost; below `first_offset` if none is known to be lost.
        before_ms: the largest timestamp of the batch before it; -1 if there is none.
        after_ms: the largest timestamp of the batch after it; -1 if there is none.
        records_after: the number of readable records after it in the partition, which "cut" removes
            and "skip" keeps.
        bytes_after: the number of bytes after it in the partition.
        copy: the file in which the repair keeps its bytes; None in a report.
    """

    topic: str
    partition: int
    path: str
    position: int
    size: int
    first_offset: int
    last_offset: int
    before_ms: int
    after_ms: int
    records_after: int
    bytes_after: int
    copy: str | None = None


@dataclass(frozen=True, slots=True)
class TornTransaction:
    """A transaction that was open at a damaged batch or a missing segment.

    A part of it may be lost.

    `RepairReport.torn` contains it::

        for transaction in eoslog.repair("shop").torn:
            print(transaction.transactional_id, transaction.lost)

    Attributes:
        topic: the topic.
        partition: the partition number.
        producer_id: the producer id of the transaction.
        producer_epoch: the epoch of its records.
        transactional_id: its transactional id; None if `__transaction_state` no longer has it.
        first_offset: its first offset in the partition.
        lost: "records", "marker" (the repair writes it again) or "unknown".
        outcome: "commit" or "abort"; None if it is decided when the log is opened next.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    first_offset: int
    lost: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of `repair`.

    It has what was found and, unless `mode` is "report", what was changed.

    The default mode changes nothing::

        report = eoslog.repair("shop")
        print(report.ok, report.damage)

    Attributes:
        mode: the mode of the call.
        partitions: the number of partitions that were read.
        problems: the problems that were found.
        bytes_cut: the number of bytes that were removed from the log.
        damage: the damaged runs of bytes; empty for "as-kafka". A cut begins at the first one of a
            partition.
        torn: transactions that "skip" splits, or would split.
        kept: the paths of copies of removed bytes.
        refused: what "skip" left as it is, and why.
    """

    mode: str
    partitions: int
    problems: Sequence[Problem] = ()
    bytes_cut: int = 0
    damage: Sequence[Damage] = ()
    torn: Sequence[TornTransaction] = ()
    kept: Sequence[str] = ()
    refused: Sequence[Problem] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing had to be repaired."""
        return not self.problems


@dataclass(slots=True)
class RunReport:
    """What a run of an application has done.

    `App.run` returns it::

        app = eoslog.App("shop", "billing")

        @app.task("orders")
        def count(record, ctx): ...

        report = app.run(until="caught_up")
        print(report.records, report.transactions)

    Attributes:
        records: the number of input records whose results are committed.
        transactions: the number of transactions that were committed.
        aborted: the number of transactions that were aborted; their records were read again.
        retried: the number of records that failed and were kept for another attempt.
        skipped: the number of records that failed and were skipped.
        dead_letters: the number of records that failed and went to the dead letters.
        seconds: how long the run took.
    """

    records: int = 0
    transactions: int = 0
    aborted: int = 0
    retried: int = 0
    skipped: int = 0
    dead_letters: int = 0
    seconds: float = 0.0
