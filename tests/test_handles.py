"""Handles that are closed or read-only, and places that are no log."""

from pathlib import Path

import pytest

from eoslog.client.offline import repair
from eoslog.errors import IllegalState, StorageError
from eoslog.log import open as open_log
from eoslog.model import TopicPartition


def test_a_closed_handle_is_dead_while_another_one_of_the_process_goes_on(path):
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
            assert consumer.poll(5).value == b"1"
        with log.consumer(group_id="g") as consumer:
            with pytest.raises(IllegalState, match="read_only"):
                consumer.subscribe(["t"])
    assert content() == before


def test_every_call_that_writes_is_refused_at_once_on_a_read_only_log(path):
    """Those that nothing would have to be done for, too, and those that wait for a lock else."""
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
            lambda: log.backup(f"{path}-copy"),
            lambda: log.run_transaction(print, transactional_id="y"),
            lambda: log.engine.partition("t", 0).delete_records(-1),
            lambda: log.engine.cleaning.clean("t", 0),
        ):
            with pytest.raises(IllegalState, match="read_only|open the log for writing"):
                call()
        assert log.topics() == ["c", "t"] and log.offsets("t", 0).log_start == 0


def test_a_repair_of_what_is_no_log_leaves_nothing_there(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StorageError, match="not an eoslog directory"):
            repair(place)
    assert list(tmp_path.iterdir()) == []
