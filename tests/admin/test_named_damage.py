"""Each call that encounters damage reports the file, the byte and the offset."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, _core
from eoslog.errors import CorruptRecord

T1 = TopicPartition("t", 1)
START = 10  # so that no read begins with the first byte of the file

pytestmark = pytest.mark.parametrize("codec", ["none", "lz4"])


def consumed(log: eoslog.Log, call: str) -> Any:
    with log.consumer() as consumer:
        consumer.assign([TopicPartition("t", 1, START)])
        for _ in range(40):
            getattr(consumer, call)(timeout=0)


READS: dict[str, Callable[[eoslog.Log, Path], Any]] = {
    "scan": lambda log, _: log.scan("t").to_table(),
    "scan_from": lambda log, _: log.scan("t", start=START).to_table(),
    "read": lambda log, _: list(log.read("t")),
    "read_from": lambda log, _: list(log.read("t", start=START)),
    "poll": lambda log, _: consumed(log, "poll"),
    "consume": lambda log, _: consumed(log, "consume"),
    "consume_arrow": lambda log, _: consumed(log, "consume_arrow"),
    "read_segments": lambda _, d: eoslog.read_segments(d).to_table(),
    "read_segments_from": lambda _, d: list(eoslog.read_segments(d, start=START).records()),
}


@pytest.fixture
def directory(tmp_path: Path, codec: str) -> Path:
    """A log whose partition 1 has several batches of several records."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        with log.producer(compression_type=codec) as producer:
            for batch in range(8):
                producer.produce_many("t", ["v" * 90 + str(batch)] * 3, partition=1)
                producer.flush()
    return tmp_path / "log"


def spoil(directory: Path, kind: str) -> tuple[Path, int, int]:
    """Damage the sixth batch: (file, its byte, its base offset)."""
    file = directory / "t-1" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    bad = _core.iter_batches(bytes(data))[5]
    at = {"record": bad.size - 2, "length": 8, "count": 57, "format": 16}[kind]
    data[bad.position + at] ^= 0x85
    file.write_bytes(data)
    return file, bad.position, bad.base_offset


@pytest.mark.parametrize("kind", ["record", "length", "count", "format"])
@pytest.mark.parametrize("read", READS)
def test_damage_is_named_with_file_and_byte(directory: Path, read: str, kind: str) -> None:
    file, position, offset = spoil(directory, kind)
    with eoslog.open(directory) as log, pytest.raises(CorruptRecord) as caught:
        READS[read](log, directory / "t-1")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.path, error.position) == (str(file), position)
    assert f"({file} at {position})" in str(error)
    if kind == "record":
        assert str(error).startswith(f"t-1: corrupt record batch at offset {offset}: CRC-32C ")


@pytest.mark.parametrize("read", READS)
def test_records_that_cannot_be_parsed_are_named_with_file_and_byte(
    directory: Path, read: str
) -> None:
    """The checksum is right, what it covers is not."""
    file = directory / "t-1" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    bad = _core.iter_batches(bytes(data))[5]
    data[bad.position + 61 : bad.position + bad.size] = b"\xff" * (bad.size - 61)
    crc = _core.crc32c(bytes(data[bad.position + 21 : bad.position + bad.size]))
    data[bad.position + 17 : bad.position + 21] = crc.to_bytes(4, "big")
    file.write_bytes(data)
    with eoslog.open(directory) as log, pytest.raises(CorruptRecord) as caught:
        READS[read](log, directory / "t-1")
    assert (caught.value.path, caught.value.position) == (str(file), bad.position)
    assert f"offset {bad.base_offset}" in str(caught.value)
