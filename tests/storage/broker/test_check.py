"""Checks of brokers' directories find no problem, and name damage by place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog import _core, errors
from eoslog.admin.inspect import inspect
from eoslog.storage.format import checkpoints
from tests.captures import unpack
from tests.paths import KAFKA_DATA as KAFKA

TXN = KAFKA / "segments" / "txn-0"


@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_check_finds_no_problem_in_directories_of_a_broker(version: str, tmp_path: Path) -> None:
    unpack(KAFKA / f"broker-{version}.tar.xz", tmp_path)
    report = eoslog.check(tmp_path / "logs", full=True)
    assert report.problems == []
    assert report.partitions > 10
    assert report.records > 100


def test_check_reads_samples_and_old_formats_of_kafka() -> None:
    report = eoslog.check(
        KAFKA / "segments" / "plain-0", TXN, full=True
    )  # several paths are one report
    assert (report.problems, report.partitions) == ([], 2)
    expected = inspect(TXN)["segments"]
    assert eoslog.check(TXN).batches == sum(len(segment["batches"]) for segment in expected)
    report = eoslog.check(KAFKA / "legacy" / "legacy-0", full=True)
    assert [p.message[:7] for p in report.problems] == ["missing"]  # its index
    assert (report.batches, report.records) == (36, 84)


@pytest.fixture
def txn(tmp_path: Path) -> Path:
    shutil.copytree(TXN, tmp_path / "txn-0")
    return tmp_path / "txn-0"


def found(path: Path) -> list[tuple[str, int]]:
    return [(Path(p.path).name, p.position) for p in eoslog.check(path, full=True).problems]


def test_a_flipped_bit_is_found_where_it_is_and_the_rest_is_checked_too(txn: Path) -> None:
    log = txn / f"{0:020}.log"
    batches = inspect(log)["batches"]
    data = bytearray(log.read_bytes())
    for batch in (batches[1], batches[4]):
        data[batch["position"] + 62] ^= 4
    log.write_bytes(data)
    assert found(txn) == [(log.name, batches[1]["position"]), (log.name, batches[4]["position"])]


@pytest.mark.parametrize(
    ("at", "bytes_", "words"),
    [
        (22, b"\x16", "compression codec is 6, expected 0 to 4"),
        (57, b"\x7f\xff\xff\xff", "2147483647 records in offsets"),
        (57, b"\xff\xff\xff\xff", "cannot belong to a batch of -1 records"),
        (23, b"\xff\xff\xff\xff", "cannot belong to a batch of"),
    ],
)
def test_check_names_an_impossible_header_although_its_checksum_is_right(
    at: int, bytes_: bytes, words: str, txn: Path
) -> None:
    log = txn / f"{0:020}.log"
    second = inspect(log)["batches"][1]
    data = bytearray(log.read_bytes())
    begin, end = second["position"], second["position"] + second["size"]
    data[begin + at : begin + at + len(bytes_)] = bytes_
    data[begin + 17 : begin + 21] = _core.crc32c(bytes(data[begin + 21 : end])).to_bytes(4, "big")
    log.write_bytes(data)
    problems = [(p.position, p.message) for p in eoslog.check(txn).problems if p.path == str(log)]
    assert [position for position, _ in problems] == [begin]
    assert words in problems[0][1]


def test_check_names_the_file_of_a_topic_id_that_disagrees(tmp_path: Path) -> None:
    unpack(KAFKA / "broker-4.3.1.tar.xz", tmp_path)
    checkpoints.write_partition_metadata(str(tmp_path / "logs" / "nulls-0"), bytes(range(16)))
    report = eoslog.check(tmp_path / "logs")
    (problem,) = report.problems
    assert problem.path.endswith("nulls-0/partition.metadata")
    assert problem.message.startswith("topic 'nulls': a partition has another topic id: expected")
    assert report.partitions > 10


def test_check_names_a_newer_format_and_a_torn_tail(txn: Path) -> None:
    log, last = txn / f"{0:020}.log", txn / f"{23:020}.log"
    second = inspect(log)["batches"][1]["position"]
    data = bytearray(log.read_bytes())
    data[second + 16] = 3
    log.write_bytes(data)
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(data[:40])
    problems = {(Path(p.path).name, p.position): p.message for p in eoslog.check(txn).problems}
    assert "magic 3" in problems[log.name, second]
    assert problems[last.name, size] == "40 bytes are not a complete batch"


@pytest.mark.parametrize(
    ("suffix", "position"), [("index", 0), ("timeindex", 12), ("txnindex", 0), ("snapshot", 0)]
)
def test_check_names_indexes_and_snapshots_that_fit_no_batch(
    suffix: str, position: int, txn: Path
) -> None:
    path = txn / f"{23:020}.{suffix}"
    data = bytearray(path.read_bytes())
    data[position : position + 12] = b"\x00\x03" + b"\x11" * 10
    path.write_bytes(data)
    assert path.name in [name for name, _ in found(txn)]


def test_check_accepts_zeros_after_an_unclean_stop(txn: Path) -> None:
    for suffix in ("log", "index", "timeindex"):
        with (txn / f"{23:020}.{suffix}").open("ab") as file:
            file.write(bytes(24_000))
    assert found(txn) == []


def test_check_rejects_a_path_that_is_not_a_broker_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="is not a partition directory"):
        eoslog.check(tmp_path)


def test_check_recognises_a_partition_by_the_files_in_its_directory(tmp_path: Path) -> None:
    """Folders of other programs are named NAME-NUMBER too: /etc/dbus-1."""
    for name in ("dbus-1", "empty-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "dbus-1" / "session.conf").touch()
    with pytest.raises(
        errors.ConfigError, match="is not a partition directory and does not contain one"
    ):
        eoslog.check(tmp_path)
    shutil.copytree(TXN, tmp_path / "txn-0")
    assert eoslog.check(tmp_path).partitions == 1
    (tmp_path / "index-0").mkdir()
    (tmp_path / "index-0" / f"{0:020d}.index").touch()
    checkpoints.write_offsets(
        str(tmp_path / checkpoints.RECOVERY_POINT_CHECKPOINT), {("empty", 0): 7}
    )
    report = eoslog.check(tmp_path)
    assert report.partitions == 3
    assert [Path(one.path).name for one in report.problems] == ["empty-0"]


def _remove_first(place: Path) -> str:
    name = min(path.stem for path in place.glob("*.log"))
    for path in place.glob(f"{name}.*"):
        path.unlink()
    return min(path.name for path in place.glob("*.log"))


def _remove_middle(place: Path) -> str:
    name = sorted(path.name for path in place.glob("*.log"))[1]
    (place / name).unlink()
    return sorted(path.name for path in place.glob("*.log"))[1]


def _empty_middle(place: Path) -> str:
    path = sorted(place.glob("*.log"))[1]
    path.write_bytes(b"")
    return path.name


def _take_another_log(place: Path) -> str:
    path = min(place.glob("*.log"))
    shutil.copyfile(min((place.parent / "u-0").glob("*.log")), path)
    return path.name


def _take_another_id(place: Path) -> str:
    name = checkpoints.PARTITION_METADATA
    shutil.copyfile(place.parent / "u-0" / name, place / name)
    return name


def _remove_properties(place: Path) -> str:
    (place.parent / checkpoints.META_PROPERTIES).unlink()
    return checkpoints.META_PROPERTIES


@pytest.mark.parametrize(
    "damage",
    [
        _remove_first, _remove_middle, _empty_middle, _take_another_log, _take_another_id,
        _remove_properties,
    ],
)  # fmt: skip
def test_check_names_the_file_without_which_a_closed_log_is_not_whole(
    damage: Callable[[Path], str], tmp_path: Path
) -> None:
    """Opening or reading such a log raises an error."""
    with eoslog.open(tmp_path) as log, log.producer() as producer:
        for topic in ("t", "u"):
            log.create_topic(topic, config={"segment.bytes": 2048})
        for number in range(40):
            for topic in ("t", "u"):
                producer.produce(topic, f"{topic} {number} ".encode() * 60)
            producer.flush()
        assert len(list((tmp_path / "t-0").glob("*.log"))) > 3
    assert eoslog.check(tmp_path, full=True).problems == []
    expected = damage(tmp_path / "t-0")
    assert expected in {Path(one.path).name for one in eoslog.check(tmp_path).problems}
    if expected != checkpoints.META_PROPERTIES:
        assert expected in {Path(one.path).name for one in eoslog.check(tmp_path / "t-0").problems}
    if damage not in (_empty_middle, _take_another_log):  # these get a new seal
        fixed = eoslog.check(tmp_path, fix_indexes=True)
        assert expected in {Path(one.path).name for one in fixed.problems}


@pytest.mark.process
@pytest.mark.parametrize("lost", ["durable", "carried"])
def test_check_names_a_log_that_ends_below_what_a_decision_carries(
    lost: str, tmp_path: Path
) -> None:
    """The next opening writes carried batches that the log lacks."""
    script = """
import os, signal, sys, eoslog
log = eoslog.open(sys.argv[1])
log.create_topic("t", config={"flush.ms": 3_600_000})
with log.producer() as producer:
    producer.send("t", b"before").result()
producer = log.producer({"transactional.id": "x"})
producer.init_transactions()
with producer.transaction() as transaction:
    transaction.produce("t", b"carried")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    log = tmp_path / "t-0" / f"{0:020}.log"
    assert eoslog.check(tmp_path).problems == []
    os.truncate(log, 0 if lost == "durable" else inspect(log)["batches"][1]["position"])
    names = {Path(one.path).name for one in eoslog.check(tmp_path).problems if one.path != str(log)}
    assert ("t-0" in names) == (lost == "durable")
    if lost == "durable":
        with eoslog.open(tmp_path) as opened, pytest.raises(errors.CorruptRecord):
            list(opened.read("t"))
    else:
        with eoslog.open(tmp_path) as opened:
            assert [record.value for record in opened.read("t")] == [b"before", b"carried"]


def test_check_of_files_allows_the_gaps_of_a_cleaner_and_of_retention(tmp_path: Path) -> None:
    with eoslog.open(tmp_path) as log, log.producer() as producer:
        log.create_topic("c", config={"segment.bytes": 2048, "cleanup.policy": "compact"})
        log.create_topic("d", config={"segment.bytes": 2048})
        for number in range(30):
            producer.produce("c", b"v" * 500, key=str(number % 4))
            producer.produce("d", b"v" * 500)
            producer.flush()
        log.clean("c", roll=True)
        log.delete_records({eoslog.TopicPartition("d", 0): 17})
        assert eoslog.check(tmp_path, full=True).problems == []
    assert eoslog.check(tmp_path, full=True).problems == []
