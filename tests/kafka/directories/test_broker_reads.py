"""A real broker's readers return the same from eoslog's files as eoslog's reader."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.clients import ISOLATIONS, create_topics, java_line, java_lines, librdkafka_rows
from tests.kafka.directories import world
from tests.kafka.directories.world import Row

Rows = dict[tuple[str, str], list[Row]]
COUNTS = {name: world.PARTITIONS.get(name, 1) for name in world.TOPICS}


def put_under(broker: Broker, directory: Path) -> None:
    """Replace the files of a stopped broker's partitions by eoslog's.

    The topic ids stay the broker's.
    """
    starts = {}
    for name, count in COUNTS.items():
        for partition in range(count):
            source, target = directory / f"{name}-{partition}", broker.logs / f"{name}-{partition}"
            for path in target.iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            if source.is_dir():  # made at first use
                for path in source.iterdir():
                    if path.name != "partition.metadata":
                        shutil.copy(path, target / path.name)
    for line in (directory / "log-start-offset-checkpoint").read_text().splitlines()[2:]:
        name, partition, offset = line.split()
        if name in COUNTS and int(offset):
            starts[name, int(partition)] = int(offset)
    lines = [
        "0",
        str(len(starts)),
        *(f"{name} {partition} {offset}" for (name, partition), offset in starts.items()),
    ]
    (broker.logs / "log-start-offset-checkpoint").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module", params=["indexes trusted", "recovered by Kafka"])
def served(
    request: pytest.FixtureRequest,
    broker_of: Callable[..., Broker],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Broker, Rows]]:
    """A broker over eoslog's files, and what eoslog reads from them.

    The files are copied while a transaction is open.
    """
    place = tmp_path_factory.mktemp("eoslog")
    broker = broker_of().start()
    create_topics(broker, COUNTS)  # the broker needs neither the small segments nor the cleaner
    broker.stop()
    with world.build(place / "log") as log:
        expected = {
            (topic, isolation): world.rows_of(log, topic, isolation)
            for topic in world.TOPICS
            for isolation in ISOLATIONS
        }
        for topic, count in COUNTS.items():
            for partition in range(
                count
            ):  # as at a clean close; without them Kafka knows no producers
                log._engine.partition(topic, partition).write_snapshot()
        put_under(broker, place / "log")
    if request.param == "recovered by Kafka":
        (broker.logs / ".kafka_cleanshutdown").unlink()
    yield broker.start(), expected
    shutil.rmtree(place)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_librdkafka_reads_what_eoslog_reads(served: tuple[Broker, Rows], isolation: str) -> None:
    broker, expected = served
    found = librdkafka_rows(broker, COUNTS, isolation)
    for topic in world.TOPICS:
        assert found[topic] == expected[topic, isolation], topic


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kafkas_java_consumer_reads_what_eoslog_reads(
    served: tuple[Broker, Rows], isolation: str
) -> None:
    broker, expected = served
    rows = sorted(java_line(row) for topic in world.TOPICS for row in expected[topic, isolation])
    assert len(rows) > 2500
    assert java_lines(broker, world.TOPICS, isolation, len(rows)) == rows


def test_kafka_reports_no_problem_with_a_directory_of_eoslog(served: tuple[Broker, Rows]) -> None:
    broker, _ = served
    words = ("corrupt", "Exception", "ERROR", "rebuilding")
    slow = "EventPerformanceMonitor"  # only says that this machine is busy
    lines = [line for line in broker.log().splitlines() if slow not in line]
    assert [line for line in lines if any(word in line for word in words)] == []
