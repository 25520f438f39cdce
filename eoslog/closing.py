"""`with` for what has a `close`, and for what made others that have one."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from types import TracebackType
from typing import Any, Self, TypeVar

from eoslog.errors import IllegalState

T = TypeVar("T")


class Closing:
    """Closed when its `with` block ends, also by an exception."""

    def close(self) -> None:
        """Let go of everything."""
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


class Owner(Closing):
    """Closed after the clients that it made; those that nobody has any more are not known."""

    def __init__(self) -> None:
        """Nothing is made yet."""
        self._owned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._closed = False

    def _own(self, client: T) -> T:
        self._owned[next(self._numbers)] = client  # closed in the order of their making
        return client

    def _let_go(self) -> None:
        """Close itself."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the clients that were made here, which send what they hold, then let go of the
        directory; calling it again does nothing.

        Raises:
            EoslogError: a client's, when all is closed.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._let_go)
            for client in reversed(list(self._owned.values())):
                stack.callback(_close, client)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for client in list(self._owned.values()):
                with contextlib.suppress(Exception):  # the first error is the one to see
                    client.__exit__(kind, error, trace)
        self.close()


def _close(client: Any) -> None:
    with contextlib.suppress(IllegalState):  # a consumer that another thread is using goes on
        client.close()
