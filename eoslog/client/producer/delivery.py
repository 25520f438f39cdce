"""Results of produced records: futures, and callbacks that wait for a poll."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from eoslog._util.arguments import as_seconds
from eoslog._util.event_loops import signal
from eoslog.errors import DeliveryTimeout, EoslogError, IllegalState
from eoslog.model import RecordMetadata
from eoslog.shown_paths import get_logger

__all__ = ["Callbacks", "Delivery", "OnDelivery"]

logger = get_logger("eoslog.client.delivery")

OnDelivery = Callable[[EoslogError | None, RecordMetadata], Any]


_ADDING = threading.Lock()
"""Held to register a waiter. The sender thread never takes it."""
_forks = 0
"""The number of forks from the first process to this one."""


def _after_fork() -> None:
    global _ADDING, _forks
    _ADDING = threading.Lock()  # another thread of the parent may have held the inherited one
    _forks += 1


os.register_at_fork(after_in_child=_after_fork)


class Delivery:
    """The pending result of one record, returned by `Producer.send`.

    Thread-safe. A coroutine can await it::

        with eoslog.open("shop") as log, log.producer() as producer:
            delivery = producer.send("orders", value="3 apples", key="ada")
            print(delivery.result(timeout=10).offset)
    """

    __slots__ = ("_done", "_error", "_forks", "_metadata", "_waiters")

    def __init__(self) -> None:
        """Start without a result."""
        self._done = False
        self._error: EoslogError | None = None
        self._forks = _forks
        self._metadata: RecordMetadata | None = None
        self._waiters: deque[Callable[[Delivery], object]] | None = None

    def __call__(self, error: EoslogError | None, metadata: RecordMetadata) -> None:
        """Set the result; the sender calls this once."""
        self._error = error
        self._metadata = metadata
        self._done = True
        if self._waiters is not None:
            self._notify()

    def __repr__(self) -> str:
        if not self._done:
            return "<Delivery, pending>"
        if self._error is not None:
            return f"<Delivery, {type(self._error).__name__}: {self._error}>"
        place = self._metadata
        assert place is not None
        return f"<Delivery, {place.topic}-{place.partition} at offset {place.offset}>"

    def __getstate__(self) -> object:
        """Refuse a copy before the result is known, because no sender would complete it."""
        if not self._done:
            raise TypeError(
                "cannot copy or pickle a pending Delivery; call result() in the process that sent "
                "the record, and pass on what it returns"
            )
        return super().__getstate__()

    @property
    def token(self) -> str | None:
        """The token of a record with `deliver_at`; None for other records.

        `Log.resolve` cancels the record by it.
        """
        return None

    def done(self) -> bool:
        """Return whether the record was delivered or failed."""
        return self._done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the delivery and return where the record is stored.

        Args:
            timeout: the longest wait in seconds; None waits for the producer's
                `delivery.timeout.ms`.

        Returns:
            Topic, partition, offset and timestamp of the record.

        Raises:
            DeliveryTimeout: if there is no result within `timeout`. Calling again is safe.
            IllegalState: in a forked child, which never gets a result that its parent waits for.
            EoslogError: if the record was not delivered; the error says why.
        """
        if not self._done:
            if timeout is not None:
                timeout = as_seconds("timeout", timeout)
            waiter = threading.Event()
            self._when_known(lambda _: waiter.set())
            if not waiter.wait(timeout):
                raise DeliveryTimeout(
                    f"delivery: no acknowledgement within {timeout:g} s; call result() again",
                    retriable=True,
                )
        if self._error is not None:
            raise self._error
        assert self._metadata is not None
        return self._metadata

    def exception(self, timeout: float | None = None) -> EoslogError | None:
        """Wait for the delivery and return its error, or None if it succeeded.

        Args:
            timeout: the longest wait in seconds; None waits for the producer's
                `delivery.timeout.ms`.

        Raises:
            DeliveryTimeout: if there is no result within `timeout`. Calling again is safe.
        """
        try:
            self.result(timeout)
        except EoslogError as error:
            if error is not self._error:
                raise
        return self._error

    def _when_known(self, fn: Callable[[Delivery], object]) -> None:
        """Call `fn` once when the result is known, which may be immediately.

        The sender thread calls `fn` in the middle of a cycle, so `fn` must not call the producer.

        Raises:
            IllegalState: in a forked child, to which the sender thread does not belong.
        """
        if self._forks != _forks:
            raise IllegalState(
                "the delivery was inherited through fork; wait for it in the parent process"
            )
        with _ADDING:
            if self._waiters is None:
                self._waiters = deque()
            self._waiters.append(fn)
        # The result may have come before the waiter was added: then only this thread sees it.
        if self._done:
            self._notify()

    def _notify(self) -> None:
        assert self._waiters is not None
        while True:
            try:
                waiter = self._waiters.popleft()  # atomic: each waiter is called by one thread
            except IndexError:
                return
            waiter(self)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait like `result`, in a coroutine.

        The event loop is asyncio, or trio with the extra `[async]`. Cancelling the wait does not
        cancel the record.
        """
        if not self._done:
            known = signal("delivery")
            self._when_known(lambda _: known.set())
            yield from known.wait().__await__()
        return self.result()


class Callbacks:
    """Callbacks in the order of their records, run only by the threads that poll."""

    def __init__(self) -> None:
        """Start with an empty queue."""
        self._queue: deque[tuple[OnDelivery, EoslogError | None, RecordMetadata]] = deque()
        self._arrived = threading.Event()
        self._ended = False

    def put(self, target: OnDelivery, error: EoslogError | None, metadata: RecordMetadata) -> None:
        """Queue the callback of a delivery; a `Delivery` gets its result immediately."""
        if type(target) is Delivery:
            target(error, metadata)
            return
        self._queue.append((target, error, metadata))
        self._arrived.set()

    def serve(self) -> int:
        """Run the queued callbacks; if one raises, the rest stay queued."""
        served = 0
        while self._queue:
            target, error, metadata = self._queue.popleft()
            served += 1
            target(error, metadata)
        return served

    def serve_all(self) -> None:
        """Run all queued callbacks, then raise the first exception of them."""
        first: Exception | None = None
        while self._queue:
            try:
                self.serve()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    logger.warning("another delivery callback failed, continuing: %r", error)
        if first is not None:
            raise first

    def wait(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for a callback, or for `end`."""
        self._arrived.clear()
        if not self._queue and not self._ended:
            self._arrived.wait(timeout)

    def end(self) -> None:
        """End the current wait and prevent later ones, because the producer closes."""
        self._ended = True
        self._arrived.set()
