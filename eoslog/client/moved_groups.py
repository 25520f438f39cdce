"""Committed offsets of groups, told in the offsets of the other side.

Offsets differ there: markers, aborted records and gaps stay behind. What a group has still to read
does not. A group whose committed offset has k records behind it at the source goes on at the k-th
last record of the target. Those k records are compared one by one, time, key, value and headers, so
an offset is told only where what follows is the same: nothing is kept between runs, and a target
that was cleaned or filled by somebody else is noticed.

A group at the target is never set back: it may have begun to read there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from eoslog.client.kafka_cluster import WAIT_S, GroupOffsets, MoveOptions
from eoslog.errors import ConfigError, GroupNotFound, IllegalState
from eoslog.model import OWN_GROUPS, OffsetAndMetadata, TopicPartition
from eoslog.storage.files import failpoint

if TYPE_CHECKING:
    from eoslog.log import Log

JOBS = ("eoslog-export-", "eoslog-import")
"""How the groups begin that hold positions of jobs: they count in offsets of yet another place."""
_MARGIN = 1000
_BATCH = 10_000


class Side(Protocol):
    """A cluster or a directory."""

    def start(self, tp: TopicPartition) -> int:
        """A partition's first offset."""

    def end(self, tp: TopicPartition) -> int:
        """The offset behind everything that is decided."""

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Offset and content of the committed records in [start, end)."""

    def groups(self) -> list[str]:
        """Ids of all groups."""

    def group_offsets(self, group: str) -> GroupOffsets:
        """Committed offsets; stable ones."""

    def set_group_offsets(self, group: str, offsets: GroupOffsets) -> None:
        """Set them. Raises NonEmptyGroup for a group with members."""


class LogSide:
    """A directory, as the other side of a cluster."""

    def __init__(self, log: Log) -> None:
        """Serve an open log."""
        self._log = log

    def start(self, tp: TopicPartition) -> int:
        """A partition's first offset."""
        return self._log.offsets(tp.topic, tp.partition).log_start

    def end(self, tp: TopicPartition) -> int:
        """The last stable offset."""
        return self._log.offsets(tp.topic, tp.partition).last_stable

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Offset and content of the committed records in [start, end)."""
        options = {"isolation_level": "read_committed", "auto_offset_reset": "none"}
        with self._log.consumer(**options) as reader:
            reader.assign([TopicPartition(tp.topic, tp.partition, start)])
            while reader.positions()[tp] < end:
                for record in reader.consume(_BATCH, timeout=WAIT_S):
                    if record.offset < end:
                        yield record.offset, (
                            record.timestamp, _bytes(record.key), _bytes(record.value),
                            [(name, _bytes(value)) for name, value in record.headers or ()],
                        )  # fmt: skip

    def groups(self) -> list[str]:
        """Ids of all groups."""
        return self._log.groups()

    def group_offsets(self, group: str) -> GroupOffsets:
        """Committed offsets; undecided ones are waited for."""
        return self._log.engine.groups.fetch_offsets(group)

    def set_group_offsets(self, group: str, offsets: GroupOffsets) -> None:
        """Set them. Raises NonEmptyGroup for a group with members."""
        self._log.reset_offsets(group, offsets)


class MovedGroups:
    """The groups of one run of an export or import.

    Their offsets are read before the ends that the run goes to: so no group is ahead of them.
    """

    def __init__(
        self,
        source: Side,
        target: Side,
        partitions: Collection[TopicPartition],
        options: MoveOptions,
    ) -> None:
        """Read the offsets at the source.

        Raises:
            ConfigError: a group that was named holds no positions of readers.
            GroupNotFound: a group that was named has none in these partitions.
        """
        self._source, self._target = source, target
        named = None if options.groups == "all" else list(options.groups)
        if named is None:
            left_out = (*JOBS, OWN_GROUPS)
            named = [g for g in source.groups() if g != options.job and not g.startswith(left_out)]
        for group in named:
            if group.startswith(OWN_GROUPS):  # told as an offset, a version would be another one
                raise ConfigError(
                    f"group {group!r} is eoslog's own: its offsets are versions of Spark's writes, "
                    "not positions, and cannot be told in another place's offsets"
                )
        self._offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for group in named:
            known = source.group_offsets(group)
            found = {tp: known[tp] for tp in partitions if tp in known}
            if found:
                self._offsets[group] = found
            elif options.groups != "all":
                raise GroupNotFound(f"group {group!r} has no offsets in the topics that are moved")

    def carry(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Set every group's offsets at the target, and give them.

        Args:
            positions: up to where the source was moved.

        Raises:
            IllegalState: the target does not end with what the source has; no offset was set.
            NonEmptyGroup: a group has members at the target.
        """
        wanted: dict[TopicPartition, set[int]] = {}
        for offsets in self._offsets.values():
            for tp, at in offsets.items():
                wanted.setdefault(tp, set()).add(at.offset)
        told = {
            tp: _translate(self._source, self._target, tp, sorted(found), positions[tp])
            for tp, found in wanted.items()
        }
        failpoint("groups.told")
        done: dict[str, dict[TopicPartition, int]] = {}
        for group, offsets in self._offsets.items():
            there = self._target.group_offsets(group)
            new = {
                tp: replace(at, offset=told[tp][at.offset], leader_epoch=-1)
                for tp, at in offsets.items()
            }
            forward = {
                tp: at for tp, at in new.items() if tp not in there or there[tp].offset < at.offset
            }
            if forward:
                self._target.set_group_offsets(group, forward)
                failpoint("groups.set")
            done[group] = {
                tp: max(at.offset, there[tp].offset) if tp in there else at.offset
                for tp, at in new.items()
            }
        return done


def _translate(
    source: Side, target: Side, tp: TopicPartition, offsets: list[int], position: int
) -> dict[int, int]:
    """Where the target goes on for each of the source's offsets, which are sorted."""
    first = max(offsets[0], source.start(tp))
    here, contents = _read(source, tp, first, position)
    count = len(here)
    begin, end = target.start(tp), target.end(tp)
    there, found = array("q"), array("q")
    if count:
        start = end
        while len(there) < count and start > begin:  # markers and gaps lie between the records
            start = max(begin, end - 2 * max(end - start, count) - _MARGIN)
            there, found = _read(target, tp, start, end)
        if contents != found[-count:]:
            raise IllegalState(
                f"{tp}: the last {count} records of the target are not those of the source from "
                f"offset {first} to {position}: it was cleaned, or written to by something else, "
                "and no group's offset can be told there. Nothing was set"
            )
        there = there[-count:]
    there.append(end)
    return {offset: there[bisect_left(here, offset)] for offset in offsets}


def _read(side: Side, tp: TopicPartition, start: int, end: int) -> tuple[array[int], array[int]]:
    """Offsets and fingerprints of committed records."""
    offsets, contents = array("q"), array("q")
    for offset, (timestamp, key, value, headers) in side.records(tp, start, end):
        offsets.append(offset)
        contents.append(hash((timestamp, key, value, tuple(headers))))
    return offsets, contents


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
