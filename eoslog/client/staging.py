"""Staged writes: many processes prepare batches, one makes them visible in one transaction.

    DIR/eoslog-staging-0/JOB/ATTEMPT.N.batches   record batches of one attempt, in pieces
    DIR/eoslog-staging-0/JOB/ATTEMPT.manifest    JSON, which bytes are whose; written last
    DIR/eoslog-staging-0/JOB/retention           seconds that the job wants to be left alone

Each attempt of each task writes files of its own and never touches a topic; readers are not held
up. Whoever decides which attempts count calls `publishing.publish`. Small attempts skip the files
and travel as bytes.

**Staged files are not flushed.** Nothing staged is used after a crash: `publish` is told of the
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

from eoslog import _core
from eoslog.errors import ConfigError, StorageError
from eoslog.model import STAGING_TOPIC
from eoslog.storage import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage import files

STAGING = f"{STAGING_TOPIC}-0"
_FORMAT = 2
_HELD_BYTES = 3 << 20
_ALONE_BYTES = 64 << 10
"""Batches of this size on average are written one by one: a call costs less than a copy."""
PIECE_BYTES = 16 << 20
"""Of a file, about: what is freed at a time as it is published."""
_RETENTION = "retention"
_DONE = ".done"
"""Ends the name of a retired job's folder."""


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
        self._held: dict[tuple[str, int], list[Any]] = {}
        self._held_size = self._count = 0
        self._chunks: list[Any] = []  # while no piece is begun
        self._spans: list[Span] = []
        self._pieces = [0]  # bytes in each
        self._fd = -1  # of the last piece

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
        if self._fd < 0:
            data = b"".join(self._chunks)
            return Attempt(self._job, self._name, self._order, data, 0, self._spans, self._count)
        self._close()
        files.failpoint("staging.written")
        manifest = json.dumps(
            {
                "format": _FORMAT,
                "job": self._job,
                "name": self._name,
                "pieces": self._pieces,
                "count": self._count,
                "spans": [asdict(span) for span in self._spans],
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
        if self._fd >= 0:
            files.close(self._fd)
            self._fd = -1
        _remove(self._folder, self._name)
        self._held.clear()
        self._chunks.clear()

    def _drain(self) -> None:
        """Moves held batches to the end of the bytes, partition by partition, so that spans stay
        long.
        """
        if self._fd < 0:
            if self._pieces[0] + self._held_size > self._limit:
                if self._make_folder:
                    _make(self._folder, self._retention)
                self._fd = files.open_file(self._path(), create=True)
                self._pieces = [0]
                self._write(b"".join(self._chunks))
                self._chunks.clear()
        elif self._pieces[-1] >= PIECE_BYTES:
            self._close()
            self._pieces.append(0)
            self._fd = files.open_file(self._path(), create=True)
        for (topic, partition), batches in self._held.items():
            size = sum(map(len, batches))
            span = Span(topic, partition, len(self._pieces) - 1, self._pieces[-1], size)
            self._spans.append(span)
            if size < _ALONE_BYTES * len(batches):
                batches = [b"".join(batches)]
            for data in batches:
                self._write(data)
        self._held.clear()
        self._held_size = 0

    def _write(self, data: Any) -> None:
        if self._fd < 0:
            self._chunks.append(data)
        else:
            with files.naming(self._path()):
                _core.os_pwrite(self._fd, data, self._pieces[-1])
        self._pieces[-1] += len(data)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        files.close_written(fd, self._path())

    def _path(self) -> str:
        return piece_path(self._folder, self._name, len(self._pieces) - 1)


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
