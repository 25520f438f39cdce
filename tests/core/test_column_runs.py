"""Runs of records of one shape are decoded at a stretch: the same rows and refusals as one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core, errors
from eoslog.client import arrow
from tests.reference import codec

pa = pytest.importorskip("pyarrow")

TS = 1_700_000_000_000
EVER = (1 << 63) - 1
RUNS, ONE_BY_ONE = ["offset", "value"], ["offset", "value", "timestamp_type"]


def outcome(
    data: bytes, columns: list[str], start: int = 0, end: int = EVER, *, check_crc: bool = True
) -> tuple[list[Any], str]:
    """Offsets and values, and what was said of the batch behind them."""
    decoder = _core.ColumnDecoder(columns, view=True, check_crc=check_crc)
    said = ""
    try:
        decoder.feed(data, 0, start, end)
    except errors.CorruptRecord as error:
        said = str(error)
    fields = arrow.fields_of(columns, view=True)
    batch = arrow.record_batch(arrow.columns_of(decoder.take(), fields, ["t"], 0, 0))
    batch.validate(full=True)
    return batch.select(RUNS).to_pylist(), said


GROUP = st.tuples(
    st.integers(1, 40),  # records alike
    st.sampled_from([None, 0, 3, 16, 70, 200]),  # of a key
    st.sampled_from([None, 0, 11, 12, 13, 50, 100, 1000, 8200]),  # of a value
    st.sampled_from([0, 1, 200]),  # milliseconds apart
)


def batch_of(groups: list[tuple[int, int | None, int | None, int]], seed: int, base: int) -> bytes:
    dice = random.Random(seed)
    records: list[tuple[int, bytes | None, bytes | None, tuple[()]]] = []
    for count, key, value, apart in groups:
        records += [
            (
                TS + apart * i,
                None if key is None else dice.randbytes(key),
                None if value is None else dice.randbytes(value),
                (),
            )
            for i in range(count)
        ]
    return bytes(_core.build_batch(records, base_offset=base))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(GROUP, min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(0, 1 << 20),
    st.sampled_from(["whole", "bounds", "flip", "flip, not summed"]),
    st.integers(0, 1 << 30),
    st.integers(1, 1 << 20),
)
def test_runs_and_single_records_come_out_alike(
    batches: list[list[tuple[int, int | None, int | None, int]]], seed: int, how: str, at: int,
    flip: int,
) -> None:  # fmt: skip
    data, base, start, end = bytearray(), 5, 0, EVER
    for groups in batches:
        data += batch_of(groups, seed, base)
        base += sum(count for count, *_ in groups)
    if how == "bounds":
        start, end = 5 + at % (base - 4), 5 + flip % (base - 4)
    elif how != "whole":
        data[61 + at % (len(data) - 61)] ^= flip % 255 + 1
    raw, check = bytes(data), how != "flip, not summed"
    found = outcome(raw, RUNS, start, end, check_crc=check)
    assert found == outcome(raw, ONE_BY_ONE, start, end, check_crc=check)
    if how == "whole":
        wanted = [
            {"offset": offset, "value": value}
            for batch in _core.iter_batches(raw)
            for offset, _, _, value, _ in batch.records()
        ]
        assert found == (wanted, "")


@pytest.mark.slow
def test_each_changed_byte_in_a_run_is_judged_as_in_a_single_record() -> None:
    """Every value of every byte, in the middle of a run and at its end."""
    records = [(TS + i, b"key", b"value of some %d" % i, ()) for i in range(4)]
    whole = bytes(_core.build_batch(records))
    for at in range(codec.HEADER_SIZE, len(whole)):
        for byte in range(256):
            data = bytearray(whole)
            data[at] = byte
            raw = bytes(data)
            assert outcome(raw, RUNS, check_crc=False) == outcome(raw, ONE_BY_ONE, check_crc=False)


def test_a_wrong_sum_leaves_no_row_of_a_long_run() -> None:
    good, bad = (batch_of([(3000, 16, 100, 1)], 1, base) for base in (0, 3000))
    data = bytearray(good + bad)
    data[-50] ^= 1
    rows, said = outcome(bytes(data), RUNS)
    assert len(rows) == 3000 and "CRC" in said
