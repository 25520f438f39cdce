"""Segments that were written beside the log become part of it by their name.

A large staged file is one partition's batches and nothing else: as a segment of the partition its
bytes are written once, and the disk has had them since they were staged. It is stamped for the end
of the log, made durable, and then takes the place of the next segment's empty files in a roll
(`_core/adoption.pxi`). An append that comes in between moves the end; it is stamped anew then.

**What a crash leaves:** before the roll, a file under its own name that belongs to nobody; after
it, what a roll leaves. Recovery and the next holder of the lock cut what was not published.

Source: protocol.md, rows 9, 11 and 16; `docs/format.md`, Staging.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.errors import CorruptRecord, ErrorCode, OutOfOrderSequence, StorageError
from eoslog.model import AppendResult
from eoslog.storage import files
from eoslog.storage.refusals import S

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog
    from eoslog.storage.writer_files import Prepared

_STAMPS = 8
"""How often the log end may move from under one file before its batches are appended instead."""
_HELD = 16
"""Segments of a partition that may wait for a flush, each with its descriptor."""
_BATCHES = 2048
"""Of a file: under the lock each costs some microseconds."""
_TRIES = 1000
"""Of one call; in between, what the core found missing is made ready."""

__all__ = ["CannotAdopt", "StagedSegment", "adopt", "adoptable"]


class CannotAdopt(Exception):
    """The file can be no segment here and now; it is as it was, but for its stamps."""


@dataclass(frozen=True, slots=True)
class _Stamps:
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


class StagedSegment:
    """A file of one partition's batches, each checked against its CRC, on its way into the log.

    Its descriptor is its own until the log has taken it; not thread-safe.

    Attributes:
        path: Where it lies now.
        ready_for: The log end that it was stamped for, and made durable with; -1: none.
    """

    def __init__(self, path: str, size: int) -> None:
        """Open and check it; what the disk has been told to write is waited for.

        Args:
            path: on the directory's own file system.
            size: bytes that its writer wrote.

        Raises:
            CorruptRecord: it is gone, of another size, or not what was written.
        """
        self.path = path
        self.ready_for = -1
        self._stamps: _Stamps | None = None
        try:
            # Before it is read: an error of its writeback that nobody heard of is told to this one.
            fd = files.open_file(path)
        except FileNotFoundError:
            raise CorruptRecord(f"{path}: gone, a task wrote it") from None
        try:
            with files.naming(path):
                found = os.fstat(fd).st_size
                if found != size:
                    raise CorruptRecord(f"{path}: {found} bytes, the task wrote {size}")
                try:
                    self.file = _core.SegmentFile(fd, size)
                except CorruptRecord as error:
                    raise CorruptRecord(f"{path}: {error}") from error
        except BaseException:
            files.close(fd)
            raise

    def __len__(self) -> int:
        return self.file.size

    @property
    def count(self) -> int:
        """Records."""
        return self.file.count

    def sync(self) -> None:
        """Have the disk hold what is in the file now.

        Raises:
            StorageError: it lost some of it. The next sync would not tell: the file is removed.
        """
        try:
            with files.naming(self.path):
                _core.os_sync(self.file.fd)
        except StorageError:
            files.remove(self.path)
            raise

    def bear(
        self, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> None:
        """Whose batches they are, with which sequences; before `adopt`."""
        self._stamps = _Stamps(producer_id, producer_epoch, base_sequence, transactional)
        self.ready_for = -1

    def stamp(self, log: PartitionLog, base_offset: int) -> None:
        """Write producer and offsets into the headers, for the end of a log.

        **Durability:** in a strict directory the whole file is durable on return.
        """
        stamps = self._stamps
        assert stamps is not None  # `bear` came first
        self.ready_for = -1
        with files.naming(self.path):
            self.file.stamp(
                producer_id=stamps.producer_id,
                producer_epoch=stamps.producer_epoch,
                base_sequence=stamps.base_sequence,
                transactional=stamps.transactional,
                base_offset=base_offset,
                leader_epoch=log.leader_epoch,
            )
        files.failpoint("adopt.stamped")
        if log.strict:
            self.sync()
        self.ready_for = base_offset
        files.failpoint("adopt.durable")

    def close(self) -> None:
        """Close the file, unless the log has it."""
        files.close(self.file.release())


def adoptable(log: PartitionLog, segment: StagedSegment) -> bool:
    """Whether the file can be a segment of the partition: nothing in it is to be judged record by
    record, and there is a segment before it that can be rolled.
    """
    settings, file = log.settings, segment.file
    return (
        not log.looks_at_records
        and not settings.log_append_time
        and file.size <= settings.segment_bytes
        and file.largest <= settings.max_message_bytes
        and file.batches <= min(_BATCHES, settings.segment_index_bytes // 12)
        and file.count <= 0x7FFFFFFF
        and log.core.log_end > log.core.active_base
    )


def adopt(
    log: PartitionLog,
    segment: StagedSegment,
    expect: Sequence[tuple[PartitionLog, int]],
    timeout: float,
) -> AppendResult | None:
    """Make a staged file the partition's next segment; as `PartitionLog.append` of its batches.

    Returns:
        Where the records are, or None when an expected end has moved: nothing was appended.

    Raises:
        CannotAdopt: the log does not take it as it is, or its end moves all the time.
        As `PartitionLog.append`.

    **Durability:** in a strict directory the file's bytes are durable, its name is after `flush`.
    """
    if not adoptable(log, segment):
        raise CannotAdopt(segment.path)
    if log.flusher.held > _HELD:  # as in an "os" directory, where nobody else does
        log.sync()
    with _prepared(log, segment) as prepared:
        stamps = 0
        for _ in range(_TRIES):
            if segment.ready_for != log.log_end:
                if stamps == _STAMPS:
                    break
                stamps += 1
                segment.stamp(log, log.log_end)
            try:
                status, base, last, timestamp, error, rolled = _core.adopt_segment(
                    log.core, segment.file, prepared.fds, prepared.names, expect, timeout
                )
            finally:
                log.writer_files.after_roll()
            if status == S["APPENDED"]:
                if log.on_append is not None:
                    log.on_append(log)
                return AppendResult(base, last, False, timestamp)
            if status == S["CHANGED"]:
                if segment.ready_for == log.log_end:
                    return None
            elif status == S["ROLL"]:
                if not adoptable(log, segment):
                    break
            elif status == S["LOCKED_OUT"]:
                break
            elif status == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise OutOfOrderSequence(f"{log.name}: {segment.path} does not go on from there")
            else:
                log.resolve(status, error, timeout)
                if rolled:  # it has its name, and nothing of it is published
                    raise StorageError(f"{segment.path}: not taken", error, log.path)
    raise CannotAdopt(segment.path)


@contextlib.contextmanager
def _prepared(log: PartitionLog, segment: StagedSegment) -> Iterator[Prepared]:
    """The file under a name in the partition's directory, with empty indexes beside it."""
    with contextlib.ExitStack() as undo:
        try:
            prepared = undo.enter_context(log.writer_files.prepared_segment(segment.path))
        except (StorageError, FileNotFoundError) as error:  # another device, say, or no directory
            raise CannotAdopt(segment.path) from error
        segment.path = prepared.paths[-1]
        yield prepared
