"""One partition: appends, duplicates, rolls, reads and retention."""

from __future__ import annotations

import os
import random

import pytest

from eoslog._core import build_marker, find_in_time_index
from eoslog.errors import (
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidTxnState,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
    StorageError,
)
from eoslog.model import AppendOrigin
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.reader import LogReader
from eoslog.storage.log.retention import apply_retention, delete_records
from eoslog.storage.log.segment_list import SegmentList
from eoslog.storage.segment.segment import TIMES_AT_ONCE
from tests.storage.helpers import batch, opened, payloads, state


@pytest.fixture
def log(tmp_path):
    with opened(str(tmp_path), segment_bytes=4000, index_interval_bytes=200) as log:
        yield log


def begin(log: PartitionLog, producer_id: int, count: int = 2, epoch: int = 0) -> int:
    done = log.append(
        batch(count, producer_id=producer_id, epoch=epoch, sequence=0, transactional=True),
        expect=[(log, log.log_end)],
    )
    assert done is not None
    return done.base_offset


def end(log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 1) -> int:
    marker = build_marker(producer_id, epoch, commit, timestamp=5)
    return log.append(marker, origin=AppendOrigin.COORDINATOR).base_offset


def test_appends_get_consecutive_offsets_and_stamp_epoch_and_offset(log):
    results = [log.append(batch(3)) for _ in range(4)]
    assert [(r.base_offset, r.last_offset) for r in results] == [(0, 2), (3, 5), (6, 8), (9, 11)]
    assert [(b.base_offset, b.leader_epoch, b.valid) for b in log.batches(0, 12)] == [
        (0, 0, True), (3, 0, True), (6, 0, True), (9, 0, True)]  # fmt: skip


def test_a_strict_directory_shows_no_record_before_it_is_durable(log):
    log.append(batch(2))
    assert (log.log_end, log.high_watermark, log.last_stable_offset) == (2, 0, 0)
    log.flush()
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)


def test_an_os_directory_shows_records_as_soon_as_they_are_published(tmp_path):
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(2))
        assert (log.high_watermark, log.last_stable_offset) == (2, 2)


@pytest.mark.parametrize("behind", [1, 2, 3, 4, 5])
def test_C05_a_repeat_of_the_last_five_batches_gets_its_offset_again(log, behind):
    sent = [batch(2, producer_id=7, sequence=2 * i) for i in range(8)]
    placed = [log.append(b) for b in sent]
    again = log.append(sent[-behind])
    assert (again.base_offset, again.last_offset, again.duplicate) == (*placed[-behind][:2], True)
    assert log.log_end == 16


def test_C05_an_older_duplicate_is_reported_without_an_offset(log):
    sent = [batch(1, producer_id=7, sequence=i) for i in range(120)]
    for b in sent:
        log.append(b)
    again = log.append(sent[10])
    assert (again.base_offset, again.duplicate, log.log_end) == (-1, True, 120)


def test_C04_a_sequence_gap_is_rejected_and_the_log_is_unchanged(log):
    log.append(batch(1, producer_id=7, sequence=0))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, sequence=2))
    assert log.log_end == 1


def test_an_unknown_producer_must_start_a_transaction_at_sequence_zero(log):
    """With a later sequence its first batch is missing (KIP-890; as in Kafka 4)."""
    with pytest.raises(OutOfOrderSequence):
        log.append(
            batch(1, producer_id=7, sequence=2, transactional=True), expect=[(log, log.log_end)]
        )
    assert log.log_end == 0
    assert begin(log, 7, count=1) == 0
    log.append(batch(1, producer_id=8, sequence=2))  # its state may have expired
    assert log.log_end == 2


def test_a_batch_that_straddles_the_last_sequence_is_rejected(log):
    log.append(batch(3, producer_id=7, sequence=0))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(3, producer_id=7, sequence=2))
    assert log.log_end == 3


def test_C02_sequences_wrap_to_zero_after_the_largest(log):
    log.append(batch(2, producer_id=7, sequence=2147483646))
    assert log.append(batch(1, producer_id=7, sequence=0)).base_offset == 2
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, sequence=2))


def test_sequences_may_wrap_inside_a_batch(log):
    log.append(batch(4, producer_id=7, sequence=2147483646))
    assert log.append(batch(1, producer_id=7, sequence=2)).base_offset == 4


def test_an_older_epoch_is_rejected_and_a_newer_one_starts_at_zero(log):
    log.append(batch(1, producer_id=7, epoch=3, sequence=0))
    with pytest.raises(InvalidProducerEpoch):
        log.append(batch(1, producer_id=7, epoch=2, sequence=1))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, epoch=4, sequence=1))
    assert log.append(batch(1, producer_id=7, epoch=4, sequence=0)).base_offset == 1


def test_an_append_of_several_batches_adds_only_those_that_are_new(log):
    first, second, third = (batch(2, producer_id=7, sequence=s) for s in (0, 2, 4))
    log.append(first + second)
    done = log.append(second + third)
    assert done.duplicate
    assert log.log_end == 6
    assert [b.base_sequence for b in log.batches(0, 6)] == [0, 2, 4]


def test_an_append_that_expects_a_moved_log_end_changes_nothing(log):
    stale = log.log_end
    log.append(batch(1))
    assert log.append(batch(1), expect=[(log, stale)]) is None
    assert log.log_end == 1


def test_B16_a_transactional_batch_without_its_coordinator_is_rejected(log):
    """R04 of docs/contributing/regressions.md."""
    with pytest.raises(InvalidTxnState):
        log.append(batch(1, producer_id=7, sequence=0, transactional=True))
    assert log.log_end == 0


def test_an_open_transaction_blocks_the_stable_end_until_its_marker(log):
    """R61 of docs/contributing/regressions.md."""
    log.append(batch(2))
    begin(log, 7)
    log.append(batch(1))
    log.flush()
    assert (log.stable_end, log.high_watermark) == (2, 5)
    marker = end(log, 7, commit=True)
    assert log.stable_end == marker + 1
    assert log.aborted(0, log.log_end) == []


def test_interleaved_aborts_enter_the_abort_index_in_marker_order(log):
    begin(log, 1)
    begin(log, 2)
    begin(log, 3)
    end(log, 2, commit=False)
    assert log.stable_end == 0
    end(log, 1, commit=False)
    end(log, 3, commit=True)
    assert log.aborted(0, log.log_end) == [(2, 2, 6), (1, 0, 7)]
    assert log.stable_end == log.log_end


def test_a_marker_fences_the_epoch_that_it_ends(log):
    begin(log, 7)
    end(log, 7, commit=False)
    with pytest.raises(InvalidProducerEpoch):
        log.append(
            batch(1, producer_id=7, epoch=0, sequence=2, transactional=True),
            expect=[(log, log.log_end)],
        )


def test_a_marker_with_the_epoch_of_the_open_transaction_is_rejected(log):
    begin(log, 7)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 7, commit=True, epoch=0)


def test_a_plain_batch_of_a_producer_in_a_transaction_is_rejected(log):
    begin(log, 7)
    with pytest.raises(InvalidTxnState):
        log.append(batch(1, producer_id=7, sequence=2))


def test_a_marker_of_an_empty_transaction_leaves_no_abort_entry(log):
    end(log, 7, commit=False)
    assert log.aborted(0, log.log_end) == []
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, epoch=1, sequence=17))


def test_damaged_and_oversized_batches_are_rejected_with_both_values(tmp_path):
    with opened(str(tmp_path), max_message_bytes=200) as log:
        broken = bytearray(batch(1))
        broken[-1] ^= 1
        with pytest.raises(CorruptRecord, match="CRC is 0x.*header says 0x"):
            log.append(broken)
        with pytest.raises(RecordTooLarge, match=r"max.message.bytes is 200"):
            log.append(batch(1, size=500))
        with pytest.raises(CorruptRecord):
            log.append(batch(1)[:-1])
        assert log.log_end == 0


def test_control_batches_from_clients_are_rejected(log):
    with pytest.raises(CorruptRecord, match="control"):
        log.append(build_marker(7, 0, True, timestamp=1))


def test_segments_roll_by_size_and_reading_crosses_them(log):
    for i in range(100):
        log.append(batch(2, size=50, timestamp=i))
    bases = log.segments.bases()
    assert len(bases) > 3
    assert [offset for offset, _ in payloads(log)] == list(range(200))
    for start in range(0, 200, 7):
        found = next(iter(log.batches(start, 200)))
        assert found.base_offset <= start <= found.last_offset


def test_segments_roll_by_message_time(tmp_path):
    with opened(str(tmp_path), segment_ms=1000) as log:
        for timestamp in (0, 900, 1001, 500, 2500):
            log.append(batch(1, timestamp=timestamp))
        assert log.segments.bases() == [0, 2, 4]


def test_index_entries_follow_kafkas_rule(tmp_path):
    with opened(str(tmp_path), index_interval_bytes=256) as log:
        position, last_entry, expected = 0, 0, []
        for _ in range(50):
            done = log.append(batch(1, size=30))
            size = next(iter(log.batches(done.base_offset, done.base_offset + 1))).size
            if position - last_entry > 256:
                expected.append((done.last_offset, position))
                last_entry = position
            position += size
        data = open(os.path.join(log.path, "0" * 20 + ".index"), "rb").read()
        found = [(int.from_bytes(data[i : i + 4], "big"), int.from_bytes(data[i + 4 : i + 8], "big"))
                 for i in range(0, len(data), 8)]  # fmt: skip
        assert found == expected
        assert expected


def test_offset_for_time_is_exact_to_the_record(log):
    for i in range(60):
        log.append(batch(3, size=50, timestamp=10 * i))
    assert log.offset_for_time(0, 180) == 0
    assert log.offset_for_time(101, 180) == 31
    assert log.offset_for_time(590, 180) == 177
    assert log.offset_for_time(593, 180) is None
    assert log.offset_for_time(590, 177) is None


def test_offset_for_time_equals_a_search_of_all_records_in_many_segments(tmp_path):
    dice = random.Random(7)
    times = [dice.randrange(1000) + 5 * i for i in range(200)]  # later segments begin earlier
    with opened(str(tmp_path), segment_bytes=600) as log:

        def asked(reader):
            for time_ms in {t + more for t in times for more in (0, 1)}:
                expected = next((i for i, t in enumerate(times) if t >= time_ms), None)
                assert reader.offset_for_time(time_ms, len(times)) == expected, time_ms

        written, times = times, []
        for some in (written[:120], written[120:]):  # asked before and after more are sealed
            for time_ms in some:
                log.append(batch(1, size=50, timestamp=time_ms))
            times += some
            log.flush()
            asked(log.reader)
        bases = log.segments.bases()
        assert len(bases) > 20
        for base in (bases[3], bases[10]):  # nothing is known of these
            os.unlink(log.segment(base).path(".timeindex"))
        asked(LogReader(log.context, SegmentList(log.context)))


@pytest.mark.parametrize("segment_bytes", [1 << 30, 700_000])
def test_offset_for_time_is_exact_with_batches_of_every_size(tmp_path, segment_bytes):
    """Below, at and above the size of one read, while the index grows."""
    dice = random.Random(11)
    times: list[int] = []
    with opened(str(tmp_path), segment_bytes=segment_bytes) as log:
        for size in [50, 5_000, 16_000, 17_000, 60_000, 300_000, 50, 900] * 4:
            count = dice.choice([1, 2, 3])
            time_ms = dice.randrange(100) + 40 * len(times)
            log.append(batch(count, size=size // count, timestamp=time_ms))
            times += range(time_ms, time_ms + count)
            for asked in {dice.choice(times) + more for more in (0, 1) for _ in range(6)}:
                expected = next((i for i, t in enumerate(times) if t >= asked), None)
                assert log.offset_for_time(asked, len(times)) == expected, asked


def test_a_search_of_a_large_time_index_equals_a_complete_read_of_it(tmp_path):
    with opened(str(tmp_path), index_interval_bytes=1) as log:
        for i in range(2500):
            log.append(batch(1, size=1, timestamp=10 * i))
        segment = log.segment(0)
        data = files.read_file(segment.path(".timeindex"))
        assert len(data) // 12 > 2 * TIMES_AT_ONCE
        for asked in (*range(-5, 25_100, 77), 0, 24_990, 1 << 62):
            expected = find_in_time_index(data, 0, asked)
            assert segment.time_bounds(asked) == (24_990, expected), asked
            exact = -(-max(asked, 0) // 10)
            assert log.offset_for_time(asked, 2500) == (exact if exact < 2500 else None)


def test_delete_records_moves_the_start_and_deletes_complete_segments(log):
    for i in range(100):
        log.append(batch(2, size=50, timestamp=i))
    log.flush()
    files = len(os.listdir(log.path))
    assert delete_records(log, 150) == 150
    assert len(os.listdir(log.path)) < files
    with pytest.raises(OffsetOutOfRange):
        log.read(149, 160)
    assert payloads(log)[0][0] in (150, *range(140, 150))
    with pytest.raises(OffsetOutOfRange, match="high watermark"):
        delete_records(log, 201)


def test_a_log_start_never_exceeds_the_end_that_survives_a_power_loss(tmp_path):
    """Otherwise an "os" log ends below it, and later appends count as deleted."""
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(5))
        assert log.durable_end < 5
        assert delete_records(log, -1) == 5
        assert log.durable_end == 5


def test_retention_by_size_keeps_at_least_the_limit(tmp_path):
    with opened(str(tmp_path), segment_bytes=2000, retention_bytes=5000) as log:
        for _ in range(100):
            log.append(batch(1, size=100))
        log.flush()
        apply_retention(log, 0)
        kept = sum(log.segment(b).size() for b in log.segments.bases())
        assert 5000 <= kept < 9000


def test_retention_by_time_deletes_expired_segments_and_the_active_one(tmp_path):
    with opened(str(tmp_path), segment_bytes=2000, retention_ms=1000) as log:
        for i in range(100):
            log.append(batch(1, size=100, timestamp=i))
        log.flush()
        assert apply_retention(log, 500) == 0
        assert apply_retention(log, 10_000) > 0
        assert log.log_start == log.log_end == 100
        assert log.append(batch(1)).base_offset == 100


def test_G07_an_open_transaction_pins_its_first_segment(tmp_path):
    with opened(str(tmp_path), segment_bytes=1000, retention_ms=1) as log:
        log.append(batch(1, size=900))
        begin(log, 7)
        for _ in range(10):
            log.append(batch(1, size=900))
        log.flush()
        apply_retention(log, 10**9)
        assert log.log_start <= 1
        assert log.open_transactions() == [(7, 0, 1, 2)]


def test_C03_producer_state_survives_a_restart(tmp_path):
    """R37 of docs/contributing/regressions.md."""
    with opened(str(tmp_path), segment_bytes=1000) as log:
        for i in range(20):
            log.append(batch(2, producer_id=7, sequence=2 * i, size=100))
        begin(log, 8)
        end(log, 8, commit=False)
        begin(log, 9)
        before = state(log)
    with opened(str(tmp_path), segment_bytes=1000) as log:
        assert state(log) == before
        assert log.append(batch(2, producer_id=7, sequence=38)).duplicate
        assert log.append(batch(1, producer_id=7, sequence=40)).base_offset == before[1]


def test_two_handles_fold_the_appends_of_each_other(tmp_path):
    with (
        opened(str(tmp_path), segment_bytes=1000) as one,
        opened(str(tmp_path), segment_bytes=1000) as two,
    ):
        for i in range(40):
            (one, two)[i % 2].append(batch(1, producer_id=7, sequence=i, size=100))
        assert state(one) == state(two)
        assert one.log_end == 40
        assert one.append(batch(1, producer_id=7, sequence=39)).duplicate


def test_a_failed_read_of_a_segment_raises_with_the_systems_reason(tmp_path):
    with opened(str(tmp_path)) as writer, opened(str(tmp_path)) as other:
        writer.append(batch(3))
        files.arm_failpoint("pread", "EIO")
        with pytest.raises(StorageError, match=r"segment 0 .*\[5\]"):
            other.fold()
        other.fold()
        assert other.core.next_offset == 3


def test_a_flush_of_later_segments_leaves_the_segment_of_the_fold_open(tmp_path):
    with (
        opened(str(tmp_path), segment_bytes=4000) as behind,
        opened(str(tmp_path), segment_bytes=4000) as writer,
    ):
        behind.append(batch(3))
        while writer.core.segment_base == 0:
            writer.append(batch(30))
        writer.append(batch(3))
        behind.flush()  # its fold is still in the first segment
        behind.fold()
        assert behind.core.next_offset == writer.log_end


@pytest.mark.parametrize(
    ("call", "nth"), [("pwrite", 1), ("rename", 1), ("rename", 2), ("rename", 3)]
)
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_failed_roll_raises_its_reason_and_the_next_roll_works(tmp_path, call, nth, by_hand):
    """Half of the prepared files may have their names: none is used again."""
    with opened(str(tmp_path), segment_bytes=1000) as log:
        log.append(batch(2, size=800))
        log.writer_files.prepare_roll()
        files.arm_failpoint(call, "EIO", nth)
        with pytest.raises(StorageError, match="Input/output error"):
            log.roll() if by_hand else log.append(batch(2, size=800))
        files.disarm_failpoints()
        for _ in range(3):
            log.append(batch(2, size=800))
        log.roll()
        log.flush()
        found = state(log)
        assert [offset for offset, _ in payloads(log)] == list(range(8))
    assert not list((tmp_path / "t-0").glob("*.next"))
    with opened(str(tmp_path)) as log:
        assert state(log) == found
