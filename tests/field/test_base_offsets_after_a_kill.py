"""A flipped bit raised a base offset in the last segment of a killed directory.

Kafka's CRC does not cover a base offset, and after a kill no file says where the log ends. Appends
leave no gap, so a gap in the last segment is the damage. Logs with gaps of a broker's cleaner stay
readable.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import CorruptRecord, EoslogError
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.format import checkpoints
from tests.field.test_batch_headers import READERS, Row

BATCHES, EACH = 5, 3
LAST = BATCHES - 1
VALUE = b"%d-%d"

FILL = """
import os, sys, eoslog
log = eoslog.open(sys.argv[1])
if "t" not in log.topics():
    log.create_topic("t")
producer = log.producer()
for i in map(int, sys.argv[2:]):
    producer.produce_many("t", [b"%d-%d" % (i, k) for k in range(3)])
    producer.flush()
os.kill(os.getpid(), 9)
"""


def fill_and_die(directory: Path, *numbers: int) -> None:
    """Append batches of three records in a process that is killed after its flush."""
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(directory), *map(str, numbers)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("killed") / "log"
    fill_and_die(directory, *range(BATCHES))
    return directory


@pytest.fixture
def directory(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "log"))


def active(directory: Path) -> Path:
    return max((directory / "t-0").glob("*.log"))


def raise_base(file: Path, number: int, by: int = 1 << 8) -> int:
    """Raise the base offset of a batch; its byte in the file."""
    data = bytearray(file.read_bytes())
    at = list(_core.iter_batches(bytes(data)))[number].position
    base = int.from_bytes(data[at : at + 8], "big")
    assert base & by == 0
    data[at : at + 8] = (base | by).to_bytes(8, "big")
    file.write_bytes(data)
    return at


def expected(*numbers: int) -> list[tuple[int, bytes]]:
    return [(EACH * i + k, VALUE % (i, k)) for i in numbers for k in range(EACH)]


def records(directory: Path) -> list[tuple[int, bytes]]:
    with eoslog.open(directory) as log:
        assert log.check(full=True).ok
        return [(record.offset, record.value) for record in log.read("t")]


@pytest.mark.parametrize("number", [0, 2, LAST])
@pytest.mark.parametrize("reader", READERS)
def test_field_A6_a_raised_base_offset_after_a_kill_is_rejected(
    reader: str, number: int, killed: Path, directory: Path
) -> None:
    for bit in (4, 8, 31, 40, 62):
        shutil.rmtree(directory)
        shutil.copytree(killed, directory)
        raise_base(active(directory), number, 1 << bit)
        out: list[Row] = []
        with pytest.raises(EoslogError) as failed:
            READERS[reader](directory, out)
        assert isinstance(failed.value, CorruptRecord) or "damaged" in str(failed.value)
        assert [row[:2] for row in out] == expected(*range(BATCHES))[: len(out)]


@pytest.mark.parametrize("known", [True, False], ids=["flushed", "flush-unknown"])
@pytest.mark.parametrize("number", [0, 2, LAST])
@pytest.mark.parametrize("by", [1 << 8, 1 << 37], ids=["near", "too-far-for-an-index"])
def test_field_A6_recovery_cuts_no_batch_with_a_raised_base_offset(
    by: int, number: int, known: bool, directory: Path
) -> None:
    if not known:  # nothing says that the batches were durable
        os.remove(directory / "eoslog.control")
    at = raise_base(active(directory), number, by)
    before = active(directory).read_bytes()
    said = f"the batch at byte {at} is damaged: expected {EACH * number}, got {EACH * number + by}"
    for read_only in (True, False):
        with (
            pytest.raises(CorruptRecord, match=said),
            eoslog.open(directory, read_only=read_only) as log,
        ):
            list(log.read("t"))
        assert active(directory).read_bytes() == before
    assert not eoslog.check(directory).ok


@pytest.mark.parametrize("mode", ["skip", "cut"])
@pytest.mark.parametrize("number", [0, 2, LAST])
def test_field_A6_a_log_with_a_repaired_base_offset_continues_after_a_kill(
    mode: str, number: int, directory: Path
) -> None:
    raise_base(active(directory), number)
    (found,) = eoslog.repair(directory).damage
    assert (found.first_offset, found.last_offset) == (EACH * number, EACH * number + EACH - 1)
    assert found.records_after == EACH * (LAST - number)
    report = eoslog.repair(directory, mode)
    assert report.kept and not report.refused
    assert eoslog.repair(directory).ok
    kept = range(number) if mode == "cut" else [i for i in range(BATCHES) if i != number]
    fill_and_die(directory, BATCHES)
    fill_and_die(directory, BATCHES + 1)
    assert records(directory) == expected(*kept, BATCHES, BATCHES + 1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("mode", ["skip", "cut"])
@pytest.mark.parametrize("number", [0, 2, LAST])
def test_field_A6_a_repair_of_the_highest_base_offset_keeps_copies(
    mode: str, number: int, clean: bool, directory: Path
) -> None:
    if clean:
        eoslog.open(directory).close()
    raise_base(active(directory), number, (1 << 63) - 1 - EACH * number)
    (found,) = eoslog.repair(directory).damage
    assert found.first_offset == EACH * number
    report = eoslog.repair(directory, mode)
    assert report.kept and not report.refused
    kept = range(number) if mode == "cut" else [i for i in range(BATCHES) if i != number]
    assert records(directory) == expected(*kept)


def broker_directory(root: Path) -> Path:
    """A stopped broker whose active segment has gaps, like a compacted replica."""
    place = root / "t-0"
    place.mkdir(parents=True)
    now = time.time_ns() // 1_000_000
    (root / "meta.properties").write_text("version=0\ncluster.id=abc\nbroker.id=3\n")
    batches = [
        bytes(_core.build_batch([(now, b"%d" % base, b"v", ())], base_offset=base))
        for base in (2, 3, 9, 40)
    ]
    (place / f"{0:020}.log").write_bytes(b"".join(batches))
    return place


@pytest.mark.parametrize("clean", [True, False])
def test_field_A6_an_imported_log_keeps_the_gaps_of_its_broker(clean: bool, tmp_path: Path) -> None:
    place = broker_directory(tmp_path / "broker")
    if clean:
        (place.parent / ".kafka_cleanshutdown").touch()
    found = [record.offset for record in eoslog.read_segments(place).records()]
    assert found == [2, 3, 9, 40]
    eoslog.import_kafka_dir(place.parent, tmp_path / "log")
    directory = tmp_path / "log"
    for number in range(2):
        fill_and_die(directory, number)
        assert [offset for offset, _ in records(directory)][:4] == found
        assert eoslog.check(directory).ok and eoslog.repair(directory).ok
    fill_and_die(directory, 2)
    assert [offset for offset, _ in records(directory)] == [*found, *range(41, 50)]
    fill_and_die(directory, 3)
    raise_base(active(directory), 5, 1 << 9)
    with pytest.raises(CorruptRecord, match="expected 44, got 556"), eoslog.open(directory) as log:
        list(log.read("t"))


def test_field_A6_a_cleaner_keeps_the_record_of_a_brokers_gaps(tmp_path: Path) -> None:
    """Its own progress ends below them, at the base of the active segment."""
    place = broker_directory(tmp_path / "broker")
    now = time.time_ns() // 1_000_000
    later = bytes(_core.build_batch([(now, b"k", b"v", ())], base_offset=70))
    (place / f"{60:020}.log").write_bytes(later)
    eoslog.import_kafka_dir(place.parent, tmp_path / "log")
    with eoslog.open(tmp_path / "log") as log:
        log.alter_topic("t", {"cleanup.policy": "compact"})
        log.clean("t")
    fill = FILL.replace("range(3)])", "range(3)], keys=[b'k'] * 3)")
    done = subprocess.run([sys.executable, "-c", fill, str(tmp_path / "log"), "0"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [offset for offset, _ in records(tmp_path / "log")][-4:] == [70, 71, 72, 73]


@pytest.mark.parametrize("mode", ["cut", "as-kafka"])
def test_field_A6_a_compacted_segment_can_become_the_last_one(mode: str, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with eoslog.open(directory) as log:
        log.create_topic("t", config={"cleanup.policy": "compact"})
        with log.producer() as producer:
            for number in range(12):
                producer.send("t", b"%d" % number, b"%d" % (number % 4)).result(60)
            log._engine.partition("t", 0).roll()
            producer.send("t", b"last", b"last").result(60)
        log.clean("t")
        log.alter_topic("t", {"cleanup.policy": "delete"})
    # As after a kill between the last swap of a pass and its note.
    offset_checkpoints.write(str(directory), checkpoints.CLEANER_CHECKPOINT, {})
    segment = directory / "t-0" / f"{0:020}.log"
    batches = list(_core.iter_batches(segment.read_bytes()))
    assert batches[0].base_offset == 8
    data = bytearray(segment.read_bytes())
    data[batches[2].position + 64] ^= 1
    segment.write_bytes(data)
    if mode == "as-kafka":  # a broker reads nothing below the recovery point
        for name in (offset_checkpoints.FILE, checkpoints.RECOVERY_POINT_CHECKPOINT):
            os.remove(directory / name)
    eoslog.repair(directory, mode)
    assert eoslog.repair(directory).ok
    for number in range(2):
        fill_and_die(directory, number)
    found = records(directory)
    assert found[:2] == [(8, b"8"), (9, b"9")]
    assert [value for _, value in found[2:]] == [value for _, value in expected(0, 1)]
