"""Fixtures, marks and the scheduler of all tests, and the times by folder."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

# No test asserts a time, so no example has a deadline. CI takes the same examples at every run;
# elsewhere each run looks at new ones.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "search")

# A real broker is another run: `make quality-kafka`.
collect_ignore = [] if os.environ.get("EOSLOG_KAFKA") else ["kafka"]

_ENDED_S = 120.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a log may be made."""
    return str(tmp_path / "log")


@pytest.fixture
def disarmed() -> Iterator[None]:
    """Failpoints that a test arms end with it, before its log is closed."""
    yield
    from eoslog.storage.fs import files

    files.disarm_failpoints()


def _open_logs() -> set[Any]:
    """The directories that this process has open."""
    registry = sys.modules.get("eoslog.engine.registry")
    return set(registry._open.values()) if registry else set()


@pytest.fixture(autouse=True)
def _left_behind() -> Iterator[None]:
    """Close what a test leaves open, and fail one that leaves a thread running.

    Its faults are disarmed. Faults, the counts of calls, captured log records and the list of
    threads are those of the process, so an open log would change what a later test finds.
    """
    logs, threads = _open_logs(), set(threading.enumerate())
    yield
    if files := sys.modules.get("eoslog.storage.fs.files"):
        files.disarm_failpoints()
    for engine in _open_logs() - logs:
        with contextlib.suppress(Exception):  # as the end of the process does
            engine.close(engine.references.count)
    ours = [t for t in threading.enumerate() if t.name.startswith("eoslog") and t not in threads]
    for thread in ours:
        _join(thread)  # that of a closed client may still take its last step
    assert [t.name for t in ours if t.is_alive()] == [], "the test did not end them"


def _join(thread: threading.Thread) -> None:
    deadline = time.monotonic() + _ENDED_S
    while time.monotonic() < deadline:
        try:
            return thread.join(_ENDED_S)
        except RuntimeError:  # another thread is starting it
            time.sleep(0.001)


_seconds: dict[str, float] = defaultdict(float)
_counts: dict[str, int] = defaultdict(int)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses a Spark session starts a JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


_LONG = (
    "spark",
    "tests/torture/test_harnesses.py",
    "tests/docs/test_pages.py",
    "tests/simulation/test_simulation.py",
)
"""Files of few long tests. They begin first, so that no worker waits for one at the end."""


class Files(LoadFileScheduling):
    """A file's tests one after the other, and all of Spark's, which share a session."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        long = next((scope for scope in _LONG if scope in self.workqueue), None)
        if long is not None:
            self.workqueue.move_to_end(long, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    """A worker that is done takes the next file; with `--dist worksteal`, a test."""
    return None if config.getoption("dist") == "worksteal" else Files(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sum the time by folder of `tests`."""
    words = report.nodeid.split("::")[0].split("/")
    part = words[1] if len(words) > 2 else "the rest"
    _seconds[part] += report.duration
    _counts[part] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each part."""
    terminalreporter.section("times")
    for part, seconds in sorted(_seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f} s  {_counts[part]:5d} tests  {part}")
