"""Columns equal the records of any batch, and damage raises a typed error."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core, errors
from eoslog.client.arrow import schema as arrow
from eoslog.storage.format import codecs
from tests.paths import KAFKA_DATA
from tests.reference import codec

pa = pytest.importorskip("pyarrow")

BATCHES = KAFKA_DATA / "batches"
ALL = ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
TS = 1_700_000_000_000
EVER = (1 << 63) - 1

assert codecs.CODECS


def decode(
    data: bytes, *, view: bool = True, columns: list[str] = ALL, start: int = 0, end: int = EVER,
    aborted: Any = None, max_rows: int = 65536, check_crc: bool = True,
) -> list[Any]:  # fmt: skip
    """Record batches of one piece of data."""
    fields = arrow.fields_of(columns, view=view)
    decoder = _core.ColumnDecoder(columns, view=view, max_rows=max_rows, check_crc=check_crc)
    batches = []
    position = 0
    while True:
        start, position = decoder.feed(data, position, start, end, aborted)
        full = decoder.full
        batches.append(arrow.record_batch(arrow.columns_of(decoder.take(), fields, ["t"], 0, 0)))
        batches[-1].validate(full=True)
        if not full:
            return batches


def rows(batches: list[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def row_of(record: Any, timestamp_type: int = 0) -> dict[str, Any]:
    offset, timestamp, key, value, headers = record
    return {
        "offset": offset,
        "timestamp": timestamp,
        "timestamp_type": timestamp_type,
        "key": key,
        "value": value,
        "headers": [{"key": k, "value": v} for k, v in headers],
    }


def plain_rows(batches: list[Any]) -> list[dict[str, Any]]:
    """Rows with the timestamp as a number."""
    out = []
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        names = [n for n in batch.schema.names if n != "timestamp"]
        rest = batch.select(names).to_pylist()
        out += [row | {"timestamp": t} for row, t in zip(rest, times, strict=True)]
    return out


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("path", sorted(BATCHES.glob("*.bin")), ids=lambda p: p.stem)
def test_columns_of_kafka_batches_equal_their_records(path: Path, view: bool) -> None:
    data = path.read_bytes()
    wanted = [
        row_of(record, batch.timestamp_type)
        for batch in _core.iter_batches(data)
        if not batch.control
        for record in batch.records()
    ]
    assert plain_rows(decode(data, view=view)) == wanted
    listed = [
        record["offset"]
        for batch in json.loads(path.with_suffix(".json").read_text())
        if not batch["control"]
        for record in batch["records"]
    ]
    assert [row["offset"] for row in wanted] == listed


text = st.text(st.characters(codec="utf-8"), max_size=8)
blob = st.one_of(st.none(), st.binary(max_size=40))
record = st.tuples(
    st.integers(TS - 10**6, TS + 10**6), blob, blob, st.lists(st.tuples(text, blob), max_size=3)
)
records = st.lists(st.tuples(record, st.sampled_from([1, 1, 4])), min_size=1, max_size=20).map(
    lambda runs: [one for one, times in runs for _ in range(times)]
)
"""Runs of records alike among others: the second of a run is parsed by the shape of the first."""


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    batches=st.lists(st.tuples(records, st.sampled_from(codec.CODECS)), min_size=1, max_size=5),
    view=st.booleans(),
    max_rows=st.integers(1, 30),
    data=st.data(),
)
def test_columns_agree_with_the_reference(
    batches: list[Any], view: bool, max_rows: int, data: st.DataObject
) -> None:
    stream, wanted, offset = b"", [], 0
    for content, compression in batches:
        stream += codec.encode_batch(content, base_offset=offset, compression=compression)
        for i, (timestamp, key, value, headers) in enumerate(content):
            wanted.append(row_of((offset + i, timestamp, key, value, headers)))
        offset += len(content) + data.draw(st.integers(0, 3))
    start = data.draw(st.integers(0, offset))
    end = data.draw(st.integers(0, offset + 2))
    wanted = [row for row in wanted if start <= row["offset"] < end]
    found = decode(stream, view=view, start=start, end=end, max_rows=max_rows)
    assert plain_rows(found) == wanted
    biggest = max(len(content) for content, _ in batches)
    assert all(batch.num_rows <= max(max_rows, biggest) for batch in found)
    alone = decode(stream, columns=["offset"], start=start, end=end, max_rows=max_rows)
    assert [batch.num_rows for batch in alone] == [batch.num_rows for batch in found]
    assert [row["offset"] for row in rows(alone)] == [row["offset"] for row in wanted]


def test_nulls_empty_values_and_sizes_near_the_inline_limit_decode() -> None:
    values = [None, b"", *(bytes([65 + n]) * n for n in (1, 4, 11, 12, 13, 14, 100))] * 40
    data = codec.encode_batch([(TS, value, value, ()) for value in values])
    for view in (True, False):
        (batch,) = decode(data, view=view)
        assert batch.column("value").to_pylist() == values
        assert batch.column("key").to_pylist() == values
        assert batch.column("value").null_count == 40


def test_views_point_into_the_given_data() -> None:
    data = codec.encode_batch([(TS, None, b"x" * 100, ()) for _ in range(50)])
    (batch,) = decode(data, columns=["value"])
    _, _, block = batch.column("value").buffers()
    assert block.address == pa.py_buffer(data).address
    (short,) = decode(codec.encode_batch([(TS, None, b"x", ())]), columns=["value"])
    assert len(short.column("value").buffers()) == 2  # nothing points anywhere: nothing is held


def test_plain_batches_share_one_data_buffer_and_compressed_have_their_own() -> None:
    content = [(TS, None, b"y" * 50, ())] * 5
    plain = codec.encode_batch(content)
    packed = codec.encode_batch(content, compression="zstd")
    stream = bytearray()
    for offset, batch in enumerate([plain, packed, plain, packed, packed, plain]):
        stream += (offset * 5).to_bytes(8, "big") + batch[8:]
    (found,) = decode(bytes(stream), columns=["offset", "value"])
    assert found.column("offset").to_pylist() == list(range(30))
    assert found.column("value").to_pylist() == [b"y" * 50] * 30
    assert len(found.column("value").buffers()) == 2 + 4


def test_an_invalid_utf8_header_key_is_replaced_as_in_records() -> None:
    bad = codec.encode_batch([(TS, None, None, [("kk", b"v"), ("é日𝄞", None)])]).replace(
        b"kk", b"\xffk", 1
    )
    data = bad[:17] + codec.crc32c(bad[21:]).to_bytes(4, "big") + bad[21:]
    wanted = [{"key": "\ufffdk", "value": b"v"}, {"key": "é日𝄞", "value": None}]
    assert rows(decode(data))[0]["headers"] == wanted
    assert _core.iter_batches(data)[0].records()[0][4] == [("\ufffdk", b"v"), ("é日𝄞", None)]


@given(st.binary(max_size=6))
def test_header_keys_are_always_valid_strings(key: bytes) -> None:
    body = bytes(3) + codec.encode_varint(-1) * 2 + codec.encode_varint(1)
    body += codec.encode_varint(len(key)) + key + codec.encode_varint(-1)
    data = codec.seal(
        base_offset=0, leader_epoch=0, attributes=0, last_offset_delta=0, base_timestamp=TS, max_timestamp=TS,
        producer_id=-1, producer_epoch=-1, base_sequence=-1, count=1,
        payload=codec.encode_varint(len(body)) + body,
    )  # fmt: skip
    assert rows(decode(data))[0]["headers"][0]["key"] == key.decode("utf-8", "replace")


def test_aborted_and_control_batches_leave_no_rows() -> None:
    txn = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    one = [(TS, None, b"v", ())]
    data = (
        codec.encode_batch(one, base_offset=0, base_sequence=0, **txn)
        + codec.encode_batch(one, base_offset=1)
        + codec.encode_marker(9, 0, False, timestamp=TS, base_offset=2)
        + codec.encode_batch(one, base_offset=3, base_sequence=1, **txn)
        + codec.encode_marker(9, 0, True, timestamp=TS, base_offset=4)
    )
    aborted = _core.AbortedTransactions([(9, 0, 2)])
    assert [r["offset"] for r in rows(decode(data, aborted=aborted))] == [1, 3]
    assert [r["offset"] for r in rows(decode(data))] == [0, 1, 3]
    decoder = _core.ColumnDecoder(["offset"])
    assert decoder.feed(data, 0, 0, EVER, aborted) == (5, len(data))


def test_a_damaged_batch_leaves_the_rows_before_it() -> None:
    good = codec.encode_batch([(TS, None, None, ()), (TS, b"k", b"v" * 20, ())])
    count_lies = bytearray((2).to_bytes(8, "big") + good[8:])
    count_lies[57:61] = (3).to_bytes(4, "big")
    count_lies[17:21] = codec.crc32c(bytes(count_lies[21:])).to_bytes(4, "big")
    flipped = bytearray((2).to_bytes(8, "big") + good[8:])
    flipped[-2] ^= 8
    for bad, words in ((count_lies, "counts 3"), (flipped, "CRC-32C")):
        decoder = _core.ColumnDecoder(ALL)
        with pytest.raises(errors.CorruptRecord, match=words):
            decoder.feed(good + bytes(bad), 0, 0, EVER)
        assert decoder.rows == 2
        fields = arrow.fields_of(ALL, view=True)
        batch = arrow.record_batch(arrow.columns_of(decoder.take(), fields, ["t"], 0, 0))
        batch.validate(full=True)
        assert batch.column("value").to_pylist() == [None, b"v" * 20]
        assert batch.column("key").null_count == 1


def test_an_impossible_record_count_is_rejected_before_allocation() -> None:
    data = codec.seal(
        base_offset=0, leader_epoch=0, attributes=0, last_offset_delta=2**31 - 2, base_timestamp=TS,
        max_timestamp=TS, producer_id=-1, producer_epoch=-1, base_sequence=-1, count=2**31 - 1, payload=bytes(70),
    )  # fmt: skip
    with pytest.raises(errors.CorruptRecord, match="counts 2147483647 records but ends after 10"):
        decode(data)


def test_offsets_alone_of_a_batch_with_gaps_equal_those_of_its_records() -> None:
    """A cleaner leaves gaps: the header gives the range of offsets, not each offset."""
    records = [(TS, b"a", b"1", ()), (TS, b"b", b"2", ())]
    payload = codec.encode_record(records[0], 1, TS) + codec.encode_record(records[1], 4, TS)
    data = codec.seal(
        base_offset=10, leader_epoch=0, attributes=0, last_offset_delta=6, base_timestamp=TS,
        max_timestamp=TS, producer_id=-1, producer_epoch=-1, base_sequence=-1, count=2, payload=payload,
    )  # fmt: skip
    for columns in (["offset"], ["offset", "value"]):
        assert [row["offset"] for row in rows(decode(data, columns=columns))] == [11, 14]


def test_offsets_alone_are_checksummed_and_bounded() -> None:
    good = codec.encode_batch([(TS, None, b"v" * 20, ())] * 3)
    for at in range(codec.HEADER_SIZE, len(good)):
        flipped = bytearray(good)
        flipped[at] ^= 1
        with pytest.raises(errors.CorruptRecord, match="CRC-32C"):
            decode(bytes(flipped), columns=["offset"])
    lies = codec.seal(
        base_offset=0, leader_epoch=0, attributes=0, last_offset_delta=2**31 - 2, base_timestamp=TS,
        max_timestamp=TS, producer_id=-1, producer_epoch=-1, base_sequence=-1, count=2**31 - 1, payload=bytes(70),
    )  # fmt: skip
    with pytest.raises(errors.CorruptRecord, match="counts 2147483647 records"):
        decode(lies, columns=["offset"])


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize(
    "name", ["mixed_none", "mixed_lz4", "txn_zstd", "mixed_snappy", "mixed_gzip"]
)
def test_damaged_batches_raise_only_typed_errors(name: str, view: bool) -> None:
    random_ = random.Random(name)
    whole = (BATCHES / f"{name}.bin").read_bytes()
    for cut in range(61, len(whole)):
        piece = whole[:8] + (cut - 12).to_bytes(4, "big") + whole[12:cut]
        with pytest.raises(errors.CorruptRecord):
            decode(piece, view=view, check_crc=False)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random_.randint(1, 4)):
            data[random_.randrange(12, len(data))] = random_.randrange(256)
        try:
            decode(bytes(data), view=view, check_crc=False)
        except errors.CorruptRecord:
            pass


EDGES = [0, 1, 50, 63, 64, 8191, 8192, (1 << 20) - 1, 1 << 20]
"""Sizes on both sides of where a varint grows by a byte."""


@pytest.mark.slow
@pytest.mark.parametrize("alike", [1, 3])
@pytest.mark.parametrize("view", [True, False])
def test_sizes_and_deltas_of_every_width_decode(view: bool, alike: int) -> None:
    sizes = [None, *EDGES[:-2]]
    records = [
        (TS + 7 * i, None if k is None else b"k" * k, None if v is None else b"v" * v, ())
        for i, (k, v) in enumerate((k, v) for k in sizes for v in sizes for _ in range(alike))
    ]
    records += [(TS + step, None, b"v" * size, ()) for step in EDGES for size in EDGES[-2:]]
    records += [(TS - step, b"", None, ()) for step in [*EDGES, 1 << 40]]
    data = codec.encode_batch(records)
    wanted = [row_of((i, *record)) for i, record in enumerate(records)]
    assert plain_rows(decode(data, view=view)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "records",
    [
        *([(TS, None, b"x" * size, ()), (TS + 9, b"k", None, ())] for size in (0, 3, 100)),
        [(TS + i, b"key", b"of one shape", ()) for i in range(4)],
        [(TS + 100 * i, None, b"of one shape", ()) for i in range(3)],
        [(TS + i, b"key", None, ()) for i in range(4)],
    ],
    ids=["0 bytes", "3 bytes", "100 bytes", "alike", "alike without keys", "alike without values"],
)
def test_every_changed_byte_of_a_record_is_checked_as_the_format_says(records: list[Any]) -> None:
    """The core rejects what the reference codec rejects, and the rest is equal."""
    whole = codec.encode_batch(records)
    for at in range(codec.HEADER_SIZE, len(whole)):
        for byte in range(256):
            data = bytearray(whole)
            data[at] = byte
            try:
                batch = codec.decode_batch(bytes(data))
            except codec.Malformed:
                with pytest.raises(errors.CorruptRecord):
                    decode(bytes(data), check_crc=False)
                continue
            wanted = [row_of(dataclasses.astuple(record)) for record in batch.records]
            offsets = [row["offset"] for row in wanted]
            if offsets != sorted(set(offsets)) or not set(offsets) <= set(range(len(records))):
                continue  # the reference does not compare offsets
            assert plain_rows(decode(bytes(data), check_crc=False)) == wanted


def test_a_decoder_can_be_used_again_after_take() -> None:
    decoder = _core.ColumnDecoder(["value"], view=False)
    data = codec.encode_batch([(TS, None, b"abc", ())])
    for _ in range(3):
        decoder.feed(data, 0, 0, EVER)
        taken = decoder.take()
        assert (taken["rows"], bytes(taken["value"][3])) == (1, b"abc")
    assert decoder.take()["rows"] == 0


MICROSECONDS = pa.timestamp("us", tz="UTC")
LAST_MS = EVER // 1000


def flat(data: bytes, columns: list[str], rows: int = 65536) -> list[Any]:
    """Record batches as Spark takes them, of topic "topic", partition 3."""
    fields = arrow.fields_of(columns, view=False, flat=True)
    decoder = _core.ColumnDecoder(arrow.decoded_columns(columns), view=False, flat=True)
    decoder.feed(data, 0, 0, EVER)
    taken = decoder.take()
    every = range(taken["rows"])
    return [
        arrow.record_batch(
            arrow.columns_of(taken, fields, ["other", "topic"], 1, 3, every[at : at + rows])
        )
        for at in every[::rows]
    ]


@given(
    times=st.lists(st.integers(-LAST_MS, LAST_MS), min_size=1, max_size=30), cut=st.integers(1, 9)
)
def test_flat_columns_equal_the_others_in_the_types_that_spark_accepts(
    times: list[int], cut: int
) -> None:
    data = b"".join(
        codec.encode_batch([(time, None, b"%d" % time, ())], base_offset=at)
        for at, time in enumerate(times)
    )
    columns = ["topic", "partition", "timestamp", "timestamp_type", "offset", "key", "value"]
    found = pa.Table.from_batches(flat(data, columns, cut))
    found.validate(full=True)
    assert [found.schema.field(name).type for name in columns[:4]] == [
        pa.string(), pa.int32(), MICROSECONDS, pa.int32()
    ]  # fmt: skip
    found = found.set_column(2, "timestamp", found.column("timestamp").cast(pa.int64()))
    assert found.to_pylist() == [
        {"topic": "topic", "partition": 3, "timestamp": time * 1000, "timestamp_type": 0}
        | {"offset": at, "key": None, "value": b"%d" % time}
        for at, time in enumerate(times)
    ]


def test_flat_timestamp_types_equal_those_of_their_batches() -> None:
    one = [(TS, None, b"", ())]
    data = codec.encode_batch(one) + codec.encode_batch(
        one, base_offset=1, timestamp_type=1, max_timestamp=TS
    )
    (found,) = flat(data, ["timestamp_type"])
    assert found.column("timestamp_type").to_pylist() == [0, 1]


@pytest.mark.parametrize("beyond", [LAST_MS + 1, -LAST_MS - 1, EVER, -EVER - 1])
def test_a_time_outside_of_microseconds_raises_with_its_value(beyond: int) -> None:
    decoder = _core.ColumnDecoder(["timestamp", "timestamp_type", "value"], view=False, flat=True)
    decoder.feed(codec.encode_batch([(TS, None, b"before", ())]), 0, 0, EVER)
    decoder.feed(codec.encode_batch([(beyond, None, b"", ())], base_offset=1), 0, 1, EVER)
    for _ in range(2):  # what was collected stays, as it was
        with pytest.raises(errors.KafkaError, match=str(beyond)) as caught:
            decoder.take()
        assert caught.value.code == errors.ErrorCode.INVALID_TIMESTAMP


def test_constant_columns_are_correct_for_batches_of_any_size() -> None:
    for rows in (0, 1, 5, 1 << 17, (1 << 17) + 1, 3):
        fields = arrow.fields_of(["topic", "partition"], view=False, flat=True)
        taken = {"rows": rows, "buffers": []}
        for topic, partition in ((0, 7), (1, 8)):
            columns = arrow.columns_of(taken, fields, ["a", "bcd"], topic, partition)
            found = arrow.record_batch(columns)
            found.validate(full=True)
            assert found.column("topic").to_pylist() == [["a", "bcd"][topic]] * rows
            assert found.column("partition").to_pylist() == [partition] * rows


def test_a_constant_name_longer_than_a_column_can_hold_is_rejected() -> None:
    fields = arrow.fields_of(["topic"], view=False, flat=True)
    taken = {"rows": 1 << 30, "buffers": []}
    with pytest.raises(errors.ConfigError, match="'name': 1073741824 rows do not fit"):
        arrow.columns_of(taken, fields, ["name"], 0, 0)


def test_decoder_options_are_checked() -> None:
    for options in ({"columns": ["nope"]}, {"max_rows": 0}):
        with pytest.raises(errors.ConfigError):
            _core.ColumnDecoder(**options)
