"""CRC-32C and the hashes, against published values and the slow definition."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from eoslog import _core
from eoslog.errors import ConfigError


def slow_crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_crc32c_equals_the_published_vectors(data: bytes, expected: int) -> None:
    assert _core.crc32c(data) == expected
    assert _core.crc32c_software(data) == expected


@pytest.mark.parametrize(
    "size", [1, 7, 8, 9, 63, 255, 256, 767, 768, 769, 1535, 1536, 6143, 6144, 6145, 20011]
)
def test_hardware_crc32c_equals_software_at_every_stream_boundary(size: int) -> None:
    data = random.Random(size).randbytes(size + 3)
    for start in range(3):  # unaligned
        piece = data[start : start + size]
        assert _core.crc32c(piece) == _core.crc32c_software(piece)
    if size < 2000:
        assert _core.crc32c(data) == slow_crc32c(data)


def test_crc32c_continues_from_an_earlier_result() -> None:
    data = random.Random(1).randbytes(30_000)
    for cut in (0, 1, 8, 777, 6144, 29_999, 30_000):
        assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == _core.crc32c(data)


def test_crc32c_reads_any_contiguous_buffer() -> None:
    assert _core.crc32c(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283
    with pytest.raises(TypeError):
        _core.crc32c("text")


COMPARED = """
import random
from eoslog import _core

data = random.Random(7).randbytes(9_000)
for size in (*range(1_100), 2_047, 2_048, 2_049, 6_143, 6_144, 6_145, 8_990):
    for start in (0, 1, 5):  # unaligned
        piece = memoryview(data)[start : start + size]
        assert _core.crc32c(piece) == _core.crc32c_software(piece), (start, size)
        assert _core.crc32c(piece, 0x12345678) == _core.crc32c_software(piece, 0x12345678), (start, size)
print(_core.crc32c_backend, hex(_core.crc32c(b"123456789")))
"""


FLAGS = {
    "vpclmulqdq": {"vpclmulqdq", "avx512f"},
    "sse4.2": {"sse4_2"},
    "armv8": {"crc32"},
    "software": set(),
}


@pytest.mark.parametrize("backend", FLAGS)
def test_every_crc32c_backend_of_the_machine_equals_the_tables(backend: str) -> None:
    environment = {
        **os.environ,
        "EOSLOG_CRC32C": backend,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPARED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    flags = set(Path("/proc/cpuinfo").read_text().split())
    best = next(name for name, needed in FLAGS.items() if needed <= flags)
    assert done.stdout.split() == [backend if FLAGS[backend] <= flags else best, "0xe3069283"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 275646681),
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas(key: str, expected: int) -> None:
    assert _core.murmur2(key.encode()) == expected
    assert _core.partition_for_key(key.encode(), 7) == (expected & 0x7FFFFFFF) % 7


def test_java_hash_counts_utf16_units() -> None:
    assert _core.java_hash("") == 0
    assert _core.java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_a_topic_without_partitions_has_no_partition_for_a_key() -> None:
    with pytest.raises(ConfigError):
        _core.partition_for_key(b"k", 0)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 61, 4096, 12_345, 1_000_003])
def test_crc32c_combine_equals_the_checksum_of_both_pieces(size: int) -> None:
    rng = random.Random(size)
    first, second = rng.randbytes(40), rng.randbytes(size)
    both = _core.crc32c_combine(_core.crc32c(first), _core.crc32c(second), size)
    assert both == _core.crc32c_software(first + second)
