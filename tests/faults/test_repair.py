"""A repair that is killed at any of its calls is completed by the next repair."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from tests.faults.harness import Child, live

pytestmark = pytest.mark.process

VALUES = [b"v%02d" % number for number in range(24)]
CALLS = ("pwrite", "fdatasync", "fsync", "rename", "unlink", "ftruncate")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 records in four segments; batches 2, 8, 9 and an abort marker are damaged."""
    place = tmp_path_factory.mktemp("damaged") / "log"
    with eoslog.open(place) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            for commit in (False, True):
                producer.begin_transaction()
                producer.produce("t", b"committed" if commit else b"aborted")
                producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()
        with log.producer() as producer:
            for number, value in enumerate(VALUES):
                producer.send("t", value).result(60)
                if number % 6 == 5:
                    partition.roll()
    logs = sorted((place / "t-0").glob("*.log"))
    for number, bad in ((0, 1), (0, 6), (1, 2), (1, 3)):
        batch = eoslog.inspect(logs[number], records=False)["batches"][bad]
        data = bytearray(logs[number].read_bytes())
        data[batch["position"] + 30] ^= 0xFF
        logs[number].write_bytes(data)
    return place


SKIPPED = [b"committed", *(v for n, v in enumerate(VALUES) if n not in (2, 8, 9))]


def repairing(child: Child, path: Path, mode: str) -> None:
    child.armed()
    eoslog.repair(path, mode)


def points(
    mode: str, damaged: Path, scratch: Path, calls: tuple[str, ...] = CALLS
) -> Iterator[tuple[str, int, Path]]:
    """Yield every call of a repair and the directory that a kill there leaves."""
    for call in calls:
        for nth in itertools.count(1):
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(damaged, scratch)
            life = live(repairing, scratch, mode, faults=((call, "kill", nth),))
            if not life.killed:
                life.fine()
                break
            yield call, nth, scratch


def values(place: Path, *, sound: bool = True) -> list[bytes]:
    with eoslog.open(place) as log:
        assert not sound or log.check(full=True).ok
        return [v for b in log.scan("t", binary="copy") for v in b.to_pydict()["value"]]


def contents(place: Path) -> list[bytes]:
    """What the partition's log files hold, and the kept copies."""
    return sorted(p.read_bytes() for p in (place / "t-0").iterdir() if ".log" in p.name)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "wanted"), [("skip", SKIPPED), ("cut", [])])
def test_field_C2_a_repair_killed_at_any_call_is_completed_by_the_next(
    damaged: Path, tmp_path: Path, mode: str, wanted: list[bytes]
) -> None:
    done = Path(shutil.copytree(damaged, tmp_path / "done"))
    eoslog.repair(done, mode)
    ended, seen = contents(done), 0
    assert values(done) == wanted
    for point in points(mode, damaged, tmp_path / "dead"):
        place = point[-1]
        eoslog.repair(place, mode)
        assert contents(place) == ended, point
        assert values(place) == wanted, point
        assert not list(place.rglob("*.tmp")), point  # the opening removes what it left
        seen += 1
    assert seen > 20


def test_field_C2_a_log_after_a_killed_skip_is_complete_or_reports_damage(
    damaged: Path, tmp_path: Path
) -> None:
    """It is damaged yet, and says so, or it is whole: never the one as the other."""
    for point in points("skip", damaged, tmp_path / "dead", ("rename", "unlink")):
        try:
            found = values(point[-1], sound=False)
        except eoslog.errors.CorruptRecord:
            continue
        assert found == SKIPPED, point


@pytest.fixture(scope="module")
def without_segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An abort marker is in a segment that is missing; its producer committed later."""
    place = tmp_path_factory.mktemp("missing") / "log"
    with eoslog.open(place) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"aborted")
            producer.flush()
            partition.roll()
            producer.abort_transaction()
            partition.roll()
            producer.begin_transaction()
            producer.produce("t", b"committed")
            producer.commit_transaction()
    (place / "t-0" / f"{1:020}.log").unlink()
    return place


@pytest.mark.parametrize("mode", ["skip", "cut"])
def test_a_killed_repair_of_a_missing_segment_shows_no_aborted_record(
    without_segment: Path, tmp_path: Path, mode: str
) -> None:
    seen = 0
    for point in points(mode, without_segment, tmp_path / "dead"):
        opened = Path(shutil.copytree(point[-1], tmp_path / "opened", dirs_exist_ok=True))
        try:
            assert values(opened, sound=False) == [b"committed"], point
        except eoslog.errors.CorruptRecord:
            pass  # it is damaged yet, and says so
        shutil.rmtree(opened)
        eoslog.repair(point[-1], mode)
        assert values(point[-1]) == [b"committed"], point
        seen += 1
    assert seen > 5
