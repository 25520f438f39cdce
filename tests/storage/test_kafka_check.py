"""Checking what brokers left: nothing to say of real directories, each damage named by its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import eoslog
from eoslog import _core, errors
from eoslog.client.inspect import inspect
from eoslog.storage import checkpoints
from tests.captures import unpack

KAFKA = Path(__file__).parent.parent / "data" / "kafka"
TXN = KAFKA / "segments" / "txn-0"


@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_nothing_is_wrong_with_what_a_broker_left(version: str, tmp_path: Path) -> None:
    unpack(KAFKA / f"broker-{version}.tar.xz", tmp_path)
    report = eoslog.check(tmp_path / "logs", full=True)
    assert report.problems == []
    assert report.partitions > 10
    assert report.records > 100


def test_samples_and_old_formats() -> None:
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
        (22, b"\x16", "compression codec 6, 4 is the highest known"),
        (57, b"\x7f\xff\xff\xff", "2147483647 records in offsets"),
        (57, b"\xff\xff\xff\xff", "-1 records: no batch can have these"),
        (23, b"\xff\xff\xff\xff", "no batch can have these"),
    ],
)
def test_a_header_that_makes_no_sense_is_named_though_its_checksum_is_right(
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


def test_topic_ids_that_disagree_are_named_with_their_file(tmp_path: Path) -> None:
    unpack(KAFKA / "broker-4.3.1.tar.xz", tmp_path)
    checkpoints.write_partition_metadata(str(tmp_path / "logs" / "nulls-0"), bytes(range(16)))
    report = eoslog.check(tmp_path / "logs")
    (problem,) = report.problems
    assert problem.path.endswith("nulls-0/partition.metadata")
    assert problem.message.startswith("topic id of nulls: expected")
    assert report.partitions > 10


def test_a_newer_format_and_a_torn_tail(txn: Path) -> None:
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
    assert problems[last.name, size] == "40 bytes are no whole batch"


@pytest.mark.parametrize(
    ("suffix", "position"), [("index", 0), ("timeindex", 12), ("txnindex", 0), ("snapshot", 0)]
)
def test_indexes_and_snapshots_that_fit_no_batch(suffix: str, position: int, txn: Path) -> None:
    path = txn / f"{23:020}.{suffix}"
    data = bytearray(path.read_bytes())
    data[position : position + 12] = b"\x00\x03" + b"\x11" * 10
    path.write_bytes(data)
    assert path.name in [name for name, _ in found(txn)]


def test_zeros_of_an_unclean_stop_are_not_damage(txn: Path) -> None:
    for suffix in ("log", "index", "timeindex"):
        with (txn / f"{23:020}.{suffix}").open("ab") as file:
            file.write(bytes(24_000))
    assert found(txn) == []


def test_paths_that_are_no_broker(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="holds no partition directory"):
        eoslog.check(tmp_path)


def test_a_folder_is_a_partition_by_what_it_holds(tmp_path: Path) -> None:
    """Folders of other programs are named NAME-NUMBER too: /etc/dbus-1."""
    for name in ("dbus-1", "empty-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "dbus-1" / "session.conf").touch()
    with pytest.raises(errors.ConfigError, match="holds no partition directory and is none"):
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
