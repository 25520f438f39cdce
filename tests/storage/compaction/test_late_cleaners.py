"""A thread at the segments of a deleted topic changes nothing in its successor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import eoslog
from eoslog.errors import UnknownTopicOrPartition
from eoslog.model import TopicPartition
from eoslog.storage.compaction import compactor as compaction
from eoslog.storage.compaction.cleaner import clean_partition

T0 = TopicPartition("t", 0, 0)
CLEANER = """
import sys
import eoslog
from eoslog.errors import UnknownTopicOrPartition

with eoslog.open(sys.argv[1]) as log:
    try:
        if sys.argv[2] == "compact":
            log.clean("t")
        else:
            log.delete_records({eoslog.TopicPartition("t", 0): 150})
    except (UnknownTopicOrPartition, FileNotFoundError):
        pass
"""


def values(log):
    with log.consumer() as reader:
        reader.assign([T0])
        return [bytes(record.value) for record in reader.consume(1000, timeout=2)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "policy"),
    [
        ("log.start.advanced", "delete"),
        ("clean.group", "compact"),
        ("clean.swap.begun", "compact"),
    ],
)
def test_a_suspended_cleaner_of_a_deleted_topic_leaves_its_successor_alone(tmp_path, point, policy):
    config = {"cleanup.policy": policy, "segment.bytes": 4096, "min.cleanable.dirty.ratio": 0.0}
    new = [b"new%d" % i for i in range(3)]

    def make_again():
        log.create_topic("t", config=config)
        with log.producer() as producer:
            for i, value in enumerate(new):
                producer.produce("t", value, key=b"k%d" % i)

    with eoslog.open(tmp_path, log_cleaner_backoff_ms=3_600_000) as log:
        log.create_topic("t", config=config)
        with log.producer() as producer:
            for i in range(200):
                producer.produce("t", b"x" * 60, key=b"k%d" % (i % 5))
                if i % 10 == 9:
                    producer.flush()
        cleaner = subprocess.Popen(
            [sys.executable, "-c", CLEANER, str(tmp_path), policy],
            env={**os.environ, "EOSLOG_FAILPOINTS": f"{point}=stop"},
        )
        os.waitid(os.P_PID, cleaner.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        log.delete_topic("t")
        writer = threading.Thread(target=make_again)
        writer.start()
        writer.join(0.5)
        assert writer.is_alive() and not (tmp_path / "t-0").exists()  # it waits for the cleaner
        cleaner.send_signal(signal.SIGCONT)
        assert cleaner.wait() == 0
        writer.join()
        assert values(log) == new
    with eoslog.open(tmp_path) as log:
        assert values(log) == new
        assert log.check().ok


@pytest.mark.process
def test_opening_a_recreated_topic_waits_for_a_cleaner_of_this_process(tmp_path):
    again = """
import sys
import eoslog

with eoslog.open(sys.argv[1]) as log:
    log.delete_topic("t")
    log._engine.topics.create("t", 1, None)
"""
    opened = []
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        old = log._engine.partition("t", 0)
        with old.cleaner_lock.held("t-0", 10):
            subprocess.run([sys.executable, "-c", again, str(tmp_path)], check=True)
            opening = threading.Thread(target=lambda: opened.append(log._engine.partition("t", 0)))
            opening.start()
            opening.join(0.5)
            assert opening.is_alive() and not opened
            assert log._engine.partitions.drop("none", 0) is None  # no other thread waits with it
        opening.join()
        assert opened[0].topic_id != old.topic_id


@pytest.mark.parametrize("act", ["clean_partition", "finish_swap", "go_on"])
def test_cleaning_is_rejected_after_the_topic_was_recreated(tmp_path, act):
    """The cleaner has the old partition open when the name is reused."""
    with eoslog.open(tmp_path) as log:
        log.create_topic("t", config={"cleanup.policy": "compact"})
        old = log._engine.partition("t", 0)
        log.delete_topic("t")
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", b"new")
        with pytest.raises(UnknownTopicOrPartition):
            if act == "clean_partition":
                clean_partition(old, 0, 0, force=True)
            elif act == "finish_swap":
                old.finish_swap()
            else:
                compaction._go_on(old, None)
        assert values(log) == [b"new"]
