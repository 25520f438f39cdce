"""The pytest plugin: fixtures, and readable comparisons of records.

pytest loads this module in every run, so the rest of eoslog is imported by the first fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eoslog.log import Log
    from eoslog.testing.clock import Clock
    from eoslog.testing.temporary import TemporaryLogs

_MARKER = "eoslog_topics"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(*names, **partitions): topics that the log of `eoslog_log` has"
    )


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain `==` of records, and of lists with records."""
    core = sys.modules.get("eoslog._core")
    if op != "==" or core is None:
        return None
    for side in (left, right):
        some = side[:1] if isinstance(side, list | tuple) else (side,)
        if any(isinstance(item, core.Record) for item in some):
            from eoslog.testing.comparison import explained

            return explained(left, right)
    return None


@pytest.fixture
def eoslog_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty directory for logs, in memory if the machine has room."""
    from eoslog.testing.temporary import temporary_directory

    with temporary_directory(lambda: tmp_path_factory.mktemp("eoslog")) as path:
        yield path


@pytest.fixture
def eoslog_factory(eoslog_dir: Path) -> Iterator[TemporaryLogs]:
    """A function that creates logs, which are closed after the test."""
    from eoslog.testing.temporary import TemporaryLogs

    with TemporaryLogs(eoslog_dir) as logs:
        yield logs


@pytest.fixture
def eoslog_log(request: pytest.FixtureRequest, eoslog_factory: TemporaryLogs) -> Log:
    """An open log with the topics of the marker `eoslog_topics`."""
    topics: dict[str, int] = {}
    for mark in request.node.iter_markers(_MARKER):
        for item in mark.args:
            topics |= item if isinstance(item, dict) else {item: 1}
        topics |= mark.kwargs
    return eoslog_factory(topics=topics)


@pytest.fixture
def eoslog_clock(eoslog_factory: TemporaryLogs) -> Clock:
    """The clock of the test's logs, which the test moves forward."""
    return eoslog_factory.clock


@pytest.fixture
def eoslog_kill() -> Callable[..., None]:
    """Run a function in another process, which is killed: see `eoslog.testing.kill`."""
    from eoslog.testing.killing import kill

    return kill
