"""Kafka clients' encoders and decoders of record batches.

They are aiokafka's in Cython and kafka-python's in Python.
"""

from __future__ import annotations

from typing import Any

from bench import data
from bench.contest import Contender

_TIME_MS = 1_700_000_000_000


def aiokafka_builder(count: int, *, batch_size: int = 16384) -> Contender:
    """The bare batch builder: append until a batch is full, then build it."""
    from aiokafka.record._crecords import DefaultRecordBatchBuilder

    keys, values = data.keys(count), data.values(count)

    def run(_state: Any) -> list[Any]:
        built, at, builder = [], 0, None
        for key, value in zip(keys, values, strict=True):
            if builder is None:
                builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, batch_size)
                at = 0
            if builder.append(at, _TIME_MS, key, value, []) is None:
                built.append(builder.build())
                builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, batch_size)
                at = 0
                builder.append(at, _TIME_MS, key, value, [])
            at += 1
        if builder is not None:
            built.append(builder.build())
        return built

    def check(_state: Any, built: list[Any]) -> None:
        assert decoded(b"".join(map(bytes, built))) == data.expected(count)

    return Contender("aiokafka builder", run, check=check)


def decoded(log: bytes) -> tuple[int, int]:
    """The checksum of batches, by aiokafka's decoder."""
    return data.checksum(value for value in _aiokafka_values(log))


def _aiokafka_values(log: bytes) -> Any:
    from aiokafka.record._crecords import MemoryRecords

    records = MemoryRecords(log)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            yield record.value


def aiokafka_reader(log: bytes, count: int) -> Contender:
    """Every batch's CRC, every record's offset, time, key, value and headers."""
    from aiokafka.record._crecords import MemoryRecords

    def run(_state: Any) -> int:
        records, seen = MemoryRecords(log), 0
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            for record in batch:
                record.offset, record.timestamp, record.key, record.value, record.headers  # noqa: B018
                seen += 1
        return seen

    def check(_state: Any, seen: int) -> None:
        assert seen == count
        assert decoded(log) == data.expected(count)

    return Contender("aiokafka reader", run, check=check, units=count)


def kafka_python_builder(count: int, *, batch_size: int = 16384) -> Contender:
    """The same as aiokafka's, in Python."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    keys, values = data.keys(count), data.values(count)

    def fresh() -> Any:
        return DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1,
            base_sequence=-1, batch_size=batch_size,
        )  # fmt: skip

    def run(_state: Any) -> list[Any]:
        built, at, builder = [], 0, fresh()
        for key, value in zip(keys, values, strict=True):
            if builder.append(at, _TIME_MS, key, value, []) is None:
                built.append(builder.build())
                builder, at = fresh(), 0
                builder.append(at, _TIME_MS, key, value, [])
            at += 1
        return [*built, builder.build()]

    def check(_state: Any, built: list[Any]) -> None:
        assert decoded(b"".join(map(bytes, built))) == data.expected(count)

    return Contender("kafka-python builder", run, check=check, units=count)


def kafka_python_reader(log: bytes, count: int) -> Contender:
    """The same as aiokafka's, in Python."""
    from kafka.record import MemoryRecords

    def run(_state: Any) -> int:
        records, seen = MemoryRecords(log), 0
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            for record in batch:
                record.offset, record.timestamp, record.key, record.value, record.headers  # noqa: B018
                seen += 1
        return seen

    def check(_state: Any, seen: int) -> None:
        assert seen == count

    return Contender("kafka-python reader", run, check=check, units=count)
