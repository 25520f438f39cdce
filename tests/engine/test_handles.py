"""Closed and read-only handles reject calls, and so do directories without a log."""

import copy
import pickle
from pathlib import Path

import pytest

from eoslog.admin.offline import repair
from eoslog.errors import IllegalState, StorageError
from eoslog.model import TopicPartition
from eoslog.opening import open as open_log
from eoslog.storage.log.retention import delete_records


def test_a_closed_handle_raises_while_another_handle_of_the_process_works(path):
    first, second = open_log(path), open_log(path)
    first.create_topic("t")
    first.close()
    for call in (first.topics, first.stats, first.producer, first.check, lambda: first.scan("t")):
        with pytest.raises(IllegalState, match="the log is closed"):
            call()
    first.close()
    assert second.topics() == ["t"]
    assert first.path == path and path in repr(first)
    second.close()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_log_cannot_be_copied_and_names_eoslog_open(path, copied):
    with open_log(path) as log:
        with pytest.raises(TypeError, match=r"copy or pickle Log\(.*eoslog\.open"):
            copied(log)
        assert log.topics() == []


def test_the_clients_of_a_read_only_log_write_nothing(path):
    with open_log(path) as log:
        log.create_topic("t", partitions=2)  # the other one is never used
        with log.producer() as producer:
            producer.produce("t", b"1", partition=0)

    def content():
        return {p: p.read_bytes() for p in Path(path).rglob("*") if p.is_file()}

    before = content()
    with open_log(path, read_only=True) as log:
        with pytest.raises(IllegalState, match="read_only"):
            log.producer()
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(60).value == b"1"
        with log.consumer(group_id="g") as consumer:
            with pytest.raises(IllegalState, match="read_only"):
                consumer.subscribe(["t"])
    assert content() == before


def test_a_read_only_log_rejects_every_writing_call_immediately(path):
    """Also calls that would change nothing, and calls that would wait for a lock."""
    with open_log(path) as log:
        log.create_topic("t")
        log.create_topic("c", config={"cleanup.policy": "compact"})
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.produce("t", b"1")
    tp = TopicPartition("t", 0)
    with open_log(path, read_only=True) as log:
        for call in (
            lambda: log.create_topic("n"),
            lambda: log.delete_topic("nothing"),
            lambda: log.create_partitions("t", 2),
            lambda: log.alter_topic("t", {"retention.ms": 5}),
            lambda: log.abort_transaction("x"),
            lambda: log.reset_offsets("nobody", {tp: 0}),
            lambda: log.delete_group("nobody"),
            lambda: log.import_kafka("localhost:1"),
            lambda: log.delete_records({tp: -1}),
            lambda: log.clean("t"),
            lambda: log.clean("c", roll=True),
            lambda: log.run_transaction(print, transactional_id="y"),
            lambda: delete_records(log._engine.partition("t", 0), -1),
            lambda: log._engine.cleaning.clean("t", 0),
        ):
            with pytest.raises(IllegalState, match="read_only|open the log for writing"):
                call()
        assert log.topics() == ["c", "t"] and log.offsets("t", 0).log_start == 0


def test_repairing_a_directory_without_a_log_creates_no_file(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StorageError, match="not an eoslog directory"):
            repair(place)
    assert list(tmp_path.iterdir()) == []
