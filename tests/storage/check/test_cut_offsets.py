"""No offset that a repair cuts off is given to another record later.

A consumer with that position would not read the other record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog.model import TopicPartition
from eoslog.storage.check import truncation as log_cut

T0 = TopicPartition("t", 0)
OLD, NEW = [b"old%02d" % n for n in range(40)], [b"new%d" % n for n in range(3)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A closed log of 40 records in four segments, with groups at 25 and at its end."""
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number, value in enumerate(OLD):
                if number and number % 10 == 0:
                    log._engine.partition("t", 0).roll()
                producer.send("t", value).result(60)
        log.reset_offsets("middle", {T0: 25})
        log.reset_offsets("end", {T0: 40})
    return tmp_path


def segment(place: Path, base: int) -> Path:
    return place / "t-0" / f"{base:020}.log"


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 0xFF
    path.write_bytes(data)


def lose_middle(place: Path) -> None:
    batch = eoslog.inspect(segment(place, 10), records=False)["batches"][5]
    flip(segment(place, 10), batch["position"] + 64)


def lose_first(place: Path) -> None:
    flip(segment(place, 0), 64)


def lose_length(place: Path) -> None:
    batch = eoslog.inspect(segment(place, 30), records=False)["batches"][4]
    flip(segment(place, 30), batch["position"] + 8)


def lose_last(place: Path) -> None:
    """With a recovery point that knows nothing of it."""
    os.remove(place / "recovery-point-offset-checkpoint")
    flip(segment(place, 30), segment(place, 30).stat().st_size - 1)


def lose_active(place: Path) -> None:
    os.remove(segment(place, 30))


def lose_tail(place: Path) -> None:
    batch = eoslog.inspect(segment(place, 30), records=False)["batches"][4]
    os.truncate(segment(place, 30), batch["position"])


def lose_all(place: Path) -> None:
    for base in (0, 10, 20, 30):
        os.remove(segment(place, base))


LOSSES: dict[Callable[[Path], None], int] = {
    lose_middle: 15, lose_first: 0, lose_length: 34, lose_last: 39, lose_active: 30, lose_tail: 34,
    lose_all: 0,
}  # fmt: skip


def values(log: eoslog.Log, start: int = 0) -> list[bytes]:
    return [v for b in log.scan("t", start=start, binary="copy") for v in b.to_pydict()["value"]]


def gone_on(place: Path, kept: list[bytes]) -> None:
    """New records are written, and everybody reads them, wherever they stand."""
    with eoslog.open(place) as log:
        with log.producer() as producer:
            found = [producer.send("t", value).result(60).offset for value in NEW]
        assert found == [40, 41, 42]
        assert values(log) == kept + NEW
        assert values(log, len(kept) + 1) == values(log, 40) == NEW
        for group in ("middle", "end"):
            with log.consumer("t", group_id=group) as consumer:
                read = [record.value for _ in NEW for record in consumer.consume(50, timeout=0.2)]
            assert read[-3:] == NEW, group
        assert log.check(full=True).ok
    with eoslog.open(place) as log:
        assert values(log) == kept + NEW and log.check(full=True).ok


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_appends_resume_at_the_old_end_after_a_cut(
    place: Path, lose: Callable[[Path], None]
) -> None:
    lose(place)
    report = eoslog.repair(place, "cut")
    told = f"offsets {LOSSES[lose]} to 39 remain unused"
    assert told in report.problems[-1].message
    assert eoslog.repair(place).ok
    gone_on(place, OLD[: LOSSES[lose]])


@pytest.mark.parametrize("lose", [lose_middle, lose_last], ids=lambda lose: lose.__name__)
def test_repair_killed_before_its_cut_leaves_the_damage_to_the_next_repair(
    place: Path, lose: Callable[[Path], None]
) -> None:
    lose(place)
    end = LOSSES[lose]
    base = end // 10 * 10
    batch = eoslog.inspect(segment(place, base), records=False)["batches"][end % 10]
    if lose is lose_last:  # shorter than what is written over it
        os.truncate(segment(place, base), batch["position"] + 30)
    log_cut.keep_offsets(str(place / "t-0"), (base, batch["position"], end), 40)
    assert not eoslog.repair(place).ok
    eoslog.repair(place, "cut")
    gone_on(place, OLD[:end])
