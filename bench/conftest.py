"""Fixtures of the benchmarks: a directory, the contest, a broker; the table."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import data, ratios
from bench.contest import Contest
from bench.peers import kafka_broker


def pytest_configure() -> None:
    """Make SIGTERM end a run like Ctrl-C: it removes its files and servers first."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory on a real disk."""
    path = data.place_of_benchmarks()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def contest(benchmark: Any) -> Contest:
    """Runs one row."""
    return Contest(benchmark)


@pytest.fixture(scope="session")
def broker() -> Iterator[Callable[[], Any]]:
    """Yield a function that returns a running Kafka broker.

    The first call starts the broker. The function raises AbsentError if there is none.
    """
    with kafka_broker.started_when_asked() as give:
        yield give


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A row may take longer than a test."""
    for item in items:
        item.add_marker(pytest.mark.timeout(1800))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The goals, below pytest-benchmark's own table."""
    session = getattr(config, "_benchmarksession", None)
    found = ratios.contests(
        (row.fullname, row.extra_info, row.stats.data)
        for row in getattr(session, "benchmarks", ())
        if row.stats.data
    )
    if found:
        terminalreporter.section("against the goals, in this run")
        for line in ratios.table(ratios.lines(found)):
            terminalreporter.write_line(line)
        for curve in ratios.curves(found):
            terminalreporter.write_line(f"growth of {curve}")
        for line in ratios.table_of_latencies(found):
            terminalreporter.write_line(line)
        for what in ratios.left_out(found):
            terminalreporter.write_line(f"not measured: {what}")
