"""Notes of the records whose handlers run, which outlive a killed process.

Each input topic of an app has a file with 64 bytes for each partition, mapped into the memory of
the processes that own partitions:

    int64   offset of the record, plus 1; 0 while no handler runs
    int64   offset of the last record, which is another one in a batch
    int64   CRC of the task's name
    int64   random number of the owner
    int64   random number of this boot of the machine
    int64   number of the topic's id; 0 if it is not known, as in earlier versions
    16      zeros

A note is two stores into memory, without a system call. The page cache keeps it when the process is
killed. It may be lost, or be of another moment, when the machine stops. So a note of an earlier
boot does not count: no handler can have stopped the machine.

The next owner of the partition reads the note before its first record. A note that names a record
says that its handler ran when the owner ended. If the topic was deleted and re-created, a note of
the earlier topic does not count: the new record with its offset did not run.
"""

from __future__ import annotations

import mmap
import os
import secrets
import zlib
from dataclasses import dataclass

from eoslog.errors import StorageError
from eoslog.storage.fs import files

__all__ = ["Note", "RunningNotes", "task_number", "topic_number"]

_SLOT = 64
_FIRST, _LAST, _TASK, _OWNER, _BOOT, _TOPIC = range(6)


def task_number(task: str) -> int:
    """Return the number that a note has for a task."""
    return zlib.crc32(task.encode())


def topic_number(topic_id: bytes) -> int:
    """Return the number that a note has for the id of a topic."""
    return int.from_bytes(topic_id[:8], "big") >> 1 or 1


def _boot() -> int:
    """Return a number of this boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as source:
            return zlib.crc32(source.read())
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Note:
    """The records whose handler ran when the owner of a partition ended."""

    first: int
    last: int
    task: int
    """`task_number` of the task's name."""
    owner: int
    """The random number of the owner, which tells one exit from another."""


class RunningNotes:
    """The notes of one app in one process. The thread of the app uses it."""

    def __init__(self, folder: str) -> None:
        """Keep the folder; files are created at the first claim."""
        self._folder = folder
        self._owner = secrets.randbits(62) | 1
        self._boot = _boot()
        self._maps: dict[str, memoryview] = {}
        self._slots: dict[tuple[str, int], memoryview] = {}

    def claim(self, topic: str, partition: int, number: int = 0) -> Note | None:
        """Return the note that the last owner of a partition left.

        The note stays until `clear`.

        Args:
            topic: the topic.
            partition: the partition.
            number: `topic_number` of the topic; 0 if it is not known.

        Raises:
            StorageError: if the file of the topic cannot be written.
        """
        slot = self._slots[topic, partition] = self._slot(topic, partition)
        if not slot[_FIRST] or slot[_BOOT] != self._boot or slot[_OWNER] == self._owner:
            return None
        if number and slot[_TOPIC] not in (0, number):
            return None  # of a record of a deleted topic
        return Note(slot[_FIRST] - 1, slot[_LAST], slot[_TASK], slot[_OWNER])

    def clear(self, topic: str, partition: int, number: int = 0) -> None:
        """Own the note of a claimed partition, without a record; `number` as for `claim`."""
        slot = self._slots[topic, partition]
        slot[_FIRST] = 0
        slot[_TOPIC] = number
        slot[_OWNER] = self._owner
        slot[_BOOT] = self._boot

    def begin(self, topic: str, partition: int, task: int, first: int, last: int) -> memoryview:
        """Note that a handler starts, and return the note for `end`."""
        slot = self._slots[topic, partition]
        if slot[_OWNER] == self._owner:  # not if the partition has a new owner
            slot[_LAST] = last
            slot[_TASK] = task
            slot[_FIRST] = first + 1
        return slot

    def end(self, slot: memoryview) -> None:
        """Note that the handler has returned or raised."""
        if slot[_OWNER] == self._owner:  # not if the partition has a new owner
            slot[_FIRST] = 0

    def running(self) -> list[tuple[str, int, int, int]]:
        """Topic, partition, task and offset of the handlers that run now.

        Any thread can call it.
        """
        return [
            (topic, partition, slot[_TASK], slot[_FIRST] - 1)
            for (topic, partition), slot in list(self._slots.items())
            if slot[_FIRST]
        ]

    def release(self, topic: str, partition: int) -> None:
        """Forget a partition that another process may own now."""
        self._slots.pop((topic, partition), None)

    def _slot(self, topic: str, partition: int) -> memoryview:
        size = (partition + 1) * _SLOT
        whole = self._maps.get(topic)
        if whole is None or whole.nbytes < size:
            # Views of an older, shorter map stay valid: both show the same pages of the file.
            whole = self._maps[topic] = self._map(topic, size)
        return whole[partition * _SLOT : size].cast("q")

    def _map(self, topic: str, size: int) -> memoryview:
        path = os.path.join(self._folder, f"{topic}.running")
        try:
            fd = files.open_file(path, create=True)  # with the permissions of the log
        except FileNotFoundError as error:
            raise files.storage_error(error, path) from error
        try:
            # Allocated, because a store into a hole of a full disk would kill the process.
            os.posix_fallocate(fd, 0, size)
            return memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        except OSError as error:
            raise StorageError(
                "the note of the running record cannot be written; free space, or check the "
                f"permissions: {error.strerror}",
                error.errno or 0,
                path,
            ) from error
        finally:
            files.close(fd)
