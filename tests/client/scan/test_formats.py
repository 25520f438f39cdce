"""`key=` and `value=`: the same formats on producers, consumers and reads."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import errors

OBJECTS = {
    "string": "é", "json": {"a": [1, None]}, "integer": -7, "long": 1 << 40, "double": 0.5,
    "uuid": uuid.UUID(int=7), "msgpack": {"a": [1, b"x"]}, "bytes": b"\x00",
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t")
        yield log


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_read_as_it_was_produced(log, name):
    given = OBJECTS[name]
    with log.producer(key=name, value=name) as producer:
        producer.produce("t", given, key=given)
        producer.produce("t", None)
    read = [(one.key, one.value) for one in log.read("t", key=name, value=name)]
    with log.consumer("t", group_id="g", auto_offset_reset="earliest", key=name, value=name) as c:
        consumed = [(one.key, one.value) for one in c.consume(2, timeout=60)]
    assert read == consumed == [(given, given), (None, None)]


def test_a_bad_record_is_named_after_the_good_ones_before_it(log):
    with log.producer() as producer:
        producer.produce_many("t", ['{"a": 1}', "{}", "no json", "{}"])
    found = []
    with pytest.raises(errors.SerializationError, match="t-0 at offset 2: json: .*as bytes"):
        for record in log.read("t", value="json"):
            found.append(record.value)
    assert found == [{"a": 1}, {}]


def test_a_failing_callable_is_named_with_its_error(log):
    with log.producer() as producer:
        producer.produce("t", "x")
    with pytest.raises(errors.SerializationError, match="t-0 at offset 0: ValueError: "):
        list(log.read("t", value=int))


@pytest.mark.parametrize("call", ["producer", "consumer"])
def test_a_short_and_a_long_key_with_other_values_are_refused(log, call):
    suffix = "serializer" if call == "producer" else "deserializer"
    make = getattr(log, call)
    for options in ({"value": "json", f"value.{suffix}": "string"},
                    {f"value.{suffix}": "string", "value": "json"}):  # fmt: skip
        with pytest.raises(errors.ConfigError, match=f"value and value.{suffix} set the same"):
            make(**options)
    make(**{"value": "json", f"value.{suffix}": "json"}).close()


def test_an_unknown_format_is_refused_before_anything_is_read(log):
    with pytest.raises(errors.ConfigError, match="value: expected a callable or one of"):
        log.read("t", value="xml")


def test_msgpack_without_its_package_is_refused_with_the_command(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(errors.ConfigError, match="value.serializer=msgpack needs the package"):
        log.producer(value="msgpack")


@pytest.mark.parametrize("data", [b"", b"\x01\x01", b"\xc1"])
def test_bytes_that_are_not_one_msgpack_object_are_refused(log, data):
    with log.producer() as producer:
        producer.produce("t", data)
    with pytest.raises(errors.SerializationError, match="t-0 at offset 0: msgpack: "):
        list(log.read("t", value="msgpack"))
