"""The machine's limits: copying memory, writing a file, syncing it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.contest import Contender
from bench.data import folder

PIECE = 1 << 20


def memcpy(size: int) -> Contender:
    """Copy `size` bytes between two buffers that were both touched before."""
    source = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
    target = np.ones_like(source)

    def check(_state: Any, _result: Any) -> None:
        assert np.array_equal(source, target)

    return Contender("memcpy", lambda _: np.copyto(target, source), check=check)


@contextlib.contextmanager
def _new_file(place: Path) -> Iterator[int]:
    with folder(place) as path:
        fd = os.open(path / "raw", os.O_CREAT | os.O_WRONLY)
        try:
            yield fd
        finally:
            os.close(fd)


def write(
    place: Path, size: int, *, sync: bool = True, piece: int = PIECE, sync_each: bool = False
) -> Contender:
    """Write `size` bytes to a new file in pieces.

    fdatasync follows the last piece or each of them.
    """
    data = np.random.default_rng(1).bytes(piece)

    def run(fd: int) -> None:
        for at in range(0, size, piece):
            os.pwrite(fd, data[: size - at], at)
            if sync_each:
                os.fdatasync(fd)
        if sync and not sync_each:
            os.fdatasync(fd)

    def check(fd: int, _result: Any) -> None:
        assert os.fstat(fd).st_size == size

    name = "write+fdatasync" if sync else "pwrite"
    return Contender(name, run, lambda: _new_file(place), check)


@contextlib.contextmanager
def _two_files(place: Path) -> Iterator[tuple[int, int]]:
    with _new_file(place) as first, _new_file(place) as second:
        yield first, second


def appends(place: Path, count: int, size: int = 4096, *, name: str, each: int = 1) -> Contender:
    """`count` appends with fdatasync, alternating between two files.

    `each` appends are one unit.
    """
    data = bytes(size)

    def run(fds: tuple[int, int]) -> None:
        for i in range(count * each):
            os.write(fds[i % 2], data)
            os.fdatasync(fds[i % 2])

    def check(fds: tuple[int, int], _result: Any) -> None:
        assert sum(os.fstat(fd).st_size for fd in fds) == count * each * size

    return Contender(name, run, lambda: _two_files(place), check, units=count)
