"""The directories that this process has open, shared by its handles.

A forked child drops them, because they belong to its parent. They are closed at exit.

Producers are closed before the directories. The module that closes them adds itself to
`before_closing`, because Python ignores an exit hook that is registered during the exit.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from eoslog._util.arguments import as_directory, as_mode
from eoslog.config.keys import LogConfig
from eoslog.errors import ConfigError, EoslogError
from eoslog.storage.directory.directory import make_directory, prepare_directory
from eoslog.storage.directory.session import WriterCame
from eoslog.storage.format.checkpoints import MetaProperties
from eoslog.storage.fs import files
from eoslog.storage.fs.filesystem import refuse_remote
from eoslog.storage.fs.opened_directory import OpenedDirectory

Key = tuple[int, int, bool]
"""Device, inode, and whether the directory is open read-only."""

before_closing: list[Callable[[], None]] = []
"""Called at exit before the directories are closed."""

_open: dict[Key, Any] = {}
_mutex = threading.Lock()
os.register_at_fork(after_in_child=lambda: _after_fork())


def _after_fork() -> None:
    global _mutex
    _mutex = threading.Lock()
    _open.clear()


@atexit.register
def close_all() -> None:
    """Close every directory, so that exiting programs leave their logs clean."""
    try:
        for call in before_closing:
            call()
    finally:
        for engine in list(_open.values()):
            with contextlib.suppress(EoslogError, OSError):
                engine.close(engine.references.count)


class References:
    """The number of handles that share an open directory."""

    def __init__(self, key: Key) -> None:
        """Start at 0."""
        self.count = 0
        self._key = key

    def taken(self) -> None:
        """Count one more handle; the caller holds the mutex of all openings."""
        self.count += 1

    @contextlib.contextmanager
    def given_back(self, count: int) -> Iterator[bool]:
        """Release references, and yield whether they were the last.

        The block runs under the mutex of all openings. After its last reference, a directory is
        removed from the table. So the next opening waits for the end of the block, then opens the
        directory again.
        """
        with _mutex:
            self.count -= count
            last = self.count <= 0
            shared = _open.get(self._key)
            if last and shared is not None and shared.references is self:
                del _open[self._key]
            yield last


class Shared(Protocol):
    """An open directory that handles share; `engine.Engine` implements it."""

    references: References

    @property
    def moved(self) -> bool:
        """Whether the directory is no longer at its path."""

    @property
    def outdated(self) -> bool:
        """Whether it is a read-only view, and a writer has opened the directory since."""

    def check_config(self, config: LogConfig) -> None:
        """Raise ConfigError for settings that differ from those of the first open."""

    def close(self, references: int = 1) -> None:
        """Release references; the last one closes the directory."""


S = TypeVar("S", bound=Shared)


def share(key: Key, make: Callable[[References], S], config: LogConfig | None) -> S:
    """Return the open directory of a key, which is opened if needed.

    The caller gets a reference to it.

    Args:
        key: identifies the directory.
        make: opens it; after WriterCame it is called again.
        config: the caller's settings; None accepts any.

    Raises:
        ConfigError: if this process has the directory open with other settings.
    """
    with _mutex:
        shared: S | None = _open.get(key)
        if shared is not None and shared.moved:
            shared = None  # the directory was opened at another path and moved since
        while shared is None or shared.outdated:
            with contextlib.suppress(WriterCame):  # a writer came during the scan: scan again
                shared = _open[key] = make(References(key))
        if config is not None:
            shared.check_config(config)
        shared.references.taken()
        return shared


def open_directory(
    path: str | os.PathLike[str],
    *,
    create: bool,
    read_only: bool,
    durability: str | None,
    config: LogConfig | None,
    mode: int | None,
) -> tuple[OpenedDirectory, MetaProperties]:
    """Open a directory, create it if that is allowed, and read its stored properties.

    Raises:
        ConfigError: if another durability, mode or count of internal partitions is stored.
        StorageError: if the directory is not a log, is damaged, or is on an unsupported file
            system.
    """
    if durability not in (None, "strict", "os"):
        raise ConfigError(f"durability: expected 'strict' or 'os', got {durability!r}")
    where = as_directory(path)
    create = create and not read_only
    if config is not None and "durability" in config.given:
        durability = durability or config.durability
    mode = as_mode(mode)
    make_directory(where, create=create, mode=mode)
    with files.naming(where):
        directory = OpenedDirectory(where)  # all later accesses use this descriptor, not the path
    with contextlib.ExitStack() as failed:
        failed.callback(directory.close)
        properties = prepare_directory(
            directory.root, create=create, durability=durability, config=config, mode=mode
        )
        if durability is not None and properties.durability != durability:
            raise ConfigError(
                f"{where}: expected durability {properties.durability!r}, with which the directory "
                f"was created, got {durability!r}; open it without the argument"
            )
        if not read_only:
            refuse_remote(directory.root)
        failed.pop_all()
    return directory, properties
