"""Staged writes: many processes prepare batches, one makes them visible in one transaction.

    DIR/eoslog-staging-0/JOB/ATTEMPT.N.batches   record batches of one attempt, in pieces: of one
                                                 partition where these are few, else of many
    DIR/eoslog-staging-0/JOB/ATTEMPT.manifest    JSON, which bytes are whose; written last
    DIR/eoslog-staging-0/JOB/retention           seconds that the job wants to be left alone

Each attempt of each task writes files of its own and never touches a topic; readers are not held
up. Whoever decides which attempts count publishes them (`publishing.Staged`). Small attempts skip
the files and travel as bytes. A large piece of one partition becomes a segment of it as it is, so
the disk begins with it while the task goes on.

**Staged files are not flushed.** Nothing staged is used after a crash: who publishes is told of the
attempts by those who wrote them, in the process that decides, and a job whose decider died is run
again from its input. Until then the bytes are in the page cache, or at the server that closing sent
them to (NFS). What is lost all the same is found missing: the manifest's CRC and the count come
with the message, the manifest has the sizes, each batch has its CRC; one that is wrong aborts the
transaction.

**What a crash leaves:** files nobody names, removed by `sweep` when they are old enough.

Source: protocol.md, row 12 (attempts name what they wrote in a manifest).
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
from eoslog.storage import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage import files

STAGING = f"{STAGING_TOPIC}-0"
_FORMAT = 3
_HELD_BYTES = 3 << 20
_WRITE_BYTES = 2 << 20
"""What is written at a time, at multiples of it: a page of the processor's larger size (x86-64, and
others with pages of 4 KiB). A page cache that holds large pieces (ext4 since Linux 6.16, XFS) then
holds such, and who maps the segment gets each by one entry of the page table instead of 512."""
PIECE_BYTES = 16 << 20
"""Of a piece of many partitions, about: what is freed at a time as it is published."""
SEGMENT_BYTES = 16 << 20
"""From here on a piece of one partition is worth being a segment, where nothing else is said."""
_OWN_FROM = 1 << 20
"""Bytes of one partition in an attempt that are worth a piece of its own for what follows."""
_OWN_BYTES = 256 << 20
"""Of a piece of one partition, about."""
_OWN_PIECES = 64
"""How many partitions of an attempt get pieces of their own, each with an open file."""
_WRITEBACK_BYTES = 8 << 20
_RETENTION = "retention"
_DONE = ".done"
"""Ends the name of a retired job's folder."""

_Place = tuple[str, int]


@dataclass(frozen=True)
class Span:
    """Batches of one partition that lie one behind the other in a piece of an attempt's bytes."""

    topic: str
    partition: int
    piece: int
    position: int
    size: int


@dataclass(frozen=True)
class Attempt:
    """What one attempt prepared, in plain values: it travels from task to driver.

    Attributes:
        job: The directory all attempts of a job share.
        name: Unique among all attempts of all tasks.
        order: Position among the winning attempts; batches are published in this order.
        data: The batches themselves where they are few, else None and they lie in files.
        manifest_crc: CRC-32C of the manifest file, 0 with `data`.
        spans: Which bytes go where; empty where they lie in files (the manifest has them).
        count: Records.
    """

    job: str
    name: str
    order: int
    data: bytes | None
    manifest_crc: int
    spans: list[Span]
    count: int


class _PieceWriter:
    """A piece's file as it grows; not thread-safe."""

    def __init__(self, path: str, number: int, segment_bytes: int | None) -> None:
        """Make it.

        Args:
            path: of the file.
            number: of the piece.
            segment_bytes: from here on it becomes a segment, so that the disk may begin with it:
                its bytes stay. None: never.
        """
        self.path, self.number, self.size = path, number, 0
        self._segment_bytes = segment_bytes
        # Not zeroed: what a small piece doesn't fill costs nothing.
        self._buffer = np.empty(_WRITE_BYTES, np.uint8).data
        self._written = 0  # bytes that left the buffer
        self._begun = 0  # bytes that the disk was told of
        self._fd = files.open_file(path, create=True)

    def write(self, data: Any) -> None:
        """Put bytes behind the others; an error may be told by a later call."""
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
        """Whether it is one partition's, and large."""
        return self._segment_bytes is not None and self.size >= self._segment_bytes

    def _begin_writeback(self) -> None:
        likely = self._segment_bytes is not None and self._written >= self._segment_bytes // 2
        if likely and self._written > self._begun:
            with files.naming(self.path):
                _core.os_writeback(self._fd, self._begun, self._written - self._begun)
            self._begun = self._written

    def close(self) -> None:
        """Close it; an error of what was written may be told only now."""
        self._write_out()
        self._begin_writeback()
        fd, self._fd = self._fd, -1
        files.close_written(fd, self.path)

    def drop(self) -> None:
        """Close it, whatever became of it."""
        fd, self._fd = self._fd, -1
        files.close(fd)


class AttemptWriter:
    """Collects the batches of one attempt; not thread-safe.

    Keeps them in memory up to `inline_limit` bytes and moves to files beyond.
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
        """Prepares an attempt; nothing is written yet.

        Args:
            directory: The eoslog directory.
            job: Letters, digits, `.`, `_` and `-`; shared by the attempts of one job.
            name: The same alphabet; unique per attempt, retries included.
            order: Position of this attempt's batches among the winners.
            inline_limit: Bytes up to which nothing is written to disk.
            make_folder: Whether to make the job's folder. Where `begin_job` made it, a folder
                that is gone means that the job ended without this attempt, which then fails.
            retention_s: As `begin_job`, where the folder is made here.
            segment_bytes: From here on a piece of one partition is to become a segment.
        """
        for part in (job, name):
            if (
                not part
                or part.startswith(".")
                or not all(char.isalnum() or char in "._-" for char in part)
            ):
                raise ConfigError(
                    f"{part!r} can't name a staging file: letters, digits, '.', '_' and '-' only"
                )
        self._job, self._name, self._order = job, name, order
        self._folder = os.path.join(directory, STAGING, job)
        self._limit = inline_limit
        self._make_folder = make_folder
        self._retention = retention_s
        self._segment_bytes = segment_bytes
        self._own_from = min(_OWN_FROM, segment_bytes)
        self._segments: list[int] = []  # pieces that may become some
        self._held: dict[_Place, list[Any]] = {}
        self._held_size = self._count = 0
        self._chunks: list[Any] = []  # while no piece is begun
        self._chunks_size = 0
        self._spans: list[list[Span]] = [[]]  # by piece
        self._pieces: list[int] = []  # bytes in each
        self._shared: _PieceWriter | None = None
        self._own: dict[_Place, _PieceWriter] = {}
        self._wrote: dict[_Place, int] = {}  # bytes

    def add(self, topic: str, partition: int, batch: Any, count: int) -> None:
        """Takes one whole batch of `count` records, a buffer that nobody changes any more; batches
        of a partition keep their order.
        """
        self._held.setdefault((topic, partition), []).append(batch)
        self._held_size += len(batch)
        self._count += count
        if self._held_size >= _HELD_BYTES:
            self._drain()

    def finish(self) -> Attempt:
        """Writes what was added, unless it stays inline; nothing is flushed.

        Raises:
            StorageError: The files can't be written.
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
        """Lets go of everything; what is on disk is removed."""
        for piece in self._open_pieces():
            piece.drop()
        _remove(self._folder, self._name)
        self._held.clear()
        self._chunks.clear()

    def _drain(self) -> None:
        """Moves held batches to the end of the bytes, partition by partition, so that spans stay
        long.
        """
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
        """What was kept in memory becomes the first piece."""
        if self._make_folder:
            _make(self._folder, self._retention)
        self._shared = self._begin_piece(None)
        for data in self._chunks:
            self._shared.write(data)
        self._chunks.clear()

    def _piece_for(self, place: _Place, size: int) -> _PieceWriter:
        """Where the next batches of a partition go: its own piece, or the one of all others."""
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
        """Remember whose bytes come next in a piece."""
        spans = self._spans[piece]
        if spans and (spans[-1].topic, spans[-1].partition) == place:
            position, size = spans[-1].position, spans[-1].size + size
            del spans[-1]
        spans.append(Span(*place, piece, position, size))


def piece_path(folder: str, name: str, number: int) -> str:
    """The file of an attempt's piece."""
    return os.path.join(folder, f"{name}.{number}.batches")


def manifest_path(folder: str, name: str) -> str:
    """The file that says what is in an attempt's pieces."""
    return os.path.join(folder, f"{name}.manifest")


def begin_job(directory: str, job: str, retention_s: float | None = None) -> None:
    """Makes a job's folder; nobody's `sweep` takes it while something was written there in the
    last `retention_s`, also if it was told less.
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
    """Removes the files of these attempts; those that are gone already are fine."""
    for one in attempts:
        if one.data is None:
            _remove(os.path.join(directory, STAGING, one.job), one.name)


def _remove(folder: str, name: str) -> None:
    """Removes the files of an attempt, as far as there are any."""
    own = re.compile(rf"{re.escape(name)}\.(manifest|[0-9]+\.batches)")
    for found in files.names(folder) if files.is_dir(folder) else ():
        if own.fullmatch(found):
            files.remove(os.path.join(folder, found))


def discard_job(directory: str, job: str) -> None:
    """Removes all files of a job, also of attempts that nobody knows any more."""
    folder = os.path.join(directory, STAGING, job)
    # An attempt that still runs may add a file while the folder is emptied.
    for _ in range(3):
        files.remove_tree(folder)
        if not os.path.exists(folder):
            return


def retire(directory: str, jobs: Sequence[str], older_than_s: float) -> threading.Thread:
    """Takes decided jobs away at once and removes their files, and `sweep`s, in the background.

    To free a staged file's blocks takes a file system longer than to write them, and nobody needs
    to wait for it. What a process leaves half removed when it dies, the next sweep removes.

    Returns:
        The thread that removes.
    """
    for job in jobs:
        folder = os.path.join(directory, STAGING, job)
        with suppress(StorageError):  # gone, and so nothing is left to do
            files.rename(folder, f"{folder}.{uuid.uuid4().hex[:12]}{_DONE}")
    thread = threading.Thread(
        target=sweep, args=(directory, older_than_s), name="eoslog-staging-sweep", daemon=True
    )
    thread.start()
    return thread


def sweep(directory: str, older_than_s: float) -> list[str]:
    """Removes retired jobs, and those in which nothing was written for so long, nor for as long as
    they asked for themselves; returns their names.

    A staged file is never needed once its job is decided, and published data lies in the topics:
    sweeping can cost a job that is still running its attempts, never committed data.
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
            _newest(entry.path) < now - max(older_than_s, _asked(entry.path))
        ):
            discard_job(directory, entry.name)
            swept.append(entry.name)
    return swept


def _asked(folder: str) -> float:
    """The seconds that a job asked for, 0 where it did not."""
    try:
        return float(files.read_file(os.path.join(folder, _RETENTION)))
    except (OSError, ValueError):
        return 0.0


def _newest(folder: str) -> float:
    """Last modification in a job's folder; now, if somebody else is removing it."""
    try:
        times = [os.stat(folder).st_mtime]
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)]
    except FileNotFoundError:
        return time.time()
    return max(times)
