"""Topics are made, deleted and made again: who sees which, and deletions that end half way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from eoslog._core import build_batch
from eoslog.errors import ConfigError, TooManyOpenFiles, TopicAlreadyExists, UnknownTopicOrPartition
from eoslog.log import open as open_log
from eoslog.model import TopicPartition
from eoslog.storage import files
from eoslog.storage.metadata_records import TopicRecord
from tests.storage.helpers import batch

pytestmark = pytest.mark.usefixtures("disarmed")


def test_duplicate_and_unknown_topics_are_typed_errors(path):
    with open_log(path) as log:
        log.create_topic("t")
        with pytest.raises(TopicAlreadyExists):
            log.create_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            log.offsets("nope", 0)
        with pytest.raises(UnknownTopicOrPartition):
            log.offsets("t", 1)


def test_a_topic_that_may_be_there_is_left_as_it_is(path):
    with open_log(path) as log:
        made = log.create_topic("t", 3, {"retention.ms": 1000}, exist_ok=True)
        assert log.create_topic("t", 5, exist_ok=True) == made
        assert len(made.partitions) == 3
        with pytest.raises(ConfigError):
            log.create_topic("t", config={"nonsense": 1}, exist_ok=True)
        log.delete_topic("t")
        assert len(log.create_topic("t", 5, exist_ok=True).partitions) == 5


def test_topics_are_found_by_a_pattern_for_their_whole_name(path):
    with open_log(path) as log:
        for name in ("orders", "orders-old", "visits"):
            log.create_topic(name)
        assert log.match_topics("orders.*") == ["orders", "orders-old"]
        assert log.match_topics("orders") == ["orders"]
        with pytest.raises(UnknownTopicOrPartition, match=r"no topic matches 'order'"):
            log.match_topics("order")
        with pytest.raises(UnknownTopicOrPartition):
            log.match_topics("__.*")  # internal ones are no user's
        with pytest.raises(ConfigError, match=r"match_topics: '\(' is no regular expression"):
            log.match_topics("(")


def test_a_reader_sees_the_topics_that_are_durable_and_flushes_nothing(path):
    """Somebody was stopped between the append of a topic and its flush."""
    with open_log(path) as log:
        log.create_topic("there", 1)
        record = TopicRecord("coming", bytes(range(16)))
        metadata = log.engine.partitions.known("__cluster_metadata", 0)
        metadata.on_append = None  # the flush in the background
        metadata.append(build_batch([(0, None, record.encode(), ())]))
        with open_log(path, read_only=True) as reader:
            assert reader.topics() == ["there"]
            assert metadata.durable_end < metadata.log_end
            log.engine.metadata.refresh()
            assert reader.topics() == ["coming", "there"]


def test_a_deleted_topic_is_gone_for_open_handles_and_may_come_back_empty(path):
    with open_log(path) as log:
        log.create_topic("t")
        handle = log.engine.partition("t", 0)
        handle.append(batch(2))
        log.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            handle.append(batch(1))
        log.create_topic("t")
        assert log.offsets("t", 0).log_end == 0
        assert log.engine.partition("t", 0).append(batch(1)).base_offset == 0


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
def test_a_topic_created_anew_by_another_process_is_not_taken_for_its_namesake(path, leaves):
    """What a process knows of a deleted topic says nothing of the one that has its name now."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        partition.append(batch(20))
        partition.flush()
        subprocess.run([sys.executable, "-c", CREATE_ANEW, path], check=True)
        if leaves == "checkpoint":
            log.engine._checkpointer.checkpoint()
            log.engine._checkpointer.note_log_start(partition)
            partition.flush()
        with pytest.raises(UnknownTopicOrPartition):
            partition.append(batch(1))
    with open_log(path) as log:
        assert log.offsets("t", 0) == (0, 5, 5, 5)


@pytest.mark.parametrize("point", ["topic.deleted", "topic.forgotten"])
def test_a_deletion_that_failed_half_way_is_finished_by_the_next_call(path, point):
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


def test_a_crash_in_mid_delete_finishes_it_at_the_next_open(path):
    script = (
        "import sys; from eoslog.log import open as o; from eoslog.storage import files\n"
        "log = o(sys.argv[1]); log.create_topic('t'); log.engine.partition('t', 0)\n"
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
def test_a_deletion_that_was_killed_is_finished_with_the_groups_offsets(path, point, used):
    script = (
        "import sys; from eoslog.log import open as o; from eoslog.storage import files\n"
        "from eoslog.model import OffsetAndMetadata as O, TopicPartition as T\n"
        "log = o(sys.argv[1]); make = log.engine.create_topic\n"
        "make('t', 1, {}); make('kept', 1, {})\n"
        "for name in ('t', 'kept'):\n"
        "    if sys.argv[3] == 'used': log.engine.partition(name, 0)\n"
        "    log.engine.groups.commit_offsets('g', '', -1, {T(name, 0): O(5)})\n"
        "files.arm_failpoint(sys.argv[2], 'kill'); log.delete_topic('t')"
    )
    done = subprocess.run([sys.executable, "-c", script, path, point, used], check=False)
    assert done.returncode == -signal.SIGKILL
    with open_log(path) as log:
        assert not [n for n in os.listdir(path) if n.startswith("t-0")]
        log.create_topic("t")
        found = log.engine.groups.fetch_offsets(
            "g", [TopicPartition("t", 0), TopicPartition("kept", 0)]
        )
    assert {tp: o.offset for tp, o in found.items()} == {TopicPartition("kept", 0): 5}


def test_writing_to_a_topic_that_is_not_there_says_how_to_make_it(path):
    told = r"^no topic 'zz'; topics are not made by writing: create_topic\('zz'\)$"
    with open_log(path) as log, log.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition, match=told):
            producer.produce("zz", b"v")
