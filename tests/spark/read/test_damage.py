"""Damage in a sealed segment: a read that meets it fails, and is never short."""

import os
import struct
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog import DefaultSource

import eoslog
from eoslog import _core
from eoslog.errors import CorruptRecord


def cut(path, position):
    """One byte too few."""
    os.truncate(path, path.stat().st_size - 1)


def absurd(path, position):
    """A batch that says it is as long as can be."""
    with path.open("r+b") as file:
        file.seek(position + 8)
        file.write(struct.pack(">i", 0x7FFFFFFF))


def blank(path, position):
    """Zeros from a batch on."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(path.stat().st_size - position))


@pytest.fixture(params=["eoslog", "eoslog, cleaned", "kafka"])
def place(request, tmp_path):
    """(directory, layout) of a topic `t` of many small segments."""
    config = {"segment.bytes": "3000"}
    if request.param == "eoslog, cleaned":
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", config=config)
        with log.producer({"batch.size": 500}) as producer:
            for n in range(1000):
                producer.produce("t", b"%d" % n + bytes(20), b"k%d" % (n // 2))
                if n % 20 == 19:
                    producer.flush()
        if "cleanup.policy" in config:
            log.clean("t", roll=True)
    return str(tmp_path / "log"), request.param.split(",")[0]


def damaged(path, harm):
    """(name, offset) of a segment that is harmed in its middle, at that batch."""
    segment = sorted(Path(path, "t-0").glob("*.log"))[1]
    batches = _core.iter_batches(segment.read_bytes())
    middle = batches[len(batches) // 2]
    harm(segment, middle.position)
    return segment.name, middle.base_offset


@pytest.mark.parametrize("harm", [cut, absurd, blank])
@pytest.mark.parametrize("columns", ["offset,value", "offset"])
@pytest.mark.parametrize("split", [{}, {"maxBytesPerPartition": "400"}])
def test_a_damaged_segment_fails_a_read(place, harm, columns, split):
    path, layout = place
    given = {"path": path, "layout": layout, "subscribe": "t", "columns": columns, **split}
    # Pins the ends; damage that was there before is reported when an eoslog directory is
    # opened.
    source = DefaultSource(given)
    name, _ = damaged(path, harm)
    with pytest.raises(CorruptRecord, match=name):
        read(source)


@pytest.mark.parametrize("harm", [cut, absurd, blank])
@pytest.mark.parametrize("behind", [0, 1])
def test_a_read_that_starts_at_or_after_damage_fails_too(place, harm, behind):
    path, layout = place
    _, offset = damaged(path, lambda *_: None)
    given = {"path": path, "layout": layout, "subscribe": "t"}
    given["startingOffsets"] = f'{{"t": {{"0": {offset + behind}}}}}'
    source = DefaultSource(given)
    name, _ = damaged(path, harm)
    with pytest.raises(CorruptRecord, match=name):
        read(source)


def read(source):
    reader = source.reader(source.schema())
    for task in reader.partitions():
        for _ in reader.read(task):
            pass
