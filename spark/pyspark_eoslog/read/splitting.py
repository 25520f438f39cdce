"""Division of pinned ranges into tasks: large ones are cut, small ones packed.

The cuts are computed from offsets and from the sizes of segment files. No record is decoded.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eoslog.connector.byte_ranges import RELISTINGS, ByteRange, PartitionFiles, open_partition
from eoslog.errors import ConfigError, OffsetOutOfRange, StorageError, UnknownTopicOrPartition
from pyspark_eoslog.options.options import Options

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pinned:
    """A range of one partition, fixed; `end` is exclusive.

    Attributes:
        aborted: (producer id, first offset, marker offset) of transactions to skip.
        topic_id: Id that distinguishes the topic from a re-created one of the same name; None if it
            is not known.
    """

    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    topic_id: bytes | None = None

    @property
    def offsets(self) -> int:
        """The number of offsets; not every offset has a record."""
        return self.end - self.start


@dataclass(frozen=True)
class RangePart:
    """The part of a partition that a task reads: offsets, and the bytes with them.

    Plain values: it is pickled to an executor that has its own eoslog.
    """

    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...]
    directory: str
    spans: tuple[ByteRange, ...]
    topic_id: bytes | None = None

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return sum(span.end - span.position for span in self.spans)


def plan(ranges: Sequence[Pinned], options: Options) -> list[list[RangePart]]:
    """Plan the tasks of a read, each a list of pieces.

    Empty ranges are dropped and the order is kept.

    Raises:
        ConfigError: if a partition's directory is missing.
        OffsetOutOfRange: if retention deleted a part after the range was pinned and
            `failOnDataLoss` is set.
        UnknownTopicOrPartition: if the topic was deleted after that, and perhaps re-created, and
            `failOnDataLoss` is set.
    """
    for _ in range(RELISTINGS):
        try:
            return _planned(ranges, options)
        except FileNotFoundError:  # retention or the cleaner removed a segment after the listing
            continue
    raise OffsetOutOfRange("segments changed in each attempt to plan the read; retry")


def _planned(ranges: Sequence[Pinned], options: Options) -> list[list[RangePart]]:
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
    """Return the files of a range; None if its topic is deleted and loss is accepted."""
    name = f"{one.topic}-{one.partition}"
    directory = os.path.join(options.path, name)
    own = os.path.abspath(options.path)  # for a broker, the path may be the partition itself
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
            f"option 'path' = {options.path!r}: {name} cannot be read "
            f"on {os.uname().nodename}: {error}"
        ) from None


def _not_deleted(one: Pinned, first: int, options: Options) -> Pinned:
    """Return the range without the offsets that retention deleted after the pinning."""
    if first <= one.start:
        return one
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{one.topic}-{one.partition}: offset {one.start} was deleted after the read was "
            f"planned, and the log now starts at {first}; set failOnDataLoss to false to begin at "
            f"{first}"
        )
    return replace(one, start=min(first, one.end))


def _piece(one: Pinned, files: PartitionFiles) -> RangePart:
    try:
        spans = tuple(files.spans(one.start, one.end))
    except StorageError as error:
        raise ConfigError(f"{one.topic}-{one.partition}: {error}") from error
    aborted = tuple(entry for entry in one.aborted if entry[2] >= one.start and entry[1] < one.end)
    return RangePart(
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
    """Cut a range at ends of batches, so that no part has more bytes than `limit`.

    A larger batch becomes a part of its own.
    """
    parts = []
    start = one.start
    while start < one.end:
        stop = files.advance(start, one.end, limit)
        parts.append(replace(one, start=start, end=stop))
        start = stop
    return parts


def coalesce(pieces: Sequence[RangePart], options: Options) -> list[list[RangePart]]:
    """Pack neighbouring pieces into one task up to `minBytesPerPartition`.

    There are never fewer tasks than `minPartitions`, and no task has more than
    `maxRecordsPerPartition` and `maxBytesPerPartition` allow.
    """
    limit = options.min_bytes_per_partition
    if options.max_bytes_per_partition is not None:
        limit = min(limit, options.max_bytes_per_partition)
    spare = len(pieces) - (options.min_partitions or 1)
    tasks: list[list[RangePart]] = []
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
    """Cut ranges by offsets; drop empty ranges and keep the order.

    Args:
        ranges: One range per log partition.
        min_partitions: Approximate number of parts; large ranges are cut until it is reached.
        max_records: Most offsets of a part.
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
    """Return the number of parts of each range, in proportion to its size.

    Small ranges are not cut, and they are subtracted from the total first (SPARK-36576).
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
