"""Power losses on real file systems: ext4 in two configurations and XFS.

One ext4 has its defaults, the other runs without its rename safety net. A process is killed at
a random call, or still runs, when its file system is shut down. Before that, some pages that
were not synced are written back, as the kernel may do. Then the journal is replayed and the
next process continues with what is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

from tests.faults.harness import live, start
from tests.torture.faults.disks import LOGFLUSH, NOLOGFLUSH, Disk, lacking
from tests.torture.harness import Round, Step
from tests.torture.harnesses.kills import Kills
from tests.torture.workloads.mixed import mixed

KINDS = (("ext4", ""), ("ext4", "noauto_da_alloc"), ("xfs", ""))
LOSSY = frozenset({"0", "1"})


class Power:
    """Four cuts a step, in one directory."""

    name, goal = "power", ("cuts", 500)

    def __init__(self) -> None:
        """No disk before the first step."""
        self._disks: dict[tuple[str, str], Disk] = {}

    def missing(self) -> str | None:
        """Root, loop devices and the tools of both file systems."""
        return lacking("losetup", "mkfs.ext4", "mkfs.xfs")

    def close(self) -> None:
        """Unmount."""
        while self._disks:
            self._disks.popitem()[1].close()

    def step(self, seed: int) -> Step:
        """Four lives, each ended by a power cut, then the verdict."""
        kind = KINDS[seed // 8 % len(KINDS)]
        disk = self._disks.get(kind)
        if disk is None:
            self.close()  # loop devices are few
            disk = self._disks[kind] = Disk(*kind)
        try:
            with Round(seed, disk.mount_point) as round_:
                for _ in range(4):
                    self._life(round_, disk)
                    round_.step.counts["cuts"] += 1
                    round_.step.counts[f"cuts on {' '.join(filter(None, kind))}"] += 1
                step = round_.verdict(LOSSY)
            shutil.rmtree(round_.path, ignore_errors=True)
        except BaseException:
            self._disks.pop(kind).close()
            raise
        return step

    @staticmethod
    def _life(round_: Round, disk: Disk) -> None:
        rng, name = round_.rng, round_.name()
        running = rng.random() < 0.3
        faults = () if running else (Kills._fault(round_),)
        arguments = (mixed, round_.path, round_.history, name, round_.seed())
        if running:
            child = start(*arguments)
            time.sleep(rng.uniform(0, 0.08))
            began_ns = time.monotonic_ns()
            disk.cut(rng.choice([NOLOGFLUSH, LOGFLUSH]))
            time.sleep(rng.uniform(0, 0.02))
            life = child.kill()
            if os.WIFSIGNALED(life.status) and os.WTERMSIG(life.status) == signal.SIGBUS:
                life.status = signal.SIGKILL  # a mapped page of a disk that is gone
            round_.ended(life)
            forget_answers(round_.history / f"{name}.jsonl", began_ns)
        else:
            round_.ended(live(*arguments, faults=faults))
            round_.step.counts["ranges written back"] += disk.scatter(rng)
            disk.cut(rng.choice([NOLOGFLUSH, NOLOGFLUSH, LOGFLUSH]))
        disk.remount()


def forget_answers(history: Path, since_ns: int) -> None:
    """Drop the answers that a process got after its power loss.

    A machine that is off cannot answer. While a file system shuts down, fdatasync may return 0
    for data that its journal no longer accepts. In a test, three threads wrote and synced files
    of their own. A quarter of what was acknowledged after the start of the ioctl was lost, and
    nothing that was acknowledged before.
    """
    events = []
    if not history.exists():  # it was killed before it had begun
        return
    for line in history.read_text().splitlines():
        with contextlib.suppress(ValueError):  # it was killed while it wrote that down
            events.append(json.loads(line))
    kept = [e for e in events if e["type"] == "invoke" or e["time"] < since_ns]
    history.write_text("".join(json.dumps(event) + "\n" for event in kept))
