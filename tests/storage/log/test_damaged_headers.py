"""Damage that no CRC covers: the base offset and the length of a batch."""

from __future__ import annotations

import os

import pytest

from eoslog.errors import CorruptRecord
from tests.storage.helpers import batch, opened

BATCH = 10  # which one is damaged: two records each, so it begins at offset 20


@pytest.fixture(params=["active", "sealed"])
def damaged(tmp_path, request):
    """A function that damages one field of a batch, and the path."""
    with opened(str(tmp_path)) as log:
        for i in range(20):
            log.append(batch(2, timestamp=i))
        log.flush()
        if request.param == "sealed":
            log.roll()
            log.append(batch(2))
            log.flush()
        size = log.read(0, 2)[0].data
        size = len(bytes(size))
        name = os.path.join(log.path, "0" * 20 + ".log")

        def damage(at: int, value: int, width: int) -> None:
            with open(name, "r+b") as file:
                file.seek(BATCH * size + at)
                file.write(value.to_bytes(width, "big"))

        yield log, damage, size


@pytest.mark.parametrize(
    # 38 and 40: the batch seems to end at the log end.
    "offset",
    [21, 28, 38, 40, 20 + (1 << 30), 16, 4, 0, 20 + (1 << 63), (1 << 64) - 1],
)
def test_a_changed_base_offset_never_hides_a_record(damaged, offset):
    log, damage, _ = damaged
    damage(0, offset, 8)
    with pytest.raises(CorruptRecord):
        everything(log)


@pytest.mark.parametrize("change", [1, 8, 64, 4096, 1 << 20, -1, -8])
def test_a_changed_length_never_hides_a_record(damaged, change):
    log, damage, size = damaged
    damage(8, size - 12 + change, 4)
    with pytest.raises(CorruptRecord):
        everything(log)


def test_a_fold_rejects_a_batch_with_a_wrong_crc(damaged):
    log, damage, size = damaged
    damage(size - 1, 0xFF, 1)
    with pytest.raises(CorruptRecord, match="CRC"):
        list(log.batches(0, log.log_end))


def everything(log) -> None:
    """Read all records as a reader does, each read from the end of the last."""
    at, end = 0, log.log_end
    while at < end:
        parts = log.read(at, end, 200)
        assert parts, f"stands still at {at}"
        for part in parts:
            for b in _batches(part):
                assert b.valid, "found by the CRC"
            at = part.next_offset


def _batches(part):
    from eoslog import _core

    for b in _core.iter_batches(part.data):
        if not b.valid:
            raise CorruptRecord("found by its CRC")
        yield b


@pytest.mark.parametrize("raised", [1, 2, 5, 64, 1 << 20])
def test_a_damaged_last_batch_hides_no_record_of_the_next_segment(tmp_path, raised):
    """The name of the next segment contradicts the damaged batch."""
    with opened(str(tmp_path)) as log:
        for _ in range(3):
            for i in range(5):
                log.append(batch(2, timestamp=i))
            log.roll()
        log.append(batch(2))
        log.flush()
        name = os.path.join(log.path, "0" * 20 + ".log")
        size = os.path.getsize(name) // 5
        with open(name, "r+b") as file:
            file.seek(4 * size)
            file.write((8 + raised).to_bytes(8, "big"))
        with pytest.raises(CorruptRecord):
            everything(log)
        with pytest.raises(CorruptRecord):
            list(log.batches(0, log.log_end))


@pytest.mark.parametrize("first", range(15))
@pytest.mark.parametrize("lowered", [1, 2, 8, 10, 19])
def test_a_lowered_base_offset_hides_no_record_at_any_start_of_a_read(tmp_path, first, lowered):
    """A read skips a batch that ends before its start, but not a damaged one."""
    at = 15 + first
    base = 0 if at < 20 else 20
    with opened(str(tmp_path), index_interval_bytes=100) as log:
        for i in range(20):
            log.append(batch(1, timestamp=i))
        log.roll()
        for i in range(10):
            log.append(batch(1, timestamp=i))
        log.flush()
        size = len(bytes(log.read(0, 1, 1)[0].data))
        with open(os.path.join(log.path, f"{base:020}.log"), "r+b") as file:
            file.seek((at - base) * size)
            file.write(max(at - lowered, 0).to_bytes(8, "big"))
        with pytest.raises(CorruptRecord):
            log.read(at, at + 1)
