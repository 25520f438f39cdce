"""One seeded scheduler and clock: processes that are threads with one baton.

The real code runs on top of it. Each simulated process is a thread with its own engine,
descriptors, locks and mapping. Only the one that holds the baton runs. The world may act at
every call through the OS-call table, at every failpoint, clock reading and sleep. It may let
time pass, pass the baton, kill a process, or stop everything. All choices come from one
generator, so a seed determines a run. `trace` is a digest of every step, equal for equal seeds.

A killed process keeps its thread, which unwinds without touching anything. Its descriptors
become /dev/null (which frees its locks, as the kernel does), its mapping becomes a private
copy, and every call of its table fails.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.machine.disk import Disk

_SHOWN = open(os.environ["EOSLOG_SIM_TRACE"], "w") if "EOSLOG_SIM_TRACE" in os.environ else None


class Killed(BaseException):
    """The simulated process is dead; nothing of eoslog catches this."""


class Hang(Exception):
    """A run took more steps than any correct one."""


@dataclass(eq=False)
class Process:
    """A simulated process."""

    name: str
    body: Callable[[], None]
    gate: threading.Lock = field(default_factory=threading.Lock)
    wake_ns: int = 0
    awaits: Callable[[], bool] | None = None  # true when what it sleeps for has come early
    dead: bool = False
    done: bool = False
    error: BaseException | None = None
    back_to: Process | None = None  # the process that killed it, which resumes when it has unwound
    fds: set[int] = field(default_factory=set)
    maps: list[tuple[int, int]] = field(default_factory=list)
    segments: list[Any] = field(
        default_factory=list
    )  # weak references to what has descriptors of its own
    engines: dict[object, object] = field(default_factory=dict)  # its `eoslog.registry._open`
    engines_mutex: object = field(default_factory=threading.Lock)


@dataclass
class Faults:
    """What goes wrong besides crashes; probabilities of one call."""

    switch: float = 0.15  # probability that the baton passes on
    writeback: float = 0.02  # probability that the kernel writes a dirty page
    short: float = 0.0  # a write takes less than it was given
    kill: float = 0.0  # some process dies
    deadly: str = ""  # a process that comes to this failpoint dies there, one time in five
    call: str = ""  # this call ...
    nth: int = 0  # ... fails at its nth time,
    error: int = 0  # ... with this errno,
    for_good: bool = False  # ... and from then on
    then_crash: int = 0  # so many steps later everything dies
    seen: int = 0
    hit: int = 0
    calls: Counter[str] = field(default_factory=Counter)


class World:
    """The scheduler, the clock and the disk of one run."""

    def __init__(self, rng: Random, disk: Disk, faults: Faults | None = None) -> None:
        """Nothing runs yet."""
        self.rng = rng
        self.disk = disk
        self.faults = faults or Faults()
        self.clock_ns = 1_000_000_000_000
        self.wall_ns = 1_700_000_000_000_000_000
        self.steps = 0
        self.crash_at = -1  # step before which everything dies
        self.step_limit = 200_000
        self.crashed = False
        self.current: Process | None = None
        self.processes: list[Process] = []
        self.fds: dict[int, object] = {}  # descriptor -> its node
        self.trace = hashlib.blake2b(digest_size=16)
        self.on_switch: Callable[[Process], None] = lambda process: None
        self.on_kill: Callable[[Process], None] = lambda process: None
        self.on_end: Callable[[Process], None] = lambda process: None
        self.kept: list[object] = []
        self.reads = False  # whether reads are steps, too
        self.sampler: Callable[[], None] | None = None
        self._main = threading.Lock()
        self._main.acquire()

    @property
    def now_ms(self) -> int:
        """The wall clock."""
        return (self.wall_ns + self.clock_ns) // 1_000_000

    # -- running ------------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], None]) -> Process:
        """A new process; it runs when the scheduler picks it."""
        process = Process(name, body)
        process.gate.acquire()
        self.processes.append(process)
        threading.Thread(target=self._live, args=(process,), daemon=True).start()
        return process

    def _live(self, process: Process) -> None:
        process.gate.acquire()
        try:
            if not process.dead:
                process.body()
        except Killed:
            pass
        except BaseException as error:
            if not process.dead:
                process.error = error
        self._finish(process)

    def _finish(self, process: Process) -> None:
        if not process.dead:
            self.on_end(process)  # a process that ends releases everything
        process.done = True
        if process.back_to is not None:
            self._give(process.back_to)
            return
        following = self._next()
        if following is None:
            self.current = None
            self._main.release()
        else:
            self._give(following)

    def run(self) -> None:
        """Run every process to its end (or the crash); the caller is the main thread."""
        following = self._next()
        if following is not None:
            self._give(following)
            self._main.acquire()
        for process in self.processes:
            if process.error is not None:
                raise process.error
        self.processes.clear()

    def raise_kept(self) -> None:
        """Raise what went wrong in a C frame."""
        for problem in self.kept:
            if isinstance(problem, BaseException):
                raise problem

    def _give(self, process: Process) -> None:
        self.current = process
        self.on_switch(process)
        process.gate.release()

    def _next(self) -> Process | None:
        """Whose turn it is; the clock moves on when all sleep."""
        alive = [p for p in self.processes if not p.done]
        if not alive:
            return None
        ready = [
            p for p in alive if p.dead or p.wake_ns <= self.clock_ns or (p.awaits and p.awaits())
        ]
        if not ready:
            self.clock_ns = min(p.wake_ns for p in alive)
            ready = [p for p in alive if p.wake_ns <= self.clock_ns]
        chosen = self.rng.choice(ready)
        chosen.wake_ns, chosen.awaits = 0, None
        return chosen

    def _yield(self, me: Process) -> None:
        following = self._next()
        if following is None or following is me:
            return
        self._give(following)
        me.gate.acquire()

    # -- what processes call -------------------------------------------------------------------------

    def step(self, what: str, detail: object = "") -> bool:
        """One call is about to be made; False where its caller is dead (now)."""
        me = self.current
        if me is None:
            return True
        if me.dead:
            return False
        self.steps += 1
        self.note(f"{me.name} {what} {detail}")
        self.clock_ns += self.rng.randrange(200, 20_000)
        if self.steps == self.crash_at:
            self.crash()
            return False
        if self.steps > self.step_limit:
            self.crash()
            me.error = Hang(f"O7 {self.steps} steps; the last was {what} {detail} of {me.name}")
            return False
        if self.faults.writeback and self.rng.random() < self.faults.writeback:
            dirty = self.disk.files()
            if dirty:
                self.rng.choice(dirty).writeback(self.rng)
        if self.sampler is not None:
            self.sampler()
        if self.faults.kill and self.rng.random() < self.faults.kill:
            self.kill(self.rng.choice([p for p in self.processes if not p.done and not p.dead]))
            if me.dead:
                return False
        if what == "failpoint" and detail == self.faults.deadly and self.rng.random() < 0.2:
            self.kill(me)
        if len(self.processes) > 1 and self.rng.random() < self.faults.switch:
            self._yield(me)
        return not me.dead

    def note(self, line: str) -> None:
        """Put a line into the trace; EOSLOG_SIM_TRACE names a file that shows them."""
        self.trace.update(line.encode() + b"\n")
        if _SHOWN is not None:
            print(self.steps, line, file=_SHOWN)

    def alive(self) -> None:
        """Raise Killed in a process that is dead: before anything is noted in its name."""
        if self.current is not None and self.current.dead:
            raise Killed

    def sleep(self, ns: int, awaits: Callable[[], bool] | None = None) -> None:
        """The caller sleeps; others run, or the clock jumps."""
        me = self.current
        if me is None:
            self.clock_ns += max(ns, 1)
            self.steps += 1
            if self.steps > self.step_limit:
                raise Hang(f"O7 {self.steps} sleeps of a process that is alone")
            return
        if not self.step("sleep"):
            return
        me.wake_ns, me.awaits = self.clock_ns + max(ns, 1), awaits
        self._yield(me)

    # -- death ---------------------------------------------------------------------------------------

    def kill(self, victim: Process) -> None:
        """SIGKILL: its locks are free and it does nothing any more."""
        self.note(f"kill {victim.name}")
        victim.dead = True
        self.on_end(victim)
        self.on_kill(victim)
        me = self.current
        if me is not None and victim is not me:
            victim.back_to = me
            self._give(victim)
            me.gate.acquire()

    def crash(self) -> None:
        """Everything stops here: the power, or all processes."""
        self.crashed = True
        for process in self.processes:
            if not process.done and not process.dead:
                process.dead = True
                self.on_end(process)
