"""Reads of a compacted topic while a cleaner replaces segments."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read import batch as reader
from pyspark_eoslog.read.batch import ReadTask, read_task
from pyspark_eoslog.read.planning import pin_ranges
from pyspark_eoslog.read.splitting import plan
from pyspark_eoslog.schema import source_schema

import eoslog
from eoslog.connector.byte_ranges import PartitionFiles
from eoslog.errors import CorruptRecord
from eoslog.storage.directory import offset_checkpoints
from tests.storage.segment.test_listing import cleaner, fill


def planned(path, **given):
    parsed = Options.parse({"path": path, "subscribe": "t", "columns": "key", **given})
    return parsed, pin_ranges(parsed)


def keys(parsed, tasks):
    return {
        key
        for pieces in tasks
        for batch in read_task(parsed, source_schema(parsed), ReadTask(pieces))
        for key in batch.column(0).to_pylist()
    }


@pytest.fixture
def topic(tmp_path):
    path = str(tmp_path / "log")
    return path, fill(path)


@pytest.mark.process
@pytest.mark.parametrize("late", ["planned during the swap", "planned before it"])
def test_a_read_misses_no_row_while_segments_are_swapped(topic, late):
    path, expected = topic
    parsed, ranges = planned(path)
    tasks = plan(ranges, parsed)
    child = cleaner(path, "clean.old.durable", "stop")
    with ThreadPoolExecutor() as pool:
        try:
            if late == "planned during the swap":
                read = pool.submit(lambda: keys(parsed, plan(ranges, parsed)))
            else:
                read = pool.submit(keys, parsed, tasks)
            with pytest.raises(NotYet):
                read.result(0.3)
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert child.wait(60) == 0
        assert read.result(60) == expected


def test_a_file_replaced_during_planning_is_read_from_its_beginning(topic):
    """A position in the old file is not a position in the new one."""
    path, _ = topic
    listed = PartitionFiles(f"{path}/t-0")
    end = 3000
    assert listed.spans(100, end)
    with eoslog.open(path) as log:
        log.clean("t")
    with pytest.raises(FileNotFoundError):
        listed.spans(100, end)


def test_a_file_with_a_reused_inode_and_other_batches_is_rejected(topic):
    """File systems give the inode of a removed segment to one that is made later."""
    path, _ = topic
    bounds = {"startingOffsets": '{"t": {"0": 300}}', "endingOffsets": '{"t": {"0": 600}}'}
    parsed, ranges = planned(path, **bounds)
    ((piece,),) = plan(ranges, parsed)
    assert piece.spans[0].position > 0
    before = keys(parsed, [[piece]])
    with eoslog.open(path) as log:
        log.clean("t")
    log_file = Path(piece.directory) / f"{piece.spans[0].base:020d}.log"
    inode = log_file.stat().st_ino
    changed = replace(piece, spans=tuple(replace(span, inode=inode) for span in piece.spans))
    assert {key for key in before if key.startswith(b"once")} <= keys(parsed, [[changed]])


@pytest.mark.parametrize(("gone", "start"), [(1, 1), (2, 0), (-2, 0), (-1, 0)])
def test_a_segment_missing_from_every_listing_fails_the_task(topic, gone, start):
    path, _ = topic
    parsed, (one,) = planned(path)
    listed = sorted(Path(path, "t-0").glob("*.log"))
    edges = [*(int(log.stem) for log in listed), one.end]
    gone %= len(listed)
    listed[gone].unlink()
    with pytest.raises(
        CorruptRecord, match=f"offsets {edges[gone]} to {edges[gone + 1] - 1} are missing"
    ):
        keys(parsed, plan([replace(one, start=edges[start])], parsed))


def test_a_gap_left_by_the_cleaner_of_a_broker_is_not_damage(topic):
    path, _ = topic
    parsed, ranges = planned(path)
    listed = sorted(Path(path, "t-0").glob("*.log"))
    listed[1].unlink()
    following = int(listed[2].stem)
    offset_checkpoints.write(str(path), "cleaner-offset-checkpoint", {("t", 0): following})
    assert keys(parsed, plan(ranges, parsed))


def test_a_segment_removed_during_the_lookup_is_looked_up_again(topic, monkeypatch):
    path, expected = topic
    parsed, ranges = planned(path)
    tasks = plan(ranges, parsed)
    with eoslog.open(path) as log:
        log.clean("t")
    listed, away = reader.open_partition, []

    def listed_before(directory, topic_id):
        if away:
            away[0].with_suffix(".away").rename(away[0])
        found = listed(directory, topic_id)
        if not away:
            away.append(Path(found.path(found.bases[1])))
            away[0].rename(away[0].with_suffix(".away"))
        return found

    monkeypatch.setattr(reader, "open_partition", listed_before)
    assert keys(parsed, tasks) == expected
