"""Removing damaged batches from a partition, so that all valid batches after them stay.

A skip writes a new segment: valid batches byte for byte and, instead of each damaged stretch, an
empty batch with its offsets, as compaction leaves them. Readers skip such batches. A lost marker is
written again, because otherwise its transaction would merge with the producer's next one.

| step | a crash after this step leaves |
|---|---|
| 1 copy the damaged bytes to `<base>.log.cut-<ms>`, durably | the damage, and copies |
| 2 remove later producer snapshots and the segment's indexes | the same; recovery rebuilds them |
| 3 write the new segment, and rename it to the old one's name | the result; recovery rebuilds the
                                                                 indexes |
| 4 rebuild the indexes from the batches | the result |

After a crash, a second run does the remaining steps, and uses existing copies again.

Instead of a missing segment, `fill` writes one with its offsets and its markers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.reports import Damage, TornTransaction
from eoslog.storage.check import index_rebuild
from eoslog.storage.check.damage import Marker, Stretch, filler
from eoslog.storage.fs import files
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.kept_copies import bytes_of, keep
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
    offsets_in,
)

__all__ = ["Decisions", "describe", "fill", "settle_markers", "skip", "torn_by"]

Decisions = Callable[[], Mapping[tuple[int, int], tuple[str, bool]]]
"""By (producer id, epoch of the data): transactional id, and whether it was committed."""

_STEP = 4 << 20
_MOST_OFFSETS = 1 << 30
"""The most offsets of an empty batch that stands for a missing segment."""


def settle_markers(stretches: list[Stretch], decisions: Decisions) -> None:
    """Decide whether the transactions of unreadable lost markers were committed.

    The decision in `__transaction_state` is used. Without one, the transaction is aborted, so that
    records that may be aborted never become visible.
    """
    for stretch in stretches:
        for marker in stretch.markers:
            if marker.commit is None:
                _, marker.commit = decisions().get(_key(marker), ("", False))


def describe(path: str, stretch: Stretch, copy: str | None = None) -> Damage:
    """Return a stretch as an entry of a report."""
    topic, number = segment_files.partition_of_path(path)
    return Damage(
        topic, number, file_path(path, stretch.base, LOG), stretch.position,
        stretch.size, stretch.first, stretch.last, stretch.before_ms, stretch.after_ms,
        stretch.records_after, stretch.bytes_after, copy,
    )  # fmt: skip


def torn_by(path: str, stretch: Stretch, decisions: Decisions) -> list[TornTransaction]:
    """Return the transactions that a stretch damages, or may damage."""
    topic, number = segment_files.partition_of_path(path)

    def torn(producer: int, epoch: int, first: int, lost: str, commit: bool | None) -> None:
        name, decided = decisions().get((producer, epoch), (None, None))
        commit = decided if commit is None else commit
        outcome = None if commit is None else "commit" if commit else "abort"
        found.append(TornTransaction(topic, number, producer, epoch, name, first, lost, outcome))

    found: list[TornTransaction] = []
    if stretch.is_gap:
        ended = {_key(marker): marker.commit for marker in stretch.markers}
        for key, first in stretch.open.items():
            torn(*key, first, "unknown", ended.get(key))
        for (producer, epoch), commit in stretch.began.items():
            if commit is not None and epoch and (producer, epoch) not in decisions():
                epoch -= 1  # a marker has the epoch after its records'
            torn(producer, epoch, stretch.first, "records", commit)
        return found
    for marker in stretch.markers:
        torn(*_key(marker), marker.first_offset, "marker", marker.commit)
    if stretch.markers or stretch.plain:
        return found
    lost = stretch.producer
    if lost is not None:
        if lost.transactional:
            key = lost.producer_id, lost.producer_epoch
            torn(*key, stretch.open.get(key, stretch.first), "records", None)
        return found
    if stretch.header in stretch.open:
        torn(*stretch.header, stretch.open[stretch.header], "unknown", None)
        return found
    for (producer, epoch), first in stretch.open.items():
        torn(producer, epoch, first, "unknown", None)
    if stretch.header is not None:
        torn(*stretch.header, stretch.first, "unknown", None)
    return found


def _key(marker: Marker) -> tuple[int, int]:
    return marker.producer_id, marker.producer_epoch


def skip(path: str, stretches: list[Stretch], index_interval: int, now_ms: int) -> list[str]:
    """Remove damaged stretches from a partition.

    Args:
        path: the partition's directory, which no process may have open.
        stretches: all stretches, in order, from `damage.find`, after `settle_markers`.
        index_interval: the topic's `index.interval.bytes`.
        now_ms: wall clock time in ms.

    Returns:
        The path of each stretch's copy, "" if there is nothing to keep.

    Raises:
        CorruptRecord: if a stretch has fewer offsets than lost markers; nothing was changed.

    Durability: durable on return.
    """
    fillers = [filler(stretch) for stretch in stretches]
    copies = [keep(path, s.base, s.position, s.position + s.size, now_ms) or "" for s in stretches]
    _drop_derived(path, stretches)
    pairs = list(zip(stretches, fillers, strict=True))
    for base, found in groupby(pairs, lambda pair: pair[0].base):
        _write_segment(path, base, list(found))
    _, problems = index_rebuild.rebuild(path, index_interval, first=stretches[0].base)
    if problems:
        raise CorruptRecord(
            f"still damaged after the skip: {problems[0].message}", path=problems[0].path,
            position=problems[0].position,
        )  # fmt: skip
    return copies


def fill(path: str, gaps: list[Stretch], index_interval: int) -> None:
    """Write an empty batch and the lost markers for each missing segment.

    Args:
        path: the partition's directory, which no process may have open.
        gaps: all missing segments, in order, after `settle_markers`.
        index_interval: the topic's `index.interval.bytes`.

    Raises:
        CorruptRecord: if more markers are lost than offsets; nothing was changed.

    Durability: durable on return.
    """
    gaps = [replace(gap, first=max(gap.first, gap.last - _MOST_OFFSETS)) for gap in gaps]
    made = [filler(gap) for gap in gaps]
    _drop_later(path, gaps[0].first)
    for gap, data in zip(gaps, made, strict=True):
        with _replacing(path, gap.first) as fd:
            _core.os_pwrite(fd, data, 0)
    index_rebuild.rebuild(path, index_interval, first=gaps[0].first)  # up to the next damage


@contextlib.contextmanager
def _replacing(path: str, base: int) -> Iterator[int]:
    """Yield a new file, which replaces a segment's log when the block has written it."""
    name = file_path(path, base, LOG)
    temporary = f"{name}.tmp"
    fd = files.open_file(temporary, create=True)
    try:
        with files.naming(temporary):
            _core.os_truncate(fd, 0)
            yield fd
            _core.os_sync(fd, data_only=False)
    finally:
        files.close(fd)
    files.rename(temporary, name)
    files.fsync_dir(path)


def _drop_later(path: str, offset: int) -> None:
    """Remove the snapshots and seals that end after an offset."""
    for suffix in (SNAPSHOT, SEAL):
        for other in offsets_in(path, suffix):
            if other > offset:
                files.remove(file_path(path, other, suffix))


def _drop_derived(path: str, stretches: list[Stretch]) -> None:
    """Remove the derived files of damaged segments, and later snapshots and seals."""
    _drop_later(path, stretches[0].base)
    for base in {stretch.base for stretch in stretches}:
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
            files.remove(file_path(path, base, suffix))
    files.fsync_dir(path)


def _write_segment(path: str, base: int, pairs: list[tuple[Stretch, bytes]]) -> None:
    """Write a segment again without its stretches, and replace the old one."""
    data = bytes_of(file_path(path, base, LOG))
    with _replacing(path, base) as fd:
        written, position = 0, 0
        for stretch, made in pairs:
            written = _copy(fd, data, position, stretch.position, written)
            if made:
                _core.os_pwrite(fd, made, written)
            written += len(made)
            position = stretch.position + stretch.size
        _copy(fd, data, position, len(data), written)


def _copy(fd: int, data: object, begin: int, end: int, at: int) -> int:
    """Write [begin, end) of `data` at a byte of a file. Returns the byte after it."""
    view = memoryview(data)  # type: ignore[arg-type]
    try:
        for position in range(begin, end, _STEP):
            piece = view[position : min(position + _STEP, end)]
            _core.os_pwrite(fd, bytes(piece), at)
            at += len(piece)
    finally:
        view.release()
    return at
