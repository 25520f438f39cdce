"""Many possible ends of one process run: power losses at many of its moments.

One execution represents all crashes that could have ended it. At each moment that is chosen,
several of the states in which the disk may be left are kept, with the promises made by then.
Each state is opened afterwards. In the recovery of some of them the power is lost again, and
again in the recovery of those. An image that equals another one with the same promises is
neither checked nor counted twice.

An image is opened on the real table of OS calls, on tmpfs: there is one process, and nothing
stops it any more. Clocks, random choices and threads are the simulation's, so a seed still
determines a run.
"""

from __future__ import annotations

import copy
import gc
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from tests.simulation.machine import seam
from tests.simulation.machine.disk import Disk, Image
from tests.simulation.machine.world import Faults, World
from tests.simulation.oracles import oracle
from tests.simulation.oracles.model import Model, Place

AT_ONCE = 2
"""Images of one moment."""
RECOVERIES = ((0.2, 4), (0.1, 2))
"""By depth: in which share of the recoveries the power goes again, and how many such images are kept."""
_REAL = ("clock_ns", "wait")


class Fates:
    """The other ends of one life.

    Args:
        rng: draws moments and images; the life's own draws are not touched.
        images: about how many.
        disk: makes a disk of an image.
        run: runs processes in a world.
        counts: crashes, power cuts, nested, looks.
        watermarks: returns the high watermarks that the processes show now.
        inside_commits: choose moments at which a process commits.
    """

    def __init__(
        self, rng: Random, images: int, disk: Callable[[Image], Disk],
        run: Callable[[World, list[tuple[str, Callable[[], None]]]], None], counts: Counter[str],
        watermarks: Callable[[], Mapping[Place, int]] = dict,
        *, inside_commits: bool = False,
    ) -> None:  # fmt: skip
        """Nothing is kept yet."""
        self._inside_commits, self._left = inside_commits, images if inside_commits else 0
        self._share = min(1.0, images / 1000)
        self._rng, self._disk, self._run, self._counts = rng, disk, run, counts
        self._watermarks = watermarks
        # The lengths of runs differ widely: half of the moments are early.
        self._moments = Counter(
            rng.randrange(20, rng.choice((500, 1500))) for _ in range(images // AT_ONCE)
        )
        self._kept: list[tuple[Image, Model]] = []
        self._seen: set[tuple[int, int]] = set()

    def watch(self, world: World, model: Model) -> None:
        """Keep images of the life that is about to begin."""

        def sample() -> None:
            if self._left > 0 and model.committing and self._rng.random() < self._share:
                self._left -= AT_ONCE
                self.keep(world.disk, model)
            elif not self._inside_commits and world.steps in self._moments:
                model.chores.passes(world.now_ms)
                self.keep(world.disk, model, AT_ONCE * self._moments[world.steps])

        world.sampler = sample

    def keep(self, disk: Disk, model: Model, images: int = AT_ONCE) -> None:
        """States in which a power cut at this moment may leave the disk."""
        model.watermarks = {**model.watermarks, **self._watermarks()}
        for image in disk.power_cuts(self._rng, images):
            if self._is_new(image, model):
                self._kept.append((image, copy.deepcopy(model)))

    def _is_new(self, image: Image, model: Model) -> bool:
        key = (hash(tuple(sorted(image.items()))), model.version())
        new = key not in self._seen
        self._seen.add(key)
        return new

    def follow(self) -> list[str]:
        """Open all that was kept; what is violated."""
        violations: list[str] = []
        kept, self._kept = self._kept, []
        for image, promised in kept:
            violations += self._follow(image, promised, 0)
            if violations:
                break
        gc.collect()
        return violations

    def _follow(self, image: Image, promised: Model, depth: int) -> list[str]:
        self._counts.update(crashes=1, looks=1, **{"power cuts": 1, "nested": int(depth > 0)})
        if depth < len(RECOVERIES) and self._rng.random() < RECOVERIES[depth][0]:
            for nested in self._recoveries(image, promised, RECOVERIES[depth][1]):
                if wrong := self._follow(nested, copy.deepcopy(promised), depth + 1):
                    return wrong
        return self._look(image, promised)

    def _recoveries(self, image: Image, promised: Model, images: int) -> list[Image]:
        """What is left when the power goes in the recovery, too."""
        disk, kept = self._disk(image), []
        world = World(self._rng, disk, Faults(writeback=0.05))
        moments = {self._rng.randrange(1, self._rng.choice((80, 400))) for _ in range(images)}

        def sample() -> None:
            if world.steps in moments:
                kept.append(disk.power_cut(self._rng))

        world.sampler = sample
        self._run(world, [("recovery", lambda: oracle.open_all(disk.root))])
        shutil.rmtree(disk.root)
        self._counts["recoveries"] += 1
        return [one for one in kept if self._is_new(one, promised)]

    def _look(self, image: Image, promised: Model) -> list[str]:
        already, found = len(promised.violations), list[oracle.State]()
        disk = self._disk(image)
        world = World(self._rng, disk)
        with seam.installed(world, only=_REAL):
            oracle.inspect(disk.root, promised, found, settle=True)
            oracle.closed_clean(disk.root, promised)
            if len(promised.violations) == already and self._rng.random() < 0.25:
                oracle.inspect(disk.root, promised, found, settle=False)
                oracle.same(found, promised)
        world.raise_kept()
        shutil.rmtree(disk.root)
        return promised.violations[already:]
