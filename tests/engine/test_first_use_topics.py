"""Internal topics created at first use are hidden, protected, and kept."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog import errors
from eoslog._core import build_batch
from eoslog.model import POSITIONS_TOPIC, STAGED_TRANSACTIONS_TOPIC
from eoslog.storage.format import checkpoints

NAMES = [STAGED_TRANSACTIONS_TOPIC, POSITIONS_TOPIC]
CREATE = """
import sys
import eoslog

with eoslog.open(sys.argv[1]) as log:
    sys.stdin.readline()
    topic = log._engine.internal_topic(sys.argv[2])
    print(topic.topic_id.hex(), topic.slot, flush=True)
"""


def append(log: eoslog.Log, name: str, *values: bytes) -> None:
    topic = log._engine.internal_topic(name)
    topic.append(build_batch([(0, b"key", value, ()) for value in values]))
    topic.flush()


def values(log: eoslog.Log, name: str) -> list[bytes]:
    topic = log._engine.existing_internal_topic(name)
    assert topic is not None
    batches = topic.batches(topic.log_start, topic.log_end)
    return [record[3] for batch in batches for record in batch.records()]


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_created_at_first_use_is_hidden_and_protected(path: str, name: str) -> None:
    with eoslog.open(path) as log:
        assert log._engine.existing_internal_topic(name) is None
        log.create_topic("t")
        append(log, name, b"one")
        assert log.topics() == ["t"]
        assert list(log.snapshot()) == [eoslog.TopicPartition("t")]
        with pytest.raises(errors.UnknownTopicOrPartition):
            log.match_topics("__.*")
        with log.consumer(group_id="g") as consumer:
            consumer.subscribe("^.*")
            consumer.poll(0)
            assert {tp.topic for tp in consumer.assignment()} <= {"t"}
        for call in (
            lambda: log.create_topic(name),
            lambda: log.delete_topic(name),
            lambda: log.alter_topic(name, {"cleanup.policy": "delete"}),
            lambda: log.create_partitions(name, 2),
            lambda: log.producer().produce(name, b"x"),
        ):
            with pytest.raises(errors.InvalidTopic, match="internal"):
                call()
        with pytest.raises(errors.PolicyViolation):
            log.delete_records({eoslog.TopicPartition(name): -1})
    with eoslog.open(path) as log:
        assert values(log, name) == [b"one"]
        assert log.describe_topic(name).config["cleanup.policy"] == "compact"


def test_a_staged_record_may_have_64_mib(path: str) -> None:
    with eoslog.open(path, durability="os") as log:
        append(log, STAGED_TRANSACTIONS_TOPIC, bytes(64 << 20))
        append(log, STAGED_TRANSACTIONS_TOPIC, b"next")
        assert list(map(len, values(log, STAGED_TRANSACTIONS_TOPIC))) == [64 << 20, 4]


def test_processes_that_create_a_topic_at_the_same_time_get_the_same_one(path: str) -> None:
    eoslog.open(path).close()
    command = [sys.executable, "-c", CREATE, path, POSITIONS_TOPIC]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(set(told)) == 1 and told[0]
    with eoslog.open(path) as log:
        assert log._engine.metadata._next_slot == 102  # 101 of the other internal topics, and one


def test_a_creation_that_was_killed_is_completed_at_the_next_use(path: str) -> None:
    eoslog.open(path).close()
    done = subprocess.run(
        [sys.executable, "-c", CREATE, path, POSITIONS_TOPIC],
        input="\n", text=True, env={"EOSLOG_FAILPOINTS": "topic.first_use=kill"}, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    with eoslog.open(path, read_only=True) as reader:
        assert reader._engine.existing_internal_topic(POSITIONS_TOPIC) is None
        assert reader.check().ok and not reader.stats()["offline"]
    with eoslog.open(path) as log:
        assert log.check().ok and not log.stats()["offline"]
        append(log, POSITIONS_TOPIC, b"one")
        assert values(log, POSITIONS_TOPIC) == [b"one"]


def test_a_read_only_log_reads_a_topic_and_creates_none(path: str) -> None:
    with eoslog.open(path) as log:
        append(log, POSITIONS_TOPIC, b"one")
    with eoslog.open(path, read_only=True) as reader:
        assert values(reader, POSITIONS_TOPIC) == [b"one"]
        assert reader._engine.internal_topic(POSITIONS_TOPIC).log_end == 1
        assert reader._engine.existing_internal_topic(STAGED_TRANSACTIONS_TOPIC) is None
        with pytest.raises(errors.IllegalState, match="read_only=True"):
            reader._engine.internal_topic(STAGED_TRANSACTIONS_TOPIC)


def test_an_ordinary_topic_keeps_an_internal_name_until_its_deletion(path: str) -> None:
    """An adopted directory may have one."""
    with eoslog.open(path) as log:
        log._engine.metadata.adopt_topic(POSITIONS_TOPIC, bytes(range(16)), {0: 0})
        log._engine.partition(POSITIONS_TOPIC, 0)
        assert log.topics() == [POSITIONS_TOPIC]
        assert log._engine.existing_internal_topic(POSITIONS_TOPIC) is None
        with pytest.raises(errors.InvalidTopic, match=r"ordinary topic.*log.delete_topic"):
            log._engine.internal_topic(POSITIONS_TOPIC)
        log.delete_topic(POSITIONS_TOPIC)
        append(log, POSITIONS_TOPIC, b"one")
        assert log.topics() == []
    with eoslog.open(path) as log:
        assert values(log, POSITIONS_TOPIC) == [b"one"]


def test_backup_check_and_clean_cover_the_topics(path: str, tmp_path: Path) -> None:
    with eoslog.open(path) as log:
        for name in NAMES:
            append(log, name, b"old", b"new")
        report = log.backup(tmp_path / "copy")
        assert not report.problems and report.partitions == 3  # with the metadata log
        freed = log.clean(roll=True)
        assert {tp.topic for tp, size in freed.items() if size} == set(NAMES)
        assert [values(log, name) for name in NAMES] == [[b"new"], [b"new"]]
    with eoslog.open(tmp_path / "copy", read_only=True) as copy:
        assert [values(copy, name) for name in NAMES] == [[b"old", b"new"]] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_directory_is_reported_and_not_replaced(path: str, name: str) -> None:
    with eoslog.open(path) as log:
        append(log, name, b"one")
    shutil.rmtree(Path(path) / f"{name}-0")
    with eoslog.open(path) as log:
        assert [problem.path for problem in log.check().problems] == [str(Path(path) / f"{name}-0")]
        assert list(log.stats()["offline"]) == [f"{name}-0"]
        with pytest.raises(errors.StorageError, match="directory is missing"):
            log._engine.internal_topic(name)
    assert not eoslog.repair(path).ok


@pytest.mark.parametrize("name", NAMES)
def test_a_skip_does_not_change_the_topics_and_a_cut_does(path: str, name: str) -> None:
    with eoslog.open(path) as log:
        append(log, name, b"one")
        append(log, name, b"two")
    segment = Path(path) / f"{name}-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    (refused,) = eoslog.repair(path, "skip").refused
    assert refused.path == str(segment) and "is internal" in refused.message
    assert eoslog.repair(path, "cut").bytes_cut
    with eoslog.open(path) as log:
        assert values(log, name) == [b"one"]


@pytest.mark.parametrize("own", [True, False])
def test_adoption_keeps_the_topics_of_eoslog_and_leaves_out_a_users(
    path: str, tmp_path: Path, own: bool
) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t")
        if own:
            append(log, POSITIONS_TOPIC, b"one")
        else:
            log._engine.metadata.adopt_topic(POSITIONS_TOPIC, bytes(range(16)), {0: 0})
            log._engine.partition(POSITIONS_TOPIC, 0)
        cluster = log.cluster_id
    # As a broker that uses the files has it.
    properties = f"version=1\ncluster.id={cluster}\nnode.id=1\n"
    (Path(path) / checkpoints.META_PROPERTIES).write_text(properties)
    report = eoslog.import_kafka_dir(path, tmp_path / "adopted")
    assert report.topics == ("t",)
    left_out = [problem.message for problem in report.problems if problem.path == POSITIONS_TOPIC]
    with eoslog.open(tmp_path / "adopted") as log:
        assert log.topics() == ["t"]
        if own:
            assert values(log, POSITIONS_TOPIC) == [b"one"] and not left_out
        else:
            assert len(left_out) == 1 and "internal topic of this name" in left_out[0]
            append(log, POSITIONS_TOPIC, b"new")
        assert log.check(full=True).ok
