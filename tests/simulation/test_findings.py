"""Each finding of the simulator as a test of its own.

Each test crashes at the worst moment and loses all unsynced bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import eoslog
from eoslog import Producer
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from tests.simulation.machine import seam
from tests.simulation.machine.disk import Disk
from tests.simulation.machine.world import Faults, World
from tests.simulation.oracles import looks

CALM = Faults(writeback=0)


class Power:
    """A directory whose power can be cut so that only what was synced is left."""

    def __init__(self, base: Path) -> None:
        self.base, self.count = base, 0
        checkpoints.write_meta_properties(str(base), checkpoints.MetaProperties.new("strict", 2, 1))
        image = {path.name: path.read_bytes() for path in base.iterdir()}
        self.disk = Disk(str(base / "disk0"), dict(image))

    def life(self, body: Callable[[str], None], *, crash_at: int = -1) -> World:
        """One process works on the directory, until its `crash_at`th step."""
        world = World(Random(1), self.disk, CALM)
        world.crash_at = crash_at
        process = world.spawn("p", lambda: body(self.disk.root))
        with seam.installed(world):
            world.run()
        seam.bury(process)
        if process.error is not None:
            raise process.error
        return world

    def cut(self, losing: str = "", *, hollow: bool = False, reordered: bool = False) -> None:
        self.count += 1
        if reordered:
            image = self.disk.reordered()
        else:
            image = self.disk.hollow() if hollow else self.disk.synced(losing)
        self.disk = Disk(str(self.base / f"disk{self.count}"), image)


@pytest.fixture()
def power(tmp_path: Path) -> Iterator[Power]:
    yield Power(tmp_path)


def shown(found: list[str]) -> Callable[[str], None]:
    """A life that reads topic a."""

    def body(path: str) -> None:
        with eoslog.open(path) as log:
            found[:] = [value for _, value in looks.visible(log._engine.partition("a", 0))]

    return body


def one_abort(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("a")
        with Producer({"log.dir": path, "transactional.id": "t"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("a", "aborted")
            producer.flush()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.produce("a", "kept")
            producer.commit_transaction()


def roll(path: str) -> None:
    with eoslog.open(path) as log:
        log._engine.partition("a", 0).roll()


def test_an_aborted_record_stays_hidden_after_its_abort_index_is_lost(power: Power) -> None:
    """A clean close moves the recovery point past a sealed segment.

    The indexes of the segment are durable before that.
    """
    power.life(one_abort)
    power.life(roll)
    power.cut(losing=".txnindex")
    found: list[str] = []
    power.life(shown(found))
    assert found == ["kept"]


def test_a_checkpoint_syncs_the_indexes_that_recovery_will_not_rebuild(power: Power) -> None:
    """A roll, a checkpoint and a power loss, by one process that never closes.

    See R49 of docs/contributing/regressions.md.
    """

    def body(path: str) -> None:
        one_abort(path)
        log = eoslog.open(path)
        log._engine.partition("a", 0).roll()
        log._engine._checkpointer.checkpoint()

    power.life(body)
    power.cut(losing=".txnindex")
    found: list[str] = []
    power.life(shown(found))
    assert found == ["kept"]


def test_a_segment_that_ends_at_the_recovery_point_is_scanned(power: Power) -> None:
    """The segment was active when the recovery point was written.

    Its indexes are only what recovery builds. See R44 of docs/contributing/regressions.md.
    """
    power.life(one_abort)  # clean: the recovery point is the end of the only segment

    def body(path: str) -> None:
        log = eoslog.open(path)
        log._engine.partition("a", 0).roll()

    power.life(body)
    power.cut(losing=".txnindex")
    found: list[str] = []
    power.life(shown(found))
    assert found == ["kept"]


@pytest.mark.slow
def test_an_opening_whose_files_lost_their_bytes_is_repeated(tmp_path: Path) -> None:
    """The files kept their lengths, as with XFS and ext4.

    No file has its final name before it is synced.
    """
    for step in range(1, 1000):
        base = tmp_path / f"{step}"
        base.mkdir()
        power = Power(base)

        def body(path: str) -> None:
            eoslog.open(path)

        killed = power.life(body, crash_at=step).crashed
        power.cut(hollow=True)
        power.life(body)
        shutil.rmtree(base)
        if not killed:
            break
    assert 20 < step < 1000


def test_a_directory_created_by_a_dead_process_becomes_durable(power: Power) -> None:
    """The process is killed between mkdir and the sync of the parent.

    The next process finds the directory and relies on it.
    """

    def make(path: str) -> None:
        files.make_dir(f"{path}/a-0")

    power.life(make, crash_at=2)
    assert power.disk.as_is().get("a-0", b"") is None, "killed before the mkdir, or not at all"
    assert "a-0" not in power.disk.synced()
    power.life(make)
    assert "a-0" in power.disk.synced()


def rolled_decisions(path: str) -> None:
    """A transaction, then a roll of the preallocated log that holds its decision."""
    with eoslog.open(path) as log:
        one_abort(path)
        for partition in log._engine.transaction_partitions():
            partition.sync()
            partition.roll()


def decisions(found: list[int]) -> Callable[[str], None]:
    """A life that reads the decisions: the end offset of each partition's last batch."""

    def body(path: str) -> None:
        with eoslog.open(path) as log:
            for partition in log._engine.transaction_partitions():
                batches = list(partition.batches(0, partition.log_end))
                found.append(batches[-1].last_offset + 1 if batches else 0)

    return body


def test_a_clean_close_keeps_the_truncated_end_of_a_rolled_segment(power: Power) -> None:
    """No records follow the roll, so no flush of them has synced the truncated file."""
    power.life(rolled_decisions)
    before: list[int] = []
    power.life(decisions(before))
    power.cut()
    after: list[int] = []
    power.life(decisions(after))
    assert max(before) > 0
    assert after == before


def interrupted(
    tmp_path: Path, fill: Callable[[str], None], clean: Callable[[str], None]
) -> Iterator[list[str]]:
    """Crash at each step of a life that cleans topic a; keep the last rename.

    Yields what topic a shows after each crash.
    """
    (tmp_path / "filled").mkdir()
    power = Power(tmp_path / "filled")
    power.life(fill)
    filled = power.disk.as_is()
    for step in range(1, 1000):
        power.disk = Disk(str(tmp_path / f"step{step}"), dict(filled))
        power.base = tmp_path / f"cut{step}"
        power.base.mkdir()
        crashed = power.life(clean, crash_at=step).crashed
        power.cut(reordered=True)
        found: list[str] = []
        power.life(shown(found))
        yield found
        shutil.rmtree(tmp_path / f"step{step}")
        shutil.rmtree(power.base)
        if not crashed:
            assert step > 20
            return
    raise AssertionError("the life did not end")


@pytest.mark.slow
def test_reordered_renames_leave_all_old_or_all_new_segments(tmp_path: Path) -> None:
    def fill(path: str) -> None:
        with eoslog.open(path) as log:
            log.create_topic("a", config={"cleanup.policy": "compact"})
            partition = log._engine.partition("a", 0)
            with Producer({"log.dir": path}) as producer:
                for i in range(3):
                    producer.produce("a", f"{i}", key="k")
                    producer.produce("a", f"kept {i}", key=f"{i}")
                    producer.flush()
                    partition.roll()
            partition.sync()

    def clean(path: str) -> None:
        log = eoslog.open(path)
        clean_partition(log._engine.partition("a", 0), 0, 1 << 50, force=True)

    seen = set()
    for found in interrupted(tmp_path, fill, clean):
        assert set(found) - {"0", "1"} == {"2", "kept 0", "kept 1", "kept 2"}
        seen.add(len(found))
    assert {6, 4} <= seen, "neither all old nor all new was met"


@pytest.mark.slow
def test_a_swap_first_makes_the_segment_after_it_durable(tmp_path: Path) -> None:
    """Otherwise the cleaned segment, which has gaps, may be the last one after a power loss."""

    def fill(path: str) -> None:
        with eoslog.open(path) as log:
            log.create_topic("a", config={"cleanup.policy": "compact"})
            with Producer({"log.dir": path}) as producer:
                for i in range(3):
                    producer.produce("a", f"{i}", key="k")
                    producer.flush()

    def roll_and_clean(path: str) -> None:
        partition = eoslog.open(path)._engine.partition("a", 0)
        partition.roll()
        clean_partition(partition, 0, 1 << 50, force=True)

    seen = list(interrupted(tmp_path, fill, roll_and_clean))
    assert all(found in (["0", "1", "2"], ["2"]) for found in seen)
    assert ["0", "1", "2"] in seen and seen[-1] == ["2"]
