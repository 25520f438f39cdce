"""Staged attempts into topics: all of them in one transaction, through one producer.

Every partition becomes visible together or none does. The producer stamps id, epoch and sequence
now, so the attempts needed no agreement on them.

A piece that is one partition's and large becomes a segment of it as it is (`storage.adoption`);
others are read and appended.

**What a crash leaves:** an open transaction of a dead process, aborted by whoever meets it, and
staged files that nobody names (`staging.sweep`).

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
from eoslog.client.sender import GROUP_BYTES
from eoslog.client.staging import (
    PIECE_BYTES,
    STAGING,
    Attempt,
    Span,
    manifest_path,
    piece_path,
)
from eoslog.errors import CorruptRecord
from eoslog.model import TopicPartition
from eoslog.storage import files
from eoslog.storage.adoption import CannotAdopt, StagedSegment

if TYPE_CHECKING:
    from eoslog.client.producer import Producer

_SHARE_BYTES = 256 << 10
"""Of one partition, about, that are worth an append of their own."""
_KEPT_BYTES = 256 << 20
"""Of what was read and appended, that is left to the end of the job (`staging.retire`): to free it
takes a file system as long as to copy it, and who commits would wait for that."""
_ROOM_BYTES = 1 << 30
"""Of the file system, that must be free for that."""
_READERS = 2
_AHEAD = 4
"""Segments that are checked before their turn."""
_Place = tuple[str, int]
_Run = tuple[_Place, memoryview]


class Staged:
    """What winning attempts staged, looked at and read ahead by threads of its own.

    Uses the staged files up: a large one of one partition becomes a segment, each other one is read
    and removed, so that its memory serves for what comes next. But for the first 256 MiB of those,
    which are left to whoever ends the job where the disk has room, its data lie on the disk once.
    An attempt can be published once.
    """

    def __init__(self, directory: str, attempts: Sequence[Attempt], *, strict: bool = True) -> None:
        """Begin to look; what is wrong with the files is told by `publish`.

        Args:
            directory: The eoslog directory.
            attempts: The winning ones; published in the order of `order`.
            strict: Whether the directory is: what may become a segment is synced ahead.
        """
        self.count = sum(one.count for one in attempts)
        self._directory = directory
        self._attempts = sorted(attempts, key=lambda one: (one.order, one.name))
        self._strict = strict
        self._read = 0  # bytes of files that are no segments
        self._coming: deque[_Piece] = deque()
        self._opened: deque[Future[StagedSegment]] = deque()
        self._pool = ThreadPoolExecutor(_READERS, "eoslog-staging-read")
        self._pieces = self._pool.submit(self._look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of what was not published."""
        with suppress(Exception):  # told by `publish`, if it was called
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
    ) -> int:
        """Appends all attempts, and a group's offsets, in one transaction and commits it.

        Args:
            producer: Transactional, `init_transactions` called, no transaction open.
            offsets: Committed in the same transaction.
            group: Whose offsets they are.

        Returns:
            Number of records.

        Raises:
            CorruptRecord: A staged file is gone or not what its writer wrote; the transaction is
            aborted. CommitOutcomeUnknown: The commit may or may not count; the next
            `init_transactions` tells. ProducerFenced: Somebody else took over this transactional
            id; nothing of this became visible.

        **Durability:** everything is durable and visible on return.
        """
        pieces = self._pieces.result()
        count = 0
        with producer.transaction():
            for part in _parts(pieces):
                if isinstance(part, _Piece):
                    count += self._adopt(producer, part)
                else:
                    count += self._append(producer, part)
            if count != self.count:
                raise CorruptRecord(f"{count} records are staged, the tasks wrote {self.count}")
            if offsets is not None and group is not None:
                producer.send_offsets_to_transaction(dict(offsets), group)
            files.failpoint("staging.published")
        files.failpoint("staging.committed")
        return count

    def _look(self) -> list[_Piece]:
        pieces = [piece for one in self._attempts for piece in _pieces(self._directory, one)]
        self._coming.extend(piece for piece in pieces if piece.may_be_segment)
        self._open_more()
        return pieces

    def _open_more(self) -> None:
        """A few segments that come next; of each a descriptor is open."""
        while self._coming and len(self._opened) < _AHEAD:
            self._opened.append(self._pool.submit(self._open, self._coming.popleft()))

    def _open(self, piece: _Piece) -> StagedSegment:
        segment = StagedSegment(piece.path, piece.size)
        try:
            if self._strict:
                segment.sync()  # so that little is left to wait for when it is stamped
            return segment
        except BaseException:
            segment.close()
            raise

    def _adopt(self, producer: Producer, piece: _Piece) -> int:
        """The next piece as a segment of its partition, or appended where that does not take it."""
        opened = self._opened.popleft()
        self._open_more()
        span = piece.spans[0]
        with closing(opened.result()) as segment:
            try:
                return producer.adopt_segment(span.topic, span.partition, segment)
            except CannotAdopt:
                pass
        return self._append(producer, [replace(piece, path=segment.path)])

    def _append(self, producer: Producer, pieces: Sequence[_Piece]) -> int:
        """Pieces read and appended to their partitions."""
        count = 0
        # Read while those before are checked and appended; not worth a thread for what is here.
        staged = any(piece.data is None for piece in pieces)
        runs = _runs(pieces, self._let_go)
        with closing(_ahead(runs) if staged else runs) as coming:
            for (topic, partition), run in coming:
                count += producer.produce_batches(topic, partition, [run], trusted=True)
        return count

    def _let_go(self, piece: _Piece) -> None:
        """A file that was read; one that became no segment may lie in its partition's folder."""
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
    """Looks at attempts and publishes them; see `Staged` and `Staged.publish`."""
    with Staged(directory, attempts) as staged:
        return staged.publish(producer, offsets=offsets, group=group)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some bytes of an attempt, in memory or in a file, and what belongs where."""

    path: str
    data: bytes | None
    size: int
    spans: list[Span]
    may_be_segment: bool = False

    def read_into(self, span: Span, buffer: memoryview) -> None:
        """Its batches; the CRC of each is checked when it is stamped."""
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
            raise CorruptRecord(f"{self.path}: ends at {span.position + found}, not {end}")


def _free(directory: str) -> int:
    """Bytes that a file system has left for its users."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _open(path: str) -> int:
    try:
        return files.open_file(path, read_only=True)
    except FileNotFoundError:
        raise CorruptRecord(f"{path}: gone, a task wrote it") from None


def _pieces(directory: str, attempt: Attempt) -> list[_Piece]:
    """What there is of an attempt, after a look at the names and sizes of its files."""
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
        found[span["piece"]].spans.append(Span(**span))
    return found


def _parts(pieces: Sequence[_Piece]) -> Iterator[_Piece | list[_Piece]]:
    """Pieces that may be segments, one by one; of the others, those that follow each other."""
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


def _runs(pieces: Sequence[_Piece], let_go: Callable[[_Piece], None]) -> Generator[_Run]:
    """Runs of batches, each with its partition; files that were read are let go.

    Goes by sections of some pieces, in a section by partitions: those of one lie together and in
    the order of the attempts. The memory of a run is that of the next but one.
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
                let_go(piece)
        files.failpoint("staging.used")


def _windows(section: Sequence[_Piece]) -> Iterator[tuple[_Place, list[tuple[_Piece, Span]]]]:
    """What is read and appended at a time, of one partition: a span or some short ones."""
    places: dict[_Place, list[tuple[_Piece, Span]]] = {}
    for piece in section:
        for span in piece.spans:
            places.setdefault((span.topic, span.partition), []).append((piece, span))
    for place in sorted(places):
        window: list[tuple[_Piece, Span]] = []
        held = 0
        for piece, span in places[place]:
            if window and held + span.size > GROUP_BYTES:
                yield place, window
                window, held = [], 0
            window.append((piece, span))
            held += span.size
        yield place, window


def _sections(pieces: Sequence[_Piece], least: int) -> Iterator[list[_Piece]]:
    """The pieces in lists of so many bytes, but for the last."""
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
    """The same, each read by another thread while the one before is worked on."""
    with ThreadPoolExecutor(1, "eoslog-staging-read") as pool:
        try:
            coming = pool.submit(next, runs, None)
            while (run := coming.result()) is not None:
                coming = pool.submit(next, runs, None)
                yield run
        finally:
            pool.submit(runs.close)  # by the thread that may still be in it
