"""A directory is opened, used, shared and closed, with or without a clean mark."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from eoslog.errors import ConfigError, IllegalState, StorageError, UnknownTopicOrPartition
from eoslog.opening import open as open_log
from eoslog.storage.fs import files
from tests.descriptors import opened_files
from tests.storage.helpers import batch

pytestmark = pytest.mark.usefixtures("disarmed")


def test_a_new_directory_is_private_and_records_its_durability(path):
    with open_log(path) as log:
        log.create_topic("t", 2)
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert all(os.stat(os.path.join(path, n)).st_mode & 0o077 == 0 for n in os.listdir(path))
    assert "eoslog.durability=strict" in open(os.path.join(path, "meta.properties")).read()


def test_a_log_closes_the_clients_that_it_created(path):
    with open_log(path) as log:
        log.create_topic("t")
        producer = log.producer()
        consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
        producer.produce("t", "not flushed")
    assert consumer.closed
    with pytest.raises(IllegalState, match="closed"):
        producer.produce("t", "more")
    with open_log(path) as log:
        assert log.offsets("t", 0).log_end == 1


def test_a_log_that_closes_after_an_error_raises_it_and_commits_nothing(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.producer().close()
        with log.producer() as producer:
            producer.produce("t", "one")
    with pytest.raises(ZeroDivisionError), open_log(path) as log:
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", "never")
        consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
        assert consumer.poll(30).value == b"one"
        1 / 0  # noqa: B018
    with open_log(path) as log:
        assert log.describe_group("g").offsets == {}
        assert not log.transactions()
        assert [
            r.value for r in log.consumer("t", auto_offset_reset="earliest").consume(9, 60)
        ] == [b"one"]


def test_topics_and_records_survive_close_and_reopen(path):
    with open_log(path) as log:
        log.create_topic("t", 2, {"retention.ms": 1000})
        log._engine.partition("t", 1).append(batch(3))
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))
    with open_log(path) as log:
        assert log.topics() == ["t"]
        assert log.describe_topic("t").config == {"retention.ms": "1000"}
        assert log.offsets("t", 1) == (0, 3, 3, 3)
        assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_handles_of_one_process_share_the_engine(path):
    with open_log(path) as one, open_log(path) as two:
        assert one._engine is two._engine
        one.close()
        two.create_topic("t")
        assert two.topics() == ["t"]


def test_a_closed_log_raises_illegal_state(path):
    log = open_log(path)
    log.close()
    log.close()
    with pytest.raises(IllegalState, match="closed"):
        log.topics()


def test_the_repr_of_a_closed_log_and_producer_says_so(path):
    log = open_log(path)
    producer = log.producer()
    assert not repr(log).endswith("closed)") and not repr(producer).endswith("closed>")
    log.close()
    assert repr(log) == f"Log({str(path)!r}, durability='strict', closed)"
    assert repr(producer).endswith(", closed>")


@pytest.mark.parametrize("number", ["0", None, 0.5])
def test_a_partition_of_the_wrong_type_is_not_looked_up(path, number):
    with open_log(path) as log:
        log.create_topic("t")
        with pytest.raises(ConfigError, match="partition: expected an int"):
            log.offsets("t", number)


def test_a_durability_other_than_the_stored_one_is_rejected(path):
    open_log(path, durability="os").close()
    with pytest.raises(ConfigError, match="os.*strict"):
        open_log(path, durability="strict")
    with open_log(path) as log:
        assert log._engine.durability == "os"


def test_a_missing_directory_raises_without_create(path):
    with pytest.raises(StorageError, match="no log to open"):
        open_log(path, create=False)
    with pytest.raises(StorageError, match="no log to open"):
        open_log(path, read_only=True)


def test_a_read_only_log_reads_with_and_without_writers(path):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(2))
        log._engine.partition("t", 0).flush()
        with open_log(path, read_only=True) as reader:
            assert reader.offsets("t", 0).high_watermark == 2
    with open_log(path, read_only=True) as reader:
        assert reader.offsets("t", 0).log_end == 2
        assert len(list(reader._engine.partition("t", 0).batches(0, 2))) == 1


def test_a_reader_next_to_writers_reads_partitions_that_they_have_not_opened(path):
    with open_log(path) as log:
        log.create_topic("used")
        log.create_topic("idle")
        with log.producer() as producer:
            producer.produce("idle", "1")
            producer.produce("used", "1")
        with log.consumer("idle", group_id="g", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(30).value == b"1"
            consumer.commit()
    with open_log(path) as log, log.producer() as producer:
        producer.produce("used", "2")
        producer.flush()
        with open_log(path, read_only=True) as reader:
            assert reader.offsets("idle", 0) == (0, 1, 1, 1)
            assert reader.groups() == ["g"]
            assert {tp.topic: end for tp, end in reader.snapshot().items()} == {
                "idle": 1,
                "used": 2,
            }
            assert set(reader.stats()["partitions"]) == {"idle-0", "used-0"}
            consumer = reader.consumer("idle", auto_offset_reset="earliest")
            assert consumer.poll(30).value == b"1"
            producer.produce("idle", "2")
            producer.flush()
            assert consumer.poll(30).value == b"2"
            assert reader.offsets("idle", 0) == (0, 2, 2, 2)
            consumer.close()
            log.delete_topic("idle")
            with pytest.raises(UnknownTopicOrPartition):
                reader.offsets("idle", 0)


@pytest.mark.process
def test_a_program_that_does_not_close_its_log_ends_clean_and_silent(path):
    script = (
        "import sys; from eoslog.opening import open as o; log = o(sys.argv[1]); log.create_topic('t')\n"
        "p = log.producer(); p.produce('t', 'v'); p.flush()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_work_that_begins_during_a_close_does_not_stop_the_close(path):
    log = open_log(path)
    engine, ran = log._engine, []

    def first() -> None:
        engine.cleaning._stop.wait(30)  # the closing has begun, and waits for this thread
        time.sleep(0.05)
        engine._background.tasks.begin("second", lambda: ran.append("second"))

    engine._background.tasks.begin("first", first)
    log.close()
    assert ran == ["second"]
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_no_background_work_follows_the_mark_of_a_clean_shutdown(path, monkeypatch):
    log = open_log(path)
    background, alive = log._engine._background, []
    real = type(log._engine._checkpointer).close_clean

    def look(self, quiet):
        alive.append(background._thread.is_alive())
        assert quiet
        real(self, quiet)

    monkeypatch.setattr(type(log._engine._checkpointer), "close_clean", look)
    log.close()
    assert alive == [False]


def test_a_task_that_outlives_a_close_prevents_the_clean_mark(path, monkeypatch):
    log = open_log(path)
    monkeypatch.setattr(type(log._engine._background.tasks), "join", lambda self: False)
    log.close()
    assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


OPEN_AND_CLOSE = """
import sys
import eoslog

for _ in range(60):
    eoslog.open(sys.argv[1]).close()
"""


def test_opening_waits_for_the_last_holder_to_finish_its_close(path):
    with open_log(path) as log:
        log.create_topic("t", 20)
        for number in range(20):
            log._engine.partition("t", number)
    running = [
        subprocess.Popen([sys.executable, "-c", OPEN_AND_CLOSE, path], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=300)[1] for process in running] == [b"", b""]
    assert [process.returncode for process in running] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["open", "pread", "pwrite", "fdatasync", "fsync", "rename"])
def test_a_failed_open_leaves_no_lock_and_no_file_open(path, call):
    """Each call of an unclean opening fails once, and releases what it took."""
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(2))
    before = opened_files(path)
    failed = 0
    for nth in range(1, 200):
        for mark in (".kafka_cleanshutdown", "eoslog.control"):
            if os.path.exists(os.path.join(path, mark)):
                os.unlink(os.path.join(path, mark))
        files.arm_failpoint(call, "EIO", nth)
        try:
            log = open_log(path)
        except StorageError:
            failed += 1
        else:
            files.disarm_failpoints()
            log.close()
        files.disarm_failpoints()
        with open_log(path) as log:
            assert log._engine.partition("t", 0).log_end == 2
        assert opened_files(path) == before, f"{call} {nth}"
        if failed < nth - 3:
            break
    assert failed
