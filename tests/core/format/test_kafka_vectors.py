"""Hashes, checksums and varints equal those that Kafka's own classes compute.

`tests/kafka/generators/Vectors.java` writes the expected values.
"""

from __future__ import annotations

import json

from eoslog import _core
from eoslog.client.producer.partitioner import partition_for_key
from eoslog.engine.shards import shard_of
from tests.paths import KAFKA_DATA
from tests.reference import codec

VECTORS = json.loads((KAFKA_DATA / "vectors.json").read_text())


def test_murmur2_and_the_partition_of_a_key_equal_kafkas() -> None:
    for hexed, murmur2, of_7, of_1000, _ in VECTORS["keys"]:
        key = bytes.fromhex(hexed)
        assert _core.murmur2(key) == murmur2
        assert (partition_for_key(key, 7), partition_for_key(key, 1000)) == (of_7, of_1000)


def test_crc32c_equals_kafkas() -> None:
    for hexed, _, _, _, crc in VECTORS["keys"]:
        data = bytes.fromhex(hexed)
        assert _core.crc32c(data) == _core.crc32c_software(data) == codec.crc32c(data) == crc


def test_ids_are_hashed_and_placed_as_kafka_does() -> None:
    names = [
        (bytes.fromhex(hexed).decode(), code, shard) for hexed, code, shard in VECTORS["names"]
    ]
    for name, code, shard in names:
        assert (_core.java_hash(name), shard_of(name, 50)) == (code, shard)
    assert any(code == -(2**31) for _, code, _ in names)


def test_the_reference_codec_writes_and_reads_kafkas_varints() -> None:
    for value, zigzag in [row[:2] for row in VECTORS["varints"]] + VECTORS["varlongs"]:
        assert codec.encode_varint(value).hex() == zigzag
        assert codec.Cursor(bytes.fromhex(zigzag)).varint(64) == value


def test_the_core_writes_and_reads_kafkas_varints_in_records() -> None:
    tail = "02010100"  # offset delta 1, no key, no value, no headers
    for value, zigzag in VECTORS["varlongs"]:
        first = max(0, -value)  # no timestamp is below 0
        if first >= 2**63:
            continue
        batch = bytes(_core.build_batch([(first, None, None, ()), (first + value, None, None, ())]))
        size = codec.encode_varint(1 + len(zigzag) // 2 + len(tail) // 2).hex()
        assert batch.hex().endswith(f"{size}00{zigzag}{tail}")
        (found,) = _core.iter_batches(batch)
        assert [record[1] for record in found.records()] == [first, first + value]
