"""Planning: offset ranges of partitions from the options.

`pin_ranges` reads the directory once and returns plain values that travel. `splitting` turns ranges
into tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS
from pyspark_eoslog.options.options import (
    EARLIEST,
    LATEST,
    Bound,
    Options,
    PartitionKey,
    assigned_partitions,
)
from pyspark_eoslog.read.catalog import Catalog, open_catalog
from pyspark_eoslog.read.splitting import Pinned

_NEVER_BY_PATTERN = INTERNAL_TOPICS | {"__share_group_state"}  # the last one of Kafka's brokers


def pin_ranges(options: Options) -> list[Pinned]:
    """Pin the ranges of a batch read.

    Raises:
        ConfigError: if bounds do not fit the partitions, or cannot be used in a batch.
        OffsetOutOfRange: if retention has deleted the start, or the log ends before the end.
        UnknownTopicOrPartition: if a topic or partition does not exist.
    """
    if options.starting is not None and options.starting.word == LATEST:
        raise ConfigError(
            "option 'startingOffsets' must not be 'latest' in a batch read, because nothing would "
            "be read"
        )
    given = options.starting.offsets if options.starting is not None else None
    if last := [key for key, offset in sorted((given or {}).items()) if offset == LATEST]:
        raise ConfigError(
            "option 'startingOffsets' must not contain -1 (latest) in a batch read, got it for "
            + _shown(last)
        )
    with open_catalog(options) as catalog:
        keys = subscribed_partitions(catalog, options)
        latest = catalog.latest(keys)
        starts = resolve(
            catalog, options, options.starting or Bound("startingOffsets", word=EARLIEST), latest
        )
        ends = resolve(
            catalog, options, options.ending or Bound("endingOffsets", word=LATEST), latest
        )
        ranges = []
        for key in keys:
            try:
                start, end = within_log(catalog, options, key, starts[key], ends[key], latest[key])
            except OffsetOutOfRange as error:
                starts_wrong = (
                    not (first := catalog.earliest(*key)) <= starts[key] <= max(latest[key], first)
                )
                bound = options.starting if starts_wrong else options.ending
                named = f"option '{bound.option}': " if bound is not None else ""
                raise OffsetOutOfRange(f"{named}{error}") from None
            ranges.append(pinned(catalog, key, start, end))
        return ranges


def pinned(catalog: Catalog, key: PartitionKey, start: int, end: int) -> Pinned:
    """Create a range with its aborted transactions and its topic id."""
    if start >= end:
        return Pinned(*key, start, end)
    aborted = catalog.aborted(*key, start, end)
    return Pinned(*key, start, end, aborted, catalog.topic_id(*key))


def subscribed_partitions(
    catalog: Catalog, options: Options, *, tolerant: bool = False
) -> list[PartitionKey]:
    """List the partitions that `subscribe`, `subscribePattern` or `assign` name.

    The list is in order. With `tolerant` it has only partitions that exist. If a pattern matches
    nothing, the list is empty.

    Raises:
        UnknownTopicOrPartition: if a named partition does not exist, unless `tolerant` is set.
    """
    assert options.subscription is not None
    kind, text = options.subscription
    known = set(catalog.topics()) if tolerant else set()
    if kind == "assign":
        keys = assigned_partitions(text)
        if tolerant:
            return [(t, p) for t, p in keys if t in known and p in catalog.partitions(t)]
        for topic, partition in keys:
            if partition not in _partitions(catalog, kind, text, topic):
                raise UnknownTopicOrPartition(
                    f"option 'assign' names {topic}-{partition}, which does not exist"
                )
        return keys
    if kind == "subscribe":
        names = _named(text)
        names = [name for name in names if name in known] if tolerant else names
    else:
        names = sorted(name for name in catalog.topics() if _matches(text, name))
    return [
        (name, partition) for name in names for partition in _partitions(catalog, kind, text, name)
    ]


def is_subscribed(options: Options, key: PartitionKey) -> bool:
    """Whether the options name a partition, which need not exist."""
    assert options.subscription is not None
    kind, text = options.subscription
    if kind == "assign":
        return key in assigned_partitions(text)
    return key[0] in _named(text) if kind == "subscribe" else _matches(text, key[0])


def _named(text: str) -> list[str]:
    return sorted({name.strip() for name in text.split(",") if name.strip()})


def _matches(pattern: str, topic: str) -> bool:
    return topic not in _NEVER_BY_PATTERN and re.fullmatch(pattern, topic) is not None


def _partitions(catalog: Catalog, option: str, text: str, topic: str) -> list[int]:
    try:
        return catalog.partitions(topic)
    except UnknownTopicOrPartition:
        raise UnknownTopicOrPartition(
            f"option '{option}' = {text!r}: there is no topic '{topic}' in {catalog.path}"
        ) from None


def resolve(
    catalog: Catalog, options: Options, bound: Bound, latest: Mapping[PartitionKey, int]
) -> dict[PartitionKey, int]:
    """Return the offset of a bound in each partition of `latest`.

    Raises:
        ConfigError: if the JSON lacks a partition or names one that is not read, or if no record
            has the time and the strategy is `error`.
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
    for key, end in latest.items():
        if bound.word is not None:
            value = bound.word
        elif bound.offsets is not None:
            value = bound.offsets[key]
        else:
            time = bound.timestamp_ms if bound.timestamps_ms is None else bound.timestamps_ms[key]
            assert time is not None
            value = offset_at(catalog, options, bound, key, time, end)
        if value == EARLIEST:
            value = catalog.earliest(*key)
        resolved[key] = end if value == LATEST else value
    return resolved


def offset_at(
    catalog: Catalog, options: Options, bound: Bound, key: PartitionKey, timestamp_ms: int, end: int
) -> int:
    """Return the first offset below `end` at or after a time, or LATEST if none is.

    Raises:
        ConfigError: if a start has none and `startingOffsetsByTimestampStrategy` is `error`.
    """
    found = catalog.offset_at(*key, timestamp_ms)
    if found is not None and 0 <= found < end:
        return found
    # A read of an empty partition misses nothing. In other cases Kafka's source fails too.
    empty = catalog.earliest(*key) >= end
    if bound.option.startswith("starting") and options.timestamp_strategy == "error" and not empty:
        raise ConfigError(
            f"option '{bound.option}': {key[0]}-{key[1]} has no record "
            f"at or after {timestamp_ms} ms; "
            "set startingOffsetsByTimestampStrategy to latest to read nothing of it"
        )
    return LATEST


def within_log(
    catalog: Catalog, options: Options, key: PartitionKey, start: int, end: int, latest: int
) -> tuple[int, int]:
    """Limit a range to the existing offsets.

    Raises:
        OffsetOutOfRange: if `failOnDataLoss` is set and the start is below the log start, or a
            bound is beyond the readable end.
    """
    name = f"{key[0]}-{key[1]}"
    log_start = catalog.earliest(*key)
    # A deletion may go beyond the readable end: then the range is empty, which is not an error.
    latest = max(latest, log_start)
    if options.fail_on_data_loss:
        if start < log_start and start < end:
            raise OffsetOutOfRange(
                f"{name}: start offset {start} was deleted by retention, and the log starts at "
                f"{log_start}; set failOnDataLoss to false to begin at {log_start}"
            )
        if max(start, end) > latest:
            raise OffsetOutOfRange(
                f"{name}: offset {max(start, end)} is beyond {latest}, the end for "
                f"{options.isolation}; set failOnDataLoss to false to stop at {latest}"
            )
    start = min(max(start, log_start), latest)
    return start, max(start, min(end, latest))


def _shown(keys: Sequence[PartitionKey]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys) or "none"
