"""From options to offset ranges: which partitions, from where to where.

`pin_ranges` asks the directory once; what it finds is plain values that travel. How ranges become
tasks is the business of `splitting`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS
from pyspark_eoslog.catalog import Catalog, open_catalog
from pyspark_eoslog.options import (
    EARLIEST,
    LATEST,
    Bound,
    Options,
    PartitionKey,
    assigned_partitions,
)
from pyspark_eoslog.splitting import Pinned

_NEVER_BY_PATTERN = INTERNAL_TOPICS | {"__share_group_state"}  # the last one of Kafka's brokers


def pin_ranges(options: Options) -> list[Pinned]:
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
    given = options.starting.offsets if options.starting is not None else None
    if last := [key for key, offset in sorted((given or {}).items()) if offset == LATEST]:
        raise ConfigError(
            "option 'startingOffsets' can't hold -1 (latest) in a batch read, it does for "
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
    """A range with what its readers must know of transactions, and whose it is."""
    if start >= end:
        return Pinned(*key, start, end)
    aborted = catalog.aborted(*key, start, end)
    return Pinned(*key, start, end, aborted, catalog.topic_id(*key))


def subscribed_partitions(
    catalog: Catalog, options: Options, *, tolerant: bool = False
) -> list[PartitionKey]:
    """The partitions that `subscribe`, `subscribePattern` or `assign` name, in order; with
    `tolerant` those that there are.

    Raises:
        UnknownTopicOrPartition: One that doesn't exist; a pattern that fits nothing gives an empty
        list.
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
        names = sorted({name.strip() for name in text.split(",") if name.strip()})
        names = [name for name in names if name in known] if tolerant else names
    else:
        pattern = re.compile(text)
        names = sorted(
            name
            for name in catalog.topics()
            if name not in _NEVER_BY_PATTERN and pattern.fullmatch(name)
        )
    return [
        (name, partition) for name in names for partition in _partitions(catalog, kind, text, name)
    ]


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
    """The offset of a bound in each partition of `latest`.

    Raises:
        ConfigError: JSON that lacks a partition or names one that isn't read; a time that no
        record has, where the strategy is `error`.
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
    """First offset below `end` whose record is at or after a time, or LATEST where there is none.

    Raises:
        ConfigError: None there, for a start, under `startingOffsetsByTimestampStrategy` = error.
    """
    found = catalog.offset_at(*key, timestamp_ms)
    if found is not None and 0 <= found < end:
        return found
    # An empty partition has nothing to miss; Kafka fails here too otherwise.
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
    """The range cut to what is there, or an error where data that was asked for is not.

    Raises:
        OffsetOutOfRange: Under `failOnDataLoss`, a start below the log start or a bound beyond the
        last readable one.
    """
    name = f"{key[0]}-{key[1]}"
    log_start = catalog.earliest(*key)
    # Records may be deleted beyond what may be read yet: then there is nothing, and nothing wrong.
    latest = max(latest, log_start)
    if options.fail_on_data_loss:
        if start < log_start and start < end:
            raise OffsetOutOfRange(
                f"{name}: start offset {start} is gone, the log starts at {log_start} "
                "(deleted by retention); set failOnDataLoss to false to begin there"
            )
        if max(start, end) > latest:
            raise OffsetOutOfRange(
                f"{name}: offset {max(start, end)} is beyond the end {latest} that "
                f"{options.isolation} may read; set failOnDataLoss to false to stop there"
            )
    start = min(max(start, log_start), latest)
    return start, max(start, min(end, latest))


def _shown(keys: Sequence[PartitionKey]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys) or "none"
