"""Offsets that a user types, compared with what the partitions hold."""

from __future__ import annotations

from collections.abc import Mapping

import click

from eoslog import TopicPartition
from eoslog.commands.context import CliContext

_MOST_SHOWN = 8


def in_range(
    option: str, offset: int, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Return an offset per partition; the nearest one if only others contain it.

    Args:
        option: what the offset was given by.
        offset: the offset.
        ranges: first and end offset of each partition; the end counts as in it.

    Raises:
        click.BadParameter: no partition holds it; the message names the ranges.
    """
    found = {tp: min(max(offset, low), end) for tp, (low, end) in ranges.items()}
    outside = [tp for tp, nearest in found.items() if nearest != offset]
    if outside and len(outside) == len(found):
        raise click.BadParameter(
            f"offset {offset} is out of range: {_described(ranges, outside)}; "
            "give one in the range",
            param_hint=f"{option!r}",
        )
    if outside:
        CliContext.say(
            f"eoslog: {option} {offset}: some partitions take their nearest offset instead: "
            + _described(ranges, outside)
        )
    return found


def _described(
    ranges: Mapping[TopicPartition, tuple[int, int]], which: list[TopicPartition]
) -> str:
    described = [f"{tp} holds {ranges[tp][0]} to {ranges[tp][1]}" for tp in which[:_MOST_SHOWN]]
    if len(which) > _MOST_SHOWN:
        described.append(f"{len(which) - _MOST_SHOWN} more partitions do not hold it")
    return ", ".join(described)
