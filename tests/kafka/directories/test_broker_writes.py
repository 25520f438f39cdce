"""eoslog reads directories of a real broker as the broker's own readers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import eoslog
from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.clients import ISOLATIONS
from tests.kafka.directories.workload import TOPICS, Seen, Workload
from tests.kafka.directories.world import rows_of_scan

Left = tuple[Broker, dict[str, Seen]]


@pytest.fixture(
    scope="module", params=[(jars.DIRECTORIES, "stop"), (jars.BEHAVIOUR, "kill")], ids="-".join
)
def left(request: pytest.FixtureRequest, broker_of: Callable[..., Broker]) -> Iterator[Left]:
    """A broker that has stopped or died, and what it gave before."""
    version, end = request.param
    broker = broker_of(version).start()
    workload = Workload(broker)
    workload.run()
    seen = workload.seen()
    getattr(broker, end)()
    yield broker, seen


def test_the_workload_contains_every_case(left: Left) -> None:
    broker, seen = left
    assert sum(len(s.rows["read_uncommitted"]) for s in seen.values()) > 600
    assert len(seen["transactions"].aborted) >= 5
    assert len(list((broker.logs / "transactions-0").glob("*.log"))) >= 3
    assert seen["open"].last_stable == seen["open"].high_watermark - 2
    offsets = [row.offset for row in seen["compacted"].rows["read_uncommitted"]]
    assert len(offsets) < offsets[-1] - offsets[0]
    assert [row.value for row in seen["fenced"].rows["read_committed"]] == [
        b"kept 0",
        b"kept 1",
        b"kept 2",
    ]
    assert [row.value for row in seen["timed-out"].rows["read_committed"]] == [b"behind"]


@pytest.mark.parametrize("topic", TOPICS)
def test_eoslog_reads_every_record_as_kafka_returns_it(left: Left, topic: str) -> None:
    broker, seen = left
    for isolation in ISOLATIONS:
        scan = eoslog.read_segments(broker.logs / f"{topic}-0", isolation=isolation)
        assert rows_of_scan(scan) == seen[topic].rows[isolation], isolation


@pytest.mark.parametrize("topic", TOPICS)
def test_eoslog_sees_the_same_ends_and_aborted_ranges(left: Left, topic: str) -> None:
    broker, seen = left
    found = eoslog.inspect(broker.logs / f"{topic}-0")
    assert found["last_stable_offset"] == seen[topic].last_stable
    assert found["log_end_offset"] == seen[topic].high_watermark
    aborted = [
        (a["producer_id"], a["first_offset"]) for s in found["segments"] for a in s["txn_index"]
    ]
    assert sorted(aborted) == seen[topic].aborted
    assert all(batch["valid"] for segment in found["segments"] for batch in segment["batches"])
