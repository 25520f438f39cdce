"""Adoption: a staged file becomes a segment of the log by a rename.

A large staged file contains only batches of one partition. If it becomes a segment, its bytes are
written to the disk once. `adopt` writes the offsets for the current log end into the file, makes it
durable, and uses it in a roll instead of the next segment's empty files
(`_core/partition/segment_ingest.pxi`). If another append moves the log end in between, the offsets
are written again.

**What a crash leaves:** before the roll, an unowned file with a temporary name; after the roll,
what any roll leaves. Recovery, or the next lock holder, truncates what was not published.

Source: protocol.md, rows 9, 11 and 16; `docs/reference/file-format.md`, Staging.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eoslog import _core
from eoslog.errors import CorruptRecord, ErrorCode, IllegalState, OutOfOrderSequence, StorageError
from eoslog.model import AppendResult
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.append_status import AppendStatus
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.segment_writer import Prepared

_STAMPS = 8
"""How often offsets are written into one file before its batches are appended instead."""
_HELD = 16
"""Most segments of a partition that wait for a flush, each with its descriptor."""
_BATCHES = 2048
"""Most batches of a file: each costs some microseconds under the lock."""
_TRIES = 1000
"""Most attempts of one call; between two of them, a status of the core is resolved."""

__all__ = ["CannotAdopt", "StagedSegment", "adopt", "adoptable"]


class CannotAdopt(Exception):
    """The file cannot become a segment. It is unchanged, except for offsets and producer fields."""


@dataclass(frozen=True, slots=True)
class _Stamps:
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


class StagedSegment:
    """A staged file of one partition's batches, each checked against its CRC.

    Owns its descriptor until the log takes it. Not thread-safe.

    Attributes:
        path: the current path.
        ready_for: the log end for which offsets were written and made durable; -1: none.
    """

    def __init__(self, path: str, size: int) -> None:
        """Open and check a file.

        Args:
            path: path of the file, on the file system of the log.
            size: bytes that its writer wrote.

        Raises:
            CorruptRecord: if the file is missing, of another size, or damaged.
        """
        self.path = path
        self.ready_for = -1
        self._stamps: _Stamps | None = None
        try:
            # Opened before reading, so that the kernel reports an earlier failed writeback here.
            fd = files.open_file(path)
        except FileNotFoundError:
            raise CorruptRecord(
                f"{path}: the staged file is missing; run the task that wrote it again"
            ) from None
        try:
            with files.naming(path):
                found = os.fstat(fd).st_size
                if found != size:
                    raise CorruptRecord(
                        f"{path}: the staged file has {found} bytes, but the task wrote {size}; "
                        "run the task again"
                    )
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
        """The number of records."""
        return self.file.count

    def sync(self) -> None:
        """Make the current content of the file durable.

        Raises:
            StorageError: if the disk failed. The file is removed, because the next sync would
                succeed in spite of lost bytes.
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
        """Set producer and sequences of the batches. Call it before `adopt`."""
        self._stamps = _Stamps(producer_id, producer_epoch, base_sequence, transactional)
        self.ready_for = -1

    def stamp(self, log: PartitionLog, base_offset: int) -> None:
        """Write producer fields, and the offsets for a log end, into the headers.

        **Durability:** in a strict directory the complete file is durable on return.
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
        """Close the file, unless the log has taken it."""
        files.close(self.file.release())


def adoptable(log: PartitionLog, segment: StagedSegment) -> bool:
    """Whether the file can become a segment of the partition.

    The topic must not require checks of single records, the file must fit into a segment, and the
    active segment must not be empty.
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
    *,
    expect: Sequence[tuple[PartitionLog, int]] = (),
    timeout: float | None = None,
) -> AppendResult | None:
    """Make a staged file the next segment. Same effect as `PartitionLog.append` of its batches.

    Returns:
        The offsets of the records, or None if an expected end has moved: nothing was appended.

    Raises:
        CannotAdopt: if the file cannot become a segment, or the log end moves too often.
        As `PartitionLog.append`.

    **Durability:** in a strict directory the file's bytes are durable; its name is after `flush`.
    """
    if log.session.read_only:
        raise IllegalState(f"{log.name}: the log was opened read_only; open it for writing")
    if not adoptable(log, segment):
        raise CannotAdopt(segment.path)
    wait = LOCK_TIMEOUT_S if timeout is None else timeout
    if log.flusher.held > _HELD:  # in an "os" directory no other call flushes
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
                    log.core, segment.file, prepared.fds, prepared.names, expect, wait
                )
            finally:
                log.writer_files.after_roll()
            if status == AppendStatus.APPENDED:
                if log.on_append is not None:
                    log.on_append(log)
                return AppendResult(base, last, False, timestamp)
            if status == AppendStatus.CHANGED:
                if segment.ready_for == log.log_end:
                    return None
            elif status == AppendStatus.ROLL:
                if not adoptable(log, segment):
                    break
            elif status == AppendStatus.LOCKED_OUT:
                break
            elif status == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise OutOfOrderSequence(
                    f"{log.name}: the first sequence in {segment.path} does not follow the "
                    "producer's last stored sequence; abort the transaction"
                )
            else:
                log.writer_files.resolve(status, error, wait)
                if rolled:  # the segment has its name, but its records are not published
                    raise StorageError(
                        f"{segment.path}: the staged file was renamed into the log, but its "
                        "records were not published; abort the transaction",
                        error,
                        log.path,
                    )
    raise CannotAdopt(segment.path)


@contextlib.contextmanager
def _prepared(log: PartitionLog, segment: StagedSegment) -> Iterator[Prepared]:
    """Move the file into the partition's directory, and create empty indexes for it."""
    log.session.directory.require()  # the path of the staged file must be in the opened directory
    with contextlib.ExitStack() as undo:
        try:
            prepared = undo.enter_context(log.writer_files.prepared_segment(segment.path))
        except (StorageError, FileNotFoundError) as error:  # for example on another device
            raise CannotAdopt(segment.path) from error
        segment.path = prepared.paths[-1]
        yield prepared
