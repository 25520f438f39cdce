"""Reading what others take away meanwhile."""

from __future__ import annotations

import os
import signal

import pytest

import eoslog
from eoslog.errors import UnknownTopicOrPartition
from eoslog.model import TopicPartition
from tests.faults.harness import Child, start


def fetch(child: Child, path: str) -> None:
    with eoslog.open(path) as log, log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        child.armed()
        try:
            child.tell("values", [r.value.decode() for r in consumer.consume(10, timeout=5)])
        except UnknownTopicOrPartition:
            child.tell("values", "deleted")


def fetch_in_a_group(child: Child, path: str) -> None:
    with (
        eoslog.open(path) as log,
        log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        child.armed()
        child.tell("values", [r.value.decode() for r in consumer.consume(10, timeout=2)])


def scan(child: Child, path: str) -> None:
    with eoslog.open(path) as log:
        whole = [batch.column("value").to_pylist() for batch in log.scan("t", binary="copy")]
        assert whole == [[b"committed"]]
        again = log.scan("t", binary="copy")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            child.tell("values", [str(batch.column("value").to_pylist()) for batch in again])
        except UnknownTopicOrPartition:
            child.tell("values", "deleted")


@pytest.mark.process
@pytest.mark.parametrize(
    ("read", "expected"), [(fetch, "deleted"), (fetch_in_a_group, []), (scan, "deleted")]
)
def test_G03_no_aborted_record_of_a_topic_that_is_deleted_meanwhile(tmp_path, read, expected):
    """Its abort index is gone with it, which is no sign that nothing was aborted."""
    path = str(tmp_path / "log")
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"aborted")
            producer.flush()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.produce("t", b"committed")
            producer.commit_transaction()
    reader = start(read, path, faults=(("fetch.read", "stop", 1),))
    os.waitid(os.P_PID, reader.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with eoslog.open(path) as log:
        log.delete_topic("t")
        reader.signal(signal.SIGCONT)
        assert reader.end().fine().of("values") == [expected]
