"""What an unclean stop leaves, and what opening makes of it."""

from __future__ import annotations

import os
import shutil
import struct
from contextlib import closing
from pathlib import Path

import pytest

from eoslog._core import build_marker
from eoslog.admin.inspect import inspect
from eoslog.errors import CorruptRecord, LockTimeout
from eoslog.model import AppendOrigin
from eoslog.storage.directory.session import Session
from eoslog.storage.format import checkpoints
from eoslog.storage.log.retention import delete_records
from tests.storage.helpers import batch, opened, payloads, state

LOG = "0" * 20 + ".log"


def write(path, *, flush: bool):
    with opened(str(path), segment_bytes=3000, index_interval_bytes=200) as log:
        for i in range(60):
            log.append(batch(2, producer_id=7, sequence=2 * i, size=40, timestamp=i))
        if flush:
            log.flush()
        return path, state(log)


@pytest.fixture
def written(tmp_path):
    return write(tmp_path, flush=True)


@pytest.fixture
def unflushed(tmp_path):
    return write(tmp_path, flush=False)


def last_segment(path) -> str:
    return sorted(str(p) for p in (path / "t-0").glob("*.log"))[-1]


def reopen(path, **options):
    return opened(str(path), segment_bytes=3000, index_interval_bytes=200, **options)


def test_every_truncation_of_the_tail_keeps_the_batches_before_it(unflushed):
    """R54 of docs/contributing/regressions.md."""
    path, written = unflushed
    name = last_segment(path)
    data = open(name, "rb").read()
    for size in [*range(len(data) - 90, len(data), 7), 0, 1, 61]:
        copy = path.parent / f"copy-{size}"
        shutil.copytree(path, copy)
        os.truncate(str(copy / "t-0" / os.path.basename(name)), size)
        with reopen(copy) as log:
            found = payloads(log)
            assert found == written[-1][: len(found)]
            assert log.append(batch(1)).base_offset == log.log_end - 1 == len(found)
        shutil.rmtree(copy)


def test_garbage_after_the_last_batch_is_cut(written):
    path, expected = written
    with open(last_segment(path), "ab") as file:
        file.write(os.urandom(500))
    with reopen(path) as log:
        assert state(log) == expected
        log.append(batch(1))
    with reopen(path) as log:
        assert log.log_end == expected[1] + 1


def test_a_damaged_batch_that_was_flushed_is_reported_and_not_cut(written):
    path, _ = written
    name = last_segment(path)
    data = bytearray(open(name, "rb").read())
    for at in (100, len(data) - 5):  # with valid batches after it, and as the last one
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        open(name, "wb").write(damaged)
        with pytest.raises(CorruptRecord, match="below the flushed offset 120"), reopen(path):
            pass
        with (
            pytest.raises(CorruptRecord, match="below the flushed offset"),
            reopen(path, read_only=True),
        ):
            pass
        assert open(name, "rb").read() == damaged


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("lost", [0, 1])
def test_an_end_below_what_was_flushed_is_reported(written, caplog, lost, read_only):
    """The directory opens, because it may be a copy of one in use."""
    path, _ = written
    name = last_segment(path)
    batches = inspect(name)["batches"]
    if lost:
        os.truncate(name, batches[-1]["position"])
    with reopen(path, read_only=read_only) as log:
        assert log.log_end == 120 - 2 * lost
    text = "t-0: the log ends at offset 118, but the last session had flushed it up to offset 120"
    assert (text in caplog.text) == bool(lost)


def test_a_page_lost_in_a_power_loss_is_cut_with_all_that_follows(unflushed, caplog):
    """Any unflushed page may be lost: the directory opens and reports the cut."""
    path, expected = unflushed
    name = sorted(str(p) for p in (path / "t-0").glob("*.log"))[0]
    data = bytearray(open(name, "rb").read())
    data[512:1024] = bytes(512)
    open(name, "wb").write(data)
    with reopen(path) as log:
        found = payloads(log)
        assert 0 < len(found) < 20
        assert found == expected[-1][: len(found)]
        assert log.append(batch(1)).base_offset == len(found)
        log.flush()
    assert "complete batches that were never flushed" in caplog.text
    with reopen(path) as log:
        assert payloads(log)[:-1] == found


def test_a_roll_is_undone_if_the_last_batch_before_it_was_lost(tmp_path):
    """Only the new segment's name is durable: appends continue in the old one."""
    with opened(str(tmp_path)) as log:
        for i in range(3):
            log.append(batch(2, timestamp=i))
        first = log.read(0, 4)[0].data
        size = len(bytes(first))
        log.roll()
    names = sorted(p.name for p in (tmp_path / "t-0").glob("*.log"))
    assert len(names) == 2
    os.truncate(tmp_path / "t-0" / names[0], size)
    with opened(str(tmp_path)) as log:
        assert log.log_end == 4
        assert log.append(batch(1)).base_offset == 4
        assert [p.name for p in (tmp_path / "t-0").glob("*.log")] == names[:1]


@pytest.mark.parametrize("lost", [0, 1])
def test_an_unflushed_batch_whose_base_offset_was_torn_off_is_cut(tmp_path, lost):
    """A sector's end lost eight bytes that no CRC covers; durable batches are intact."""
    with opened(str(tmp_path)) as log:
        log.append(batch(2))
        log.append(batch(2))
        log.flush()
        size = log.segment(0).size()
        log.append(batch(3))
    [name] = (tmp_path / "t-0").glob("*.log")
    data = bytearray(name.read_bytes())
    data[size : size + 8] = lost.to_bytes(8, "big")
    name.write_bytes(data)
    with opened(str(tmp_path)) as log:
        assert log.log_end == 4
        assert name.stat().st_size == size


@pytest.mark.parametrize("torn", [True, False])
def test_a_segment_is_cut_if_its_predecessor_lost_its_end(tmp_path, caplog, torn):
    """Batches of the new segment reached the disk, and those before it did not."""
    with opened(str(tmp_path)) as log:
        for i in range(3):
            log.append(batch(2, timestamp=i))
        size = len(bytes(log.read(0, 4)[0].data))
        log.roll()
        log.append(batch(2))
    first, second = sorted((tmp_path / "t-0").glob("*.log"))
    os.truncate(first, size)
    if torn:
        os.truncate(second, second.stat().st_size - 1)
    with opened(str(tmp_path)) as log:
        assert log.log_end == 4
        assert log.append(batch(1)).base_offset == 4
        assert list((tmp_path / "t-0").glob("*.log")) == [first]
        assert [offset for offset, _ in payloads(log)] == [0, 1, 2, 3, 4]
    assert "batches between were not flushed" in caplog.text


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_gap_without_any_record_of_a_flush_counts_as_a_loss(tmp_path, policy):
    """Neither control file nor checkpoints exist, as after an early power loss."""
    with opened(str(tmp_path), cleanup_policy=policy) as log:
        for i in range(3):
            log.append(batch(2, timestamp=i))
        size = len(bytes(log.read(0, 4)[0].data))
        log.roll()
    first, _ = sorted((tmp_path / "t-0").glob("*.log"))
    os.truncate(first, size)
    (tmp_path / "eoslog.control").unlink()
    with opened(str(tmp_path), cleanup_policy=policy) as log:
        assert log.log_end == 4
        assert log.append(batch(1)).base_offset == 4
        assert [offset for offset, _ in payloads(log)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("empty", [True, False])
def test_a_segment_whose_end_kafka_compacted_away_is_not_a_loss(tmp_path, empty):
    """Below the recovery point the gap stays, and appends continue after it."""
    with opened(str(tmp_path)) as log:
        for i in range(3):
            log.append(batch(2, timestamp=i))
        size = len(bytes(log.read(0, 4)[0].data))
        log.roll()
        if not empty:
            log.append(batch(2))
        end = log.log_end
    names = sorted((tmp_path / "t-0").glob("*.log"))
    os.truncate(names[0], size)
    checkpoints.write_offsets(str(tmp_path / checkpoints.CLEANER_CHECKPOINT), {("t", 0): 6})
    with opened(str(tmp_path), recovery_point=6) as log:
        assert log.log_end == end
        assert log.append(batch(1)).base_offset == end
        assert sorted((tmp_path / "t-0").glob("*.log")) == names
        log.flush()
        found = payloads(log)
    with opened(str(tmp_path)) as log:
        assert payloads(log) == found


def test_a_damaged_batch_below_the_recovery_point_is_never_cut(unflushed):
    path, expected = unflushed
    name = last_segment(path)
    size = os.path.getsize(name)
    os.truncate(name, size - 3)
    with (
        pytest.raises(CorruptRecord, match="below the flushed offset"),
        reopen(path, recovery_point=expected[1]),
    ):
        pass
    assert os.path.getsize(name) == size - 3


def test_indexes_are_rebuilt_from_the_batches(written):
    """R67 of docs/contributing/regressions.md."""
    path, expected = written
    directory = path / "t-0"
    originals = {
        p.name: p.read_bytes() for p in directory.iterdir() if p.suffix in (".index", ".timeindex")
    }
    for name in originals:
        (directory / name).write_bytes(os.urandom(64))
    with reopen(path) as log:
        assert state(log) == expected
    assert {name: (directory / name).read_bytes() for name in originals} == originals


def test_missing_indexes_and_snapshots_are_rebuilt(written):
    path, expected = written
    for p in (path / "t-0").iterdir():
        if p.suffix != ".log":
            p.unlink()
    with reopen(path) as log:
        assert state(log) == expected


def test_a_torn_snapshot_is_dropped_and_an_older_one_used(written):
    path, expected = written
    for p in sorted((path / "t-0").glob("*.snapshot"))[-2:]:
        p.write_bytes(p.read_bytes()[:-5])
    with reopen(path) as log:
        assert state(log) == expected


STRANGERS = ("x.tmp", "notes.deleted", "plan.next", "a.swap", "b.cleaned", "README")
"""Files that somebody else put there are left alone, whatever their suffix."""


def test_leftovers_of_dead_writers_are_removed(written):
    path, expected = written
    for name in (
        "00000000000000000000.log.deleted",
        "3-99.log.next",
        "00000000000000000999.index",
        "leader-epoch-checkpoint.tmp",
        *STRANGERS,
    ):
        (path / "t-0" / name).write_bytes(b"junk")
    with reopen(path) as log:
        assert state(log) == expected
        assert not [
            n
            for n in os.listdir(log.path)
            if (n.endswith((".deleted", ".next", ".tmp")) or "999" in n) and n not in STRANGERS
        ]
        assert set(STRANGERS) <= set(os.listdir(log.path))


def test_a_clean_start_reads_only_the_last_segment(written):
    path, expected = written
    first = path / "t-0" / LOG
    data = bytearray(first.read_bytes())
    data[90] ^= 1  # would fail its CRC
    first.write_bytes(data)
    with reopen(path, clean=True) as log:
        assert log.log_end == expected[1]


def test_a_poisoned_partition_is_rewritten_and_opens(written):
    path, expected = written
    with reopen(path, poisoned=True) as log:
        assert state(log) == expected


def test_a_read_only_open_of_an_unclean_directory_changes_nothing(written):
    path, expected = written
    name = last_segment(path)
    with open(name, "ab") as file:
        file.write(b"torn")
    before = {p: p.read_bytes() for p in (path / "t-0").iterdir()}
    with reopen(path, read_only=True) as log:
        assert payloads(log) == expected[-1]
        assert log.high_watermark == expected[1]
    assert {p: p.read_bytes() for p in (path / "t-0").iterdir()} == before


def test_a_read_only_open_of_an_unclean_directory_trusts_no_offset_index(written):
    """After a power loss an index may name places where no batch begins."""
    path, expected = written
    name = Path(last_segment(path))
    base = int(name.stem)
    name.with_suffix(".index").write_bytes(struct.pack(">ii", 1, 7) * 3)
    with reopen(path, read_only=True) as log:
        for offset, _ in reversed(expected[-1]):
            if offset > base + 1:
                assert log.read(offset, offset + 1)[0].base_offset <= offset


def test_a_read_only_open_of_an_unclean_directory_trusts_no_abort_index(tmp_path):
    with opened(str(tmp_path)) as log:
        data = batch(1, producer_id=7, sequence=0, transactional=True)
        log.append(data, expect=[(log, 0)])
        log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)
    index = next((tmp_path / "t-0").glob("*.txnindex"))
    for left in (b"", b"\1" * 34, index.read_bytes() * 2):
        index.write_bytes(left)
        with opened(str(tmp_path), read_only=True) as log:
            assert log.aborted(0, log.log_end) == [(7, 0, 1)]


@pytest.mark.parametrize(
    "left",
    [b"", struct.pack(">qi", 1, 0), struct.pack(">qi", 1 << 40, 0) * 9, struct.pack(">qi", 0, 3)],
)
def test_a_read_only_open_of_an_unclean_directory_trusts_no_time_index(written, left):
    path, expected = written
    times = [i + more for i in range(60) for more in (0, 1)]
    indexes = list((path / "t-0").glob("*.timeindex"))
    assert len(indexes) > 2
    for index in indexes:
        index.write_bytes(left)
    with reopen(path, read_only=True) as log:
        for asked in range(62):
            found = next((i for i, t in enumerate(times) if t >= asked), None)
            assert log.offset_for_time(asked, expected[1]) == found, asked


@pytest.fixture
def idle(tmp_path):
    """The path of a partition of five records that a living writer has not come to."""
    with opened(str(tmp_path)) as log:
        for n in range(5):
            log.append(batch(1, producer_id=7, sequence=n, timestamp=1000 + n))
    writer = Session(str(tmp_path))
    yield str(tmp_path)
    writer.close()


def test_a_reader_next_to_idle_writers_shows_their_later_appends_too(idle):
    with opened(idle, read_only=True, clean=True) as reader:
        assert (reader.log_end, reader.stable_end, reader.high_watermark) == (5, 5, 5)
        before = payloads(reader)
        assert [offset for offset, _ in before] == [0, 1, 2, 3, 4]
        assert reader.offset_for_time(1003, 5) == 3
        with opened(idle, clean=True, segment_bytes=1000) as writer:
            assert (reader.log_end, reader.high_watermark) == (5, 5)
            for n in range(5, 40):
                writer.append(batch(1, producer_id=7, sequence=n, timestamp=1000 + n))
                assert reader.log_end == n + 1
                assert reader.high_watermark == 5
            writer.flush()
            assert reader.high_watermark == 40
            assert len(writer.segments.bases()) > 2
            assert payloads(reader) == payloads(writer)
            assert payloads(reader)[:5] == before
            assert [reader.offset_for_time(1000 + n, 40) for n in range(40)] == list(range(40))
            delete_records(writer, 6)
            assert reader.log_start == 6


def test_a_reader_next_to_idle_writers_notices_that_the_topic_is_deleted(idle):
    with opened(idle, read_only=True, clean=True) as reader:
        assert not reader.core.deleted
        with closing(Session(idle)) as session:
            session.ensure_slot(reader.slot)
            session.control.mark_deleted(reader.slot)
        assert reader.core.deleted
    with (
        pytest.raises(LockTimeout, match="not recovered"),
        opened(idle, read_only=True, clean=True),
    ):
        pass


def test_a_readers_own_scan_is_discarded_once_a_writer_has_appended(idle):
    with opened(idle, read_only=True, clean=True) as reader:
        reader.core.stand_apart()  # the scan restarts
        with opened(idle, clean=True) as writer:
            writer.append(batch(1, producer_id=7, sequence=5))
            assert not reader.core.publish_apart(reader.topic_id, 0)
            assert reader.log_end == 6
            writer.append(batch(1, producer_id=7, sequence=6))
            assert reader.log_end == 7


def test_a_reader_next_to_idle_writers_is_rejected_before_their_recovery(idle):
    with pytest.raises(LockTimeout, match="not recovered"), opened(idle, read_only=True):
        pass
    with opened(idle), opened(idle, read_only=True) as reader:
        assert reader.log_end == 5
