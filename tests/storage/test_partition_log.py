"""A partition by itself: appends, duplicates, rolling, reading, retention."""

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
from eoslog.storage import files
from eoslog.storage.log_reader import LogReader
from eoslog.storage.partition_log import PartitionLog
from eoslog.storage.segments import TIMES_AT_ONCE
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


def test_offsets_are_consecutive_and_epoch_and_offsets_are_stamped(log):
    results = [log.append(batch(3)) for _ in range(4)]
    assert [(r.base_offset, r.last_offset) for r in results] == [(0, 2), (3, 5), (6, 8), (9, 11)]
    assert [(b.base_offset, b.leader_epoch, b.valid) for b in log.batches(0, 12)] == [
        (0, 0, True), (3, 0, True), (6, 0, True), (9, 0, True)]  # fmt: skip


def test_nothing_is_readable_before_it_is_durable_in_a_strict_directory(log):
    log.append(batch(2))
    assert (log.log_end, log.high_watermark, log.last_stable_offset) == (2, 0, 0)
    log.flush()
    assert (log.high_watermark, log.last_stable_offset) == (2, 2)


def test_in_an_os_directory_published_is_durable(tmp_path):
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(2))
        assert (log.high_watermark, log.last_stable_offset) == (2, 2)


@pytest.mark.parametrize("behind", [1, 2, 3, 4, 5])
def test_C05_one_of_the_last_five_batches_again_gives_its_offset_and_appends_nothing(log, behind):
    sent = [batch(2, producer_id=7, sequence=2 * i) for i in range(8)]
    placed = [log.append(b) for b in sent]
    again = log.append(sent[-behind])
    assert (again.base_offset, again.last_offset, again.duplicate) == (*placed[-behind][:2], True)
    assert log.log_end == 16


def test_C05_an_old_duplicate_is_flagged_without_offset_and_appends_nothing(log):
    sent = [batch(1, producer_id=7, sequence=i) for i in range(120)]
    for b in sent:
        log.append(b)
    again = log.append(sent[10])
    assert (again.base_offset, again.duplicate, log.log_end) == (-1, True, 120)


def test_C04_a_gap_is_refused_and_the_log_is_unchanged(log):
    log.append(batch(1, producer_id=7, sequence=0))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, sequence=2))
    assert log.log_end == 1


def test_where_a_producer_is_unknown_a_transaction_begins_at_zero_and_others_anywhere(log):
    """Of a transaction with a later sequence the first batch is missing (KIP-890; Kafka 4 says the same)."""
    with pytest.raises(OutOfOrderSequence):
        log.append(
            batch(1, producer_id=7, sequence=2, transactional=True), expect=[(log, log.log_end)]
        )
    assert log.log_end == 0
    assert begin(log, 7, count=1) == 0
    log.append(batch(1, producer_id=8, sequence=2))  # its state may have expired
    assert log.log_end == 2


def test_a_batch_that_straddles_the_last_sequence_is_refused(log):
    log.append(batch(3, producer_id=7, sequence=0))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(3, producer_id=7, sequence=2))
    assert log.log_end == 3


def test_C02_sequences_wrap_to_zero_after_the_largest(log):
    log.append(batch(2, producer_id=7, sequence=2147483646))
    assert log.append(batch(1, producer_id=7, sequence=0)).base_offset == 2
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, sequence=2))


def test_a_wrap_may_fall_inside_a_batch(log):
    log.append(batch(4, producer_id=7, sequence=2147483646))
    assert log.append(batch(1, producer_id=7, sequence=2)).base_offset == 4


def test_an_older_epoch_is_refused_and_a_newer_one_starts_at_zero(log):
    log.append(batch(1, producer_id=7, epoch=3, sequence=0))
    with pytest.raises(InvalidProducerEpoch):
        log.append(batch(1, producer_id=7, epoch=2, sequence=1))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, epoch=4, sequence=1))
    assert log.append(batch(1, producer_id=7, epoch=4, sequence=0)).base_offset == 1


def test_several_batches_go_in_one_append_and_partial_repeats_add_only_the_rest(log):
    first, second, third = (batch(2, producer_id=7, sequence=s) for s in (0, 2, 4))
    log.append(first + second)
    done = log.append(second + third)
    assert done.duplicate
    assert log.log_end == 6
    assert [b.base_sequence for b in log.batches(0, 6)] == [0, 2, 4]


def test_an_append_that_rests_on_a_moved_log_changes_nothing(log):
    stale = log.log_end
    log.append(batch(1))
    assert log.append(batch(1), expect=[(log, stale)]) is None
    assert log.log_end == 1


def test_B16_a_first_transactional_batch_without_its_coordinator_is_refused(log):
    """R04 of docs/reliability.md."""
    with pytest.raises(InvalidTxnState):
        log.append(batch(1, producer_id=7, sequence=0, transactional=True))
    assert log.log_end == 0


def test_an_open_transaction_holds_the_stable_end_and_its_marker_frees_it(log):
    """R61 of docs/reliability.md."""
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


def test_a_marker_fences_the_epoch_it_ends(log):
    begin(log, 7)
    end(log, 7, commit=False)
    with pytest.raises(InvalidProducerEpoch):
        log.append(
            batch(1, producer_id=7, epoch=0, sequence=2, transactional=True),
            expect=[(log, log.log_end)],
        )


def test_a_marker_of_the_data_s_own_epoch_is_refused_while_it_is_open(log):
    begin(log, 7)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 7, commit=True, epoch=0)


def test_a_plain_batch_inside_its_own_producer_s_transaction_is_refused(log):
    begin(log, 7)
    with pytest.raises(InvalidTxnState):
        log.append(batch(1, producer_id=7, sequence=2))


def test_an_empty_transaction_s_marker_leaves_no_abort_entry(log):
    end(log, 7, commit=False)
    assert log.aborted(0, log.log_end) == []
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, producer_id=7, epoch=1, sequence=17))


def test_damaged_and_oversized_batches_are_refused_with_both_values(tmp_path):
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


def test_clients_may_not_write_control_batches(log):
    with pytest.raises(CorruptRecord, match="control"):
        log.append(build_marker(7, 0, True, timestamp=1))


def test_segments_roll_by_size_and_reading_crosses_them(log):
    for i in range(100):
        log.append(batch(2, size=50, timestamp=i))
    bases = log.reader.bases()
    assert len(bases) > 3
    assert [offset for offset, _ in payloads(log)] == list(range(200))
    for start in range(0, 200, 7):
        found = next(iter(log.batches(start, 200)))
        assert found.base_offset <= start <= found.last_offset


def test_segments_roll_by_message_time(tmp_path):
    with opened(str(tmp_path), segment_ms=1000) as log:
        for timestamp in (0, 900, 1001, 500, 2500):
            log.append(batch(1, timestamp=timestamp))
        assert log.reader.bases() == [0, 2, 4]


def test_index_entries_follow_kafka_s_rule(tmp_path):
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


def test_offset_for_time_over_many_segments_is_what_a_look_at_every_record_gives(tmp_path):
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
        bases = log.reader.bases()
        assert len(bases) > 20
        for base in (bases[3], bases[10]):  # nothing is known of these
            os.unlink(log.segment(base).path(".timeindex"))
        asked(LogReader(log.name, log.path, log.core))


@pytest.mark.parametrize("segment_bytes", [1 << 30, 700_000])
def test_offset_for_time_finds_its_way_over_batches_of_every_size(tmp_path, segment_bytes):
    """Below, at and above what is read at once, while the index that was looked at before grows."""
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


def test_a_time_index_of_many_entries_is_searched_as_one_that_is_read_whole(tmp_path):
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


def test_delete_records_moves_the_start_and_drops_whole_segments(log):
    for i in range(100):
        log.append(batch(2, size=50, timestamp=i))
    log.flush()
    files = len(os.listdir(log.path))
    assert log.delete_records(150) == 150
    assert len(os.listdir(log.path)) < files
    with pytest.raises(OffsetOutOfRange):
        log.read(149, 160)
    assert payloads(log)[0][0] in (150, *range(140, 150))
    with pytest.raises(OffsetOutOfRange, match="high watermark"):
        log.delete_records(201)


def test_a_log_start_is_never_beyond_what_a_power_cut_leaves(tmp_path):
    """Else a log in an "os" directory ends below it, and what is appended there counts as deleted."""
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(5))
        assert log.durable_end < 5
        assert log.delete_records(-1) == 5
        assert log.durable_end == 5


def test_retention_by_size_keeps_at_least_the_limit(tmp_path):
    with opened(str(tmp_path), segment_bytes=2000, retention_bytes=5000) as log:
        for _ in range(100):
            log.append(batch(1, size=100))
        log.flush()
        log.apply_retention(0)
        kept = sum(log.segment(b).size() for b in log.reader.bases())
        assert 5000 <= kept < 9000


def test_retention_by_time_drops_expired_segments_even_the_active_one(tmp_path):
    with opened(str(tmp_path), segment_bytes=2000, retention_ms=1000) as log:
        for i in range(100):
            log.append(batch(1, size=100, timestamp=i))
        log.flush()
        assert log.apply_retention(500) == 0
        assert log.apply_retention(10_000) > 0
        assert log.log_start == log.log_end == 100
        assert log.append(batch(1)).base_offset == 100


def test_G07_an_open_transaction_pins_its_first_segment(tmp_path):
    with opened(str(tmp_path), segment_bytes=1000, retention_ms=1) as log:
        log.append(batch(1, size=900))
        begin(log, 7)
        for _ in range(10):
            log.append(batch(1, size=900))
        log.flush()
        log.apply_retention(10**9)
        assert log.log_start <= 1
        assert log.open_transactions() == [(7, 0, 1, 2)]


def test_C03_state_survives_a_restart(tmp_path):
    """R37 of docs/reliability.md."""
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


def test_two_handles_fold_each_other_s_appends(tmp_path):
    with (
        opened(str(tmp_path), segment_bytes=1000) as one,
        opened(str(tmp_path), segment_bytes=1000) as two,
    ):
        for i in range(40):
            (one, two)[i % 2].append(batch(1, producer_id=7, sequence=i, size=100))
        assert state(one) == state(two)
        assert one.log_end == 40
        assert one.append(batch(1, producer_id=7, sequence=39)).duplicate


def test_a_segment_that_cannot_be_read_is_named_with_the_systems_reason(tmp_path):
    with opened(str(tmp_path)) as writer, opened(str(tmp_path)) as other:
        writer.append(batch(3))
        files.arm_failpoint("pread", "EIO")
        with pytest.raises(StorageError, match=r"segment 0 .*\[5\]"):
            other.fold()
        other.fold()
        assert other.core.next_offset == 3


def test_a_flush_of_segments_that_others_rolled_leaves_the_folds_own_open(tmp_path):
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
def test_a_roll_that_failed_says_why_and_the_next_one_works(tmp_path, call, nth, by_hand):
    """Half of the prepared files may bear their names by then: none of them is used again."""
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
