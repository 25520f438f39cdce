"""Reading while other processes delete what is being read."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import CorruptRecord, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from eoslog.storage.fs import file_cache as read_files
from tests.faults.harness import Child, start


def fetch(child: Child, path: str) -> None:
    with eoslog.open(path) as log, log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        child.armed()
        try:
            child.tell("values", [r.value.decode() for r in consumer.consume(10, timeout=60)])
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
def test_G03_a_reader_of_a_topic_under_deletion_shows_no_aborted_record(tmp_path, read, expected):
    """A missing abort index does not mean that nothing was aborted."""
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


def written(log: eoslog.Log, topic: str, *values: bytes) -> str:
    """Make a topic of these records; its log file."""
    log.create_topic(topic)
    with log.producer() as producer:
        for value in values:
            producer.produce(topic, value)
    return os.path.join(log.path, f"{topic}-0", "0" * 20 + ".log")


def test_a_read_during_a_deletion_by_another_thread_reads_no_other_file(tmp_path, monkeypatch):
    """The thread reads from a descriptor whose number another file may get."""
    with eoslog.open(tmp_path) as log:
        gone, other = (written(log, topic, b"of " + topic.encode()) for topic in "ab")
        real, numbers = _core.os_pread, []

        def delete() -> None:
            log.delete_topic("a")
            while not numbers or numbers[-1] < numbers[0] + 50:
                numbers.append(os.open(other, os.O_RDONLY))

        def pread(fd: int, size: int, at: int) -> bytes:
            if not numbers and os.readlink(f"/proc/self/fd/{fd}") == gone:
                deleter = threading.Thread(target=delete)
                deleter.start()
                deleter.join()
                numbers.append(fd)
            return real(fd, size, at)

        monkeypatch.setattr(_core, "os_pread", pread)
        try:
            with pytest.raises(UnknownTopicOrPartition, match="deleted"):
                list(log.read("a"))
        finally:
            for fd in numbers[:-1]:
                os.close(fd)
        assert numbers and numbers[-1] not in numbers[:-1]  # it is open as long as he reads


def test_a_read_raises_if_another_thread_recreates_the_topic(tmp_path, monkeypatch):
    """The thread is about to open the file, and its name is another one's by then."""
    with eoslog.open(tmp_path) as log:
        name = written(log, "a", b"old")
        real, again = read_files.files.open_file, []

        def make_again() -> None:
            log.delete_topic("a")
            again.append(written(log, "a", b"new"))

        def open_file(path: str, **how: bool) -> int:
            if os.path.realpath(path) == name and how.get("read_only") and not again:
                again.append("begun")
                maker = threading.Thread(target=make_again)
                maker.start()
                maker.join()
            return real(path, **how)

        monkeypatch.setattr(read_files.files, "open_file", open_file)
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            list(log.read("a"))
        assert again == ["begun", name]


def test_field_B1_a_read_of_a_file_shorter_than_its_published_end_raises(tmp_path):
    """Another program cut the file: the reader reports it and does not retry."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer({"linger.ms": 0}) as producer:
            for number in range(3):
                producer.produce("t", b"%d" % number * 1000)
                producer.flush()
        file = tmp_path / "log" / "t-0" / "00000000000000000000.log"
        os.truncate(file, file.stat().st_size - 500)
        with pytest.raises(CorruptRecord, match="segment file is shorter than its"):
            log._engine.partition("t", 0).reader.read(2, 3)
