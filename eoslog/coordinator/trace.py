"""Events about requests, for whoever listens; nothing is built when nobody does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from eoslog.errors import ConfigError

logger = logging.getLogger("eoslog.trace")

Listener = Callable[[dict[str, Any]], None]


class _Unheard(AbstractContextManager[dict[str, Any]]):
    """A request that nobody hears of."""

    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(self, *_: object) -> None:
        pass


_UNHEARD = _Unheard()


class Trace:
    """A list of listeners. Adding one is rare, so the list is replaced, never changed."""

    def __init__(self) -> None:
        """Nobody listens."""
        self._listeners: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; the returned function removes it. ConfigError if it cannot be called."""
        if not callable(listener):
            raise ConfigError(f"trace: expected a function, got {listener!r}")
        self._listeners = (*self._listeners, listener)

        def remove() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return remove

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def emit(self, request: str, transactional_id: str | None, **details: Any) -> None:
        """Tell every listener; what one raises is logged, the request is none of its business."""
        for listener in self._listeners:
            try:
                listener({"request": request, "transactional_id": transactional_id, **details})
            except Exception:
                logger.exception("a listener of log.trace failed at %s", request)

    def request(
        self, name: str, transactional_id: str | None, producer_id: int = -1,
        producer_epoch: int = -1, **details: Any,
    ) -> AbstractContextManager[dict[str, Any]]:  # fmt: skip
        """One request: the event goes out when it is answered, with `error` None or the exception.

        The body may put what it answered into the dict that it is given.
        """
        if not self._listeners:
            return _UNHEARD
        details |= {"producer_id": producer_id, "producer_epoch": producer_epoch}
        return self._told(name, transactional_id, details)

    @contextmanager
    def _told(
        self, name: str, transactional_id: str | None, event: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        try:
            yield event
        except BaseException as error:
            self.emit(name, transactional_id, **event, error=error)
            raise
        self.emit(name, transactional_id, **event, error=None)
