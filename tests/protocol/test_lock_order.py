"""The debug mode of locks aborts on a wrong order and times each lock."""

from __future__ import annotations

import faulthandler
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from tests.faults.harness import Child, live
from tests.torture.workloads.mixed import mixed

pytestmark = pytest.mark.process

APPEND, FLUSH, CLEANER = 0, 1, 1 << 32
"""Bytes of a lock file: of slot 0, and the cleaner's; `session.append_lock`, `segment_swap`."""
LOCKS = {
    "bootstrap": ("eoslog.session", 0),
    "lease": ("eoslog.session", 2),
    "cleaner": ("eoslog.lock-00", CLEANER),
    "append": ("eoslog.lock-00", APPEND),
    "other append": ("eoslog.lock-00", 2),
    "flush": ("eoslog.lock-00", FLUSH),
    "other flush": ("eoslog.lock-00", 3),
}


def take(child: Child, path: Path, *names: str) -> None:
    """Take these locks one after another and let them go."""
    faulthandler.disable()  # an abort is expected here
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _core.debug_locks()
    held = []
    for name in names:
        file, at = LOCKS[name]
        fd = os.open(path / file, os.O_RDWR | os.O_CREAT, 0o600)
        assert _core.try_lock(fd, at)
        held.append((fd, at))
    for fd, at in held:
        _core.unlock(fd, at)
        os.close(fd)
    child.tell("times", _core.lock_times())


@pytest.mark.parametrize(
    "names",
    [
        ("lease", "cleaner", "bootstrap", "append"), ("cleaner", "append"), ("cleaner", "flush"),
        ("bootstrap", "flush"),
    ],
    ids=" then ".join,
)  # fmt: skip
def test_locks_in_the_required_order_are_taken_and_timed(tmp_path, names):
    (times,) = live(take, tmp_path, *names).fine().of("times")
    assert {name: count for name, (count, _, _) in times.items() if count} == dict.fromkeys(
        names, 1
    )
    assert all(0 < most <= total for count, total, most in times.values() if count)


def test_a_thread_may_have_the_flush_locks_of_several_partitions(tmp_path):
    (times,) = live(take, tmp_path, "flush", "other flush").fine().of("times")
    assert times["flush"][0] == 2


@pytest.mark.parametrize(
    "names",
    [
        ("append", "flush"), ("flush", "append"), ("append", "other append"), ("append", "cleaner"),
        ("flush", "bootstrap"), ("bootstrap", "cleaner"), ("append", "lease"),
    ],
    ids=" then ".join,
)  # fmt: skip
def test_locks_in_a_wrong_order_abort_the_process(tmp_path, names):
    assert os.WTERMSIG(live(take, tmp_path, *names).status) == 6  # SIGABRT


def test_a_wrong_lock_order_is_reported_with_both_locks(tmp_path):
    program = (
        "import os; from eoslog import _core\n"
        "fd = os.open('eoslog.lock-00', os.O_RDWR | os.O_CREAT)\n"
        "_core.try_lock(fd, 1); _core.try_lock(fd, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"EOSLOG_DEBUG_LOCKS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )  # fmt: skip
    assert done.returncode == -6
    assert "append lock (byte 0) asked for under the flush lock (byte 1)" in done.stderr


def test_a_run_of_all_operations_keeps_the_lock_order(tmp_path):
    """Sends, transactions, a group, rolls, cleaning, topics that come and go."""
    history = tmp_path / "history"
    history.mkdir()
    life = live(in_order, tmp_path / "log", history, "one", 5).fine()
    (times,) = life.of("times")
    for name in ("bootstrap", "cleaner", "append", "flush"):
        assert times[name][0] > 0


def in_order(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """A recorded life, asserted."""
    _core.debug_locks()
    mixed(child, path, history, name, seed, 60)
    with eoslog.open(path) as log:  # the one place that takes all append locks together
        log.backup(path.parent / "copy")
    child.tell("times", _core.lock_times())
