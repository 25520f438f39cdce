"""What becomes of a record: futures that resolve by themselves, callbacks that wait to be run."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from eoslog.arguments import as_seconds
from eoslog.errors import DeliveryTimeout, EoslogError
from eoslog.model import RecordMetadata

__all__ = ["Callbacks", "Delivery", "OnDelivery"]

logger = logging.getLogger("eoslog.client.delivery")

OnDelivery = Callable[[EoslogError | None, RecordMetadata], Any]


_ADDING = threading.Lock()
"""Held while somebody is added to those who wait: whoever sends never takes it."""


class Delivery:
    """The fate of one record sent with `Producer.send`. Thread-safe; asyncio may await it."""

    __slots__ = ("_done", "_error", "_metadata", "_waiters")

    def __init__(self) -> None:
        """Make one that is not resolved yet."""
        self._done = False
        self._error: EoslogError | None = None
        self._metadata: RecordMetadata | None = None
        self._waiters: deque[Callable[[Delivery], object]] | None = None

    def __call__(self, error: EoslogError | None, metadata: RecordMetadata) -> None:
        """Resolve it; called once by the sender."""
        self._error = error
        self._metadata = metadata
        self._done = True
        if self._waiters is not None:
            self._tell()

    def __repr__(self) -> str:
        if not self._done:
            return "<Delivery, pending>"
        if self._error is not None:
            return f"<Delivery, {type(self._error).__name__}: {self._error}>"
        place = self._metadata
        assert place is not None
        return f"<Delivery, {place.topic}-{place.partition} at offset {place.offset}>"

    def done(self) -> bool:
        """Whether the record's fate is known."""
        return self._done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the record's place.

        Args:
            timeout: seconds; None to wait for as long as delivery.timeout.ms lets the record live.

        Raises:
            DeliveryTimeout: not known within `timeout`; asking again is safe.
            EoslogError: why the record was not delivered.
        """
        if not self._done:
            if timeout is not None:
                timeout = as_seconds("timeout", timeout)
            waiter = threading.Event()
            self._when_known(lambda _: waiter.set())
            if not waiter.wait(timeout):
                raise DeliveryTimeout(f"no acknowledgement within {timeout:g} s", retriable=True)
        if self._error is not None:
            raise self._error
        assert self._metadata is not None
        return self._metadata

    def exception(self, timeout: float | None = None) -> EoslogError | None:
        """Wait, and return the error instead of raising it."""
        try:
            self.result(timeout)
        except EoslogError as error:
            if error is not self._error:
                raise
        return self._error

    def _when_known(self, fn: Callable[[Delivery], object]) -> None:
        """Have `fn` called once, at once if it is known already; it must call nothing of ours:
        the thread that sends calls it, in the middle of its work.
        """
        with _ADDING:
            if self._waiters is None:
                self._waiters = deque()
            self._waiters.append(fn)
        # Resolved before the append: nobody else would look.
        if self._done:
            self._tell()

    def _tell(self) -> None:
        assert self._waiters is not None
        while True:
            try:
                waiter = self._waiters.popleft()  # each by one thread only
            except IndexError:
                return
            waiter(self)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """As `result`, in a coroutine; to cancel it leaves the record on its way."""
        if not self._done:
            import asyncio  # whoever awaits has it

            loop = asyncio.get_running_loop()
            known = loop.create_future()

            def resolve() -> None:
                if not known.done():  # cancelled
                    known.set_result(None)

            def wake(_: Delivery) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits
                    loop.call_soon_threadsafe(resolve)

            self._when_known(wake)
            yield from known
        return self.result()


class Callbacks:
    """Callbacks in the order of their records, run only by the threads that poll."""

    def __init__(self) -> None:
        """Make an empty queue."""
        self._queue: deque[tuple[OnDelivery, EoslogError | None, RecordMetadata]] = deque()
        self._arrived = threading.Event()

    def put(self, target: OnDelivery, error: EoslogError | None, metadata: RecordMetadata) -> None:
        """Note a delivery; a `Delivery` resolves at once."""
        if type(target) is Delivery:
            target(error, metadata)
            return
        self._queue.append((target, error, metadata))
        self._arrived.set()

    def serve(self) -> int:
        """Run what is queued. An error raised by a callback leaves the rest queued."""
        served = 0
        while self._queue:
            target, error, metadata = self._queue.popleft()
            served += 1
            target(error, metadata)
        return served

    def serve_all(self) -> None:
        """Run all that is queued; what the first of them raised is raised behind the last."""
        first: Exception | None = None
        while self._queue:
            try:
                self.serve()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    logger.warning("one more delivery callback failed: %r", error)
        if first is not None:
            raise first

    def wait(self, timeout: float) -> None:
        """Wait (s) until there is something to serve."""
        self._arrived.clear()
        if not self._queue:
            self._arrived.wait(timeout)
