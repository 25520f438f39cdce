"""The log files that readers of this process have open: so many; those read once go first.

Ten thousand partitions have a hundred thousand segments; a process has few descriptors, and fewer
than 65,530 mappings (protocol.md row 38).
"""

from __future__ import annotations

import resource
import weakref
from collections import deque
from typing import Protocol

import numpy as np

from eoslog.storage import files

LEAST_OPEN, MOST_OPEN = 32, 4096


class ReadFile:
    """A log file open for reading. It closes with its last user, however long ago it was let go."""

    __slots__ = ("again", "fd", "map", "mapped")

    def __init__(self, path: str) -> None:
        """Open it. Raises FileNotFoundError when retention took the file."""
        self.fd = -1
        self.fd = files.open_file(path, read_only=True)
        self.map: np.memmap | None = None
        self.mapped = 0
        self.again = False  # read again since it was last asked whether it may go

    def close(self) -> None:
        """Now, though others may be reading: the log is closed."""
        fd, self.fd, self.map, self.mapped = self.fd, -1, None, 0
        files.close(fd)

    def __del__(self) -> None:
        """Not before: another thread may be reading, and the number may be another file's then."""
        if self.fd >= 0:
            files.close(self.fd)


class Owner(Protocol):
    """Who opens its file again when it needs it."""

    file: ReadFile | None


_owners: deque[weakref.ref[Owner]] = deque()  # its calls are atomic: threads need no lock


def most_open() -> int:
    """So many that they take a quarter of the descriptors that the process may have now: a file
    that is mapped has two, one of them the mapping's.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit < 0 else max(LEAST_OPEN, min(limit // 8, MOST_OPEN))


def admit(owner: Owner) -> None:
    """Note whose file was opened; above the limit, files go that were not read again lately."""
    most = most_open()
    for _ in range(2 * len(_owners)):
        if len(_owners) < most:
            break
        try:
            oldest = _owners.popleft()
        except IndexError:  # other threads took them meanwhile
            break
        found = oldest()
        file = found.file if found is not None else None
        if found is None or file is None:
            continue  # closed by itself
        if file.again:
            file.again = False
            _owners.append(oldest)
        else:
            found.file = None
    _owners.append(weakref.ref(owner))
