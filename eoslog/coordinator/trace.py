"""Events about requests for listeners; without a listener, no event is created."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError
from eoslog.shown_paths import get_logger

logger = get_logger("eoslog.trace")

TraceListener = Callable[[dict[str, Any]], None]


class _Untraced(AbstractContextManager[dict[str, Any]]):
    """A request without listeners."""

    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(self, *_: object) -> None:
        pass


_UNTRACED = _Untraced()


class Trace:
    """A list of listeners, which is replaced as a whole when one is added or removed."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._listeners: tuple[TraceListener, ...] = ()

    def add(self, listener: TraceListener) -> Callable[[], None]:
        """Add a listener, and return a function that removes it.

        Raises:
            ConfigError: if the listener is not callable.
        """
        if not callable(listener):
            raise ConfigError(f"trace: expected a function, got {shown(listener)}")
        self._listeners = (*self._listeners, listener)

        def remove() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return remove

    @property
    def heard(self) -> bool:
        """Whether there is a listener."""
        return bool(self._listeners)

    def emit(self, request: str, transactional_id: str | None, **details: Any) -> None:
        """Call every listener; an exception is logged and does not affect the request."""
        for listener in self._listeners:
            try:
                listener({"request": request, "transactional_id": transactional_id, **details})
            except Exception:
                logger.exception("%s: a listener of log.trace failed, continuing", request)

    def request(
        self, name: str, transactional_id: str | None, producer_id: int = -1,
        producer_epoch: int = -1, **details: Any,
    ) -> AbstractContextManager[dict[str, Any]]:  # fmt: skip
        """Emit an event when the `with` block ends; its `error` is None or the exception.

        The block can add its results to the dict that it gets.
        """
        if not self._listeners:
            return _UNTRACED
        details |= {"producer_id": producer_id, "producer_epoch": producer_epoch}
        return self._traced(name, transactional_id, details)

    @contextmanager
    def _traced(
        self, name: str, transactional_id: str | None, event: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        try:
            yield event
        except BaseException as error:
            self.emit(name, transactional_id, **event, error=error)
            raise
        self.emit(name, transactional_id, **event, error=None)
