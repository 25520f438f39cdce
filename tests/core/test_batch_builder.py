"""Batches that the core builds, against Kafka's bytes and the reference codec."""

from __future__ import annotations

import pytest

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, SerializationError

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


def test_golden_plain_batch() -> None:
    assert _core.build_batch([(1000, b"k", b"v", ())], leader_epoch=-1).hex() == GOLDEN_A


def test_golden_transactional_batch_with_headers_nulls_and_wrapping_sequence() -> None:
    assert batch_b().hex() == GOLDEN_B


def test_golden_markers() -> None:
    fields = dict(coordinator_epoch=3, timestamp=T0)
    assert _core.build_marker(1000, 5, True, base_offset=42, **fields).hex() == COMMIT_42
    assert _core.build_marker(1000, 5, False, base_offset=43, **fields).hex() == ABORT_43


def test_golden_emptied_batch() -> None:
    emptied = _core.build_batch(
        [], base_offset=100, leader_epoch=9, producer_id=4242, producer_epoch=7, base_sequence=2147483646,
        transactional=True, last_offset_delta=2, max_timestamp=T0 + 5, compression="gzip",
    )  # fmt: skip
    assert emptied.hex() == EMPTIED_D


def test_stamping_equals_building_with_the_same_fields() -> None:
    plain = _core.build_batch(RECORDS_B, base_offset=100, leader_epoch=9)
    stamped = _core.stamp_batch(
        plain, producer_id=4242, producer_epoch=7, base_sequence=2147483646, transactional=True
    )
    assert stamped.hex() == GOLDEN_B
    back = _core.stamp_batch(
        stamped, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False
    )
    assert bytes(back) == plain


@pytest.mark.parametrize("at", [10, 17, 30, 60, 91])
def test_a_damaged_batch_is_not_stamped(at: int) -> None:
    damaged = bytearray(batch_b())
    damaged[at] ^= 1
    with pytest.raises(CorruptRecord):
        _core.stamp_batch(
            damaged, producer_id=1, producer_epoch=0, base_sequence=0, transactional=False
        )


@pytest.mark.parametrize("size", [0, 3, 60, 91])
def test_a_short_batch_is_not_stamped(size: int) -> None:
    with pytest.raises(CorruptRecord):
        _core.stamp_batch(
            batch_b()[:size], producer_id=1, producer_epoch=0, base_sequence=0, transactional=False
        )


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
def test_fields_that_exclude_each_other_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        _core.build_batch(RECORDS_B, **fields)


@pytest.mark.parametrize(
    "record",
    [(0, "k", b"v", ()), (0, b"k", 5, ()), (0, b"k", b"v", [(1, b"")]), (-2, None, None, ())],
)
def test_values_of_another_type_are_refused(record: tuple[object, ...]) -> None:
    with pytest.raises((SerializationError, ConfigError)):
        _core.build_batch([record])
