"""Decoding row by row, beside aiokafka's Cython reader; both check the CRC and hand out every field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eoslog import _core

COUNT = 20_000
PER_BATCH = 150


def log_of(values: list[bytes]) -> bytes:
    return b"".join(
        _core.build_batch(
            [(1_700_000_000_000, None, v, ()) for v in values[at : at + PER_BATCH]], base_offset=at
        )
        for at in range(0, COUNT, PER_BATCH)
    )


def test_decode_records(measure: Callable[..., Any], values: list[bytes]) -> None:
    data = log_of(values[:COUNT])

    def run() -> None:
        records, _ = _core.decode_records("t", 0, data, 0, COUNT, None, COUNT)
        assert len(records) == COUNT

    measure(run, units=COUNT)


def test_aiokafka_reader(measure: Callable[..., Any], values: list[bytes]) -> None:
    from aiokafka.record._crecords import MemoryRecords

    data = log_of(values[:COUNT])

    def run() -> None:
        records, count = MemoryRecords(data), 0
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            for record in batch:
                record.offset, record.timestamp, record.key, record.value, record.headers  # noqa: B018
                count += 1
        assert count == COUNT

    measure(run, units=COUNT)


def test_consume(
    measure: Callable[..., Any], open_log: Callable[..., Any], values: list[bytes]
) -> None:
    import eoslog

    log = open_log("os")
    with log.producer() as producer:
        producer.produce_many("t", values[:COUNT], partition=0)
    with log.consumer(auto_offset_reset="earliest") as consumer:
        partition = eoslog.TopicPartition("t", 0)
        consumer.assign([partition])

        def run() -> None:
            consumer.seek(partition, 0)
            count = 0
            while count < COUNT:
                count += len(consumer.consume(COUNT, 1))

        measure(run, units=COUNT)
