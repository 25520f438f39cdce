"""Appends start the writeback of each MiB before any flush (protocol.md, Flush).

It replaces no flush, and its errors count as those of a flush (row 7).
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from eoslog import _core
from eoslog.errors import LogPoisoned
from eoslog.storage.directory.session import POISON_FILE
from eoslog.storage.fs import files
from tests.faults.harness import Child, live
from tests.storage.helpers import batch, opened, payloads

MANY = 700_000
"""Bytes of a batch; two of them are more than a MiB."""


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    _core.fault_count("writeback", reset=True)
    yield
    files.disarm_failpoints()


def begun() -> int:
    return _core.fault_count("writeback")


def test_every_mib_of_appends_starts_a_writeback_that_makes_nothing_durable(
    tmp_path: Path,
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1, size=100))
        assert begun() == 0
        for number in range(6):
            log.append(batch(1, size=MANY))
            assert begun() == (number + 1) // 2
        assert log.durable_end == 0
        log.flush()
        assert log.durable_end == 7


def test_writeback_counts_each_segment_from_its_first_byte(tmp_path: Path) -> None:
    with opened(str(tmp_path), segment_bytes=2_000_000) as log:
        found = []
        for _ in range(4):
            log.append(batch(1, size=MANY))
            found.append((log.core.segment_base, begun()))
        assert found == [(0, 0), (0, 1), (2, 1), (2, 2)]


def test_an_os_directory_leaves_writeback_to_the_kernel(tmp_path: Path) -> None:
    with opened(str(tmp_path), strict=False) as log:
        for _ in range(4):
            log.append(batch(1, size=MANY))
        assert begun() == 0


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_writeback_poisons_like_a_failed_flush(tmp_path: Path, error: str) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        log.append(batch(1, size=MANY))
        files.arm_failpoint("writeback", error)
        assert log.append(batch(1, size=MANY)).base_offset == 1  # it is published
        files.disarm_failpoints()
        for call in (log.flush, other.flush, lambda: other.append(batch(1))):
            with pytest.raises(LogPoisoned):
                call()
        assert log.durable_end == 0
        assert (tmp_path / POISON_FILE).read_bytes() == b"\nt 0\n"


def test_a_failed_writeback_poisons_before_the_interpreter_runs(tmp_path: Path) -> None:
    """No process flushes over the loss, not even from a signal handler."""
    with opened(str(tmp_path)) as log:
        log.append(batch(1, size=MANY))
        files.arm_failpoint("writeback", "EIO")
        found = log.core.append(batch(1, size=MANY), True, [], 1.0, MANY * 2, -1)
        assert (found[0], found[4]) == (_core.STATUS["APPENDED"], errno.EIO)
        assert log.core.poisoned


@pytest.mark.parametrize("error", ["ENOSYS", "EINVAL", "EOPNOTSUPP", "ESPIPE"])
def test_a_file_system_without_writeback_works_without_it(tmp_path: Path, error: str) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1, size=MANY))
        files.arm_failpoint("writeback", error)
        log.append(batch(1, size=MANY))
        files.disarm_failpoints()
        log.flush()
        assert log.durable_end == 2


def die_there(child: Child, path: str, action: str) -> None:
    with opened(path) as log:
        log.append(batch(1, size=MANY, producer_id=7, sequence=0))
        files.arm_failpoint("writeback", action)
        log.append(batch(1, size=MANY, producer_id=7, sequence=1))


@pytest.mark.process
@pytest.mark.parametrize("action", ["kill", "kill-after"])
def test_published_records_survive_a_writer_killed_at_the_writeback(
    tmp_path: Path, action: str
) -> None:
    life = live(die_there, str(tmp_path), action)
    assert life.status == signal.SIGKILL
    with opened(str(tmp_path)) as log:
        assert [offset for offset, _ in payloads(log)] == [0, 1]
        again = log.append(batch(1, size=MANY, producer_id=7, sequence=1))
        assert (again.base_offset, again.duplicate) == (1, True)
        log.append(batch(1, producer_id=7, sequence=2))
        log.flush()
        assert log.durable_end == 3
