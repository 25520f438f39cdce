"""A process in a frozen cgroup is shown as stopped, with the thawing command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.storage.directory.processes import frozen_cgroup, to_continue
from tests.admin.blocking_process import BlockingProcess

WAITS = """
producer = log.producer(transactional_id="frozen")
producer.init_transactions()
producer.begin_transaction()
producer.produce("t", b"x")
producer.flush()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 2 of this test's own, thawed and removed at the end."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        place = Path(mount) / f"eoslog-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            if (Path(mount) / "cgroup.controllers").exists():
                place.mkdir()
                break
    else:
        pytest.skip("needs a writable control group of version 2")
    try:
        if not (place / "cgroup.freeze").exists():
            pytest.skip("the kernel has no freezer")
        yield place
    finally:
        with contextlib.suppress(OSError):
            (place / "cgroup.freeze").write_text("0")
        for _ in range(100):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.05)


@pytest.mark.process
def test_field_C1_a_process_in_a_frozen_cgroup_is_shown_as_stopped(
    tmp_path: Path, group: Path
) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with BlockingProcess(log.path, WAITS) as other:
            (group / "cgroup.procs").write_text(str(other.pid))
            assert frozen_cgroup(other.pid) is None
            (group / "cgroup.freeze").write_text("1")
            while "frozen 1" not in (group / "cgroup.events").read_text():
                time.sleep(0.01)
            [found] = [one for one in log.processes() if one.pid == other.pid]
            assert found.stopped
            [blocker] = [one for one in log.blockers() if one.transactional_id == "frozen"]
            assert (blocker.pid, blocker.stopped) == (other.pid, True)
            assert f"echo 0 > {group}/cgroup.freeze" in blocker.remedy
            subprocess.run(["sh", "-c", to_continue(other.pid)], check=True)
            while "frozen 0" not in (group / "cgroup.events").read_text():
                time.sleep(0.01)
            [found] = [one for one in log.processes() if one.pid == other.pid]
            assert not found.stopped
            assert to_continue(other.pid) == f"kill -CONT {other.pid}"


def made(root: Path, cgroup: str, events: str) -> tuple[str, tuple[str, ...]]:
    """A `/proc` and a cgroup mount: process 7 is in a/b, and a is frozen."""
    (root / "proc" / "7").mkdir(parents=True)
    (root / "proc" / "7" / "cgroup").write_text(cgroup)
    (root / "cg" / "a" / "b").mkdir(parents=True)
    (root / "cg" / "a" / "b" / "cgroup.events").write_text(events)
    (root / "cg" / "a" / "b" / "cgroup.freeze").write_text("0\n")
    (root / "cg" / "a" / "cgroup.freeze").write_text("1\n")
    return str(root / "proc"), (str(root / "none"), str(root / "cg"))


@pytest.mark.parametrize(
    ("cgroup", "events", "frozen"),
    [
        ("1:cpu:/\n0::/a/b\n", "populated 1\nfrozen 1\n", "a"),
        ("0::/a/b\n", "populated 1\nfrozen 0\n", None),
        ("0::/c\n", "populated 1\nfrozen 1\n", None),
        ("1:freezer:/a/b\n", "populated 1\nfrozen 1\n", None),
    ],
)
def test_field_C1_the_frozen_cgroup_above_a_process_is_found(
    tmp_path: Path, cgroup: str, events: str, frozen: str | None
) -> None:
    proc, mounts = made(tmp_path, cgroup, events)
    expected = None if frozen is None else str(tmp_path / "cg" / frozen)
    assert frozen_cgroup(7, proc, mounts) == expected
    assert frozen_cgroup(8, proc, mounts) is None
