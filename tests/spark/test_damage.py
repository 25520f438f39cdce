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
    """Short of its last 17 bytes."""
    os.truncate(path, path.stat().st_size - 17)


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


@pytest.mark.parametrize("harm", [cut, absurd, blank])
@pytest.mark.parametrize("columns", ["offset,value", "offset"])
def test_a_damaged_segment_ends_a_read(place, harm, columns):
    path, layout = place
    source = DefaultSource(
        {"path": path, "layout": layout, "subscribe": "t", "columns": columns}
    )  # pins the ends; an eoslog directory that is damaged before is told when it is opened
    segment = sorted(Path(path, "t-0").glob("*.log"))[1]
    batches = _core.iter_batches(segment.read_bytes())
    harm(segment, batches[len(batches) // 2].position)
    reader = source.reader(source.schema())
    with pytest.raises(CorruptRecord, match=segment.name):
        for task in reader.partitions():
            for _ in reader.read(task):
                pass
