"""From pinned ranges to tasks: large ranges are cut, small ones share a task.

The cuts are arithmetic on offsets and on the sizes that segment files give; no record is decoded.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eoslog.errors import ConfigError, OffsetOutOfRange, StorageError, UnknownTopicOrPartition
from pyspark_eoslog.options import Options
from pyspark_eoslog.segments import RELISTINGS, PartitionFiles, Span, open_partition

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pinned:
    """A range of one partition, fixed; `end` is exclusive.

    Attributes:
        aborted: (producer id, first offset, marker) of what is not to be read.
        topic_id: Tells the topic from one of the same name that is made after it is deleted; None
            where it is not known.
    """

    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    topic_id: bytes | None = None

    @property
    def offsets(self) -> int:
        """How many there are; not each has a record."""
        return self.end - self.start


@dataclass(frozen=True)
class Piece:
    """What a task reads of one partition: offsets, and the bytes that hold them.

    Plain values: it is pickled to an executor that has its own eoslog.
    """

    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...]
    directory: str
    spans: tuple[Span, ...]
    topic_id: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(span.end - span.position for span in self.spans)


def plan(ranges: Sequence[Pinned], options: Options) -> list[list[Piece]]:
    """The tasks of a read, each a list of pieces; empty ranges vanish, order is kept.

    Raises:
        ConfigError: A partition's directory is not where it must be.
        OffsetOutOfRange: Retention has deleted a part since the range was pinned; under
            `failOnDataLoss`, as the next.
        UnknownTopicOrPartition: The topic was deleted since, and perhaps made anew.
    """
    for _ in range(RELISTINGS):
        try:
            return _planned(ranges, options)
        except FileNotFoundError:  # retention or the cleaner took a segment since it was listed
            continue
    raise OffsetOutOfRange("the segments to be read change again and again")


def _planned(ranges: Sequence[Pinned], options: Options) -> list[list[Piece]]:
    files: dict[tuple[str, int], PartitionFiles] = {}
    left = []
    for one in ranges:
        found = _files(one, options) if one.offsets > 0 else None
        if found is not None:
            files[one.topic, one.partition] = found
            left.append(_not_deleted(one, found.bases[0], options))
    cut = split(left, options.min_partitions, options.max_records_per_partition)
    if options.max_bytes_per_partition is not None:
        limit = options.max_bytes_per_partition
        cut = [
            part for one in cut for part in by_bytes(one, files[one.topic, one.partition], limit)
        ]
    pieces = [_piece(one, files[one.topic, one.partition]) for one in cut]
    return coalesce(pieces, options)


def _files(one: Pinned, options: Options) -> PartitionFiles | None:
    """The files of a range; None where its topic is gone and loss is accepted."""
    name = f"{one.topic}-{one.partition}"
    directory = os.path.join(options.path, name)
    own = os.path.abspath(options.path)  # of a broker the path may be the partition's own
    if options.layout == "kafka" and os.path.basename(own) == name:
        directory = own if not os.path.isdir(directory) else directory
    try:
        return open_partition(directory, one.topic_id)
    except UnknownTopicOrPartition as error:
        if options.fail_on_data_loss:
            raise UnknownTopicOrPartition(
                f"{error}; set failOnDataLoss to false to read nothing of it"
            ) from None
        logger.warning("failOnDataLoss is off: %s", error)
        return None
    except StorageError as error:
        raise ConfigError(
            f"option 'path' = {options.path!r}: {name} can't be read "
            f"on {os.uname().nodename}: {error}"
        ) from None


def _not_deleted(one: Pinned, first: int, options: Options) -> Pinned:
    """The range without what retention has deleted since it was pinned."""
    if first <= one.start:
        return one
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{one.topic}-{one.partition}: offset {one.start} was deleted since the read was "
            f"pinned, the log starts at {first} now; set failOnDataLoss to false to begin there"
        )
    return replace(one, start=min(first, one.end))


def _piece(one: Pinned, files: PartitionFiles) -> Piece:
    try:
        spans = tuple(files.spans(one.start, one.end))
    except StorageError as error:
        raise ConfigError(f"{one.topic}-{one.partition}: {error}") from error
    aborted = tuple(entry for entry in one.aborted if entry[2] >= one.start and entry[1] < one.end)
    return Piece(
        one.topic,
        one.partition,
        one.start,
        one.end,
        aborted,
        files.directory,
        spans,
        one.topic_id,
    )


def by_bytes(one: Pinned, files: PartitionFiles, limit: int) -> list[Pinned]:
    """A range cut where batches end, so that no part has more bytes than `limit`; a batch that is
    larger is a part of its own.
    """
    parts = []
    start = one.start
    while start < one.end:
        stop = files.advance(start, one.end, limit)
        parts.append(replace(one, start=start, end=stop))
        start = stop
    return parts


def coalesce(pieces: Sequence[Piece], options: Options) -> list[list[Piece]]:
    """Neighbours packed into one task while together they stay below `minBytesPerPartition`.

    Never fewer tasks than `minPartitions`, never more in one than `maxRecordsPerPartition` and
    `maxBytesPerPartition` allow.
    """
    limit = options.min_bytes_per_partition
    if options.max_bytes_per_partition is not None:
        limit = min(limit, options.max_bytes_per_partition)
    spare = len(pieces) - (options.min_partitions or 1)
    tasks: list[list[Piece]] = []
    size = offsets = 0
    for piece in pieces:
        most = options.max_records_per_partition
        fits = (
            tasks
            and spare > 0
            and size + piece.size <= limit
            and (most is None or offsets + piece.end - piece.start <= most)
        )
        if fits:
            tasks[-1].append(piece)
            size += piece.size
            offsets += piece.end - piece.start
            spare -= 1
        else:
            tasks.append([piece])
            size, offsets = piece.size, piece.end - piece.start
    return tasks


def split(
    ranges: Iterable[Pinned], min_partitions: int | None, max_records: int | None
) -> list[Pinned]:
    """Cuts ranges by offsets; empty ranges vanish, order is kept.

    Args:
        ranges: One per log partition.
        min_partitions: A hint; large ranges are cut until there are about as many.
        max_records: No part gets more offsets than this.
    """
    ranges = [one for one in ranges if one.offsets > 0]
    counts = dict.fromkeys(range(len(ranges)), 1)
    if max_records is not None:
        counts = {at: -(-one.offsets // max_records) for at, one in enumerate(ranges)}
    if min_partitions is not None and sum(counts.values()) < min_partitions:
        for at, count in _proportional([one.offsets for one in ranges], min_partitions).items():
            counts[at] = max(counts[at], count)
    return [part for at, one in enumerate(ranges) for part in _cut(one, counts[at])]


def _proportional(sizes: Sequence[int], wanted: int) -> dict[int, int]:
    """Parts per range by its share; small ranges stay whole and are taken out of the sum first
    (SPARK-36576).
    """
    total = sum(sizes)
    small = {at for at, size in enumerate(sizes) if size * wanted < 1.5 * total}
    rest = total - sum(sizes[at] for at in small)
    left = max(wanted - len(small), 1)
    return {
        at: 1 if at in small else min(size, max(1, round(size * left / rest)))
        for at, size in enumerate(sizes)
    }


def _cut(one: Pinned, count: int) -> list[Pinned]:
    edges = [one.start + one.offsets * index // count for index in range(count + 1)]
    return [replace(one, start=low, end=high) for low, high in itertools.pairwise(edges)]
