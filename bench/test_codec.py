"""Record batches encoded and decoded row by row, compared with peers.

The peers are the Kafka clients' codecs and memcpy.
"""

from __future__ import annotations

from typing import Any

from bench import data
from bench.contest import Contender, Contest
from bench.peers import codecs, limits
from eoslog import _core

COUNT = 20_000
PER_BATCH = 140
_TIME_MS = 1_700_000_000_000


def test_encode(contest: Contest) -> None:
    keys, values = data.keys(COUNT), data.values(COUNT)
    groups = [
        [
            (_TIME_MS, key, value, ())
            for key, value in zip(
                keys[at : at + PER_BATCH], values[at : at + PER_BATCH], strict=True
            )
        ]
        for at in range(0, COUNT, PER_BATCH)
    ]

    def check(_state: Any, built: list[bytes]) -> None:
        assert codecs.decoded(b"".join(built)) == data.expected(COUNT)

    contest(
        Contender(
            "build_batch", lambda _: [_core.build_batch(group) for group in groups], check=check
        ),
        limits.memcpy(COUNT * 100),
        ("aiokafka builder", lambda: codecs.aiokafka_builder(COUNT)),
        ("kafka-python builder", lambda: codecs.kafka_python_builder(2_000)),
        units=COUNT,
    )


def test_decode(contest: Contest) -> None:
    log = b"".join(data.batches(COUNT, PER_BATCH))

    def run(_state: Any) -> list[Any]:
        return _core.decode_records("t", 0, log, 0, COUNT, None, COUNT)[0]

    def check(_state: Any, records: list[Any]) -> None:
        assert data.checksum(record.value for record in records) == data.expected(COUNT)
        damaged = bytearray(log)
        damaged[len(log) // 2] ^= 1
        found, _ = _core.decode_records("t", 0, log[: len(log) // 2], 0, COUNT, None, COUNT)
        try:
            got, _ = _core.decode_records("t", 0, damaged, 0, COUNT, None, COUNT)
        except Exception as error:
            assert "crc" in str(error).lower(), error
        else:
            assert len(got) <= len(found)  # the batch with the flipped bit is not returned

    contest(
        Contender("decode_records", run, check=check),
        ("aiokafka reader", lambda: codecs.aiokafka_reader(log, COUNT)),
        ("kafka-python reader", lambda: codecs.kafka_python_reader(
            b"".join(data.batches(2_000, PER_BATCH)), 2_000)),
        units=COUNT,
    )  # fmt: skip
