"""From options to offset ranges: which partitions, from where to where, in how many tasks.

`pin_ranges` asks the log; the rest is arithmetic on plain tuples `(topic, partition, start, end)`,
end exclusive.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eoslog.errors import ConfigError, OffsetOutOfRange, StorageError, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from pyspark_eoslog.options import (
    EARLIEST,
    LATEST,
    Bound,
    Options,
    PartitionKey,
    assigned_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eoslog.log import Log

Range = tuple[str, int, int, int]


@contextmanager
def open_for_planning(path: str) -> Iterator[Log]:
    """The directory, writable where it may be: a snapshot can then finish transactions that a dead
    process left.

    Raises:
        ConfigError: No eoslog directory at `path`.
    """
    import eoslog

    try:
        log = eoslog.open(path, create=False)
    except StorageError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            log = eoslog.open(path, create=False, read_only=True)
        elif error.errno == errno.ENOENT:
            raise ConfigError(
                f"option 'path' = {path!r}: "
                f"there is no eoslog directory on {os.uname().nodename} ({error})"
            ) from None
        else:
            raise
    try:
        yield log
    finally:
        log.close()


def pin_ranges(options: Options) -> list[Range]:
    """The ranges of a batch read, fixed now.

    Raises:
        ConfigError: Bounds that don't fit the partitions or can't be used in a batch.
        OffsetOutOfRange: A start that retention has deleted, or an end that is not there yet.
        UnknownTopicOrPartition: A topic or partition that doesn't exist.
    """
    if options.starting is not None and options.starting.word == LATEST:
        raise ConfigError(
            "option 'startingOffsets' can't be 'latest' in a batch read: nothing would be read"
        )
    if (
        options.starting is not None
        and options.starting.offsets
        and LATEST in options.starting.offsets.values()
    ):
        raise ConfigError("option 'startingOffsets' can't hold -1 (latest) in a batch read")
    with open_for_planning(options.path) as log:
        keys = subscribed_partitions(log, options)
        latest = latest_offsets(log, keys, options.isolation)
        starts = resolve(
            log, options, options.starting or Bound("startingOffsets", word=EARLIEST), latest
        )
        ends = resolve(log, options, options.ending or Bound("endingOffsets", word=LATEST), latest)
        ranges = []
        for topic, partition in keys:
            start, end = starts[topic, partition], ends[topic, partition]
            start, end = within_log(
                log, options, topic, partition, start, end, latest[topic, partition]
            )
            ranges.append((topic, partition, start, end))
        return ranges


def subscribed_partitions(log: Log, options: Options) -> list[PartitionKey]:
    """The partitions that `subscribe`, `subscribePattern` or `assign` name, in order.

    Raises:
        UnknownTopicOrPartition: One that doesn't exist; a pattern that fits nothing gives an empty
        list.
    """
    assert options.subscription is not None
    kind, text = options.subscription
    if kind == "assign":
        keys = assigned_partitions(text)
        for topic, partition in keys:
            if partition not in partitions_of(log, topic):
                raise UnknownTopicOrPartition(
                    f"option 'assign' names {topic}-{partition}, which does not exist"
                )
        return keys
    if kind == "subscribe":
        names = sorted({name.strip() for name in text.split(",") if name.strip()})
    else:
        pattern = re.compile(text)
        names = sorted(
            name for name in log.topics() if not name.startswith("__") and pattern.fullmatch(name)
        )
    return [(name, partition) for name in names for partition in partitions_of(log, name)]


def partitions_of(log: Log, topic: str) -> list[int]:
    """Partition numbers of a topic, ascending.

    Raises:
        UnknownTopicOrPartition: There is no such topic.
    """
    return sorted(one.partition for one in log.describe_topic(topic).partitions)


def latest_offsets(
    log: Log, keys: Sequence[PartitionKey], isolation: str
) -> dict[PartitionKey, int]:
    """End offsets to read up to: whole transactions under read_committed, else the high
    watermarks.
    """
    if not keys:
        return {}
    if isolation == "read_uncommitted":
        return {
            (topic, partition): log.offsets(topic, partition).high_watermark
            for topic, partition in keys
        }
    cut = log.snapshot(sorted({topic for topic, _ in keys}))
    return {(topic, partition): cut[TopicPartition(topic, partition)] for topic, partition in keys}


def resolve(
    log: Log, options: Options, bound: Bound, latest: Mapping[PartitionKey, int]
) -> dict[PartitionKey, int]:
    """The offset of a bound in each partition of `latest`.

    Raises:
        ConfigError: JSON that lacks a partition or names one that isn't read; a time that no
        record has, where the
            strategy is `error`.
    """
    table = bound.offsets if bound.offsets is not None else bound.timestamps_ms
    if table is not None:
        missing, extra = sorted(set(latest) - set(table)), sorted(set(table) - set(latest))
        if missing or extra:
            raise ConfigError(
                f"option '{bound.option}' must name exactly the partitions that are read; "
                f"missing: {_shown(missing)}; not read: {_shown(extra)}"
            )
    resolved = {}
    for (topic, partition), end in latest.items():
        if bound.word is not None:
            value = bound.word
        elif bound.offsets is not None:
            value = bound.offsets[topic, partition]
        else:
            time = (
                bound.timestamp_ms
                if bound.timestamps_ms is None
                else bound.timestamps_ms[topic, partition]
            )
            assert time is not None
            value = offset_at(log, options, bound, topic, partition, time, end)
        if value == EARLIEST:
            value = log.offsets(topic, partition).log_start
        resolved[topic, partition] = end if value == LATEST else value
    return resolved


def offset_at(
    log: Log,
    options: Options,
    bound: Bound,
    topic: str,
    partition: int,
    timestamp_ms: int,
    end: int,
) -> int:
    """First offset below `end` whose record is at or after a time, or LATEST where there is none.

    Raises:
        ConfigError: None there, for a start, under `startingOffsetsByTimestampStrategy` = error.
    """
    found = log.offset_for_time(topic, partition, timestamp_ms)
    if found is not None and 0 <= found < end:
        return found
    # An empty partition has nothing to miss; Kafka fails here too otherwise.
    empty = log.offsets(topic, partition).log_start >= end
    if bound.option.startswith("starting") and options.timestamp_strategy == "error" and not empty:
        raise ConfigError(
            f"option '{bound.option}': {topic}-{partition} has no record "
            f"at or after {timestamp_ms} ms; "
            "set startingOffsetsByTimestampStrategy to latest to read nothing of it"
        )
    return LATEST


def within_log(
    log: Log, options: Options, topic: str, partition: int, start: int, end: int, latest: int
) -> tuple[int, int]:
    """The range cut to what is there, or an error where data that was asked for is not.

    Raises:
        OffsetOutOfRange: Under `failOnDataLoss`, a start below the log start or a bound beyond the
        last readable one.
    """
    log_start = log.offsets(topic, partition).log_start
    if options.fail_on_data_loss:
        if start < log_start:
            raise OffsetOutOfRange(
                f"{topic}-{partition}: start offset {start} is gone, the log starts at {log_start} "
                "(deleted by retention); set failOnDataLoss to false to begin there"
            )
        if max(start, end) > latest:
            raise OffsetOutOfRange(
                f"{topic}-{partition}: offset {max(start, end)} is beyond the end {latest} that "
                f"{options.isolation} may read; set failOnDataLoss to false to stop there"
            )
    start = min(max(start, log_start), latest)
    return start, max(start, min(end, latest))


def split(
    ranges: Sequence[Range], min_partitions: int | None, max_records: int | None
) -> list[Range]:
    """Cuts ranges into tasks; empty ranges vanish, order is kept.

    Args:
        ranges: One per log partition.
        min_partitions: A hint; large ranges are cut until there are about as many.
        max_records: No task gets more offsets than this.
    """
    ranges = [one for one in ranges if one[3] > one[2]]
    pieces = dict.fromkeys(ranges, 1)
    if max_records is not None:
        pieces = {one: -(-(one[3] - one[2]) // max_records) for one in ranges}
    if min_partitions is not None and sum(pieces.values()) < min_partitions:
        for one, count in _proportional(ranges, min_partitions).items():
            pieces[one] = max(pieces[one], count)
    return [piece for one in ranges for piece in _cut(one, pieces[one])]


def _proportional(ranges: Sequence[Range], wanted: int) -> dict[Range, int]:
    """Pieces per range by its share; small ranges stay whole and are taken out of the sum first
    (SPARK-36576).
    """
    total = sum(end - start for _, _, start, end in ranges)
    small = [one for one in ranges if (one[3] - one[2]) * wanted < 1.5 * total]
    rest = total - sum(end - start for _, _, start, end in small)
    left = max(wanted - len(small), 1)
    counts = {}
    for one in ranges:
        size = one[3] - one[2]
        counts[one] = 1 if one in small else min(size, max(1, round(size * left / rest)))
    return counts


def _cut(one: Range, count: int) -> list[Range]:
    topic, partition, start, end = one
    edges = [start + (end - start) * index // count for index in range(count + 1)]
    return [(topic, partition, low, high) for low, high in itertools.pairwise(edges)]


def _shown(keys: Sequence[PartitionKey]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys) or "none"
