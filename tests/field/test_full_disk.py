"""A full disk: an interrupted creation hides no topic, and deletion frees space."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import CorruptRecord, DiskFull, EoslogError
from eoslog.storage.fs import files

T, OK = eoslog.TopicPartition("t", 0), eoslog.TopicPartition("ok", 0)
PAGE = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("mounting needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill(disk: Path, left: int) -> None:
    """Leave `left` bytes, in whole pages."""
    with open(disk / "filler", "ab", buffering=0) as filler:
        while free(disk) > left:
            filler.write(bytes(PAGE))
    assert free(disk) == left


def prepared(path: str | Path) -> eoslog.Log:
    """A log with records in topic `ok`, and 600 kB in topic `big` that a group read."""
    log = eoslog.open(path)
    log.create_topic("ok")
    log.create_topic("big")
    with log.producer() as producer:
        producer.send("ok", b"v").result(60)
        for _ in range(6):
            producer.send("big", b"v" * 100_000).result(60)
    with log.consumer("big", group_id="g", auto_offset_reset="earliest") as consumer:
        assert len(consumer.consume(6, timeout=60)) == 6
        consumer.commit()
    return log


def shows_the_others(log: eoslog.Log) -> None:
    """Assert that every call about the complete directory works and shows topic `ok`."""
    assert {"ok", "t"} <= set(log.topics())
    assert log.stats()["partitions"]["ok-0"]["high_watermark"] == 1
    log.check(full=True)
    assert OK in log.clean()
    assert log.snapshot()[OK] == log.snapshot(["ok"])[OK] == 1
    assert [record.value for record in log.read("ok")] == [b"v"]


@pytest.mark.process
@pytest.mark.parametrize("pages", [0, 1, 2, 4, 6])
def test_field_B5_a_creation_on_a_full_disk_hides_no_other_topic(disk: Path, pages: int) -> None:
    with prepared(disk / "log") as log:
        fill(disk, pages * PAGE)
        with pytest.raises(DiskFull):
            log.create_topic("t", 8)
            for number in range(8):
                log._engine.partition("t", number)
        shows_the_others(log)
        offline = log.stats()["offline"]
        assert "t-7" in offline
        assert any("t-7" in problem.path for problem in log.check().problems)
        log.delete_topic("t")
        assert "t" not in log.topics()
        log.delete_topic("big")
        assert free(disk) > 500_000
    with eoslog.open(disk / "log") as log:
        assert log.topics() == ["ok"]
        assert log.check(full=True).ok


@pytest.mark.process
def test_field_B5_a_topic_is_deleted_although_its_record_has_no_room(disk: Path) -> None:
    """The metadata log and the group's partition end right before a page ends."""
    with prepared(disk / "log") as log:
        metadata = disk / "log" / "__cluster_metadata-0" / f"{0:020d}.log"
        clock = 0
        while PAGE - metadata.stat().st_size % PAGE > 80:  # a deletion's record has 90 bytes
            clock += 1
            log.alter_topic("ok", {"retention.ms": 10**15 + clock})
        fill(disk, 0)
        with pytest.raises(DiskFull):
            log.alter_topic("ok", {"retention.ms": 10**15})
        log.delete_topic("big")
        assert free(disk) > 500_000
        assert log.topics() == ["ok"]
        assert log.lag("g") == {}
    with eoslog.open(disk / "log") as log:
        assert log.topics() == ["ok"]
        assert log.check(full=True).ok
        assert [record.value for record in log.read("ok")] == [b"v"]


@pytest.mark.process
def test_field_B5_a_deletion_killed_after_it_made_room_is_completed_later(disk: Path) -> None:
    script = """
import sys
import eoslog
from eoslog.engine import topic_deletion as deletion
log = eoslog.open(sys.argv[1])
info = log._engine.topic("big")
log._engine._deletion._make_room(info)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    prepared(disk / "log").close()
    subprocess.run([sys.executable, "-c", script, str(disk / "log")], check=False)
    with eoslog.open(disk / "log") as log:
        assert log.topics() == ["big", "ok"]
        assert [record.value for record in log.read("ok")] == [b"v"]
        log.delete_topic("big")
        log.create_topic("big")
        with log.producer() as producer:
            producer.send("big", b"new").result(60)
        assert [record.value for record in log.read("big")] == [b"new"]


@pytest.mark.parametrize("call", ["pwrite", "open", "rename", "mkdir", "fsync"])
def test_field_B5_a_creation_that_fails_at_any_call_hides_no_other_topic(
    tmp_path: Path, call: str, disarmed: None
) -> None:
    for nth in range(1, 100):
        path = tmp_path / f"log{nth}"
        with prepared(path) as log:
            files.arm_failpoint(call, "ENOSPC", nth)
            failed = False
            try:
                log.create_topic("t", 2)
                for number in range(2):
                    log._engine.partition("t", number)
            except EoslogError:
                failed = True
            files.disarm_failpoints()
            if "t" in log.topics():
                shows_the_others(log)
                log.delete_topic("t")
            assert log.topics() == ["big", "ok"]
        with eoslog.open(path) as log:
            assert log.check(full=True).ok
        if not failed:
            break
    else:
        pytest.fail(f"{call} was reached in each of 99 creations")


def says_whether_it_exists(log: eoslog.Log, error: DiskFull) -> None:
    made = "t" in log.topics()
    assert ("topic 't' was created, but" in str(error)) == made
    assert ("topic 't' was not created" in str(error)) != made
    if made:
        log.delete_topic("t")


@pytest.mark.process
@pytest.mark.parametrize("pages", range(6))
def test_field_B5_an_error_of_create_topic_on_a_full_disk_says_if_it_exists(
    disk: Path, pages: int
) -> None:
    with prepared(disk / "log") as log:
        fill(disk, pages * PAGE)
        with pytest.raises(DiskFull) as raised:
            log.create_topic("t", 8)
        says_whether_it_exists(log, raised.value)
        log.delete_topic("big")
        assert log.create_topic("t", 8).partitions[7].offsets.log_end == 0


@pytest.mark.process
@pytest.mark.parametrize("pages", range(6))
def test_field_B5_an_error_of_create_partitions_says_how_many_there_are(
    disk: Path, pages: int
) -> None:
    with prepared(disk / "log") as log:
        fill(disk, pages * PAGE)
        with pytest.raises(DiskFull) as raised:
            log.create_partitions("ok", 8)
        have = len(log._engine.topic("ok").partitions)
        kept = "1 of 8 partitions" if have == 1 else "8 partitions now"
        assert f"topic 'ok': it has {kept}" in str(raised.value)
        log.delete_topic("big")
        if have == 1:
            log.create_partitions("ok", 8)
        assert log.describe_topic("ok").partitions[7].offsets.log_end == 0


@pytest.mark.parametrize("call", ["pwrite", "open", "mkdir"])
def test_field_B5_an_error_of_create_topic_at_any_call_says_if_it_exists(
    path: str, call: str, disarmed: None
) -> None:
    found: set[bool] = set()
    with prepared(path) as log:
        for nth in range(1, 60):
            files.arm_failpoint(call, "ENOSPC", nth)
            try:
                log.create_topic("t", 2)
            except DiskFull as error:
                files.disarm_failpoints()
                found.add("t" in log.topics())
                says_whether_it_exists(log, error)
            else:
                break
            finally:
                files.disarm_failpoints()
    assert True in found


@pytest.mark.parametrize("call", ["pwrite", "open", "rename", "fsync"])
def test_field_B5_delete_records_moves_the_start_or_raises_and_keeps_it(
    tmp_path: Path, call: str, disarmed: None
) -> None:
    big = eoslog.TopicPartition("big", 0)
    for nth in range(1, 100):
        path = tmp_path / f"log{nth}"
        with prepared(path) as log:
            files.arm_failpoint(call, "ENOSPC", nth)
            moved = True
            try:
                assert log.delete_records({big: 3}) == {big: 3}
            except EoslogError:
                moved = False
            reached = files._core.fault_count(call) >= nth
            files.disarm_failpoints()
            start = 3 if moved else 0
            assert log.offsets("big", 0).log_start == start
            assert len(list(log.read("big"))) == 6 - start
        with eoslog.open(path) as log:
            assert log.offsets("big", 0).log_start == start
            assert log.delete_records({big: 4}) == {big: 4}
        if not reached:
            break
    else:
        pytest.fail(f"{call} was reached in each of 99 calls")


@pytest.mark.process
@pytest.mark.parametrize("point", ["log.start.noted", "log.start.advanced"])
def test_field_B5_delete_records_killed_midway_leaves_the_old_or_new_start(
    path: str, point: str
) -> None:
    script = """
import sys
import eoslog
from eoslog.storage.fs import files
log = eoslog.open(sys.argv[1])
files.arm_failpoint(sys.argv[2], "kill")
log.delete_records({eoslog.TopicPartition("big", 0): 3})
"""
    with prepared(path) as log:
        done = subprocess.run([sys.executable, "-c", script, path, point], check=False)
        assert done.returncode == -9
        start = log.offsets("big", 0).log_start  # of the session that continues
        assert start == (0 if point == "log.start.noted" else 3)
        assert len(list(log.read("big"))) == 6 - start
        assert log.delete_records({eoslog.TopicPartition("big", 0): 2})
    with eoslog.open(path) as log:
        assert log.offsets("big", 0).log_start in (2, 3)
        assert log.check(full=True).ok


def damage(path: str) -> None:
    """One bit of the first batch of `big` is another one."""
    segment = os.path.join(path, "big-0", f"{0:020d}.log")
    with open(segment, "r+b") as file:
        file.seek(8)
        file.write(b"\x7f\xff\xff\xff")
    os.remove(os.path.join(path, ".kafka_cleanshutdown"))


def test_field_B5_a_damaged_partition_is_named_and_hides_no_other(path: str) -> None:
    prepared(path).close()
    damage(path)
    with eoslog.open(path) as log:
        assert "big-0" in log.stats()["offline"]
        assert log.stats()["partitions"]["ok-0"]["high_watermark"] == 1
        assert not log.check().ok
        assert OK in log.clean()
        assert log.snapshot(["ok"]) == {OK: 1}
        with pytest.raises(CorruptRecord, match="big"):
            log.snapshot()
        log.delete_topic("big")
        assert log.snapshot() == {OK: 1}


def test_field_B5_stats_and_check_name_a_damaged_transaction_log(path: str) -> None:
    with prepared(path) as log:
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("ok", b"w").result(60)
        producer.commit_transaction()
        producer.close()
    [place] = [one for one in os.listdir(path) if one.startswith("__transaction_state-")]
    with open(os.path.join(path, place, f"{0:020d}.log"), "r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff\xff")
    os.remove(os.path.join(path, ".kafka_cleanshutdown"))
    with eoslog.open(path) as log:
        stats = log.stats()
        assert place in stats["offline"]
        assert stats["transactional_ids"] is None
        assert any(place in problem.path for problem in log.check().problems)
