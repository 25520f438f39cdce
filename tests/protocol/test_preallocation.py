"""Preallocated space: zeros after the last batch.

Appends write them, rolls and closes cut them, and recovery recognises them. Rows 49 to 51 of docs/contributing/protocol.md.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

import eoslog
from eoslog._core import fault_count, iter_batches
from eoslog.connector.byte_ranges import PartitionFiles
from eoslog.errors import CorruptRecord, StorageError
from eoslog.storage.check.checker import check
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.segment import LOG, file_name
from eoslog.storage.segment.segment_files import SegmentFiles
from tests.coordinator.transactions.test_engine import in_child
from tests.faults.harness import Child, every_point, live
from tests.storage.helpers import batch, opened, payloads, state

SETTINGS = {"segment_bytes": 100_000, "preallocate": True}
CHUNK = 1 << 16
RECORD = len(batch(1, producer_id=7, sequence=0, size=1000, timestamp=0))
LARGE = 16 << 20  # a file up to this size is copied, and not mapped


@pytest.fixture
def place(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def fill(log: PartitionLog, count: int, *, size: int = 1000, first: int = 0) -> None:
    for i in range(first, first + count):
        log.append(batch(1, producer_id=7, sequence=i, size=size, timestamp=i))


def image(path: Path, name: str) -> Path:
    """What a kill of all processes would leave now."""
    copy = path.parent / f"{path.name}-{name}"
    shutil.copytree(path, copy)
    return copy


def log_file(path: Path, base: int = 0) -> Path:
    return path / "t-0" / file_name(base, LOG)


def test_appends_keep_the_size_of_a_preallocated_file(tmp_path):
    with opened(str(tmp_path), **SETTINGS) as log:
        sizes = set()
        for i in range(50):
            fill(log, 1, first=i)
            sizes.add(log_file(tmp_path).stat().st_size)
        assert sizes == {CHUNK}
        fill(log, 30, first=50)
        assert log_file(tmp_path).stat().st_size == 2 * CHUNK
        assert log.segments.size() == log.core.end_position < CHUNK + 30_000


@pytest.mark.parametrize("strict", [True, False])
def test_a_file_is_preallocated_only_where_a_flush_gains(tmp_path, strict):
    with opened(str(tmp_path), strict=strict, **SETTINGS) as log:
        fill(log, 1)
        assert (log_file(tmp_path).stat().st_size > log.core.end_position) is strict


def test_a_roll_cuts_the_zeros_of_the_sealed_segment(tmp_path):
    with opened(str(tmp_path), **SETTINGS) as log:
        fill(log, 20)
        end = log.core.end_position
        log.roll()
        assert log_file(tmp_path).stat().st_size == end
        fill(log, 1, first=20)
        assert len(payloads(log)) == 21


def test_the_first_flush_of_a_segment_syncs_the_one_before_it(tmp_path):
    """Otherwise a power loss could undo the cut."""
    with opened(str(tmp_path), **SETTINGS) as log:
        fill(log, 20)
        log.flush()
        log.roll()
        for synced in (2, 1):
            fill(log, 1, first=log.log_end)
            fault_count("fdatasync", reset=True)
            log.flush()
            assert fault_count("fdatasync") == synced


def test_a_clean_close_leaves_no_zeros(tmp_path):
    with eoslog.open(tmp_path) as log:
        log.create_topic("t", config={"preallocate": True})
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"v")
            producer.commit_transaction()
        state_log = next(tmp_path.glob("__transaction_state-*")) / file_name(0, LOG)
        assert {log_file(tmp_path).stat().st_size, state_log.stat().st_size} == {CHUNK}
    for path in (log_file(tmp_path), state_log):
        data = path.read_bytes()
        assert sum(found.size for found in iter_batches(data)) == len(data) > 0


def test_zeros_after_a_kill_are_the_end_of_the_log(place):
    with opened(str(place), **SETTINGS) as log:
        fill(log, 20)
        expected, end = state(log), log.core.end_position
        left = image(place, "killed")
    assert check(str(left)).problems == eoslog.check(left).problems == []
    assert [span.end for span in PartitionFiles(str(left / "t-0")).spans(0, 20)] == [end]
    with opened(str(left), read_only=True, **SETTINGS) as log:
        assert payloads(log) == expected[-1]
    with opened(str(left), **SETTINGS) as log:
        assert state(log) == expected
        assert log_file(left).stat().st_size == end
        fill(log, 1, first=20)
        assert len(payloads(log)) == 21


@pytest.mark.parametrize("read_only", [True, False])
def test_a_lost_cut_of_a_sealed_segment_drops_no_later_segment(place, read_only):
    with opened(str(place), **SETTINGS) as log:
        fill(log, 20)
        end = log.core.end_position
        log.roll()
        fill(log, 5, first=20)
        log.flush()
        expected = state(log)
        left = image(place, "lost")
    (left / "eoslog.control").unlink()  # after a power loss it may be older
    os.truncate(log_file(left), CHUNK)
    assert check(str(left)).problems == eoslog.check(left).problems == []
    with opened(str(left), read_only=read_only, **SETTINGS) as log:
        assert payloads(log) == expected[-1]
        assert log_file(left).stat().st_size == (CHUNK if read_only else end)


@pytest.mark.parametrize("size", [1000, 17 << 20])
def test_a_reader_of_files_refuses_the_zeros_of_a_lost_cut(place, size):
    with opened(
        str(place), segment_bytes=32 << 20, preallocate=True, max_message_bytes=20 << 20
    ) as log:
        fill(log, 1, size=size)
        end = log.core.end_position
        log.roll()
        fill(log, 1, first=1)
        log.flush()
        left = image(place, "lost")
    assert sum(rows.num_rows for rows in eoslog.read_segments(left / "t-0")) == 2
    os.truncate(log_file(left), end + CHUNK)
    with pytest.raises(CorruptRecord, match=f"the last {CHUNK} bytes are not a complete batch"):
        list(eoslog.read_segments(left / "t-0"))


@pytest.mark.process
def test_a_roll_during_a_check_does_not_kill_the_process_that_checks(place):
    """A mapping would be shorter than it was read as."""
    with opened(str(place), **SETTINGS) as log:
        fill(log, 3)
        end = log.core.end_position

        def check_slowly() -> None:
            segment = SegmentFiles(str(log_file(place)), 0)
            assert (len(segment.data), segment.size) == (end, CHUNK)
            os.truncate(log_file(place), end)
            assert segment.blank_from(end)
            assert len(list(segment.batches())) == 3

        in_child(check_slowly, kill=False)


def test_zeros_below_the_durable_end_are_damage(place):
    with opened(str(place), **SETTINGS) as log:
        fill(log, 10)
        at = log.core.end_position
        fill(log, 1, first=10)
        log.flush()
        left = image(place, "lost")
    blank(left, at, CHUNK)
    with (
        pytest.raises(CorruptRecord, match="below the flushed offset 11"),
        opened(str(left), **SETTINGS),
    ):
        pass


def killed(path: Path, name: str, size: int = 0) -> tuple[Path, list[int]]:
    """What a kill leaves after ten flushed batches, and where each begins."""
    with eoslog.open(path) as log:
        log.create_topic("t", config={"preallocate": True, "max.message.bytes": 4 << 20})
        limits = {"max_request_size": 4 << 20, "compression_type": "none"}
        with log.producer(linger_ms=0, **limits) as producer:
            for number in range(10):
                producer.produce("t", f"{number:<{size}}")
                producer.flush()
        left = image(path, name)
    return left, [found.position for found in SegmentFiles(str(log_file(left)), 0).batches()]


@pytest.mark.parametrize("size", [0, 2 << 20])
@pytest.mark.parametrize("mode", ["cut", "skip", "as-kafka"])
def test_check_and_repair_see_zeros_below_the_durable_end(place, mode, size):
    """No checkpoint has its offset, only the slot that the dead process left."""
    left, starts = killed(place, "lost", size)
    assert eoslog.check(left).problems == eoslog.repair(left).problems == []
    length = log_file(left).stat().st_size
    assert (length > LARGE) is (size > 0)
    blank(left, starts[8], length)
    wanted = (str(log_file(left)), starts[8])
    report = eoslog.check(left)
    assert wanted in [(problem.path, problem.position) for problem in report.problems]
    (problem,) = [p for p in report.problems if "flushed" in p.message]
    assert "ends at offset 8, but it was flushed up to offset 10" in problem.message
    with pytest.raises(CorruptRecord, match="ends at offset 8, but it was durable up to offset 10"):
        list(eoslog.read_segments(left / "t-0"))
    fixed = eoslog.check(left, fix_indexes=True)
    assert [(problem.path, problem.position) for problem in fixed.problems] == [wanted]
    (damage,) = eoslog.repair(left).damage
    assert (damage.first_offset, damage.last_offset, damage.position) == (8, 9, starts[8])
    for read_only in (True, False, False):
        with eoslog.open(left, read_only=read_only) as log:
            with pytest.raises(CorruptRecord, match="below the flushed offset 10"):
                list(log.read("t"))
            problems = log.check().problems
            assert wanted in [(problem.path, problem.position) for problem in problems]
    eoslog.repair(left, mode)
    assert eoslog.check(left).problems == []
    with eoslog.open(left) as log:
        assert [int(record.value) for record in log.read("t")] == list(range(8))
        # A broker's recovery knows no durable end, and uses the lost offsets again.
        assert log.offsets("t", 0).log_end == (8 if mode == "as-kafka" else 10)


@pytest.mark.parametrize("size", [1000, 2 << 20])
def test_a_check_of_an_open_log_sees_zeros_below_its_end(place, size):
    with eoslog.open(place) as log:
        log.create_topic("t", config={"preallocate": True, "max.message.bytes": 4 << 20})
        limits = {"max_request_size": 4 << 20, "compression_type": "none"}
        with log.producer(linger_ms=0, **limits) as producer:
            for _ in range(10):
                producer.produce("t", bytes(size))
            producer.flush()
        assert log.check().problems == []
        length = log_file(place).stat().st_size
        found = SegmentFiles(str(log_file(place)), 0)
        *_, last = found.batches()
        blank(place, last.position, length)
        problems = [(problem.path, problem.position) for problem in log.check().problems]
        assert (str(log_file(place)), last.position) in problems
        os.truncate(log_file(place), last.position)
        text = "but it was published up to offset 10: a file is missing or truncated"
        assert any(text in problem.message for problem in log.check().problems)


@pytest.mark.parametrize("size", [0, 17 << 20])
def test_zeros_after_a_clean_close_are_damage(place, size):
    with eoslog.open(place) as log:
        config = {"preallocate": True, "max.message.bytes": 20 << 20}
        log.create_topic("t", config=config)
        with log.producer(max_request_size=20 << 20, compression_type="none") as producer:
            producer.produce("t", b"v" * size)
    end = log_file(place).stat().st_size
    with open(log_file(place), "ab") as file:
        file.write(bytes(1000))
    assert (str(log_file(place)), end) in [
        (problem.path, problem.position) for problem in eoslog.check(place).problems
    ]
    assert [damage.size for damage in eoslog.repair(place).damage] == [1000]
    with (
        eoslog.open(place) as log,
        pytest.raises(CorruptRecord, match="1000 unexpected bytes"),
    ):
        list(log.read("t"))


def test_a_clean_close_syncs_what_it_has_cut(tmp_path):
    counts = []
    for preallocate in (False, True):
        (tmp_path / str(preallocate)).mkdir()
        with opened(str(tmp_path / str(preallocate)), preallocate=preallocate) as log:
            fill(log, 1)
            log.flush()
            fault_count("fdatasync", reset=True)
            log.write_snapshot()
            counts.append(fault_count("fdatasync"))
    assert counts[1] == counts[0] + 1


def test_zeros_before_batches_that_were_not_flushed_cut_them(place, caplog):
    with opened(str(place), **SETTINGS) as log:
        fill(log, 10)
        log.flush()
        at = log.core.end_position
        fill(log, 1, first=10)
        following = log.core.end_position
        fill(log, 1, first=11)
        left = image(place, "torn")
    blank(left, at, following)
    with opened(str(left), **SETTINGS) as log:
        assert log.log_end == 10
        assert "complete batches that were never flushed" in caplog.text
        assert log_file(left).stat().st_size == at
        fill(log, 1, first=10)  # as long as the lost one, so that the later one would follow it
        expected = state(log)
        again = image(left, "killed")
    with opened(str(again), **SETTINGS) as log:
        assert state(log) == expected


def blank(path: Path, begin: int, end: int) -> None:
    with open(log_file(path), "r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def two_batches(child: Child, path: str) -> None:
    """Dies once both batches of an append are in the file."""
    with opened(path, **SETTINGS) as log:
        fill(log, 1)
        child.armed()
        log.append(
            batch(1, producer_id=8, sequence=0, size=60)
            + batch(1, producer_id=8, sequence=1, size=60)
        )


@pytest.mark.process
def test_batches_of_a_dead_writer_do_not_follow_those_of_the_next(place):
    """The next append is as long as the first one of both."""
    path = place
    with opened(str(path), **SETTINGS) as log:
        life = live(two_batches, str(path), faults=(("point", "kill", 3),))
        assert life.killed, life.error
        log.append(batch(1, producer_id=9, sequence=0, size=60))
        log.flush()
        expected, end = state(log), log.core.end_position
        assert log_file(path).stat().st_size > end
        left = image(path, "killed")
    with opened(str(left), **SETTINGS) as log:
        assert state(log) == expected
        assert log_file(left).stat().st_size == end


def produce_on(child: Child, path: str) -> None:
    """Append over several segments, and tell each acknowledged record."""
    with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:
        child.armed()
        first = log.offsets("t", 0).log_end
        for number in range(first, first + 12):
            producer.produce("t", f"{number:<9000}")
            producer.flush()
            child.tell("acked", number)


@pytest.mark.process
@pytest.mark.slow
def test_a_kill_at_any_call_loses_nothing_and_shows_no_old_byte(tmp_path):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"preallocate": True, "segment.bytes": 40_000})
    for call, nth, left, life in every_point(produce_on, path, 8):
        live(produce_on, left).fine()
        with eoslog.open(left) as log:
            found = [int(record.value.split()[0]) for record in log.read("t")]
        assert found == list(range(len(found))), (call, nth)
        assert len(found) >= len(life.of("acked")) + 12, (call, nth)
        for file in (left / "t-0").glob("*.log"):
            data = file.read_bytes()
            assert sum(batch.size for batch in iter_batches(data)) == len(data) if data else True


def test_a_batch_that_does_not_follow_is_damage_and_not_a_record(place):
    with opened(str(place), **SETTINGS) as log:
        fill(log, 10)
        log.flush()
        end = log.core.end_position
        left = image(place, "stale")
    other = place.parent / "other"
    other.mkdir()
    with opened(str(other), **SETTINGS) as log:
        fill(log, 20)
        start = [
            found.position
            for found in iter_batches(log_file(other).read_bytes()[: log.core.end_position])
        ][15]
        stale = log_file(other).read_bytes()[start : start + 1100]
    with open(log_file(left), "r+b") as file:
        file.seek(end)
        file.write(stale)
    with pytest.raises(CorruptRecord, match="base offset"), opened(str(left), **SETTINGS):
        pass


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_append_succeeds_if_zeros_cannot_be_written(place, error):
    with opened(str(place), **SETTINGS) as log:
        for chunks in (1, 2):  # a new file, then one whose zeros are used up
            files.arm_failpoint("pwrite", error, 2)  # the record was the first
            fill(log, 1, first=log.log_end)
            files.disarm_failpoints()
            expected, end = state(log), log.core.end_position
            assert log_file(place).stat().st_size == end
            left = image(place, f"killed-{chunks}")
            assert check(str(left)).problems == []
            with opened(str(left), **SETTINGS) as again:
                assert state(again) == expected
            fill(log, 1, first=log.log_end)
            assert log_file(place).stat().st_size == chunks * CHUNK
            fill(log, CHUNK // RECORD - 1 - log.log_end, first=log.log_end)


def append_up_to_a_limit(child: Child, path: str, room: int, cut: bool) -> None:
    """Append three records, and a fourth before and after a limit is raised."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def put() -> None:
        if not cut:
            files.arm_failpoint("ftruncate", "EIO")
        try:
            fill(log, 1, first=log.log_end)
        finally:
            files.disarm_failpoints()

    with opened(path, **SETTINGS) as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * RECORD + room, unlimited[1]))
        for _ in range(3):
            put()
        log.flush()
        child.tell("size", log_file(Path(path)).stat().st_size)
        with pytest.raises(StorageError) as raised:
            put()
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        child.tell("error", raised.value.errno)
        image(Path(path), "killed")
        fill(log, 1, first=3)
        log.flush()
        child.tell("end", log.durable_end)


@pytest.mark.process
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("room", [0, 10, 64, 500])
def test_a_file_that_may_not_grow_loses_no_record(place, room, cut):
    """The kernel writes the zeros that fit, and removing them may fail too."""
    life = live(append_up_to_a_limit, str(place), room, cut).fine()
    assert life.of("size") == [3 * RECORD + (0 if cut else room)]
    assert life.of("error") == [errno.EFBIG]
    assert life.of("end") == [4]
    for path, count in ((place.parent / "log-killed", 3), (place, 4)):
        with opened(str(path), **SETTINGS) as log:
            assert log.log_end == len(payloads(log)) == count
            fill(log, 1, first=count)
            assert len(payloads(log)) == count + 1
            assert log_file(path).stat().st_size == CHUNK


def produce_in_spite_of_faults(child: Child, path: str) -> None:
    """Append over several segments, and send each rejected record again."""
    with eoslog.open(path) as log:
        child.armed()
        for number in range(12):
            for _ in range(3):
                try:
                    with log.producer(linger_ms=0) as producer:
                        producer.send("t", f"{number:<9000}").result(60)
                except StorageError as error:
                    child.tell("rejected", error.errno)
                else:
                    child.tell("acked", number)
                    break


@pytest.mark.process
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_record_rejected_at_any_write_is_accepted_once_later(tmp_path, error):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"preallocate": True, "segment.bytes": 40_000})
    for _, nth, left, life in every_point(produce_in_spite_of_faults, path, 20, error, ("pwrite",)):
        assert life.fine().of("acked") == list(range(12)), nth
        assert set(life.of("rejected")) <= {getattr(errno, error)}
        with eoslog.open(left) as log:
            found = [int(record.value.split()[0]) for record in log.read("t")]
        assert found == list(range(12)), nth


def test_sizes_and_retention_do_not_count_the_zeros(tmp_path):
    sizes = {}
    for preallocate in (True, False):
        with eoslog.open(tmp_path / str(preallocate)) as log:
            log.create_topic("t", config={"preallocate": preallocate})
            with log.producer(linger_ms=0) as producer:
                for _ in range(20):
                    producer.produce("t", bytes(1000), timestamp=1)
                    producer.flush()
            sizes[preallocate] = log._engine.partition("t", 0).segments.sizes()
    assert sizes[True] == sizes[False]


@pytest.mark.parametrize("size", [0, 2 << 20])
@pytest.mark.parametrize("mode", ["report", "cut", "skip", "as-kafka"])
def test_a_repair_of_a_killed_directory_keeps_all_records(place, mode, size):
    left, _ = killed(place, mode, size)
    report = eoslog.repair(left, mode)
    assert not report.damage
    assert (report.bytes_cut == 0) is (mode != "as-kafka")  # Kafka cuts the zeros
    with eoslog.open(left) as log:
        assert len(list(log.read("t"))) == 10


@pytest.mark.parametrize("mode", ["report", "cut", "skip"])
def test_a_repair_of_damage_does_not_take_the_zeros_after_it_for_more(place, mode):
    left, _ = killed(place, mode)
    bad = list(SegmentFiles(str(log_file(left)), 0).batches())[5]
    with open(log_file(left), "r+b") as file:
        file.seek(bad.position + 65)
        file.write(b"!!")
    (damage,) = eoslog.repair(left, mode).damage
    assert (damage.first_offset, damage.size) == (5, bad.size)
    if mode != "report":
        kept = [*range(5), *range(6, 10)] if mode == "skip" else list(range(5))
        with eoslog.open(left) as log:
            assert [int(record.value) for record in log.read("t")] == kept


@pytest.mark.parametrize("lost_cut", [False, True])
def test_indexes_are_rebuilt_up_to_the_zeros(place, lost_cut):
    with eoslog.open(place) as log:
        log.create_topic("t", config={"preallocate": True, "segment.bytes": 40_000})
        with log.producer(linger_ms=0) as producer:
            for number in range(10):
                producer.produce("t", f"{number:<9000}")
                producer.flush()
        left = image(place, "killed")
    wanted = {file: file.read_bytes() for file in (left / "t-0").glob("*.timeindex")}
    assert len(wanted) == 3
    for file in wanted:
        file.write_bytes(b"")
    if lost_cut:
        os.truncate(log_file(left), CHUNK)
    report = eoslog.check(left, fix_indexes=True)
    assert report.problems == []
    found = {file: file.read_bytes() for file in wanted}
    assert all(found[file] == wanted[file] for file in sorted(wanted)[:-1])


@pytest.mark.process
@pytest.mark.parametrize("call", ["ftruncate", "rename"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_in_a_roll_loses_nothing(tmp_path, call, nth):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"preallocate": True, "segment.bytes": 40_000})
    life = live(produce_on, path, faults=((call, "kill", nth),))
    assert life.killed
    live(produce_on, path).fine()
    with eoslog.open(path) as log:
        found = [int(record.value.split()[0]) for record in log.read("t")]
    assert found == list(range(len(found)))
    assert len(found) >= len(life.of("acked")) + 12
