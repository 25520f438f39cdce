"""Recovery copies a segment whose pages stay cached, and a kill loses nothing."""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from tests.faults.harness import Child, live

pytestmark = pytest.mark.process

CALLS = ("pwrite", "fsync", "rename", "unlink")
VALUES = [b"%d" % number for number in range(40)]
LOG = Path("t-0", f"{0:020}.log")


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder on a disk, because `tmp_path` may be in memory."""
    path = Path(tempfile.mkdtemp(prefix="eoslog-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


def writes(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for value in VALUES:
                producer.send("t", value).result(60)
            os.kill(os.getpid(), signal.SIGKILL)


def recovers(child: Child, path: Path) -> None:
    for call in CALLS:
        _core.fault_count(call, reset=True)
    child.armed()
    with eoslog.open(path) as log:
        child.tell("values", [record.value.decode() for record in log.read("t")])
        child.tell("calls", {call: _core.fault_count(call) for call in CALLS})
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    """Map a file, so that its pages stay in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert any(view)
        yield


def recover(path: Path, *faults: tuple[str, str, int]):
    inode = (path / LOG).stat().st_ino
    with mapped(path / LOG):
        life = live(recovers, path, faults=faults)
    assert life.killed, life
    return life, (path / LOG).stat().st_ino != inode


def test_P07_recovery_killed_while_it_copies_a_segment_is_completed(on_disk: Path) -> None:
    base = on_disk / "base"
    assert live(writes, base).killed
    expected = [value.decode() for value in VALUES]
    path = on_disk / "counted"
    shutil.copytree(base, path)
    life, copied = recover(path)
    assert copied and life.of("values") == [expected]
    left = 0
    for call, count in life.of("calls")[0].items():
        for nth in range(1, count + 1):
            path = on_disk / f"{call}-{nth}"
            shutil.copytree(base, path)
            recover(path, (call, "kill", nth))
            left += (path / f"{LOG}.tmp").exists()
            life = live(recovers, path)  # which copies nothing
            assert life.of("values") == [expected], (call, nth)
            assert not (path / f"{LOG}.tmp").exists(), (call, nth)
    assert left >= 2  # while the copy was written, and before its rename


def test_P07_recovery_logs_a_segment_that_it_copies(
    on_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert live(writes, on_disk / "log").killed
    with (
        mapped(on_disk / "log" / LOG),
        caplog.at_level(logging.INFO),
        eoslog.open(on_disk / "log") as log,
    ):
        assert log.offsets("t", 0).log_end == len(VALUES)
    [line] = [r for r in caplog.records if "copying" in r.getMessage()]
    assert line.levelno == logging.INFO
    assert str(LOG.name) in line.getMessage()
