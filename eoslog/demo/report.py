"""Kills, aborts, fencings and duplicates, counted in the log, not by the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog.coordinator.transactions.state import Cause
from eoslog.demo import faults, plan

if TYPE_CHECKING:
    from eoslog.demo.evidence import Evidence, FoundTransaction


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        what: What happened.
        count: How often.
        records: Records concerned, none of them visible to a read_committed reader, but for
            the lines on commits and resends.
        proof: Where in the log it can be seen.
    """

    what: str
    count: int
    records: int
    proof: str


def rows(evidence: Evidence) -> list[Row]:
    """Count every fault and its outcome; a zero means that the run proved nothing."""
    ingest, workers = evidence.of("ingest"), evidence.of("worker")
    killed = {note["writer"] for note in evidence.noted(faults.KILLED)}
    fenced = {note["writer"] for note in fenced_zombies(evidence)}
    redone = [
        t
        for t in ingest
        if t.aborted
        and evidence.cause(t) == Cause.REQUEST.name
        and evidence.last_of(t.writer) is not t
    ]
    cut = [t for t in [*ingest, *workers] if is_cut_off(evidence, t)]
    resent = resent_batches(evidence)
    return [
        _row(
            "transactions committed (producer)",
            [t for t in ingest if t.committed],
            "commit markers in flights",
        ),
        _row(
            "transactions committed (workers)",
            [t for t in workers if t.committed],
            "commit markers in delays",
        ),
        _row(
            "aborted on purpose and redone",
            redone,
            "abort markers, requested; the writer goes on",
        ),
        _row(
            "producer killed with SIGKILL",
            [t for t in cut if t.writer in killed and t.writer.startswith("ingest")],
            "its last transaction, aborted by another process",
        ),
        _row(
            "worker killed with SIGKILL",
            [t for t in cut if t.writer in killed and t.writer.startswith("worker")],
            "its last transaction, aborted by another process",
        ),
        _row(
            "zombie fenced",
            [t for t in cut if t.writer in fenced],
            "aborted at a higher epoch, nothing of it behind",
        ),
        Row(
            "batches resent, stored once",
            len(resent),
            sum(resent.values()),
            "each place noted holds one batch of a sequence",
        ),
        _row(
            "aggregate written",
            [t for t in evidence.transactions.values() if _wrote(t, plan.CARRIER_DELAYS)],
            "one transaction over carrier_delays",
        ),
    ]


def is_cut_off(evidence: Evidence, transaction: FoundTransaction) -> bool:
    """Say whether another process ended a transaction, and its writer wrote no more."""
    return (
        transaction.aborted
        and evidence.cause(transaction) in (Cause.FENCED.name, Cause.OWNER_DEAD.name)
        and evidence.last_of(transaction.writer) is transaction
        and all(end.epoch > transaction.identity[1] for end in transaction.ends)
    )


def fenced_zombies(evidence: Evidence) -> list[dict[str, str]]:
    """Return the notes of fenced writers that wrote nothing after their fencing."""
    found = []
    for note in evidence.noted(faults.FENCED):
        last = evidence.last_of(note["writer"])
        if note["error"] != "ProducerFenced" or last is None or not is_cut_off(evidence, last):
            continue
        if evidence.cause(last) != Cause.FENCED.name:
            continue
        fence = {(end.topic, end.partition): end.offset for end in last.ends}
        behind = [
            batch
            for batch in evidence.batches
            if batch.writer == note["writer"]
            and batch.last_offset > fence.get((batch.topic, batch.partition), batch.last_offset)
        ]
        if not behind:
            found.append(note)
    return found


def resent_batches(evidence: Evidence) -> dict[tuple[str, int, int], int]:
    """Return the batches that were sent twice and logged once, with their counts.

    A note names places where the log answered a resend with "duplicate". It counts if a batch of
    that writer is at that place. A separate check confirms that no sequence occurs twice.
    """
    found: dict[tuple[str, int, int], int] = {}
    for note in evidence.noted(faults.RESENT):
        for topic, partition, first, last in note["places"]:
            for batch in evidence.batches_between(topic, partition, first, last):
                if batch.writer == note["writer"]:
                    found[topic, partition, batch.base_offset] = batch.count
    return found


def _row(what: str, transactions: list[FoundTransaction], proof: str) -> Row:
    return Row(what, len(transactions), sum(t.records for t in transactions), proof)


def _wrote(transaction: FoundTransaction, topic: str) -> bool:
    return transaction.committed and any(batch.topic == topic for batch in transaction.batches)
