"""A repair names what a missing segment tears, and merges no transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog

MODES = pytest.mark.parametrize("mode", ["cut", "skip"])
ENDS = pytest.mark.parametrize("end", ["commit", "abort"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "log"


def write(place: Path, steps: Callable[[Any, Any, Callable[..., None]], None]) -> list[Path]:
    """Take steps with a producer, and return the segments."""
    with eoslog.open(place) as log:
        log.create_topic("t")
        producer = log.producer(transactional_id="till", linger_ms=0)
        producer.init_transactions()

        def put(*values: str, roll: bool = False) -> None:
            for value in values:
                producer.produce("t", value.encode())
            producer.flush()
            if roll:
                log._engine.partition("t", 0).roll()

        steps(log, producer, put)
        producer.close()
    return sorted((place / "t-0").glob("*.log"))


def lose(segment: Path) -> None:
    for file in segment.parent.glob(f"{segment.stem}.*"):
        file.unlink()


def repaired(place: Path, mode: str) -> list[tuple[int, str, str | None]]:
    """Repair, and return first offset, loss and outcome of torn transactions."""
    found = eoslog.repair(place)
    report = eoslog.repair(place, mode)
    torn = sorted(report.torn, key=lambda one: one.first_offset)
    assert not report.refused
    assert torn == sorted(found.torn, key=lambda one: one.first_offset)
    assert {(one.topic, one.transactional_id) for one in torn} <= {("t", "till")}
    assert eoslog.repair(place).ok and eoslog.check(place, full=True).ok
    return [(one.first_offset, one.lost, one.outcome) for one in torn]


def values(place: Path) -> list[str]:
    with eoslog.open(place) as log:
        assert log.check(full=True).ok
        assert not log.blockers()
        return [record.value.decode() for record in log.read("t")]


@MODES
@ENDS
def test_a_transaction_before_a_missing_segment_is_not_merged_with_the_next(place, mode, end):
    def steps(log, producer, put):
        producer.begin_transaction()
        put("before", roll=True)
        getattr(producer, f"{end}_transaction")()
        producer.begin_transaction()
        put("lost", roll=True)
        put("after")
        producer.commit_transaction()

    lose(write(place, steps)[1])
    assert repaired(place, mode) == [(0, "unknown", end), (1, "records", "commit")]
    assert values(place) == (["before"] if end == "commit" else []) + ["after"]


@MODES
@ENDS
def test_the_last_transaction_of_a_producer_ends_as_it_was_decided(place, mode, end):
    def steps(log, producer, put):
        producer.begin_transaction()
        put("before", roll=True)
        getattr(producer, f"{end}_transaction")()
        with log.producer(linger_ms=0) as other:
            other.send("t", b"lost").result(60)
            log._engine.partition("t", 0).roll()
            other.send("t", b"after").result(60)

    lose(write(place, steps)[1])
    assert repaired(place, mode) == [(0, "unknown", end)]
    assert values(place) == (["before"] if end == "commit" else []) + ["after"]


@MODES
@ENDS
def test_a_transaction_whose_records_are_all_lost_is_named_by_its_marker(place, mode, end):
    def steps(log, producer, put):
        put_plain(log, "before")
        producer.begin_transaction()
        put("lost", roll=True)
        getattr(producer, f"{end}_transaction")()

    lose(write(place, steps)[1])
    assert repaired(place, mode) == [(1, "records", end)]
    assert values(place) == ["before"]


@MODES
def test_a_transaction_that_lost_nothing_is_not_named(place, mode):
    def steps(log, producer, put):
        producer.begin_transaction()
        put("one", roll=True)
        put_plain(log, "lost")
        put("two")
        producer.commit_transaction()

    lose(write(place, steps)[1])
    assert repaired(place, mode) == []
    assert values(place) == ["one", "two"]


@MODES
def test_each_of_several_missing_segments_gets_its_own_markers(place, mode):
    def steps(log, producer, put):
        for name in ("one", "two", "three"):
            producer.begin_transaction()
            put(name, roll=True)
            producer.abort_transaction()
            put_plain(log, "lost")
        producer.begin_transaction()
        put("last")
        producer.commit_transaction()

    segments = write(place, steps)
    with eoslog.open(place) as log:
        assert [record.value for record in log.read("t")] == [b"lost"] * 3 + [b"last"]
    assert len(segments) == 7
    lose(segments[1])
    lose(segments[3])
    assert repaired(place, mode) == [(0, "unknown", "abort"), (3, "unknown", "abort")]
    assert values(place) == ["lost", "last"]


@MODES
def test_a_missing_segment_before_damage_is_repaired_with_it(place, mode):
    def steps(log, producer, put):
        producer.begin_transaction()
        put("before", roll=True)
        producer.abort_transaction()
        put_plain(log, "lost")
        producer.begin_transaction()
        put("after")
        put("damaged")
        producer.commit_transaction()

    segments = write(place, steps)
    lose(segments[1])
    batch = eoslog.inspect(segments[2], records=False)["batches"][1]
    data = bytearray(segments[2].read_bytes())
    data[batch["position"] + 64] ^= 0xFF
    segments[2].write_bytes(data)
    assert (0, "unknown", "abort") in repaired(place, mode)
    assert "before" not in values(place)


def put_plain(log: Any, value: str) -> None:
    """Write a record outside of transactions, and end the segment."""
    with log.producer(linger_ms=0) as other:
        other.send("t", value.encode()).result(60)
    log._engine.partition("t", 0).roll()
