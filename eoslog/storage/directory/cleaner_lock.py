"""CleanerLock: the lock for changing sealed segments of a partition."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from eoslog.errors import IllegalState, LockTimeout, StorageError
from eoslog.storage.directory.processes import CLEANER_AT, lock_text
from eoslog.storage.directory.session import Session

__all__ = ["CleanerLock"]


class CleanerLock:
    """The lock for changing sealed segments: one thread of one process at a time holds it.

    Take it before the append lock, never while holding the append lock (protocol.md, lock order).
    """

    def __init__(self, session: Session, slot: int) -> None:
        """Make the lock of a slot, a byte in its lock file."""
        self._fd = session.append_lock(slot)[0]
        self._at = CLEANER_AT + slot
        self._session = session
        self._slot = slot
        self._mutex = threading.Lock()

    def try_take(self) -> bool:
        """Take the lock if it is free. Returns whether this call has taken it.

        Raises:
            IllegalState: if the log was closed.
        """
        if self._fd < 0 or not self._mutex.acquire(blocking=False):
            return False
        taken = False
        try:
            taken = self._session.try_lock(self._fd, self._at)
        finally:
            if not taken:
                self._mutex.release()
        return taken

    def release(self) -> None:
        """Release the lock, which the close of the log may have done already."""
        try:
            self._session.unlock(self._fd, self._at)
        finally:
            self._mutex.release()

    @contextlib.contextmanager
    def held(self, what: str, timeout: float) -> Iterator[None]:
        """Hold the lock.

        Args:
            what: the subject of an error message.
            timeout: seconds to wait for the lock.

        Raises:
            LockTimeout: if another thread or process holds the lock for `timeout` seconds.
            IllegalState: if the log was opened read_only, or was closed in the meantime.
        """
        if self._fd < 0:
            raise IllegalState(f"{what}: the log was opened read_only; open it for writing")
        pause = threading.Event()
        waited = 0.0
        while not self.try_take():
            if waited >= timeout:
                raise LockTimeout(
                    f"{what}: the cleaner lock is not free within {timeout:g} s; held by "
                    f"{lock_text(self._session, self._slot, 'cleaner')}, which is cleaning or "
                    "copying the segments; retry later"
                )
            pause.wait(0.002)
            waited += 0.002
        try:
            yield
        except (FileNotFoundError, StorageError):
            self._session.refuse_closed()  # a closed log has no files any more
            raise
        finally:
            self.release()
