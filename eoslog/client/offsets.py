"""Offsets in the shapes that callers write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eoslog.arguments import as_int
from eoslog.errors import ConfigError
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.model import Offsets as Ends

Offsets = (
    Mapping[TopicPartition, int]
    | Mapping[TopicPartition, OffsetAndMetadata]
    | Iterable[TopicPartition]
    | TopicPartition
)


_EARLIEST, _LATEST = "earliest", "latest"
_PLACE = f'an offset of 0 to 2^63 - 1, "{_EARLIEST}" or "{_LATEST}"'


def place_of(what: str, place: Any) -> int | str:
    """Where reading goes on: an offset, or "earliest" or "latest", the two ends of a log.

    Raises:
        ConfigError: it is none of these.
    """
    if place in (_EARLIEST, _LATEST):
        return str(place)
    offset = as_int(what, place, _PLACE)
    if not 0 <= offset < 1 << 63:
        raise ConfigError(f"{what}: expected {_PLACE}, got {offset}")
    return offset


def named_offsets(
    offsets: Mapping[Any, Any], ends: Callable[[str, int], Ends]
) -> dict[TopicPartition, Any]:
    """The same with a number where "earliest" or "latest" stands; `ends` tells a partition's."""
    found = {as_partition(key): offset for key, offset in offsets.items()}
    for tp, offset in found.items():
        if offset == _EARLIEST:
            found[tp] = ends(tp.topic, tp.partition).log_start
        elif offset == _LATEST:
            found[tp] = ends(tp.topic, tp.partition).last_stable
    return found


def offsets_of(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Next offsets to read per partition.

    Args:
        offsets: {TopicPartition: offset or OffsetAndMetadata}, TopicPartitions that bear offsets,
            or a record, which stands for the offset after it.

    Raises:
        ConfigError: it is none of these, or an offset is missing or negative.
    """
    if isinstance(offsets, Mapping):
        return {as_partition(p): _offset(p, offset) for p, offset in offsets.items()}
    if isinstance(offsets, TopicPartition):
        return {offsets: _offset(offsets, offsets.offset)}
    if hasattr(offsets, "timestamp_type"):
        after = OffsetAndMetadata(offsets.offset + 1, offsets.leader_epoch)
        return {TopicPartition(offsets.topic, offsets.partition): after}
    try:
        items = list(offsets)
    except TypeError:
        raise ConfigError(f"offsets: expected a dict or TopicPartitions, got {offsets!r}") from None
    return {(tp := as_partition(p)): _offset(tp, tp.offset) for p in items}


def starts_of(offsets: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """First offsets to keep per partition; -1 stands for the high watermark.

    Raises:
        ConfigError: a key is no partition, or a value no whole number.
    """
    return {(tp := as_partition(p)): _number(tp, offset) for p, offset in offsets.items()}


def bound_of(what: str, bound: Any) -> int | dict[TopicPartition, int] | None:
    """Where a scan begins or ends: one offset for all partitions, one each, or None.

    Raises:
        ConfigError: it is none of these, as {"a-0": 5}, which would bound nothing.
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
                f"{what}: expected {{TopicPartition: offset}}, got key {key!r}"
            ) from None
        found[partition] = as_int(f"{what}: {partition}", offset, "an offset")
    return found


def as_partition(value: object) -> TopicPartition:
    """One partition, as such or as (topic, partition). Raises ConfigError for anything else."""
    if isinstance(value, TopicPartition):
        return value
    if isinstance(value, tuple) and list(map(type, value)) == [str, int]:
        return TopicPartition(*value)
    raise ConfigError(f"offsets: expected a TopicPartition, got {value!r}")


def _number(partition: TopicPartition, value: object) -> int:
    return as_int(str(partition), value, "an offset")


def _offset(partition: TopicPartition, value: object) -> OffsetAndMetadata:
    if isinstance(value, OffsetAndMetadata):
        found = value
        _number(partition, found.offset)
    else:
        found = OffsetAndMetadata(_number(partition, value))
    if found.offset < 0:
        raise ConfigError(f"{partition}: an offset is 0 or more, got {found.offset}")
    return found


def as_list(partitions: TopicPartition | Iterable[TopicPartition]) -> list[TopicPartition]:
    """One partition or many, as a list.

    Raises:
        ConfigError: something else than TopicPartitions.
    """
    if isinstance(partitions, TopicPartition):
        return [partitions]
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise ConfigError(f"expected TopicPartitions, got {partitions!r}")
    return [as_partition(p) for p in partitions]


def in_the_shape_of(asked: Any, partitions: list[TopicPartition], offsets: list[int | None]) -> Any:
    """One offset for one partition, [TopicPartition with its offset] for many."""
    if isinstance(asked, TopicPartition):
        return offsets[0]
    return [
        TopicPartition(p.topic, p.partition, offset)
        for p, offset in zip(partitions, offsets, strict=True)
    ]
