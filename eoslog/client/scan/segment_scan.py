"""A scan of a partition directory or segment file, without opening a log."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eoslog import _core
from eoslog._util.argument_types import explained
from eoslog._util.arguments import as_path
from eoslog.client.offset_arguments import bound_of
from eoslog.client.scan.pieces import FilePieces
from eoslog.client.scan.scan import Bound, Scan, Source, is_committed
from eoslog.errors import CorruptRecord
from eoslog.model import IsolationLevel, TopicPartition
from eoslog.storage.broker import lock as running_broker
from eoslog.storage.directory import offset_checkpoints, offset_jumps
from eoslog.storage.segment import leader_epochs, listing, segment_files
from eoslog.storage.segment.listing import settled_segments
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["SegmentRange", "read_segments", "segment_range"]

_NO_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The readable range of a partition directory, for one isolation level.

    Use `segment_range` to get one, and pass it to `read_segments`::

        found = eoslog.segment_range("shop/orders-0")
        scan = eoslog.read_segments(found.path, within=found)

    It can be pickled and sent to other processes.

    Attributes:
        path: the partition directory, or one `.log` file.
        topic: the topic, from the directory's name.
        partition: the partition number, from the directory's name.
        start: the first offset.
        end: the offset after the last one; 2^63 - 1 with read_uncommitted.
        aborted: (producer id, first offset, marker offset) of each aborted transaction; None with
            read_uncommitted.
        damage: the damage that ends the range early, or None.
    """

    path: str
    topic: str
    partition: int
    start: int
    end: int
    aborted: tuple[tuple[int, int, int], ...] | None
    damage: CorruptRecord | None = None


@explained
def segment_range(
    path: str | os.PathLike[str],
    *,
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED,
    read_only_anyway: bool = False,
) -> SegmentRange:
    """Find the readable range of a partition, for several readers of its parts.

    One process calls this function, which reads all batch headers of the partition, and sends the
    result to others. Each of them calls `read_segments(found.path, start=..., end=...,
    within=found)`, which opens only the segments of its part.

    Args:
        path: a partition directory, or one `.log` file of it.
        isolation: "read_committed" or "read_uncommitted".
        read_only_anyway: read while a broker is running on the directory.

    Raises:
        EoslogError: as `read_segments`.
    """
    committed = is_committed(isolation)
    path = as_path(path)
    if not read_only_anyway:
        running_broker.refuse(path)
    directory = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    topic, partition = segment_files.partition_of_path(directory)
    root = os.path.dirname(os.path.abspath(directory))
    _, cleaned_to = offset_checkpoints.bounds_of(root, (topic, partition))

    def first_of(base: int) -> int:
        """The start of the range: the log start, even if segments are missing."""
        if not os.path.isdir(path):
            return base  # one file may begin anywhere
        # Read after the listing: a deletion in between would look like a missing segment.
        log_start, _ = offset_checkpoints.bounds_of(root, (topic, partition))
        return base if log_start is None else min(base, log_start)

    fault = offset_jumps.damage_at_end(directory) if directory == path else None
    right, wrong = fault if fault is not None else (_NO_END, None)
    if not committed:
        first = first_of(settled_segments(path)[0].base_offset)
        return SegmentRange(path, topic, max(partition, 0), first, right, None, wrong)

    def folded(
        segments: list[SegmentFiles],
    ) -> tuple[int, _core.TransactionFold, CorruptRecord | None]:
        # Transactions of one file may end in a later file of its directory.
        whole = segments if os.path.isdir(path) else _siblings(directory, path) or segments
        fold = _core.TransactionFold(segment_files.open_before(whole))
        try:
            segment_files.feed_transactions(fold, whole, cleaned_to)
        except CorruptRecord as error:
            return segments[0].base_offset, fold, error
        return segments[0].base_offset, fold, None

    first, fold, damage = listing.over_settled(path, folded)
    stable = max(fold.last_stable_offset, first)  # a transaction may begin before the segments
    end = min(stable, right)
    damage = damage or wrong  # also after an open transaction, whose marker may be damaged
    return SegmentRange(
        path, topic, max(partition, 0), first_of(first), end,
        tuple(fold.aborted), damage,
    )  # fmt: skip


@explained
def read_segments(
    path: str | os.PathLike[str],
    *,
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED,
    start: Bound = None,
    end: Bound = None,
    columns: Sequence[str] | None = None,
    batch_rows: int = 65536,
    binary: str | None = None,
    within: SegmentRange | None = None,
    read_only_anyway: bool = False,
) -> Scan:
    """Read a partition directory or `.log` file, without opening a log.

    Any program may have written it, in Kafka's format.

    Nothing is written. Aborted transactions and the last stable offset are found from the batches.
    The high watermark is not on disk, so a read_uncommitted scan ends at the end of the files.
    Messages of formats 0 and 1 have the same columns; their timestamp is -1 if they have none.

    Args:
        path: a partition directory, or one `.log` file of it.
        isolation: "read_committed" or "read_uncommitted".
        start: the first offset; None means the first that exists.
        end: the offset after the last one; None means the last stable offset, or the end of the
            files with read_uncommitted.
        columns: as for `Log.scan`; None means all.
        batch_rows: the most rows of a record batch.
        binary: "view", "copy" or None, as for `Log.scan`.
        within: the result of `segment_range` for this path, so that the range is not searched
            again. Its isolation level applies.
        read_only_anyway: read while a broker is running on the directory. A batch that the broker
            is writing ends the scan.

    Returns:
        A scan of the partition.

    Raises:
        StorageError: if the path does not exist.
        ConfigError: if the path is not a partition directory, or a column, isolation level or
            value of `binary` is unknown.
        LockTimeout: if a broker has the directory open, or a swap of cleaned segments stays
            unfinished.
        OffsetOutOfRange: if records of the range are deleted before they are read.
        CorruptRecord: if a batch is damaged or has an unknown format (UnsupportedFormat). The
            iteration raises this after the batches before it, and names file and position. A scan
            can start after the damage. If the damaged bytes are not batches, only a
            read_uncommitted scan can, because a transaction may have ended in them.
    """
    start, end = bound_of("start", start), bound_of("end", end)
    path = as_path(path)
    if within is None:
        within = segment_range(path, isolation=isolation, read_only_anyway=read_only_anyway)
    elif not read_only_anyway:
        running_broker.refuse(path)
    place = TopicPartition(within.topic, within.partition)
    given_start, given_end = (
        bound.get(place) if isinstance(bound, Mapping) else bound for bound in (start, end)
    )
    bound, damage = within.end, within.damage
    if given_end is not None and given_end <= bound:
        bound, damage = given_end, None
    found = within.aborted
    directory = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    source = Source(
        within.topic, within.partition, within.start if given_start is None else given_start, bound,
        FilePieces(path, within.start),
        None if found is None else lambda _first, _last: found,
        damage, functools.cache(lambda: leader_epochs.of_directory(directory, str(place))),
    )  # fmt: skip
    return Scan([source], columns=columns, batch_rows=batch_rows, binary=binary)


def _siblings(directory: str, path: str) -> list[SegmentFiles]:
    """A segment file and the later segments of its directory."""
    base = segment_files.offset_of_name(path)
    if base is None:
        return []
    return [s for s in settled_segments(directory) if s.base_offset >= base]
