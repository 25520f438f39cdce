"""Full disks and disks that say no: injected at every call, and real ones.

`Full` uses small file systems that fill up by themselves; `Refusals` injects ENOSPC and EIO at a
drawn call of the OS table, once; `Failing` puts the log on a block device whose writes fail.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.faults.harness import Life, live, start
from tests.torture.faults.disks import Disk, failing_disk, lacking, lacking_for_failing_disks, run
from tests.torture.harness import Round, Step
from tests.torture.harnesses.kills import CALLS
from tests.torture.workloads.mixed import mixed


class Refusals:
    """ENOSPC, EIO or a short write at one call, with a typed error and no loss."""

    name, goal = "refusal", ("refused calls", 5_000)
    ERRORS = {"pwrite": ("ENOSPC", "EIO", "short"), "ftruncate": ("EIO",), "fdatasync": ("EIO",),
              "fsync": ("EIO",), "open": ("EIO", "ENOSPC", "EMFILE"), "rename": ("EIO", "ENOSPC"),
              "unlink": ("EIO",), "mkdir": ("ENOSPC",), "pread": ("EIO",)}  # fmt: skip

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Six lives, each refused once somewhere."""
        with Round(seed) as round_:
            for _ in range(6):
                call = round_.rng.choice(list(self.ERRORS))
                error = round_.rng.choice(self.ERRORS[call])
                nth = round_.rng.randint(1, CALLS.get(call, 60))
                life = live(
                    mixed, round_.path, round_.history, round_.name(), round_.seed(),
                    faults=((call, error, nth),),
                )  # fmt: skip
                round_.ended(life)
                round_.step.counts["refused calls"] += 1
                round_.step.counts[f"{error} injected"] += 1
            return round_.verdict(crowded=True)  # a marker may be what was refused


class Full:
    """A tmpfs and an ext4 that fill up, get space again, and whose log continues."""

    name, goal = "full disk", ("full disks", 100)

    def __init__(self) -> None:
        """No disk before the first step."""
        self._disk: Disk | None = None

    def missing(self) -> str | None:
        """Root and loop devices."""
        return lacking("losetup", "mkfs.ext4")

    def close(self) -> None:
        """Unmount."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def step(self, seed: int) -> Step:
        """Lives on a disk that is nearly full, room made, a last life, the verdict."""
        return self._tmpfs(seed) if seed % 2 else self._ext4(seed)

    def _tmpfs(self, seed: int) -> Step:
        place = Path(tempfile.mkdtemp(prefix="eoslog-tmpfs-"))
        run("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place)
        try:
            with Round(seed, place) as round_:
                round_.ended(self._live(round_))
                used = int(run("df", "--output=used", "-k", place).split()[-1])
                room = round_.rng.randint(0, 120)
                run("mount", "-o", f"remount,size={used + room}k", place)
                for _ in range(3):
                    round_.ended(self._live(round_))
                run("mount", "-o", "remount,size=64m", place)
                round_.ended(self._live(round_))
                round_.step.counts["full disks"] += 1
                return round_.verdict(crowded=True)
        finally:
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
            place.rmdir()

    def _ext4(self, seed: int) -> Step:
        if self._disk is None:
            self._disk = Disk("ext4", megabytes=24)
        disk = self._disk
        with Round(seed, disk.mount_point) as round_:
            round_.ended(self._live(round_))
            ballast = disk.mount_point / "ballast"
            with open(ballast, "wb", buffering=0) as file:
                with contextlib.suppress(OSError):  # until it is full
                    while file.write(bytes(1 << 16)):
                        pass
                file.truncate(max(file.tell() - (round_.rng.randint(0, 120) << 10), 0))
            for _ in range(3):
                round_.ended(self._live(round_))
            ballast.unlink()
            round_.ended(self._live(round_))
            round_.step.counts["full disks"] += 1
            step = round_.verdict(crowded=True)
        shutil.rmtree(round_.path, ignore_errors=True)
        return step

    @staticmethod
    def _live(round_: Round) -> Life:
        # A producer of a full disk tries again until its delivery timeout.
        return live(mixed, round_.path, round_.history, round_.name(), round_.seed(), 12, 1_000)


class Failing:
    """A block device whose writes fail for a while.

    The kernel reports the failure only once, at a sync.
    """

    name, goal = "failing device", ("failed writebacks", 200)

    def missing(self) -> str | None:
        """FUSE, nbdkit with its error filter, nbdfuse."""
        return lacking_for_failing_disks()

    def close(self) -> None:
        """Each step has its own device."""

    def step(self, seed: int) -> Step:
        """Lives before, during and after the failure, a reboot, the verdict."""
        with failing_disk() as (disk, inject), Round(seed, disk.mount_point) as round_:
            arguments = (round_.path, round_.history)
            round_.ended(live(mixed, *arguments, round_.name(), round_.seed()))
            during = start(mixed, *arguments, round_.name(), round_.seed(), 60)
            time.sleep(round_.rng.uniform(0.02, 0.4))
            inject.touch()
            time.sleep(round_.rng.uniform(0.05, 0.3))
            if round_.rng.random() < 0.5:
                inject.unlink()
                time.sleep(0.05)
            if round_.rng.random() < 0.5:
                during.signal(signal.SIGKILL)
            round_.ended(during.end())
            inject.unlink(missing_ok=True)
            # another process on the same mount, with the kernel's cache as it is
            round_.ended(live(mixed, *arguments, round_.name(), round_.seed()))
            round_.step.counts["failed writebacks"] += 1
            disk.remount()
            round_.ended(live(mixed, *arguments, round_.name(), round_.seed()))
            return round_.verdict(frozenset({"0", "1"}), crowded=True)  # as above: a marker
