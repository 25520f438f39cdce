"""Encoded batches that no consumer could read are rejected before the append."""

from __future__ import annotations

import struct

import pytest

from eoslog import _core
from eoslog.errors import (
    ErrorCode,
    InvalidRecord,
    KafkaError,
    RecordTooLarge,
    UnsupportedFormat,
)
from eoslog.log import Log
from tests.client.helpers import stored

ATTRIBUTES, LAST_DELTA, BASE_TIME, COUNT, RECORDS = 21, 23, 27, 57, 61
T0 = 1_700_000_000_000


def encoded(*changes: tuple[int, str, int], compression: str = "none") -> bytearray:
    """A batch of three records with fields of its header changed, under a right CRC."""
    records = [(T0 + i, b"k", b"v%d" % i, ()) for i in range(3)]
    return sealed(bytearray(_core.build_batch(records, compression=compression)), *changes)


def sealed(batch: bytearray, *changes: tuple[int, str, int]) -> bytearray:
    for at, layout, value in changes:
        struct.pack_into(layout, batch, at, value)
    struct.pack_into(">I", batch, 17, _core.crc32c(bytes(batch[ATTRIBUTES:])))
    return batch


def garbage() -> bytearray:
    batch = encoded()
    batch[RECORDS:] = b"\xff" * (len(batch) - RECORDS)
    return sealed(batch)


@pytest.mark.parametrize(
    ("batch", "error", "why"),
    [
        (encoded((LAST_DELTA, ">i", 4), (COUNT, ">i", 5)), InvalidRecord, "counts 5 records"),
        (encoded((LAST_DELTA, ">i", 1), (COUNT, ">i", 2)), InvalidRecord, "left over"),
        (garbage(), InvalidRecord, "batch 1 of 2"),
        (encoded((ATTRIBUTES, ">h", 4)), InvalidRecord, "zstd"),
        (encoded((ATTRIBUTES, ">h", 7)), UnsupportedFormat, "codec is 7"),
        (encoded((BASE_TIME, ">q", 2**63 - 1)), KafkaError, "timestamp of record 1"),
    ],
)
def test_produce_batches_rejects_batches_that_consumers_cannot_read(
    log: Log, batch: bytearray, error: type[KafkaError], why: str
) -> None:
    with log.producer() as producer:
        with pytest.raises(error, match=why) as caught:
            producer.produce_batches("one", 0, [encoded() + batch])
        assert "one-0" in str(caught.value)
        if error is KafkaError:
            assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert stored(log) == []
        producer.produce("one", b"good")
    assert [value for _, _, value in stored(log)] == [b"good"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_batches_accepts_complete_batches_of_any_timestamp(log: Log, codec: str) -> None:
    times = (0, -1, -5, 2**63 - 3, -(2**63))
    batches = [encoded((BASE_TIME, ">q", time), compression=codec) for time in times]
    with log.producer() as producer:
        assert producer.produce_batches("one", 0, batches) == 15
    assert [value for _, _, value in stored(log)] == [b"v0", b"v1", b"v2"] * 5


def test_produce_batches_does_not_parse_trusted_batches(log: Log) -> None:
    with log.producer() as producer:
        assert producer.produce_batches("one", 0, [garbage()], trusted=True) == 3


def test_the_error_of_a_rejected_batch_is_raised_only_once(log: Log) -> None:
    """What was caught at the call is raised by no flush, nor as the log is closed."""
    log.create_topic("small", config={"max.message.bytes": 60})
    with log.producer() as producer:
        with pytest.raises(RecordTooLarge):
            producer.produce_batches("small", 0, [encoded(), encoded()])
        assert producer.flush() == 0
        producer.produce("one", b"x" * 100)
        producer.flush()
        log.alter_topic("one", {"max.message.bytes": 60})
        producer.produce("one", b"y" * 100)
        with pytest.raises(RecordTooLarge):
            producer.flush()
