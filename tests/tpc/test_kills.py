"""A coordinator killed or suspended at each of its steps, and its recovery."""

from __future__ import annotations

import pytest

import eoslog
from tests.tpc.banks import hanging, settled, visible
from tests.tpc.move_process import ABORTED, KILLED, STOPPED, Mover, start

pytestmark = [pytest.mark.process, pytest.mark.slow]

UNDECIDED = [
    ("stage.appended", 1), ("tpc.recorded", 1),
    *[(point, nth) for nth in (1, 2, 3) for point in ("tpc.prepare", "tpc.prepared")],
]  # fmt: skip
DECIDED = [
    ("resolve.durable", 1), ("tpc.decided", 1),
    *[(point, nth) for nth in (1, 2, 3) for point in ("tpc.commit", "tpc.committed")],
    ("tpc.released", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def process():
    process = start()
    yield process
    process.stdin.close()
    process.wait(60)


@pytest.fixture
def mover(process, banks, path) -> Mover:
    with eoslog.open(path) as log:
        log.create_topic("moves")
    return Mover(process, path, banks)


@pytest.mark.parametrize(("point", "nth"), UNDECIDED)
def test_row_L05_a_death_before_the_decision_leaves_nothing(mover, point, nth):
    assert mover.move(7, point, nth) == KILLED
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == []
    assert mover.move(5) == 0
    assert settled(mover.path, *mover.databases) == [5]


@pytest.mark.parametrize(("point", "nth"), DECIDED)
def test_row_L05_a_death_after_the_decision_leaves_all(mover, point, nth):
    assert mover.move(7, point, nth) == KILLED
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == [7]


def test_the_next_transaction_completes_what_a_dead_process_left(mover):
    lost, kept = UNDECIDED[1:], DECIDED[1:]  # the first ones are also points of a recovery
    for amount, (point, nth) in enumerate([*lost, *kept], 1):
        assert mover.move(amount, point, nth) == KILLED
    assert mover.move(100) == 0
    assert hanging(*mover.databases) == []
    assert mover.recover() == 0  # the log may forget the decisions
    first = len(lost) + 1
    assert settled(mover.path, *mover.databases) == [*range(first, first + len(kept)), 100]


def test_a_death_at_every_statement_leaves_all_or_nothing(mover):
    for bank in (0, 1):
        nth = 1
        while mover.move(1, f"statement{bank}", nth) == KILLED:
            nth += 1
        assert nth > 10
    assert mover.recover() == 0
    assert len(settled(mover.path, *mover.databases)) >= 2


@pytest.mark.parametrize("point", ["resolve.appended", "tpc.abort_decided", "tpc.recovered"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_recovery_that_dies_is_repeated(mover, point, nth):
    assert mover.move(7, "tpc.prepared", 3) == KILLED
    died = mover.recover(point=point, nth=nth) == KILLED
    assert died == (nth == 1 or point == "tpc.recovered")
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == []


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_recovery_that_dies_between_commits_is_repeated(mover, nth):
    assert mover.move(7, "tpc.decided") == KILLED
    assert mover.recover(point="tpc.recovered", nth=nth) == KILLED
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == [7]


@pytest.mark.parametrize(
    ("point", "nth"), [("tpc.aborted", 1), *[("tpc.rolled_back", nth) for nth in (1, 2, 3)]]
)
def test_a_death_in_an_abort_leaves_nothing(mover, point, nth):
    assert mover.move(7, point, nth) == KILLED
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == []


def test_a_recovery_leaves_a_suspended_coordinator_alone(mover):
    assert mover.move(7, "tpc.prepared", 2, "stop") == STOPPED
    stopped = mover.pid
    assert mover.recover() == 0
    assert len(hanging(*mover.databases)) == 2
    assert mover.resume(stopped) == 0
    assert settled(mover.path, *mover.databases) == [7]


@pytest.mark.parametrize(("point", "nth"), UNDECIDED[1:])
def test_row_L05_a_zombie_cannot_commit_what_a_sweep_has_aborted(mover, point, nth):
    assert mover.move(7, point, nth, "stop") == STOPPED
    stopped = mover.pid
    assert mover.recover(older_than=0) == 0
    assert hanging(*mover.databases) == []
    assert mover.resume(stopped) == ABORTED
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == []


@pytest.mark.parametrize(("point", "nth"), DECIDED[1:])
def test_a_zombie_and_a_sweep_commit_once(mover, point, nth):
    assert mover.move(7, point, nth, "stop") == STOPPED
    stopped = mover.pid
    assert mover.recover(older_than=0) == 0
    assert hanging(*mover.databases) == []
    assert visible(mover.path) == [7]
    assert mover.resume(stopped) == 0
    assert settled(mover.path, *mover.databases) == [7]


def test_a_zombie_that_dies_after_a_late_prepare_leaves_nothing(mover):
    assert mover.move(7, "tpc.prepare", 2, "stop") == STOPPED
    stopped = mover.pid
    assert mover.recover(older_than=0) == 0
    assert mover.resume(stopped) == ABORTED  # it has prepared the second bank in the meantime
    assert settled(mover.path, *mover.databases) == []


@pytest.mark.parametrize(
    ("point", "code", "left"), [("tpc.prepared", None, []), ("tpc.decided", 0, [7])]
)
def test_a_crash_of_the_server_leaves_all_or_nothing(server, mover, point, code, left):
    assert mover.move(7, point, 1, "stop") == STOPPED
    stopped = mover.pid
    server.stop("immediate")
    server.start()
    assert (mover.resume(stopped) == 0) == (code == 0)
    assert mover.recover() == 0
    assert settled(mover.path, *mover.databases) == left
