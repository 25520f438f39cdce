"""Seals: checksums of the files that were derived from a segment when it was sealed.

Kafka's `.timeindex` and `.txnindex` have no checksum, although they decide which records are hidden
or deleted. `NNN.seal` makes them verifiable. NNN is the offset at which the segment ends, as in the
name of the producer snapshot that is written with it.

    magic "EOSS" | version i16 = 1 | topic id 16 bytes | base offset i64 | end offset i64
    | bytes of the log i64 | CRC of its first and of its last bytes, 2 x u32
    | greatest timestamp i64, -1: none
    | time index, abort index, producer snapshot: 3 x (bytes i64, -1: no file | CRC u32)
    | CRC-32C of all that precedes u32

A seal only caches the result of a scan. If it is missing, torn or stale, the segment's batches are
scanned again (`derived.py`). Therefore a seal is not flushed: losing it in a power loss is
harmless.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord, StorageError
from eoslog.storage.fs import files
from eoslog.storage.segment.segment import (
    LOG,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
)

NO_TIMESTAMP = -1
_MAGIC, _VERSION = b"EOSS", 1
_BODY = struct.Struct(">4sh16sqqqIIqqIqIqI")
_CRC = struct.Struct(">I")
_EDGE = 4096  # bytes of each end of a log file that identify it
_TIME_ENTRY = struct.Struct(">qi")


class Checksum(NamedTuple):
    """Size in bytes and CRC-32C of a file; size -1 where there is no file."""

    size: int
    crc: int


NO_FILE = Checksum(-1, 0)


class Seal(NamedTuple):
    """The checksums of a sealed segment's files and of the producer snapshot at its end.

    Attributes:
        topic_id: 16 bytes.
        base, end: offsets; the segment holds [base, end).
        size: bytes of the log file.
        head, tail: CRCs of the log file's first and last bytes, which do not overlap.
        largest: greatest timestamp of a batch in ms, -1 for none.
        times, aborted, snapshot: checksums of time index, abort index and producer snapshot.
    """

    topic_id: bytes
    base: int
    end: int
    size: int
    head: int
    tail: int
    largest: int
    times: Checksum
    aborted: Checksum
    snapshot: Checksum

    def agrees(self, aborted: bytes) -> bool:
        """Whether an abort index has the content that the segment was sealed with."""
        empty = not aborted and self.aborted.size <= 0
        return empty or checksum(aborted) == self.aborted


def checksum(data: bytes | None) -> Checksum:
    """Return the checksum of a file's content; None means that the file does not exist."""
    return NO_FILE if data is None else Checksum(len(data), _core.crc32c(data))


def content(path: str) -> bytes | None:
    """Return the bytes of a file, or None if there is no such file."""
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return None


def largest_timestamp(time_index: bytes) -> int:
    """Return the greatest timestamp in the time index of a sealed segment, -1 for none."""
    size = len(time_index) // _TIME_ENTRY.size * _TIME_ENTRY.size
    if not size:
        return NO_TIMESTAMP
    return int(_TIME_ENTRY.unpack_from(time_index, size - _TIME_ENTRY.size)[0])


def edges(fd: int, size: int) -> tuple[int, int]:
    """Return the CRCs of the first and the last bytes of a log file of `size` bytes."""
    head = min(_EDGE, size // 2)
    tail = min(_EDGE, size - head)
    return (
        _core.crc32c(_core.os_pread(fd, head, 0)),
        _core.crc32c(_core.os_pread(fd, tail, size - tail)),
    )


def read(
    directory: str, end: int, topic_id: bytes | None = None, base: int | None = None
) -> Seal | None:
    """Read the seal of the segment that ends at an offset.

    Args:
        directory: the partition's directory.
        end: the offset.
        topic_id: the topic that the seal must name; None: any.
        base: the segment that the seal must name; None: any.

    Returns:
        None if the seal is missing, torn, or of another topic or segment.
    """
    data = content(file_path(directory, end, SEAL))
    if data is None or len(data) != _BODY.size + _CRC.size:
        return None
    body = data[: _BODY.size]
    if _CRC.unpack_from(data, _BODY.size)[0] != _core.crc32c(body):
        return None
    magic, version, stated_id, stated_base, stated_end, *numbers = _BODY.unpack(body)
    size, head, tail, largest, *sums = numbers
    if magic != _MAGIC or version != _VERSION or stated_end != end:
        return None
    if topic_id not in (None, stated_id) or base not in (None, stated_base):
        return None
    times, aborted, snapshot = Checksum(*sums[:2]), Checksum(*sums[2:4]), Checksum(*sums[4:])
    return Seal(stated_id, stated_base, end, size, head, tail, largest, times, aborted, snapshot)


def write(directory: str, seal: Seal) -> None:
    """Replace a seal atomically: a reader gets the old or the new one.

    Raises:
        StorageError: if the seal cannot be written. The next use of the segment scans it.
    """
    body = _BODY.pack(_MAGIC, _VERSION, *seal[:7], *seal.times, *seal.aborted, *seal.snapshot)
    data = body + _CRC.pack(_core.crc32c(body))
    name = file_path(directory, seal.end, SEAL)
    if content(name) == data:
        return
    temporary = f"{name}.{time.monotonic_ns():x}.tmp"  # another process may be writing its own
    try:
        files.write_file(temporary, data)
        files.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(temporary)
        raise


def seal_files(
    directory: str, topic_id: bytes, base: int, end: int, snapshot: Checksum | None = None
) -> None:
    """Seal a segment, using the current content of its derived files.

    Args:
        directory: the partition's directory.
        topic_id: id of the topic.
        base: offset at which the segment begins.
        end: offset at which the segment ends.
        snapshot: checksum of the producer snapshot at the end; None computes it from the file.

    Raises:
        FileNotFoundError: if the segment was deleted in the meantime.
        StorageError: if a file cannot be read, or the seal cannot be written.
    """
    stem = file_path(directory, base, "")
    times = content(stem + TIME_INDEX)
    if snapshot is None:
        snapshot = checksum(content(file_path(directory, end, SNAPSHOT)))
    fd = files.open_file(stem + LOG, read_only=True)
    try:
        with files.naming(stem + LOG):
            size = os.fstat(fd).st_size
            head, tail = edges(fd, size)
    finally:
        files.close(fd)
    largest = largest_timestamp(times or b"")
    aborted = checksum(content(stem + TXN_INDEX))
    write(
        directory,
        Seal(topic_id, base, end, size, head, tail, largest, checksum(times), aborted, snapshot),
    )


def identify(seal: Seal, fd: int, path: str) -> None:
    """Compare an open log file with the seal of its segment, by its first and last bytes.

    In a large file, local damage changes at most one of both. Another segment's file differs in
    both.

    Raises:
        CorruptRecord: if the file belongs to another segment.
    """
    with files.naming(path):
        size = os.fstat(fd).st_size
        head, tail = edges(fd, seal.size)
    what = None
    if size < min(_EDGE, seal.size // 2):  # too short to identify
        what = f"it has {size} bytes instead of {seal.size}"
    elif head != seal.head and (size < seal.size or tail != seal.tail):
        what = "its first and its last bytes differ"
    if what is not None:
        raise CorruptRecord(
            f"{path}: not the file of segment [{seal.base}, {seal.end}) that was sealed: {what}; "
            "put the right file back; to continue with this one, run `eoslog repair` if "
            "`eoslog check` finds a damaged batch, else `eoslog check --fix-indexes`",
            path=path,
            position=0,
        )


def fault(seal: Seal, path: str) -> CorruptRecord | None:
    """Return the error of `identify`; None if there is none, or the file does not exist."""
    try:
        fd = files.open_file(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        identify(seal, fd, path)
    except CorruptRecord as error:
        return error
    finally:
        files.close(fd)
    return None


def refuted(path: str, base: int, end: int) -> CorruptRecord | None:
    """Return the error if a log file is not that of its seal's segment.

    Args:
        path: path of the log file.
        base: offset at which the segment begins.
        end: offset at which the segment ends.

    Returns:
        None if the file is right or there is no seal. A cleaner that replaces the file removes the
        seal first, so an error counts only if the seal is still the same afterwards.
    """
    directory = os.path.dirname(path)
    seal = read(directory, end, base=base)
    if seal is None or not seal.size:
        return None
    wrong = fault(seal, path)
    return wrong if wrong is not None and read(directory, end, base=base) == seal else None


def refutes_snapshot(seal: Seal | None, data: bytes) -> bool:
    """Whether a seal contradicts the content of the producer snapshot at its end."""
    return seal is not None and seal.snapshot.size >= 0 and seal.snapshot != checksum(data)


def release_snapshot(directory: str, offset: int, data: bytes) -> Seal | None:
    """Remove the snapshot's checksum from a seal, before the snapshot at that offset changes.

    Returns:
        The new seal; None if there is none, or it agrees with the new content.

    Durability: durable on return, so that no crash leaves a snapshot that its seal contradicts.
    """
    seal = read(directory, offset)
    if seal is None or seal.snapshot == checksum(data):
        return None
    if seal.snapshot != NO_FILE:
        seal = seal._replace(snapshot=NO_FILE)
        write(directory, seal)
        files.fsync_dir(directory)
    return seal
