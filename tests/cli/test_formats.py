"""`--key-format` and `--value-format` of `produce` and `consume`."""

from __future__ import annotations

import json
import uuid

import pytest

import eoslog
from eoslog.serializers import FORMATS, serializer

OBJECTS = {
    "bytes": "3 apples", "string": "3 äpfel", "json": {"b": [1, None, True]}, "short": -3,
    "integer": 3, "long": 1 << 40, "float": 0.5, "double": 0.1, "uuid": str(uuid.UUID(int=7)),
    "msgpack": {"b": [1, None, "x"]},
}  # fmt: skip


@pytest.fixture
def lines(shop, tmp_path):
    def write(text: str, *options: object):
        source = tmp_path / "lines"
        source.write_text(text)
        return shop("produce", "orders", source, *options)

    return write


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_of_each_format_comes_back_as_it_was_written(shop, place, lines, name):
    value = OBJECTS[name]
    options = ("--value-format", name, "--key-format", name)
    line = json.dumps({"key": value, "value": value})
    assert lines(line, "--jsonl", *options).code == 0
    text = value if isinstance(value, str) else json.dumps(value)
    assert lines(f"{text}|{text}", "-k", "|", *options).code == 0
    first, second = shop("consume", "orders", *options).rows
    assert (first["key"], first["value"]) == (second["key"], second["value"]) == (value, value)
    with eoslog.open(place) as log:
        stored = {(record.key, record.value) for record in log.read("orders")}
    encode = serializer("value", name) or str.encode
    assert stored == {(encode(value), encode(value))}
    assert [row["value"] for row in shop("consume", "orders", "--key", text, *options).rows] == [
        value, value,
    ]  # fmt: skip


def test_a_table_and_csv_show_numbers_and_objects_as_json(shop, lines):
    lines('{"key": 7, "value": {"a": true}}', "--jsonl", "--key-format", "long",
          "--value-format", "json")  # fmt: skip
    options = ("--key-format", "long", "--value-format", "json")
    assert shop("consume", "orders", *options, form="table").out.split(maxsplit=2)[2] == (
        '7  {"a": true}\n'
    )
    assert '7,,"{""a"": true}"' in shop("consume", "orders", *options, form="csv").out


@pytest.mark.parametrize("name", ["float", "double"])
def test_numbers_that_json_lacks_are_texts_and_read_back(shop, lines, name):
    numbers = ["NaN", "Infinity", "-Infinity"]
    options = ("--value-format", name)
    assert lines("\n".join(numbers), "-p", 0, *options).code == 0
    printed = shop("consume", "orders", *options, form="jsonl")
    assert [row["value"] for row in printed.rows] == numbers
    assert lines(printed.out, "--jsonl", "-p", 1, *options).code == 0
    read = ("consume", "orders", "-p", 1, *options)
    assert [row["value"] for row in json.loads(shop(*read, form="json").out)] == numbers
    assert [line.split(",")[6] for line in shop(*read, form="csv").out.splitlines()[1:]] == numbers


def test_numbers_that_json_lacks_are_texts_in_objects(shop, lines):
    lines('{"a": [NaN, 1]}', "--value-format", "json")
    (row,) = shop("consume", "orders", "--value-format", "json").rows
    assert row["value"] == {"a": ["NaN", 1]}


def test_a_tombstone_has_no_format(shop, lines):
    assert (
        lines('{"key": 1}', "--jsonl", "--key-format", "long", "--value-format", "long").code == 0
    )
    [row] = shop("consume", "orders", "--value-format", "long", "--key-format", "long").rows
    assert (row["key"], row["value"]) == (1, None)


def test_a_record_of_another_format_is_named_and_not_committed(shop, lines):
    lines('{"key": "a", "value": "{"}', "--jsonl", "-p", 1)
    found = shop("consume", "orders", "-g", "readers", "--value-format", "json")
    assert found.code == 1
    assert "orders-1 at offset 0: json: the bytes are not JSON" in found.err
    assert "leave out --value-format" in found.err
    assert len(shop("consume", "orders", "-g", "readers").rows) == 1


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "table"])
def test_a_group_commits_what_it_printed_before_an_undecodable_record(shop, lines, form):
    read = ("consume", "orders", "-g", "readers", "--value-format", "json")
    lines('"one"\n"two"\nbad\n"four"\n', "-p", 0)
    first = shop(*read, form=form)
    assert first.code == 1 and "orders-0 at offset 2: json" in first.err
    assert [word in first.out for word in ("one", "two", "four")] == [True, True, False]
    again = shop(*read, form=form)
    assert again.code == 1 and "orders-0 at offset 2: json" in again.err
    assert "one" not in again.out and "two" not in again.out
    left = shop("consume", "orders", "-g", "readers").rows
    assert [row["value"] for row in left] == ["bad", '"four"']


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long", "x"),
        ("long", "1.5"),
        ("json", "{"),
        ("uuid", "7"),
        ("double", "-"),
        ("short", "99999"),
    ],
)
def test_a_line_of_another_format_is_named_and_writes_nothing(shop, lines, name, text):
    found = lines(f"{text}\n", "--value-format", name, "-t", "one")
    assert found.code == 1
    assert "line 1: " in found.err and name in found.err
    assert shop("consume", "orders").rows == []


def test_an_unknown_format_lists_those_that_exist(shop):
    found = shop("consume", "orders", "--value-format", "jsn")
    assert found.code == 2
    assert "'json'" in found.err


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_line_that_is_nested_too_deep_is_named_and_writes_nothing(shop, lines, name):
    found = lines("[" * 100_000 + "\n", "--value-format", name, "-t", "one")
    assert found.code == 1
    assert "line 1: value: nested too deep" in found.err
    assert shop("consume", "orders").rows == []


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "table"])
def test_a_value_that_json_can_nest_is_printed(shop, lines, form):
    text = "[" * 800 + "]" * 800
    assert lines(f"{text}\n", "--value-format", "json").code == 0
    found = shop("consume", "orders", "--value-format", "json", form=form)
    assert found.code == 0 and "[" * 800 in "".join(found.out.split())
