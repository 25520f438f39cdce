"""Keeps a handle that is not thread-safe to one thread at a time, and out of forked children."""

from __future__ import annotations

import threading

from eoslog import _core
from eoslog.errors import IllegalState


class OneThread:
    """A context manager around every call of a handle; the same thread may nest calls.

    Two threads at once, a closed handle, and a handle inherited through fork are IllegalState.
    """

    __slots__ = ("_depth", "_generation", "_lock", "_name", "_owner", "closed")

    def __init__(self, name: str) -> None:
        """Guard the handle that messages call `name`."""
        self._name = name
        self._lock = threading.Lock()
        self._owner = 0
        self._depth = 0
        self._generation = _core.fork_generation()
        self.closed = False

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a child process."""
        return bool(_core.fork_generation() != self._generation)

    def __enter__(self) -> None:
        if self.closed:
            raise IllegalState(f"the {self._name} is closed")
        if self.forked:
            raise IllegalState(f"the {self._name} was inherited through fork: open a new one")
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking=False):
                raise IllegalState(
                    f"the {self._name} is in use by thread {self._owner}, this is thread {me}"
                )
            self._owner = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._lock.release()
