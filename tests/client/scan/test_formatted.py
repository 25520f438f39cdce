"""Scans with formats: typed columns, nulls, and errors that name the record."""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any

import pytest

import eoslog
from eoslog.errors import ConfigError, SerializationError

pa = pytest.importorskip("pyarrow")

SCHEMA = pa.schema({"name": "string", "amount": "int64"})


@pytest.fixture
def log(path: str):
    with eoslog.open(path, durability="os") as log:
        log.create_topic("t", 2)
        yield log


def produce(log: eoslog.Log, values: list[Any], keys: list[Any] | None = None) -> None:
    with log.producer() as producer:
        producer.produce_many("t", values, keys, partition=0)


def test_json_values_are_a_struct_and_nulls_stay_null(log):
    produce(log, ['{"name":"ada","amount":3}', None, '{"amount":-1,"more":[1,{}]}', "null", "{}"])
    table = log.scan("t", value="json", schema=SCHEMA).to_table()
    assert table.schema.field("value").type == pa.struct(list(SCHEMA))
    assert table["value"].to_pylist() == [
        {"name": "ada", "amount": 3}, None, {"name": None, "amount": -1}, None,
        {"name": None, "amount": None},
    ]  # fmt: skip
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["key"].type == pa.binary()


def test_every_batch_has_its_own_rows_whatever_the_layout_of_the_text(log):
    rows = [{"name": f'n{number}\n\t"\u00e9', "amount": number} for number in range(1000)]
    texts = [
        json.dumps(row, indent=number % 3, ensure_ascii=number % 2 == 0)
        for number, row in enumerate(rows)
    ]
    texts[10::7] = [None] * len(texts[10::7])
    produce(log, texts)
    scan = log.scan("t", value="json", schema=SCHEMA, batch_rows=64, columns=["value"])
    batches = list(scan)
    assert len(batches) == 16
    found = [row for batch in batches for row in batch["value"].to_pylist()]
    assert found == [None if text is None else row for text, row in zip(texts, rows, strict=True)]


def test_keys_and_values_of_all_formats_are_typed(log):
    cases = {
        "string": ("é", "é", pa.string()),
        "short": (-2, -2, pa.int16()),
        "integer": (1 << 30, 1 << 30, pa.int32()),
        "int": (-5, -5, pa.int32()),
        "long": (-(1 << 62), -(1 << 62), pa.int64()),
        "float": (0.5, 0.5, pa.float32()),
        "double": (1e300, 1e300, pa.float64()),
        "uuid": (uuid.UUID(int=7), str(uuid.UUID(int=7)), pa.string()),
    }
    for number, (name, (given, expected, kind)) in enumerate(cases.items()):
        topic = f"topic-{number}"
        log.create_topic(topic)
        with log.producer(key=name, value=name) as producer:
            producer.produce(topic, None, given)
            producer.produce(topic, given, None)
            producer.produce(topic, given, given)
        table = log.scan(topic, key=name, value=name).to_table()
        assert (table["key"].type, table["value"].type) == (kind, kind), name
        assert table["key"].to_pylist() == [expected, None, expected], name
        assert table["value"].to_pylist() == [None, expected, expected], name


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "not JSON"), ("{", "not JSON"), ('{},"x":1', "not JSON"), ("{}{}", "not JSON"),
        ("{},{}", "not JSON"), ('{}],"x":[{}', "not JSON"), ("}", "not JSON"),
        ('{"name":"a\nb"}', "not JSON"), ("[1]", "expected an object"), ("5", "expected an object"),
        (b'{"name":"\xff"}', "not JSON"), ('{"amount":"3"}', "does not fit the schema"),
        ('{"amount":1.5}', "does not fit the schema"), ('{"name":"\\ud800"}', "does not fit"),
        (" ", "not JSON"), ('{"a":1', "not JSON"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("row", [0, 77, 199])
def test_a_value_that_does_not_parse_is_named_after_the_rows_before_it(log, bad, reason, row):
    values: list[Any] = [None if n % 5 == 4 else f'{{"amount":{n}}}' for n in range(200)]
    values[row] = bad
    produce(log, values)
    seen = []
    with pytest.raises(SerializationError, match=f"(?s)^t-0 at offset {row}: json: .*{reason}"):
        for batch in log.scan("t", value="json", schema=SCHEMA, batch_rows=50):
            seen += batch["value"].to_pylist()
    assert seen == [None if n % 5 == 4 else {"name": None, "amount": n} for n in range(row)]


def test_two_halves_of_an_object_are_not_put_together(log):
    produce(log, ['{"amount":', "1}", "{}{}"])
    with pytest.raises(SerializationError, match="^t-0 at offset 0: json"):
        log.scan("t", value="json", schema=SCHEMA).to_table()


def test_a_member_that_occurs_twice_has_its_last_value_as_in_python(log):
    produce(log, ['{"amount":1}', '{"amount":2,"amount":3}', '{"amount":4}'])
    table = log.scan("t", value="json", schema=SCHEMA).to_table()
    assert [row["amount"] for row in table["value"].to_pylist()] == [1, 3, 4]


@pytest.mark.parametrize(
    ("which", "name", "bad", "reason"),
    [
        ("value", "integer", b"123", "integer: expected 4 bytes, got 3"),
        ("key", "integer", b"12345", "integer: expected 4 bytes, got 5"),
        ("value", "string", b"\xff\xff\xff\xff", "string: the bytes are not UTF-8"),
        ("key", "uuid", b"nope", "uuid: the bytes are not a UUID"),
    ],
)
def test_a_key_or_value_of_another_format_is_named(log, which, name, bad, reason):
    good = str(uuid.UUID(int=1)).encode() if name == "uuid" else struct.pack(">i", 7)
    rows = [good] * 30 + [bad] + [good] * 30
    produce(log, *((rows, None) if which == "value" else ([b"v"] * 61, rows)))
    with pytest.raises(SerializationError, match=f"^t-0 at offset 30: {reason}"):
        log.scan("t", **{which: name}).to_table()


def test_a_bad_record_is_named_by_its_offset_and_not_by_its_row(log):
    producer = log.producer(transactional_id="x")
    producer.init_transactions()
    for value, commit in (("{}", True), ("bad", False), ("{}", True), ("bad", True)):
        producer.begin_transaction()
        producer.produce("t", value, partition=1)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()
    with pytest.raises(SerializationError, match="^t-1 at offset 6: json"):
        log.scan("t", value="json", schema=SCHEMA).to_table()


def test_all_readers_of_a_scan_get_the_typed_columns(log, tmp_path):
    produce(log, ['{"amount":3}', '{"amount":4}'], ["a", "b"])
    scan = log.scan("t", key="string", value="json", schema=SCHEMA)
    assert pa.table(scan).schema == scan.schema == scan.reader().schema
    assert [record.value for record in scan.records()] == [{"amount": 3}, {"amount": 4}]
    assert [record.key for record in scan.records()] == ["a", "b"]
    assert scan.to_parquet(tmp_path / "t.parquet") == 2
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "t.parquet")["value"].to_pylist()[1]["amount"] == 4
    assert scan.to_pandas()["value"][0]["amount"] == 3
    polars = pytest.importorskip("polars")
    frame = scan.to_polars()
    assert frame.select(polars.col("value").struct.field("amount").sum()).item() == 7
    assert frame["key"].to_list() == ["a", "b"]


def test_an_empty_topic_has_the_schema(log):
    table = log.scan("t", key="long", value="json", schema=SCHEMA).to_table()
    assert table.num_rows == 0
    assert table["value"].type == pa.struct(list(SCHEMA))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"value": "json"}, "schema: .* needs the fields"),
        ({"value": "json", "schema": 5}, "schema: expected a pyarrow.Schema"),
        ({"value": "json", "schema": pa.schema({})}, "schema: expected one field or more"),
        (
            {"value": "json", "schema": pa.schema({"a": pa.duration("s")})},
            "schema: .*not supported",
        ),
        ({"key": "json", "schema": SCHEMA}, "key: only values"),
        ({"value": "string", "schema": SCHEMA}, 'schema: it is for value="json"'),
        ({"schema": SCHEMA}, 'schema: it is for value="json"'),
        ({"value": "jason"}, "value: expected a callable or one of"),
        ({"value": "msgpack"}, "value: a column can be one of"),
        ({"value": json.loads}, "value: a column can be one of .*log.read"),
        ({"value": 5}, "value: expected"),
        ({"value": "string", "binary": "view"}, "binary: columns with a format are copies"),
        ({"value": "string", "columns": ["key"]}, "value: got the format"),
    ],
)
def test_wrong_formats_are_refused_before_anything_is_read(log, options, wrong):
    with pytest.raises(ConfigError, match=wrong):
        log.scan("t", **options)


@pytest.mark.parametrize(
    "schema",
    [pa.struct({"a": "int8"}), {"a": pa.int8()}, [("a", pa.int8())], [pa.field("a", pa.int8())]],
)
def test_a_schema_has_every_form_that_pyarrow_takes(log, schema):
    produce(log, ['{"a":1}'])
    assert log.scan("t", value="json", schema=schema).to_table()["value"].to_pylist() == [{"a": 1}]
