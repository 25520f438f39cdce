"""One seed, one run: process runs, crashes, recoveries and checks.

run      a directory on a simulated disk, and one model of what was promised
life     one to three processes work until they are done, or everything stops
crash    all processes die; the power is lost with them or not
recovery one process opens everything; it may crash too, three deep
look     by an undisturbed process: the oracles, and live state = replayed state
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from eoslog.errors import EoslogError
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from tests.simulation.fates import Fates
from tests.simulation.machine import seam
from tests.simulation.machine.disk import Disk, Image
from tests.simulation.machine.world import Faults, Process, World
from tests.simulation.oracles import oracle
from tests.simulation.oracles.model import Model, Place
from tests.simulation.workloads.workload import TOPICS, Client

ROOT = "/dev/shm" if os.path.isdir("/dev/shm") else None
_STEPS_OF_A_COMMIT = ("", "txn.prepared", "txn.durable", "txn.decided", "txn.marked")


@dataclass
class Report:
    """What a number of runs found."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    trace: str = ""

    def add(self, other: Report) -> None:
        self.counts.update(other.counts)
        self.violations += other.violations

    def line(self) -> str:
        """The live line."""
        c = self.counts
        return (
            f"{c['seeds']} seeds, {c['crashes']} crashes ({c['power cuts']} power cuts, {c['nested']} in recovery, "
            f"{c['kills']} single kills), {c['looks']} looks, {c['steps']} steps, {c['committed']} commits, "
            f"{len(self.violations)} violations"
        )


@dataclass(frozen=True)
class Plan:
    """What a run does; a seed draws from it."""

    lives: int = 4
    images: int = 8  # approximate number of power losses per process run, besides its own end
    processes: int = 3
    operations: int = 10
    faults: bool = True
    chores: float = (
        0.5  # share of the seeds in which processes clean, trim, delete topics and join groups
    )
    halves: float = (
        0.3  # share of the seeds in which processes prepare transactions and decide them
    )
    commits: bool = False  # processes mostly commit, and the power fails inside their commits


class Run:
    """The run of one seed."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        """Nothing happens yet."""
        self.seed, self.plan = seed, plan or Plan()
        self.rng = Random(seed)
        self.report = Report()
        self.model = Model()
        self.base = tempfile.mkdtemp(prefix="eoslog-sim-", dir=ROOT)
        self.roots = 0
        self.chores = Random(f"{seed} chores").random() < self.plan.chores
        self.halves = Random(f"{seed} halves").random() < self.plan.halves
        self.traces: list[str] = []

    def execute(self) -> Report:
        """Run; what is violated is in the report, never raised."""
        try:
            image: Image = {}
            for life in range(self.rng.randint(1, self.plan.lives)):
                image = self._life(life, image)
                if self.model.violations or self.report.violations:
                    break
        except Exception as error:
            self.report.violations.append(f"{type(error).__name__}: {error}")
            if os.environ.get("EOSLOG_SIM_TRACEBACK"):
                raise
        finally:
            shutil.rmtree(self.base, ignore_errors=True)
        self.report.violations += self.model.violations
        self.report.violations = [f"seed {self.seed}: {what}" for what in self.report.violations]
        self.report.counts.update(self.model.counts)
        self.report.counts["seeds"] += 1
        self.report.trace = "".join(self.traces)
        return self.report

    # -- pieces -------------------------------------------------------------------------------------

    def _disk(self, image: Image) -> Disk:
        """Return a disk with a new root.

        The path of the root has the same length for every disk, because files of the log may
        contain it.
        """
        self.roots += 1
        return Disk(os.path.join(self.base, f"{self.roots:06d}"), image)

    def _run(self, world: World, bodies: list[tuple[str, Callable[[], None]]]) -> None:
        processes = [world.spawn(name, body) for name, body in bodies]
        try:
            with seam.installed(world):
                world.run()
        finally:
            for process in dict.fromkeys([*processes, *world.processes]):
                seam.bury(process)
            self.report.counts["steps"] += world.steps
            self.traces.append(world.trace.hexdigest())
        world.raise_kept()

    def _life(self, number: int, image: Image) -> Image:
        rng = self.rng
        disk = self._disk(image or self._fresh())
        world = World(rng, disk, self._faults())
        world.step_limit = 60_000
        if rng.random() < 0.9:
            world.crash_at = rng.choice((rng.randrange(1, 400), rng.randrange(1, 4000)))
        names = [f"{number}{chr(97 + i)}" for i in range(rng.randint(1, self.plan.processes))]
        clients = [
            Client(world, self.model, disk.root, n, rng.randint(1, self.plan.operations))
            for n in names
        ]
        for client in clients:
            client.does_chores = self.chores
            client.prepares = self.halves
            client.only_commits = self.plan.commits

        def killed(process: Process) -> None:
            self.report.counts["kills"] += 1

        world.on_kill = killed
        fates = Fates(
            Random(f"{self.seed} {number} fates"), self.plan.images, self._disk, self._run,
            self.report.counts, lambda: watermarks(clients),
            inside_commits=self.plan.commits,
        )  # fmt: skip
        fates.watch(world, self.model)
        self._run(world, [(client.name, client) for client in clients])
        self.model.chores.passes(world.now_ms)
        if world.crashed:
            fates.keep(disk, self.model)
        self.model.violations += fates.follow()
        if self.model.violations:
            return {}
        if not world.crashed:
            self.report.counts["clean ends"] += 1
            return self._look(disk, depth=0)
        return self._after_crash(disk, depth=0)

    def _fresh(self) -> Image:
        """Create a durable directory with few internal partitions.

        Another test covers its creation.
        """
        disk = self._disk({})
        checkpoints.write_meta_properties(
            disk.root,
            checkpoints.MetaProperties(
                cluster_id="A" * 22,
                directory_id="B" * 22,
                transaction_partitions=2,
                offsets_partitions=1,
            ),
        )
        return {
            name: files.read_file(os.path.join(disk.root, name)) for name in files.names(disk.root)
        }

    def _faults(self) -> Faults:
        rng = self.rng
        if not self.plan.faults:
            return Faults()
        return Faults(
            switch=rng.choice((0.02, 0.1, 0.3)),
            writeback=rng.choice((0.0, 0.02, 0.2)),
            short=rng.choice((0.0, 0.0, 0.2)),
            kill=rng.choice((0.0, 0.0, 0.002)),
            deadly=rng.choice(_STEPS_OF_A_COMMIT) if self.plan.commits else "",
        )

    def _after_crash(self, disk: Disk, depth: int) -> Image:
        """The power went, or only the processes; then recovery, which may crash as well."""
        rng = self.rng
        self.report.counts["crashes"] += 1
        self.report.counts["nested"] += depth > 0
        if rng.random() < 0.6:
            self.report.counts["power cuts"] += 1
            disk = self._disk(disk.power_cut(rng))
        if depth < 3 and rng.random() < 0.5:
            world = World(rng, disk, Faults(writeback=0.05))
            world.crash_at = rng.choice((rng.randrange(1, 100), rng.randrange(1, 1200)))
            self._run(world, [(f"recovery{depth}", lambda: oracle.open_all(disk.root))])
            if world.crashed:
                return self._after_crash(disk, depth + 1)
            self.report.counts["recoveries"] += 1
        return self._look(disk, depth)

    def _look(self, disk: Disk, depth: int) -> Image:
        """Open, check everything, compare with a second opening.

        Returns the image of the disk after that.
        """
        self.report.counts["looks"] += 1
        found: list[oracle.State] = []

        def look() -> None:
            oracle.inspect(disk.root, self.model, found, settle=True, then=end)

        def end() -> None:
            if self.rng.random() < 0.5:
                world.crash()  # the second one replays what this one had live
                world.alive()

        world = World(self.rng, disk, Faults(writeback=0))
        self._run(world, [("look", look)])
        if not world.crashed:
            oracle.closed_clean(disk.root, self.model)
        if self.model.violations:
            return {}
        if self.rng.random() < 0.5:
            if self.rng.random() < 0.5:  # all of it was flushed: not even the power may change it
                disk = self._disk(disk.power_cut(self.rng))
            world = World(self.rng, disk, Faults(writeback=0))
            again = disk.root
            self._run(
                world,
                [("again", lambda: oracle.inspect(again, self.model, found, settle=False))],
            )
            oracle.same(found, self.model)
        self.report.counts["max depth"] = max(self.report.counts["max depth"], depth)
        return disk.power_cut(self.rng)


def watermarks(clients: list[Client]) -> dict[Place, int]:
    """The high watermarks that processes show, of the topics that are never deleted."""
    found: dict[Place, int] = {}
    for client in clients:
        with contextlib.suppress(EoslogError):  # it is being closed, or was killed
            for log in client.log._engine.open_logs() if client.log else ():
                if log.topic in TOPICS:
                    place = log.topic, log.partition
                    found[place] = max(found.get(place, 0), log.high_watermark)
    return found


def run(
    seconds: float,
    seed: int,
    *,
    plan: Plan | None = None,
    runs: int | None = None,
    say: Callable[[str], None] | None = None,
    stop_at_first: bool = False,
) -> Report:
    """Run seeds from `seed` on until the time is over.

    Args:
        seconds: how long; a run that began is finished.
        seed: the first one; the next ones follow.
        plan: what a run does.
        runs: at most so many.
        say: told a line about once a second.
        stop_at_first: end with the first seed that violates something.

    Returns:
        Counts (`crashes`, `power cuts`, `nested`, `steps`, ...) and violations, each with its seed.
    """
    total = Report()
    end, next_line = time.monotonic() + seconds, time.monotonic() + 1
    gc.disable()
    try:
        while time.monotonic() < end and (runs is None or total.counts["seeds"] < runs):
            one = Run(seed, plan).execute()
            total.add(one)
            total.trace = hashlib.blake2b(
                (total.trace + one.trace).encode(), digest_size=16
            ).hexdigest()
            seed += 1
            for what in one.violations if say is not None else ():
                say(f"VIOLATION {what}")
            if stop_at_first and one.violations:
                break
            if seed % 16 == 0:
                gc.collect()
            if say is not None and time.monotonic() >= next_line:
                next_line = time.monotonic() + 1
                say(total.line())
    finally:
        gc.enable()
    return total
