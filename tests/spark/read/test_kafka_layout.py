"""A Kafka broker's own directories, read in parallel without a broker."""

import json
import shutil
from pathlib import Path

import pytest

from tests.paths import KAFKA_DATA

pytest.importorskip("pyspark")
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read.batch import ReadTask, read_task
from pyspark_eoslog.read.catalog import open_catalog
from pyspark_eoslog.read.planning import pin_ranges
from pyspark_eoslog.read.splitting import plan
from pyspark_eoslog.schema import source_schema

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ConfigError
from tests.captures import unpack
from tests.spark.helpers import message_of

DATA = KAFKA_DATA / "segments"


def options(**given):
    given = {"path": str(DATA), "layout": "kafka", **given}
    return Options.parse({name: str(value) for name, value in given.items()})


def read(parsed):
    found = []
    for pieces in plan(pin_ranges(parsed), parsed):
        for batch in read_task(parsed, source_schema(parsed), ReadTask(pieces)):
            found += batch.to_pylist()
    return sorted((row["topic"], row["offset"], row["value"]) for row in found)


def decoded(name):
    """Every record of a fixture, as Kafka's own classes read it."""
    data = json.loads((DATA / f"{name}-0.expected.json").read_text())
    batches = [batch for segment in data["segments"] for batch in segment["batches"]]
    return data, [record for batch in batches for record in batch["records"]]


def expected(name, isolation):
    data, records = decoded(name)
    wanted = set(data[f"{isolation}_offsets"])
    return [
        (name, row["offset"], None if row["value"] is None else bytes.fromhex(row["value"]))
        for row in records
        if row["offset"] in wanted
    ]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize(
    "split", [{}, {"maxRecordsPerPartition": 3}, {"maxBytesPerPartition": 200}]
)
def test_a_kafka_directory_is_read_as_kafka_reads_it(isolation, split):
    for name in ("plain", "txn"):
        parsed = options(subscribe=name, isolationLevel=isolation, **split)
        assert read(parsed) == expected(name, isolation)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("archive", ["broker-3.9.2", "broker-4.3.1"])
def test_directories_of_brokers_return_what_their_readers_returned(tmp_path, archive, isolation):
    unpack(DATA.parent / f"{archive}.tar.xz", tmp_path)
    topics = json.loads((tmp_path / "seen.json").read_text())
    for topic in topics:
        whole = eoslog.read_segments(tmp_path / "logs" / f"{topic}-0", isolation=isolation)
        wanted = [(topic, row["offset"], row["value"]) for row in whole.to_table().to_pylist()]
        for split in ({}, {"maxRecordsPerPartition": 7}, {"maxBytesPerPartition": 500}):
            parsed = options(
                path=tmp_path / "logs", subscribe=topic, isolationLevel=isolation, **split
            )
            assert read(parsed) == wanted


def test_old_message_formats_are_read(tmp_path):
    for folder in sorted((DATA.parent / "legacy").glob("*-0")):
        topic = folder.name[:-2]
        wanted = [
            (topic, row["offset"], row["value"])
            for row in eoslog.read_segments(folder).to_table().to_pylist()
        ]
        assert wanted
        for split in ({}, {"maxRecordsPerPartition": 2}):
            assert read(options(path=folder.parent, subscribe=topic, **split)) == wanted


def test_a_pattern_selects_several_kafka_topics(spark):
    reader = spark.read.format("eoslog").options(path=str(DATA), layout="kafka")
    frame = reader.option("subscribePattern", ".*").load()
    rows = sorted((row.topic, row.offset) for row in frame.select("topic", "offset").collect())
    wanted = expected("plain", "read_committed") + expected("txn", "read_committed")
    assert rows == [(topic, offset) for topic, offset, _ in wanted]


def test_a_single_partition_directory_can_be_read():
    parsed = options(path=DATA / "plain-0", subscribe="plain")
    assert read(parsed) == expected("plain", "read_committed")


def test_timestamps_select_a_range_of_a_kafka_directory():
    _, everything = decoded("plain")
    middle = everything[len(everything) // 2]["timestamp"]
    found = read(options(subscribe="plain", startingTimestamp=middle))
    first = next(row["offset"] for row in everything if row["timestamp"] >= middle)
    assert [offset for _, offset, _ in found] == [
        row["offset"] for row in everything if row["offset"] >= first
    ]


def test_snapshots_and_indexes_only_save_work(tmp_path):
    shutil.copytree(DATA / "txn-0", tmp_path / "txn-0")
    for path in (tmp_path / "txn-0").iterdir():
        if path.suffix in (".snapshot", ".index", ".timeindex", ".txnindex"):
            path.unlink()
    parsed = options(path=tmp_path, subscribe="txn")
    assert read(parsed) == expected("txn", "read_committed")


@pytest.mark.parametrize("suffix", [".txnindex", ".timeindex", ".index", ".snapshot"])
@pytest.mark.parametrize("harm", ["removed", "emptied", "zeroed"])
def test_field_A2_the_indexes_of_a_broker_do_not_change_a_result(tmp_path, log, suffix, harm):
    """Aborted transactions in sealed segments, and a look-up by time, of files alone."""
    log.create_topic("sealed", 1, {"segment.bytes": 1000, "index.interval.bytes": 100})
    with log.producer({"transactional.id": "a"}) as producer:
        producer.init_transactions()
        for n in range(12):
            producer.begin_transaction()
            for m in range(6):
                producer.produce(
                    "sealed", b"%d.%d" % (n, m) + bytes(40), timestamp=1000 + 10 * n + m
                )
            producer.flush()
            producer.abort_transaction() if n % 3 == 1 else producer.commit_transaction()
    log._engine.partition("sealed", 0).flush()
    shutil.copytree(Path(log.path) / "sealed-0", tmp_path / "sealed-0")
    whole = [record.value for record in log.read("sealed")]
    late = [record.value for record in log.read("sealed") if record.timestamp >= 1050]
    damaged = 0
    for path in (tmp_path / "sealed-0").iterdir():
        if path.suffix == suffix and path.stat().st_size:
            damaged += 1
            size = path.stat().st_size
            path.unlink()
            if harm != "removed":
                path.write_bytes(bytes(size) if harm == "zeroed" else b"")
    assert damaged > 1
    assert [value for *_, value in read(options(path=tmp_path, subscribe="sealed"))] == whole
    timed = read(options(path=tmp_path, subscribe="sealed", startingTimestamp=1050))
    assert [value for *_, value in timed] == late


def test_deleted_records_stay_deleted_in_a_kafka_directory(tmp_path):
    shutil.copytree(DATA / "plain-0", tmp_path / "plain-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nplain 0 50\n")
    found = read(options(path=tmp_path, subscribe="plain"))
    assert [offset for _, offset, _ in found][0] >= 50


def test_a_partition_whose_last_segment_is_empty_is_read_to_its_end(log):
    log.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    log.create_topic("expired", 1, {"retention.ms": "1000"})
    with log.producer() as producer:
        for n in range(40):
            producer.produce("compacted", b"v%d" % n, b"k%d" % (n % 30))
            producer.produce("expired", b"v%d" % n, timestamp=1000)
    log.clean("compacted", roll=True)
    with log.producer({"transactional.id": "open"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("compacted", b"later", b"k")
        producer.flush()
        parsed = options(path=log.path, subscribe="compacted")
        assert [row[1] for row in read(parsed)] == list(range(10, 40)), "up to the open one"
        producer.abort_transaction()
    log.clean("compacted", roll=True)
    assert [row[1] for row in read(parsed)] == list(range(10, 40))
    log.delete_records({TopicPartition("expired", 0): 40})
    log.clean("expired", roll=True)
    assert read(options(path=log.path, subscribe="expired,compacted")) == read(parsed)


def test_only_the_staging_folder_is_not_read_as_a_topic(log):
    log.create_topic("eoslog-stage-events")
    (Path(log.path) / "eoslog-staging-0").mkdir()
    with log.producer() as producer:
        producer.produce("eoslog-stage-events", b"x")
    with open_catalog(options(path=log.path, subscribe="t")) as catalog:
        assert "eoslog-stage-events" in catalog.topics()
        assert "eoslog-staging" not in catalog.topics()


def test_reading_a_kafka_directory_writes_nothing(tmp_path):
    shutil.copytree(DATA / "txn-0", tmp_path / "txn-0")
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    read(options(path=tmp_path, subscribe="txn"))
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


def test_a_directory_that_is_not_from_kafka_is_rejected(tmp_path, spark):
    (tmp_path / "things").mkdir()
    with pytest.raises(
        ConfigError, match="'path' = .* no directory in it is named TOPIC-PARTITION"
    ):
        with open_catalog(options(path=tmp_path, subscribe="t")):
            pass
    reader = spark.read.format("eoslog").options(path=str(DATA), layout="kafka")
    with pytest.raises(Exception) as caught:
        reader.option("subscribe", "nowhere").load()
    assert "'subscribe' = 'nowhere'" in message_of(caught)
