"""Group B: idempotence and the state of producers."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import LogPoisoned, OutOfOrderSequence, StorageError
from tests.storage.helpers import batch

EIO, ENOSPC = 5, 28
PID = 7


def numbered(sequence: int, count: int = 1) -> bytes:
    return batch(count, producer_id=PID, epoch=0, sequence=sequence)


def state(log: Any, topic: str, partition: int = 0) -> list[Any]:
    return sorted(log._engine.partition(topic, partition).producers(), key=lambda p: p.producer_id)


def test_R32_a_resend_after_any_restart_is_recognised(directory: Path) -> None:
    for clean in (True, False):
        with eoslog.open(directory / str(clean)) as log:
            log.create_topic("t")
            log._engine.partition("t", 0).append(numbered(0, 3))
            log._engine.partition("t", 0).flush()
        if not clean:
            os.remove(directory / str(clean) / ".kafka_cleanshutdown")
        with eoslog.open(directory / str(clean)) as log:
            again = log._engine.partition("t", 0).append(numbered(0, 3))
            assert again.duplicate and again.base_offset in (0, -1)
            assert log.offsets("t", 0).log_end == 3


@pytest.mark.parametrize("error", [EIO, ENOSPC])
def test_R33_a_failed_append_leaves_its_sequence_free(log: Any, error: int) -> None:
    part = log._engine.partition("t", 0)
    part.append(numbered(0))
    _core.arm_fault("pwrite", 1, error)
    with pytest.raises(StorageError):
        part.append(numbered(1))
    _core.disarm_faults()
    result = part.append(numbered(1))
    assert (result.base_offset, result.duplicate) == (1, False)


def test_R34_after_a_failed_sync_nothing_is_appended_or_acknowledged(log: Any) -> None:
    log._engine._background.close()  # only the test flushes
    part = log._engine.partition("t", 0)
    part.append(numbered(0))
    _core.arm_fault("fdatasync", 1, EIO)
    with pytest.raises(StorageError):
        part.flush()
    _core.disarm_faults()
    for _ in range(2):
        with pytest.raises(LogPoisoned):
            part.append(numbered(1))
        with pytest.raises(LogPoisoned):
            part.flush()
    assert part.durable_end == 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2**31 - 6, 2**31))
@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_R35_sequences_wrap_at_their_end(log: Any, first: int, size: int) -> None:
    part = log._engine.partition("t", 0)
    part.append(numbered(first, 1))
    following = (first + 1) % 2**31
    part.append(numbered(following, size))
    assert part.append(numbered(following, size)).duplicate
    with pytest.raises(OutOfOrderSequence):
        part.append(numbered((following + size + 1) % 2**31))
    assert not part.append(numbered((following + size) % 2**31)).duplicate


def test_R38_each_of_the_last_five_batches_is_recognised_in_any_order(log: Any) -> None:
    part = log._engine.partition("t", 0)
    for sequence in range(8):
        part.append(numbered(sequence))
    for sequence in (7, 3, 5, 4, 6, 3):
        again = part.append(numbered(sequence))
        assert (again.duplicate, again.base_offset) == (True, sequence)
    assert part.log_end == 8


def test_R39_a_batch_after_a_failed_one_is_rejected(log: Any) -> None:
    part = log._engine.partition("t", 0)
    part.append(numbered(0, 5))
    _core.arm_fault("pwrite", 1, EIO)
    with pytest.raises(StorageError):
        part.append(numbered(5))
    _core.disarm_faults()
    with pytest.raises(OutOfOrderSequence):
        part.append(numbered(6))
    assert part.append(numbered(5)).base_offset == 5


@pytest.mark.slow
def test_R42_a_damaged_snapshot_is_never_used(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("small", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        part = log._engine.partition("small", 0)
        for sequence in range(60):
            part.append(numbered(sequence, 2) if sequence < 1 else numbered(sequence + 1))
        part.flush()
        expected = state(log, "small")
    names = sorted((directory / "small-0").glob("*.snapshot"))
    assert len(names) > 2
    choice = random.Random(42)
    originals = {name: name.read_bytes() for name in names}
    damages = [lambda d, n=n: d[:n] for n in (0, 1, 9, 10, 30, 55)]
    damages += [
        lambda d, at=at: d[:at] + bytes([d[at] ^ (1 << choice.randrange(8))]) + d[at + 1 :]
        for at in range(56)
    ]
    for damage in damages:
        for name, data in originals.items():
            name.write_bytes(damage(data))
        for mark in directory.glob(".kafka_cleanshutdown"):
            mark.unlink()
        with eoslog.open(directory) as log:
            assert state(log, "small") == expected


def test_R42_a_snapshot_that_names_a_producer_twice_is_rejected(directory: Path) -> None:
    """Such a snapshot made the list of open transactions circular (found by fuzzing)."""
    from eoslog.storage.segment.producer_snapshots import write_snapshot
    from eoslog.storage.segment.segment import read_snapshot
    from tests.fuzz.seeds import _snapshot_entry

    directory.mkdir()
    write_snapshot(str(directory), 1, _snapshot_entry(5, 10) + _snapshot_entry(6, 11))
    assert read_snapshot(str(directory / f"{1:020d}.snapshot")) is not None
    write_snapshot(str(directory), 2, _snapshot_entry(5, 10) * 2)
    assert read_snapshot(str(directory / f"{2:020d}.snapshot")) is None


def test_R45_producer_ids_of_dead_processes_are_never_reused(
    directory: Path,
) -> None:
    seen: set[int] = set()
    for _ in range(30):
        with eoslog.open(directory) as log:
            block = log._engine.metadata.allocate_producer_ids()
            fresh = {log._engine.producer_ids.next_producer_id() for _ in range(3)}
        assert not fresh & seen and not seen & set(block)
        seen |= fresh | set(block)
