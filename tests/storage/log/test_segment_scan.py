"""Recovery's scan reads a segment piece by piece and finds all its valid batches."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eoslog import _core

SIZES = [0, 10, 3_000, 32_700, 32_768, 60_000, 600_000, 1_048_500, 1_048_576, 2_300_000]
"""Of values, below and above the pieces that are read."""
HEADER = 61


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> _core.ControlFile:
    memory = os.memfd_create("control")
    os.ftruncate(memory, 1 << 20)
    control = _core.ControlFile(memory)
    control.map_chunks(1)
    return control


def segment(sizes: list[int]) -> tuple[bytes, list[int]]:
    """A segment and where each of its batches begins; the size -1 is a marker."""
    noise = random.Random(len(sizes)).randbytes(max(*sizes, 1))
    data, begins = b"", []
    for offset, size in enumerate(sizes):
        begins.append(len(data))
        if size < 0:
            data += bytes(
                _core.build_marker(9, 0, offset % 2 == 0, timestamp=offset, base_offset=offset)
            )
        else:
            data += bytes(_core.build_batch([(offset, None, noise[:size], ())], base_offset=offset))
    return data, begins


def scan(control: _core.ControlFile, path: Path, data: bytes, verify: bool) -> tuple[int, int, str]:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    partition = _core.Partition(control, 0, -1, 0, str(path.parent))
    partition.load(0, b"")
    partition.use_segment(0, fd)
    try:
        valid, end, _, _, _, reason, _ = partition.scan_segment(len(data), verify)
        return valid, end, reason or ""
    finally:
        partition.use_segment(0, -1)
        os.close(fd)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.sampled_from([-1, *SIZES]), min_size=1, max_size=7),
    st.sampled_from(["nothing", "flip", "cut"]),
    st.integers(0, 1 << 30),
    st.integers(0, 7),
    st.booleans(),
)
def test_a_scan_of_a_segment_stops_at_the_first_damaged_batch(
    control: _core.ControlFile, tmp_path: Path, sizes: list[int], damage: str, at: int, bit: int,
    verify: bool,
) -> None:  # fmt: skip
    data, begins = segment(sizes)
    broken = len(sizes)
    if damage != "nothing":
        at %= len(data)
        broken = max(i for i, begin in enumerate(begins) if begin <= at)
        start = begins[broken]
        if damage == "cut":
            data = data[:at]
        elif at - start < 21:  # nothing sums length, offset and epoch: leave them
            broken = len(sizes)
        elif verify:
            data = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        else:
            broken = len(sizes)
    valid, end, reason = scan(control, tmp_path / "scan.log", data, verify)
    assert valid == (begins[broken] if broken < len(sizes) else len(data))
    assert end == broken
    assert bool(reason) == (valid < len(data))


@pytest.mark.parametrize("verify", [True, False])
def test_a_marker_longer_than_a_piece_of_a_scan_is_checked_completely(
    control: _core.ControlFile, tmp_path: Path, verify: bool
) -> None:
    """As a broker's own may be: its record carries what it likes."""
    body = bytes(_core.build_batch([(0, b"\x00\x00\x00\x01", bytes(1_300_000), ())], base_offset=1))
    marker = bytearray(body)
    marker[22] |= 0x30  # transactional, control
    marker[17:21] = _core.crc32c(bytes(marker[21:])).to_bytes(4, "big")
    first = segment([10])[0]
    data = first + bytes(marker) + segment([5, 5, 7])[0][-HEADER - 14 :]
    valid, end, _ = scan(control, tmp_path / "scan.log", data, verify)
    assert (valid, end) == (len(data), 3)
