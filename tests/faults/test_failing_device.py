"""A device rejects writes for a moment, and the kernel forgets them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.testing.history.recorder import values
from tests.faults.harness import Child, live
from tests.torture.faults.disks import failing_disk, lacking_for_failing_disks

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
