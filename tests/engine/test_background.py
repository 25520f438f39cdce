"""The background thread makes idle records durable within `flush.ms`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog._core import build_batch
from eoslog.engine.scheduler import Background
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog

FLUSH_S = 600.0


class Quiet:
    """A partition and a background whose clock is `now`; it acts only in `step`."""

    def __init__(self, partition: PartitionLog) -> None:
        self.now = 0.0
        self.background = Background("t", clock=lambda: self.now)
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
        yield Quiet(log._engine.partition("t", 0))


def test_the_background_flushes_idle_records_within_flush_ms(quiet: Quiet) -> None:
    quiet.append()
    assert not quiet.at(FLUSH_S - 1)
    quiet.append()  # the timer does not restart: the first record has waited since it was appended
    assert quiet.at(FLUSH_S)


def test_the_flush_timer_restarts_after_another_flush(quiet: Quiet) -> None:
    quiet.append()
    quiet.at(FLUSH_S - 1)
    quiet.partition.flush()
    quiet.append()
    assert not quiet.at(FLUSH_S)
    assert not quiet.at(2 * FLUSH_S - 2)
    assert quiet.at(2 * FLUSH_S - 1)


def test_the_flush_timer_restarts_after_a_decision_that_carries(quiet: Quiet) -> None:
    """Commits in a row do not wait for flushes of what their decisions have."""
    quiet.append()
    quiet.at(FLUSH_S - 1)
    quiet.partition.count_carried(quiet.partition.log_end)
    quiet.append()
    assert not quiet.at(2 * FLUSH_S - 2)
    quiet.append()  # not carried: the timer does not restart
    assert quiet.at(2 * FLUSH_S - 1)


def test_the_background_skips_records_that_their_writer_flushes(quiet: Quiet) -> None:
    quiet.append(flushes=True)
    assert not quiet.at(2 * FLUSH_S)
    quiet.append()
    assert quiet.at(3 * FLUSH_S)


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_a_producer_without_acks_all_leaves_the_flush_to_the_background(
    quiet: Quiet, tmp_path: Path, acks: int
) -> None:
    seen: list[PartitionLog] = []
    quiet.partition.on_append = seen.append
    with eoslog.Producer(log_dir=tmp_path / "log", acks=acks) as producer:
        producer.produce("t", b"v")
        producer.flush()
        assert seen == ([] if acks == -1 else [quiet.partition])


def test_a_producer_whose_flush_failed_leaves_it_to_the_background(
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


def test_records_appended_during_a_flush_are_flushed_in_the_background(quiet: Quiet) -> None:
    quiet.append()
    quiet.append()
    quiet.partition.core.publish_durable(1, 0)  # a flush that had begun before the second record
    assert not quiet.at(FLUSH_S - 1)
    assert quiet.at(FLUSH_S)


def test_flush_messages_starts_a_flush_without_a_delay(quiet: Quiet) -> None:
    from dataclasses import replace

    quiet.partition.configure(replace(quiet.partition.settings, flush_messages=2))
    quiet.append()
    assert not quiet.at(0)
    quiet.append()
    assert quiet.at(0)


def test_a_flush_that_found_no_free_descriptor_is_retried(quiet: Quiet) -> None:
    quiet.append()
    quiet.partition.roll()
    quiet.append()
    files.arm_failpoint("open", "EMFILE")
    assert not quiet.at(FLUSH_S)
    assert quiet.at(FLUSH_S + 1)
