"""Staged writes: many processes prepare batches, one makes them visible in one transaction.

    DIR/eoslog-staging-0/JOB/ATTEMPT.batches     record batches of one attempt, one after the other
    DIR/eoslog-staging-0/JOB/ATTEMPT.manifest    JSON, which bytes are whose; written last

Each attempt of each task writes files of its own and never touches a topic; readers are not held
up. Whoever decides which attempts count calls `publish`, which appends them all through one
transactional producer: every partition becomes visible together or none does. The producer stamps
id, epoch and sequence at that time, so attempts need no agreement on them. Small attempts skip the
files and travel as bytes.

**What a crash leaves:** files nobody names, removed by `sweep` when they are old enough; an
unfinished `publish` is an open transaction of a dead process, aborted by whoever meets it. A
manifest is there only if its batches are durable.

Source: protocol.md, rows 11 and 12 (sequences are assigned at decision).
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, StorageError
from eoslog.model import TopicPartition
from eoslog.storage import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage import files

if TYPE_CHECKING:
    from eoslog.client.producer import Producer

STAGING = "eoslog-staging-0"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_SYNC_BYTES = 16 << 20
_DONE = ".done"
"""Ends the name of a retired job's folder."""


@dataclass(frozen=True)
class Span:
    """A run of batches of one partition inside an attempt's bytes."""

    topic: str
    partition: int
    position: int
    sizes: list[int]
    count: int


@dataclass(frozen=True)
class Attempt:
    """What one attempt prepared, in plain values: it travels from task to driver.

    Attributes:
        job: The directory all attempts of a job share.
        name: Unique among all attempts of all tasks.
        order: Position among the winning attempts; batches are published in this order.
        data: The batches themselves where they are few, else None and they lie in files.
        size: Bytes of the batches.
        manifest_crc: CRC-32C of the manifest file, 0 with `data`.
        spans: Which bytes go where; empty where they lie in files (the manifest has them).
        count: Records.
    """

    job: str
    name: str
    order: int
    data: bytes | None
    size: int
    manifest_crc: int
    spans: list[Span]
    count: int


class AttemptWriter:
    """Collects the batches of one attempt; not thread-safe.

    Keeps them in memory up to `inline_limit` bytes and moves to a file beyond.
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
        self._path = os.path.join(self._folder, f"{name}.batches")
        self._limit = inline_limit
        self._make_folder = make_folder
        self._held: dict[tuple[str, int], _Held] = {}
        self._chunks: list[bytes] = []
        self._spans: list[Span] = []
        self._fd = -1
        self._size = self._held_size = self._count = 0
        self._early = _EarlySync()

    def add(self, topic: str, partition: int, batch: bytes, count: int) -> None:
        """Takes one whole batch of `count` records; batches of a partition keep their order."""
        held = self._held.setdefault((topic, partition), _Held([], 0))
        held.batches.append(batch)
        held.count += count
        self._held_size += len(batch)
        self._count += count
        if self._held_size >= _CHUNK_BYTES:
            self._drain()

    def finish(self) -> Attempt:
        """Makes what was added durable, unless it stays inline.

        **Durability:** where files are used, batches, manifest and the names of both are on disk
        on return.

        Raises:
            StorageError: The files can't be written.
        """
        self._drain()
        if self._fd < 0:
            data = b"".join(self._chunks)
            return Attempt(
                self._job, self._name, self._order, data, self._size, 0, self._spans, self._count
            )
        with files.naming(self._path):
            self._early.end()
            _core.os_sync(self._fd, data_only=False)
        files.close(self._fd)
        self._fd = -1
        files.failpoint("staging.written")
        manifest = json.dumps(
            {
                "format": _FORMAT,
                "job": self._job,
                "name": self._name,
                "size": self._size,
                "count": self._count,
                "spans": [asdict(span) for span in self._spans],
            }
        ).encode()
        # Also makes the name of the batches file durable: both lie in one folder, which this syncs.
        files.write_atomically(os.path.join(self._folder, f"{self._name}.manifest"), manifest)
        files.failpoint("staging.staged")
        crc = _core.crc32c(manifest)
        return Attempt(self._job, self._name, self._order, None, self._size, crc, [], self._count)

    def discard(self) -> None:
        """Lets go of everything; what is on disk is removed."""
        if self._fd >= 0:
            with suppress(OSError):
                self._early.end()
            files.close(self._fd)
            self._fd = -1
            files.remove(self._path)
        self._held.clear()
        self._chunks.clear()

    def _drain(self) -> None:
        """Moves held batches to the end of the bytes, partition by partition, so that spans stay
        long.
        """
        for (topic, partition), held in self._held.items():
            sizes = [len(batch) for batch in held.batches]
            self._spans.append(Span(topic, partition, self._size, sizes, held.count))
            self._write(b"".join(held.batches))
        self._held.clear()
        self._held_size = 0

    def _write(self, data: bytes) -> None:
        if self._fd < 0 and self._size + len(data) > self._limit:
            if self._make_folder:
                _make_durably(self._folder)
            self._fd = files.open_file(self._path, create=True)
            held = b"".join(self._chunks)
            self._chunks.clear()
            with files.naming(self._path):
                _core.os_pwrite(self._fd, held, 0)
        if self._fd < 0:
            self._chunks.append(data)
        else:
            with files.naming(self._path):
                _core.os_pwrite(self._fd, data, self._size)
                self._early.written(self._fd, len(data))
        self._size += len(data)


class _EarlySync:
    """Flushes a file now and then while it is written, so that the last flush finds little to do.

    A flush that fails is an error of the next `written` or of `end`: the kernel tells it once.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._unsynced = 0

    def written(self, fd: int, size: int) -> None:
        """So many bytes more are in the file."""
        self._unsynced += size
        if self._unsynced < _SYNC_BYTES:
            return
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "eoslog-staging-sync")
        self._unsynced = 0
        self._running = self._pool.submit(_core.os_sync, fd)

    def end(self) -> None:
        """Waits for a flush that still runs."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._running is not None:
            self._running.result()


@dataclass
class _Held:
    batches: list[bytes]
    count: int


def publish(
    producer: Producer,
    directory: str,
    attempts: Sequence[Attempt],
    *,
    offsets: Mapping[TopicPartition, Any] | None = None,
    group: str | None = None,
) -> int:
    """Appends all attempts, and a group's offsets, in one transaction and commits it.

    Args:
        producer: Transactional, `init_transactions` called, no transaction open.
        directory: The eoslog directory.
        attempts: The winning ones; published in the order of `order`, partition by partition.
        offsets: Committed in the same transaction.
        group: Whose offsets they are.

    Returns:
        Number of records.

    Raises:
        CorruptRecord: A staged file is not what its writer made durable; the transaction is
        aborted. CommitOutcomeUnknown: The commit may or may not count; the next
        `init_transactions` tells. ProducerFenced: Somebody else took over this transactional id;
        nothing of this became visible.

    **Durability:** everything is durable and visible on return.
    """
    attempts = sorted(attempts, key=lambda one: (one.order, one.name))
    sources = [_Source(directory, one) for one in attempts]
    targets = sorted({(span.topic, span.partition) for source in sources for span in source.spans})
    with producer.transaction():
        for topic, partition in targets:
            found = (one for source in sources for one in source.windows(topic, partition))
            # Read while those before are checked and appended; not worth a thread for what is here.
            windows = _ahead(found) if any(one.data is None for one in attempts) else found
            producer.produce_batches(topic, partition, chain.from_iterable(windows))
        if offsets is not None and group is not None:
            producer.send_offsets_to_transaction(dict(offsets), group)
        files.failpoint("staging.published")
    files.failpoint("staging.committed")
    return sum(one.count for one in attempts)


class _Source:
    """The bytes of one attempt and which of them belong where; nothing is held open between
    partitions.
    """

    def __init__(self, directory: str, attempt: Attempt) -> None:
        self._attempt = attempt
        self._path = os.path.join(directory, STAGING, attempt.job, f"{attempt.name}.batches")
        self.spans = attempt.spans if attempt.data is not None else self._manifest()

    def _manifest(self) -> list[Span]:
        path = self._path.removesuffix(".batches") + ".manifest"
        raw = files.read_file(path)
        crc = _core.crc32c(raw)
        if crc != self._attempt.manifest_crc:
            raise CorruptRecord(
                f"{path}: CRC is {crc:#x}, the task wrote {self._attempt.manifest_crc:#x}"
            )
        size = os.stat(self._path).st_size
        if size != self._attempt.size:
            raise CorruptRecord(f"{self._path}: {size} bytes, the task wrote {self._attempt.size}")
        return [Span(**span) for span in json.loads(raw)["spans"]]

    def windows(self, topic: str, partition: int) -> Iterator[list[memoryview]]:
        """Batches of one partition in the order they were added, about 1 MiB of them at a time;
        each batch's own CRC is checked when it is stamped.
        """
        spans = [span for span in self.spans if (span.topic, span.partition) == (topic, partition)]
        if not spans:
            return
        inline = self._attempt.data
        fd = -1 if inline is not None else files.open_file(self._path, read_only=True)
        try:
            for span in spans:
                position = span.position
                for sizes in _about(_CHUNK_BYTES, span.sizes):
                    size = sum(sizes)
                    if inline is not None:
                        data = memoryview(inline)[position : position + size]
                    else:
                        data = memoryview(_core.os_pread(fd, size, position))
                    if len(data) != size:
                        raise CorruptRecord(
                            f"{self._path}: {len(data)} bytes at {position}, {size} expected"
                        )
                    ends = list(accumulate(sizes, initial=0))
                    yield [data[start:end] for start, end in pairwise(ends)]
                    position += size
        finally:
            files.close(fd)


def _about(most: int, sizes: Sequence[int]) -> Iterator[list[int]]:
    """The sizes in lists that add up to about `most`."""
    group: list[int] = []
    held = 0
    for size in sizes:
        if group and held + size > most:
            yield group
            group, held = [], 0
        group.append(size)
        held += size
    if group:
        yield group


def _ahead(windows: Iterator[list[memoryview]]) -> Iterator[list[memoryview]]:
    """The same, each read by another thread while the one before is worked on."""
    with ThreadPoolExecutor(1, "eoslog-staging-read") as pool:
        coming = pool.submit(next, windows, None)
        while (window := coming.result()) is not None:
            coming = pool.submit(next, windows, None)
            yield window


def begin_job(directory: str, job: str) -> None:
    """Makes a job's folder, durably."""
    _make_durably(os.path.join(directory, STAGING, job))


def _make_durably(folder: str) -> None:
    files.make_dir(os.path.dirname(folder))
    files.make_dir(folder)


def discard(directory: str, attempts: Sequence[Attempt]) -> None:
    """Removes the files of these attempts; those that are gone already are fine."""
    for one in attempts:
        if one.data is None:
            base = os.path.join(directory, STAGING, one.job, one.name)
            files.remove(f"{base}.manifest")
            files.remove(f"{base}.batches")


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
    """Removes retired jobs, and those in which nothing was written for so long; returns their
    names.

    A staged file is never needed once its job is decided, and published data lies in the topics:
    sweeping can cost a job that is still running its attempts, never committed data.
    """
    folder = os.path.join(directory, STAGING)
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    limit = time.time() - older_than_s
    swept = []
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            continue
        if entry.name.endswith(_DONE) or _newest(entry.path) < limit:
            discard_job(directory, entry.name)
            swept.append(entry.name)
    return swept


def _newest(folder: str) -> float:
    """Last modification in a job's folder; now, if somebody else is removing it."""
    try:
        times = [os.stat(folder).st_mtime]
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)]
    except FileNotFoundError:
        return time.time()
    return max(times)
