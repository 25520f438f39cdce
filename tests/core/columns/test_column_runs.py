"""Runs of records with one layout decode to the same rows as single records."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core, errors
from eoslog.client.arrow import schema as arrow
from tests.reference import codec

pa = pytest.importorskip("pyarrow")

TS = 1_700_000_000_000
EVER = (1 << 63) - 1
EVERYTHING = ["key", "value", "offset", "timestamp", "timestamp_type", "headers"]
SETS = [["offset", "value"], ["value"], ["offset", "key"], ["offset", "timestamp"], EVERYTHING]
Rows = list[dict[str, Any]]


def outcome(
    data: bytes, columns: list[str], view: bool, start: int = 0, end: int = EVER, *,
    check_crc: bool = True,
) -> tuple[Rows, str]:  # fmt: skip
    """Rows, and the error of the batch after them."""
    decoder = _core.ColumnDecoder(columns, view=view, check_crc=check_crc)
    said = ""
    try:
        decoder.feed(data, 0, start, end)
    except errors.CorruptRecord as error:
        said = str(error)
    fields = arrow.fields_of(columns, view=view)
    batch = arrow.record_batch(arrow.columns_of(decoder.take(), fields, ["t"], 0, 0))
    batch.validate(full=True)
    return batch.to_pylist(), said


def one_by_one(
    batches: list[bytes], columns: list[str], view: bool, *, check_crc: bool = True
) -> tuple[Rows, str]:
    """The same for batches of two records or more, without a search for runs."""
    rows: Rows = []
    start = 0
    for data in batches:
        base = int.from_bytes(data[:8], "big")
        last = base + int.from_bytes(data[23:27], "big")
        most, said = outcome(data, columns, view, start, last, check_crc=check_crc)
        rest, again = outcome(data, columns, view, last, EVER, check_crc=check_crc)
        assert bool(said) == bool(again)  # which names the first offset wanted
        if said:
            return rows, said
        rows += most + rest
        start = last + 1
    return rows, ""


def without_shapes(batches: list[bytes]) -> tuple[list[tuple[Any, ...]], bool]:
    """(offset, key, value) as the decoder of single batches returns them.

    Also whether it rejects the batch after them. It does not compute checksums.
    """
    rows: list[tuple[Any, ...]] = []
    for batch in _core.iter_batches(b"".join(batches)):
        try:
            rows += [(offset, key, value) for offset, _, key, value, _ in batch.records()]
        except errors.CorruptRecord:
            return rows, True
    return rows, False


Group = tuple[int, int | None, int | None, int, int, int]
GROUP = st.tuples(
    st.integers(2, 40),  # records alike
    st.sampled_from([None, 0, 3, 16, 70, 200]),  # of a key
    st.sampled_from([None, 0, 11, 12, 13, 50, 100, 1000, 8200]),  # of a value
    st.integers(0, 3),  # bytes by which the sizes of neighbours differ
    st.sampled_from([0, 1, 200]),  # milliseconds apart
    st.sampled_from([0, 0, 0, 2]),  # headers of each
)


def batch_of(groups: list[Group], seed: int, base: int) -> bytes:
    dice = random.Random(seed)

    def some(size: int | None, about: int) -> bytes | None:
        return None if size is None else dice.randbytes(size + dice.randint(0, about))

    records = [
        (TS + apart * i, some(key, about), some(value, about), (("h", b"%d" % i),) * headers)
        for count, key, value, about, apart, headers in groups
        for i in range(count)
    ]
    return bytes(_core.build_batch(records, base_offset=base))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(GROUP, min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(0, 1 << 20),
    st.sampled_from(["whole", "bounds", "flip", "flip, not summed"]),
    st.integers(0, 1 << 30),
    st.integers(1, 1 << 20),
    st.sampled_from(SETS),
    st.booleans(),
)
def test_runs_decode_to_the_same_rows_as_single_records(
    drawn: list[list[Group]], seed: int, how: str, at: int,
    flip: int, columns: list[str], view: bool,
) -> None:  # fmt: skip
    batches, base = [], 5
    for groups in drawn:
        batches.append(batch_of(groups, seed, base))
        base += sum(count for count, *_ in groups)
    if how == "bounds":
        low, high = 5 + at % (base - 4), 5 + flip % (base - 4)
        found, said = outcome(b"".join(batches), columns, view, low, high)
        whole, _ = one_by_one(batches, EVERYTHING, view)
        assert said == ""
        assert found == [
            {name: row[name] for name in columns} for row in whole if low <= row["offset"] < high
        ]
        return
    if how != "whole":
        number = at % len(batches)
        data = bytearray(batches[number])
        data[61 + at % (len(data) - 61)] ^= flip % 255 + 1
        batches[number] = bytes(data)
    check = how != "flip, not summed"
    found = outcome(b"".join(batches), columns, view, check_crc=check)
    assert found == one_by_one(batches, columns, view, check_crc=check)
    if how != "flip" and columns == EVERYTHING:
        rows, said = found
        got = [(row["offset"], row["key"], row["value"]) for row in rows]
        assert (got, bool(said)) == without_shapes(batches)


@pytest.mark.parametrize("key", [b"key", None])
@pytest.mark.parametrize("value", [b"value of some %d", b"%d", None])
@pytest.mark.parametrize("view", [True, False])
def test_nulls_and_small_values_decode_between_runs(
    key: bytes | None, value: bytes | None, view: bool
) -> None:
    records = [(TS, key, value % i if value else None, ()) for i in range(2000)]
    records += [(TS, b"other", b"than those before", ())] * 5
    found, said = outcome(bytes(_core.build_batch(records)), EVERYTHING, view)
    assert said == ""
    assert [(row["key"], row["value"]) for row in found] == [
        (key, value) for _, key, value, _ in records
    ]


@pytest.mark.slow
def test_every_changed_byte_in_a_run_is_checked_as_in_a_single_record() -> None:
    """Every value of every byte, in the middle of a run and at its end."""
    records = [(TS + i, b"key", b"value of some %d" % i, ()) for i in range(5)]
    whole = bytes(_core.build_batch(records))
    for at in range(codec.HEADER_SIZE, len(whole)):
        for byte in range(256):
            data = bytearray(whole)
            data[at] = byte
            raw = bytes(data)
            rows, said = outcome(raw, ["offset", "key", "value"], True, check_crc=False)
            got = [(row["offset"], row["key"], row["value"]) for row in rows]
            assert (got, bool(said)) == without_shapes([raw])


def test_a_wrong_checksum_leaves_no_row_of_a_long_run() -> None:
    good, bad = (batch_of([(3000, 16, 100, 2, 1, 0)], 1, base) for base in (0, 3000))
    data = bytearray(good + bad)
    data[-50] ^= 1
    rows, said = outcome(bytes(data), EVERYTHING, False)
    assert len(rows) == 3000 and "CRC" in said
