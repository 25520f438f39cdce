"""Logs that a test creates, in memory where the machine has room for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import eoslog
from eoslog._util.closing import Closing
from eoslog.log import Log
from eoslog.testing.clock import Clock

__all__ = ["TemporaryLogs", "temporary_directory"]

_IN_MEMORY = "/dev/shm"
_LEAST_FREE = 256 << 20
"""Containers often have 64 MiB there, and a full one kills processes with mapped files."""


def _has_room() -> bool:
    try:
        found = os.statvfs(_IN_MEMORY)
    except OSError:
        return False
    writable = os.path.ismount(_IN_MEMORY) and os.access(_IN_MEMORY, os.W_OK)
    return writable and found.f_bavail * found.f_frsize >= _LEAST_FREE


@contextlib.contextmanager
def temporary_directory(on_disk: Callable[[], Path]) -> Iterator[Path]:
    """Create a directory, and remove it at the end.

    Args:
        on_disk: creates it if there is no room in memory.
    """
    made = Path(tempfile.mkdtemp(prefix="eoslog-", dir=_IN_MEMORY)) if _has_room() else on_disk()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class TemporaryLogs(Closing):
    """Creates logs in a directory, and closes them together.

    The fixture `eoslog_factory` is one::

        with TemporaryLogs("logs") as create:
            log = create(topics={"orders": 3})
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Keep the directory, in which logs are `log-1`, `log-2` and so on."""
        self.clock = Clock()
        """The clock of these logs; it runs like the system's until it is moved."""
        self._directory = Path(directory)
        self._logs: list[Log] = []

    def __call__(
        self,
        topics: Iterable[str] | Mapping[str, int] = (),
        *,
        durability: str = "os",
        **options: Any,
    ) -> Log:
        """Create a log, and open it.

        Args:
            topics: names of topics to create, or names with their numbers of partitions.
            durability: as for `eoslog.open`.
            options: as for `eoslog.open`.

        Returns:
            The open log, which need not be closed.

        Raises:
            EoslogError: as `eoslog.open` and `Log.create_topic`.
        """
        named = {topics: 1} if isinstance(topics, str) else topics
        path = self._directory / f"log-{len(self._logs) + 1}"
        log = eoslog.open(path, durability=durability, **options)
        self._logs.append(log)
        self.clock.set_for(log)
        for name in named:
            log.create_topic(name, named[name] if isinstance(named, Mapping) else 1)
        return log

    def close(self) -> None:
        """Close all logs, the newest first.

        Raises:
            EoslogError: as `Log.close`. All logs are closed in any case.
        """
        with contextlib.ExitStack() as stack:
            for log in self._logs:
                stack.callback(log.close)
            self._logs = []
