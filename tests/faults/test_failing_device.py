"""A device rejects writes for a moment, and the kernel forgets them."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import CorruptRecord, LogPoisoned
from eoslog.testing.history.recorder import values
from tests.faults.harness import Child, live, start
from tests.storage.helpers import batch
from tests.torture.faults.disks import failing_disk, lacking_for_failing_disks
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]
SUFFIXES = (".index", ".timeindex", ".txnindex")


@pytest.fixture
def disk():
    why = lacking_for_failing_disks()
    if why is not None:
        pytest.skip(f"not run: failing device: {why}")
    # A commit of the journal in the moment of the fault would end in a read-only file system.
    with failing_disk("commit=300") as made:
        yield made


def lose_the_indexes(child: Child, path: Path, inject: Path) -> None:
    """Write, abort, write; the indexes' writeback fails once, and the process dies."""
    with eoslog.open(path) as log:
        log.create_topic("t", 1, {"segment.bytes": "4096", "index.interval.bytes": "100"})
        with log.producer(transactional_id="x", linger_ms=0) as producer:
            producer.init_transactions()
            for n, commits in enumerate((True, False, True)):
                producer.begin_transaction()
                producer.send("t", f"{n}{commits}".encode() * 20).result(30)
                producer.commit_transaction() if commits else producer.abort_transaction()
        for part in log._engine.open_logs():
            part.flush()  # only the indexes are lost
        inject.touch()
        for suffix in SUFFIXES:
            fd = os.open(path / "t-0" / f"{0:020}{suffix}", os.O_RDWR)
            try:
                os.fsync(fd)
            except OSError:
                child.tell("lost", suffix)
            os.close(fd)
        inject.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def seal(child: Child, path: Path) -> None:
    """Another session fills the segment, so that the next one trusts its indexes."""
    with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:
        while len(list((path / "t-0").glob("*.log"))) < 3:
            producer.send("t", bytes(200)).result(30)


def look(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        ends = log.offsets("t", 0)
        found = values(log, TopicPartition("t", 0), ends.log_start, ends.last_stable)
        child.tell("seen", [value[:6] for _, value in found if value[0] != "\0"])
        child.tell("problems", [str(p) for p in log.check(full=True).problems])


def test_indexes_whose_writeback_failed_survive_a_reboot(disk, tmp_path):
    """ext4 keeps such blocks as never written, even after a later successful sync.

    Without its abort index an aborted record would be seen.
    """
    mounted, inject = disk
    path = mounted.mount_point / "log"
    first = live(lose_the_indexes, path, inject)
    assert first.of("lost") == list(SUFFIXES), first
    live(seal, path).fine()
    mounted.remount()
    last = live(look, path).fine()
    assert last.of("problems") == [[]]
    assert last.of("seen") == [["0True0", "2True2"]]


def create(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t", 1, {"flush.ms": "3600000"})


def lose_the_records(child: Child, path: Path, inject: Path) -> None:
    """Append; the writeback fails once, and the process dies before it can tell."""
    with eoslog.open(path) as log:
        for _ in range(20):
            log._engine.partition("t", 0).append(batch(1, size=9000))
        child.tell("appended", True)
        until(inject.exists)
        fd = os.open(path / "t-0" / f"{0:020}.log", os.O_RDWR)
        with pytest.raises(OSError):
            os.fsync(fd)
        inject.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def show_and_die(child: Child, path: Path) -> None:
    """What a session shows, it must keep: recovery makes all of it durable."""
    with eoslog.open(path) as log:
        child.tell("end", log.offsets("t", 0).log_end)
        os.kill(os.getpid(), signal.SIGKILL)


def flush_for_another(child: Child, path: Path, go: Path) -> None:
    """Flush, through a younger descriptor, what a process appended that is dead now."""
    with eoslog.open(path) as log:
        child.tell("opened", True)
        until(go.exists)
        partition = log._engine.partition("t", 0)
        try:
            partition.flush()
        except (CorruptRecord, LogPoisoned):
            child.tell("durable", 0)
        else:
            child.tell("durable", partition.durable_end)
        os.kill(os.getpid(), signal.SIGKILL)


def count(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        end = log.offsets("t", 0).log_end
        child.tell("records", sum(1 for _ in values(log, TopicPartition("t", 0), 0, end)))
        child.tell("problems", [str(p) for p in log.check(full=True).problems])


@contextlib.contextmanager
def mapped_records(path: Path) -> Iterator[None]:
    """The pages of the records are mapped, and so the page cache keeps them."""
    with (
        (path / "t-0" / f"{0:020}.log").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
    ):
        assert len(bytes(view)) > 20 * 9000
        yield


@pytest.mark.parametrize("mapped", [False, True])
def test_P07_recovery_shows_no_record_that_the_disk_did_not_keep(disk, mapped):
    """The page cache has them, and it keeps the pages that a process maps."""
    mounted, inject = disk
    path = mounted.mount_point / "log"
    live(create, path).fine()
    writer = start(lose_the_records, path, inject)
    writer.heard("appended")
    with contextlib.ExitStack() as stack:
        if mapped:
            stack.enter_context(mapped_records(path))
        inject.touch()
        assert writer.end().killed
        shown = live(show_and_die, path)
        assert shown.killed, shown
    mounted.cut()
    mounted.remount()
    last = live(count, path).fine()
    assert last.of("problems") == [[]]
    assert last.of("records") == shown.of("end")


@pytest.mark.parametrize("mapped", [False, True])
def test_P07_a_flush_never_counts_records_that_the_disk_did_not_keep(disk, tmp_path, mapped):
    """The flush is of a process that lives on, and the page cache keeps what a consumer maps."""
    mounted, inject = disk
    path, go = mounted.mount_point / "log", tmp_path / "go"
    live(create, path).fine()
    other = start(flush_for_another, path, go)
    other.heard("opened")
    writer = start(lose_the_records, path, inject)
    writer.heard("appended")
    with contextlib.ExitStack() as stack:
        if mapped:
            stack.enter_context(mapped_records(path))
        inject.touch()
        assert writer.end().killed
        go.touch()
        ended = other.end()
    assert ended.killed, ended
    mounted.cut()
    mounted.remount()
    last = live(count, path).fine()
    assert last.of("problems") == [[]]
    assert last.of("records")[0] >= ended.of("durable")[0]


def lose_committed_records(child: Child, path: Path, inject: Path) -> None:
    """Commit; then the partition's writeback fails once, and the process dies."""
    with eoslog.open(path) as log:
        with log.producer(transactional_id="x", linger_ms=0) as producer:
            producer.init_transactions()
            for number in range(5):
                producer.begin_transaction()
                producer.produce("t", str(number) * 900)
                producer.commit_transaction()
        child.tell("flushed", log._engine.partition("t", 0).flushed_end)
        inject.touch()
        fd = os.open(path / "t-0" / f"{0:020}.log", os.O_RDWR)
        with pytest.raises(OSError):
            os.fsync(fd)
        inject.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def read_records(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        child.tell("records", [record.value[:1].decode() for record in log.read("t")])
        child.tell("problems", [str(p) for p in log.check(full=True).problems])


@pytest.mark.parametrize("cut", [False, True])
def test_P44_a_commit_survives_the_loss_of_its_partitions_pages(disk, cut):
    """The disk kept only the coordinator's log, in which the decision carries the records."""
    mounted, inject = disk
    path = mounted.mount_point / "log"
    live(create, path).fine()
    first = live(lose_committed_records, path, inject)
    assert first.killed, first
    assert first.of("flushed") == [0]
    if cut:
        mounted.cut()
        mounted.remount()
    last = live(read_records, path).fine()
    assert last.of("records") == [["0", "1", "2", "3", "4"]]
    assert last.of("problems") == [[]]
