"""Conversion of the offset arguments that public calls accept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eoslog._util.argument_types import fits
from eoslog._util.arguments import as_int, shown
from eoslog.errors import ConfigError
from eoslog.model import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition
from eoslog.model import Offsets as Ends

Offsets = (
    Mapping[TopicPartition, int]
    | Mapping[TopicPartition, OffsetAndMetadata]
    | Iterable[TopicPartition]
    | TopicPartition
)


_PLACE = f'an offset of 0 to 2^63 - 1, "{EARLIEST}" or "{LATEST}"'


def place_of(what: str, place: Any) -> int | str:
    """Check a position: an offset, or "earliest" or "latest".

    Raises:
        ConfigError: if it is none of these.
    """
    if isinstance(place, str) and place in (EARLIEST, LATEST):
        return str(place)
    offset = as_int(what, place, _PLACE)
    if not 0 <= offset < 1 << 63:
        raise ConfigError(f"{what}: expected {_PLACE}, got {offset}")
    return offset


def named_offsets(
    offsets: Mapping[Any, Any], ends: Callable[[TopicPartition], tuple[Ends, bytes]]
) -> dict[TopicPartition, Any]:
    """Replace "earliest" and "latest" by their offsets, with the topic ids.

    Args:
        offsets: {TopicPartition: offset, "earliest" or "latest"}.
        ends: returns the ends of a partition, and the id of its topic.
    """

    def offset_of(tp: TopicPartition, place: Any) -> Any:
        if not isinstance(place, str) or place not in (EARLIEST, LATEST):
            return place
        now, topic_id = ends(tp)
        offset = now.log_start if place == EARLIEST else now.last_stable
        return OffsetAndMetadata(offset, topic_id=topic_id)

    return {(tp := as_partition(key)): offset_of(tp, place) for key, place in offsets.items()}


def offsets_of(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the next offset to read of each partition.

    Args:
        offsets: {TopicPartition: offset or OffsetAndMetadata}, TopicPartitions with offsets, or a
            record, which means the offset after it.

    Raises:
        ConfigError: if `offsets` is none of these, or an offset is missing or negative.
    """
    if isinstance(offsets, Mapping):
        return {as_partition(p): _offset(p, offset) for p, offset in offsets.items()}
    if isinstance(offsets, TopicPartition):
        return {as_partition(offsets): _offset(offsets, offsets.offset)}
    if hasattr(offsets, "timestamp_type"):
        epoch = -1 if offsets.leader_epoch is None else offsets.leader_epoch
        after = OffsetAndMetadata(offsets.offset + 1, epoch)
        return {TopicPartition(offsets.topic, offsets.partition): after}
    try:
        items = iter(offsets)
    except TypeError:
        raise ConfigError(
            f"offsets: expected a dict or TopicPartitions, got {shown(offsets)}"
        ) from None
    return {(tp := as_partition(p)): _offset(tp, tp.offset) for p in items}


def starts_of(offsets: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Return the first offset to keep of each partition; -1 means the high watermark.

    Raises:
        ConfigError: if a key is not a TopicPartition, or an offset is not an integer.
    """
    return {(tp := as_partition(p)): _number(tp, offset) for p, offset in offsets.items()}


def bound_of(what: str, bound: Any) -> int | dict[TopicPartition, int] | None:
    """Check the bound of a scan: one offset, one for each partition, or None.

    Raises:
        ConfigError: if it is none of these, for example {"a-0": 5}.
    """
    if bound is None:
        return None
    if not isinstance(bound, Mapping):
        return as_int(what, bound, "an offset or {TopicPartition: offset}")
    found = {}
    for key, offset in bound.items():
        try:
            partition = as_partition(key)
        except ConfigError:
            raise ConfigError(
                f"{what}: expected {{TopicPartition: offset}}, got key {shown(key)}"
            ) from None
        found[partition] = as_int(f"{what}: {partition}", offset, "an offset")
    return found


def as_partition(value: object) -> TopicPartition:
    """Return a TopicPartition, also for a tuple (topic, partition).

    Raises:
        ConfigError: if `value` is neither.
    """
    if isinstance(value, TopicPartition):
        if fits("TopicPartition", value):
            return value
        raise ConfigError(
            f"offsets: expected TopicPartition(topic: str, partition: int), got {shown(value)}"
        )
    if isinstance(value, tuple) and list(map(type, value)) == [str, int]:
        return TopicPartition(*value)
    raise ConfigError(f"offsets: expected a TopicPartition, got {shown(value)}")


def _number(partition: TopicPartition, value: object) -> int:
    return as_int(str(partition), value, "an offset")


def _offset(partition: TopicPartition, value: object) -> OffsetAndMetadata:
    if isinstance(value, OffsetAndMetadata):
        found = value
        _number(partition, found.offset)
        if not fits("OffsetAndMetadata", found):
            raise ConfigError(
                f"{partition}: expected OffsetAndMetadata(offset, leader_epoch: int of 32 bits, "
                f"metadata: str of UTF-8), got {shown(found)}"
            )
    else:
        found = OffsetAndMetadata(_number(partition, value))
    if found.offset < 0:
        raise ConfigError(f"{partition}: expected an offset of 0 or more, got {found.offset}")
    return found


def as_list(partitions: TopicPartition | Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return one or more partitions as a list.

    Raises:
        ConfigError: if `partitions` has anything but TopicPartitions.
    """
    if isinstance(partitions, TopicPartition):
        return [as_partition(partitions)]
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise ConfigError(f"partitions: expected TopicPartitions, got {shown(partitions)}")
    return [as_partition(p) for p in partitions]


def in_the_shape_of(asked: Any, partitions: list[TopicPartition], offsets: list[int | None]) -> Any:
    """Return an offset for one partition, or TopicPartitions for several."""
    if isinstance(asked, TopicPartition):
        return offsets[0]
    return [
        TopicPartition(p.topic, p.partition, offset)
        for p, offset in zip(partitions, offsets, strict=True)
    ]
