"""A writer is killed at every step of a roll, and other handles continue.

Two open handles of this process represent two live ones: their sessions and locks are their own. One
is in the old segment, the other is in the next one as soon as that has its name. A roll is complete
with the name of the log file. The next lock holder finishes or undoes it, wherever its fold is.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eoslog._core import build_marker
from eoslog.model import AppendOrigin, AppendResult
from eoslog.storage.log.ingest import adopt
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.retention import delete_records
from eoslog.storage.segment.segment import LOG, SNAPSHOT, offsets_in
from tests.faults.harness import Child, live
from tests.storage.helpers import batch, opened, payloads, staged, state

pytestmark = pytest.mark.process

SETTINGS = {"segment_bytes": 2000, "index_interval_bytes": 200}
CALLS = ("open", "pwrite", "rename", "ftruncate", "unlink", "fdatasync")
POINTS = range(1, 8)
numbers = itertools.count(1000)


def put(log: PartitionLog, size: int = 60) -> int:
    """A record of a producer of its own; its offset."""
    producer = os.getpid() << 20 | next(numbers)  # children count on from the same number
    done = log.append(batch(1, producer_id=producer, sequence=0, size=size))
    assert done is not None
    return done.base_offset


def abort(log: PartitionLog) -> None:
    log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)


def rolls(log: PartitionLog) -> None:
    put(log, 900)


def rolls_for_an_abort(log: PartitionLog) -> None:
    log.configure(log.settings.__class__(segment_bytes=1500))
    abort(log)


def seals(log: PartitionLog) -> None:
    log.roll()


def adopts(log: PartitionLog) -> None:
    """Adopt a segment of a producer other than that of the open transaction."""
    segment = staged(log, *[1] * 10)
    segment.bear(8, 0, 0, False)
    adopt(log, segment)


def dies(child: Child, path: str, act: Callable[[PartitionLog], None]) -> None:
    with opened(path, **SETTINGS) as log:
        child.armed()
        act(log)


def half_rolled(path: str) -> None:
    """Another process was killed: the next segment has its name and is empty."""
    assert live(dies, path, rolls, faults=(("point", "kill", 2),)).killed


def half_rolled_and_filled(path: str) -> None:
    """The same, and then an append came."""
    half_rolled(path)
    with opened(path, **SETTINGS) as log:
        put(log)


def sealed(path: str) -> None:
    """The next segment is published, and empty."""
    with opened(path, **SETTINGS) as log:
        log.roll()


def nothing(path: str) -> None:
    """The active segment has room for a small record."""


ACTS = {
    "rolls": (nothing, rolls),
    "rolls for an abort marker": (nothing, rolls_for_an_abort),
    "seals": (nothing, seals),
    "adopts a staged file": (nothing, adopts),
    "adopts one behind what another one left": (half_rolled_and_filled, adopts),
    "begins a segment that was sealed for it": (sealed, put),
    "goes on with what another one left": (half_rolled, put),
}


def indexes(path: Path) -> dict[str, bytes]:
    found = (path / "t-0").iterdir()
    images = {p.name: p.read_bytes() for p in found if p.suffix.endswith("index")}
    return {name: image for name, image in images.items() if image}


def live_on(path: Path, act: str, fault: tuple[str, str, int], first: str) -> bool:
    """One death; False if the life came to its end before it."""
    prepare, body = ACTS[act]
    with opened(str(path), **SETTINGS) as stayed, opened(str(path), **SETTINGS) as went:
        stayed.append(
            batch(1, producer_id=7, sequence=0, transactional=True),
            expect=[(stayed, stayed.log_end)],
        )
        acknowledged = [put(stayed, 1300)]
        went.fold()
        prepare(str(path))
        life = live(dies, str(path), body, faults=(fault,))
        if not life.killed:
            life.fine()
            return False
        published = went.log_end
        went.writer_files.enter_next()
        two = [stayed, went] if first == "stayed" else [went, stayed]
        acknowledged += [put(log, size) for size in (60, 1500, 60) for log in two]
        assert acknowledged[1:] == list(range(published, stayed.log_end))
        if stayed.open_transactions():
            abort(two[0])
        assert stayed.stable_end == stayed.log_end
        expected = state(stayed)
        assert state(went) == expected
        assert set(acknowledged) <= {offset for offset, _ in payloads(went)}
        assert len(offsets_in(stayed.path, LOG)) > 2
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    with opened(str(copy), **SETTINGS) as log:
        assert state(log) == expected
    assert indexes(path) == indexes(copy)
    shutil.rmtree(copy)
    return True


@pytest.mark.parametrize("first", ["stayed", "went"])
@pytest.mark.parametrize("act", ACTS)
def test_other_handles_continue_wherever_a_writer_is_killed_in_a_roll(
    tmp_path: Path, act: str, first: str
) -> None:
    deaths = 0
    for call in ("point", *CALLS):
        for nth in POINTS if call == "point" else itertools.count(1):
            path = tmp_path / f"{call}-{nth}"
            path.mkdir()
            met = live_on(path, act, (call, "kill", nth), first)
            deaths += met
            if not met and call != "point":
                break
    assert deaths > 6


def test_producers_of_a_deleted_segment_survive_a_roll_without_a_snapshot(
    tmp_path: Path,
) -> None:
    """Else a batch that is sent again after a restart is there twice (KAFKA-9892)."""
    path, again = str(tmp_path), batch(1, producer_id=7, sequence=0, size=1500)
    with opened(path, **SETTINGS) as log:
        log.append(again)
        assert live(dies, path, rolls, faults=(("log.rolled", "kill", 1),)).killed
        assert offsets_in(log.path, LOG) == [0, 1]
        assert offsets_in(log.path, SNAPSHOT) == []
        log.fold()
        expected = log.producers()
        log.flush()
        delete_records(log, 1)
        assert offsets_in(log.path, LOG) == offsets_in(log.path, SNAPSHOT) == [1]
    with opened(path, **SETTINGS) as log:
        assert log.producers() == expected
        assert log.append(again) == AppendResult(0, 0, True, 1000)
