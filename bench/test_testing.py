"""What tests of other programs wait for: a log of their own, and the plugin."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
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


def test_loading_the_plugin(contest: Contest, place: Path) -> None:
    """A run of pytest that uses nothing of the plugin, with it and without it."""
    (place / "pytest.ini").write_text("[pytest]\n")  # not the one of this project
    (place / "test_one.py").write_text("def test_one():\n    pass\n")
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""}

    def contender(name: str, *words: str) -> Contender:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]

        def run(_state: Any) -> str:
            return subprocess.run(
                [*command, "test_one.py"], cwd=place, env=environment, check=True, text=True,
                stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            ).stdout  # fmt: skip

        def check(_state: Any, output: str) -> None:
            assert "1 passed" in output

        return Contender(name, run, check=check)

    contest(
        contender("with the plugin", "-p", "eoslog.testing.plugin"), contender("without it"),
        units=1, unit="runs", rounds=15,
    )  # fmt: skip
