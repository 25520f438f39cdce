"""Check-back: asks resolvers about prepared transactions that are not decided.

A prepared transaction names its resolver. A process that has registered the resolver asks it when
a check is due, and writes what it answers. The process that prepared asks first, and others
`timeout` plus 1 s later, or immediately if it has exited. If several ask, the first decision
stands.

`wanted` is called several times a second, and costs microseconds. `look` reads what is new, and
starts what is due. A look costs what is new and due, however many transactions wait.

The clock decides, too: it commits a transaction without a resolver at its `deliver_at`. Then it
writes the records, also those of a transaction that its resolver has committed before. This is a
time of day, so it counts on the wall clock. What a process has decided and not delivered, because
it exited, is delivered by another one.

Source: mission rows N02, N06, N07, N10 to N18.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from eoslog._util.arguments import shown
from eoslog._util.closing import Closing
from eoslog.coordinator.checks.check_calls import (
    Describe,
    Parts,
    RegisteredResolver,
    ResolverFunction,
    WriteGate,
)
from eoslog.coordinator.checks.check_policy import CheckPolicy
from eoslog.coordinator.checks.due_times import DueTimes
from eoslog.coordinator.host import TransactionHost
from eoslog.coordinator.transactions.prepared import PreparedTransactions
from eoslog.coordinator.transactions.prepared_records import PreparedEntry
from eoslog.coordinator.transactions.state import PREPARED, TransactionState
from eoslog.errors import (
    ConcurrentTransactions,
    ConfigError,
    EoslogError,
    IllegalState,
    OutcomeConflict,
    UnknownToken,
)
from eoslog.shown_paths import get_logger

logger = get_logger("eoslog.checks")

_FIRST_LOOK_S = 1.0
"""Seconds after its opening when a process without resolvers first looks."""
_CLOSE_S = 60.0
"""The longest wait of `close`, in seconds."""
_DELIVERY_GRACE_S = 0.5
"""Seconds that other processes leave to the one that delivers."""
_DELIVERY_RETRY_S = 1.0
"""Seconds until a failed delivery is tried again; twice as many after each error that is not
retriable, because each try appends and aborts the parts that come before the rejected one."""
_LONGEST_RETRY_S = 60.0
_PREPARE_COMMIT = TransactionState.PREPARE_COMMIT


class Registration(Closing):
    """A registered resolver, which `close` removes.

    Attributes:
        resolver: the resolver; another one after `resume`.
    """

    def __init__(self, checks: Checks, make: Callable[[], RegisteredResolver]) -> None:
        """Keep what creates the resolver, and create it."""
        self.resolver = make()
        self._checks = checks
        self._make = make

    def resume(self) -> None:
        """Create the resolver again, because `end` is final."""
        self.resolver = self._make()

    def close(self) -> None:
        """Ask the resolver nothing more. Answers of running calls are dropped."""
        self._checks.unregister(self)


class Checks:
    """Asks resolvers about prepared transactions. Thread-safe."""

    def __init__(
        self,
        host: TransactionHost,
        prepared: PreparedTransactions,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep the parts; nothing is read.

        Args:
            host: the engine.
            prepared: the prepared transactions of its directory.
            clock: the monotonic clock.
        """
        self._host = host
        self._prepared = prepared
        self._clock = clock or time.monotonic
        self._gate = WriteGate()
        self._parts = Parts(host, prepared, self._gate, self._clock)
        self._mutex = threading.Lock()
        self._looking = threading.Lock()
        self._waiting: dict[str, dict[str, PreparedEntry]] = {}  # by resolver, then token
        self._registered: dict[str, Registration] = {}
        # The registrations that newer ones of the name have replaced, by name, oldest first.
        self._replaced: defaultdict[str, list[weakref.ref[Registration]]] = defaultdict(list)
        # For each half producer of this process, a function of a group and a token: whether the
        # local transaction runs, so that no check of this process may decide.
        self.executing: dict[int, Callable[[str, str], bool]] = {}
        self._deliveries = DueTimes()  # in ms of the wall clock
        self._again = DueTimes()  # overdue and failed deliveries
        self._failing: dict[str, float] = {}  # seconds until the next try
        self._seen: list[int] | None = None
        self._first = self._clock() + _FIRST_LOOK_S

    def register(
        self, name: str, function: ResolverFunction, policy: CheckPolicy, describe: Describe
    ) -> Registration:
        """Ask a function about the transactions that name this resolver.

        It replaces a resolver of the same name until it is unregistered. What is overdue is asked
        about immediately.

        Args:
            name: the resolver's name.
            function: receives a `PreparedTransaction` and returns an `Outcome`.
            policy: when, and how often.
            describe: returns what the function receives, for a token and its record.

        Raises:
            ConfigError: if the name is empty, or the function is not callable.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError(f"register_resolver: name: expected a name, got {shown(name)}")
        if not callable(function):
            raise ConfigError(
                f"register_resolver: fn: expected a function of a PreparedTransaction, got "
                f"{shown(function)}"
            )
        registration = Registration(
            self, partial(RegisteredResolver, name, function, policy, describe, self._parts)
        )
        with self._mutex:
            replaced = self._registered.get(name)
            if replaced is not None:
                replaced.resolver.end()
                self._replaced[name].append(weakref.ref(replaced))
            self._start(registration)
        return registration

    def _start(self, registration: Registration) -> None:
        resolver = registration.resolver
        self._registered[resolver.name] = registration
        for token, entry in self._waiting.get(resolver.name, {}).items():
            resolver.schedule(token, entry)
        self._first = self._clock()

    def unregister(self, registration: Registration) -> None:
        """End a registration.

        A newer one of the same name stays; else an older one continues.
        """
        name = registration.resolver.name
        with self._mutex:
            registration.resolver.end()
            older = [one for ref in self._replaced.pop(name, ()) if (one := ref()) is not None]
            if self._registered.get(name) is registration:
                del self._registered[name]
                if older and not self._gate.closed:
                    older[-1].resume()
                    self._start(older.pop())
            elif registration in older:
                older.remove(registration)
            if older:
                self._replaced[name] = [weakref.ref(one) for one in older]

    # -- the background thread

    def wanted(self) -> bool:
        """Whether there is something new, or something is due."""
        if self._gate.closed:
            return False
        now = self._clock()
        if self._seen is None:  # many processes run for a moment only
            return now >= self._first
        with self._mutex:
            due = self._again.first()
            for one in self._registered.values():
                due = min(due, one.resolver.next_time())
            delivery = self._deliveries.first()
        if now >= due or self._host.clock_ms() >= delivery:
            return True
        return self._seen != self._host.transaction_ends()

    def look(self, begin: Callable[[str, Callable[[], object]], None]) -> None:
        """Read what is new, and start what is due.

        Args:
            begin: runs a call in a thread of the given name, unless that thread is running.
        """
        with self._looking:
            if self._gate.closed:
                return
            seen = self._host.transaction_ends()
            try:
                for token, entry in self._prepared.index.news():
                    self._note(token, entry)
            except IllegalState:
                raise
            except EoslogError as error:  # what is known must be decided all the same
                logger.warning("prepared transactions: not read, retrying later: %s", error)
            self._seen = seen
            with self._mutex:
                registered = list(self._registered.values())
                overdue = self._again.first() <= self._clock()
                overdue = overdue or self._deliveries.first() <= self._host.clock_ms()
            for one in registered:
                one.resolver.step()
            if overdue:
                begin("deliver", self._deliver)

    def _note(self, token: str, entry: PreparedEntry) -> None:
        with self._mutex:
            self._note_delivery(token, entry)
            name = entry.resolver
            if name is None:
                return
            registration = self._registered.get(name)
            if entry.state is PREPARED:
                self._waiting.setdefault(name, {})[token] = entry
                if registration is not None:
                    registration.resolver.schedule(token, entry)
                return
            waiting = self._waiting.get(name, {})
            if waiting.pop(token, None) is not None and not waiting:
                del self._waiting[name]
            if registration is not None:
                registration.resolver.drop(token)

    def _note_delivery(self, token: str, entry: PreparedEntry) -> None:
        self._deliveries.drop(token)
        self._again.drop(token)
        timed = entry.state is PREPARED and entry.resolver is None and entry.deliver_at_ms >= 0
        if not timed and entry.state is not _PREPARE_COMMIT:
            self._failing.pop(token, None)
            return
        if entry.deliver_at_ms <= self._host.clock_ms():
            # The process that decided delivers it, unless it has exited.
            self._again.set(token, self._clock() + _DELIVERY_GRACE_S)
            return
        mine = entry.owner == (self._host.process_number, self._host.process_nonce)
        grace_ms = 0 if mine else int(_DELIVERY_GRACE_S * 1000)
        self._deliveries.set(token, entry.deliver_at_ms + grace_ms)

    def _delivery_due(self) -> str | None:
        with self._mutex:
            token = self._deliveries.pop(self._host.clock_ms())
            return self._again.pop(self._clock()) if token is None else token

    def _deliver(self) -> None:
        """Commit and deliver what the clock says."""
        while (token := self._delivery_due()) is not None:
            with self._gate.entered() as may:
                if not may:
                    return
                problem = self._deliver_one(token)
            if problem is None:
                continue
            due = self._clock() + self._wait_after(token, problem)
            with self._mutex:
                self._again.set(token, due)

    def _wait_after(self, token: str, problem: Exception) -> float:
        """Return the seconds from a failed delivery to its next try."""
        if isinstance(problem, ConcurrentTransactions):
            return _DELIVERY_RETRY_S
        wait = self._failing.get(token)
        if wait is None:
            logger.warning("%s: not delivered, retrying: %s", token, problem)
            wait = _DELIVERY_RETRY_S
        retriable = getattr(problem, "retriable", False)
        self._failing[token] = wait if retriable else min(2 * wait, _LONGEST_RETRY_S)
        return wait

    def _deliver_one(self, token: str) -> Exception | None:
        """Deliver a transaction; return the error after which it must be tried again."""
        try:
            _, entry = self._prepared.index.find(token)
            timed = entry.state is PREPARED and entry.resolver is None
            if timed and not self._prepared.waits(entry):
                self._prepared.resolve(token, True)
            elif not self._prepared.deliver(token):
                with self._mutex:  # the clock was set back since
                    self._note_delivery(token, entry)
        except (OutcomeConflict, UnknownToken):
            pass  # cancelled since
        except Exception as error:
            return error
        return None

    def close(self) -> bool:
        """Ask and write nothing more, and return whether running writes have ended.

        Calls that still run are not waited for; their answers are dropped.
        """
        with self._mutex:
            for one in self._registered.values():
                one.resolver.end()
        return self._gate.close(_CLOSE_S)
