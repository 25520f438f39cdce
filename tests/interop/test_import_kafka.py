"""A broker's directory continues as an eoslog directory.

It keeps offsets, producers, transactions and groups. `world-3.9.2.tar.xz` holds the log
directory of one Kafka 3.9.2 broker twice: as kill -9 left it (`killed`) and after its next
start and a clean stop (`clean`). In it `etl-2` has an open transaction over `orders-2`,
`payments-0` and the offsets of group `g-txn`, followed by plain records. `broker-*.tar.xz`: see
`tests/data/kafka/README.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core, errors
from eoslog.admin.inspect import inspect
from eoslog.client.scan.segment_scan import read_segments
from eoslog.model import TopicPartition
from eoslog.storage.format import checkpoints
from eoslog.storage.segment.segment_files import list_segments
from tests.captures import extract, unpack
from tests.paths import KAFKA_DATA as KAFKA
from tests.reference import codec

pytest.importorskip("pyarrow")

TS = 1_700_000_000_000
TOPICS = ["compact", "orders", "payments", "stamped"]  # its fifth has 40 partitions more
ISOLATIONS = ("read_committed", "read_uncommitted")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = extract("world-3.9.2.tar.xz", tmp_path_factory.mktemp("worlds"), without="/cut-")
    yield place / "world"
    shutil.rmtree(place)


def digest(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def rows(scan: Any) -> list[Any]:
    names = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
    return [tuple(row[name] for name in names) for row in scan.to_table().to_pylist()]


@pytest.fixture(params=["clean", "killed"], scope="module")
def imported(request: pytest.FixtureRequest, worlds: Path) -> Iterator[Any]:
    """(source, imported directory, report); the source's bytes are as they were."""
    source = worlds / request.param
    target = worlds / f"{request.param}.imported"
    before = digest(source)
    yield source, target, eoslog.import_kafka_dir(source, target, topics=TOPICS)
    assert digest(source) == before
    shutil.rmtree(target)


@pytest.fixture
def adopted(imported: Any, tmp_path: Path) -> Iterator[Any]:
    """(source, log on a copy of the imported directory with the same links, report)."""
    source, target, report = imported

    def copy(path: str, to: str) -> None:
        os.link(path, to) if os.stat(path).st_nlink > 1 else shutil.copy(path, to)

    shutil.copytree(target, tmp_path / "log", copy_function=copy)
    with eoslog.open(tmp_path / "log") as log:
        yield source, log, report


@pytest.mark.slow
def test_an_import_contains_every_record_that_kafka_had(adopted: Any) -> None:
    source, log, report = adopted
    assert log.topics() == TOPICS
    assert report.partitions == 24
    assert report.bytes_linked > 5 * report.bytes_copied
    for topic in log.topics():
        for partition in range(len(log.describe_topic(topic).partitions)):
            for isolation in ISOLATIONS:
                wanted = rows(read_segments(source / f"{topic}-{partition}", isolation=isolation))
                found = rows(log.scan(topic, partitions=[partition], isolation=isolation))
                assert found == wanted, (topic, partition, isolation)
    payments = log.offsets("payments", 0)
    assert (payments.last_stable, payments.log_end) == (5, 10)
    assert log.check(full=True).ok


@pytest.mark.slow
def test_topic_ids_and_configurations_are_those_of_the_broker(adopted: Any) -> None:
    source, log, _ = adopted
    for topic in log.topics():
        described = log.describe_topic(topic)
        assert described.topic_id == checkpoints.read_partition_metadata(str(source / f"{topic}-0"))
    assert log.describe_topic("compact").config["cleanup.policy"] == "compact"
    assert log.describe_topic("stamped").config["message.timestamp.type"] == "LogAppendTime"
    properties = checkpoints.read_meta_properties(log.path)
    assert properties is not None
    assert properties.cluster_id == "4L6g3nShT-eMCtK--X86sw"
    assert (properties.transaction_partitions, properties.offsets_partitions) == (3, 3)


def test_writing_continues_at_the_next_offset_in_the_next_leader_epoch(adopted: Any) -> None:
    source, log, _ = adopted
    end = log.offsets("orders", 0).log_end
    before = inspect(source / "orders-0")["leader_epochs"][-1][0]
    with log.producer() as producer:
        sent = producer.send("orders", b"new", partition=0).result(60)
        assert producer.producer_id >= 1000  # the broker's blocks are taken
    assert sent.offset == end
    batches = inspect(Path(log.path) / "orders-0")["segments"][-1]["batches"]
    assert batches[-1]["leader_epoch"] == before + 1
    epochs = checkpoints.read_leader_epochs(
        os.path.join(log.path, "orders-0", "leader-epoch-checkpoint")
    )
    assert epochs[-1] == (before + 1, end)


def test_a_batch_that_a_broker_stored_is_a_duplicate_after_an_import(adopted: Any) -> None:
    source, log, _ = adopted
    batches = [b for s in inspect(source / "stamped-0")["segments"] for b in s["batches"]]
    last = [b for b in batches if b["producer_id"] >= 0 and not b["transactional"]][-1]
    again = _core.build_batch(
        [(TS, b"k", b"v", ())] * last["count"], producer_id=last["producer_id"],
        producer_epoch=last["producer_epoch"], base_sequence=last["base_sequence"],
    )  # fmt: skip
    partition = log._engine.partition("stamped", 0)
    end = partition.log_end
    done = partition.append(again)
    assert (done.duplicate, done.base_offset) == (True, last["base_offset"])
    assert partition.log_end == end
    following = _core.build_batch(
        [(TS, b"k", b"v", ())], producer_id=last["producer_id"],
        producer_epoch=last["producer_epoch"], base_sequence=last["last_sequence"] + 1,
    )  # fmt: skip
    assert partition.append(following).base_offset == end


def test_an_open_transaction_is_aborted_by_the_next_owner_of_its_id(adopted: Any) -> None:
    _, log, _ = adopted
    (open_one,) = log.transactions()
    assert (open_one.transactional_id, open_one.state) == ("etl-2", "Ongoing")
    with log.producer(transactional_id="etl-2") as producer:
        producer.init_transactions()
        assert producer.producer_id == open_one.producer_id
        assert producer.producer_epoch > open_one.producer_epoch
        assert log.transactions() == []
        offsets = log.offsets("payments", 0)
        assert offsets.last_stable == offsets.high_watermark >= 10
        values = [row[4] for row in rows(log.scan("payments"))]
        assert values[-2:] == [b"behind-open-0-" + b"y" * 10, b"behind-open-1-" + b"y" * 10]
        assert not any(value.startswith(b"open") for value in values)
        group = log.describe_group("g-txn")
        assert group.offsets[TopicPartition("orders", 0)].offset == 6
        producer.begin_transaction()
        producer.produce("payments", b"after", partition=0)
        producer.commit_transaction()
    assert [row[4] for row in rows(log.scan("payments"))][-1] == b"after"


def test_an_operator_can_abort_an_imported_open_transaction(adopted: Any) -> None:
    _, log, _ = adopted
    log.abort_transaction("etl-2")
    for topic, partition in (("payments", 0), ("orders", 2)):
        offsets = log.offsets(topic, partition)
        assert offsets.last_stable == offsets.high_watermark


@pytest.mark.slow
def test_groups_resume_at_their_committed_offsets_after_an_import(adopted: Any) -> None:
    _, log, _ = adopted
    assert sorted(log.groups()) == ["g-plain", "g-txn"]
    committed = log.describe_group("g-plain").offsets
    assert {tp: o.offset for tp, o in committed.items()} == {
        TopicPartition("orders", 0): 4, TopicPartition("orders", 1): 1,
    }  # fmt: skip
    log.abort_transaction("etl-2")
    with log.consumer("orders", group_id="g-plain", auto_offset_reset="earliest") as consumer:
        seen: dict[int, int] = {}
        for _ in range(100):
            record = consumer.poll(0.2)
            if record is None and seen:
                break
            if record is not None:
                seen.setdefault(record.partition, record.offset)
        assert (seen[0], seen[1]) == (4, 1)
        consumer.commit()
    with log.consumer("orders", group_id="g-txn", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(60).offset in (0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_an_import_shows_what_clients_read_from_the_broker(version: str, tmp_path: Path) -> None:
    place = extract(f"broker-{version}.tar.xz", tmp_path / "captured")
    seen = json.loads((place / "seen.json").read_text())
    report = eoslog.import_kafka_dir(place / "logs", tmp_path / "log")
    assert report.bytes_cut == 0
    with eoslog.open(tmp_path / "log") as log:
        assert set(seen) <= set(log.topics())
        for topic, expected in seen.items():
            for isolation in ISOLATIONS:
                found = [
                    (row["partition"], row["offset"], row["key"], row["value"])
                    for row in log.scan(topic, isolation=isolation).to_table().to_pylist()
                ]
                wanted = sorted(
                    (
                        row[0], row[1],
                        None if row[4] is None else bytes.fromhex(row[4]),
                        None if row[5] is None else bytes.fromhex(row[5]),
                    )
                    for row in expected["rows"][isolation]
                )  # fmt: skip
                assert sorted(found, key=lambda row: row[:2]) == wanted, (topic, isolation)


# --- other sources, and what is refused ---------------------------------------------------------


def plain_broker(root: Path, version: int = 0) -> Path:
    """A broker of old: no KRaft, so nothing but directories says what it has."""
    root.mkdir()
    identity = "broker.id=3" if version == 0 else "node.id=3"
    (root / "meta.properties").write_text(f"version={version}\ncluster.id=abc\n{identity}\n")
    shutil.copytree(KAFKA / "legacy" / "legacy-0", root / "legacy-0")
    shutil.copytree(KAFKA / "segments" / "plain-0", root / "plain-0")
    return root


def test_messages_of_old_formats_are_rewritten_and_can_be_appended_to(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    wanted = rows(read_segments(root / "legacy-0"))
    eoslog.import_kafka_dir(root, tmp_path / "log")
    with eoslog.open(tmp_path / "log") as log:
        assert rows(log.scan("legacy")) == wanted
        with log.producer() as producer:
            assert producer.send("legacy", b"new", partition=0).result(60).offset == 108
        assert len(rows(log.scan("legacy"))) == len(wanted) + 1
        assert log.check(full=True).ok
    magics = {
        b["magic"] for s in inspect(tmp_path / "log" / "legacy-0")["segments"] for b in s["batches"]
    }
    assert magics == {2}


def test_an_import_can_be_limited_to_some_topics(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker", version=1)
    report = eoslog.import_kafka_dir(root, tmp_path / "log", topics=["plain"], copy=True)
    assert (report.topics, report.bytes_linked) == (("plain",), 0)
    with eoslog.open(tmp_path / "log") as log:
        assert log.topics() == ["plain"]
    with pytest.raises(errors.ConfigError, match="no topic 'nothing'"):
        eoslog.import_kafka_dir(root, tmp_path / "other", topics=["nothing"])
    assert not (tmp_path / "other").exists()


def test_an_import_reports_zeros_below_the_recovery_point(tmp_path: Path) -> None:
    """A broker with `log.preallocate` drops them at its next start."""
    root = plain_broker(tmp_path / "broker")
    *_, segment = list_segments(root / "plain-0")
    *_, before, last = segment.batches()
    left, end, position = before.last_offset + 1, last.last_offset + 1, last.position
    with open(segment.path, "r+b") as file:
        file.seek(position)
        file.write(bytes(segment.size - position))
    for point, lost in ((left, False), (end, True)):
        checkpoint = root / "recovery-point-offset-checkpoint"
        checkpoint.write_text(f"0\n1\nplain 0 {point}\n")
        report = eoslog.import_kafka_dir(root, tmp_path / str(point), topics=["plain"])
        found = [(p.path, p.message) for p in report.problems if "flushed" in p.message]
        text = f"the log ends at offset {left}, but it was flushed up to offset {end}: a file is "
        assert found == [(str(root / "plain-0"), f"{text}missing or truncated")] * lost


def test_check_names_the_file_of_a_topic_id_that_disagrees(worlds: Path, tmp_path: Path) -> None:
    root = tmp_path / "broker"
    shutil.copytree(worlds / "clean", root)
    checkpoints.write_partition_metadata(str(root / "orders-1"), bytes(range(16)))
    with pytest.raises(
        errors.CorruptRecord,
        match="'orders': a partition has another topic id.*orders-1/partition.meta",
    ):
        eoslog.import_kafka_dir(root, tmp_path / "log")
    assert not (tmp_path / "log").exists()
    assert len(rows(read_segments(root / "orders-1"))) == 2  # the rest is readable all the same
    report = eoslog.import_kafka_dir(root, tmp_path / "log", topics=["payments"])
    assert report.topics == ("payments",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "key", "value", "words"),
    [
        ("__transaction_state", b"\0\0\0\4newx", b"\0\2" + bytes(40), "newx.*'0 or 1', found 2"),
        ("__consumer_offsets", b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\5" + bytes(40), "'0 to 4', found 5"),
        ("__consumer_offsets", b"\0\3\0\1g", b"\0\1\0\0\0\1", "expected 0, found 1"),
    ],
)
def test_a_record_of_a_newer_version_is_named_with_its_place(
    topic: str, key: bytes, value: bytes, words: str, tmp_path: Path
) -> None:
    unpack(KAFKA / "broker-4.3.1.tar.xz", tmp_path)
    root = tmp_path / "logs"
    log = sorted((root / f"{topic}-0").glob("*.log"))[-1]
    size, end = log.stat().st_size, inspect(root / f"{topic}-0", records=False)["log_end_offset"]
    data = codec.encode_batch([(TS, key, value, ())])
    with log.open("ab") as file:
        file.write(end.to_bytes(8, "big") + data[8:])
    with pytest.raises(errors.CorruptRecord, match=words) as caught:
        eoslog.import_kafka_dir(root, tmp_path / "log")
    assert (caught.value.path, caught.value.position) == (str(log), size)
    assert not (tmp_path / "log").exists()
    assert eoslog.check(root, full=True).problems == []  # the batches are as they should be


def test_a_missing_partition_is_named(worlds: Path, tmp_path: Path) -> None:
    root = tmp_path / "broker"
    shutil.copytree(worlds / "clean", root)
    shutil.rmtree(root / "orders-1")
    with pytest.raises(errors.ConfigError, match=r"partition 1 of orders \(3 partitions\)"):
        eoslog.import_kafka_dir(root, tmp_path / "log", topics=["payments", "orders"])
    eoslog.import_kafka_dir(root, tmp_path / "log", topics=["payments"])


def test_import_rejects_unsuitable_targets_and_sources(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    with eoslog.open(tmp_path / "ours") as log:
        log.create_topic("t")
    with pytest.raises(errors.ConfigError, match="is not empty"):
        eoslog.import_kafka_dir(root, tmp_path / "ours")
    with pytest.raises(errors.ConfigError, match="not a Kafka broker's log directory"):
        eoslog.import_kafka_dir(tmp_path / "ours", tmp_path / "log")


@pytest.mark.parametrize("place", ["broker/log", "broker/plain-0/log", "link"])
def test_a_target_inside_the_source_of_an_import_is_rejected(place: str, tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    (tmp_path / "link").symlink_to(root / "log")
    before = digest(root)
    with pytest.raises(errors.ConfigError, match="is inside the broker's directory"):
        eoslog.import_kafka_dir(root, tmp_path / place)
    assert digest(root) == before


def test_an_import_into_a_link_creates_the_log_where_it_points(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert eoslog.import_kafka_dir(root, tmp_path / "link").path == str(tmp_path / "disk")
    with eoslog.open(tmp_path / "link") as log:
        assert log.topics() == ["legacy", "plain"]


def test_a_source_of_an_import_that_is_listed_twice_is_named(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    (tmp_path / "link").symlink_to(root)
    for again in (root, tmp_path / "link"):
        with pytest.raises(errors.ConfigError, match=f"{again} is listed twice"):
            eoslog.import_kafka_dir([root, again], tmp_path / "log")


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["clean", "killed"])
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_an_import_reports_a_segment_without_its_records(
    worlds: Path, tmp_path: Path, kind: str, how: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(worlds / kind, source)
    _, second, third, *_ = sorted((source / "stamped-1").glob("*.log"))
    second.unlink() if how == "missing" else os.truncate(second, 0)
    report = eoslog.import_kafka_dir(source, tmp_path / "log", topics=["stamped"])
    (problem,) = report.problems
    assert problem.path == str(third)
    assert "compaction did not remove them" in problem.message


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_an_import_names_a_link_to_a_missing_file(tmp_path: Path, suffix: str) -> None:
    root = plain_broker(tmp_path / "broker")
    link = root / "plain-0" / f"{0:020}{suffix}"
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.StorageError) as raised:
        eoslog.import_kafka_dir(root, tmp_path / "log")
    assert raised.value.filename == str(link)
    assert os.listdir(tmp_path) == ["broker"]


def test_a_running_broker_is_rejected_by_default(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    lock = root / ".lock"
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()
        with pytest.raises(errors.LockTimeout, match=r"\.lock is held"):
            eoslog.import_kafka_dir(root, tmp_path / "log")
        report = eoslog.import_kafka_dir(root, tmp_path / "log", read_only_anyway=True)
        assert report.bytes_linked == 0
        broker.communicate()


@pytest.mark.slow
def test_a_killed_import_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    root = plain_broker(tmp_path / "broker")
    before = digest(root)
    script = f"import eoslog; eoslog.import_kafka_dir({str(root)!r}, {str(tmp_path / 'log')!r})"
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "aside.renaming=kill"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "log").exists()
    eoslog.import_kafka_dir(root, tmp_path / "log")
    assert not (tmp_path / "log.importing").exists()
    with eoslog.open(tmp_path / "log") as log:
        assert log.topics() == ["legacy", "plain"]
    assert digest(root) == before


def test_damage_in_a_linked_segment_is_truncated_only_in_the_new_directory(tmp_path: Path) -> None:
    """The broker's own bytes stay, whatever repairs the new directory later."""
    root = plain_broker(tmp_path / "broker")
    eoslog.import_kafka_dir(root, tmp_path / "log")
    linked = tmp_path / "log" / "plain-0" / f"{0:020}.log"
    assert linked.stat().st_nlink == 2
    before = digest(root)
    data = codec.encode_batch([(TS, b"k", b"v", ())])
    assert data not in linked.read_bytes()
    size = linked.stat().st_size
    for repair in ("cut", "as-kafka"):
        place = tmp_path / repair
        shutil.copytree(tmp_path / "log", place, copy_function=os.link)
        for name in ("recovery-point-offset-checkpoint", "eoslog.offsets"):
            (place / name).unlink()
        damaged = root / "plain-0" / linked.name  # one inode: damage shows on both sides
        whole = damaged.read_bytes()
        with damaged.open("r+b") as file:
            file.seek(size - 20)
            file.write(b"\xff\xff\xff")
        changed = digest(root)
        report = eoslog.repair(place, mode=repair)
        assert report.bytes_cut > 0
        assert digest(root) == changed
        with damaged.open("r+b") as file:
            file.write(whole)
    assert digest(root) == before


@pytest.mark.parametrize(("state", "commit"), [(2, True), (3, False)])
def test_a_decision_that_a_broker_left_incomplete_is_completed(
    state: int, commit: bool, worlds: Path, tmp_path: Path
) -> None:
    """The broker was killed between its decision and its markers.

    The decision holds in eoslog as in Kafka.
    """
    root = tmp_path / "broker"
    shutil.copytree(worlds / "clean", root)
    (found,) = (
        (path, record)
        for path in root.glob("__transaction_state-*")
        for segment in inspect(path, decoder="transactions")["segments"]
        for batch in segment["batches"]
        for record in batch["records"]
        if record["decoded"]["transactional_id"] == "etl-2"
        and record["decoded"].get("last_update_timestamp")
        == max(
            other["decoded"]["last_update_timestamp"]
            for s in inspect(path, decoder="transactions")["segments"]
            for b in s["batches"]
            for other in b["records"]
            if other["decoded"]["transactional_id"] == "etl-2"
        )
    )
    path, record = found
    assert record["decoded"]["state"] == "Ongoing"
    value = bytearray.fromhex(record["value"])
    value[16] = state  # after version, producer id, epoch and timeout
    end = inspect(path)["log_end_offset"]
    decided = _core.build_batch([(TS, bytes.fromhex(record["key"]), bytes(value), ())])
    log_file = sorted(path.glob("*.log"))[-1]
    with log_file.open("ab") as file:
        file.write(end.to_bytes(8, "big") + decided[8:])
    eoslog.import_kafka_dir(root, tmp_path / "log", topics=["orders", "payments"])
    with eoslog.open(tmp_path / "log") as log:
        with log.producer(transactional_id="etl-2") as producer:
            producer.init_transactions()
        values = [row[4] for row in rows(log.scan("payments"))]
        opened = [value for value in values if value.startswith(b"open")]
        assert len(opened) == (3 if commit else 0)
        assert len(rows(log.scan("orders", partitions=[2]))) == (2 if commit else 0)
        offset = log.describe_group("g-txn").offsets[TopicPartition("orders", 0)].offset
        assert offset == (8 if commit else 6)


def test_cleaning_the_new_directory_keeps_the_bytes_of_the_broker(
    imported: Any, adopted: Any
) -> None:
    source, _, _ = imported
    _, log, _ = adopted
    before = digest(source)
    log.abort_transaction("etl-2")
    log.clean()
    log.delete_topic("stamped")
    assert digest(source) == before
