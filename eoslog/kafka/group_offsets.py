"""Translation of committed group offsets between a log and a cluster.

Offsets differ between the two sides, because markers, aborted records and gaps are not copied. The
records that a group has still to read do not differ. If k records follow a committed offset at the
source, the group resumes at the k-th last record of the target. Those k records are compared one by
one, by timestamp, key, value and headers. No state is kept between runs, and a target that was
compacted or that another program wrote to is detected.

A group at the target is never moved back, because it may have begun to read there. A log compares
and sets in one step. A cluster cannot, so there the offset is read just before it is set.

Offsets count in the topics whose records were compared. If one was re-created since, they are not
set.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from eoslog.errors import ConfigError, GroupNotFound, IllegalState, UnknownTopicOrPartition
from eoslog.kafka.cluster import WAIT_S, GroupOffsets, MoveOptions, larger, re_created
from eoslog.kafka.log import MovedLog
from eoslog.model import (
    NO_RESET,
    OWN_GROUPS,
    PUBLISHING_IDS_GROUP,
    OffsetAndMetadata,
    TopicPartition,
)
from eoslog.storage.format.checkpoints import id_bytes, id_text
from eoslog.storage.fs.files import failpoint

JOBS = ("eoslog-export-", "eoslog-import")
"""Prefixes of the groups that hold positions of jobs, which are offsets of another source."""
_MARGIN = 1000
_BATCH = 10_000


class Side(Protocol):
    """A cluster or a directory."""

    def start(self, tp: TopicPartition) -> int:
        """Return a partition's first offset."""

    def end(self, tp: TopicPartition) -> int:
        """Return the offset after all decided records."""

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield the offset and content of each committed record in [start, end)."""

    def groups(self) -> list[str]:
        """Return the ids of all groups."""

    def group_offsets(self, group: str) -> GroupOffsets:
        """Return the stable committed offsets of a group."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics, without those that have none."""

    def advance_group(self, group: str, offsets: GroupOffsets, ids: Mapping[str, str]) -> None:
        """Set the offsets that are larger than the group's; without one, do nothing.

        Args:
            group: the group.
            offsets: the offsets.
            ids: the topics that the offsets count in, as `topic_ids` returned them.

        Raises:
            NonEmptyGroup: if the group has members.
            IllegalState: if a topic has another id.
        """


class LogSide:
    """A log, as the other side of a cluster."""

    def __init__(self, log: MovedLog) -> None:
        """Use an open log."""
        self._log = log

    def start(self, tp: TopicPartition) -> int:
        """Return a partition's first offset."""
        return self._log.offsets(tp.topic, tp.partition).log_start

    def end(self, tp: TopicPartition) -> int:
        """Return the last stable offset."""
        return self._log.offsets(tp.topic, tp.partition).last_stable

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield the offset and content of each committed record in [start, end)."""
        options: dict[str, Any] = {
            "isolation_level": "read_committed",
            "auto_offset_reset": NO_RESET,
        }
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
        """Return the ids of all groups."""
        return self._log.groups()

    def group_offsets(self, group: str) -> GroupOffsets:
        """Return the committed offsets of a group, waiting for undecided ones."""
        return self._log.committed(group)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics."""
        return {name: id_text(self._log.topic_id(name)) for name in topics}

    def advance_group(self, group: str, offsets: GroupOffsets, ids: Mapping[str, str]) -> None:
        """Set the offsets that are larger than the group's; without one, do nothing.

        Raises:
            NonEmptyGroup: if the group has members.
            IllegalState: if a topic was deleted or re-created.
        """
        ahead = {
            tp: replace(at, topic_id=id_bytes(ids[tp.topic]))
            for tp, at in larger(offsets, self.group_offsets(group)).items()
        }
        if not ahead:
            return
        try:  # the group may have read on since the look
            self._log.reset_offsets(group, ahead, forward_only=True)
        except UnknownTopicOrPartition as error:
            raise re_created(group) from error


class MovedGroups:
    """The groups that one export or import moves.

    Their offsets are read before the ends at which the run stops, so no group is ahead of an end.
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
            ConfigError: if a named group does not hold consumer offsets.
            GroupNotFound: if a named group has no offsets in these partitions.
        """
        self._source, self._target = source, target
        named = None if options.groups == "all" else list(options.groups)
        if named is None:
            left_out = (*JOBS, OWN_GROUPS)
            named = [g for g in source.groups() if g != options.job and not g.startswith(left_out)]
        for group in named:
            if group.startswith(OWN_GROUPS):  # translated like an offset, a version would change
                ids = group.startswith(PUBLISHING_IDS_GROUP)
                kind = "publishing ids" if ids else "Spark write versions"
                raise ConfigError(
                    f"group {group!r} stores {kind}, not consumer offsets, and cannot be moved; "
                    "leave it out"
                )
        self._offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for group in named:
            known = source.group_offsets(group)
            found = {tp: known[tp] for tp in partitions if tp in known}
            if found:
                self._offsets[group] = found
            elif options.groups != "all":
                raise GroupNotFound(
                    f"group {group!r} has no committed offsets in the copied topics; check its "
                    "name with `eoslog group list`"
                )

    def carry(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Set every group's offsets at the target, and return them.

        Args:
            positions: the end of the copied records, by source partition.

        Raises:
            IllegalState: if the target does not end with the source's records; no offset is set.
                Or if a topic of the target was re-created since; its groups are not set.
            NonEmptyGroup: if a group has members at the target.
        """
        if not self._offsets:
            return {}
        wanted: dict[TopicPartition, set[int]] = {}
        for offsets in self._offsets.values():
            for tp, at in offsets.items():
                wanted.setdefault(tp, set()).add(at.offset)
        ids = self._target.topic_ids({tp.topic for tp in wanted})
        told = {
            tp: _translate(self._source, self._target, tp, sorted(found), positions[tp])
            for tp, found in wanted.items()
        }
        failpoint("groups.told")
        done: dict[str, dict[TopicPartition, int]] = {}
        for group, offsets in self._offsets.items():
            new = {
                tp: replace(at, offset=told[tp][at.offset], leader_epoch=-1)
                for tp, at in offsets.items()
            }
            self._target.advance_group(group, new, ids)
            failpoint("groups.set")
            there = self._target.group_offsets(group)
            done[group] = {tp: there[tp].offset for tp in new if tp in there}
        return done


def _translate(
    source: Side, target: Side, tp: TopicPartition, offsets: list[int], position: int
) -> dict[int, int]:
    """Return the target offset for each of the source's offsets, which are sorted."""
    first = max(offsets[0], source.start(tp))
    here, contents = _read(source, tp, first, position)
    count = len(here)
    begin, end = target.start(tp), target.end(tp)
    there, found = array("q"), array("q")
    if count:
        start = end
        while len(there) < count and start > begin:  # markers and gaps are between the records
            start = max(begin, end - 2 * max(end - start, count) - _MARGIN)
            there, found = _read(target, tp, start, end)
        if contents != found[-count:]:
            raise IllegalState(
                f"{tp}: the last {count} records of the target differ from those of the source "
                f"from offset {first} to {position}: the target was compacted, or another program "
                "wrote to it; no group's offset was set, set them with `eoslog group reset`"
            )
        there = there[-count:]
    there.append(end)
    return {offset: there[bisect_left(here, offset)] for offset in offsets}


def _read(side: Side, tp: TopicPartition, start: int, end: int) -> tuple[array[int], array[int]]:
    """Return the offsets and fingerprints of committed records."""
    offsets, contents = array("q"), array("q")
    for offset, (timestamp, key, value, headers) in side.records(tp, start, end):
        offsets.append(offset)
        contents.append(hash((timestamp, key, value, tuple(headers))))
    return offsets, contents


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
