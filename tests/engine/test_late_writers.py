"""A reader opens a directory without a writer, and a writer arrives later."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from eoslog.errors import IllegalState
from eoslog.opening import open as open_log
from eoslog.storage.log import loader as log_loader

WRITER = """
import sys
import eoslog
from eoslog.storage.fs import files

with eoslog.open(sys.argv[1]) as log:
    topic, last = sys.argv[2:4]
    with log.producer() as producer:
        producer.produce(topic, "1")
        producer.flush()
        if last == "stopped":  # written, and not published
            files.arm_failpoint("point", "stop", 3)
            producer.produce(topic, "never in the log")
            producer.flush()
"""
LATE = "another process has opened the log for writing"


def written_by_another(path, topic, last=""):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path, topic, last])
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return writer


@pytest.fixture
def two_topics(path):
    """The path of a closed log of topics `seen` and `new`, a record in each."""
    with open_log(path) as log:
        for topic in ("seen", "new"):
            log.create_topic(topic)
            with log.producer() as producer:
                producer.produce(topic, "0")
    return path


@pytest.mark.process
@pytest.mark.parametrize("last", ["stopped", "closed"])
def test_a_private_reader_rejects_reads_after_a_writer_arrived(two_topics, last):
    with open_log(two_topics, read_only=True) as reader:
        assert [r.value for r in reader.read("seen")] == [b"0"]
        writer = written_by_another(two_topics, "new", last)
        try:
            with pytest.raises(IllegalState, match=LATE):
                list(reader.read("new"))
        finally:
            writer.kill()
            writer.wait()


@pytest.mark.process
def test_a_reader_whose_scan_a_writer_interrupts_opens_again_as_shared(two_topics, monkeypatch):
    """The result of the scan is not published: the reader opens again."""
    real, writers = log_loader.scan_for_reader, []

    def scan(log, *how, **options):
        if not writers:
            writers.append(written_by_another(two_topics, "new", "stopped"))
        return real(log, *how, **options)

    monkeypatch.setattr(log_loader, "scan_for_reader", scan)
    with open_log(two_topics, read_only=True) as reader:
        assert not reader._engine.session.private
        assert [r.value for r in reader.read("new")] == [b"0", b"1"]
    writers[0].kill()
    writers[0].wait()


@pytest.mark.process
def test_a_private_reader_raises_at_its_end_after_a_late_writer(two_topics):
    with open_log(two_topics, read_only=True) as reader:
        consumer = reader.consumer("seen", auto_offset_reset="earliest")
        assert consumer.poll(30).value == b"0"
        assert consumer.poll(0) is None
        assert reader.offsets("seen", 0).high_watermark == 1
        assert written_by_another(two_topics, "seen").wait() == 0
        with pytest.raises(IllegalState, match=LATE):
            consumer.poll(0)
        with pytest.raises(IllegalState, match=LATE):
            reader._engine.partition("seen", 0).wait(1, 30)
        with pytest.raises(IllegalState, match=LATE):
            reader.offsets("seen", 0)
        with pytest.raises(IllegalState, match=LATE):
            reader.topics()
        with pytest.raises(IllegalState, match=LATE):
            reader.offset_for_time("seen", 0, 0)
        with pytest.raises(IllegalState, match=LATE):
            list(reader.read("seen"))
        with open_log(two_topics, read_only=True) as again:
            assert again._engine is not reader._engine
            assert again.offsets("seen", 0).high_watermark == 2
            assert [r.value for r in again.read("seen")] == [b"0", b"1"]
            with open_log(two_topics, read_only=True) as shared:
                assert shared._engine is again._engine


@pytest.mark.process
def test_a_private_reader_raises_after_a_late_writer_deleted_its_files(two_topics):
    with open_log(two_topics, read_only=True) as reader:
        assert reader.offsets("seen", 0).high_watermark == 1
        with open_log(two_topics) as log:
            log.delete_topic("seen")
        with pytest.raises(IllegalState, match=LATE):
            list(reader.read("seen"))


@pytest.mark.process
def test_a_private_reader_shows_no_aborted_record_after_a_late_cleaning(path):
    """The reader has the old segment open, next to the new segment's abort index."""
    config = {"cleanup.policy": "compact", "delete.retention.ms": 0, "segment.bytes": 200_000}
    with open_log(path) as log:
        log.create_topic("t", config=config)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for number in range(100):
                for value in ("ok", "aborted"):
                    producer.begin_transaction()
                    producer.produce("t", value * 500, key=f"{value} {number}")
                    producer.flush()
                    producer.end_transaction(commit=value == "ok")
    with open_log(path, read_only=True) as reader:
        consumer = reader.consumer("t", auto_offset_reset="earliest", fetch_max_bytes=2000)
        assert consumer.poll(30).value.startswith(b"ok")
        with open_log(path) as log:
            for later in range(4):
                log._engine.clock = lambda later=later: time.time() + later
                with log.producer() as producer:
                    producer.produce("t", b"later", key=b"later %d" % later)
                log.clean("t", roll=True)
        seen = []
        with pytest.raises(IllegalState, match=LATE):
            while record := consumer.poll(0):
                seen.append(record.value[:2])
        assert set(seen) <= {b"ok"}
