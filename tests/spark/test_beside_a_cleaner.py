"""Reads of a compacted topic while a cleaner puts new segments in the place of old ones."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog import reader
from pyspark_eoslog.options import Options
from pyspark_eoslog.planning import pin_ranges
from pyspark_eoslog.reader import ReadTask, read_task
from pyspark_eoslog.schema import source_schema
from pyspark_eoslog.segments import PartitionFiles
from pyspark_eoslog.splitting import plan

import eoslog
from eoslog.errors import CorruptRecord
from tests.storage.test_settled_listing import cleaner, fill


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
def test_no_row_is_missed_while_segments_are_swapped(topic, late):
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


def test_a_file_that_is_replaced_while_it_is_planned_is_looked_at_from_the_beginning(topic):
    """What was found in the old file is no place in the new one."""
    path, _ = topic
    listed = PartitionFiles(f"{path}/t-0")
    end = 3000
    assert listed.spans(100, end)
    with eoslog.open(path) as log:
        log.clean("t")
    with pytest.raises(FileNotFoundError):
        listed.spans(100, end)


def test_a_file_with_the_inode_of_the_planned_one_and_other_batches_is_not_believed(topic):
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
def test_a_segment_that_no_listing_shows_is_an_error_of_the_task(topic, gone, start):
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


def test_below_what_a_brokers_cleaner_left_a_gap_is_none(topic):
    path, _ = topic
    parsed, ranges = planned(path)
    listed = sorted(Path(path, "t-0").glob("*.log"))
    listed[1].unlink()
    following = int(listed[2].stem)
    Path(path, "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {following}\n")
    assert keys(parsed, plan(ranges, parsed))


def test_a_segment_that_goes_while_a_task_looks_for_it_is_looked_for_again(topic, monkeypatch):
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
