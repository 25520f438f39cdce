"""The seam knows every module of eoslog that starts threads.

A module that is moved or split fails these tests.
"""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import pytest

import eoslog
from tests.simulation.machine import seam
from tests.simulation.machine.disk import Disk
from tests.simulation.machine.world import Faults, World

SOURCES = Path(eoslog.__file__).parent
REAL_THREADS = {
    "aio/call_thread.py", "app/supervisor.py", "app/task_watch.py", "commands/apps/live_view.py",
    "client/producer/named/own_transactions.py", "connector/staging.py",
    "coordinator/checks/check_calls.py", "demo/child.py", "demo/worker.py",
}  # fmt: skip
"""Modules that start threads and that no simulation uses."""


def starting_threads() -> set[str]:
    """The modules that call `threading.Thread`, below the package."""
    return {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread")
    }


def test_the_seam_replaces_the_threads_of_every_module_that_starts_any() -> None:
    replaced = {Path(m.__file__).relative_to(SOURCES).as_posix() for m in seam.STARTS_THREADS}
    assert replaced | REAL_THREADS == starting_threads()


@pytest.mark.parametrize("module", [*seam.STARTS_THREADS, *seam.WAITS_FOR_EVENTS])
def test_the_seam_rejects_a_module_that_no_longer_uses_threads(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(Random(1), Disk(str(tmp_path / "disk"), {}), Faults())
    monkeypatch.setattr(module, "threading", None)
    with pytest.raises(AssertionError, match="uses no threads"), seam.installed(world):
        pytest.fail("the world was entered")
