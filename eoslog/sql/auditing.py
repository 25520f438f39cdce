"""Comparison of a log with a database, after one of them was restored.

A restored side has lost its last commits, and the other one has not:

    database older    the log has committed transactions of which the database has no row C, or
                      the log has deleted records that the database has not applied
    log older         the database has rows C of transactions that the log does not know, or
                      offsets that the log has not reached
    both              one has committed what the other has aborted

The database keeps the row C of the last transaction of each transactional id (`outcome_book.py`),
so one missing row shows that it is older.

Programs may run: the rows are read before the log and again after it, so a transaction that
commits in between is not a disagreement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from eoslog._util.arguments import shown
from eoslog.coordinator.transactions.prepared_records import PreparedEntry
from eoslog.engine.engine import Engine
from eoslog.engine.prepared_view import decode_meta
from eoslog.errors import ConfigError, DatabaseError, UnknownTopicOrPartition
from eoslog.sql.database import META_KEY, Database
from eoslog.sql.offsets import AppliedOffset, all_offsets
from eoslog.sql.older_logs import is_future
from eoslog.sql.outcome_book import owner_of
from eoslog.sql.outcomes import OutcomeRow, all_outcomes

__all__ = ["AuditFinding", "AuditReport", "Kind", "audit"]

Kind = Literal[
    "database-older", "log-older", "outcome-conflict", "records-missing", "other-database",
    "undecided", "topic-unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A disagreement between a log and a database, or a note.

    Reports contain it::

        for finding in eoslog.sql.audit(log, database).findings:
            print(finding.kind, finding.subject, finding.message)

    Attributes:
        kind: "database-older" if the database has lost a transaction that the log has committed.
            "log-older" if the log has lost what the database has. "outcome-conflict" if one has
            committed and the other has aborted. "records-missing" if the log has deleted records
            that the database has not applied. "other-database" if the log was used with another
            database of this name. Of a note: "undecided", "topic-unknown".
        subject: the token, or the group and the partition.
        message: what is wrong, and what to do.
    """

    kind: Kind
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of `eoslog.sql.audit`.

    `ok` is True if the two sides agree::

        report = eoslog.sql.audit(log, database)
        print(report.ok, report.transactions, report.offsets)

    Attributes:
        transactions: the number of transactions of the database that the log knows.
        outcomes: the number of outcome rows of this log in the database.
        offsets: the number of stored offsets in the database.
        findings: the disagreements.
        notes: what the next start of the programs completes, and offsets of unknown topics.
    """

    transactions: int
    outcomes: int
    offsets: int
    findings: Sequence[AuditFinding] = ()
    notes: Sequence[AuditFinding] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no disagreements."""
        return not self.findings


def audit(log: Any, database: Database) -> AuditReport:
    """Find disagreements between a log and a database. Nothing is changed.

    Call it after one of them was restored from a copy, before the programs start.

    Args:
        log: the open log; it may be read-only.
        database: the database.

    Returns:
        The findings.

    Raises:
        DatabaseError: if the database has no tables of eoslog, or tables of another version.
        DatabaseUnavailable: if the database is down or too slow; call again.
        ConfigError: if an argument is invalid, or the file of SQLite does not exist.
    """
    engine = getattr(log, "_engine", None)
    if not isinstance(engine, Engine):
        raise ConfigError(f"audit: expected an open log, got {shown(log)}")
    if not isinstance(database, Database):
        raise ConfigError(f"audit: expected an eoslog.sql.Database, got {shown(database)}")
    return _Audit(engine, database).report()


class _Audit:
    """One comparison."""

    def __init__(self, engine: Engine, database: Database) -> None:
        """Read both sides."""
        self._engine = engine
        self._text = database._source.text
        self._id, before, self._offsets = _contents(database)
        self._known = dict(engine.transactions.prepared.index.known())
        _, after, _ = _contents(database)
        mine = f"{engine.properties.cluster_id}:"
        self._before = [row for row in before if row.token.startswith(mine)]
        self._after = [row for row in after if row.token.startswith(mine)]
        self._name = database._name
        self._mine = {t: e for t, e in self._known.items() if _database_of(e) == self._id}

    def report(self) -> AuditReport:
        """Compare the two sides."""
        found = [*self._outcomes(), *self._lost_by_the_database(), *self._others(), *self._reads()]
        notes = [one for one in found if one.kind in ("undecided", "topic-unknown")]
        findings = [one for one in found if one not in notes]
        return AuditReport(len(self._mine), len(self._before), len(self._offsets), findings, notes)

    # Outcomes.

    def _outcomes(self) -> Iterator[AuditFinding]:
        retention = self._engine.config.outcome_retention_ms
        now = self._engine.clock_ms()
        for row in self._before:
            entry = self._known.get(row.token)
            if entry is None:
                recent = retention < 0 or row.at_ms > now - retention
                if row.commit and (recent or is_future(self._engine, row.token)):
                    yield AuditFinding(
                        "log-older", row.token,
                        f"{row.token}: the database committed it at {_time(row.at_ms)}, and the "
                        "log does not know the token, so the log is an older copy; restore a "
                        "newer one, or produce the records of its rows again",
                    )  # fmt: skip
            elif entry.commit is None:
                if row.commit:
                    yield AuditFinding(
                        "undecided", row.token,
                        f"{row.token}: the database has committed it, and the log has not decided; "
                        "start the program, or run `eoslog txn resolve TOKEN commit`",
                    )  # fmt: skip
            elif entry.commit != row.commit:
                yield AuditFinding(
                    "outcome-conflict", row.token,
                    f"{row.token}: the database has {_word(row.commit)} it at {_time(row.at_ms)}, "
                    f"and the log has {_word(entry.commit)} it at {_time(entry.decided_at_ms)}; "
                    "both decisions stand, so repair the rows of the program by hand",
                )  # fmt: skip

    def _lost_by_the_database(self) -> Iterator[AuditFinding]:
        """Yield what the log has committed since the last row C of the same producer."""
        last: dict[str, int] = {}
        for row in self._after:
            if row.commit:
                owner, epoch = owner_of(row.token)
                last[owner] = max(epoch, last.get(owner, -1))
        decided = {row.token for row in self._before}  # a tombstone is a conflict instead
        for token, entry in sorted(self._mine.items(), key=lambda item: item[1].decided_at_ms):
            owner, epoch = owner_of(token)
            if entry.commit and token not in decided and epoch > last.get(owner, -1):
                some = "" if owner in last else ", or its rows were deleted by hand"
                yield AuditFinding(
                    "database-older", token,
                    f"{token}: the log committed it at {_time(entry.decided_at_ms)}, and the "
                    f"database has no outcome of it, so the database is an older copy{some}; "
                    "restore a newer one, or apply its records again (transactional id "
                    f"{entry.transactional_id!r})",
                )  # fmt: skip

    def _others(self) -> Iterator[AuditFinding]:
        if self._name is None:
            return
        for token, entry in self._known.items():
            other = _database_of(entry)
            if entry.resolver == self._name and other not in (None, self._id):
                yield AuditFinding(
                    "other-database", token,
                    f"{token}: it was prepared with the database {self._name!r} of id {other}, and "
                    f"{self._text} has id {self._id}; connect to that database, or restore it",
                )  # fmt: skip

    # Offsets.

    def _reads(self) -> Iterator[AuditFinding]:
        for stored in self._offsets:
            subject = f"{stored.consumer} {stored.topic}-{stored.partition}"
            try:
                part = self._engine.partition(stored.topic, stored.partition)
                known = part.topic_id.hex() == stored.topic_id
            except UnknownTopicOrPartition:
                known = False
            if not known:
                yield AuditFinding(
                    "topic-unknown", subject,
                    f"group {stored.consumer!r}: the database has read {stored.topic}-"
                    f"{stored.partition} of topic id {stored.topic_id}, and the log has no such "
                    "partition; if the topic was not deleted, the log is an older copy",
                )  # fmt: skip
            elif stored.next_offset > part.log_end:
                yield AuditFinding(
                    "log-older", subject,
                    f"group {stored.consumer!r}: the database has applied {stored.topic}-"
                    f"{stored.partition} up to offset {stored.next_offset}, and the log ends at "
                    f"{part.log_end}, so the log is an older copy; restore a newer one, or set the "
                    "offset in the database back, so that new records at these offsets are read",
                )  # fmt: skip
            elif stored.next_offset < part.log_start:
                yield AuditFinding(
                    "records-missing", subject,
                    f"group {stored.consumer!r}: the database has applied {stored.topic}-"
                    f"{stored.partition} up to offset {stored.next_offset}, and the log begins at "
                    f"{part.log_start}; restore a newer copy of the database, or read the records "
                    "between from a backup of the log",
                )  # fmt: skip


def _contents(database: Database) -> tuple[str, list[OutcomeRow], list[AppliedOffset]]:
    """Read the tables of a database, without creating them."""
    database._require_file("audit")
    session = database._connect()
    try:
        tables = database._tables
        found = tables.read_id(session)
        if found is None:
            raise DatabaseError(
                f"{database._source.text}: it has no tables {tables.prefix}*, so it was never used "
                "with eoslog, or is a copy from before; check the name of the database and the "
                "prefix"
            )
        outcomes = all_outcomes(session, tables)
        return found, outcomes, all_offsets(session, tables)
    finally:
        session.close()


def _database_of(entry: PreparedEntry) -> str | None:
    meta = decode_meta(entry.meta)
    return meta.get(META_KEY) if isinstance(meta, dict) else None


def _word(commit: bool | None) -> str:
    return "committed" if commit else "aborted"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
