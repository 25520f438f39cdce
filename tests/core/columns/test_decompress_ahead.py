"""Decompressing in advance changes neither columns nor errors nor their order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from eoslog import _core, errors
from eoslog.storage.format import codecs
from eoslog.storage.format.decompress_ahead import DecompressAhead

CODECS = ["gzip", "snappy", "lz4", "zstd"]
COLUMNS = ("offset", "timestamp", "key", "value")
EVER = (1 << 63) - 1
ROWS, BATCHES = 1000, 12
"""A batch has 320 KiB, so that the decoder looks ahead after four of them."""


def batch(number: int, codec: str, *, rows: int = ROWS, **options: Any) -> bytes:
    """Values that compress to about half."""
    dice = random.Random(number)
    records = [(i, b"%d" % i, dice.randbytes(160) + bytes(160), ()) for i in range(rows)]
    return bytes(
        _core.build_batch(records, compression=codec, base_offset=number * ROWS, **options)
    )


def batches(codec: str, count: int = BATCHES) -> list[bytes]:
    return [batch(number, codec) for number in range(count)]


class Immediate:
    """Decompresses when a batch is submitted, like a thread that is always faster."""

    def __init__(self) -> None:
        self.submitted = self.given = 0
        self.most = 0

    def submit(self, codec: str, data: memoryview) -> Any:
        self.submitted += 1
        try:
            return [codecs.decompress(codec, data, room=_core.writable_memory)]
        except errors.CorruptRecord:
            return [None]

    def result(self, job: Any, later: list[Any]) -> Any:
        self.given += 1
        self.most = max(self.most, len(later))
        return job[0]


class Never(Immediate):
    """Like a thread that never gets to run."""

    def result(self, job: Any, later: list[Any]) -> Any:
        super().result(job, later)
        return None


class Refusing(Immediate):
    """Like a system without threads."""

    def submit(self, codec: str, data: memoryview) -> Any:
        self.submitted += 1
        return None


def taken(decoder: Any) -> Any:
    columns = decoder.take()

    def plain(thing: Any) -> Any:
        if isinstance(thing, tuple | list):
            return [plain(one) for one in thing]
        return thing if thing is None or isinstance(thing, int) else bytes(thing)

    return {name: plain(column) for name, column in columns.items()}


def read(data: bytes, ahead: Any = None, *, end: int = EVER, rows: int = 3000) -> list[Any]:
    """All columns, then the error that ends them."""
    found: list[Any] = []
    position, offset = 0, 0
    decoder = _core.ColumnDecoder(COLUMNS, view=False, max_rows=rows, ahead=ahead)
    while True:
        try:
            offset, position = decoder.feed(data, position, offset, end)
        except errors.CorruptRecord as error:
            found.append(taken(decoder))
            return [*found, str(error), error.position]
        found.append(taken(decoder))
        if not decoder.full:
            return found


@pytest.fixture(params=["immediate", "never", "refusing", "thread"])
def ahead(request: Any) -> Iterator[Any]:
    kinds: Any = {"immediate": Immediate, "never": Never, "refusing": Refusing}
    if request.param != "thread":
        yield kinds[request.param]()
        return
    one = DecompressAhead()
    yield one
    one.close()


@pytest.mark.parametrize("codec", CODECS)
def test_columns_are_the_same_with_batches_in_advance(codec: str, ahead: Any) -> None:
    data = b"".join(batches(codec))
    assert read(data, ahead) == read(data)


def test_at_most_two_batches_are_decompressed_in_advance() -> None:
    ahead = Immediate()
    read(b"".join(batches("lz4")), ahead)
    assert ahead.given == ahead.submitted == BATCHES - 5  # four before, and the first of the rest
    assert ahead.most == 2


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"".join(batches("lz4", 3)), id="less than 1 MiB"),
        pytest.param(b"".join(batches("none")), id="uncompressed"),
        pytest.param(
            b"".join(batch(number, "lz4", rows=100) for number in range(60)), id="small batches"
        ),
    ],
)
def test_nothing_is_submitted_if_it_is_not_worth_a_thread(data: bytes) -> None:
    ahead = Immediate()
    assert read(data, ahead) == read(data)
    assert not ahead.submitted


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("damaged", [4, 5, 6, BATCHES - 1])
def test_a_damaged_batch_is_reported_in_its_turn(codec: str, damaged: int, ahead: Any) -> None:
    parts = batches(codec)
    wrong = bytearray(parts[damaged])
    wrong[-100] ^= 1
    parts[damaged] = bytes(wrong)
    data = b"".join(parts)
    found = read(data, ahead)
    assert found == read(data)
    assert "CRC-32C" in found[-2]
    assert found[-1] == sum(map(len, parts[:damaged]))


def with_crc(raw: bytearray) -> bytes:
    raw[17:21] = _core.crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("damaged", [5, 6, BATCHES - 1])
def test_a_payload_that_does_not_decompress_is_reported_in_its_turn(
    codec: str, damaged: int, ahead: Any
) -> None:
    parts = batches(codec)
    wrong = bytearray(parts[damaged])
    wrong[61:] = wrong[61:70] + bytes(255 - byte for byte in wrong[70:])
    parts[damaged] = with_crc(wrong)
    data = b"".join(parts)
    found = read(data, ahead)
    assert found == read(data)
    assert codec in found[-2]


def test_a_header_that_is_damaged_is_reported_in_its_turn(ahead: Any) -> None:
    parts = batches("lz4")
    wrong = bytearray(parts[7])
    wrong[16] = 9  # the magic byte
    parts[7] = bytes(wrong)
    data = b"".join(parts)
    assert read(data, ahead) == read(data)


@pytest.mark.parametrize("end", [6 * ROWS, 6 * ROWS + 1, 7 * ROWS - 1])
def test_batches_from_the_end_on_are_not_submitted(end: int) -> None:
    ahead = Immediate()
    data = b"".join(batches("lz4"))
    assert read(data, ahead, end=end) == read(data, end=end)
    assert ahead.submitted == -(-end // ROWS) - 5


def test_a_control_batch_and_small_batches_between_are_read_as_before(ahead: Any) -> None:
    parts = batches("zstd")
    parts[6] = _core.build_marker(7, 0, True, timestamp=1, base_offset=6 * ROWS)
    parts[8] = batch(8, "none")
    parts[9] = batch(9, "zstd", rows=3)
    data = b"".join(parts)
    assert read(data, ahead) == read(data)


def test_aborted_batches_are_left_out(ahead: Any) -> None:
    parts = [
        batch(number, "lz4", transactional=True, producer_id=number, producer_epoch=0,
              base_sequence=0)
        for number in range(BATCHES)
    ]  # fmt: skip
    data = b"".join(parts)
    ranges = [(number, number * ROWS, number * ROWS + 10) for number in (5, 6, 9)]
    one = _core.ColumnDecoder(COLUMNS, view=False, max_rows=10**6, ahead=ahead)
    other = _core.ColumnDecoder(COLUMNS, view=False, max_rows=10**6)
    for each in (one, other):
        each.feed(data, 0, 0, EVER, _core.AbortedTransactions(ranges))
    found = taken(one)
    assert found["rows"] == (BATCHES - 3) * ROWS
    assert found == taken(other)


def test_other_data_at_the_next_call_does_not_get_a_batch_of_the_last() -> None:
    ahead = Immediate()
    decoder = _core.ColumnDecoder(COLUMNS, view=False, max_rows=6 * ROWS, ahead=ahead)
    first = b"".join(batches("lz4"))
    offset, _ = decoder.feed(first, 0, 0, EVER)
    assert decoder.full
    assert ahead.submitted > ahead.given
    decoder.take()
    other = b"".join(batch(number, "lz4") for number in reversed(range(BATCHES)))
    plain = _core.ColumnDecoder(COLUMNS, view=False, max_rows=6 * ROWS)
    for one in (decoder, plain):
        one.feed(other, 0, offset, EVER)
    assert taken(decoder) == taken(plain)
