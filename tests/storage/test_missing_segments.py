"""A segment file that somebody takes away: its records are missed, loudly, and never skipped.

What retention and compaction take is no loss: their own tests read on behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.errors import CorruptRecord, UnknownTopicOrPartition
from eoslog.storage import checkpoints, segment_files
from eoslog.storage.segments import LOG, file_name, offsets_in
from tests.storage.helpers import batch, opened, payloads

CONFIG = {"segment.bytes": "1000", "segment.index.bytes": "4096"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    """Four segments or more of a few records each, nothing of them read yet."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", config=CONFIG)
        part = log.engine.partition("t", 0)
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
def test_what_lies_before_is_read_and_then_an_error_names_what_is_missing(
    log: Any, which: int, seen: bool
) -> None:
    bases = segments(log)
    assert len(bases) > 3
    if seen:
        log.engine.partition("t", 0).reader.bases()
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


def test_reading_goes_on_behind_what_is_missing_when_asked_to(log: Any) -> None:
    bases = segments(log)
    take_away(log, bases[1])
    table = log.scan("t", start=bases[2]).to_table()
    assert table["offset"].to_pylist() == list(range(bases[2], 20))


def test_a_check_says_what_is_missing(log: Any) -> None:
    bases = segments(log)
    take_away(log, bases[1])
    (problem,) = [p for p in log.check().problems if "missing, and no" in p.message]
    assert f"offsets {bases[1]} to {bases[2] - 1}" in problem.message


@pytest.mark.slow
def test_a_repair_that_cuts_accepts_what_is_gone_and_readers_go_on(log: Any) -> None:
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
        opened.engine.partition("t", 0).append(batch(1))


def test_a_deleted_topic_is_no_damage(log: Any) -> None:
    part = log.engine.partition("t", 0)
    log.delete_topic("t")
    with pytest.raises(eoslog.errors.UnknownTopicOrPartition, match="deleted"):
        part.read(0, 20)


def test_gaps_that_a_broker_s_cleaner_left_are_read_over(tmp_path: Path) -> None:
    """They are found when its directory is taken over, and noted where its cleaner notes its progress."""
    with opened(str(tmp_path)) as log:
        for number in range(3):
            log.append(batch(2, timestamp=number))
        size = len(bytes(log.read(0, 4)[0].data))
        log.roll()
        log.append(batch(2))
        log.flush()
        place = log.path
    assert segment_files.last_gap(place) == 0
    os.truncate(os.path.join(place, file_name(0, LOG)), size)
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


def test_what_was_closed_longer_than_it_is_now_is_not_opened_as_if_nothing_were(
    tmp_path: Path,
) -> None:
    """A file cut at a batch, or a last segment gone, leaves nothing else that is wrong."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config=CONFIG)
        part = log.engine.partition("t", 0)
        for _ in range(20):
            part.append(batch(1, size=120))
    last = offsets_in(str(path / "t-0"), LOG)[-1]
    os.remove(path / "t-0" / file_name(last, LOG))
    kept = {p.name: p.read_bytes() for p in (path / "t-0").glob("*.log")}
    with eoslog.open(path) as log:
        for _ in range(2):
            with pytest.raises(
                CorruptRecord, match=f"ends at offset {last}, it was flushed up to offset 20"
            ):
                log.offsets("t", 0)
        assert not log.check().ok
    assert {p.name: p.read_bytes() for p in (path / "t-0").glob("*.log")} == kept
    report = eoslog.repair(path, mode="report")
    assert "flushed up to offset 20" in report.problems[0].message
    eoslog.repair(path, mode="cut")
    with eoslog.open(path) as log:
        assert consumed(log)[0] == list(range(last))
        assert log.engine.partition("t", 0).append(batch(1)).base_offset == 20
        assert log.check(full=True).ok


def test_retention_of_a_deleted_topic_says_so(tmp_path):
    """Its files went between the list and the look at them."""
    with opened(str(tmp_path)) as part:
        part.append(batch(1))
        part.segment(0).close()
        os.remove(part.segment(0).path())
        part.session.control.mark_deleted(part.slot)
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            part.apply_retention(10**15)


def test_a_segment_that_goes_after_the_list_was_made_has_no_size(tmp_path):
    """Another process may retain or compact at any time."""
    with opened(str(tmp_path), segment_bytes=1000) as part:
        while len(part.reader.bases()) < 3:
            part.append(batch(1, size=300))
        gone = part.segment(0)
        gone.close()
        os.remove(gone.path())
        assert list(part.reader.sizes()) == part.reader.bases() != [] and gone.file is None
