"""Offsets in the shapes that callers write them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from eoslog.arguments import as_int
from eoslog.errors import ConfigError
from eoslog.model import OffsetAndMetadata, TopicPartition

Offsets = (
    Mapping[TopicPartition, int]
    | Mapping[TopicPartition, OffsetAndMetadata]
    | Iterable[TopicPartition]
    | TopicPartition
)


def offsets_of(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Next offsets to read per partition.

    Args:
        offsets: {TopicPartition: offset or OffsetAndMetadata}, TopicPartitions that bear offsets,
            or a record, which stands for the offset after it.

    Raises:
        ConfigError: it is none of these, or an offset is missing or negative.
    """
    if isinstance(offsets, Mapping):
        return {_partition(p): _offset(p, offset) for p, offset in offsets.items()}
    if isinstance(offsets, TopicPartition):
        return {offsets: _offset(offsets, offsets.offset)}
    if hasattr(offsets, "timestamp_type"):
        after = OffsetAndMetadata(offsets.offset + 1, offsets.leader_epoch)
        return {TopicPartition(offsets.topic, offsets.partition): after}
    try:
        items = list(offsets)
    except TypeError:
        raise ConfigError(f"offsets: expected a dict or TopicPartitions, got {offsets!r}") from None
    return {(tp := _partition(p)): _offset(tp, tp.offset) for p in items}


def starts_of(offsets: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """First offsets to keep per partition; -1 stands for the high watermark.

    Raises:
        ConfigError: a key is no partition, or a value no whole number.
    """
    return {(tp := _partition(p)): _number(tp, offset) for p, offset in offsets.items()}


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
            partition = _partition(key)
        except ConfigError:
            raise ConfigError(
                f"{what}: expected {{TopicPartition: offset}}, got key {key!r}"
            ) from None
        found[partition] = as_int(f"{what}: {partition}", offset, "an offset")
    return found


def _partition(value: object) -> TopicPartition:
    if isinstance(value, TopicPartition):
        return value
    if isinstance(value, tuple) and list(map(type, value)) == [str, int]:
        return TopicPartition(*value)
    raise ConfigError(f"offsets: expected a TopicPartition, got {value!r}")


def _number(partition: TopicPartition, value: object) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ConfigError(f"{partition}: expected an offset, got {value!r}")


def _offset(partition: TopicPartition, value: object) -> OffsetAndMetadata:
    if isinstance(value, OffsetAndMetadata):
        found = value
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
    try:
        return [_partition(p) for p in partitions]
    except TypeError:
        raise ConfigError(f"expected TopicPartitions, got {partitions!r}") from None


def in_the_shape_of(asked: Any, partitions: list[TopicPartition], offsets: list[int | None]) -> Any:
    """One offset for one partition, [TopicPartition with its offset] for many."""
    if isinstance(asked, TopicPartition):
        return offsets[0]
    return [
        TopicPartition(p.topic, p.partition, offset)
        for p, offset in zip(partitions, offsets, strict=True)
    ]
