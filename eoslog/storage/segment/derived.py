"""The derived files of a sealed segment, verified before a reader or a deletion uses them.

The time index and the abort index are compared with the segment's seal (`seals.py`). If the seal is
missing or contradicts a file, both indexes are rebuilt from the segment's batches, whose CRCs are
checked, and used from memory. The files stay unchanged until a writer closes the partition.

| damaged or missing | used instead |
|---|---|
| time index, abort index | the batches, read once per process |
| seal | the same |
| an index and the log file | nothing: a read that needs the index raises CorruptRecord |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files
from eoslog.storage.segment import seals
from eoslog.storage.segment.producer_snapshots import newest_snapshot
from eoslog.storage.segment.scans import scan_segments
from eoslog.storage.segment.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_path

logger = get_logger("eoslog.storage")

ANY_TIME = (1 << 63) - 1
"""The greatest timestamp of a segment that cannot be read to its end."""
_ABORTED = struct.Struct(">hqqqq")
Aborted = tuple[int, int, int]
"""Producer id, first offset, offset of the ABORT marker."""


class Remade(NamedTuple):
    """The derived files of one segment, computed from its batches.

    Attributes:
        offset_index, times, aborted: the bytes of the three index files.
        fault: why the scan ended before the end of the segment, None if it did not.
        position, offset: the byte and the offset at which it ended.
        unfinished: whether a transaction was open at that offset.
        gap: whether the offsets from there to the next segment are missing.
    """

    offset_index: bytes
    times: bytes
    aborted: bytes
    fault: str | None
    position: int
    offset: int
    unfinished: bool
    gap: bool = False


def remake(
    directory: str, bases: Sequence[int], base: int, new_fold: Callable[[], _core.Partition]
) -> Remade:
    """Compute the derived files of a segment from its batches, each under its CRC.

    Args:
        directory: the partition's directory.
        bases: bases of its segments, ascending.
        base: base of the segment.
        new_fold: returns an empty fold of the partition.

    Raises:
        FileNotFoundError: if a segment was deleted in the meantime.
        StorageError: if a segment cannot be read.
    """
    start, entries = newest_snapshot(directory, [b for b in bases if b <= base], delete_bad=False)
    fold = new_fold()
    fold.load(start, entries)
    todo = [b for b in bases if start <= b <= base]
    scanned = list(scan_segments(fold, directory, todo))[-1]
    unfinished = bool(fold.open_transactions())
    if scanned.base != base:  # damage in an earlier segment: open transactions are unknown
        return Remade(b"", b"", b"", scanned.fault, 0, scanned.base, unfinished)
    return Remade(
        scanned.offset_index, scanned.times, scanned.aborted, scanned.fault, scanned.position,
        scanned.offset, unfinished,
    )  # fmt: skip


class Derived:
    """The derived files of one sealed segment, verified at their first use. Thread-safe.

    Attributes:
        base, end: offsets; the segment holds [base, end).
    """

    def __init__(
        self,
        directory: str,
        topic_id: bytes,
        base: int,
        end: int,
        remake: Callable[[], Remade],
        *,
        scanned: bool = False,
    ) -> None:
        """Read the seal; without one, or if recovery has `scanned` the segment, use the batches.

        Raises:
            FileNotFoundError: if the segment was deleted in the meantime.
        """
        self.base, self.end = base, end
        self._directory = directory
        self._topic_id = topic_id
        self._stem = file_path(directory, base, "")
        self._remake = remake
        self._remade: Remade | None = None
        self._aborted: list[Aborted] | None = None
        self._seal = None if scanned else seals.read(directory, end, topic_id, base)
        if self._seal is None:
            self._rebuilt()

    @property
    def remade(self) -> bool:
        """Whether a file was missing or wrong, so that the segment was scanned."""
        return self._remade is not None

    @property
    def largest(self) -> int:
        """The greatest timestamp of the segment in ms; -1 for none, `ANY_TIME` if unknown."""
        if self._seal is not None:
            return self._seal.largest
        made = self._rebuilt()
        incomplete = made.fault is not None or made.gap
        return ANY_TIME if incomplete else seals.largest_timestamp(made.times)

    def size(self, stated: int) -> int:
        """Return the size with which the segment was sealed; its file has `stated` bytes now."""
        if self._seal is not None:
            return min(stated, self._seal.size)
        made = self._rebuilt()
        return stated if made.fault is None else made.position

    def times(self) -> bytes:
        """Return the content of the time index."""
        if self._seal is not None and self._remade is None:
            data = seals.content(self._stem + TIME_INDEX)
            if seals.checksum(data) == self._seal.times:
                return data or b""
            self._contradicted(TIME_INDEX)
        return self._rebuilt().times

    def aborted(self) -> list[Aborted]:
        """Return the aborted transactions whose markers are in the segment.

        Raises:
            CorruptRecord: if both the abort index and the log are damaged.
        """
        if self._aborted is None:
            self._aborted = [
                (producer, first, last)
                for _, producer, first, last, _ in _ABORTED.iter_unpack(self.abort_index())
            ]
        return self._aborted

    def abort_index(self) -> bytes:
        """Return the content of the abort index; errors are those of `aborted`."""
        if self._seal is not None and self._remade is None:
            if self._seal.aborted.size <= 0:
                return b""
            data = seals.content(self._stem + TXN_INDEX)
            if seals.checksum(data) == self._seal.aborted:
                return data or b""
            self._contradicted(TXN_INDEX)
        made = self._rebuilt()
        if made.fault is not None:
            raise CorruptRecord(
                f"{self._stem}{TXN_INDEX}: the abort index is missing or damaged, and it cannot be "
                f"rebuilt: the log is damaged at offset {made.offset} ({made.fault}); "
                "run `eoslog repair`",
                path=self._stem + LOG,
                position=made.position,
            )
        if made.gap and made.unfinished:
            raise CorruptRecord(
                f"{self._stem}{LOG}: offsets {made.offset} to {self.end - 1}, after this file, are "
                "missing, and may include the end of a transaction that began before them; run "
                "`eoslog repair`",
                path=self._stem + LOG,
                position=made.position,
            )
        return made.aborted

    def _contradicted(self, suffix: str) -> None:
        logger.warning(
            "%s%s: missing or damaged, reading the batches instead "
            "(`eoslog check --fix-indexes` writes the file again)",
            self._stem,
            suffix,
        )

    def _rebuilt(self) -> Remade:
        if self._remade is None:
            self._remade = self._remake()
        return self._remade

    def write(self) -> None:
        """Replace the files that were missing or wrong. The caller holds the cleaner lock.

        A segment before a gap gets no seal, so that every process notices the gap.

        Raises:
            FileNotFoundError: if the segment was deleted.
            StorageError: if a file cannot be written; the next process scans the segment again.
        """
        made = self._remade
        if made is None or made.fault is not None or made.gap:
            return
        for suffix, data in ((INDEX, made.offset_index), (TIME_INDEX, made.times)):
            _replace(self._stem + suffix, data)
        if made.aborted or files.exists(self._stem + TXN_INDEX):
            _replace(self._stem + TXN_INDEX, made.aborted)
        snapshot = seals.NO_FILE if self._seal is None else self._seal.snapshot  # not verified here
        seals.seal_files(self._directory, self._topic_id, self.base, self.end, snapshot)


def _replace(path: str, data: bytes) -> None:
    if seals.content(path) != data:
        files.write_atomically(path, data)
