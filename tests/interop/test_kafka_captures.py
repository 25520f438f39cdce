"""eoslog reads directories of real brokers as the brokers' own readers did.

`python -m tests.kafka.generators.capture` writes the archives. `make quality-kafka` does the
same with a running broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.captures import unpack
from tests.paths import KAFKA_DATA

ARCHIVES = sorted(KAFKA_DATA.glob("broker-*.tar.xz"))
ISOLATIONS = ("read_committed", "read_uncommitted")

Capture = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name)
def capture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Capture]:
    """The log directory of a broker, and what was seen of it, by topic."""
    place = tmp_path_factory.mktemp("capture")
    unpack(request.param, place)
    yield place / "logs", json.loads((place / "seen.json").read_text())


def rows_of(path: Path, isolation: str) -> list[list[Any]]:
    """What eoslog reads, in the form of the capture."""

    def hexed(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    return [
        [
            row["partition"], row["offset"], row["timestamp_type"], round(row["timestamp"].timestamp() * 1000),
            hexed(row["key"]), hexed(row["value"]), [[h["key"], hexed(h["value"])] for h in row["headers"] or ()],
        ]
        for row in eoslog.read_segments(path, isolation=isolation).to_table().to_pylist()
    ]  # fmt: skip


def test_captures_of_both_release_lines_exist(capture: Capture) -> None:
    assert [path.name for path in ARCHIVES] == ["broker-3.9.2.tar.xz", "broker-4.3.1.tar.xz"]
    logs, seen = capture
    assert {path.name for path in logs.glob("*-0") if not path.name.startswith("__")} == {
        f"{topic}-0" for topic in seen
    }


def test_every_captured_record_is_read_as_kafka_returned_it(capture: Capture) -> None:
    logs, seen = capture
    for topic, found in seen.items():
        for isolation in ISOLATIONS:
            assert rows_of(logs / f"{topic}-0", isolation) == found["rows"][isolation], (
                topic,
                isolation,
            )


def test_ends_and_aborted_ranges_equal_those_of_kafka(capture: Capture) -> None:
    logs, seen = capture
    for topic, expected in seen.items():
        found = eoslog.inspect(logs / f"{topic}-0", records=False)
        assert found["last_stable_offset"] == expected["last_stable"], topic
        assert found["log_end_offset"] == expected["high_watermark"], topic
        aborted = [
            [a["producer_id"], a["first_offset"]] for s in found["segments"] for a in s["txn_index"]
        ]
        assert sorted(aborted) == expected["aborted"], topic
        assert all(
            batch["valid"] for segment in found["segments"] for batch in segment["batches"]
        ), topic


def test_the_captures_contain_the_hard_cases(capture: Capture) -> None:
    """Else the tests above would show little."""
    logs, seen = capture
    assert len(seen["transactions"]["aborted"]) >= 5
    assert len(list((logs / "transactions-0").glob("*.log"))) >= 3
    assert seen["open"]["last_stable"] < seen["open"]["high_watermark"]
    segments = eoslog.inspect(logs / "compacted-transactions-0")["segments"]
    batches = [batch for segment in segments for batch in segment["batches"]]
    assert any(batch["delete_horizon_ms"] is not None for batch in batches)
    assert any(
        before["last_offset"] + 1 < after["base_offset"]
        for before, after in zip(batches, batches[1:], strict=False)
    )
    codecs = {
        batch["compression"]
        for topic in seen
        for s in eoslog.inspect(logs / f"{topic}-0")["segments"]
        for batch in s["batches"]
    }
    assert codecs == {"none", "gzip", "snappy", "lz4", "zstd"}
