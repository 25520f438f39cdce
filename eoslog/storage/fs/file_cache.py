"""A cache of the log files that readers of this process have open.

Its size is limited, and files that were read only once are closed first. Ten thousand partitions
have a hundred thousand segments, but a process has few descriptors and at most 65,530 mappings
(protocol.md row 38).
"""

from __future__ import annotations

import resource
import weakref
from collections import deque
from typing import Protocol

import numpy as np

from eoslog.storage.fs import files

LEAST_OPEN, MOST_OPEN = 32, 4096


class ReadFile:
    """A log file open for reading. It is closed when its last user drops it."""

    __slots__ = ("again", "fd", "map", "mapped")

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            FileNotFoundError: if retention has deleted it.
        """
        self.fd = -1
        self.fd = files.open_file(path, read_only=True)
        self.map: np.memmap | None = None
        self.mapped = 0
        self.again = False  # read again since the last check for eviction

    def close(self) -> None:
        """Close the file now, although threads may be reading: the log is closed."""
        fd, self.fd, self.map, self.mapped = self.fd, -1, None, 0
        files.close(fd)

    def __del__(self) -> None:
        """Close the file with its last user, so that no thread reads through a reused number."""
        if self.fd >= 0:
            files.close(self.fd)


class Owner(Protocol):
    """An object that opens its file again when it needs it."""

    file: ReadFile | None


_owners: deque[weakref.ref[Owner]] = deque()  # its calls are atomic: threads need no lock


def most_open() -> int:
    """Return the limit of open files, which use at most a quarter of the process's descriptors.

    A mapped file uses two descriptors, one of them for the mapping.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit < 0 else max(LEAST_OPEN, min(limit // 8, MOST_OPEN))


def admit(owner: Owner) -> None:
    """Add the owner of an opened file. Above the limit, drop files that were not read again."""
    most = most_open()
    for _ in range(2 * len(_owners)):
        if len(_owners) < most:
            break
        try:
            oldest = _owners.popleft()
        except IndexError:  # other threads took the last ones
            break
        found = oldest()
        file = found.file if found is not None else None
        if found is None or file is None:
            continue  # closed by its owner
        if file.again:
            file.again = False
            _owners.append(oldest)
        else:
            found.file = None
    _owners.append(weakref.ref(owner))
