"""`with` for what has a `close`, and for what made others that have one."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from eoslog.errors import IllegalState

T = TypeVar("T")


class Closing:
    """Closed when its `with` block ends, also by an exception."""

    def close(self) -> None:
        """Release everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OwnedClients:
    """The clients of a handle, closed with it and held only by weak references.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._clients: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()

    def add(self, client: T) -> T:
        """Close this one with the handle."""
        self._clients[next(self._numbers)] = client  # closed in the order of their making
        return client

    def close(self, then: Callable[[], object]) -> None:
        """Close the clients, then call `then`, whatever they raised.

        Raises:
            EoslogError: a client's, when all is closed.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(then)
            for client in reversed(list(self._clients.values())):
                stack.callback(_close, client)

    def fail(
        self,
        kind: type[BaseException] | None,
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Leave the clients' `with` blocks by an exception, which is the one to see."""
        for client in list(self._clients.values()):
            with contextlib.suppress(Exception):
                client.__exit__(kind, error, trace)


def _close(client: Any) -> None:
    with contextlib.suppress(IllegalState):  # another thread still uses the consumer
        client.close()
