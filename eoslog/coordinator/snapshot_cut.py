"""`Log.snapshot()`: the greatest cut through all partitions that divides no transaction.

Last stable offsets alone do not give it: a transaction may lie below the last stable offset in one
partition and, held up there by a neighbour, above it in another. So the vector of last stable
offsets is lowered, wherever it would show a committed transaction only in part, to that
transaction's first offset, until nothing changes. Closed cuts form a lattice, so the result is the
greatest one below the starting vector, and later snapshots are never below earlier ones.

    P1   [t t][U . . .          LSO = 2, U is open
    P2   [v v][t t t][v v]      LSO = 7; T is whole in P1 and P2, V too: E = {2, 7}
    P1   [U . . .][t t]         LSO = 0: T is not whole, so P2 ends before T's first;
    P2   [v v][t t t][v v]      V begins before that and ends after it, so E = {0, 0}

Nothing is locked, no gate is closed: what is committed while this runs is either in or out.

Source: protocol.md "Snapshot", row 13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop

from eoslog.coordinator.host import Host, HostLog
from eoslog.coordinator.markers import MarkerDriver
from eoslog.coordinator.transaction_log import Decision, Key, TransactionLog, TransactionLogs
from eoslog.coordinator.transaction_state import Span
from eoslog.errors import EoslogError, IllegalState, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from eoslog.storage.files import failpoint

Spans = Mapping[TopicPartition, Span]
_ANY_TOPIC = bytes(16)
"""What a span says that was decided before topics had ids."""


def closed_cut(
    ends: Mapping[TopicPartition, int], transactions: Iterable[Spans]
) -> dict[TopicPartition, int]:
    """The greatest cut at or below `ends` that holds each transaction whole or not at all.

    Args:
        ends: the starting vector; partitions that are not in it do not matter.
        transactions: the spans of each committed transaction.
    """
    cut = dict(ends)
    spans = list(transactions)
    if not any(span.last >= cut[tp] for each in spans for tp, span in each.items() if tp in cut):
        return cut  # nearly always: all that is known lies below
    # Per partition, the transactions whose last record is not below the cut are at the top.
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
    """Without the spans in topics that were deleted and made anew: other records lie there now."""
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
    host: Host, logs: TransactionLogs, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, HostLog]]:
    """The last stable offsets, and their logs; every decision that could have moved them is folded.

    Another process may settle what divides them, and C be cleaned of it before it is read here:
    then it is all begun anew, for what was settled before the ends were read lies below them.
    """
    wanted = list(partitions)
    while True:
        cleaned = logs.cleaned_to()
        # 3
        ends: dict[TopicPartition, int] = {}
        found: dict[TopicPartition, HostLog] = {}
        for tp in wanted:
            try:
                found[tp] = host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                continue  # deleted meanwhile
            ends[tp] = found[tp].last_stable_offset
            failpoint("snapshot.end_read")
        # 4: whatever could have moved those ends was in C before.
        logs.all()
        if logs.cleaned_to() == cleaned:
            return ends, found


def snapshot(
    host: Host, logs: TransactionLogs, driver: MarkerDriver,
    partitions: Iterable[TopicPartition], topics: Iterable[str] | None = None,
) -> dict[TopicPartition, int]:  # fmt: skip
    """End offsets that divide no transaction, for whole topics.

    Args:
        host: the engine.
        logs: the coordinator's logs.
        driver: writes the markers that are still missing.
        partitions: every partition to compute the cut over.
        topics: the topics to answer for; None: all of `partitions`.

    Returns:
        The end offset (exclusive) of each partition. What was committed before the call is in it,
        unless a partition's marker cannot be written or an older open transaction is in the way.
    """
    # 1, 2: what is decided now shall be visible. The flush comes first: an undurable decision must
    # not be acted on, and need not be in a snapshot.
    for clog in logs.all():
        if host.read_only:
            continue  # what is not driven yet is held back by its partitions' last stable offsets
        pending = [d for d in clog.decisions() if not d.complete]
        if pending:
            clog.make_durable(max(d.offset for d in pending))
        for decision in pending:
            try:
                driver.drive(clog, decision.decided.key)
            except IllegalState:
                raise
            except EoslogError:
                continue  # its partitions' last stable offsets hold it back
    with logs.cutting():
        ends, found = _ends(host, logs, partitions)
        # 5, 6
        ids = {tp: log.topic_id for tp, log in found.items()}
        cut = closed_cut(ends, (_present(d.spans, ids) for _, d in logs.decisions() if d.commit))
    if topics is None:
        return cut
    wanted = set(topics)
    return {tp: end for tp, end in cut.items() if tp.topic in wanted}


def settled(host: Host, logs: TransactionLogs) -> list[tuple[TransactionLog, Key]]:
    """The decisions that nobody needs any more.

    Complete, every marker durable, and below a closed cut in every partition: every later snapshot
    is at or above that cut, so none can divide them. One under way can: `TransactionLogs.forget`.
    """
    logs.all()
    before = [decision for _, decision in logs.decisions()]
    candidates = set(map(id, before))
    ends, found = _ends(host, logs, set().union(*(d.spans for d in before)))
    durable = {tp: log.high_watermark for tp, log in found.items()}
    ids = {tp: log.topic_id for tp, log in found.items()}
    known = [(clog, d, _present(d.spans, ids)) for clog, d in logs.decisions()]
    cut = closed_cut(ends, (spans for _, d, spans in known if d.commit))

    def done(decision: Decision, spans: Spans) -> bool:
        for tp in spans:
            _look(decision, tp, found[tp])
        return all(
            durable[tp] >= decision.closed.get(tp, durable[tp] + 1)
            and (span.last < cut[tp] or not decision.commit)
            for tp, span in spans.items()
        )

    return [
        (clog, d.decided.key)
        for clog, d, spans in known
        if d.complete and id(d) in candidates and done(d, spans)
    ]


def _look(decision: Decision, tp: TopicPartition, log: HostLog) -> None:
    """Note where the log ends if the transaction is no longer open there.

    Not what COMPLETE says of the marker: a power cut may have taken that one, and who wrote it
    again is another process. Once it is seen closed it stays so, for as long as the session.
    """
    if tp not in decision.closed:
        producer_id, epoch = decision.decided.key
        found = log.open_transaction(producer_id)
        if found is None or found[0] != epoch:
            decision.closed[tp] = log.log_end  # read last: the marker lies below
