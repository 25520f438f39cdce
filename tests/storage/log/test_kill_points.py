"""A writer is killed between any two steps of an append, next to another process.

Protocol test 8: index files equal a rebuild, nothing acknowledged is lost, nothing is there twice.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import pytest

from eoslog._core import build_marker
from eoslog.errors import OutOfOrderSequence
from eoslog.model import AppendOrigin
from tests.storage.helpers import batch, opened, payloads, state

pytestmark = pytest.mark.process

SETTINGS = {"segment_bytes": 1500, "index_interval_bytes": 150}

WRITER = """
import sys
from eoslog._core import build_marker
from eoslog.model import AppendOrigin
from eoslog.storage.fs import files
from tests.storage.helpers import batch, opened

path, call, nth, action, after = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
appends = 0

def step():
    global appends
    if appends == after:
        files.arm_failpoint(call, action, nth)
    appends += 1

with opened(path, segment_bytes=1500, index_interval_bytes=150) as log:
    for i in range(12):
        step()
        log.append(batch(2, producer_id=7, sequence=2 * i, size=60, timestamp=i))
        print(i, flush=True)
        if i % 4 == 1:
            step()
            log.append(batch(1, producer_id=100 + i, sequence=0, transactional=True, timestamp=i), expect=[(log, log.log_end)])
        if i % 4 == 3:
            step()
            log.append(build_marker(100 + i - 2, 1, False, timestamp=i), origin=AppendOrigin.COORDINATOR)
    print("done", flush=True)
"""


def run_writer(path: str, call: str, nth: int, action: str, after: int) -> tuple[int, bool]:
    """Acknowledged batches of producer 7, and whether the fault was met."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WRITER), path, call, str(nth), action, str(after)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = done.stdout.split()
    assert done.returncode in (0, -9), done.stderr
    return len([line for line in lines if line != "done"]), done.returncode == -9


CASES = [
    # At the first append, at one that writes index entries, at an abort marker, at one that rolls.
    *[("point", p, "kill", n) for p in range(1, 8) for n in (0, 4, 5, 8) if p != 2 or n == 8],
    *[("pwrite", n, action, 0) for n in (1, 2, 5, 9, 14, 23) for action in ("kill", "kill-after")],
    *[("rename", n, action, 0) for n in (1, 2, 3, 4) for action in ("kill", "kill-after")],
]


@pytest.mark.parametrize(("call", "nth", "action", "after"), CASES)
def test_a_kill_between_any_two_stores_loses_no_acknowledged_batch(
    tmp_path, call, nth, action, after
):
    path = str(tmp_path / "live")
    with opened_dir(path) as survivor:
        acknowledged, killed = run_writer(path, call, nth, action, after)
        assert killed
        # the survivor repairs at its next append, and both see the same log
        survivor.append(batch(1, producer_id=50, sequence=0))
        check(survivor, acknowledged)
        expected = state(survivor)
    images = {
        p.name: p.read_bytes()
        for p in (tmp_path / "live" / "t-0").iterdir()
        if p.suffix.endswith("index")
    }
    shutil.copytree(path, tmp_path / "copy")
    with opened(str(tmp_path / "copy"), **SETTINGS) as log:
        assert state(log) == expected
    rebuilt = {
        p.name: p.read_bytes()
        for p in (tmp_path / "copy" / "t-0").iterdir()
        if p.suffix.endswith("index")
    }
    assert {k: v for k, v in rebuilt.items() if v} == {k: v for k, v in images.items() if v}


@pytest.mark.parametrize(("call", "nth", "action", "after"), CASES[::3])
def test_a_restart_after_a_kill_finds_every_acknowledged_batch_once(
    tmp_path, call, nth, action, after
):
    path = str(tmp_path / "dead")
    with opened_dir(path):
        pass
    acknowledged, killed = run_writer(path, call, nth, action, after)
    assert killed
    with opened(path, **SETTINGS) as log:
        check(log, acknowledged)


def opened_dir(path: str):
    import os

    os.makedirs(path)
    return opened(path, **SETTINGS)


def check(log, acknowledged: int) -> None:
    sequences = [b.base_sequence for b in log.batches(0, log.log_end) if b.producer_id == 7]
    assert sequences == [2 * i for i in range(len(sequences))]
    assert len(sequences) in (acknowledged, acknowledged + 1)
    stored = log.append(
        batch(2, producer_id=7, sequence=2 * acknowledged, size=60, timestamp=acknowledged)
    )
    assert stored.duplicate == (len(sequences) == acknowledged + 1)
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(2, producer_id=7, sequence=2 * acknowledged + 4))
    for producer_id, epoch, *_ in log.open_transactions():
        log.append(
            build_marker(producer_id, epoch + 1, False, timestamp=1),
            origin=AppendOrigin.COORDINATOR,
        )
    assert log.stable_end == log.log_end
    offsets = [offset for offset, _ in payloads(log)]
    assert offsets == sorted(set(offsets))
