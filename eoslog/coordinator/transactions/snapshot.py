"""`Log.snapshot()`: the greatest cut that splits no transaction.

The last stable offsets alone are not such a cut. A transaction may be below the last stable offset
of one partition, and above it in another where an older transaction is open. So the algorithm
starts with the last stable offsets (LSO). Wherever the cut has only a part of a committed
transaction, it is lowered to that transaction's first offset, until nothing changes. Closed cuts
form a lattice, so the result is the greatest one below the start, and later snapshots are never
below earlier ones.

    P1   [t t][U . . .          LSO = 2, U is open
    P2   [v v][t t t][v v]      LSO = 7; T is complete in P1 and P2, V too: E = {2, 7}
    P1   [U . . .][t t]         LSO = 0: T is not complete, so P2 ends before T's first;
    P2   [v v][t t t][v v]      V begins before that and ends after it, so E = {0, 0}

No lock is held: a transaction that commits during the computation is either in the cut or not.

Source: protocol.md "Snapshot", row 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop

from eoslog.coordinator.host import HostLog, TransactionHost
from eoslog.coordinator.transactions.log import TransactionLog, TransactionLogs
from eoslog.coordinator.transactions.log_fold import Decision
from eoslog.coordinator.transactions.markers import MarkerDriver
from eoslog.coordinator.transactions.prepared_records import TransactionKey
from eoslog.coordinator.transactions.state import OffsetSpan
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    IllegalState,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import TopicPartition
from eoslog.storage.directory.directory import NotMade
from eoslog.storage.fs.files import failpoint

Spans = Mapping[TopicPartition, OffsetSpan]
_ANY_TOPIC = bytes(16)
"""The topic id of spans that were decided before topics had ids."""


def closed_cut(
    ends: Mapping[TopicPartition, int], transactions: Iterable[Spans]
) -> dict[TopicPartition, int]:
    """Return the greatest cut at or below `ends` that splits no transaction.

    Args:
        ends: the starting offsets; other partitions are ignored.
        transactions: the spans of each committed transaction.
    """
    cut = dict(ends)
    spans = list(transactions)
    if not any(span.last >= cut[tp] for each in spans for tp, span in each.items() if tp in cut):
        return cut  # the common case: all known transactions are below the cut
    # Per partition, a heap with the transactions by their last offset, the highest on top.
    by_last: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in cut}
    for index, transaction in enumerate(spans):
        for tp, span in transaction.items():
            if tp in cut and not span.empty:
                by_last[tp].append((-span.last, index))
    for heap in by_last.values():
        heapify(heap)
    lowered = list(cut)
    out: set[int] = set()
    while lowered:
        tp = lowered.pop()
        heap = by_last[tp]
        while heap and -heap[0][0] >= cut[tp]:
            _, index = heappop(heap)
            if index in out:
                continue
            out.add(index)
            for other, span in spans[index].items():
                if other in cut and not span.empty and span.first < cut[other]:
                    cut[other] = span.first
                    lowered.append(other)
    return cut


def _present(spans: Spans, ids: Mapping[TopicPartition, bytes]) -> Spans:
    """Drop the spans in re-created topics, which have other records now."""
    for tp, span in spans.items():
        if span.topic_id != ids.get(tp):
            break
    else:
        return spans
    return {
        tp: span
        for tp, span in spans.items()
        if tp in ids and span.topic_id in (_ANY_TOPIC, ids[tp])
    }


def _ends(
    host: TransactionHost,
    logs: TransactionLogs,
    partitions: Iterable[TopicPartition],
    needed: Callable[[TopicPartition], bool],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, HostLog], set[TopicPartition]]:
    """Return last stable offsets, logs, and the partitions that are left out.

    The decisions of the logs are folded after the offsets are read.

    Another process may settle a decision, and the cleaner may remove it from C before this function
    reads C. In that case everything is read again. Decisions that were settled before the ends were
    read are below the ends.

    A partition that cannot be opened is left out, unless it is `needed`.
    """
    wanted = list(partitions)
    while True:
        cleaned = logs.cleaned_to()
        # 3
        ends: dict[TopicPartition, int] = {}
        found: dict[TopicPartition, HostLog] = {}
        left_out = set()
        for tp in wanted:
            try:
                found[tp] = host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                continue  # deleted since the caller listed it
            except NotMade:
                ends[tp] = 0
                continue
            except (CorruptRecord, StorageError) as error:
                if needed(tp):
                    error.add_note(f"{tp} cannot be opened; snapshot(topics) can leave it out")
                    raise
                left_out.add(tp)
                continue
            ends[tp] = found[tp].last_stable_offset
            failpoint("snapshot.end_read")
        # 4: every decision that could have moved those ends was in C before.
        logs.all()
        if logs.cleaned_to() == cleaned:
            return ends, found, left_out


def snapshot(
    host: TransactionHost, logs: TransactionLogs, driver: MarkerDriver,
    partitions: Iterable[TopicPartition], topics: Iterable[str] | None = None,
) -> dict[TopicPartition, int]:  # fmt: skip
    """Return end offsets that split no transaction, for complete topics.

    If a partition of the returned topics cannot be opened, its error is raised. If any other one
    cannot be opened, the cut is computed without it.

    Args:
        host: the engine.
        logs: the coordinator's logs.
        driver: writes the markers that are still missing.
        partitions: every partition over which the cut is computed.
        topics: the topics to return; None means those of `partitions`.

    Returns:
        The end offset (exclusive) of each partition. Transactions that were committed before the
        call are below it, unless a marker cannot be written or an older transaction is open.
    """
    # 1, 2: transactions that are decided now should be visible. The flush comes first, because a
    # decision that is not durable must not be acted on.
    for clog in logs.all():
        if host.read_only:
            continue  # transactions without markers stay above the last stable offsets
        pending = [d for d in clog.decisions() if not d.complete]
        if pending:
            clog.make_durable(max(d.offset for d in pending))
        for decision in pending:
            try:
                driver.drive(clog, decision.decided.key)
            except IllegalState:
                raise
            except EoslogError:
                continue  # the transaction stays above the last stable offsets
    with logs.cutting():
        wanted = None if topics is None else set(topics)
        ends, found, _ = _ends(
            host, logs, partitions, lambda tp: wanted is None or tp.topic in wanted
        )
        # 5, 6
        ids = {tp: log.topic_id for tp, log in found.items()}
        cut = closed_cut(ends, (_present(d.spans, ids) for _, d in logs.decisions() if d.commit))
    # Records below the log start are deleted, so a cut below it would show no more of them.
    starts = {tp: log.log_start for tp, log in found.items()}
    cut = {tp: max(end, starts.get(tp, 0)) for tp, end in cut.items()}
    if wanted is None:
        return cut
    return {tp: end for tp, end in cut.items() if tp.topic in wanted}


def settled(
    host: TransactionHost, logs: TransactionLogs
) -> list[tuple[TransactionLog, TransactionKey]]:
    """Return the decisions that can be dropped.

    These are complete, have durable markers only, and are below a closed cut in every partition.
    Every later snapshot is at or above that cut, so it cannot split them. A snapshot that is
    running now can, so `TransactionLogs.forget` keeps them until it ends. A decision about a
    partition that cannot be opened now stays.
    """
    logs.all()
    before = [decision for _, decision in logs.decisions()]
    candidates = set(map(id, before))
    named = set().union(*(d.spans for d in before))
    ends, found, closed = _ends(host, logs, named, lambda _: False)
    durable = {tp: log.flushed_end for tp, log in found.items()}
    ids = {tp: log.topic_id for tp, log in found.items()}
    known = [(clog, d, _present(d.spans, ids)) for clog, d in logs.decisions()]
    cut = closed_cut(ends, (spans for _, d, spans in known if d.commit))
    places = {tp: (log, durable[tp], cut[tp]) for tp, log in found.items()}

    def done(decision: Decision, spans: Spans) -> bool:
        can_go = True
        for tp, span in spans.items():
            log, durable_end, limit = places[tp]
            closed = _closed_at(decision, tp, log)
            if closed is None or durable_end < closed or (decision.commit and span.last >= limit):
                can_go = False
        return can_go

    return [
        (clog, d.decided.key)
        for clog, d, spans in known
        if d.complete and id(d) in candidates and closed.isdisjoint(d.spans) and done(d, spans)
    ]


def _closed_at(decision: Decision, tp: TopicPartition, log: HostLog) -> int | None:
    """Return a log end at which the transaction was closed; None while it is open.

    The offset in COMPLETE_* is not enough: a power loss may have taken that marker, and another
    process may have written it again. Once seen closed, the transaction stays closed during the
    session.
    """
    closed = decision.closed.get(tp)
    if closed is None:
        decided = decision.decided
        found = log.open_transaction(decided.producer_id)
        if found is None or found[0] != decided.data_epoch:
            # Read last, so that the marker is below it.
            closed = decision.closed[tp] = log.log_end
    return closed
