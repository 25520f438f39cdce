"""Batches that the core builds, against Kafka's bytes and the reference codec."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, SerializationError
from eoslog.storage.format import codecs  # noqa: F401 (binds the codecs)

GOLDEN_A = "00000000000000000000003affffffff02716a618900000000000000000000000003e800000000000003e8ffffffffffffffffffffffffffff0000000110000000026b027600"
GOLDEN_B = "000000000000006400000050000000090262b5bd660010000000020000018bcfe568000000018bcfe56805000000000000109200077ffffffe000000031e000000026102310402680278026e010c000a020100000e00050402630100"
COMMIT_42 = "000000000000002a0000004200000000020e5f75350030000000000000018bcfe568000000018bcfe5680000000000000003e80005ffffffff000000012000000008000000010c00000000000300"
ABORT_43 = "000000000000002b000000420000000002fa61a37d0030000000000000018bcfe568000000018bcfe5680000000000000003e80005ffffffff000000012000000008000000000c00000000000300"
EMPTIED_D = "0000000000000064000000310000000902b1e73768001000000002ffffffffffffffff0000018bcfe56805000000000000109200077ffffffe00000000"
T0 = 1_700_000_000_000
RECORDS_B = [
    (T0, b"a", b"1", [("h", b"x"), ("n", None)]),
    (T0 + 5, None, b"", ()),
    (T0 - 3, b"c", None, ()),
]


def batch_b(**changes: object) -> bytes:
    fields = dict(
        base_offset=100,
        leader_epoch=9,
        producer_id=4242,
        producer_epoch=7,
        base_sequence=2147483646,
        transactional=True,
    )
    return _core.build_batch(RECORDS_B, **{**fields, **changes})  # type: ignore[arg-type]


def test_a_plain_batch_has_the_golden_bytes() -> None:
    assert _core.build_batch([(1000, b"k", b"v", ())], leader_epoch=-1).hex() == GOLDEN_A


def test_a_transactional_batch_with_headers_and_nulls_has_the_golden_bytes() -> None:
    assert batch_b().hex() == GOLDEN_B


def test_markers_have_the_golden_bytes() -> None:
    fields = dict(coordinator_epoch=3, timestamp=T0)
    assert _core.build_marker(1000, 5, True, base_offset=42, **fields).hex() == COMMIT_42
    assert _core.build_marker(1000, 5, False, base_offset=43, **fields).hex() == ABORT_43


@given(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.booleans(), st.integers(0, 2**31 - 1),
    st.integers(-1, 2**60), st.integers(0, 2**60), st.integers(-1, 2**31 - 1),
)  # fmt: skip
def test_a_marker_is_a_control_batch_of_one_record(
    producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, timestamp: int,
    base_offset: int, leader_epoch: int,
) -> None:  # fmt: skip
    place = {"base_offset": base_offset, "leader_epoch": leader_epoch}
    row = (timestamp, struct.pack(">hh", 0, commit), struct.pack(">hi", 0, coordinator_epoch), ())
    assert _core.build_marker(
        producer_id,
        epoch,
        commit,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
        **place,
    ) == _core.build_batch(
        [row],
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
        **place,
    )


def test_an_emptied_batch_has_the_golden_bytes() -> None:
    emptied = _core.build_batch(
        [], base_offset=100, leader_epoch=9, producer_id=4242, producer_epoch=7, base_sequence=2147483646,
        transactional=True, last_offset_delta=2, max_timestamp=T0 + 5, compression="gzip",
    )  # fmt: skip
    assert emptied.hex() == EMPTIED_D


UNSTAMPED = dict(producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)


def test_stamping_equals_building_with_the_same_fields() -> None:
    data = bytearray(_core.build_batch(RECORDS_B, base_offset=100, leader_epoch=9))
    plain = bytes(data)
    assert 3 == _core.stamp_batches(
        data, producer_id=4242, producer_epoch=7, base_sequence=2147483646, transactional=True
    )
    assert data.hex() == GOLDEN_B
    _core.stamp_batches(data, **UNSTAMPED)
    assert bytes(data) == plain


@given(
    st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=5),
    st.sampled_from(["none", "gzip"]),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)
def test_a_run_is_stamped_like_batches_that_are_built_one_by_one(
    values: list[list[bytes]], compression: str, sequence: int, transactional: bool
) -> None:
    rows = [[(T0, None, value, ()) for value in batch] for batch in values]
    run = bytearray().join(_core.build_batch(batch, compression=compression) for batch in rows)
    expected = b""
    following = sequence
    for batch in rows:
        expected += _core.build_batch(
            batch,
            compression=compression,
            producer_id=7,
            producer_epoch=2,
            base_sequence=following,
            transactional=transactional,
        )
        following = (following + len(batch)) % 2**31
    count = _core.stamp_batches(
        run, producer_id=7, producer_epoch=2, base_sequence=sequence, transactional=transactional
    )
    assert run == expected and count == sum(map(len, rows))


@pytest.mark.parametrize("at", [10, 17, 30, 60, 91])
@pytest.mark.parametrize("before", [b"", batch_b()])
def test_a_damaged_batch_is_not_stamped(at: int, before: bytes) -> None:
    damaged = bytearray(before + batch_b())
    damaged[len(before) + at] ^= 1
    kept = bytes(damaged[len(before) :])
    with pytest.raises(CorruptRecord):
        _core.stamp_batches(damaged, **UNSTAMPED)
    assert damaged[len(before) :] == kept


@pytest.mark.parametrize("size", [3, 17, 60, 91])
def test_a_short_batch_is_not_stamped(size: int) -> None:
    with pytest.raises(CorruptRecord):
        _core.stamp_batches(bytearray(batch_b()[:size]), **UNSTAMPED)


def test_a_batch_in_read_only_memory_is_not_stamped() -> None:
    with pytest.raises(BufferError):
        _core.stamp_batches(batch_b(), **UNSTAMPED)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        dict(transactional=True),
        dict(producer_id=5),
        dict(compression="brotli"),
        dict(offset_deltas=[0, 0, 1]),
        dict(offset_deltas=[0, 1, 1 << 31]),
        dict(last_offset_delta=1),
    ],
)
def test_fields_that_exclude_each_other_are_rejected(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        _core.build_batch(RECORDS_B, **fields)


@pytest.mark.parametrize(
    "record",
    [(0, "k", b"v", ()), (0, b"k", 5, ()), (0, b"k", b"v", [(1, b"")]), (-2, None, None, ())],
)
def test_values_of_another_type_are_rejected(record: tuple[object, ...]) -> None:
    with pytest.raises((SerializationError, ConfigError)):
        _core.build_batch([record])
