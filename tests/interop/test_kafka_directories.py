"""Directories that brokers leave are read; bytes that no broker writes are not.

The rejection names the file and the value.
"""

from __future__ import annotations

import fcntl
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eoslog import _core, errors
from eoslog.admin.inspect import inspect
from eoslog.client.scan.segment_scan import read_segments, segment_range
from tests.paths import KAFKA_DATA
from tests.reference import codec

pytest.importorskip("pyarrow")

SEGMENTS = KAFKA_DATA / "segments"
TS = 1_700_000_000_000


def make(directory: Path, data: bytes) -> Path:
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(data)
    return directory


def batch(offset: int, count: int = 2, **options: Any) -> bytes:
    data = codec.encode_batch([(TS + i, b"k", b"v" * 30, ()) for i in range(count)], **options)
    return offset.to_bytes(8, "big") + data[8:]


def offsets(path: Path, **options: Any) -> list[int]:
    return read_segments(path, **options).to_table().column("offset").to_pylist()


def until_error(path: Path, **options: Any) -> tuple[list[int], errors.CorruptRecord]:
    found: list[int] = []
    with pytest.raises(errors.CorruptRecord) as raised:
        for rows in read_segments(path, **options):
            found += rows.column("offset").to_pylist()
    return found, raised.value


ISOLATIONS = ("read_committed", "read_uncommitted")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_preallocated_zeros_end_a_log_silently(isolation: str, tmp_path: Path) -> None:
    path = make(tmp_path / "t-0", batch(0) + batch(2) + bytes(100_000))
    assert offsets(path, isolation=isolation) == [0, 1, 2, 3]
    found = inspect(path)
    assert (found["log_end_offset"], found["segments"][0]["preallocated"]) == (4, 100_000)
    assert "corrupt" not in found["segments"][0]


def test_zeros_in_a_segment_before_the_last_are_damage(tmp_path: Path) -> None:
    path = make(tmp_path / "t-0", batch(0) + bytes(5000))
    (path / f"{2:020}.log").write_bytes(batch(2))
    found, error = until_error(path)
    assert found == [0, 1]
    assert str(path) in str(error)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_newer_record_format_is_named_and_the_rest_stays_readable(
    isolation: str, tmp_path: Path
) -> None:
    newer = bytearray(batch(2))
    newer[16] = 3
    first = batch(0)
    path = make(tmp_path / "t-0", first + bytes(newer) + batch(4))
    found, error = until_error(path, isolation=isolation)
    assert found == [0, 1]
    assert isinstance(error, errors.UnsupportedFormat)
    assert error.position == len(first)
    assert str(path) in str(error)
    assert "magic 3, 2 is the newest known" in str(error)
    assert offsets(path, isolation="read_uncommitted", start=4) == [4, 5]
    listed = inspect(path)["segments"][0]
    assert [b["base_offset"] for b in listed["batches"]] == [0, 4]
    assert "magic 3" in listed["corrupt"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_unknown_codec_is_named_and_the_rest_stays_readable(
    isolation: str, tmp_path: Path
) -> None:
    odd = bytearray(batch(2))
    odd[22] |= 6
    odd[17:21] = _core.crc32c(bytes(odd[21:])).to_bytes(4, "big")
    first = batch(0)
    path = make(tmp_path / "t-0", first + bytes(odd) + batch(4))
    found, error = until_error(path, isolation=isolation)
    assert found == [0, 1]
    assert isinstance(error, errors.UnsupportedFormat)
    assert f"{path}/{0:020}.log" in str(error)
    assert error.position == len(first)
    assert "codec 6" in str(error)
    assert offsets(path, isolation=isolation, start=4) == [4, 5]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("length", [-1, 0, 13, 40, 1 << 20, 0x7FFFFFFF])
def test_an_impossible_length_raises_if_batches_follow(
    length: int, isolation: str, tmp_path: Path
) -> None:
    odd = bytearray(batch(2))
    odd[8:12] = length.to_bytes(4, "big", signed=True)
    first = batch(0)
    path = make(tmp_path / "t-0", first + bytes(odd) + batch(4))
    found, error = until_error(path, isolation=isolation)
    assert found == [0, 1]
    assert error.position == len(first)
    assert str(path) in str(error)
    assert offsets(path, isolation="read_uncommitted", start=4) == [4, 5]
    assert [b["base_offset"] for b in inspect(path)["segments"][0]["batches"]] == [0, 4]


def test_a_wrong_checksum_raises_and_the_rest_stays_readable(tmp_path: Path) -> None:
    odd = bytearray(batch(2))
    odd[-1] ^= 1
    path = make(tmp_path / "t-0", batch(0) + bytes(odd) + batch(4))
    found, error = until_error(path)
    assert found == [0, 1]
    assert str(path) in str(error)
    assert offsets(path, start=4) == [4, 5]


@pytest.mark.parametrize("name", ["plain-0", "txn-0"])
def test_missing_indexes_and_snapshots_change_no_result(name: str, tmp_path: Path) -> None:
    expected = json.loads((SEGMENTS / f"{name}.expected.json").read_text())
    path = tmp_path / name
    shutil.copytree(SEGMENTS / name, path)
    for file in path.iterdir():
        if file.suffix != ".log":
            file.unlink()
    for isolation in ISOLATIONS:
        assert offsets(path, isolation=isolation) == expected[f"{isolation}_offsets"]
        for start in expected[f"{isolation}_offsets"][::5]:
            wanted = [o for o in expected[f"{isolation}_offsets"] if o >= start]
            assert offsets(path, isolation=isolation, start=start) == wanted


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex", "snapshot"])
def test_indexes_with_random_bytes_are_not_used(suffix: str, tmp_path: Path) -> None:
    expected = json.loads((SEGMENTS / "txn-0.expected.json").read_text())
    path = tmp_path / "txn-0"
    shutil.copytree(SEGMENTS / "txn-0", path)
    for file in path.glob(f"*.{suffix}"):
        file.write_bytes(b"\x00\x00\x00\x05\x7f\xff\xff\x00" * 20)
    for isolation in ISOLATIONS:
        for start in (0, 10, 30):
            assert offsets(path, isolation=isolation, start=start) == [
                o for o in expected[f"{isolation}_offsets"] if o >= start
            ]


def test_an_entry_for_the_last_of_several_batches_is_used(tmp_path: Path) -> None:
    """Brokers up to 4.0 index an append of several batches by one entry.

    The entry has the first byte and the last offset.
    """
    path = make(tmp_path / "t-0", b"".join(batch(2 * i) for i in range(50)))
    size = len(batch(0))
    entries = [(39, 10 * size), (79, 20 * size)]
    (path / f"{0:020}.index").write_bytes(
        b"".join(o.to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in entries)
    )
    for start in (0, 38, 39, 40, 60, 79, 80, 99):
        assert offsets(path, start=start) == list(range(start, 100))


def test_tasks_read_parts_of_a_plan_of_one_process() -> None:
    """Spark's driver plans once, and its executors each take a range of offsets."""
    expected = json.loads((SEGMENTS / "txn-0.expected.json").read_text())
    for isolation in ISOLATIONS:
        found = pickle.loads(pickle.dumps(segment_range(SEGMENTS / "txn-0", isolation=isolation)))
        assert (found.topic, found.partition, found.start) == ("txn", 0, 0)
        bounds = [0, 7, 8, 23, 30, 1000]
        rows: list[int] = []
        for start, end in zip(bounds, bounds[1:], strict=False):
            rows += offsets(Path(found.path), start=start, end=end, within=found)
        assert rows == expected[f"{isolation}_offsets"]


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_directory_of_a_running_broker_is_rejected_by_default(tmp_path: Path) -> None:
    shutil.copytree(SEGMENTS / "plain-0", tmp_path / "plain-0")
    lock = tmp_path / ".lock"
    lock.touch()
    partition, segment = tmp_path / "plain-0", tmp_path / "plain-0" / f"{0:020}.log"
    assert len(offsets(partition)) == 200  # a broker that is gone leaves the file
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()
        for path in (partition, segment):
            for call in (read_segments, segment_range, inspect):
                with pytest.raises(errors.LockTimeout, match=f"{lock} is held.*{broker.pid}"):
                    call(path)
            assert offsets(path, read_only_anyway=True)
            assert inspect(path, read_only_anyway=True)
        with lock.open("r+") as file, pytest.raises(OSError):  # asking has not freed it
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        broker.communicate()
    assert len(offsets(partition)) == 200


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "txn-0"
    shutil.copytree(SEGMENTS / "txn-0", path)
    whole = inspect(path)
    snapshot, index = path / f"{41:020}.snapshot", path / f"{23:020}.txnindex"
    snapshot.write_bytes(b"\0\1junk")
    index.write_bytes(b"\0\7" + index.read_bytes()[2:])
    (path / "leader-epoch-checkpoint").write_text("7\n")
    found = inspect(path)
    assert str(snapshot) in found["snapshots"][snapshot.name]["error"]
    assert "version 7" in found["segments"][1]["error"]
    assert "leader-epoch-checkpoint" in found["error"]
    assert found["segments"][0] == whole["segments"][0]
    assert found["segments"][1]["batches"] == whole["segments"][1]["batches"]
    assert found["read_committed_offsets"] == whole["read_committed_offsets"]
    for file in (snapshot, index):
        with pytest.raises(errors.CorruptRecord, match=str(file)):
            inspect(file)
