"""What tests of other programs wait for: a log of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench.contest import Contender, Contest
from eoslog.testing import TemporaryLogs
from eoslog.testing.temporary import temporary_directory

TOPICS = ["orders"]


def test_a_fixtures_log(contest: Contest, place: Path) -> None:
    @contextlib.contextmanager
    def nothing() -> Iterator[contextlib.ExitStack]:
        with contextlib.ExitStack() as stack:
            yield stack

    def create(stack: contextlib.ExitStack) -> eoslog.Log:
        path = stack.enter_context(temporary_directory(lambda: place))
        log = stack.enter_context(TemporaryLogs(path))(topics=TOPICS)
        assert log.offsets("orders", 0).log_end == 0
        return log

    def check(_stack: Any, log: eoslog.Log) -> None:
        assert log.durability == "os"

    ours = Contender("fixture", create, around=nothing, check=check)
    contest(ours, units=1, unit="logs")
