"""`consume --tail`, `--since`, `--until` and `--key`, and quantities with units."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

import eoslog
from eoslog.commands.quantities import key_value, milliseconds, size

HOUR = 3_600_000
START = 1_790_000_000_000


@pytest.fixture
def filled(shop, place):
    """Nine records, an hour apart, with the keys a, b, c in turn."""
    with eoslog.open(place) as log, log.producer() as producer:
        for number in range(9):
            producer.produce(
                "orders", str(number), "abc"[number % 3], partition=number % 2,
                timestamp=START + number * HOUR,
            )  # fmt: skip
    return shop


def printed(filled, *options: object) -> list[str]:
    found = filled("consume", "orders", *options)
    assert found.code == 0, found.err
    return [row["value"] for row in found.rows]


def iso(number: float, zone: str = "") -> str:
    when = datetime.fromtimestamp((START + number * HOUR) / 1000, UTC)
    return (when if zone else when.astimezone()).replace(tzinfo=None).isoformat() + zone


def test_tail_prints_the_newest_records_of_all_partitions(filled):
    assert printed(filled, "--tail", 3) == ["6", "7", "8"]
    assert printed(filled, "--tail", 2, "-p", 0) == ["6", "8"]
    assert printed(filled, "--tail", 2, "--key", "a") == ["3", "6"]
    assert printed(filled, "--tail", 100) == [str(number) for number in range(9)]


@pytest.mark.parametrize("zone", ["", "Z"])
def test_since_and_until_select_by_timestamp(filled, zone):
    assert sorted(printed(filled, "--since", iso(3, zone), "--until", iso(6, zone))) == [
        "3", "4", "5",
    ]  # fmt: skip
    assert sorted(printed(filled, "--until", iso(0.5, zone))) == ["0"]
    assert printed(filled, "--since", iso(9, zone)) == []
    assert sorted(printed(filled, "--since", iso(2, zone), "-k", "b")) == ["4", "7"]


def test_a_duration_is_a_time_before_now(filled, place):
    now = datetime.now(UTC)
    with eoslog.open(place) as log, log.producer() as producer:
        for age in (3, 1):
            when = int((now - timedelta(hours=age)).timestamp() * 1000)
            producer.produce("orders", f"{age} h ago", partition=0, timestamp=when)
    assert printed(filled, "--since", "2h") == ["1 h ago"]
    assert printed(filled, "--since", "4h", "--until", "90m") == ["3 h ago"]


def test_a_record_of_the_latest_possible_time_is_found(filled, place):
    with eoslog.open(place) as log, log.producer() as producer:
        producer.produce("orders", "last", "z", partition=0, timestamp=(1 << 63) - 1)
    assert printed(filled, "--since", iso(9)) == printed(filled, "--key", "z") == ["last"]


def test_an_older_record_after_a_newer_one_is_found(filled, place):
    with eoslog.open(place) as log, log.producer() as producer:
        producer.produce("orders", "late", partition=0, timestamp=START + 2 * HOUR)
    assert sorted(printed(filled, "--since", iso(2), "--until", iso(3))) == ["2", "late"]


def test_tail_continues_with_records_that_come_later(filled, place):
    command = [
        sys.executable, "-m", "eoslog", "-d", str(place), "consume", "orders", "--tail", "2", "-f",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as reader:
        assert reader.stdout is not None
        seen = [json.loads(reader.stdout.readline())["value"] for _ in range(2)]
        with eoslog.open(place) as log, log.producer() as producer:
            producer.produce("orders", "9", partition=1)
        seen.append(json.loads(reader.stdout.readline())["value"])
        reader.send_signal(signal.SIGINT)
    assert seen == ["7", "8", "9"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tail", 1, "-o", 1), "-o and --tail exclude each other"),
        (("--since", "1h", "--until", "2h"), "--since is not before --until"),
        (("--since", "1h", "-b"), "-b and --since exclude each other"),
        (("--tail", 1, "-g", "g"), "leave out --tail, --since, --until and --key, or -g"),
        (("--key", "a", "-g", "g"), "leave out --tail, --since, --until and --key, or -g"),
        (("--until", "1h", "-f"), "--until excludes -f and --tail"),
        (("--since", "yesterday"), "expected a time such as"),
        (("--tail", 0), "0 is not in the range"),
    ],
)
def test_contradictory_selections_are_usage_errors(filled, arguments, says):
    found = filled("consume", "orders", *arguments)
    assert (found.code, found.out) == (2, "")
    assert says in found.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7d", 604_800_000), ("1.5h", 5_400_000), ("90 s", 90_000), ("5ms", 5), ("2w", 1_209_600_000),
     ("7", None), ("d", None), ("7 days", None), ("-1s", None)],
)  # fmt: skip
def test_a_duration_has_a_number_and_a_unit(text, expected):
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GiB", 1 << 30), ("1gib", 1 << 30), ("1.5kB", 1500), ("64 MiB", 64 << 20), ("7", None),
     ("7 x", None)],
)  # fmt: skip
def test_a_size_has_a_number_and_a_unit(text, expected):
    assert size(text) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("retention.ms", "7d", "604800000"), ("segment_bytes", "1MiB", "1048576"),
     ("retention.ms", "-1", "-1"), ("compression.type", "5d", "5d"), ("batch.size", "1kB", "1000")],
)  # fmt: skip
def test_a_key_of_time_or_size_takes_a_unit(key, value, expected):
    assert key_value(key, value) == expected


def test_a_topic_is_created_with_quantities(filled):
    config = ("-c", "retention.ms=7d", "-c", "segment.bytes=1GiB")
    assert filled("topic", "create", "clicks", *config).code == 0
    [row] = filled("topic", "describe", "clicks", form="jsonl").rows
    assert row["config"] == {"retention.ms": "604800000", "segment.bytes": "1073741824"}


def test_a_quantity_in_the_wrong_unit_is_an_error(filled):
    found = filled("topic", "create", "clicks", "-c", "retention.ms=7GiB")
    assert found.code == 2
    assert "retention.ms" in found.err
