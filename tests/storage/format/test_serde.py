"""Kafka's primitive encodings round-trip and match known bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog.errors import CorruptRecord
from eoslog.storage.format.serde import Reader, Writer

# (method, strategy)
FIELDS = [
    ("i8", st.integers(-(2**7), 2**7 - 1)),
    ("i16", st.integers(-(2**15), 2**15 - 1)),
    ("i32", st.integers(-(2**31), 2**31 - 1)),
    ("i64", st.integers(-(2**63), 2**63 - 1)),
    ("boolean", st.booleans()),
    ("uvarint", st.integers(0, 2**32 - 1)),
    ("string", st.text(max_size=50)),
    ("nullable_string", st.none() | st.text(max_size=50)),
    ("bytes_", st.binary(max_size=50)),
    ("nullable_bytes", st.none() | st.binary(max_size=50)),
    ("uuid", st.binary(min_size=16, max_size=16)),
    ("compact_string", st.text(max_size=200)),
    ("compact_nullable_string", st.none() | st.text(max_size=50)),
    ("compact_bytes", st.binary(max_size=200)),
    ("compact_nullable_bytes", st.none() | st.binary(max_size=50)),
    ("tagged", st.dictionaries(st.integers(0, 2**31), st.binary(max_size=20), max_size=4)),
]
RECORD = st.lists(
    st.one_of([st.tuples(st.just(name), strategy) for name, strategy in FIELDS]), max_size=12
)


@given(RECORD)
def test_written_fields_read_back_and_leave_no_bytes(fields):
    writer = Writer()
    for name, value in fields:
        assert getattr(writer, name)(value) is writer
    reader = Reader(writer.take())
    for name, value in fields:
        assert getattr(reader, name)() == value
    assert reader.remaining == 0


@given(RECORD)
def test_every_truncated_record_raises_corrupt_record(fields):
    writer = Writer()
    for name, value in fields:
        getattr(writer, name)(value)
    data = writer.take()
    for size in {0, len(data) // 2, max(len(data) - 1, 0)} - {len(data)}:
        reader = Reader(data[:size])
        with pytest.raises(CorruptRecord):
            for name, _ in fields:
                getattr(reader, name)()


@given(st.binary(max_size=64), st.sampled_from([name for name, _ in FIELDS]))
def test_random_bytes_decode_to_a_value_or_raise_corrupt_record(data, name):
    reader = Reader(data)
    try:
        getattr(reader, name)()
    except CorruptRecord:
        return
    assert 0 <= reader.position <= len(data)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (Writer().uvarint(300), "ac02"),
        (Writer().string("ab"), "00026162"),
        (Writer().nullable_string(None), "ffff"),
        (Writer().compact_string("ab"), "036162"),
        (Writer().compact_nullable_string(None), "00"),
        (Writer().compact_array(-1), "00"),
        (Writer().compact_array(2), "03"),
        (Writer().array(-1), "ffffffff"),
        (Writer().tagged(), "00"),
        (Writer().tagged({10000: b"\x01", 0: b""}), "02" + "0000" + "904e01" + "01"),
        (Writer().i16(-2).i32(1).i64(-1), "fffe" + "00000001" + "ff" * 8),
    ],
)
def test_encoded_bytes_equal_kafkas(written, expected):
    assert written.take().hex() == expected


def test_an_array_longer_than_the_data_is_rejected_before_allocation():
    with pytest.raises(CorruptRecord, match="array has 2147483647 elements"):
        Reader(Writer().array(2**31 - 1).take()).array()
    with pytest.raises(CorruptRecord, match="array"):
        Reader(Writer().compact_array(1000).take()).compact_array()


def test_a_null_for_a_required_value_is_rejected():
    with pytest.raises(CorruptRecord, match="null"):
        Reader(b"\xff\xff").string()
    with pytest.raises(CorruptRecord, match="null"):
        Reader(b"\x00").compact_string()


def test_take_empties_the_writer():
    writer = Writer().i8(1)
    assert writer.take() == b"\x01"
    assert writer.take() == b""
