"""The background thread: what nobody flushes becomes durable within `flush.ms`, and no flush is spare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog._core import build_batch
from eoslog.background import Background
from eoslog.storage import files
from eoslog.storage.partition_log import PartitionLog

FLUSH_S = 600.0


class Quiet:
    """A partition, and a background whose clock is `now` and whose thread has ended: it acts in `step`."""

    def __init__(self, partition: PartitionLog) -> None:
        self.now = 0.0
        self.background = Background("t", lambda: None, clock=lambda: self.now)
        self.background.close()
        self.partition = partition
        partition.on_append = self.background.note_append

    def append(self, *, flushes: bool = False) -> None:
        self.partition.append(build_batch([(0, None, b"v", ())]), flushes=flushes)

    def at(self, now: float) -> bool:
        """Let it be that time; whether everything is durable then."""
        self.now = now
        self.background.step()
        return not self.partition.unflushed


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Quiet]:
    with eoslog.open(tmp_path / "log", durability="strict") as log:
        log.create_topic("t", 1, {"flush.ms": int(FLUSH_S * 1000)})
        yield Quiet(log.engine.partition("t", 0))


def test_what_nobody_flushes_is_durable_within_flush_ms(quiet: Quiet) -> None:
    quiet.append()
    assert not quiet.at(FLUSH_S - 1)
    quiet.append()  # it does not begin anew: the first record has waited all the time
    assert quiet.at(FLUSH_S)


def test_the_time_runs_anew_once_somebody_else_has_flushed(quiet: Quiet) -> None:
    quiet.append()
    quiet.at(FLUSH_S - 1)
    quiet.partition.flush()
    quiet.append()
    assert not quiet.at(FLUSH_S)
    assert not quiet.at(2 * FLUSH_S - 2)
    assert quiet.at(2 * FLUSH_S - 1)


def test_it_leaves_alone_what_its_writer_flushes(quiet: Quiet) -> None:
    quiet.append(flushes=True)
    assert not quiet.at(2 * FLUSH_S)
    quiet.append()
    assert quiet.at(3 * FLUSH_S)


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_a_producer_leaves_the_flush_to_it_unless_it_waits_for_one(
    quiet: Quiet, tmp_path: Path, acks: int
) -> None:
    seen: list[PartitionLog] = []
    quiet.partition.on_append = seen.append
    with eoslog.Producer(log_dir=tmp_path / "log", acks=acks) as producer:
        producer.produce("t", b"v")
        producer.flush()
        assert seen == ([] if acks == -1 else [quiet.partition])


def test_a_producer_that_could_not_flush_leaves_it_to_it_after_all(
    quiet: Quiet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[PartitionLog] = []
    quiet.partition.on_append = seen.append
    with eoslog.Producer(log_dir=tmp_path / "log") as producer:
        producer.produce("t", b"v")
        producer.flush()  # it has its id
        assert not seen
        monkeypatch.setitem(files._armed, "flush.before", ["EMFILE"] * 10_000)
        producer.produce("t", b"w")
        assert producer.flush(0.2) == 1
        assert set(seen) == {quiet.partition}
        files.disarm_failpoints()
        assert producer.flush() == 0


def test_what_came_during_a_flush_is_not_forgotten(quiet: Quiet) -> None:
    quiet.append()
    quiet.append()
    quiet.partition.core.publish_durable(1, 0)  # a flush that had begun before the second record
    assert not quiet.at(FLUSH_S - 1)
    assert quiet.at(FLUSH_S)


def test_flush_messages_records_wait_for_no_time(quiet: Quiet) -> None:
    from dataclasses import replace

    quiet.partition.configure(replace(quiet.partition.settings, flush_messages=2))
    quiet.append()
    assert not quiet.at(0)
    quiet.append()
    assert quiet.at(0)


def test_a_flush_that_found_no_descriptor_is_tried_again(quiet: Quiet) -> None:
    quiet.append()
    quiet.partition.roll()
    quiet.append()
    files.arm_failpoint("open", "EMFILE")
    assert not quiet.at(FLUSH_S)
    assert quiet.at(FLUSH_S + 1)
