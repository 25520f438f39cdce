"""Bulk reads: the records of partitions as Arrow record batches.

A scan goes over its partitions one after the other. Where each begins and ends is fixed when the
scan is made; nothing is read before the first batch is asked for, and every iteration reads anew.
With `binary="view"` keys and values point into the mapped segment: no value is copied, and the
mapping stays as long as a batch of it lives.

Source: Arrow columnar format (Variable-size Binary View), Arrow C stream interface.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eoslog import _core
from eoslog.arguments import as_int, as_list_of, as_path
from eoslog.client import arrow
from eoslog.client.file_pieces import READ_SIZE, FilePieces, Piece
from eoslog.client.offsets import bound_of
from eoslog.errors import ConfigError, CorruptRecord, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import IsolationLevel, TopicPartition
from eoslog.storage import running_broker, segment_files, settled_listing
from eoslog.storage.segment_files import SegmentFiles
from eoslog.storage.settled_listing import settled_segments

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog._core import Record
    from eoslog.engine import Engine
    from eoslog.storage.partition_log import PartitionLog

__all__ = ["Bound", "Scan", "SegmentRange", "read_segments", "scan", "segment_range"]

Bound = int | Mapping[TopicPartition, int] | None
"""One offset for all partitions, or one each; None leaves it to the partition."""

BATCH_BYTES = 64 << 20
"""A record batch ends early when the batches in it are this long, whatever its rows."""

COPY_BYTES = 8 << 20
"""The same where values are copied: what memory is used again for while it is still warm."""

ROWS = 10_000
"""Records that `Scan.records` makes at once."""

_NO_END = (1 << 63) - 1


class Pieces(Protocol):
    """Whole batches of a partition from an offset on, in order."""

    def __call__(self, start: int, end: int) -> Iterator[Piece]:
        """Pieces; what one cuts in two stands whole in the next one."""


@dataclass(frozen=True)
class Source:
    """One partition of a scan, with its bounds."""

    topic: str
    partition: int
    start: int
    end: int
    pieces: Callable[[int, int], Iterator[Piece]]
    aborted: Callable[[int, int], Sequence[tuple[int, int, int]]] | None
    """None with read_uncommitted."""
    damage: CorruptRecord | None = None
    """What stands at `end`, where the end is damage."""


class Scan:
    """Records of one or more partitions as columns; iterable any number of times.

    Speaks the Arrow C stream interface, so that `pyarrow.table(scan)`, `polars.DataFrame(scan)` or
    DuckDB take it as it is; what gives pyarrow's own classes needs pyarrow (else ConfigError). One
    scan may be read by several threads: each iteration is its own.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        columns: Sequence[str] | None = None,
        batch_rows: int = 65536,
        binary: str = "view",
        flat: bool = False,
    ) -> None:
        """Made by `Log.scan` and `read_segments`; `flat` by the Spark source."""
        if binary not in ("view", "copy"):
            raise ConfigError(f'binary is "view" or "copy", not {binary!r}')
        if columns is not None:
            columns = as_list_of(str, "columns", "names", columns)
        if not 1 <= as_int("batch_rows", batch_rows) <= (1 << 31) - 1:
            raise ConfigError(f"batch_rows must be 1 to 2147483647, not {batch_rows}")
        self._sources = list(sources)
        self._columns = list(arrow.COLUMNS if columns is None else columns)
        self._view = binary == "view"
        self._batch_rows = batch_rows
        self._flat = flat
        self._fields = arrow.fields_of(self._columns, view=self._view, flat=flat)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        return arrow.schema_of(self._columns, view=self._view, flat=self._flat)

    @property
    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """Start and end offset (exclusive) of each partition, as fixed when the scan was made."""
        return {TopicPartition(s.topic, s.partition): (s.start, s.end) for s in self._sources}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches of at most `batch_rows` rows, none of them empty.

        Raises:
            CorruptRecord: after the batches before the damage.
            OffsetOutOfRange: retention deleted what was still to come.
            UnknownTopicOrPartition: the topic was deleted meanwhile.
        """
        arrow.require_pyarrow()  # said before anything is read
        for columns in self._batches():
            yield arrow.record_batch(columns)

    def _batches(self) -> Iterator[arrow.Columns]:
        topics = sorted({source.topic for source in self._sources})
        decoder = _core.ColumnDecoder(
            arrow.decoded_columns(self._columns),
            view=self._view,
            flat=self._flat,
            max_rows=self._batch_rows,
            max_bytes=BATCH_BYTES if self._view else COPY_BYTES,
        )
        for source in self._sources:
            yield from self._read(source, topics, decoder)

    def _read(
        self, source: Source, topics: list[str], decoder: _core.ColumnDecoder
    ) -> Iterator[arrow.Columns]:
        offset, end = source.start, source.end
        if offset < end:
            aborted = None
            if source.aborted is not None:
                aborted = _core.AbortedTransactions(source.aborted(offset, end))
            try:
                for piece in source.pieces(offset, end):
                    position = 0
                    while True:
                        try:
                            offset, position = decoder.feed(
                                piece.data, position, offset, end, aborted
                            )
                        except CorruptRecord as error:
                            raise _located(error, source, piece) from error
                        if not decoder.full:
                            break
                        yield from self._taken(decoder, source, topics)
            except (CorruptRecord, OffsetOutOfRange, UnknownTopicOrPartition):
                yield from self._taken(decoder, source, topics)
                raise
            yield from self._taken(decoder, source, topics)
        if source.damage is not None:
            raise source.damage

    def _taken(
        self, decoder: _core.ColumnDecoder, source: Source, topics: list[str]
    ) -> Iterator[arrow.Columns]:
        if not decoder.rows:
            return
        taken, topic = decoder.take(), topics.index(source.topic)
        every = range(taken["rows"])
        for start in every[:: self._batch_rows]:
            rows = every[start : start + self._batch_rows]
            yield arrow.columns_of(taken, self._fields, topics, topic, source.partition, rows)

    def records(self) -> Iterator[Record]:
        """One iteration record by record, of all columns; pyarrow is not needed.

        Raises: as iterating over batches, after the records before the trouble.
        """
        for source in self._sources:
            yield from _records(source)

    def reader(self) -> pa.RecordBatchReader:
        """One iteration as a pyarrow reader."""
        return arrow.require_pyarrow().RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Everything at once."""
        return arrow.require_pyarrow().Table.from_batches(list(self), schema=self.schema)

    def __arrow_c_schema__(self) -> object:
        """The schema, for consumers of the Arrow C data interface."""
        return _core.arrow_schema(self._fields)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """One iteration, for consumers of the Arrow C stream interface; pyarrow is not needed.

        Args:
            requested_schema: a schema capsule; to cast to it is left to whoever asks.
        """
        return _core.arrow_stream(self._fields, (part.column for part in self._batches()))

    def __repr__(self) -> str:
        return f"Scan({len(self._sources)} partitions, columns={self._columns})"


def _records(source: Source) -> Iterator[Record]:
    offset, end = source.start, source.end
    if offset < end:
        aborted = None
        if source.aborted is not None:
            aborted = _core.AbortedTransactions(source.aborted(offset, end))
        for piece in source.pieces(offset, end):
            most = ROWS
            while True:
                try:
                    found, after = _core.decode_records(
                        source.topic, source.partition, piece.data, offset, end, aborted, most
                    )
                except CorruptRecord as error:
                    raise _located(error, source, piece) from error
                yield from found
                if after == offset:
                    break  # all of the piece is read
                offset = after
                most *= 2  # a batch is unpacked again each time: not often, however large it is
    if source.damage is not None:
        raise source.damage


def _located(error: CorruptRecord, source: Source, piece: Piece) -> CorruptRecord:
    return error.located(piece.path, piece.position, f"{source.topic}-{source.partition}")


def scan(
    engine: Engine,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Bound = None,
    end: Bound = None,
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED,
    columns: Sequence[str] | None = None,
    batch_rows: int = 65536,
    binary: str = "view",
) -> Scan:
    """A scan of a topic in an open directory; `Log.scan` describes the arguments.

    Raises:
        UnknownTopicOrPartition: no such topic, or it has no such partition.
        OffsetOutOfRange: a given start lies below a log's start, a partition's own start beyond its
            end, or its own end above what can be read of it.
        ConfigError: an unknown column, isolation or way of binary.
    """
    committed = _is_committed(isolation)
    if not isinstance(topic, str):
        raise ConfigError(f"topic: expected one topic's name, got {topic!r}")
    start, end = bound_of("start", start), bound_of("end", end)
    if partitions is not None:
        partitions = as_list_of(int, "partitions", "numbers", partitions)
    known = engine.topic(topic).partitions
    numbers = sorted(known) if partitions is None else partitions
    missing = [number for number in numbers if number not in known]
    if missing:
        raise UnknownTopicOrPartition(
            f"topic {topic!r} has no partition {missing[0]}, it has {len(known)}"
        )
    sources = []
    for number in numbers:
        if isinstance(end, Mapping) and TopicPartition(topic, number) not in end:
            continue  # made after the snapshot: nothing of it belongs in there
        log = engine.partition(topic, number)
        bound = log.last_stable_offset if committed else log.high_watermark
        wanted = _bound(end, log)
        if isinstance(end, Mapping) and wanted is not None and wanted > bound:
            raise OffsetOutOfRange(
                f"{log.topic}-{log.partition}: end {wanted} is above what can be read, {bound}"
            )
        first = _bound(start, log)
        if isinstance(start, Mapping) and first is not None and first > log.log_end:
            raise OffsetOutOfRange(f"{log.name}: start {first} is beyond the log end {log.log_end}")
        sources.append(_log_source(log, first, wanted, bound, committed))
    return Scan(sources, columns=columns, batch_rows=batch_rows, binary=binary)


def _log_source(
    log: PartitionLog, start: int | None, end: int | None, bound: int, committed: bool
) -> Source:
    log_start = log.log_start
    if start is None:
        start = log_start
    elif start < log_start:
        raise OffsetOutOfRange(
            f"{log.topic}-{log.partition}: start {start} is below the log's start {log_start}"
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
        log.aborted if committed else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """What a reader of one isolation may see of a partition directory; plain data, to be pickled.

    Attributes:
        path: the partition directory, or one `.log` file.
        topic, partition: from the directory's name.
        start, end: first offset, and one past the last; end is 2^63 - 1 with read_uncommitted.
        aborted: (producer id, first offset, marker offset); None with read_uncommitted.
        damage: what ends the range early, None where nothing does.
    """

    path: str
    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...] | None
    damage: CorruptRecord | None = None


def segment_range(
    path: str | os.PathLike[str],
    *,
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED,
    read_only_anyway: bool = False,
) -> SegmentRange:
    """Find what `read_segments` would read, once for many readers of parts of it.

    One process calls this (it walks all batch headers of the partition) and sends the result to
    others. Each of them calls `read_segments(found.path, start=..., end=..., within=found)`, which
    then opens only the segments of its part. Arguments and errors as for `read_segments`.
    """
    committed = _is_committed(isolation)
    path = as_path(path)
    if not read_only_anyway:
        running_broker.refuse(path)
    directory = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    topic, partition = segment_files.partition_of_path(directory)
    if not committed:
        first = settled_segments(path)[0].base_offset
        return SegmentRange(path, topic, max(partition, 0), first, _NO_END, None)

    def folded(
        segments: list[SegmentFiles],
    ) -> tuple[int, _core.TransactionFold, CorruptRecord | None]:
        # A file's transactions may end in a later file of its directory.
        whole = segments if os.path.isdir(path) else _siblings(directory, path) or segments
        fold = _core.TransactionFold(segment_files.open_before(whole))
        try:
            segment_files.feed_transactions(fold, whole)
        except CorruptRecord as error:
            return segments[0].base_offset, fold, error
        return segments[0].base_offset, fold, None

    first, fold, damage = settled_listing.over_settled(path, folded)
    end = fold.last_stable_offset
    return SegmentRange(
        path, topic, max(partition, 0), first, end, tuple(fold.aborted),
        damage if end >= fold.next_offset else None,  # else the range ends before it
    )  # fmt: skip


def read_segments(
    path: str | os.PathLike[str],
    *,
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED,
    start: Bound = None,
    end: Bound = None,
    columns: Sequence[str] | None = None,
    batch_rows: int = 65536,
    binary: str = "view",
    within: SegmentRange | None = None,
    read_only_anyway: bool = False,
) -> Scan:
    """Read any Kafka-format partition directory or `.log` file; nothing is opened for writing.

    What is aborted and where the last stable offset lies is found from the batches alone. There is
    no high watermark on disk: a read_uncommitted scan goes to the end of the files. Messages of
    formats 0 and 1 come with the same columns, -1 where they have no time.

    Args:
        path: a partition directory, or one `.log` file of it.
        isolation: "read_committed" or "read_uncommitted".
        start: first offset wanted; None is the first there is.
        end: one past the last; None is the last stable offset, or the end of the files.
        columns: as for `Log.scan`; None is all.
        batch_rows: rows a record batch at most.
        binary: "view" or "copy", as for `Log.scan`.
        within: from `segment_range` for this path and isolation, which is then not searched again:
            what tasks of a parallel job hand in. It decides the isolation.
        read_only_anyway: read beside a running broker; what it is just appending ends the scan.

    Raises:
        StorageError: no such path.
        ConfigError: no partition directory; an unknown column, isolation or way of binary.
        LockTimeout: a broker has the directory open; a swap of cleaned segments stays half done.
        CorruptRecord, UnsupportedFormat: from the iteration, after the batches before the damage;
            the message names file and position. A scan with a `start` behind it goes on; where the
            bytes are no batches at all only read_uncommitted can, as nobody knows what they ended.
    """
    start, end = bound_of("start", start), bound_of("end", end)
    path = as_path(path)
    if within is None:
        within = segment_range(path, isolation=isolation, read_only_anyway=read_only_anyway)
    elif not read_only_anyway:
        running_broker.refuse(path)
    place = TopicPartition(within.topic, within.partition)
    given_start, given_end = (
        bound.get(place) if isinstance(bound, Mapping) else bound for bound in (start, end)
    )
    bound, damage = within.end, within.damage
    if given_end is not None and given_end <= bound:
        bound, damage = given_end, None
    found = within.aborted
    source = Source(
        within.topic, within.partition, within.start if given_start is None else given_start, bound,
        FilePieces(path),
        None if found is None else lambda _first, _last: found, damage,
    )  # fmt: skip
    return Scan([source], columns=columns, batch_rows=batch_rows, binary=binary)


def _siblings(directory: str, path: str) -> list[SegmentFiles]:
    """All segments of the directory that a segment file lies in, from that one on."""
    base = segment_files.offset_of_name(path)
    if base is None:
        return []
    return [s for s in settled_segments(directory) if s.base_offset >= base]


def _is_committed(isolation: str | IsolationLevel) -> bool:
    try:
        return IsolationLevel(isolation) is IsolationLevel.READ_COMMITTED
    except ValueError:
        known = ", ".join(level.value for level in IsolationLevel)
        raise ConfigError(f"isolation {isolation!r} is none of {known}") from None


def _bound(bound: Bound, log: PartitionLog) -> int | None:
    """This partition's offset; None where the bound leaves it to the partition."""
    if isinstance(bound, Mapping):
        return bound.get(TopicPartition(log.topic, log.partition))
    return bound
