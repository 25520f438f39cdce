"""Publication of staged attempts in one transaction, through one producer.

All partitions become visible together, or none does. The producer stamps id, epoch and sequence
at this point, so the attempts need not agree on them.

A large piece that belongs to one partition becomes a segment of it unchanged
(`storage.log.ingest`). Other pieces are read and appended.

**After a crash** an open transaction of a dead process remains; the next process that encounters
it aborts it. Staged files without an owner remain until `staging.sweep` removes them.

Source: protocol.md, rows 11 and 12 (sequences are assigned at decision).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from eoslog import _core
from eoslog.client.producer.batch_dispatch import GROUP_BYTES
from eoslog.connector.staging import (
    PIECE_BYTES,
    STAGING,
    Attempt,
    StagedRun,
    manifest_path,
    piece_path,
)
from eoslog.errors import CorruptRecord
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
from eoslog.storage.log.ingest import CannotAdopt, StagedSegment

if TYPE_CHECKING:
    from eoslog.client.producer.producer import Producer

_SHARE_BYTES = 256 << 10
"""About how many bytes of one partition are worth an append of their own."""
_KEPT_BYTES = 256 << 20
"""Bytes of files already appended whose removal waits for the end of the job (`staging.retire`).

To free them takes a file system as long as to copy them, and the commit would wait for that.
"""
_ROOM_BYTES = 1 << 30
"""Bytes that must be free in the file system to delay that removal."""
_READERS = 2
_AHEAD = 4
"""How many segments are checked in advance."""
_Place = tuple[str, int]
_Run = tuple[_Place, memoryview]


class Staged:
    """The staged data of winning attempts, checked and read ahead by its own threads.

    Publication consumes the staged files, so an attempt can be published only once. A large file of
    one partition becomes a segment. Every other file is read and removed, so that its memory can be
    reused. If the disk has room, the first 256 MiB of those files stay until the job ends. All
    other data is on the disk only once.
    """

    def __init__(self, directory: str, attempts: Sequence[Attempt], *, strict: bool = True) -> None:
        """Start to check the files; `publish` raises the errors that are found.

        Args:
            directory: The eoslog directory.
            attempts: The winning attempts; published in the order of `order`.
            strict: Whether the directory is strict: files that may become segments are then synced
                in advance.
        """
        self.count = sum(one.count for one in attempts)
        self._directory = directory
        self._attempts = sorted(attempts, key=lambda one: (one.order, one.name))
        self._strict = strict
        self._read = 0  # bytes of files that do not become segments
        self._coming: deque[_Piece] = deque()
        self._opened: deque[Future[StagedSegment]] = deque()
        self._pool = ThreadPoolExecutor(_READERS, "eoslog-staging-read")
        self._pieces = self._pool.submit(self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Release everything that was not published."""
        with suppress(Exception):  # `publish` has raised it, if it was called
            self._pieces.result()
        for opened in self._opened:
            if not opened.cancel() and opened.exception() is None:
                opened.result().close()
        self._pool.shutdown()

    def publish(
        self,
        producer: Producer,
        *,
        offsets: Mapping[TopicPartition, Any] | None = None,
        group: str | None = None,
        check: Callable[[], None] | None = None,
    ) -> int:
        """Append all attempts and a group's offsets in one transaction and commit it.

        Args:
            producer: Transactional producer after `init_transactions`, without an open transaction.
            offsets: Offsets to commit in the same transaction.
            group: Group of the offsets.
            check: Called before the first record is appended and again after the last one; an
                error that it raises aborts the transaction.

        Returns:
            Number of records.

        Raises:
            CorruptRecord: if a staged file is missing or was changed; the transaction is aborted.
            CommitOutcomeUnknown: if the commit may or may not have happened; the next
                `init_transactions` decides.
            ProducerFenced: if another producer took over this transactional id; none of the
                records became visible.

        **Durability:** everything is durable and visible on return.
        """
        pieces = self._pieces.result()
        count = 0
        with producer.transaction():
            if check is not None:
                check()
            for part in _parts(pieces):
                if isinstance(part, _Piece):
                    count += self._adopt(producer, part)
                else:
                    count += self._append(producer, part)
            if count != self.count:
                raise CorruptRecord(f"{count} records are staged, the tasks wrote {self.count}")
            if offsets is not None and group is not None:
                producer.send_offsets_to_transaction(dict(offsets), group)
            if check is not None:
                check()
            files.failpoint("staging.published")
        files.failpoint("staging.committed")
        return count

    def _look(self) -> list[_Piece]:
        pieces = [piece for one in self._attempts for piece in _pieces(self._directory, one)]
        self._coming.extend(piece for piece in pieces if piece.may_be_segment)
        self._open_more()
        return pieces

    def _open_more(self) -> None:
        """Open the next few segments; each keeps one file descriptor open."""
        while self._coming and len(self._opened) < _AHEAD:
            self._opened.append(self._pool.submit(self._open, self._coming.popleft()))

    def _open(self, piece: _Piece) -> StagedSegment:
        segment = StagedSegment(piece.path, piece.size)
        try:
            if self._strict:
                segment.sync()  # in advance, so that stamping waits only briefly
            return segment
        except BaseException:
            segment.close()
            raise

    def _adopt(self, producer: Producer, piece: _Piece) -> int:
        """Ingest the next piece as a segment, or append it if the partition rejects it."""
        opened = self._opened.popleft()
        self._open_more()
        span = piece.spans[0]
        with closing(opened.result()) as segment:
            try:
                return producer._ingest.segment(span.topic, span.partition, segment)
            except CannotAdopt:
                pass
        return self._append(producer, [replace(piece, path=segment.path)])

    def _append(self, producer: Producer, pieces: Sequence[_Piece]) -> int:
        """Read pieces and append them to their partitions."""
        count = 0
        # Read ahead while earlier runs are appended; data in memory is not worth a thread.
        staged = any(piece.data is None for piece in pieces)
        runs = _runs(pieces, self._release)
        with closing(_ahead(runs) if staged else runs) as coming:
            for (topic, partition), run in coming:
                count += producer.produce_batches(topic, partition, [run], trusted=True)
        return count

    def _release(self, piece: _Piece) -> None:
        """Remove a file that was read, or leave it until the job ends."""
        if not piece.may_be_segment:
            self._read += piece.size
            if self._read <= _KEPT_BYTES and _free(self._directory) > _ROOM_BYTES:
                return
        files.remove(piece.path)


def publish(
    producer: Producer,
    directory: str,
    attempts: Sequence[Attempt],
    *,
    offsets: Mapping[TopicPartition, Any] | None = None,
    group: str | None = None,
) -> int:
    """Check attempts and publish them; see `Staged` and `Staged.publish`."""
    with Staged(directory, attempts) as staged:
        return staged.publish(producer, offsets=offsets, group=group)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Bytes of an attempt, in memory or in a file, with the partition of each span."""

    path: str
    data: bytes | None
    size: int
    spans: list[StagedRun]
    may_be_segment: bool = False

    def read_into(self, span: StagedRun, buffer: memoryview) -> None:
        """Read the batches of a span; the CRC of each is checked when it is stamped."""
        end = span.position + span.size
        if self.data is not None:
            buffer[:] = self.data[span.position : end]
            return
        fd = _open(self.path)
        try:
            with files.naming(self.path):
                found = _core.os_pread_into(fd, buffer, span.position)
        finally:
            files.close(fd)
        if found != span.size:
            raise CorruptRecord(f"{self.path}: ends at {span.position + found}, expected {end}")


def _free(directory: str) -> int:
    """Return the free bytes of a file system for unprivileged users."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _open(path: str) -> int:
    try:
        return files.open_file(path, read_only=True)
    except FileNotFoundError:
        raise CorruptRecord(
            f"{path}: the file that a task wrote is missing; run the job again"
        ) from None


def _pieces(directory: str, attempt: Attempt) -> list[_Piece]:
    """Return the pieces of an attempt after a check of its file names and sizes."""
    folder = os.path.join(directory, STAGING, attempt.job)
    path = manifest_path(folder, attempt.name)
    if attempt.data is not None:
        return [_Piece(path, attempt.data, len(attempt.data), attempt.spans)]
    fd = _open(path)
    try:
        with files.naming(path):
            raw = _core.os_pread(fd, os.fstat(fd).st_size, 0)
    finally:
        files.close(fd)
    crc = _core.crc32c(raw)
    if crc != attempt.manifest_crc:
        raise CorruptRecord(f"{path}: CRC is {crc:#x}, the task wrote {attempt.manifest_crc:#x}")
    manifest = json.loads(raw)
    segments = set(manifest["segments"])
    found = [
        _Piece(
            piece_path(folder, attempt.name, number),
            None,
            wrote,
            [],
            may_be_segment=number in segments,
        )
        for number, wrote in enumerate(manifest["pieces"])
    ]
    for piece in found:
        size = os.stat(piece.path).st_size if os.path.exists(piece.path) else 0
        if size != piece.size:
            raise CorruptRecord(f"{piece.path}: {size} bytes, the task wrote {piece.size}")
    for span in manifest["spans"]:
        found[span["piece"]].spans.append(StagedRun(**span))
    return found


def _parts(pieces: Sequence[_Piece]) -> Iterator[_Piece | list[_Piece]]:
    """Yield pieces that may become segments, and lists of consecutive other ones."""
    others: list[_Piece] = []
    for piece in pieces:
        if not piece.may_be_segment:
            others.append(piece)
            continue
        if others:
            yield others
            others = []
        yield piece
    if others:
        yield others


def _runs(pieces: Sequence[_Piece], release: Callable[[_Piece], None]) -> Generator[_Run]:
    """Yield runs of batches with their partitions; release each file that was read.

    The pieces are read in sections, and a section by partition, in the order of the attempts.
    Every second run reuses the same memory.
    """
    places = {(span.topic, span.partition) for piece in pieces for span in piece.spans}
    buffer, other = bytearray(GROUP_BYTES), bytearray(GROUP_BYTES)
    for section in _sections(pieces, max(PIECE_BYTES, _SHARE_BYTES * len(places))):
        for place, window in _windows(section):
            size = sum(span.size for _, span in window)
            if size > len(buffer):
                buffer = bytearray(size)
            end = 0
            for piece, span in window:
                begin, end = end, end + span.size
                piece.read_into(span, memoryview(buffer)[begin:end])
            yield place, memoryview(buffer)[:end]
            buffer, other = other, buffer
        for piece in section:
            if piece.data is None:
                release(piece)
        files.failpoint("staging.used")


def _windows(section: Sequence[_Piece]) -> Iterator[tuple[_Place, list[tuple[_Piece, StagedRun]]]]:
    """Yield units of read and append: one span, or short spans of one partition."""
    places: dict[_Place, list[tuple[_Piece, StagedRun]]] = {}
    for piece in section:
        for span in piece.spans:
            places.setdefault((span.topic, span.partition), []).append((piece, span))
    for place in sorted(places):
        window: list[tuple[_Piece, StagedRun]] = []
        held = 0
        for piece, span in places[place]:
            if window and held + span.size > GROUP_BYTES:
                yield place, window
                window, held = [], 0
            window.append((piece, span))
            held += span.size
        yield place, window


def _sections(pieces: Sequence[_Piece], least: int) -> Iterator[list[_Piece]]:
    """Yield lists of pieces with at least `least` bytes, except for the last list."""
    section: list[_Piece] = []
    held = 0
    for piece in pieces:
        section.append(piece)
        held += sum(span.size for span in piece.spans)
        if held >= least:
            yield section
            section, held = [], 0
    if section:
        yield section


def _ahead(runs: Generator[_Run]) -> Generator[_Run]:
    """Yield the runs; a thread reads the next one while the caller uses the last."""
    with ThreadPoolExecutor(1, "eoslog-staging-read") as pool:
        try:
            coming = pool.submit(next, runs, None)
            while (run := coming.result()) is not None:
                coming = pool.submit(next, runs, None)
                yield run
        finally:
            pool.submit(runs.close)  # on the thread that may still run the generator
