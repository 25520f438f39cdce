"""A power loss at each durable step of a two-phase commit.

A database and a producer take part, and a third place decides: a log that is not the one of the
producer. A process is killed at a step. Then the segments of both logs lose what no flush has made
durable. Pages are written in any order, so any of these batches can survive in each segment.
At the first image of each step, PostgreSQL is also stopped without a checkpoint.

Then the recovery is killed at a random step, too, and the power is lost a second time.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import eoslog
from tests.coordinator.transactions.carried.carried_images import (
    durable_end,
    lose_from,
    position,
    without_zeros,
)
from tests.reference import codec
from tests.tpc.banks import MONEY, connect, create, hanging, money
from tests.tpc.move_process import KILLED, Mover, start

pytestmark = [pytest.mark.process, pytest.mark.slow]

UNDECIDED = [
    ("stage.appended", 1), ("tpc.recorded", 1), ("tpc.prepared", 1), ("prepare.flushed", 1),
    ("prepare.appended", 1), ("tpc.prepared", 2),
]  # fmt: skip
DECIDED = [
    ("resolve.durable", 1), ("tpc.committed", 1), ("txn.prepared", 1), ("txn.decided", 1),
    ("txn.marked", 1), ("tpc.committed", 2), ("tpc.released", 1),
]  # fmt: skip

SECOND_LOSSES, RESTARTS = 30, 0.2
AMBIGUOUS = ("resolve.appended", 1)
IN_A_RECOVERY = (
    "tpc.recovered", "tpc.abort_decided", "resolve.appended", "resolve.durable", "txn.durable",
    "txn.decided", "txn.marked",
)  # fmt: skip


class Logs:
    """The log that decides and the producer's log, after one transaction."""

    def __init__(self, place: Path, mover: Mover) -> None:
        """Create them and their internal partitions."""
        self.kept = place / "kept"
        self.place = place / "now"
        for name in ("decider", "sales"):
            with eoslog.open(self.kept / name) as log:
                log.create_topic("moves")
        self.mover = mover
        mover.path = str(self.kept / "decider")
        assert mover.pay(str(self.kept / "sales"), 0) == 0
        self._slots = {name: self._slots_of(name) for name in ("decider", "sales")}
        mover.path = str(self.place / "decider")
        self.sales = str(self.place / "sales")

    def _slots_of(self, name: str) -> dict[str, int]:
        with eoslog.open(self.kept / name) as log:
            metadata = log._engine.metadata
            topics = [*metadata.internal_topics.values(), *metadata.topics.values()]
            return {
                f"{topic.name}-{partition.partition}": partition.slot
                for topic in topics
                for partition in topic.partitions.values()
            }

    def reset(self) -> None:
        """Put both logs back to the state without the second transaction."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.kept, self.place)

    def lengths(self, before: Path) -> dict[Path, list[int]]:
        """What a power loss can leave of each segment that has changed; the shortest first."""
        found = {}
        for file in sorted(self.place.glob("*/*/*.log")):
            name = file.relative_to(self.place)
            data = without_zeros(file.read_bytes())
            kept = before / name
            if kept.exists() and without_zeros(kept.read_bytes()) == data:
                continue
            log, partition = name.parts[:2]
            flushed = position(data, durable_end(self.place / log, self._slots[log][partition]))
            ends = [0, *(b.position + b.size for b in codec.iter_batches(data, records=False))]
            found[file] = [end for end in ends if end >= flushed]
        return found


@pytest.fixture(scope="module")
def logs(databases: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logs]:
    process = start()
    create(*databases)
    yield Logs(tmp_path_factory.mktemp("logs"), Mover(process, "", databases))
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)


def images(logs: Logs, server: Any, point: str, nth: int) -> Iterator[str]:
    """Yield after each power loss at a step, with what has survived."""
    count = 1
    for number in itertools.count():
        if number == count:
            return
        logs.reset()
        create(*logs.mover.databases)
        assert logs.mover.pay(logs.sales, 7, point, nth) == KILLED
        lengths = logs.lengths(logs.kept)
        every = list(itertools.product(*lengths.values()))
        count = len(every)
        left = every[min(number, count - 1)]  # there are fewer if more was durable this time
        for file, size in zip(lengths, left, strict=True):
            lose_from(file, size)
        if number == 0:
            server.stop("immediate")
            server.start()
        kept = zip(lengths, left, strict=True)
        yield f"{point} {nth} left " + ", ".join(
            f"{file.relative_to(logs.place).parent} {size}" for file, size in kept
        )


def recovered(logs: Logs, image: str) -> list[int]:
    """Complete the transaction, and return the moves in the database and the log."""
    bank_dsn = logs.mover.databases[0]
    with (
        eoslog.open(logs.mover.path, outcome_retention_ms=0) as log,
        eoslog.open(logs.sales) as sales,
        eoslog.tpc.Coordinator(log) as coordinator,
        sales.producer(transactional_id="mover") as producer,
        connect(bank_dsn) as bank,
    ):
        log._engine.transactions.prepared.expire()  # what is released is forgotten
        coordinator.recover(bank, producer)
        assert hanging(bank_dsn) == [], image
        assert (log.pending(), sales.pending(), coordinator._held()) == ([], [], []), image
        moves = [int(record.value) for record in sales.read("moves")][1:]
        assert money(bank_dsn) == MONEY - sum(moves), image
        for checked in (log, sales):
            assert checked.check(full=True).ok, image
    return moves


@pytest.mark.parametrize(("point", "nth"), UNDECIDED)
def test_a_power_loss_before_the_decision_leaves_nothing(logs, server, point, nth):
    for image in images(logs, server, point, nth):
        assert recovered(logs, image) == [], image
    assert logs.mover.pay(logs.sales, 5) == 0


def test_a_power_loss_after_the_append_of_the_decision_leaves_all_or_nothing(logs, server):
    seen = [recovered(logs, image) for image in images(logs, server, *AMBIGUOUS)]
    assert {tuple(moves) for moves in seen} == {(), (7,)}
    assert logs.mover.pay(logs.sales, 5) == 0


@pytest.mark.parametrize(("point", "nth"), DECIDED)
def test_row_L05_a_power_loss_after_the_decision_leaves_all(logs, server, point, nth):
    for image in images(logs, server, point, nth):
        assert recovered(logs, image) == [7], image
    assert logs.mover.pay(logs.sales, 5) == 0


def test_a_second_power_loss_in_the_recovery_changes_no_outcome(logs, server, tmp_path):
    expected = {step: [[]] for step in UNDECIDED} | {step: [[7]] for step in DECIDED}
    expected[AMBIGUOUS] = [[], [7]]
    draw, killed = Random(1), set()
    for _ in range(SECOND_LOSSES):
        logs.reset()
        create(*logs.mover.databases)
        step, second = draw.choice(list(expected)), draw.choice(IN_A_RECOVERY)
        assert logs.mover.pay(logs.sales, 7, *step) == KILLED
        said = f"{step}, left {lose(logs, logs.kept, draw)}"
        before = shutil.copytree(logs.place, tmp_path / "before")
        if logs.mover.settle(logs.sales, second) == KILLED:
            killed.add(second)
            said += f"; {second}, left {lose(logs, before, draw)}"
            if draw.random() < RESTARTS:
                server.stop("immediate")
                server.start()
        assert recovered(logs, said) in expected[step], said
        shutil.rmtree(before)
    assert len(killed) > 3
    assert logs.mover.pay(logs.sales, 5) == 0


def lose(logs: Logs, before: Path, draw: Random) -> dict[str, int]:
    """Let each changed segment keep what it may keep; return how much."""
    left = {file: draw.choice(sizes) for file, sizes in logs.lengths(before).items()}
    for file, size in left.items():
        lose_from(file, size)
    return {str(file.relative_to(logs.place).parent): size for file, size in left.items()}
