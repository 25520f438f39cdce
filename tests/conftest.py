"""Times of the parts in the summary, and marks that follow from what a test uses."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest
from hypothesis import settings

# No test asserts a time, so no example has a deadline. CI takes the same examples at every run;
# elsewhere each run looks at new ones.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "search")

# A real broker is another run: `make test-kafka`.
collect_ignore = [] if os.environ.get("EOSLOG_KAFKA") else ["kafka"]

_seconds: dict[str, float] = defaultdict(float)
_counts: dict[str, int] = defaultdict(int)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses a Spark session starts a JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


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
