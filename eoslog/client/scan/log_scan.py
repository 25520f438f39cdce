"""A scan of a topic in an open directory: bounds and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import as_list_of, shown
from eoslog.client.offset_arguments import bound_of
from eoslog.client.scan.pieces import READ_SIZE, Piece
from eoslog.client.scan.scan import Bound, Scan, Source, is_committed
from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine
    from eoslog.storage.log.partition_log import PartitionLog

__all__ = ["ScanOptions", "scan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """The options of a scan; `Log.scan` describes them."""

    partitions: Sequence[int] | None = None
    start: Bound = None
    end: Bound = None
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED
    columns: Sequence[str] | None = None
    batch_rows: int = 65536
    binary: str | None = None
    key: Any = None
    value: Any = None
    schema: Any = None


def scan(engine: Engine, topic: str, options: ScanOptions) -> Scan:
    """Create a scan of a topic; `Log.scan` describes the options.

    Raises:
        UnknownTopicOrPartition: if the topic or a partition does not exist.
        OffsetOutOfRange: if a start is below a log start, or a partition's own start is beyond its
            log end, or a partition's own end is above the last readable offset.
        ConfigError: if a column, isolation level or value of `binary` is unknown.
    """
    committed = is_committed(options.isolation)
    if not isinstance(topic, str):
        raise ConfigError(f"topic: expected the name of one topic, got {shown(topic)}")
    start, end = bound_of("start", options.start), bound_of("end", options.end)
    partitions = options.partitions
    if partitions is not None:
        partitions = as_list_of(int, "partitions", "numbers", partitions)
    known = engine.topic(topic).partitions
    numbers = sorted(known) if partitions is None else list(dict.fromkeys(partitions))
    bounds = [one for one in (start, end) if isinstance(one, Mapping)]
    named = [tp.partition for bound in bounds for tp in bound if tp.topic == topic]
    missing = [number for number in (*numbers, *named) if number not in known]
    if missing:
        raise UnknownTopicOrPartition(
            f"topic {shown(topic)} has no partition {missing[0]}; it has the partitions 0 to "
            f"{len(known) - 1}"
        )
    sources = []
    for number in numbers:
        if isinstance(end, Mapping) and TopicPartition(topic, number) not in end:
            continue  # created after the snapshot, so not part of it
        log = engine.partition(topic, number)
        bound = log.last_stable_offset if committed else log.high_watermark
        wanted = _bound(end, log)
        if isinstance(end, Mapping) and wanted is not None and wanted > bound:
            raise OffsetOutOfRange(
                f"{log.topic}-{log.partition}: end {wanted} is above the last readable offset, "
                f"{bound}; pass a lower end, or None"
            )
        first = _bound(start, log)
        if isinstance(start, Mapping) and first is not None and first > log.log_end:
            raise OffsetOutOfRange(
                f"{log.name}: start {first} is beyond the log end {log.log_end}; pass a lower "
                "start, or None"
            )
        sources.append(_log_source(log, first, wanted, bound, committed))
    shape: dict[str, Any] = {
        "columns": options.columns, "batch_rows": options.batch_rows, "binary": options.binary,
    }  # fmt: skip
    formats = {"key": options.key, "value": options.value, "schema": options.schema}
    if all(one is None for one in formats.values()):
        return Scan(sources, **shape)
    from eoslog.client.scan.formatted import FormattedScan

    return FormattedScan(sources, **shape, **formats)


def _log_source(
    log: PartitionLog, start: int | None, end: int | None, bound: int, committed: bool
) -> Source:
    log_start = log.log_start
    if start is None:
        start = log_start
    elif start < log_start:
        raise OffsetOutOfRange(
            f"{log.topic}-{log.partition}: start {start} is below the log start {log_start}; pass "
            "a higher start, or None"
        )

    def pieces(start: int, end: int) -> Iterator[Piece]:
        while start < end:
            slices = log.read(start, end, READ_SIZE)
            if not slices:
                return
            for piece in slices:
                yield Piece(piece.data, piece.path, piece.position)
            start = slices[-1].next_offset

    return Source(
        log.topic, log.partition, start, bound if end is None else min(end, bound), pieces,
        log.aborted if committed else None, epochs=lambda: log.leader_epochs,
    )  # fmt: skip


def _bound(bound: Bound, log: PartitionLog) -> int | None:
    """The bound of this partition, or None if its own start or end applies."""
    if isinstance(bound, Mapping):
        return bound.get(TopicPartition(log.topic, log.partition))
    return bound
