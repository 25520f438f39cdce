"""A directory, and the command line on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("click")

from eoslog.cli import main


class Outcome(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict]:
        """The output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the log is made."""
    return tmp_path / "log"


@pytest.fixture
def cli(place, capsys) -> Callable[..., Outcome]:
    """Runs `eoslog -d PLACE ...` in this process."""

    def run(*arguments: object, form: str | None = None) -> Outcome:
        capsys.readouterr()
        options = ["-d", str(place)] + (["--format", form] if form else [])
        code = main([*options, *map(str, arguments)])
        found = capsys.readouterr()
        return Outcome(code, found.out, found.err)

    return run


@pytest.fixture
def shop(cli):
    """A log with the topic `orders`, of two partitions."""
    assert cli("init").code == 0
    assert cli("topic", "create", "orders", "-p", 2).code == 0
    return cli
