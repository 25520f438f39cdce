"""`assert_records`: what it compares, and how it shows a difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eoslog.testing import TemporaryLogs, assert_records


@pytest.fixture
def log(tmp_path: Path):
    with TemporaryLogs(tmp_path) as create:
        log = create(topics={"one": 1, "two": 2, "json": 1})
        with log.producer() as producer:
            producer.produce_many("one", ["a", "b", None], ["1", "2", "2"])
            producer.produce("two", "x", partition=1)
            producer.produce("two", "y", partition=0)
            producer.produce("json", json.dumps({"sum": 4}))
        yield log


def test_values_pairs_and_records_are_compared(log):
    assert_records(log, "one", ["a", b"b", None])
    assert_records(log, "one", [("1", "a"), (b"2", "b"), ("2", None)])
    assert_records(log, "one", log.read("one"))
    assert_records(log, "one", ["a", ("2", "b"), *list(log.read("one"))[2:]])
    assert_records(log, "one", ["a", "b", None], value="string")
    assert_records(log, "json", [{"sum": 4}], value="json")


def test_partitions_are_read_in_order_alone_or_in_any_order(log):
    assert_records(log, "two", ["y", "x"])
    assert_records(log, "two", ["x"], partition=1)
    assert_records(log, "two", ["x", "y"], in_any_order=True)
    with pytest.raises(AssertionError):
        assert_records(log, "two", ["x", "y"])


def test_uncommitted_records_are_compared_on_demand(log):
    producer = log.producer(transactional_id="open")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("one", "open")
    producer.flush()
    assert_records(log, "one", ["a", "b", None])
    assert_records(log, "one", ["a", "b", None, "open"], isolation="read_uncommitted")
    producer.abort_transaction()


@pytest.mark.parametrize("in_any_order", [False, True])
@pytest.mark.parametrize(
    "expected",
    [[], ["a"], ["a", "b"], ["a", "b", None, "c"], ["a", "b", "c"], ["c", "d", "e"],
     ["a", "a", "b"], [("1", "a"), ("1", "b"), ("2", None)], ["b", "a", "a", "a", None]],
)  # fmt: skip
def test_every_difference_is_an_assertion_error(log, expected, in_any_order):
    with pytest.raises(AssertionError, match="^one: expected "):
        assert_records(log, "one", expected, in_any_order=in_any_order)


def test_the_message_shows_missing_and_unexpected_records(log):
    with pytest.raises(AssertionError) as raised:
        assert_records(log, "one", ["a", "c"])
    assert str(raised.value).splitlines() == [
        "one: expected 2 records (-), got 3 (+)",
        "  b'a'   (partition 0, offset 0)",
        "- b'c'",
        "+ b'b'   (partition 0, offset 1)",
        "+ None   (partition 0, offset 2)",
    ]


def test_equal_records_far_from_a_difference_are_counted(tmp_path):
    with TemporaryLogs(tmp_path) as create:
        log = create(topics="many")
        with log.producer() as producer:
            producer.produce_many("many", map(str, range(100)))
        expected = [str(number) for number in range(100)]
        expected[50] = "wrong"
        with pytest.raises(AssertionError) as raised:
            assert_records(log, "many", expected)
    lines = str(raised.value).splitlines()
    assert [line.split("   ")[0] for line in lines[1:]] == [
        "  ... 48 equal ...", "  b'48'", "  b'49'", "- b'wrong'", "+ b'50'", "  b'51'", "  b'52'",
        "  ... 47 equal ...",
    ]  # fmt: skip
