"""File systems on loop devices, on which tests cause power losses. Root only.

A power loss is the shutdown ioctl of ext4 and XFS: the journal stays as it was, no dirty page
is written any more, and the next mount replays the journal. Everything is in memory, so a sync
costs only the work of the file system, without a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
LOGFLUSH, NOLOGFLUSH = 1, 2
WRITE_AND_WAIT = 1 | 2 | 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def run(*command: str | Path) -> str:
    """Run a tool; RuntimeError with what it said if it fails."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


def lacking(*tools: str) -> str | None:
    """Why disks of our own cannot be had here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    gone = [tool for tool in tools if shutil.which(tool) is None]
    if gone:
        return f"needs {', '.join(gone)}"
    if not os.path.exists("/dev/loop-control"):
        return "needs loop devices"
    return None


class Disk:
    """A file system on a loop device on a file in memory.

    Args:
        kind: "ext4" or "xfs".
        options: of the mount.
        megabytes: its size.
        device: an existing file to use in place of one of our own (a FUSE-backed one, say).
    """

    def __init__(
        self, kind: str, options: str = "", megabytes: int | None = None, device: Path | None = None
    ) -> None:
        """Make it and mount it."""
        self.kind, self.options = kind, options
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.place = Path(tempfile.mkdtemp(prefix="eoslog-disk-", dir=base))
        self.image, self.mount_point = device or self.place / "image", self.place / "mount"
        self.mount_point.mkdir()
        if device is None:
            with open(self.image, "wb") as file:
                file.truncate((megabytes or {"ext4": 64, "xfs": 320}[kind]) << 20)
        if kind == "ext4":
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)
        else:
            run("mkfs.xfs", "-q", "-f", self.image)
        self.loop = run("losetup", "-f", "--show", self.image)
        try:
            self.mount()
        except BaseException:
            run("losetup", "-d", self.loop)
            raise

    def mount(self) -> None:
        """Mount, which replays the journal."""
        options = ["-o", self.options] if self.options else []
        run("mount", "-t", self.kind, *options, self.loop, self.mount_point)
        try:
            os.stat(self.mount_point)
        except OSError as error:
            raise RuntimeError(
                f"{self.mount_point}: {error}: still shut down, for somebody else has it mounted too "
                "(a mount namespace that was made meanwhile)"
            ) from error

    def unmount(self) -> None:
        """Unmount; whoever used it must be dead."""
        run("umount", self.mount_point)

    def cut(self, flags: int = NOLOGFLUSH) -> None:
        """From now on nothing reaches the device."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", flags))
        finally:
            os.close(fd)

    def remount(self) -> None:
        """What a reboot does."""
        self.unmount()
        self.mount()

    def scatter(self, rng: random.Random) -> int:
        """Write back some pages of some files, as the kernel may do at any time.

        Returns the number of ranges.
        """
        files = [p for p in self.mount_point.rglob("*") if p.is_file() and p.stat().st_size]
        count = 0
        for file in rng.sample(files, rng.randint(0, len(files))):
            fd = os.open(file, os.O_RDONLY)
            try:
                pages = (os.fstat(fd).st_size + 4095) // 4096
                first = rng.randrange(pages)
                _libc.sync_file_range(
                    fd, first << 12, rng.randint(1, pages - first) << 12, WRITE_AND_WAIT
                )
                count += 1
            finally:
                os.close(fd)
        return count

    def close(self) -> None:
        """Take it away."""
        subprocess.run(["umount", "-l", str(self.mount_point)], capture_output=True, check=False)
        subprocess.run(["losetup", "-d", self.loop], capture_output=True, check=False)
        shutil.rmtree(self.place, ignore_errors=True)


@contextlib.contextmanager
def failing_disk(options: str = "") -> Iterator[tuple[Disk, Path]]:
    """An ext4 whose device rejects every write while a file exists.

    Yields (the file system, that file). The stack is nbdkit's error filter below nbdfuse below
    a loop device.
    """
    place = Path(tempfile.mkdtemp(prefix="eoslog-failing-", dir="/dev/shm"))
    socket, inject, image = place / "nbd.sock", place / "inject", place / "disk"
    image.touch()
    nbdkit = subprocess.Popen(
        ["nbdkit", "-f", "-U", socket, "--filter=error", "memory", "64M", "error-pwrite=EIO",
         "error-pwrite-rate=100%", f"error-file={inject}"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    fuse = disk = None
    try:
        _until(socket.exists)
        fuse = subprocess.Popen(["nbdfuse", image, "--unix", socket], stderr=subprocess.DEVNULL)
        _until(lambda: image.stat().st_size > 0)
        disk = Disk("ext4", options, device=image)
        yield disk, inject
    finally:
        if disk is not None:
            disk.close()
        subprocess.run(["umount", "-l", str(image)], check=False, capture_output=True)
        for process in (fuse, nbdkit):
            if process is not None:
                process.terminate()
                process.wait(60)
        shutil.rmtree(place, ignore_errors=True)


def lacking_for_failing_disks() -> str | None:
    """Why they cannot be had here, or None."""
    if not os.path.exists("/dev/fuse"):
        return "needs /dev/fuse"
    return lacking("losetup", "mkfs.ext4", "nbdkit", "nbdfuse")


def _until(condition: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the device did not come up")
        time.sleep(0.01)
