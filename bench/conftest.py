"""Fixtures of the benchmarks: directories, values and the figures that `ratios.py` divides."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from bench import ratios

VALUE_SIZE = 100


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory on a real disk: `fdatasync` on tmpfs costs nothing and would compare nothing."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("EOSLOG_BENCH_DIR", ".")))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def open_log(place: Path) -> Iterator[Callable[..., Any]]:
    """Opens a new log with a topic `t` of one partition; closes whatever was opened."""
    logs: list[Any] = []

    def opened(durability: str = "strict", partitions: int = 1) -> Any:
        log = eoslog.open(place / f"log-{len(logs)}", durability=durability)
        log.create_topic("t", partitions=partitions)
        logs.append(log)
        return log

    yield opened
    for log in logs:
        log.close()


@pytest.fixture(scope="session")
def values() -> list[bytes]:
    """50,000 values of 100 bytes that differ."""
    return [b"%08d" % i + bytes(VALUE_SIZE - 8) for i in range(50_000)]


@pytest.fixture
def measure(benchmark: Any) -> Callable[..., Any]:
    """`measure(fn, units=..., rounds=...)`: runs it and notes how many units one round handles."""

    def run(
        fn: Callable[..., Any],
        *,
        units: int,
        rounds: int = 7,
        setup: Callable[[], Any] | None = None,
    ) -> Any:
        benchmark.extra_info["units"] = units
        return benchmark.pedantic(fn, setup=setup, rounds=rounds, warmup_rounds=0 if setup else 1)

    return run


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The ratios, below pytest-benchmark's own table."""
    session = getattr(config, "_benchmarksession", None)
    measured = {
        ratios.key(row.fullname): row.extra_info["units"] / row.stats.median
        for row in getattr(session, "benchmarks", ())
        if row.stats.data
    }
    if measured:
        terminalreporter.section("ratios to peers in this run")
        for line in ratios.table(measured)[0]:
            terminalreporter.write_line(line)
