"""Staged writes: many processes prepare batches, one process publishes them.

    DIR/eoslog-staging-0/JOB/ATTEMPT.N.batches   record batches of one attempt, in pieces: of one
                                                 partition if these are few, else of many
    DIR/eoslog-staging-0/JOB/ATTEMPT.manifest    JSON with the partition of each span; written last
    DIR/eoslog-staging-0/JOB/retention           seconds for which `sweep` must keep the job

Each attempt of each task writes its own files and never touches a topic, so it blocks no reader.
The process that decides which attempts win publishes them (`connector.publish.Staged`). Small
attempts skip the files and travel as bytes. A large piece of one partition becomes a segment
unchanged, so its writeback starts while the task still runs.

**Staged files are not flushed.** Nothing staged is used after a crash. The tasks report their
attempts to the deciding process, and if that process dies, the job runs again from its input. Until
the publication the bytes are in the page cache, or on the server to which closing sent them (NFS).
The publisher detects lost data: the message has the CRC of the manifest and the count, the manifest
has the sizes, and each batch has its CRC. A mismatch aborts the transaction.

**After a crash** files without an owner remain. `sweep` removes them when they are old enough.

Source: protocol.md, row 12 (a manifest lists what an attempt wrote).
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eoslog import _core
from eoslog.errors import ConfigError, StorageError
from eoslog.model import STAGING_TOPIC
from eoslog.storage.format import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage.fs import files

STAGING = f"{STAGING_TOPIC}-0"
_FORMAT = 3
_HELD_BYTES = 3 << 20
_WRITE_BYTES = 2 << 20
"""Bytes per write, at multiples of this size: a huge page (x86-64, and others with 4 KiB pages).

A page cache with large folios (ext4 since Linux 6.16, XFS) then uses folios of this size. A process
that maps the segment needs one entry of the page table for each of them instead of 512.
"""
PIECE_BYTES = 16 << 20
"""About the size of a piece of many partitions: publication frees this much at a time."""
SEGMENT_BYTES = 16 << 20
"""Default size from which a piece of one partition becomes a segment."""
_OWN_FROM = 1 << 20
"""Bytes of one partition in an attempt after which the rest gets a piece of its own."""
_OWN_BYTES = 256 << 20
"""About the size of a piece of one partition."""
_OWN_PIECES = 64
"""Most partitions of an attempt that get pieces of their own, each with an open file."""
_WRITEBACK_BYTES = 8 << 20
_RETENTION = "retention"
_DONE = ".done"
"""Suffix of the name of a retired job's folder."""

_Place = tuple[str, int]


@dataclass(frozen=True)
class StagedRun:
    """Consecutive batches of one partition in a piece of an attempt's bytes."""

    topic: str
    partition: int
    piece: int
    position: int
    size: int


@dataclass(frozen=True)
class Attempt:
    """The result of one attempt, in plain values that travel from task to driver.

    Attributes:
        job: Name of the directory that all attempts of a job share.
        name: Name that is unique among all attempts of all tasks.
        order: Position among the winning attempts; batches are published in this order.
        data: The batches if they are few; None if they are in files.
        manifest_crc: CRC-32C of the manifest file, 0 with `data`.
        spans: The partition of each span of bytes; empty if the batches are in files, because then
            the manifest lists the spans.
        count: Number of records.
    """

    job: str
    name: str
    order: int
    data: bytes | None
    manifest_crc: int
    spans: list[StagedRun]
    count: int


class _PieceWriter:
    """The file of a piece while it is written; not thread-safe."""

    def __init__(self, path: str, number: int, segment_bytes: int | None) -> None:
        """Create the file.

        Args:
            path: Path of the file.
            number: Number of the piece.
            segment_bytes: Size from which the piece becomes a segment. Its bytes then stay, so the
                writeback may start early. None if it never becomes one.
        """
        self.path, self.number, self.size = path, number, 0
        self._segment_bytes = segment_bytes
        # Not zeroed: pages that a small piece does not fill cost nothing.
        self._buffer = np.empty(_WRITE_BYTES, np.uint8).data
        self._written = 0  # bytes written from the buffer
        self._begun = 0  # bytes whose writeback was started
        self._fd = files.open_file(path, create=True)

    def write(self, data: Any) -> None:
        """Append bytes; a later call may raise an error of this write."""
        left = memoryview(data)
        while len(left):
            held = self.size - self._written
            taken = left[: _WRITE_BYTES - held]
            self._buffer[held : held + len(taken)] = taken
            self.size += len(taken)
            left = left[len(taken) :]
            if self.size - self._written == _WRITE_BYTES:
                self._write_out()

    def _write_out(self) -> None:
        with files.naming(self.path):
            held = self._buffer[: self.size - self._written]
            _core.os_pwrite(self._fd, held, self._written)
        self._written = self.size
        if self._written - self._begun >= _WRITEBACK_BYTES:
            self._begin_writeback()

    @property
    def becomes_segment(self) -> bool:
        """Whether the piece belongs to one partition and is large enough."""
        return self._segment_bytes is not None and self.size >= self._segment_bytes

    def _begin_writeback(self) -> None:
        likely = self._segment_bytes is not None and self._written >= self._segment_bytes // 2
        if likely and self._written > self._begun:
            with files.naming(self.path):
                _core.os_writeback(self._fd, self._begun, self._written - self._begun)
            self._begun = self._written

    def close(self) -> None:
        """Write the rest and close the file; an earlier write may fail only now."""
        self._write_out()
        self._begin_writeback()
        fd, self._fd = self._fd, -1
        files.close_written(fd, self.path)

    def drop(self) -> None:
        """Close the file, in any state."""
        fd, self._fd = self._fd, -1
        files.close(fd)


class AttemptWriter:
    """Collector of the batches of one attempt; not thread-safe.

    Batches stay in memory up to `inline_limit` bytes. Beyond that they go to files.
    """

    def __init__(
        self,
        directory: str,
        job: str,
        name: str,
        order: int,
        inline_limit: int = 1 << 20,
        *,
        make_folder: bool = True,
        retention_s: float | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Prepare an attempt without writing to disk.

        Args:
            directory: The eoslog directory.
            job: Name of the job, shared by its attempts: letters, digits, `.`, `_` and `-`.
            name: Name of the attempt in the same alphabet; unique, retries included.
            order: Position of this attempt's batches among the winners.
            inline_limit: Most bytes that stay in memory.
            make_folder: Whether to create the job's folder. If `begin_job` created it, a missing
                folder means that the job ended without this attempt, which then fails.
            retention_s: As for `begin_job`, if this writer creates the folder.
            segment_bytes: Size from which a piece of one partition becomes a segment.
        """
        for part in (job, name):
            if (
                not part
                or part.startswith(".")
                or not all(char.isalnum() or char in "._-" for char in part)
            ):
                raise ConfigError(
                    f"{part!r} cannot name a staging file; use letters, digits, '.', '_' and '-'"
                )
        self._job, self._name, self._order = job, name, order
        self._folder = os.path.join(directory, STAGING, job)
        self._limit = inline_limit
        self._make_folder = make_folder
        self._retention = retention_s
        self._segment_bytes = segment_bytes
        self._own_from = min(_OWN_FROM, segment_bytes)
        self._segments: list[int] = []  # pieces that may become segments
        self._held: dict[_Place, list[Any]] = {}
        self._held_size = self._count = 0
        self._chunks: list[Any] = []  # batches, until the first piece is created
        self._chunks_size = 0
        self._spans: list[list[StagedRun]] = [[]]  # by piece
        self._pieces: list[int] = []  # bytes in each piece
        self._shared: _PieceWriter | None = None
        self._own: dict[_Place, _PieceWriter] = {}
        self._wrote: dict[_Place, int] = {}  # bytes by partition

    def add(self, topic: str, partition: int, batch: Any, count: int) -> None:
        """Add one complete batch of `count` records.

        The caller must not change the buffer afterwards. Batches of a partition keep their order.
        """
        self._held.setdefault((topic, partition), []).append(batch)
        self._held_size += len(batch)
        self._count += count
        if self._held_size >= _HELD_BYTES:
            self._drain()

    def finish(self) -> Attempt:
        """Write the added batches without a flush, unless they stay inline.

        Raises:
            StorageError: if the files cannot be written.
        """
        self._drain()
        if not self._pieces:
            data = b"".join(self._chunks)
            (spans,) = self._spans
            return Attempt(self._job, self._name, self._order, data, 0, spans, self._count)
        for piece in self._open_pieces():
            self._end_piece(piece)
        files.failpoint("staging.written")
        manifest = json.dumps(
            {
                "format": _FORMAT,
                "job": self._job,
                "name": self._name,
                "pieces": self._pieces,
                "segments": self._segments,
                "count": self._count,
                "spans": [asdict(span) for spans in self._spans for span in spans],
            }
        ).encode()
        path = manifest_path(self._folder, self._name)
        fd = files.open_file(path, create=True)
        try:
            with files.naming(path):
                _core.os_pwrite(fd, manifest, 0)
        finally:
            files.close_written(fd, path)
        files.failpoint("staging.staged")
        crc = _core.crc32c(manifest)
        return Attempt(self._job, self._name, self._order, None, crc, [], self._count)

    def discard(self) -> None:
        """Release everything and remove the files of this attempt."""
        for piece in self._open_pieces():
            piece.drop()
        _remove(self._folder, self._name)
        self._held.clear()
        self._chunks.clear()

    def _drain(self) -> None:
        """Write the held batches, partition by partition, so that spans stay long."""
        if not self._pieces:
            if self._chunks_size + self._held_size <= self._limit:
                for place, batches in self._held.items():
                    self._note(place, 0, self._chunks_size, sum(map(len, batches)))
                    self._chunks += batches
                    self._chunks_size += sum(map(len, batches))
            else:
                self._begin_files()
        if self._pieces:
            for place, batches in self._held.items():
                size = sum(map(len, batches))
                piece = self._piece_for(place, size)
                self._note(place, piece.number, piece.size, size)
                for data in batches:
                    piece.write(data)
        self._held.clear()
        self._held_size = 0

    def _begin_files(self) -> None:
        """Write the batches in memory as the first piece."""
        if self._make_folder:
            _make(self._folder, self._retention)
        self._shared = self._begin_piece(None)
        for data in self._chunks:
            self._shared.write(data)
        self._chunks.clear()

    def _piece_for(self, place: _Place, size: int) -> _PieceWriter:
        """Return the piece for a partition's next batches: its own or the shared one."""
        self._wrote[place] = wrote = self._wrote.get(place, 0) + size
        own = place in self._own or (wrote >= self._own_from and len(self._own) < _OWN_PIECES)
        piece = self._own.get(place) if own else self._shared
        if piece is None or piece.size >= (_OWN_BYTES if own else PIECE_BYTES):
            if piece is not None:
                self._end_piece(piece)
            piece = self._begin_piece(self._segment_bytes if own else None)
            if own:
                self._own[place] = piece
            else:
                self._shared = piece
        return piece

    def _begin_piece(self, segment_bytes: int | None) -> _PieceWriter:
        number = len(self._pieces)
        path = piece_path(self._folder, self._name, number)
        piece = _PieceWriter(path, number, segment_bytes)
        self._pieces.append(0)
        if number:
            self._spans.append([])
        return piece

    def _end_piece(self, piece: _PieceWriter) -> None:
        piece.close()
        self._pieces[piece.number] = piece.size
        if piece.becomes_segment:
            self._segments.append(piece.number)

    def _open_pieces(self) -> list[_PieceWriter]:
        return [*([] if self._shared is None else [self._shared]), *self._own.values()]

    def _note(self, place: _Place, piece: int, position: int, size: int) -> None:
        """Record the partition of the next bytes of a piece."""
        spans = self._spans[piece]
        if spans and (spans[-1].topic, spans[-1].partition) == place:
            position, size = spans[-1].position, spans[-1].size + size
            del spans[-1]
        spans.append(StagedRun(*place, piece, position, size))


def piece_path(folder: str, name: str, number: int) -> str:
    """Return the path of an attempt's piece."""
    return os.path.join(folder, f"{name}.{number}.batches")


def manifest_path(folder: str, name: str) -> str:
    """Return the path of the file that describes an attempt's pieces."""
    return os.path.join(folder, f"{name}.manifest")


def begin_job(directory: str, job: str, retention_s: float | None = None) -> None:
    """Create a job's folder.

    No `sweep` removes the folder while a file in it is younger than `retention_s`, even if that
    sweep has a smaller limit.
    """
    _make(os.path.join(directory, STAGING, job), retention_s)


def _make(folder: str, retention_s: float | None) -> None:
    files.make_dir(os.path.dirname(folder), durable=False)
    files.make_dir(folder, durable=False)
    path = os.path.join(folder, _RETENTION)
    if retention_s is not None and not os.path.exists(path):
        fd = files.open_file(path, create=True)
        try:
            with files.naming(path):
                _core.os_pwrite(fd, f"{retention_s:.0f}".encode(), 0)
        finally:
            files.close_written(fd, path)


def discard(directory: str, attempts: Sequence[Attempt]) -> None:
    """Remove the files of these attempts, as far as they still exist."""
    for one in attempts:
        if one.data is None:
            _remove(os.path.join(directory, STAGING, one.job), one.name)


def _remove(folder: str, name: str) -> None:
    """Remove the files of an attempt, as far as there are any."""
    own = re.compile(rf"{re.escape(name)}\.(manifest|[0-9]+\.batches)")
    for found in files.names(folder) if files.is_dir(folder) else ():
        if own.fullmatch(found):
            files.remove(os.path.join(folder, found))


def discard_job(directory: str, job: str) -> None:
    """Remove all files of a job, including those of unknown attempts."""
    folder = os.path.join(directory, STAGING, job)
    # An attempt that still runs may add a file while the folder is emptied.
    for _ in range(3):
        files.remove_tree(folder)
        if not os.path.exists(folder):
            return


def retire(directory: str, jobs: Sequence[str], older_than_s: float) -> threading.Thread:
    """Rename the folders of decided jobs; remove them and `sweep` in the background.

    To free a staged file's blocks takes a file system longer than to write them, and no caller
    needs to wait for it. If a process dies during the removal, the next sweep completes it.

    Returns:
        The thread that removes the files.
    """
    for job in jobs:
        folder = os.path.join(directory, STAGING, job)
        with suppress(StorageError):  # already removed
            files.rename(folder, f"{folder}.{uuid.uuid4().hex[:12]}{_DONE}")
    thread = threading.Thread(
        target=sweep, args=(directory, older_than_s), name="eoslog-staging-sweep", daemon=True
    )
    thread.start()
    return thread


def sweep(directory: str, older_than_s: float) -> list[str]:
    """Remove retired jobs, and jobs without a recent write.

    A write is recent if it is younger than `older_than_s` or than the retention of the job. A
    staged file is not needed after its job is decided, and published data is in the topics. So a
    sweep can cost a running job its attempts, but never committed data.

    Returns:
        The names of the removed jobs.
    """
    folder = os.path.join(directory, STAGING)
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    now = time.time()
    swept = []
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            continue
        if entry.name.endswith(_DONE) or (
            _newest(entry.path) < now - max(older_than_s, _requested_retention(entry.path))
        ):
            discard_job(directory, entry.name)
            swept.append(entry.name)
    return swept


def _requested_retention(folder: str) -> float:
    """Return the retention that a job requested in seconds, 0 if it requested none."""
    try:
        return float(files.read_file(os.path.join(folder, _RETENTION)))
    except (OSError, ValueError):
        return 0.0


def _newest(folder: str) -> float:
    """Return a folder's last modification, or now if another process removes it."""
    try:
        times = [os.stat(folder).st_mtime]
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)]
    except FileNotFoundError:
        return time.time()
    return max(times)
