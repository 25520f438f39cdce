"""The directory that a session has opened, even if its path leads to another one later.

A session opens its directory once, and builds all file names from the kernel's name for that
descriptor, `/proc/self/fd/N`. So every open, rename, unlink, listing and mapping uses the opened
directory. If it is moved away and replaced by a restored backup, the session's files go to the
moved directory, and none to the restored one.

`look` compares the path with the descriptor. After the first difference the session rejects all
work, because the caller expects the log at the path, and that is another log.

Without a usable `/proc` the path itself is the root. `look` still finds a difference.
"""

from __future__ import annotations

import errno
import os
import re
import time

from eoslog.errors import DirectoryReplaced, StorageError
from eoslog.shown_paths import DESCRIPTORS, get_logger, register, shown

logger = get_logger("eoslog.storage")

_SHORTLY_S = 0.005
LOOK_S = 1.0
"""Seconds between two comparisons by a reader, which has no background thread."""

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_BELOW = re.compile(re.escape(DESCRIPTORS) + r"([0-9]+)(?:/|$)")
_opened: dict[int, OpenedDirectory] = {}


class OpenedDirectory:
    """A descriptor of a log directory, and the root of all names below it. Thread-safe.

    Invariants:
        - `root` leads to the opened directory until `close`, even if the directory was moved;
        - `lost` never goes back to None.

    Args:
        path: the caller's path, absolute.

    Raises:
        OSError: if there is no such directory, or it cannot be opened.
    """

    def __init__(self, path: str, fd: int = -1) -> None:
        """Open the directory, or take over an open descriptor of it."""
        self.path = path
        self.lost: DirectoryReplaced | None = None
        self.leaving = False
        """Whether the session is closing; it finishes its writes in the opened directory."""
        self._marks: dict[str, int] = {}
        self._next_look = 0.0
        self._looked = 0.0
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if fd < 0 else fd
        try:
            status = os.fstat(self.fd)
        except OSError:
            os.close(self.fd)
            raise
        self.identity = (status.st_dev, status.st_ino)
        self.root = f"{DESCRIPTORS}{self.fd}"
        if not self._usable():
            self.root = path
            return
        register(self.fd, path)
        _opened[self.fd] = self

    def _usable(self) -> bool:
        try:
            status = os.stat(self.root)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def duplicate(self) -> OpenedDirectory:
        """Return an object for the same directory, with its own descriptor."""
        return OpenedDirectory(self.path, os.dup(self.fd))

    def mark(self, name: str, fd: int) -> None:
        """Register a file whose name `look` checks: it keeps the name while this log exists."""
        self._marks[name] = fd

    def look(self) -> DirectoryReplaced | None:
        """Compare the path with the opened directory. Returns the first difference ever found."""
        if self.lost is None and self.fd >= 0:
            found = self._difference()
            if found:
                self.lost = DirectoryReplaced(
                    f"{self.path}: {found} while this process had it open; close this log and open "
                    "the path again"
                ).of(self.path)
                logger.error("%s", self.lost)
        return self.lost

    def _difference(self) -> str:
        try:
            there = os.stat(self.path)
        except OSError as error:
            if error.errno not in _GONE:
                return ""  # the disk fails, or access is denied: nothing is known
            return f"the log directory was {self._condition()}"
        if (there.st_dev, there.st_ino) != self.identity:
            return f"the path leads to another directory, and the log's was {self._condition()}"
        for name, fd in self._marks.items():
            try:
                found = os.stat(os.path.join(self.root, name))
                own = os.fstat(fd)
            except OSError as error:
                if error.errno not in _GONE:
                    continue
                return f"the log directory was emptied ({name} is missing)"
            if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
                return f"another log was written over this one ({name} is another file)"
        return ""

    def _condition(self) -> str:
        if self.removed:
            return "removed"
        try:
            now = os.readlink(f"{DESCRIPTORS}{self.fd}")
        except OSError:
            return "moved away"
        return "moved away" if now == self.path else f"moved to {now}"

    @property
    def removed(self) -> bool:
        """Whether the opened directory was removed."""
        try:
            if os.fstat(self.fd).st_nlink == 0:
                return True
            name = os.readlink(f"{DESCRIPTORS}{self.fd}")
            os.listdir(self.fd)
        except OSError as error:
            return error.errno in _GONE
        return name.endswith(" (deleted)") and not os.path.exists(name)

    @property
    def own(self) -> bool:
        """Whether the directory at `root` is still this session's log, moved at most."""
        if self.root == self.path:
            return self.look() is None
        if self.removed:
            return False
        return all(self._keeps_name(name, fd) for name, fd in self._marks.items())

    def _keeps_name(self, name: str, fd: int) -> bool:
        try:
            found, own = os.stat(os.path.join(self.root, name)), os.fstat(fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def require(self) -> None:
        """Compare now.

        Raises:
            DirectoryReplaced: if the path no longer leads to this directory.
        """
        self._looked = time.monotonic()
        if not self.leaving and self.look() is not None:
            self.refuse()

    def require_own(self) -> None:
        """Check before creating files in a partition's directory, also while closing.

        Raises:
            DirectoryReplaced: if another log was written over this one, or it was removed.
        """
        if not self.own and (lost := self.look()) is not None:
            raise lost.again()

    def require_often(self) -> None:
        """Compare as `require`, unless the last comparison was only some ms ago."""
        if self.lost is not None or time.monotonic() - self._looked > _SHORTLY_S:
            self.require()

    def require_now_and_then(self) -> None:
        """Compare as `require`, once a second: for readers, before they return records or wait."""
        if self.lost is None:
            now = time.monotonic()
            if now < self._next_look:
                return
            self._next_look = now + LOOK_S
        self.require()

    def leave(self) -> None:
        """Begin closing the session, in the opened directory, even if that was moved."""
        if self.look() is not None:
            logger.warning(
                "%s: the opened directory was moved or replaced, closing the session in it",
                self.path,
            )
        self.leaving = True

    def refuse(self) -> None:
        """Raise the difference that `look` has found, if any, as a new exception."""
        if self.lost is not None and not self.leaving:
            raise self.lost.again()

    def close(self) -> None:
        """Close the descriptor, after every file below it, because its number can be reused."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if _opened.get(fd) is self:
                del _opened[fd]
            os.close(fd)


def replaced(path: str) -> DirectoryReplaced | None:
    """Return the error if a session's file is missing because its directory was replaced."""
    found = _BELOW.match(path)
    directory = _opened.get(int(found[1])) if found else None
    if directory is None or directory.leaving or directory.look() is None:
        return None
    assert directory.lost is not None
    return directory.lost.again()


def below(path: str) -> tuple[int | None, str]:
    """Split a session's file name into the directory's descriptor and the name below it.

    A call with `dir_fd` reaches the same file without resolving `/proc`.
    """
    if path.startswith(DESCRIPTORS):
        number, _, name = path[len(DESCRIPTORS) :].partition("/")
        if name and number.isdecimal():
            return int(number), name
    return None, path


def named(error: OSError) -> OSError:
    """Return the error with callers' paths instead of descriptor names."""
    if isinstance(error.filename, str) and not isinstance(error, StorageError):
        error.filename = shown(error.filename)
        if isinstance(error.filename2, str):
            error.filename2 = shown(error.filename2)
    return error
