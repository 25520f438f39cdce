"""A log is closed while other threads of the process use it.

The mark of a clean shutdown says that all records are durable. No thread appends after it. Each
thread gets a typed error and neither blocks nor dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from eoslog import _core
from eoslog.errors import EoslogError, IllegalState
from eoslog.opening import open as open_log
from eoslog.storage.directory.session import Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from tests.storage.helpers import batch

MARK = ".kafka_cleanshutdown"


def ends_of(path: str) -> dict[tuple[str, int], int]:
    """The end of each partition that has records, as its one segment file says."""
    ends = {}
    for name in os.listdir(path):
        segment = os.path.join(path, name, "0" * 20 + ".log")
        if os.path.exists(segment) and os.path.getsize(segment):
            with open(segment, "rb") as file:
                last = _core.iter_batches(file.read())[-1]
            topic, _, number = name.rpartition("-")
            ends[topic, int(number)] = last.last_offset + 1
    return ends


def synced(path: str) -> dict[tuple[str, int], int]:
    """The recovery points: what was flushed before they were written."""
    return checkpoints.read_offsets(os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT))


def test_no_thread_appends_after_the_mark_of_a_clean_shutdown(path):
    """Threads that append to partitions and metadata are all rejected at one moment.

    Every record that was acknowledged to them is durable.
    """
    log = open_log(path)
    log.create_topic("t", 8)
    appended, refused = dict.fromkeys(range(8), 0), []
    begun = threading.Barrier(10)

    def append(number: int) -> None:
        partition = log._engine.partition("t", number)
        appended[number] = partition.append(batch(1)).last_offset + 1
        begun.wait(300)
        try:
            while True:
                result = partition.append(batch(1))
                appended[number] = result.last_offset + 1
        except EoslogError as error:
            refused.append(error)

    def create() -> None:
        begun.wait(300)
        try:
            for number in range(1 << 30):
                log.create_topic(f"t{number}")
        except EoslogError as error:
            refused.append(error)

    threads = [threading.Thread(target=append, args=(n,)) for n in range(8)]
    threads.append(threading.Thread(target=create))
    for thread in threads:
        thread.start()
    begun.wait(300)
    log.close()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in refused] == [IllegalState] * 9
    assert os.path.exists(os.path.join(path, MARK))
    found = ends_of(path)
    assert found == {place: end for place, end in synced(path).items() if end}
    assert {number: found["t", number] for number in range(8)} == appended


def test_no_partition_is_opened_after_the_mark_of_a_clean_shutdown(path, monkeypatch):
    """An append to a partition opened then would not be durable."""
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(1))
    log, refused = open_log(path), []

    def use() -> None:
        try:
            log._engine.partition("t", 0).append(batch(1))
        except EoslogError as error:
            refused.append(error)

    thread = threading.Thread(target=use)
    real = checkpoints.write_clean_shutdown

    def mark(path: str) -> None:
        thread.start()
        thread.join(0.5)  # long enough for a thread that is not blocked
        real(path)

    monkeypatch.setattr(checkpoints, "write_clean_shutdown", mark)
    log.close()
    thread.join(60)
    assert [type(error) for error in refused] == [IllegalState]
    assert os.path.exists(os.path.join(path, MARK))
    assert ends_of(path)["t", 0] == synced(path)["t", 0] == 1


def test_only_the_last_process_marks_a_clean_shutdown(path):
    """Appends of other processes continue, and the last process flushes everything."""
    log = open_log(path)
    log.create_topic("t")
    log._engine.partition("t", 0).append(batch(2))
    other = Session(path)  # as another process has it
    log.close()
    assert not os.path.exists(os.path.join(path, MARK))
    other.close()
    with open_log(path) as log:
        assert log._engine.partition("t", 0).append(batch(1)).base_offset == 2


WAITS_ON_A_THREAD = """
import sys, threading
import eoslog

log = eoslog.open(sys.argv[1])
log.create_topic("t", exist_ok=True)
waits = threading.Barrier(9)

def poll():
    consumer = eoslog.Consumer({"log.dir": sys.argv[1], "group.id": None})
    consumer.assign([eoslog.TopicPartition("t", 0, 0)])
    waits.wait()
    try:
        while True:
            consumer.poll(60)
    except eoslog.KafkaError:
        pass

for _ in range(8):
    threading.Thread(target=poll, daemon=True).start()
waits.wait()
"""


@pytest.mark.process
def test_a_program_ends_cleanly_while_threads_wait_for_records(path):
    """Where they sleep is mapped memory: it stays mapped under them."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", WAITS_ON_A_THREAD, path], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert os.path.exists(os.path.join(path, MARK))


def test_closing_wakes_threads_that_wait_for_records(path):
    log = open_log(path)
    log.create_topic("t")
    partition, heard = log._engine.partition("t", 0), []

    def wait() -> None:
        try:
            while True:
                log._engine.wait_any([(partition, 0)], 60)
        except EoslogError as error:
            heard.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    log.close()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in heard] == [IllegalState] * 4


def test_closing_during_first_uses_of_partitions_does_not_deadlock(path):
    """Opening and closing take the bootstrap lock and the partitions' mutex in order.

    In the other order both would wait until the lock's timeout, and the shutdown would not be clean.
    """
    for _ in range(5):
        log = open_log(path)
        used, heard = threading.Semaphore(0), []

        def first_uses(log=log, used=used, heard=heard, name=threading.get_ident) -> None:
            try:
                for number in range(1 << 30):
                    log.create_topic(f"t{name()}-{number}", exist_ok=True)
                    log._engine.partition(f"t{name()}-{number}", 0)
                    used.release()
            except EoslogError as error:
                heard.append(error)

        threads = [threading.Thread(target=first_uses) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(9):
            used.acquire()
        log.close()
        for thread in threads:
            thread.join(60)
        assert [type(error) for error in heard] == [IllegalState] * 3
        assert os.path.exists(os.path.join(path, MARK))


def test_a_swap_does_not_begin_after_a_clean_close_overtook_it(path, monkeypatch):
    """Otherwise the mark would cover an unfinished swap."""
    log = open_log(path)
    log.create_topic("t", 1, {"cleanup.policy": "compact"})
    with log.producer() as producer:
        for number in range(100):
            producer.produce("t", b"value", key=b"%d" % (number % 5))
    ready, closing, refused = threading.Event(), threading.Event(), []
    failpoint = files.failpoint

    def clean() -> None:
        try:
            log.clean("t", roll=True)
        except EoslogError as error:
            refused.append(type(error))

    thread = threading.Thread(target=clean)

    def held(name: str) -> None:
        if name == "clean.swap.durable":
            ready.set()
            assert closing.wait(300)
        elif name == "close.alone":
            closing.set()
            thread.join(300)
        failpoint(name)

    monkeypatch.setattr(files, "failpoint", held)
    thread.start()
    assert ready.wait(300)
    log.close()
    assert refused == [IllegalState]
    assert os.path.exists(os.path.join(path, MARK))
    with open_log(path, read_only=True) as reader:
        assert len(list(reader.read("t"))) == 100


def test_a_log_closes_while_a_thread_opens_another_segment(path):
    """Or the session's lock, exclusive by then, would stay with this process."""
    from eoslog.opening import open as open_log
    from eoslog.storage.segment.segment import Segment

    class Last(Segment):
        def close(self):  # as if a reader came by just now
            segments.segment(1000)
            super().close()

    with open_log(path) as log:
        log.create_topic("t")
        part = log._engine.partition("t", 0)
        segments = part.segments
        segments._segments[0] = Last(part.path, 0)
    with open_log(path) as again:
        assert again.topics() == ["t"]
