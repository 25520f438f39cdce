"""Transactional ids of producers that eoslog creates itself.

An id has the numbers of its process and of its producer in the process. The lowest free number is
used again, so the number of ids in the log stays small.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from eoslog.engine.engine import Engine

__all__ = ["NumberedId"]

_taken: WeakKeyDictionary[Engine, dict[str, set[int]]] = WeakKeyDictionary()
"""The numbers in use in this process, by the name before them."""
_mutex = threading.Lock()


class NumberedId:
    """A transactional id that no other living producer has, until `free`."""

    def __init__(self, engine: Engine, name: str) -> None:
        """Take the lowest free number of a name."""
        self._engine = engine
        self._name = name
        with _mutex:
            taken = _taken.setdefault(engine, {}).setdefault(name, set())
            self._number = next(n for n in range(len(taken) + 1) if n not in taken)
            taken.add(self._number)

    def __str__(self) -> str:
        return f"{self._name}-{self._engine.process_number}-{self._number}"

    def free(self) -> None:
        """Let the next producer take the id. A second call does nothing."""
        with _mutex:
            _taken.get(self._engine, {}).get(self._name, set()).discard(self._number)
