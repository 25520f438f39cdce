"""Compaction of one partition keeps the latest records and changes nothing else."""

from __future__ import annotations

import os
import random
import threading

import pytest

from eoslog._core import build_batch, build_marker, iter_batches
from eoslog.errors import CorruptRecord
from eoslog.model import AppendOrigin
from eoslog.storage.compaction import compactor as compaction
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.segment.segment_files import read_txn_index
from tests.storage import helpers
from tests.storage.helpers import opened, state

DAY = 86_400_000
NOW = 1_700_000_000_000


class Writer:
    """Appends keyed records to a log; `model` is what a reader must find, by offset."""

    def __init__(self, log):
        self.log = log
        self.sequences = {}
        self.epochs = {}
        self.open = {}
        self.aborted = set()
        self.records = {}

    def put(self, pairs, producer=-1, transactional=False, codec="none"):
        epoch = self.epochs.setdefault(producer, 0) if producer >= 0 else -1
        sequence = self.sequences.get((producer, epoch), 0) if producer >= 0 else -1
        data = build_batch(
            [(NOW + i, k, v, ()) for i, (k, v) in enumerate(pairs)], producer_id=producer,
            producer_epoch=epoch, base_sequence=sequence, transactional=transactional, compression=codec,
        )  # fmt: skip
        expect = [(self.log, self.log.log_end)] if transactional else ()
        base = self.log.append(data, expect=expect).base_offset
        if producer >= 0:
            self.sequences[producer, epoch] = sequence + len(pairs)
        for i, (key, value) in enumerate(pairs):
            self.records[base + i] = (key, value)
        if transactional:
            self.open.setdefault(producer, []).extend(range(base, base + len(pairs)))
        return base

    def end(self, producer, commit):
        epoch = self.epochs.get(producer, 0) + 1
        marker = build_marker(producer, epoch, commit, timestamp=NOW)
        self.log.append(marker, origin=AppendOrigin.COORDINATOR)
        self.epochs[producer] = epoch
        gone = self.open.pop(producer, [])
        if not commit:
            self.aborted.update(gone)

    def latest(self, below=1 << 62):
        """{key: (offset, value)} of what counts; a tombstone is a value of None."""
        undecided = {o for offsets in self.open.values() for o in offsets}
        found = {}
        for offset in sorted(o for o in self.records if o < below):
            key, value = self.records[offset]
            if offset not in self.aborted and offset not in undecided and key is not None:
                found[key] = (offset, value)
        return found


def committed(log, start=None, bound=None):
    """[(offset, key, value)] as a read_committed reader gets them."""
    start = log.log_start if start is None else start
    bound = log.last_stable_offset if bound is None else bound
    while True:
        version = log.cleaned_version
        aborted = log.aborted(start, bound)
        out = []
        for batch in log.batches(start, bound):
            hidden = batch.transactional and any(
                p == batch.producer_id and first <= batch.base_offset <= last
                for p, first, last in aborted
            )
            if not batch.control and not hidden:
                out += [(o, k, v) for o, _, k, v, _ in batch.records() if start <= o < bound]
        if log.cleaned_version == version:
            return out


def folded(records):
    found = {}
    for offset, key, value in records:
        found[key] = (offset, value)
    return found


def layout(log):
    """[(base offset, last offset, records, control)] of each batch."""
    return [(b.base_offset, b.last_offset, b.count, b.control) for b in log.batches(0, log.log_end)]


def clean(log, dirty=0, now=NOW, **options):
    log.flush()
    return clean_partition(log, dirty, now, force=True, **options)


@pytest.fixture
def log(tmp_path):
    with opened(
        str(tmp_path), segment_bytes=4000, index_interval_bytes=100, delete_retention_ms=DAY
    ) as opened_log:
        yield opened_log


def test_the_last_record_of_each_key_stays_at_its_offset(log):
    writer = Writer(log)
    for i in range(40):
        writer.put([(b"k%d" % (i % 5), b"v%d" % i), (b"other%d" % (i % 3), b"w%d" % i)])
    log.roll()
    expected = writer.latest()
    before = log.log_end
    done = clean(log)
    records = committed(log)
    assert folded(records) == expected
    assert len(records) == len(expected) == done.records_after
    assert (log.log_end, done.end) == (before, before)
    assert done.bytes_after < done.bytes_before


def test_cleaning_keeps_records_without_a_key_and_the_codec_of_batches(log):
    writer = Writer(log)
    for codec in ("gzip", "lz4", "zstd", "snappy"):
        writer.put([(None, b"x"), (b"a", codec.encode()), (codec.encode(), b"1")], codec=codec)
    log.roll()
    clean(log)
    assert [o for o, key, _ in committed(log) if key is None] == [0, 3, 6, 9]
    assert folded(r for r in committed(log) if r[1] is not None) == writer.latest()
    kept = {b.compression for b in log.batches(0, log.log_end) if b.count}
    assert kept == {"gzip", "lz4", "zstd", "snappy"}
    assert all(b.valid for b in log.batches(0, log.log_end))


def test_cleaning_leaves_the_active_segment_and_open_transactions_alone(log):
    """R71: an open transaction older than all dirty data bounds the pass."""
    writer = Writer(log)
    writer.put([(b"a", b"1")])
    writer.put([(b"a", b"2")])
    log.roll()
    writer.put([(b"a", b"open")], producer=1, transactional=True)
    writer.put([(b"a", b"3")])
    log.roll()
    writer.put([(b"a", b"4")])
    above = [entry for entry in layout(log) if entry[0] >= 2]
    done = clean(log)
    assert done.end == 2
    assert [entry for entry in layout(log) if entry[0] >= 2] == above
    assert [entry for entry in layout(log) if entry[0] < 2] == [(1, 1, 1, False)]


def test_cleaning_stops_at_the_bound_of_a_coordinator(log):
    writer = Writer(log)
    for i in range(6):
        writer.put([(b"a", b"%d" % i)])
        log.roll()
    assert clean(log, bound=3).end == 3
    assert [entry[0] for entry in layout(log)] == [2, 3, 4, 5]


def test_a_tombstone_is_deleted_only_after_its_horizon(log):
    writer = Writer(log)
    writer.put([(b"a", b"1"), (b"b", b"1")])
    writer.put([(b"a", None)])
    log.roll()
    first = clean(log)
    assert folded(committed(log)) == {b"a": (2, None), b"b": (1, b"1")}
    horizons = [b.delete_horizon_ms for b in log.batches(0, log.log_end) if b.count]
    assert horizons == [None, NOW + DAY]
    stamps = [r[1] for b in log.batches(0, log.log_end) for r in b.records()]
    assert stamps == [NOW + 1, NOW]
    clean(log, first.end, NOW + DAY - 1)
    assert folded(committed(log)) == {b"a": (2, None), b"b": (1, b"1")}
    clean(log, first.end, NOW + DAY)
    assert folded(committed(log)) == {b"b": (1, b"1")}
    assert log.log_end == 3


def test_the_last_batch_of_a_producer_stays_as_a_bare_header(log):
    """R72: as Kafka's retainLastSequence, the next sequence stays known."""
    writer = Writer(log)
    writer.put([(b"a", b"1"), (b"b", b"1")], producer=1)
    writer.put([(b"a", b"2"), (b"b", b"2")], producer=2)
    log.roll()
    clean(log)
    assert layout(log) == [(0, 1, 0, False), (2, 3, 2, False)]
    empty = next(iter(log.batches(0, 1)))
    assert (empty.size, empty.base_timestamp, empty.last_sequence, empty.valid) == (61, -1, 1, True)
    before = [(p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()]
    for name in os.listdir(log.path):
        if name.endswith(".snapshot"):
            os.remove(os.path.join(log.path, name))
    log.writer_files.restart_fold()
    assert [(p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()] == before
    assert writer.put([(b"c", b"3")], producer=1) == 4
    log.roll()
    clean(log)
    assert layout(log)[0][:3] == (2, 3, 2)


def test_a_marker_outlives_its_data_and_is_deleted_two_passes_later(log):
    """G06, R70: data is deleted first, and the marker after a horizon."""
    writer = Writer(log)
    writer.put([(b"a", b"1")], producer=1, transactional=True)
    writer.end(1, True)
    writer.put([(b"a", b"2")], producer=2, transactional=True)
    writer.end(2, True)
    writer.put([(b"x", b"1")], producer=1, transactional=True)
    writer.end(1, True)
    log.roll()
    clean(log)
    assert [(e[0], e[3]) for e in layout(log)] == [
        (1, True),
        (2, False),
        (3, True),
        (4, False),
        (5, True),
    ]
    marker = next(b for b in log.batches(1, 2))
    assert marker.delete_horizon_ms is None and marker.control_type == 1
    clean(log)  # nothing of it was met now: the horizon is set
    marker = next(b for b in log.batches(1, 2))
    assert marker.delete_horizon_ms == NOW + DAY and marker.control_type == 1
    clean(log, now=NOW + DAY - 1)
    assert layout(log)[0][0] == 1
    clean(log, now=NOW + DAY)
    assert [e[0] for e in layout(log)] == [2, 3, 4, 5]


def test_aborted_data_is_deleted_one_pass_before_its_index_entry(log):
    writer = Writer(log)
    writer.put([(b"a", b"1")])
    writer.put([(b"a", b"aborted"), (b"b", b"aborted")], producer=1, transactional=True)
    writer.end(1, False)
    writer.put([(b"c", b"1")], producer=1, transactional=True)
    writer.end(1, True)
    log.roll()
    clean(log)
    assert folded(committed(log)) == {b"a": (0, b"1"), b"c": (4, b"1")}
    index = os.path.join(log.path, "00000000000000000000.txnindex")
    assert [(e.producer_id, e.first_offset, e.last_offset) for e in read_txn_index(index)] == [
        (1, 1, 3)
    ]
    clean(log)
    assert not os.path.exists(index)
    assert folded(committed(log)) == {b"a": (0, b"1"), b"c": (4, b"1")}


def test_a_transaction_over_three_segments_reads_the_same_with_a_tiny_map(log):
    """R69: the cleaner's view of transactions spans groups and partial passes."""
    writer = Writer(log)
    for producer, commit in ((1, True), (2, False)):
        for i in range(3):
            writer.put(
                [(b"k%d" % (producer * 10 + i), b"v" * 50)], producer=producer, transactional=True
            )
            log.roll()
        writer.end(producer, commit)
        log.roll()
    expected = writer.latest()
    dirty = 0
    for _ in range(12):
        dirty = clean(log, dirty, memory=1).end
        assert folded(committed(log)) == expected
        assert not log.open_transactions()
    assert dirty == log.log_end


def test_a_user_key_with_the_bytes_of_a_markers_key_is_compacted_as_a_key(log):
    """Item 68, KAFKA-14055. (R68 of docs/contributing/regressions.md)"""
    writer = Writer(log)
    commit_key, abort_key = b"\0\0\0\1", b"\0\0\0\0"
    writer.put([(commit_key, b"old"), (abort_key, b"old")])
    writer.put([(b"t", b"1")], producer=1, transactional=True)
    writer.end(1, False)
    writer.put([(b"u", b"1")], producer=2, transactional=True)
    writer.end(2, True)
    writer.put([(commit_key, b"new"), (abort_key, b"new")])
    log.roll()
    clean(log)
    assert folded(committed(log)) == writer.latest()
    assert sum(b.control for b in log.batches(0, log.log_end)) == 2


def test_a_log_of_aborted_records_and_markers_is_read_to_its_end(log):
    """Item 73: the position passes what was compacted away."""
    writer = Writer(log)
    for _ in range(50):
        writer.put([(b"a", b"x" * 30)], producer=3, transactional=True)
        writer.end(3, False)
    log.roll()
    for day in range(0, 10, 2):  # groups end elsewhere each time, and their last batches go too
        clean(log, now=NOW + day * DAY)
    assert committed(log) == []
    position = 0
    while position < log.log_end:
        slices = log.read(position, log.log_end)
        assert slices and slices[-1].next_offset > position
        position = slices[-1].next_offset
    assert [b.base_offset for b in log.batches(0, log.log_end)] == [99]


def test_segments_are_grouped_up_to_the_segment_size(log):
    writer = Writer(log)
    for i in range(30):
        writer.put([(b"k%d" % i, b"v" * 100)])
        log.roll()
    done = clean(log)
    assert done.segments_before == 30
    assert done.segments_after == 2
    sizes = [log.segment(base).size() for base in log.segments.bases()]
    assert max(sizes) <= 4000
    assert folded(committed(log)) == writer.latest()


def test_a_damaged_batch_stops_the_pass_and_changes_nothing(log):
    writer = Writer(log)
    for i in range(4):
        writer.put([(b"a", b"%d" % i)])
        log.roll()
    path = log.segment(1).path()
    with open(path, "r+b") as handle:
        handle.seek(65)
        handle.write(b"\xff")
    before = {n: os.path.getsize(os.path.join(log.path, n)) for n in os.listdir(log.path)}
    with pytest.raises(CorruptRecord, match="position 0, offset 1"):
        clean(log)
    assert {n: os.path.getsize(os.path.join(log.path, n)) for n in os.listdir(log.path)} == before


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("bit", [4, 8, 31, 40, 62])
def test_field_A6_a_raised_base_offset_stops_a_pass_and_changes_nothing(tmp_path, bit, number):
    with opened(str(tmp_path), segment_bytes=100_000) as log:
        writer = Writer(log)
        for i in range(3):
            for _ in range(3):
                writer.put([(b"%d" % i, os.urandom(5000))])
            log.roll()
        path = log.segment(3).path()
        with open(path, "r+b") as handle:
            at = list(iter_batches(handle.read()))[number].position
            handle.seek(at)
            base = int.from_bytes(handle.read(8), "big")
            handle.seek(at)
            handle.write((base | 1 << bit).to_bytes(8, "big"))
        before = {n: os.path.getsize(os.path.join(log.path, n)) for n in os.listdir(log.path)}
        with pytest.raises(CorruptRecord):
            clean(log)
        assert {
            n: os.path.getsize(os.path.join(log.path, n)) for n in os.listdir(log.path)
        } == before


def test_a_tombstone_with_the_longest_retention_is_kept_forever(tmp_path):
    """`delete.retention.ms` may be as long as 64 bits can say."""
    with opened(str(tmp_path), segment_bytes=4000, delete_retention_ms=(1 << 63) - 1) as log:
        writer = Writer(log)
        writer.put([(b"k", b"1"), (b"x", b"1")])
        writer.put([(b"k", None), (b"x", b"2")])
        writer.put([(b"k", b"aborted")], producer=7, transactional=True)
        writer.end(7, commit=False)
        log.roll()
        for now in (NOW, NOW + DAY, NOW + 10_000 * DAY):
            clean(log, now=now)
            assert committed(log) == [(2, b"k", None), (3, b"x", b"2")]
        horizons = [b.delete_horizon_ms for b in log.batches(0, log.log_end) if b.count]
        assert horizons == [(1 << 63) - 1] * 2  # of the tombstone, and of the marker


def test_lag_and_dirty_ratio_decide_when_cleaning_starts(tmp_path):
    settings = {"min_cleanable_dirty_ratio": 0.5, "min_compaction_lag_ms": 1000}
    with opened(str(tmp_path), **settings) as log:
        writer = Writer(log)
        for i in range(4):
            writer.put([(b"a%d" % i, b"1")])
            log.roll()
        log.flush()
        assert clean_partition(log, 0, NOW + 500) is None  # too young
        assert clean_partition(log, 0, NOW + 1001).end == 4
        writer.put([(b"a", b"1")])
        log.roll()
        log.flush()
        assert clean_partition(log, 4, NOW + 1001) is None  # one of five: not dirty enough


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_history_folds_to_the_same_after_any_cleaning(tmp_path, seed):
    """R28: fold(before) == fold(after), for readers and producers, at each pass."""
    rng = random.Random(seed)
    path = str(tmp_path)
    now = NOW
    with opened(
        path,
        segment_bytes=rng.choice([600, 2000]),
        index_interval_bytes=64,
        delete_retention_ms=DAY,
    ) as log:
        writer = Writer(log)
        dirty = 0
        tombstones_gone = False
        for _ in range(150):
            step = rng.random()
            pairs = [
                (b"k%d" % rng.randrange(12), rng.choice([b"v%d" % rng.randrange(99), None]))
                for _ in range(rng.randrange(1, 4))
            ]
            if step < 0.35:
                writer.put(pairs, codec=rng.choice(["none", "zstd"]))
            elif step < 0.5:
                writer.put(pairs, producer=100 + rng.randrange(2))
            elif step < 0.7:
                writer.put(pairs, producer=rng.randrange(3), transactional=True)
            elif step < 0.8 and writer.open:
                writer.end(rng.choice(list(writer.open)), rng.random() < 0.6)
            elif step < 0.85:
                log.roll()
            elif step < 0.95:
                if rng.random() < 0.3:
                    now += DAY
                    tombstones_gone = True
                log.flush()
                producers = [
                    (p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()
                ]
                unstable = log.open_transactions()
                done = clean(log, dirty, now, memory=rng.choice([1, 1 << 20]))
                dirty = done.end if done else dirty
                found = folded(committed(log))
                expected = writer.latest(log.last_stable_offset)
                if tombstones_gone:
                    found = {k: v for k, v in found.items() if v[1] is not None}
                    expected = {k: v for k, v in expected.items() if v[1] is not None}
                assert found == expected
                assert [
                    (p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()
                ] == producers
                assert log.open_transactions() == unstable
                offsets = [b.base_offset for b in log.batches(0, log.log_end)]
                assert offsets == sorted(set(offsets))
        for producer in list(writer.open):
            writer.end(producer, rng.random() < 0.5)
        log.roll()
        clean(log, 0, now)
        clean(log, 0, now)
        values = {k: v for k, (_, v) in folded(committed(log)).items() if v is not None}
        assert values == {k: v for k, (_, v) in writer.latest().items() if v is not None}
        live = [(p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()]
        for name in os.listdir(log.path):
            if name.endswith((".snapshot", "index")):
                os.remove(os.path.join(log.path, name))
    with opened(path) as log:  # from the batches alone
        assert sorted(
            (p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()
        ) == sorted(live)
        assert log.open_transactions() == []
        assert {k: v for k, (_, v) in folded(committed(log)).items() if v is not None} == values
        assert not any(
            iter_batches(b.tobytes())[0].valid is False for b in log.batches(0, log.log_end)
        )


def test_a_reopened_log_has_the_same_state_after_cleaning(log, tmp_path):
    writer = Writer(log)
    for i in range(60):
        writer.put([(b"k%d" % (i % 7), b"v" * 40)], producer=i % 3, transactional=i % 3 == 2)
        if i % 6 == 5:
            writer.end(2, i % 12 == 5)
    log.roll()
    clean(log)
    clean(log)
    before = state(log)
    log.writer_files.restart_fold()
    assert state(log) == before


@pytest.mark.parametrize("limit", [2, 12], ids=["while it reads keys", "while it rewrites"])
def test_a_stopped_pass_ends_at_the_next_batch_and_changes_nothing(tmp_path, monkeypatch, limit):
    """A close waits for no whole segment of a gigabyte."""
    with opened(str(tmp_path), segment_bytes=100_000) as log:
        for i in range(10):
            log.append(helpers.batch(1, timestamp=NOW + i))
        log.roll()
        log.flush()
        before = [(b.base_offset, b.count) for b in log.batches(0, log.log_end)]
        stop, seen, real = threading.Event(), [], compaction._batches

        def batches(path, base, following):
            for found in real(path, base, following):
                seen.append(found.base_offset)
                if len(seen) == limit:
                    stop.set()
                yield found

        monkeypatch.setattr(compaction, "_batches", batches)
        with pytest.raises(compaction.CleaningStopped):
            clean_partition(log, 0, NOW, force=True, stop=stop)
        assert len(seen) == limit
        assert [(b.base_offset, b.count) for b in log.batches(0, log.log_end)] == before
        assert not [n for n in os.listdir(log.path) if n.endswith((".cleaned", ".swap"))]
