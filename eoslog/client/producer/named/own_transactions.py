"""Transactions that a named producer begins and commits automatically.

The first record begins one. It is committed after `linger.ms` by a thread, or in `flush` and
`close`. A transaction that failed is not repeated: a higher publishing id must not be stored before
a lower one that failed. So the producer then accepts no more records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Protocol

from eoslog._util.locks import call_alone
from eoslog.client.producer.delivery import Callbacks, Delivery, OnDelivery
from eoslog.client.producer.transactions.manager import (
    PREDECESSORS,
    ClientState,
    TransactionManager,
)
from eoslog.errors import (
    DeliveryTimeout,
    EoslogError,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFenced,
    RequestTimedOut,
)
from eoslog.model import RecordMetadata
from eoslog.shown_paths import get_logger

__all__ = ["NamedClient", "OwnTransactions"]

logger = get_logger("eoslog.client.named_producer")

_ABORTABLE = PREDECESSORS[ClientState.ABORTING]
_ABORT_S = 1.0  # the next producer of the name aborts what this one could not
_AGAIN_S = 0.1
_LOST = (InvalidProducerEpoch, InvalidTxnState, ProducerFenced)
"""After another producer took over the name, or while it does (Kafka's EndTxn)."""


class NamedClient(Protocol):
    """The part of a `NamedProducer` that its own transactions use."""

    @property
    def name(self) -> str:
        """The producer's name."""
        ...

    @property
    def produced(self) -> int:
        """The number of records that were buffered since the producer was created."""
        ...

    @property
    def _ended(self) -> bool:
        """Whether the producer is closed, or was inherited through fork."""
        ...

    def _take_over(self) -> None:
        """Initialize the name."""
        ...

    def _begin(self) -> None:
        """Begin a transaction."""
        ...

    def _commit(self, deadline: float) -> None:
        """Commit the records and their ids."""
        ...

    def _give_up(self, timeout: float | None) -> None:
        """Accept no records; abort the transaction, unless `timeout` is None."""
        ...

    def _end_of_wait(self) -> float:
        """The end of a wait of `max.block.ms` that begins now."""
        ...


class OwnTransactions:
    """The open transaction, its deliveries, and the thread that commits it.

    The producer's lock guards it, except `told`, `wake`, `commit_now` and `end`.

    Invariants:
        - `_held`: of each record of the open transaction with a callback: the callback, the
          delivery of the append, and what is known of its place. Of a duplicate of such a record:
          None instead of the delivery.
        - `broken`: why no more records are accepted, or None.
        - `untold`: the same, if a record failed that has no callback; for the next `flush`.
    """

    def __init__(
        self, producer: NamedClient, manager: TransactionManager, lock: threading.RLock,
        linger_s: float, delivery_s: float,
    ) -> None:  # fmt: skip
        """Begin nothing; the thread starts with the first record."""
        self._producer = producer
        self._manager = manager
        self._lock = lock
        self._linger_s = linger_s
        self._delivery_s = delivery_s
        self._held: deque[tuple[OnDelivery, Delivery | None, RecordMetadata]] = deque()
        self.told = Callbacks()
        self.broken: EoslogError | None = None
        self.untold: EoslogError | None = None
        self._begun = 0.0
        self._settled = 0  # records that were buffered before the transaction
        self._changed = threading.Condition(threading.Lock())
        self._due: float | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        self._alone = False  # a start of the thread has failed

    @property
    def unsettled(self) -> int:
        """The number of records in the open transaction."""
        return self._producer.produced - self._settled

    # Records.

    def enter(self) -> None:
        """Make sure that a transaction is open.

        Raises:
            ProducerFenced: if another producer took over the name.
            IllegalState: if a record failed before.
            EoslogError: if the name cannot be taken over, or a commit that timed out did not end.
        """
        manager = self._manager
        self._check_broken()
        if manager.state is ClientState.UNINITIALIZED:
            self._producer._take_over()
        elif manager.error is not None:
            self.fail(manager.error)
            self._check_broken()
        elif manager.state is not ClientState.IN_TRANSACTION:
            self.commit(self._producer._end_of_wait())  # one that timed out or was interrupted
        if manager.state is ClientState.READY:
            self._settled = self._producer.produced
            self._begun = time.monotonic()
            self._producer._begin()

    def _check_broken(self) -> None:
        if type(self.broken) is ProducerFenced:
            raise self.broken
        if self.broken is not None:
            raise IllegalState(
                f"producer name {self._producer.name!r}: an earlier record failed "
                f"({self.broken}); close the producer, create it again, and continue after "
                "log.last_publishing_id()"
            ) from self.broken

    def hold(self, target: OnDelivery, place: RecordMetadata) -> Delivery:
        """Keep a record's callback until the commit; return the delivery of its append."""
        appended = Delivery()
        self._held.append((target, appended, place))
        return appended

    def drop_last(self) -> None:
        """Forget the callback of the last record, which was not buffered."""
        self._held.pop()

    def hold_duplicate(self, target: OnDelivery, place: RecordMetadata) -> None:
        """Report a duplicate of a record of the open transaction, when that is committed."""
        self._held.append((target, None, place))

    # The end of a transaction.

    def commit(self, deadline: float) -> None:
        """Commit the open transaction, and report its deliveries.

        Raises:
            RequestTimedOut: if the commit has not ended; call it again.
            EoslogError: if the transaction failed, with all its records.
        """
        manager = self._manager
        if self.broken is not None or manager.state is ClientState.UNINITIALIZED:
            return
        try:
            if manager.state is not ClientState.READY:  # else an interrupt came after the commit
                self._producer._commit(deadline)
        except RequestTimedOut as error:
            if time.monotonic() - self._begun < self._delivery_s:
                raise
            late = DeliveryTimeout(
                f"producer name {self._producer.name!r}: {self.unsettled} records not committed "
                f"within delivery.timeout.ms = {self._delivery_s * 1000:.0f}; their outcome is "
                "unknown"
            )
            self.fail(late)
            raise late from error
        except EoslogError as error:
            broken = self.fail(error)
            raise broken from broken.__cause__
        self._settle(None)

    def fail(self, error: EoslogError) -> EoslogError:
        """Accept no more records, and let those of the open transaction fail.

        Returns:
            The error that they get.
        """
        if type(error) in _LOST:
            fenced = ProducerFenced(f"producer name {self._producer.name!r}: {error}")
            fenced.__cause__, error = error, fenced
        self.broken = error
        abortable = self._manager.state in _ABORTABLE
        with contextlib.suppress(EoslogError):
            self._producer._give_up(_ABORT_S if abortable else None)
        if sum(appended is not None for _, appended, _ in self._held) < self.unsettled:
            self.untold = error
        self._settle(error)
        return error

    def _settle(self, error: EoslogError | None) -> None:
        while self._held:
            target, appended, place = self._held[0]
            if appended is None or error is not None:
                self.told.put(target, error, place)
            elif appended.done():  # else an interrupt came before it was buffered
                self.told.put(target, None, appended.result())
            self._held.popleft()
        self._settled = self._producer.produced

    def commit_now(self, deadline: float | None) -> bool:
        """Try to commit; return whether the outcome is not known yet.

        Args:
            deadline: on the monotonic clock, in seconds; None waits for `max.block.ms`.
        """
        wait_s = -1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        return call_alone(self._lock, wait_s, lambda: self._commit_once(deadline), True)

    def _commit_once(self, deadline: float | None) -> bool:
        try:
            if not self._producer._ended:
                self.commit(self._producer._end_of_wait() if deadline is None else deadline)
        except RequestTimedOut:
            return True
        except EoslogError:
            pass  # reported to the records
        return False

    def commit_until(self, deadline: float | None) -> None:
        """Commit repeatedly until the outcome is known or the deadline passes."""
        while self.commit_now(deadline):
            if deadline is not None and time.monotonic() >= deadline:
                return

    def close(self, deadline: float | None) -> None:
        """Commit until the deadline, and let the rest fail."""
        self.end()
        self.told.end()
        self.commit_until(deadline)
        with self._lock:
            if self.broken is None and (self.unsettled or self._held):
                late = IllegalState(
                    "the producer was closed before this record was committed; call flush() or "
                    "close() without a timeout"
                )
                self.fail(late)

    # The thread.

    def wake(self) -> None:
        """Let the thread commit when `linger.ms` has passed since the transaction began."""
        if self._due is None:
            self._wake_at(self._begun + self._linger_s)

    def _wake_at(self, due: float) -> None:
        with self._changed:
            self._due = due
            if self._thread is not None or self._ended or self._start():
                self._changed.notify()
                return
            self._due = None
        self.commit_now(None)

    def _start(self) -> bool:
        """Start the thread; return False if it cannot start."""
        name = f"eoslog-committer {self._producer.name}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._alone:
                logger.warning("%s: cannot start (%s); calls commit instead", name, error)
            self._alone = True
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while self._wait():
            try:
                if self.commit_now(None):
                    self._wake_at(time.monotonic() + _AGAIN_S)
            except Exception:
                logger.exception("producer name %r: commit failed", self._producer.name)

    def _wait(self) -> bool:
        """Wait until a commit is due; return False at the end."""
        with self._changed:
            while not self._ended:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    self._due = None
                    return True
                self._changed.wait(left)
            return False

    def end(self) -> None:
        """End the thread, without a wait: it may need a lock that the caller holds."""
        with self._changed:
            self._ended = True
            self._changed.notify()
