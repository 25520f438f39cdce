"""Transaction timeouts, which every process enforces within a second.

Idle and reading processes enforce them too: the owner of a transaction may be suspended, and its
open transaction blocks every read_committed reader. The decision itself is made in `resolver.py`,
with conditional appends, so any number of processes may look at the same time.

`wanted` is called several times a second and costs microseconds: it compares the published ends of
the `__transaction_state` partitions in shared memory with those of the last `look`. Only `look`
reads records. It folds the partitions whose end has changed.

Time is CLOCK_MONOTONIC. If the owner is alive, the machine has not restarted, and the begin is the
one in the transaction's record. Otherwise the time counts from when this process first read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from eoslog.coordinator.host import TransactionHost
from eoslog.coordinator.transactions.log import TransactionLog, TransactionLogs
from eoslog.coordinator.transactions.resolver import Resolver
from eoslog.coordinator.transactions.state import Cause, TransactionMetadata
from eoslog.errors import EoslogError, IllegalState

LOOK_EVERY_S = 0.25
"""Seconds between two calls of `wanted`."""
_OWNERS_EVERY_S = 0.5
"""Seconds between two checks whether the owners of open transactions are alive."""
_DRIVER_S = 0.5
"""Seconds that other processes leave to the decider before they write its markers."""
_FIRST_LOOK_S = 1.0
"""Seconds after its opening when a process first reads what earlier sessions left."""


class Deadlines:
    """Finds overdue transactions. One thread calls `wanted`, and another one `look`."""

    def __init__(
        self,
        host: TransactionHost,
        logs: TransactionLogs,
        resolver: Resolver,
        on_error: Callable[[str, EoslogError], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep the parts; nothing is read."""
        self._host = host
        self._logs = logs
        self._resolver = resolver
        self._on_error = on_error
        self._clock = clock or time.monotonic
        self._seen: list[int] = []
        self._next = self._clock() + _FIRST_LOOK_S
        self._all = False
        self._busy: set[int] = set()
        self._mutex = threading.Lock()

    def wanted(self) -> bool:
        """Whether a transaction may be overdue, or there are unread records."""
        return self._clock() >= self._next or self._seen != self._ends()

    def _ends(self) -> list[int]:
        # Do not read before the first `look`, because many processes run for a moment only.
        return self._host.transaction_ends() if self._all else self._seen

    def look(self, begin: Callable[[str, Callable[[], object]], None]) -> None:
        """Read new records, and begin to end overdue transactions.

        Args:
            begin: runs a call in a thread of the given name. Each partition has its own thread,
                because markers may wait for the lock of a suspended process.
        """
        if not self._all:
            self._logs.all()  # includes transactions of earlier sessions
            self._all = True
        ends = self._host.transaction_ends()
        wait = float("inf")
        for number, end in enumerate(ends):
            if end < 0:
                continue
            try:
                clog = self._logs.at(number)
                clog.refresh()
                wait = min(wait, self._look_at(number, clog, begin))
            except IllegalState:
                raise
            except EoslogError as error:  # a damaged partition must not block the others
                self._on_error(f"__transaction_state-{number}", error)
        self._next = self._clock() + max(wait, 0.0)
        self._seen = ends

    def _look_at(
        self, number: int, clog: TransactionLog, begin: Callable[[str, Callable[[], object]], None]
    ) -> float:
        """Return the seconds until the next look at a partition without appends."""
        opened, undriven = clog.open(), clog.undriven()
        if not opened and not undriven:
            return float("inf")
        left = [clog.seconds_left(metadata) for metadata in opened]
        me = (self._host.process_number, self._host.process_nonce)
        others = {one.owner for one in opened if one.owner is not None} - {me}
        dead = {owner for owner in others if not self._host.process_alive(*owner)}
        suspects = [one for one, s in zip(opened, left, strict=True) if s <= 0 or one.owner in dead]
        causes = [(one, cause) for one in suspects if (cause := self._resolver.due(clog, one))]
        late = [
            one.decided.key for one in undriven if clog.seconds_decided(one.decided.key) > _DRIVER_S
        ]
        if causes or late:
            with self._mutex:
                free = number not in self._busy
                self._busy.add(number)
            if free:
                begin(f"deadline-{number}", lambda: self._end(number, clog, causes, late))
            return _OWNERS_EVERY_S
        wait = max(min(left, default=float("inf")), 0.0) + 0.001
        return min(wait, _OWNERS_EVERY_S) if others or undriven else wait

    def _end(
        self,
        number: int,
        clog: TransactionLog,
        causes: list[tuple[TransactionMetadata, Cause]],
        late: list[tuple[int, int]],
    ) -> None:
        try:
            for metadata, cause in causes:
                try:
                    self._resolver.abort(clog, metadata, cause)
                except IllegalState:
                    raise
                except EoslogError as error:
                    self._on_error(metadata.transactional_id, error)
            for key in late:
                try:
                    self._resolver.drive(clog, key)
                except IllegalState:
                    raise
                except EoslogError as error:
                    self._on_error(f"producer {key[0]}", error)
        finally:
            with self._mutex:
                self._busy.discard(number)
