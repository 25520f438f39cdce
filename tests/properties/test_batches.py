"""Batches of the core and of the reference codec have the same bytes and records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eoslog.storage.format.codecs  # noqa: F401  (binds the codecs)
from eoslog import _core, errors
from tests.reference import codec
from tests.reference.strategies import CODECS, RECORDS, batch_options

LISTS = st.lists(RECORDS, min_size=1, max_size=12)


def rows(batch: codec.RefBatch) -> list[tuple[Any, ...]]:
    """Records in the form of `Batch.records()`."""
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch.records]


def core_rows(batch: Any) -> list[tuple[Any, ...]]:
    return [(o, t, k, v, tuple((n, c) for n, c in h or ())) for o, t, k, v, h in batch.records()]


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_both_crc_paths_equal_the_reference_codec(data: bytes, start: int) -> None:
    expected = codec.crc32c(data, start)
    assert _core.crc32c(data, start) == expected
    assert _core.crc32c_software(data, start) == expected


@pytest.mark.slow
@given(LISTS, batch_options())
def test_the_core_and_the_reference_codec_build_the_same_bytes(
    records: list[codec.Plain], options: dict[str, Any]
) -> None:
    assert (
        bytes(_core.build_batch(records, **options)).hex()
        == codec.encode_batch(records, **options).hex()
    )


@pytest.mark.slow
@given(LISTS, batch_options(), CODECS)
def test_the_core_reads_batches_that_the_reference_codec_wrote(
    records: list[codec.Plain], options: dict[str, Any], compression: str
) -> None:
    data = codec.encode_batch(records, compression=compression, **options)
    (batch,) = _core.iter_batches(data)
    expected = codec.decode_batch(data)
    assert core_rows(batch) == rows(expected)
    for name in (
        "base_offset", "last_offset", "size", "magic", "crc", "compression", "timestamp_type", "base_timestamp",
        "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "last_sequence", "leader_epoch",
        "transactional", "control", "delete_horizon_ms", "count", "valid",
    ):  # fmt: skip
        assert getattr(batch, name) == getattr(expected, name), name


@pytest.mark.slow
@given(LISTS, batch_options(), CODECS)
def test_the_reference_codec_reads_batches_that_the_core_wrote(
    records: list[codec.Plain], options: dict[str, Any], compression: str
) -> None:
    data = bytes(_core.build_batch(records, compression=compression, **options))
    batch = codec.decode_batch(data)
    stamp = options["max_timestamp"] if options.get("timestamp_type") else None
    base = options["base_offset"]
    assert batch.valid
    assert rows(batch) == [
        (base + i, t if stamp is None else stamp, k, v, tuple(h))
        for i, (t, k, v, h) in enumerate(records)
    ]


@given(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.booleans(), st.integers(0, 2**31 - 1))
def test_the_core_and_the_reference_codec_build_the_same_markers(
    producer_id: int, epoch: int, commit: bool, coordinator_epoch: int
) -> None:
    fields: dict[str, Any] = dict(
        timestamp=1_700_000_000_000, coordinator_epoch=coordinator_epoch, base_offset=42
    )
    marker = _core.build_marker(producer_id, epoch, commit, **fields)
    assert bytes(marker).hex() == codec.encode_marker(producer_id, epoch, commit, **fields).hex()
    (batch,) = _core.iter_batches(marker)
    assert (batch.control_type, batch.coordinator_epoch) == (int(commit), coordinator_epoch)


@pytest.mark.slow
@given(st.lists(st.tuples(LISTS, CODECS), min_size=1, max_size=4), st.data())
def test_a_cut_anywhere_leaves_the_complete_batches_before_it(
    parts: list[Any], data: st.DataObject
) -> None:
    batches = [codec.encode_batch(records, compression=name) for records, name in parts]
    whole = b"".join(batches)
    cut = data.draw(st.integers(0, len(whole)))
    ends, end = [], 0
    for batch in batches:
        end += len(batch)
        ends.append(end)
    assert [b.position + b.size for b in _core.iter_batches(whole[:cut])] == [
        e for e in ends if e <= cut
    ]


@pytest.mark.slow
@settings(max_examples=300)
@given(LISTS, batch_options(), CODECS, st.data())
def test_a_flipped_bit_after_the_crc_field_is_detected(
    records: list[codec.Plain], options: dict[str, Any], compression: str, data: st.DataObject
) -> None:
    batch = bytearray(codec.encode_batch(records, compression=compression, **options))
    position = data.draw(st.integers(17, len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    (found,) = _core.iter_batches(bytes(batch))
    assert not found.valid
    with pytest.raises(errors.CorruptRecord):
        _core.decode_records("t", 0, bytes(batch), 0, 2**63 - 1, None, 1000)


def answer(data: bytes) -> list[Any] | type[Exception]:
    """What the core makes of any bytes: records, or the one error it may raise."""
    try:
        return [core_rows(batch) for batch in _core.iter_batches(data)]
    except errors.CorruptRecord:
        return errors.CorruptRecord


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_any_bytes_decode_to_records_or_raise_corrupt_record(data: bytes) -> None:
    answer(data)


@pytest.mark.slow
@settings(max_examples=400)
@given(
    st.binary(max_size=60),
    st.integers(-2, 9),
    st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 7]),
    st.integers(-1, 9),
)
def test_hostile_payloads_with_a_valid_crc_decode_as_in_the_reference(
    payload: bytes, count: int, attributes: int, delta: int
) -> None:
    data = codec.seal(
        base_offset=0, leader_epoch=0, attributes=attributes, last_offset_delta=delta, base_timestamp=5,
        max_timestamp=5, producer_id=-1, producer_epoch=-1, base_sequence=-1, count=count, payload=payload,
    )  # fmt: skip
    found = answer(data)
    if attributes:
        return  # what a codec library accepts is its own business; not crashing is ours
    try:
        (expected,) = codec.iter_batches(data)
    except (codec.Malformed, UnicodeDecodeError):
        assert found is errors.CorruptRecord
    else:
        assert found == [rows(expected)]
