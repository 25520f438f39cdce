"""Topics are created, deleted and re-created; killed deletions are completed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from eoslog import _core
from eoslog._core import build_batch
from eoslog.engine.checkpointer import LogStarts
from eoslog.errors import ConfigError, TooManyOpenFiles, TopicAlreadyExists, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from eoslog.opening import open as open_log
from eoslog.storage.fs import files
from eoslog.storage.metadata.records import TopicRecord
from tests.storage.helpers import batch

pytestmark = pytest.mark.usefixtures("disarmed")


def test_duplicate_and_unknown_topics_raise_typed_errors(path):
    with open_log(path) as log:
        log.create_topic("t")
        with pytest.raises(TopicAlreadyExists):
            log.create_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            log.offsets("nope", 0)
        with pytest.raises(UnknownTopicOrPartition):
            log.offsets("t", 1)


def test_create_topic_with_exist_ok_leaves_an_existing_topic_unchanged(path):
    with open_log(path) as log:
        made = log.create_topic("t", 3, {"retention.ms": 1000}, exist_ok=True)
        assert log.create_topic("t", 5, exist_ok=True) == made
        assert len(made.partitions) == 3
        with pytest.raises(ConfigError):
            log.create_topic("t", config={"nonsense": 1}, exist_ok=True)
        log.delete_topic("t")
        assert len(log.create_topic("t", 5, exist_ok=True).partitions) == 5


def test_match_topics_matches_complete_names(path):
    with open_log(path) as log:
        for name in ("orders", "orders-old", "visits"):
            log.create_topic(name)
        assert log.match_topics("orders.*") == ["orders", "orders-old"]
        assert log.match_topics("orders") == ["orders"]
        with pytest.raises(UnknownTopicOrPartition, match=r"no topic matches 'order'"):
            log.match_topics("order")
        with pytest.raises(UnknownTopicOrPartition):
            log.match_topics("__.*")  # internal topics do not match
        with pytest.raises(
            ConfigError, match=r"match_topics: '\(' is not a valid regular expression"
        ):
            log.match_topics("(")


def test_a_reader_sees_only_durable_topics_and_flushes_nothing(path):
    """A process was suspended between the append of a topic and its flush."""
    with open_log(path) as log:
        log.create_topic("there", 1)
        record = TopicRecord("coming", bytes(range(16)))
        metadata = log._engine.partitions.known("__cluster_metadata", 0)
        log._engine._background.close()  # it may still have to flush the topic "there"
        metadata.append(build_batch([(0, None, record.encode(), ())]))
        with open_log(path, read_only=True) as reader:
            assert reader.topics() == ["there"]
            assert metadata.durable_end < metadata.log_end
            log._engine.metadata.refresh()
            assert reader.topics() == ["coming", "there"]


def test_a_deleted_topic_is_unknown_to_open_handles_and_can_be_recreated(path):
    with open_log(path) as log:
        log.create_topic("t")
        handle = log._engine.partition("t", 0)
        handle.append(batch(2))
        log.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            handle.append(batch(1))
        log.create_topic("t")
        assert log.offsets("t", 0).log_end == 0
        assert log._engine.partition("t", 0).append(batch(1)).base_offset == 0


CREATE_ANEW = """
import sys
import eoslog

with eoslog.open(sys.argv[1]) as log:
    log.delete_topic("t")
    log.create_topic("t")
    with log.producer() as producer:
        for i in range(5):
            producer.produce("t", b"new%d" % i)
"""


@pytest.mark.parametrize("leaves", ["close", "checkpoint"])
def test_a_topic_that_another_process_recreated_is_not_mistaken_for_the_old(path, leaves):
    """State of a deleted topic says nothing about the topic with its name."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        partition.append(batch(20))
        partition.flush()
        subprocess.run([sys.executable, "-c", CREATE_ANEW, path], check=True)
        if leaves == "checkpoint":
            log._engine._checkpointer.checkpoint()
            LogStarts(log._engine.session).note(partition, partition.log_start)
            partition.flush()
        with pytest.raises(UnknownTopicOrPartition):
            partition.append(batch(1))
    with open_log(path) as log:
        assert log.offsets("t", 0) == (0, 5, 5, 5)


def test_an_error_for_lack_of_descriptors_says_what_exists_now(path):
    with open_log(path) as log:
        seen = set()
        for nth in range(1, 100):
            name, failed = f"t{nth}", None
            files.arm_failpoint("open", "EMFILE", nth)
            try:
                log.create_topic(name, 2)
                log.create_partitions(name, 4)
            except TooManyOpenFiles as error:
                failed = str(error)
            files.disarm_failpoints()
            have = len(log.describe_topic(name).partitions) if name in log.topics() else 0
            if failed is None:
                assert have == 4
                break
            assert "; close files, or raise the limit (`ulimit -n`), then " in failed
            assert ("was not created" in failed) == (have == 0)
            assert ("was created, but" in failed or "it has 2 of 4" in failed) == (have == 2)
            assert ("it has 4 partitions now, but" in failed) == (have == 4)
            seen.add(have)
        assert seen == {0, 2, 4}


def test_an_existing_topic_that_cannot_be_opened_is_not_called_new(path):
    with open_log(path) as log:
        log.create_topic("t", 2)
    for nth in range(1, 100):
        with open_log(path) as log:
            log.topics()
            files.arm_failpoint("open", "EMFILE", nth)
            try:
                log.create_topic("t", 2, exist_ok=True)
            except TooManyOpenFiles as error:
                assert "created" not in str(error)
                assert "delete" not in str(error)
            else:
                break
            finally:
                files.disarm_failpoints()
    assert nth > 1


@pytest.mark.parametrize("point", ["topic.deleted", "topic.forgotten"])
def test_a_deletion_that_failed_is_completed_by_the_next_call(path, point):
    with open_log(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", b"v")
        files.arm_failpoint(point, "EMFILE")
        with pytest.raises(TooManyOpenFiles):
            log.delete_topic("t")
        log.delete_topic("t")
        assert not os.path.exists(os.path.join(path, "t-0"))
        with pytest.raises(UnknownTopicOrPartition):
            log.delete_topic("t")


def test_a_deletion_opens_no_more_files_for_earlier_topics_of_the_name(path):
    with open_log(path) as log:
        opened = []
        for _ in range(6):
            log.create_topic("t", 2)
            _core.fault_count("open", reset=True)
            log.delete_topic("t")
            opened.append(_core.fault_count("open"))
    assert opened[-1] == opened[1]


def test_a_deletion_that_was_killed_is_completed_at_the_next_open(path):
    script = (
        "import sys; from eoslog.opening import open as o; from eoslog.storage.fs import files\n"
        "log = o(sys.argv[1]); log.create_topic('t'); log._engine.partition('t', 0)\n"
        "files.arm_failpoint('topic.deleted', 'kill'); log.delete_topic('t')"
    )
    assert (
        subprocess.run([sys.executable, "-c", script, path], check=False).returncode
        == -signal.SIGKILL
    )
    with open_log(path) as log:
        assert log.topics() == []
        assert not [n for n in os.listdir(path) if n.startswith("t-0")]


@pytest.mark.process
@pytest.mark.parametrize("point", ["topic.deleted", "topic.forgotten"])
@pytest.mark.parametrize("used", ["used", "never used"])
def test_a_killed_deletion_is_completed_with_the_offsets_of_groups(path, point, used):
    script = (
        "import sys; from eoslog.opening import open as o; from eoslog.storage.fs import files\n"
        "from eoslog.model import OffsetAndMetadata as O, TopicPartition as T\n"
        "log = o(sys.argv[1]); make = log._engine.topics.create\n"
        "make('t', 1, {}); make('kept', 1, {})\n"
        "for name in ('t', 'kept'):\n"
        "    if sys.argv[3] == 'used': log._engine.partition(name, 0)\n"
        "    log._engine.groups.commit_offsets('g', '', -1, {T(name, 0): O(5)})\n"
        "files.arm_failpoint(sys.argv[2], 'kill'); log.delete_topic('t')"
    )
    done = subprocess.run([sys.executable, "-c", script, path, point, used], check=False)
    assert done.returncode == -signal.SIGKILL
    with open_log(path) as log:
        assert not [n for n in os.listdir(path) if n.startswith("t-0")]
        log.create_topic("t")
        found = log._engine.groups.fetch_offsets(
            "g", [TopicPartition("t", 0), TopicPartition("kept", 0)]
        )
    assert {tp: o.offset for tp, o in found.items()} == {TopicPartition("kept", 0): 5}


def test_a_partition_whose_directory_is_a_link_is_deleted_with_the_link(path, tmp_path):
    with open_log(path) as log:
        log.create_topic("t")
    (tmp_path / "log" / "t-0").rename(tmp_path / "disk")
    (tmp_path / "log" / "t-0").symlink_to(tmp_path / "disk")
    with open_log(path) as log:
        with log.producer() as producer:
            producer.produce("t", b"old")
        log.delete_topic("t")
        assert list((tmp_path / "disk").iterdir()) == []
        assert [name for name in os.listdir(path) if name.startswith("t-")] == []
        log.create_topic("t")
        assert list(log.read("t")) == []


def test_producing_to_a_missing_topic_raises_with_the_way_to_create_it(path):
    told = r"^topic 'zz' does not exist; create it with log\.create_topic\('zz'\) "
    with open_log(path) as log, log.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition, match=told):
            producer.produce("zz", b"v")


def test_a_read_only_log_shows_added_partitions_without_records(tmp_path):
    path = tmp_path / "log"
    with open_log(path) as log:
        log.create_topic("t")
        log.create_partitions("t", 3)
    with open_log(path, read_only=True) as log:
        assert list(log.read("t")) == []
        assert [log.offsets("t", p).log_end for p in range(3)] == [0, 0, 0]
