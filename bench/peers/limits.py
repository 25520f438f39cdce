"""The machine's limits: copying memory, writing a file, syncing it."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.contest import AbsentError, Contender
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


def parallel_appends(place: Path, count: int, files: int, size: int = 4096) -> Contender:
    """Append to each of the files with fdatasync, in parallel, `count` times.

    A thread per file, which exists before, as in a transaction of as many partitions.
    """
    data = bytes(size)

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[list[int], list[Any], Any]]:
        asked: list[Any] = [queue.SimpleQueue() for _ in range(files)]
        done: Any = queue.SimpleQueue()

        def serve(fd: int, orders: Any) -> None:
            while orders.get():
                os.write(fd, data)
                os.fdatasync(fd)
                done.put(fd)

        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(_new_file(place)) for _ in range(files)]
            threads = [
                threading.Thread(target=serve, args=pair) for pair in zip(fds, asked, strict=True)
            ]
            for thread in threads:
                thread.start()
            try:
                yield fds, asked, done
            finally:
                for orders in asked:
                    orders.put(False)
                for thread in threads:
                    thread.join()

    def run(state: tuple[list[int], list[Any], Any]) -> None:
        _, asked, done = state
        for _ in range(count):
            for orders in asked:
                orders.put(True)
            for _ in asked:
                done.get()

    def check(state: tuple[list[int], list[Any], Any], _result: Any) -> None:
        assert {os.fstat(fd).st_size for fd in state[0]} == {count * size}

    return Contender(f"{files} parallel appends", run, opened, check)


def group_commit(place: Path, writers: int, records: int, size: int) -> Contender:
    """Processes in C that append to one file and share its flushes.

    Raises:
        AbsentError: if there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise AbsentError("there is no C compiler")
    program = place / "group_commit"
    source = Path(__file__).with_name("group_commit.c")
    subprocess.run([compiler, "-O2", "-pthread", "-o", program, source], check=True)

    @contextlib.contextmanager
    def running() -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
        with folder(place) as path:
            command = [program, path / "file", str(writers), str(records), str(size)]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                assert process.stdout and process.stdout.readline() == b"ready\n"
                yield path / "file", process

    def run(state: tuple[Path, subprocess.Popen[bytes]]) -> None:
        _, process = state
        assert process.stdin and process.stdout
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"

    def check(state: tuple[Path, subprocess.Popen[bytes]], _result: Any) -> None:
        path, process = state
        assert process.wait(10) == 0
        assert path.stat().st_size == writers * records * size

    return Contender("the same in C", run, running, check, writers * records)
