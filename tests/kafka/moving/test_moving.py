"""Export to and import from a real cluster: everything once, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

import eoslog
from eoslog.errors import ConfigError, IllegalState, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.storage.format.checkpoints import id_text
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics, librdkafka_rows
from tests.kafka.directories import world
from tests.kafka.directories.workload import TOPICS, Workload
from tests.kafka.directories.world import Row

KILLS = {"export": 50, "import": 20}
# What a broker stamps itself cannot be moved as it is; nor may the target's cleaner run.
MOVED = tuple(name for name in world.TOPICS if name != "compacted")


def essence(rows: list[Row]) -> list[tuple[object, ...]]:
    """All of the rows but their offsets, which markers move, and who stamped them."""
    return [(row.partition, row.timestamp, row.key, row.value, row.headers) for row in rows]


def run(direction: str, path: Path, broker: Broker, *words: str, fail: str = "") -> int:
    """Run a move to its end; return its exit code, or minus its signal."""
    return started(direction, path, broker, *words, fail=fail).wait(120)


def started(
    direction: str, path: Path, broker: Broker, *words: str, fail: str = ""
) -> subprocess.Popen[bytes]:
    """Start `eoslog export|import kafka` as a process of its own."""
    environment = {**os.environ, "EOSLOG_FAILPOINTS": fail}
    command = [
        sys.executable,
        "-m",
        "eoslog",
        "-d",
        str(path),
        direction,
        "kafka",
        "--bootstrap",
        broker.bootstrap,
    ]
    return subprocess.Popen(
        [*command, *words], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[eoslog.Log]:
    """The directory of every kind of topic, with a transaction open."""
    with world.build(tmp_path_factory.mktemp("moving") / "log") as log:
        yield log


def test_an_export_gives_kafka_readers_the_records_that_eoslog_reads(
    source: eoslog.Log, broker: Broker
) -> None:
    moved = source.export_kafka(broker.bootstrap, MOVED, records=500)
    counts = {name: world.PARTITIONS.get(name, 1) for name in MOVED}
    found = librdkafka_rows(broker, counts, "read_committed")
    for topic in MOVED:
        assert essence(found[topic]) == essence(world.rows_of(source, topic, "read_committed")), (
            topic
        )
    assert moved.records == sum(map(len, found.values())) > 2000
    again = source.export_kafka(broker.bootstrap, MOVED)
    assert (again.records, again.positions) == (0, moved.positions)


def test_a_target_filled_by_another_source_is_rejected(source: eoslog.Log, broker: Broker) -> None:
    with pytest.raises(IllegalState, match="has no saved position"):
        source.export_kafka(broker.bootstrap, ["plain"], job="another")


def test_topics_that_do_not_fit_are_rejected(
    source: eoslog.Log, broker: Broker, tmp_path: Path
) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("two", 2)
        log.create_topic("stamped")
        create_topics(
            broker,
            {"two": 3, "stamped": 1},
            {"stamped": {"message.timestamp.type": "LogAppendTime"}},
        )
        with pytest.raises(ConfigError, match="3 partitions"):
            log.export_kafka(broker.bootstrap, ["two"])
        with pytest.raises(ConfigError, match="LogAppendTime"):
            log.export_kafka(broker.bootstrap, ["stamped"])
        with pytest.raises(UnknownTopicOrPartition):
            log.import_kafka(broker.bootstrap, ["no-such"])


def test_a_record_that_cannot_be_sent_unchanged_stops_the_export(
    broker: Broker, tmp_path: Path
) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("timeless")
        with log.producer() as producer:
            producer.produce("timeless", b"a", timestamp=1)
            producer.produce("timeless", b"b", timestamp=0)
        with pytest.raises(ConfigError, match="offset 1"):
            log.export_kafka(broker.bootstrap)
    assert librdkafka_rows(broker, {"timeless": 1}, "read_committed") == {"timeless": []}


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(1_048_588, [5, 1_020_000, 5]), (10_485_760, [10_400_000]), (5_000, [500] * 100)],
    ids=["as large as the default allows", "as large as the topic allows", "in small batches"],
)
def test_every_record_that_the_topic_accepts_is_sent(
    broker: Broker, tmp_path: Path, limit: int, sizes: list[int]
) -> None:
    topic = f"limit-{limit}"
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic(topic, config={"max.message.bytes": limit})
        with log.producer({"max.request.size": 2 * limit}) as producer:
            for size in sizes:
                producer.produce(topic, b"x" * size)
                producer.flush()
        assert log.export_kafka(broker.bootstrap).records == len(sizes)
    found = librdkafka_rows(broker, {topic: 1}, "read_committed")[topic]
    assert [len(row.value or b"") for row in found] == sizes


def make_again(log: eoslog.Log, topic: str, count: int) -> None:
    """A topic of other records than one that may have been there under its name."""
    if topic in log.topics():
        log.delete_topic(topic)
    log.create_topic(topic)
    with log.producer() as producer:
        producer.produce_many(topic, [b"%d" % n for n in range(count)])


def make_again_there(broker: Broker, topic: str, count: int, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    if topic in admin.list_topics(timeout=30).topics:
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        while topic in admin.list_topics(timeout=30).topics:
            pass
    create_topics(broker, {topic: partitions})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(count):
        producer.produce(topic, b"%d" % n)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("count", [5, 20], ids=["shorter", "longer"])
def test_a_re_created_topic_is_not_exported_from_its_old_position(
    broker: Broker, tmp_path: Path, count: int
) -> None:
    topic = f"made-again-{count}"
    with eoslog.open(tmp_path / "log") as log:
        make_again(log, topic, 10)
        job = log.export_kafka(broker.bootstrap).job
        old = log.describe_topic(topic).topic_id
        make_again(log, topic, count)
        new = log.describe_topic(topic).topic_id
        with pytest.raises(
            IllegalState, match=f"of topic id {id_text(old)}, .* now has id {id_text(new)}: "
        ):
            log.export_kafka(broker.bootstrap)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        begun = ConsumerGroupTopicPartitions(job, [KafkaPartition(topic, 0, 0)])
        for future in admin.alter_consumer_group_offsets([begun]).values():
            future.result(30)
        assert log.export_kafka(broker.bootstrap).records == count
    found = librdkafka_rows(broker, {topic: 1}, "read_committed")[topic]
    assert [row.value for row in found] == [b"%d" % n for n in [*range(10), *range(count)]]


def test_an_export_does_not_wait_for_a_position_beyond_the_end(
    broker: Broker, tmp_path: Path
) -> None:
    for name in ("long", "short"):  # as after a restore of an older copy, with the position of old
        with eoslog.open(tmp_path / name) as log:
            make_again(log, "restored", {"long": 10, "short": 5}[name])
            if name == "long":
                log.export_kafka(broker.bootstrap, job="restoring")
                continue
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            ahead = ConsumerGroupTopicPartitions("restoring", [KafkaPartition("restored", 0, 10)])
            for future in admin.alter_consumer_group_offsets([ahead]).values():
                future.result(30)
            with pytest.raises(OffsetOutOfRange, match="up to offset 10, .* ends at offset 5: "):
                log.export_kafka(broker.bootstrap, job="restoring")


@pytest.mark.parametrize("count", [5, 20], ids=["shorter", "longer"])
def test_a_re_created_cluster_topic_is_not_imported_from_its_old_position(
    broker: Broker, tmp_path: Path, count: int
) -> None:
    topic = f"made-again-there-{count}"
    make_again_there(broker, topic, 10)
    with eoslog.open(tmp_path / "log") as log:
        assert log.import_kafka(broker.bootstrap, [topic]).records == 10
        make_again_there(broker, topic, count)
        with pytest.raises(IllegalState, match=f"the source topic '{topic}' now has id"):
            log.import_kafka(broker.bootstrap, [topic])
        log.delete_topic(topic)
        assert log.import_kafka(broker.bootstrap, [topic]).records == count
        with log.producer(transactional_id="user") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.set_position(f"kafka-import/eoslog-import/{topic}-0", count + 1)
        with pytest.raises(OffsetOutOfRange, match=f"ends at offset {count}: "):
            log.import_kafka(broker.bootstrap, [topic])


def fill(log: eoslog.Log, topic: str, seed: int) -> None:
    """600 records in three partitions, some of them aborted."""
    draw = random.Random(seed)
    log.create_topic(topic, 3)
    with log.producer(transactional_id="filler") as producer:
        producer.init_transactions()
        for i in range(60):
            producer.begin_transaction()
            for n in range(10):
                headers = [("n", b"%d" % n)] * draw.randrange(3)
                key = draw.choice([None, b"", b"k%d" % draw.randrange(20)])
                producer.produce(
                    topic,
                    b"%d-%d" % (i, n),
                    key,
                    partition=draw.randrange(3),
                    headers=headers,
                    timestamp=world.START_MS + 10 * i + n,
                )
            producer.end_transaction(draw.random() < 0.8)


def points(direction: str, seed: int) -> list[str]:
    """Where to kill: a step, and the how many-th pass of it."""
    draw = random.Random(seed)
    steps = {
        "export": (
            "export.begin",
            "export.produced",
            "export.checked",
            "export.offsets",
            "export.committed",
            "export.record",
        ),
        "import": (
            "import.record",
            "import.produced",
            "import.committed",
            "txn.prepared",
            "txn.decided",
        ),
    }[direction]
    found = []
    for n in range(KILLS[direction]):
        step = steps[n % len(steps)]
        passes = draw.randrange(1, 10 if step.endswith("record") else 4)
        found.append(f"{step}:{passes}=kill")
    return found


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("direction", ["export", "import"])
def test_a_move_killed_at_many_points_equals_the_source_in_the_end(
    direction: str, broker: Broker, tmp_path: Path
) -> None:
    """After a kill, the next run resumes after the last transaction.

    This holds in each direction.
    """
    topic, other = f"killed-{direction}", tmp_path / "other"
    with eoslog.open(tmp_path / "log") as log:
        fill(log, topic, 7)
        expected = essence(world.rows_of(log, topic, "read_committed"))
    assert len(expected) > 400
    words: tuple[str, ...] = (topic, "-n", "3")
    target = tmp_path / "log"
    if direction == "import":
        assert run("export", target, broker, topic) == 0
        eoslog.open(other, create=True).close()
        target = other
    killed = 0
    for point in points(direction, 3):
        code = run(direction, target, broker, *words, fail=point)
        assert code in (0, -signal.SIGKILL), point
        killed += code == -signal.SIGKILL
        if code == 0:
            break
    assert run(direction, target, broker, *words) == 0
    if direction == "export":
        found = librdkafka_rows(broker, {topic: 3}, "read_committed")[topic]
    else:
        with eoslog.open(other) as log:
            found = world.rows_of(log, topic, "read_committed")
    assert essence(found) == expected
    assert killed >= KILLS[direction]


def test_an_import_contains_the_records_that_kafka_readers_get(
    broker_of: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = broker_of().start()
    workload = Workload(broker)
    workload.run()
    names = [name for name in TOPICS if not name.startswith("compacted")]
    seen = workload.seen()
    with eoslog.open(tmp_path / "log") as log:
        moved = log.import_kafka(broker.bootstrap, names)
        for topic in names:
            rows = world.rows_of(log, topic, "read_committed")
            assert essence(rows) == essence(seen[topic].rows["read_committed"]), topic
        assert log.import_kafka(broker.bootstrap, names).records == 0
        with pytest.raises(IllegalState, match="has no saved position"):
            log.import_kafka(broker.bootstrap, ["nulls"], job="another")
    assert moved.records > 300
