"""Recovery restores what a power loss took of a carried commit.

Each directory is of a process that was killed. A power loss keeps what was flushed, and any part
of the other bytes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, errors
from eoslog.engine.engine import Engine
from eoslog.storage.directory.session import CONTROL_FILE
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from tests.coordinator.transactions.carried.carried_images import (
    LATE,
    Killed,
    content,
    durable_end,
    late_world,
    lose_from,
    position,
    without_zeros,
)
from tests.coordinator.transactions.test_engine import RealWorld
from tests.coordinator.world import A0, A1, B0, Writer
from tests.faults.harness import Child, every_point
from tests.reference import codec
from tests.storage.helpers import batch

pytestmark = pytest.mark.process
PLAIN = batch(1, producer_id=77, sequence=0, size=3)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, because hundreds of images are opened."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def values(path: Path, *partitions: TopicPartition) -> list[list[bytes]]:
    """Open for writing, and read what is committed."""
    world = RealWorld(path, background=False)
    try:
        found = [world.values(tp) for tp in partitions]
        for tp in partitions:
            assert world.log(tp).open_transactions() == []
        return found
    finally:
        world.close()


def transactions(path: Path, *, preallocate: bool = False) -> list[PartitionLog]:
    """Commit once with a flush and twice without, with other records between."""
    world = late_world(path, preallocate=preallocate)
    writer, other = Writer(world, "t"), Writer(world, "u")
    writer.write(A0, b"0")
    writer.write(A1, b"0")
    writer.commit()
    for tp in (A0, A1):
        world.log(tp).flush()
    writer.write(A0, b"1")
    writer.write(A1, b"1")
    writer.commit()
    world.log(A0).append(PLAIN)
    other.write(A0, b"aborted")
    other.abort()
    writer.write(A0, b"2", b"3")
    writer.commit()
    return [world.log(A0), world.log(A1)]


A0_VALUES, A1_VALUES = [b"0", b"1", b"vvv", b"2", b"3"], [b"0", b"1"]


@pytest.mark.slow
def test_carried_records_are_restored_after_a_cut_at_any_byte(place: Path) -> None:
    killed = Killed(place / "d", transactions)
    for name, part in killed.parts.items():
        assert part.flushed < part.covered < len(part.data)
        for size in range(part.flushed, len(part.data)):
            with killed.image({name: part.data[:size]}) as image:
                assert values(image, A0, A1) == [A0_VALUES, A1_VALUES], f"{name} {size}"
                found = (image / part.file).read_bytes()
                assert found[: part.covered] == part.data[: part.covered]


def garbage(data: bytes, size: int) -> bytes:
    return data[:size] + bytes(b ^ 0x5A for b in data[size:])


def zeros(data: bytes, size: int) -> bytes:
    return data[:size] + bytes(len(data) - size)


def stale_batches(data: bytes, size: int) -> bytes:
    """The beginning of the file again: valid batches with lower offsets."""
    return data[:size] + data[: len(data) - size]


def a_hole(data: bytes, size: int) -> bytes:
    """One sector is lost, and the rest was written."""
    return data[:size] + bytes(len(data[size : size + 64])) + data[size + 64 :]


@pytest.mark.slow
@pytest.mark.parametrize("tail", [garbage, zeros, stale_batches, a_hole])
def test_carried_records_are_restored_over_any_bytes_of_a_torn_tail(place: Path, tail: Any) -> None:
    killed = Killed(place / "d", transactions)
    part = killed.parts["a-0"]
    for size in sorted({*range(part.flushed, len(part.data), 11), *part.borders()}):
        with killed.image({"a-0": tail(part.data, size)}) as image:
            assert values(image, A0, A1) == [A0_VALUES, A1_VALUES], size
            assert (image / part.file).read_bytes()[: part.covered] == part.data[: part.covered]


def commit_offsets(path: Path) -> list[PartitionLog]:
    """Commit records of two partitions, and a group's offset."""
    with eoslog.open(path) as log:
        log.create_topic("in")
        log.create_topic("t", 2, config=LATE)
        log._engine._background.close()  # it flushes __consumer_offsets within 10 ms
        producer = log.producer(transactional_id="x", linger_ms=0)
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.produce("t", value=str(number), partition=number)
        producer.send_offsets_to_transaction({TopicPartition("in", 0): 7}, "g")
        producer.commit_transaction()
        engine = Engine.open(path)
        parts = [engine.partition("t", 0), engine.partition("t", 1), *engine.group_partitions()]
        return parts


@pytest.mark.slow
def test_records_and_offsets_agree_after_any_power_loss(place: Path) -> None:
    killed = Killed(place / "d", commit_offsets)
    assert len(killed.parts) == 3
    cuts = {
        name: [part.data[:size] for end in part.borders() for size in (end, end - 9) if size >= 0]
        for name, part in killed.parts.items()
    }
    for chosen in itertools.product(*cuts.values()):
        sizes = [len(data) for data in chosen]
        with (
            killed.image(dict(zip(cuts, chosen, strict=True))) as image,
            eoslog.open(image) as log,
        ):
            assert [r.value for r in log.read("t")] == [b"0", b"1"], sizes
            (found,) = log.describe_group("g").offsets.values()
            assert found.offset == 7, sizes


# -- the decisions of two logs


def prepared_by_two(path: Path) -> dict[str, Path]:
    """Append two overlapping decisions that nothing has flushed.

    Returns:
        The coordinator's log file of each id.
    """
    world = late_world(path)
    names = {name: world.engine.transaction_partition(name).name for name in ("one", "two")}
    assert len(set(names.values())) == 2
    world.close()

    def prepare(name: str, fault: str) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            world = RealWorld(path)
            world.engine._background.close()
            writer = Writer(world, name)
            for tp in (A0, B0):
                writer.write(tp, name.encode())
            files.arm_failpoint("txn.prepared", fault)
            writer.commit()
        finally:
            os._exit(1)

    first = prepare("one", "stop")
    assert os.WIFSTOPPED(os.waitpid(first, os.WUNTRACED)[1])
    second = prepare("two", "kill")
    assert os.waitpid(second, 0)[1] == signal.SIGKILL
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    return {key: path / name / f"{0:020}.log" for key, name in names.items()}


def lose_last_batch(file: Path) -> None:
    *_, last = codec.iter_batches(without_zeros(file.read_bytes()))
    lose_from(file, last.position)


@pytest.mark.slow
@pytest.mark.parametrize("durable", [(), ("one",), ("two",), ("one", "two")])
def test_overlapping_carried_batches_commit_only_their_own_transaction(
    place: Path, durable: tuple[str, ...]
) -> None:
    """The second carries the first one's records, which stay aborted by themselves."""
    decisions = prepared_by_two(place / "d")
    for key, file in decisions.items():
        if key not in durable:
            lose_last_batch(file)
    parts = [place / "d" / f"{name}-0" / f"{0:020}.log" for name in ("a", "b")]
    cuts = []
    for file in parts:
        data = file.read_bytes()
        cuts.append([data[:end] for end in (0, *_ends(data))])
        assert len(cuts[-1]) == 3
    expected = [[key.encode() for key in durable]] * 2
    for chosen in itertools.product(*cuts):
        image = place / "image"
        shutil.copytree(place / "d", image)
        for file, data in zip(parts, chosen, strict=True):
            (image / file.relative_to(place / "d")).write_bytes(data)
        assert values(image, A0, B0) == expected, [len(data) for data in chosen]
        assert values(image, A0, B0) == expected
        shutil.rmtree(image)


def _ends(data: bytes) -> list[int]:
    return [b.position + b.size for b in codec.iter_batches(data)]


# -- rolls


def roll_between(path: Path, *, preallocate: bool = False) -> list[PartitionLog]:
    """Two carried commits, the second one in the second segment."""
    world = late_world(path, preallocate=preallocate)
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.commit()
    world.log(A0).roll()
    writer.write(A0, b"2")
    writer.commit()
    assert len(world.log(A0).segments.bases()) == 2
    return []


def _segments(path: Path) -> list[Path]:
    return sorted((path / "a-0").glob("*.log"))


@pytest.mark.parametrize("lost", ["later", "earlier", "both", "earlier tail"])
def test_carried_records_are_restored_after_a_roll_was_lost(place: Path, lost: str) -> None:
    """The later segment has lost its name, or the earlier one its content."""
    Killed(place / "d", roll_between)
    earlier, later = _segments(place / "d")
    if lost != "later":
        data = earlier.read_bytes()
        earlier.write_bytes(data[: -5 if lost == "earlier tail" else 0])
    if lost in ("later", "both"):
        for file in later.parent.glob(f"{later.stem}.*"):
            file.unlink()
    assert values(place / "d", A0) == [[b"1", b"2"]]
    assert values(place / "d", A0) == [[b"1", b"2"]]


# -- what the coordinator's log keeps


def clean_decisions(path: Path) -> list[PartitionLog]:
    """Commit often, and clean the coordinator's log while nothing else is flushed."""
    log = eoslog.open(path)
    log.create_topic("t", config=LATE)
    producer = log.producer(transactional_id="x", linger_ms=0)
    producer.init_transactions()
    engine = Engine.open(path)
    (clog,) = engine.transaction_partitions()
    for number in range(30):
        producer.begin_transaction()
        producer.produce("t", value=str(number))
        producer.commit_transaction()
        if number % 10 == 9:  # each time, earlier markers are below the high watermark
            clog.flush()
            log.clean("__transaction_state", roll=True)
    return [engine.partition("t", 0)]


def test_no_decision_is_cleaned_before_its_records_are_in_the_files(place: Path) -> None:
    killed = Killed(place / "d", clean_decisions)
    assert killed.parts["t-0"].flushed == 0
    with killed.image(killed.cut()) as image, eoslog.open(image) as log:
        assert [r.value for r in log.read("t")] == [b"%d" % number for number in range(30)]


def recreate(path: Path) -> list[PartitionLog]:
    """Delete a topic after a carried commit, create it again, and write one record."""
    world = late_world(path)
    writer = Writer(world, "t")
    writer.write(A0, b"old")
    writer.write(B0, b"kept")
    writer.commit()
    world.engine.topics.delete("a")
    world.engine.metadata.create_topic("a", 2, LATE)
    world.log(A0).append(PLAIN)
    return [world.log(A0), world.log(B0)]


@pytest.mark.parametrize("flushed", [True, False])
def test_records_of_a_deleted_topic_are_not_restored_into_its_namesake(
    place: Path, flushed: bool
) -> None:
    killed = Killed(place / "d", recreate)
    tails = killed.cut()
    if flushed:
        tails["a-0"] = killed.parts["a-0"].data
    with killed.image(tails) as image:
        assert values(image, A0, B0) == [[b"vvv"] if flushed else [], [b"kept"]]


# -- recovery itself is interrupted


def recover(child: Child, path: Path) -> None:
    """Open and read, and be killed on the way."""
    child.armed()
    world = RealWorld(path)
    for tp in (A0, A1):
        world.values(tp)


@pytest.mark.slow
def test_carried_records_are_restored_after_kills_in_two_recoveries(place: Path) -> None:
    """Each of the two is killed at any write or sync; then the power fails again."""
    killed = Killed(place / "d", transactions)
    part = killed.parts["a-0"]
    with killed.image(killed.cut()) as image:
        seen = 0
        for call, nth, first, _ in every_point(recover, image, most=8):
            found = (first / part.file).read_bytes()
            synced = position(found, durable_end(first, part.slot))
            for kept in {synced, (synced + len(found)) // 2, len(found)}:
                second = place / "second" / "d"
                shutil.rmtree(second.parent, ignore_errors=True)
                shutil.copytree(first, second)
                os.truncate(second / part.file, kept)
                for _, _, third, _ in every_point(recover, second, most=2):
                    assert values(third, A0, A1) == [A0_VALUES, A1_VALUES], (call, nth, kept)
                    found = (third / part.file).read_bytes()
                    assert found[: part.covered] == part.data[: part.covered]
                    seen += 1
        assert seen > 20


# -- what is not torn


@pytest.mark.parametrize("inside", [0, 9])
def test_a_hole_below_the_carried_batches_is_reported_and_nothing_changes(
    place: Path, inside: int
) -> None:
    """The log lacks flushed records, which no decision carries."""
    killed = Killed(place / "d", transactions)
    part = killed.parts["a-0"]
    first = next(iter(codec.iter_batches(part.data)))
    hole = part.data[: first.position + first.size + inside]
    with killed.image({"a-0": hole}) as image:
        (image / CONTROL_FILE).unlink()  # as in a copy: only the decision shows what was durable
        world = RealWorld(image, background=False)
        try:
            for _ in range(2):
                with pytest.raises(errors.CorruptRecord):
                    world.log(A0)
                assert (image / part.file).read_bytes() == hole
            assert world.values(A1) == A1_VALUES
        finally:
            world.close()
        assert (image / part.file).read_bytes() == hole


def test_a_private_reader_refuses_a_partition_that_lacks_carried_records(place: Path) -> None:
    """It changes no file, so it cannot restore them."""
    killed = Killed(place / "d", transactions)
    with killed.image({"a-0": killed.cut()["a-0"]}) as image:
        before = content(image)
        engine = Engine.open(image, read_only=True)
        try:
            with pytest.raises(errors.StorageError, match="open the log for writing once"):
                engine.partition("a", 0)
            assert engine.partition("a", 1).log_end == len(A1_VALUES) * 2
        finally:
            engine.close()
        assert content(image) == before
        assert values(image, A0, A1) == [A0_VALUES, A1_VALUES]
        with eoslog.open(image, read_only=True) as log:
            found = [r.value for r in log.read("a") if r.partition == 0]
            assert found == A0_VALUES


def test_a_private_reader_shows_carried_records_that_the_files_have(place: Path) -> None:
    """The process was killed, and the power did not fail."""
    killed = Killed(place / "d", transactions)
    with killed.image({}) as image, eoslog.open(image, read_only=True) as log:
        assert [r.value for r in log.read("a") if r.partition == 0] == A0_VALUES


def test_a_retry_of_a_restored_record_is_a_duplicate(place: Path) -> None:
    """Recovery folds what it has restored: the producer's last sequence is known."""
    killed = Killed(place / "d", transactions)
    with killed.image(killed.cut()) as image:
        world = RealWorld(image, background=False)
        try:
            log = world.log(A0)
            end = log.log_end
            again = log.append(bytearray(PLAIN))
            assert (again.duplicate, log.log_end) == (True, end)
            following = log.append(batch(1, producer_id=77, sequence=1, size=3))
            assert following.base_offset == end
        finally:
            world.close()
