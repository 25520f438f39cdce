"""Calls of a registered resolver, in threads of its own, each with a time limit.

A thread asks about one token at a time, until no token of its resolver is due. So a resolver that
is slow delays no other resolver. What a call means:

| the call | counts as a check | next check |
|---|---|---|
| answers COMMIT or ABORT | - | none: this is the decision |
| answers UNKNOWN | yes, in the log | after `interval * backoff ** n` |
| raises, or answers anything else | no | after `interval` |
| runs longer than `timeout` | no | after `interval`, if it has returned by then |

A call over its time is abandoned, because a thread cannot be stopped: another thread takes its
place, and its late answer is dropped. A token is not asked about while an abandoned call for it
still runs. A resolver never has more than twice `workers` threads. If all of them hang, it asks
nothing more until one returns. A coroutine is cancelled at its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from eoslog._util.arguments import shown
from eoslog.coordinator.checks.check_policy import CheckPolicy
from eoslog.coordinator.checks.due_times import DueTimes
from eoslog.coordinator.host import Host
from eoslog.coordinator.transactions.prepared import PreparedTransactions
from eoslog.coordinator.transactions.prepared_records import PreparedEntry
from eoslog.coordinator.transactions.state import PREPARED
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import (
    ConcurrentTransactions,
    ConfigError,
    EoslogError,
    OutcomeConflict,
    UnknownToken,
)
from eoslog.model import Outcome
from eoslog.shown_paths import get_logger

logger = get_logger("eoslog.checks")

ResolverFunction = Callable[[PreparedTransaction], Outcome | Awaitable[Outcome]]
Describe = Callable[[str, PreparedEntry], PreparedTransaction]
_GRACE_S = 1.0
"""Seconds, beyond `timeout`, that other processes leave to the one that prepared."""
_LOG_AGAIN_S = 3600.0
"""Seconds until a problem of the same kind is logged again."""
_NO_ANSWER = object()
"""The answer of a coroutine that was cancelled at its timeout."""


class WriteGate:
    """Lets threads write until it is closed. Thread-safe."""

    def __init__(self) -> None:
        """Start open."""
        self._changed = threading.Condition()
        self._writing = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether no thread may begin to write any more."""
        return self._closed

    @contextmanager
    def entered(self) -> Iterator[bool]:
        """Whether the block may write; `close` waits for its end."""
        with self._changed:
            may = not self._closed
            self._writing += may
        try:
            yield may
        finally:
            with self._changed:
                self._writing -= may
                self._changed.notify_all()

    def close(self, timeout: float) -> bool:
        """Let no thread begin to write, and return whether all have ended in time."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._writing == 0, timeout)


class _Call:
    """A running call."""

    __slots__ = ("abandoned", "deadline")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.abandoned = False


class Parts(NamedTuple):
    """What the resolvers of a directory share."""

    host: Host
    prepared: PreparedTransactions
    gate: WriteGate
    clock: Callable[[], float]


class RegisteredResolver:
    """A resolver function with its queue and its threads. Thread-safe.

    `step` is called often. It starts threads for what is due, and abandons calls over their time.
    """

    def __init__(
        self,
        name: str,
        function: ResolverFunction,
        policy: CheckPolicy,
        describe: Describe,
        parts: Parts,
    ) -> None:
        """Keep the parts; no thread starts."""
        self.name = name
        self.policy = policy
        self._function = function
        self._describe = describe
        self._host, self._prepared, self._gate, self._clock = parts
        self._mutex = threading.Lock()
        self._due = DueTimes()
        # What the due time of a token was computed from: an entry that has not changed keeps it.
        self._known: dict[str, tuple[int, int]] = {}
        self._left: set[str] = set()  # left once to the living process that prepared them
        self._calls: dict[str, _Call] = {}
        self._threads = 0  # without those of abandoned calls
        self._logged: dict[str, float] = {}
        self._live = True

    # -- the queue

    def schedule(self, token: str, entry: PreparedEntry) -> None:
        """Add an entry, or change its due time if the entry has changed."""
        found = (entry.checks, entry.due_at_ms)
        with self._mutex:
            if self._live and self._known.get(token) != found:
                self._known[token] = found
                self._left.discard(token)
                wait = self.policy.wait(entry, self._host.clock_ms())
                self._due.set(token, self._clock() + wait)

    def drop(self, token: str) -> None:
        """Remove a token that needs no check."""
        with self._mutex:
            self._known.pop(token, None)
            self._left.discard(token)
            self._due.drop(token)

    def end(self) -> None:
        """Ask nothing more; answers of running calls are dropped."""
        self._live = False

    @property
    def _abandoned(self) -> int:
        return sum(call.abandoned for call in self._calls.values())

    def _free(self) -> int:
        """How many more threads may start."""
        most = min(self.policy.workers, 2 * self.policy.workers - self._abandoned)
        return most - self._threads

    def next_time(self) -> float:
        """When `step` must be called next (monotonic clock)."""
        with self._mutex:
            due = self._due.first() if self._free() > 0 else float("inf")
            deadlines = [call.deadline for call in self._calls.values() if not call.abandoned]
            return min(due, *deadlines) if deadlines else due

    def step(self) -> None:
        """Abandon calls over their time, and start threads for what is due."""
        now = self._clock()
        starts: list[str] = []
        with self._mutex:
            late = [
                token
                for token, call in self._calls.items()
                if not call.abandoned and call.deadline <= now
            ]
            for token in late:
                self._calls[token].abandoned = True
                self._threads -= 1
            while self._live and self._free() > 0:
                first = self._due.pop(now)
                if first is None:
                    break
                self._threads += 1
                starts.append(first)
            stuck = self._abandoned >= 2 * self.policy.workers
        for token in late:
            self._retry(token, "timeout", f"no answer within {self.policy.timeout:g} s")
        if stuck and late:
            logger.error(
                "resolver %r: all %d calls hang, asking nothing more until one returns",
                self.name,
                2 * self.policy.workers,
            )
        for token in starts:
            try:
                threading.Thread(
                    target=self._run, args=(token,), name=f"eoslog-check-{self.name}", daemon=True
                ).start()
            except RuntimeError:  # too many threads, or the interpreter shuts down
                with self._mutex:
                    self._threads -= 1
                self._later(token, self.policy.interval)

    # -- one thread

    def _run(self, token: str | None) -> None:
        while token is not None:
            try:
                if not self._check(token):
                    return  # abandoned: another thread has its place
            except EoslogError as error:
                self._retry(token, type(error).__name__, error)
            except Exception as error:
                logger.exception("resolver %r, %s: check failed, retrying", self.name, token)
                self._retry(token, type(error).__name__, error)
            with self._mutex:
                live = self._live and not self._gate.closed
                token = self._due.pop(self._clock()) if live else None
                self._threads -= token is None

    def _check(self, token: str) -> bool:
        """Ask about a token; return False if the call was abandoned."""
        with self._mutex:
            hangs = token in self._calls
        if hangs:
            self._later(token, self.policy.interval)
            return True
        entry = self._current(token)
        if entry is None or self._left_to_its_owner(token, entry):
            return True
        described = self._describe(token, entry)
        call = _Call(self._clock() + self.policy.timeout)
        with self._mutex:
            self._calls[token] = call
        answer = self._ask(described)
        with self._mutex:
            del self._calls[token]
            if call.abandoned:
                return False
        with self._gate.entered() as may:
            if may and self._live:
                self._take(token, entry, answer)
        return True

    def _current(self, token: str) -> PreparedEntry | None:
        """Return the newest entry of a token; one that needs no check is dropped."""
        try:
            _, entry = self._prepared.index.find(token)
        except UnknownToken:
            pass
        else:
            if entry.state is PREPARED:
                return entry
        self.drop(token)
        return None

    def _left_to_its_owner(self, token: str, entry: PreparedEntry) -> bool:
        if entry.owner == (self._host.process_number, self._host.process_nonce):
            return False
        with self._mutex:
            left = token in self._left
            self._left.add(token)
        if left or not self._host.process_alive(*entry.owner):
            return False
        self._later(token, self.policy.timeout + _GRACE_S)
        return True

    def _ask(self, described: PreparedTransaction) -> object:
        """Call the function, and return its answer or its exception."""
        try:
            answer: object = self._function(described)
            if isinstance(answer, Awaitable):
                answer = _run_limited(answer, self.policy.timeout)
        except BaseException as error:  # also SystemExit, which must not end this thread
            return error
        return answer

    # -- answers

    def _take(self, token: str, entry: PreparedEntry, answer: object) -> None:
        if answer is _NO_ANSWER:
            self._retry(token, "timeout", f"no answer within {self.policy.timeout:g} s")
        elif isinstance(answer, BaseException):
            self._retry(token, type(answer).__name__, answer)
        elif not isinstance(answer, Outcome):
            wrong = ConfigError(
                f"resolver {self.name!r}: expected an eoslog.Outcome, got {shown(answer)}; return "
                "Outcome.COMMIT, Outcome.ABORT or Outcome.UNKNOWN"
            )
            self._retry(token, "answer", wrong)
        elif answer is Outcome.UNKNOWN:
            self._count(token, entry)
        else:
            self._decide(token, answer is Outcome.COMMIT)

    def _count(self, token: str, entry: PreparedEntry) -> None:
        """Write an answer UNKNOWN to the log."""
        policy, checks = self.policy, entry.checks + 1
        exhausted = checks >= policy.max_checks
        if exhausted and policy.on_exhausted != "park":
            self._decide(token, policy.on_exhausted == "commit")
            return
        delay = policy.delay(checks)
        due_at_ms = self._host.clock_ms() + int(delay * 1000)
        with self._mutex:
            # Before the write, because the background thread may read the record before it returns.
            self._known[token] = (checks, due_at_ms)
            self._left.discard(token)
            self._due.set(token, self._clock() + delay)
        if not self._prepared.note_check(token, entry, checks, due_at_ms, parked=exhausted):
            self.drop(token)  # another process was faster
            current = self._current(token)
            if current is not None:
                self.schedule(token, current)
        elif exhausted:
            self.drop(token)
            logger.warning(
                "%s: parked after %d checks of resolver %r without a decision, waiting for "
                "log.resolve or log.recheck",
                token,
                checks,
                self.name,
            )

    def _decide(self, token: str, commit: bool) -> None:
        try:
            self._prepared.resolve(token, commit)
        except OutcomeConflict as error:
            logger.error(
                "%s: resolver %r answered %s, keeping the first decision: %s",
                token,
                self.name,
                "COMMIT" if commit else "ABORT",
                error,
            )
        except ConcurrentTransactions:
            if self._current(token) is not None:
                raise  # not decided, because the transaction log changed all the time
        except UnknownToken:
            pass  # decided and expired since
        self.drop(token)

    def _later(self, token: str, seconds: float) -> None:
        with self._mutex:
            if self._live and token in self._known:
                self._due.set(token, self._clock() + seconds)

    def _retry(self, token: str, kind: str, problem: object) -> None:
        """Ask again after `interval`. A problem is logged once for each kind and hour."""
        if self._gate.closed:
            return
        self._later(token, self.policy.interval)
        now = self._clock()
        with self._mutex:
            if now < self._logged.get(kind, now):
                return
            self._logged[kind] = now + _LOG_AGAIN_S
        raised = isinstance(problem, BaseException)
        logger.warning(
            "%s: resolver %r did not decide, asking again in %g s: %s",
            token,
            self.name,
            self.policy.interval,
            f"{type(problem).__name__}: {problem}" if raised else problem,
        )


def _run_limited(answer: Awaitable[object], timeout: float) -> object:
    import asyncio  # most programs do not need it

    async def limited() -> object:
        task = asyncio.ensure_future(answer)
        await asyncio.wait({task}, timeout=timeout)
        return task.result() if task.done() else _NO_ANSWER  # `asyncio.run` cancels it

    return asyncio.run(limited())
