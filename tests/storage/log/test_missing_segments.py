"""A removed segment file is reported with its missing offsets and never skipped.

Segments that retention and compaction delete are not a loss: their own tests read after them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.errors import CorruptRecord, UnknownTopicOrPartition
from eoslog.storage.format import checkpoints
from eoslog.storage.log.retention import apply_retention
from eoslog.storage.log.segment_list import Listing, SegmentList
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.segment import LOG, SEAL, file_name, file_path, offsets_in
from tests.storage.helpers import batch, opened, payloads

CONFIG = {"segment.bytes": "1000", "segment.index.bytes": "4096"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    """Four segments or more of a few records each, nothing of them read yet."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", config=CONFIG)
        part = log._engine.partition("t", 0)
        for _ in range(20):
            part.append(batch(1, size=120))
        part.flush()
    with eoslog.open(tmp_path / "log") as log:
        log.offsets("t", 0)  # the partition is open, its segments are not
        yield log


def segments(log: Any) -> list[int]:
    return offsets_in(os.path.join(log.path, "t-0"), LOG)


def take_away(log: Any, base: int) -> None:
    os.remove(os.path.join(log.path, "t-0", file_name(base, LOG)))


def consumed(log: Any) -> tuple[list[int], Exception | None]:
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([eoslog.TopicPartition("t", 0, 0)])
        found: list[int] = []
        try:
            while record := consumer.poll(0.5):
                found.append(record.offset)
        except eoslog.EoslogError as error:
            return found, error
        return found, None


@pytest.mark.parametrize("which", [0, 1, -2, -1], ids=["first", "middle", "last sealed", "active"])
@pytest.mark.parametrize("seen", [False, True])
def test_records_before_a_missing_segment_are_read_and_then_it_is_named(
    log: Any, which: int, seen: bool
) -> None:
    bases = segments(log)
    assert len(bases) > 3
    if seen:
        log._engine.partition("t", 0).segments.bases()
    take_away(log, bases[which])
    end = [*bases, 20][bases.index(bases[which]) + 1]
    found, error = consumed(log)
    assert found == list(range(bases[which]))
    assert isinstance(error, CorruptRecord)
    if which != -1 or seen:
        assert f"offsets {bases[which]} to {end - 1} are missing" in str(error)
    columns: list[int] = []
    with pytest.raises(CorruptRecord, match="missing"):
        for part in log.scan("t"):
            columns += part.column("offset").to_pylist()
    assert columns == found


def test_a_scan_that_starts_after_a_missing_segment_reads_to_the_end(log: Any) -> None:
    bases = segments(log)
    take_away(log, bases[1])
    table = log.scan("t", start=bases[2]).to_table()
    assert table["offset"].to_pylist() == list(range(bases[2], 20))


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_field_A_a_lost_marker_is_reported_and_does_not_block_readers(
    tmp_path: Path, how: str, read_only: bool
) -> None:
    """After a kill, its transaction would stay open, without an error."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", config=CONFIG)
        part = log._engine.partition("t", 0)
        producer = log.producer(transactional_id="p", linger_ms=0)
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.produce("t", b"x" * 400)
            producer.flush()
            part.roll()
        for size in (300, 600, 10):
            part.append(batch(1, size=size))
        part.roll()
        part.append(batch(1))
        part.flush()
        shutil.copytree(log.path, tmp_path / "killed")
        producer.close()
    file = sorted((tmp_path / "killed" / "t-0").glob("*.log"))[1]
    file.unlink() if how == "removed" else file.write_bytes(b"")
    with eoslog.open(tmp_path / "killed", read_only=read_only) as log:
        with pytest.raises(CorruptRecord, match="offsets 1 to .* may include the end of a trans"):
            list(log.read("t"))


def test_check_names_the_offsets_of_a_missing_segment(log: Any) -> None:
    bases = segments(log)
    take_away(log, bases[1])
    (problem,) = [p for p in log.check().problems if "missing, and compaction did not" in p.message]
    assert f"offsets {bases[1]} to {bases[2] - 1}" in problem.message


@pytest.mark.slow
def test_repair_that_cuts_accepts_a_missing_segment_and_readers_continue(log: Any) -> None:
    bases, path = segments(log), log.path
    take_away(log, bases[1])
    log.close()
    report = eoslog.repair(path, mode="report")
    assert [p.message for p in report.problems] == [
        p.message for p in eoslog.repair(path, mode="cut").problems
    ]
    assert eoslog.repair(path).ok
    with eoslog.open(path) as opened:
        found, error = consumed(opened)
        assert found == [*range(bases[1]), *range(bases[2], 20)]
        assert error is None and opened.check(full=True).ok
        opened._engine.partition("t", 0).append(batch(1))


READS: dict[str, Any] = {
    "read": lambda part: part.read(0, 20),
    "the end": lambda part: part.read(20, 20),
    "aborted": lambda part: part.aborted(0, 20),
    "time": lambda part: part.offset_for_time(0, 20),
    "sizes": lambda part: part.segments.sizes(),
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
@pytest.mark.parametrize("remade", [False, True], ids=["gone", "an empty directory of a new one"])
def test_a_deleted_topic_is_not_reported_as_damage(log: Any, read: Any, remade: bool) -> None:
    part = log._engine.partition("t", 0)
    log.delete_topic("t")
    if remade:  # its files are made after its directory
        (Path(log.path) / "t-0").mkdir()
    with pytest.raises(UnknownTopicOrPartition, match="deleted"):
        read(part)


@pytest.mark.parametrize("read", [READS[n] for n in ("read", "aborted", "time", "sizes")])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_without_any_segment_file_is_damaged(log: Any, read: Any, read_only: bool) -> None:
    with eoslog.open(log.path, read_only=read_only) as reader:
        part = reader._engine.partition("t", 0)
        for base in segments(log):
            take_away(log, base)
        with pytest.raises(CorruptRecord, match="offsets 0 to 19 are missing: there is no segment"):
            read(part)


def test_a_log_whose_segment_files_are_all_gone_is_closed_without_an_error(log: Any) -> None:
    part = log._engine.partition("t", 0)
    for offset in offsets_in(part.path, SEAL):
        os.remove(file_path(part.path, offset, SEAL))
    assert part.offset_for_time(1 << 60, 20) is None
    assert part.reader.derived.remade()  # closing writes these files
    for base in segments(log):
        take_away(log, base)
    log.close()
    assert [path for path in open_files() if path.startswith(part.path)] == []


def open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_a_first_segment_created_during_a_listing_is_not_reported_as_damage(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
    for file in (tmp_path / "log" / "t-0").iterdir():
        file.unlink()
    changes: list[Any] = []

    class Interrupted(SegmentList):
        def listing(self, *, wait: bool = True) -> Listing:
            found = super().listing(wait=wait)
            if changes:
                changes.pop()()
            return found

    with eoslog.open(tmp_path / "log") as log, eoslog.open(log.path, read_only=True) as view:
        part = view._engine.partition("t", 0)
        segments = Interrupted(part.context)
        changes.append(lambda: log._engine.partition("t", 0).append(batch(5)))
        assert segments.bases() == [0]
        assert changes == []


def test_a_view_reads_a_new_partition_that_has_no_files_yet(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
    for file in (tmp_path / "log" / "t-0").iterdir():
        file.unlink()
    with eoslog.open(tmp_path / "log", read_only=True) as view:
        part = view._engine.partition("t", 0)
        found = {name: read(part) for name, read in READS.items() if "end" not in name}
        assert found == {"read": [], "aborted": [], "time": None, "sizes": {}}


def test_gaps_that_a_brokers_cleaner_left_are_skipped(tmp_path: Path) -> None:
    """An import finds them and records them where its cleaner records progress."""
    with opened(str(tmp_path)) as log:
        for number in range(3):
            log.append(batch(2, timestamp=number))
        size = len(bytes(log.read(0, 4)[0].data))
        log.roll()
        log.append(batch(2))
        log.flush()
        place = os.path.realpath(log.path)
    assert segment_files.last_gap(place) == 0
    os.truncate(file_path(place, 0, LOG), size)
    gap = segment_files.last_gap(place)
    assert gap == 6
    with (
        opened(str(tmp_path), clean=True) as log,
        pytest.raises(CorruptRecord, match="offsets 4 to 5 are missing"),
    ):
        payloads(log)
    checkpoints.write_offsets(str(tmp_path / checkpoints.CLEANER_CHECKPOINT), {("t", 0): gap})
    with opened(str(tmp_path), clean=True) as log:
        assert [offset for offset, _ in payloads(log)] == [0, 1, 2, 3, 6, 7]
        assert log.read(5, 6) == []


def test_a_log_that_is_shorter_than_at_its_close_is_rejected(
    tmp_path: Path,
) -> None:
    """A file cut at a batch, or without its last segment, is otherwise valid."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config=CONFIG)
        part = log._engine.partition("t", 0)
        for _ in range(20):
            part.append(batch(1, size=120))
    last = offsets_in(str(path / "t-0"), LOG)[-1]
    os.remove(path / "t-0" / file_name(last, LOG))
    kept = {p.name: p.read_bytes() for p in (path / "t-0").glob("*.log")}
    with eoslog.open(path) as log:
        for _ in range(2):
            with pytest.raises(
                CorruptRecord, match=f"ends at offset {last}, but it was flushed up to offset 20"
            ):
                log.offsets("t", 0)
        assert not log.check().ok
    assert {p.name: p.read_bytes() for p in (path / "t-0").glob("*.log")} == kept
    report = eoslog.repair(path, mode="report")
    assert "flushed up to offset 20" in report.problems[0].message
    eoslog.repair(path, mode="cut")
    with eoslog.open(path) as log:
        assert consumed(log)[0] == list(range(last))
        assert log._engine.partition("t", 0).append(batch(1)).base_offset == 20
        assert log.check(full=True).ok


def test_retention_of_a_deleted_topic_raises_unknown_topic(tmp_path):
    """Its files went between the list and the look at them."""
    with opened(str(tmp_path)) as part:
        part.append(batch(1))
        part.segment(0).close()
        os.remove(part.segment(0).path())
        part.session.control.mark_deleted(part.slot)
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            apply_retention(part, 10**15)


def test_a_segment_deleted_after_the_listing_has_no_size(tmp_path):
    """Another process may retain or compact at any time."""
    with opened(str(tmp_path), segment_bytes=1000) as part:
        while len(part.segments.bases()) < 3:
            part.append(batch(1, size=300))
        gone = part.segment(0)
        gone.close()
        os.remove(gone.path())
        assert list(part.segments.sizes()) == part.segments.bases() != [] and gone.file is None


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("harm", ["remove", "empty", "cut", "zero"])
def test_field_A2_read_segments_reports_a_missing_end_of_an_open_log(
    log: Any, harm: str, isolation: str
) -> None:
    """An open directory has no clean mark, but it has the recovery point."""
    base = segments(log)[-1]
    file = Path(log.path, "t-0", file_name(base, LOG))
    if harm == "remove":
        file.unlink()
    else:
        size = file.stat().st_size
        file.write_bytes({"empty": b"", "cut": file.read_bytes()[:-170], "zero": bytes(size)}[harm])
    found = []
    with pytest.raises(CorruptRecord, match="offset 20|damaged|cut short"):
        for record in eoslog.read_segments(file.parent, isolation=isolation).records():
            found.append(record.offset)
    assert found == list(range(19 if harm == "cut" else base))
    assert not os.path.exists(os.path.join(log.path, checkpoints.CLEAN_SHUTDOWN))


def test_field_A2_read_segments_reads_a_topic_that_was_recreated(log: Any) -> None:
    """The recovery point of the deleted topic says nothing of its successor."""
    log.delete_topic("t")
    log.create_topic("t", config=CONFIG)
    log._engine.partition("t", 0).append(batch(1, size=120))
    place = os.path.join(log.path, "t-0")
    assert [record.offset for record in eoslog.read_segments(place).records()] == [0]
