"""A file of batches on its way to be a segment: checked whole, stamped in place."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog import _core
from eoslog.errors import CorruptRecord
from tests.reference.codec import decode_batch

WINDOW = 262_144
"""Bytes that are read at a time."""
HEADER = 61


def batch(count: int, size: int = 10, **producer: int) -> bytes:
    return _core.build_batch([(1000 + n, b"k", bytes([n % 251]) * size, ()) for n in range(count)], **producer)  # fmt: skip


def sized(size: int) -> bytes:
    """A batch of so many bytes."""
    value = size - HEADER - 12
    while len(made := _core.build_batch([(1, None, bytes(value), ())])) < size:
        value += 1
    assert len(made) == size
    return made


@contextmanager
def opened(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("segment")
    try:
        os.pwrite(fd, data, 0)
        yield fd
    finally:
        os.close(fd)


def stamp(file: _core.SegmentFile, **changed: int) -> None:
    given = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "transactional": True,
             "base_offset": 100, "leader_epoch": 3}  # fmt: skip
    file.stamp(**{**given, **changed})  # type: ignore[arg-type]


sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), min_size=1, max_size=140)


@given(sizes, st.integers(0, 1 << 40), st.sampled_from([0, 2**31 - 3]), st.booleans())
def test_a_segment_file_is_stamped_like_batches_in_memory(
    shapes: list[tuple[int, int]], base: int, sequence: int, transactional: bool
) -> None:
    data = b"".join(batch(count, size) for count, size in shapes)
    with opened(data) as fd:
        file = _core.SegmentFile(fd, len(data))
        assert (file.batches, file.count) == (len(shapes), sum(count for count, _ in shapes))
        assert file.largest == max(b.size for b in _core.iter_batches(data))
        assert (file.max_timestamp, file.base_offset) == (999 + max(c for c, _ in shapes), -1)
        for again in (base + 9, base):  # the end of the log has moved once
            stamp(file, base_sequence=sequence, base_offset=again, transactional=transactional)
            assert file.base_offset == again
        found = os.pread(fd, len(data) + 1, 0)
    expected = bytearray(data)
    _core.stamp_batches(expected, producer_id=7, producer_epoch=2, base_sequence=sequence,
                        transactional=transactional)  # fmt: skip
    at, offset = 0, base
    for b in _core.iter_batches(bytes(expected)):
        struct.pack_into(">q", expected, at, offset)
        struct.pack_into(">i", expected, at + 12, 3)
        at += b.size
        offset += b.count
    assert found == bytes(expected)
    assert decode_batch(found[: _core.iter_batches(found)[0].size]).base_offset == base


@pytest.mark.parametrize("first", [WINDOW - 61, WINDOW - 60, WINDOW - 1, WINDOW, WINDOW + 1])
def test_batches_may_cross_the_read_window_anywhere(first: int) -> None:
    parts = [sized(first), batch(3), sized(3 * WINDOW + 17), batch(2)]
    data = b"".join(parts)
    with opened(data) as fd:
        file = _core.SegmentFile(fd, len(data))
        stamp(file, base_offset=0)
        found = _core.iter_batches(os.pread(fd, len(data), 0))
    assert [(b.size, b.base_offset) for b in found] == list(
        zip(map(len, parts), [0, 1, 4, 5], strict=True)
    )
    assert all(b.valid for b in found)


def test_every_bit_that_the_crc_covers_is_checked() -> None:
    data = batch(2) + batch(1)
    outside = {*range(8), *range(12, 16)}  # base offset and leader epoch: stamped anyway
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1
        with opened(bytes(wrong)) as fd:
            if at % len(batch(2)) in outside and at < len(batch(2)):
                _core.SegmentFile(fd, len(data))
            elif at - len(batch(2)) not in outside:
                with pytest.raises(CorruptRecord):
                    _core.SegmentFile(fd, len(data))


def test_a_file_cut_anywhere_is_rejected() -> None:
    data = batch(2) + batch(1)
    whole = len(batch(2))
    for size in range(len(data)):
        with opened(data[:size]) as fd:
            if size == whole:
                assert _core.SegmentFile(fd, size).batches == 1
            else:
                with pytest.raises(CorruptRecord):
                    _core.SegmentFile(fd, size)
            with pytest.raises(CorruptRecord):  # shorter than the caller says
                _core.SegmentFile(fd, len(data))


def test_a_segment_file_accepts_only_data_batches() -> None:
    marker = _core.build_marker(7, 1, True, timestamp=5)
    for data in (marker, batch(1) + marker, _core.empty_batch(_core.iter_batches(batch(3))[0])):
        with (
            opened(data) as fd,
            pytest.raises(CorruptRecord, match="no complete data batch of format v2"),
        ):
            _core.SegmentFile(fd, len(data))


def test_a_failed_write_leaves_a_segment_file_unstamped(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(batch(1))
    fd = os.open(path, os.O_RDONLY)
    try:
        file = _core.SegmentFile(fd, path.stat().st_size)
        with pytest.raises(OSError, match="Bad file descriptor"):
            stamp(file)
        assert file.base_offset == -1
    finally:
        os.close(fd)
