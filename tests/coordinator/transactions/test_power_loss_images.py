"""Every image that a power loss can leave of two transactions is settled.

The logs are flushed independently: each has what was flushed, and any length of the rest. All
images are written and opened. Whichever call touches the directory first, no transaction stays
open.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eoslog import errors
from eoslog._core import build_batch, transaction_value
from eoslog.coordinator.transactions.records import encode_key
from eoslog.coordinator.transactions.state import TransactionMetadata
from eoslog.model import AppendOrigin, TopicPartition
from eoslog.storage.directory.session import CONTROL_FILE
from tests.coordinator.transactions.carried.carried_images import lose_from, without_zeros
from tests.coordinator.transactions.test_engine import RealWorld
from tests.coordinator.world import A0, A1, B0, World, Writer
from tests.reference import codec

PARTITIONS = (A0, A1, B0)
NAME = "t"


def _lengths(path: Path, flushed: int) -> list[int]:
    """Sizes that a segment may have after a power loss.

    Its first batches were flushed.
    """
    ends = [0, *(b.position + b.size for b in codec.iter_batches(without_zeros(path.read_bytes())))]
    return ends[flushed:]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, because hundreds of images are opened.

    None of these tests is about the disk.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


class Images:
    """A directory in the middle of its second transaction, and its possible images.

    The first transaction is committed over a-0 and a-1, and its markers are published. The
    second has written to all three partitions.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / "live"
        world = RealWorld(self.path)
        # The writer's batches are of 1970, markers of now: no roll between them.
        world.engine.metadata.create_topic("a", 2, {"segment.ms": str(1 << 60)})
        world.engine.metadata.create_topic("b", 1, {"segment.ms": str(1 << 60)})
        writer = Writer(world, NAME)
        writer.write(A0, b"1")
        writer.write(A1, b"2")
        c = world.engine.transaction_partition(NAME)
        before = c.log_end
        writer.commit()
        writer.write(A0, b"lost")
        writer.write(A1, b"lost")
        writer.write(B0, b"lost")
        self.sizes = {}
        for log, flushed in ((c, before + 1), *zip(map(world.log, PARTITIONS), (1, 1, 0))):
            file = f"{log.topic}-{log.partition}/{0:020}.log"
            self.sizes[file] = _lengths(self.path / file, flushed)
        self.kept = path / "kept"
        shutil.copytree(self.path, self.kept)
        world.close()
        self.image = path / "image"

    def __iter__(self) -> Iterator[tuple[Path, dict[str, int]]]:
        for sizes in itertools.product(*self.sizes.values()):
            shutil.copytree(self.kept, self.image)
            cut = dict(zip(self.sizes, sizes, strict=True))
            for file, size in cut.items():
                lose_from(self.image / file, size)
            (self.image / CONTROL_FILE).unlink()  # it may say that a flush was faster
            yield self.image, cut
            shutil.rmtree(self.image)


def _next_instance(world: RealWorld) -> None:
    Writer(world, NAME)


def _another_id(world: RealWorld) -> int:
    """It writes on, and has its own transaction open."""
    writer = Writer(world, "other")
    writer.write(B0, b"new")
    return writer.producer_id


def _reader(order: tuple[TopicPartition, ...]) -> Callable[[RealWorld], object]:
    return lambda world: [world.log(tp) for tp in order]


FIRST: dict[str, Callable[[RealWorld], object]] = {
    "the next instance": _next_instance,
    "another id": _another_id,
    "a reader, forwards": _reader(PARTITIONS),
    "a reader, backwards": _reader(PARTITIONS[::-1]),
    "the sweep": lambda world: world.coordinator.abort_timed_out(),
}


@pytest.mark.slow
@pytest.mark.parametrize("first", list(FIRST))
def test_every_transaction_is_ended_after_any_power_loss_by_any_process(
    place: Path, first: str
) -> None:
    images = Images(place)
    seen = 0
    for image, cut in images:
        world = RealWorld(image, background=False)
        try:
            mine = FIRST[first](world)
            _next_instance(world)
            for tp in PARTITIONS:
                log = world.log(tp)
                left = [row for row in log.open_transactions() if row[0] != mine]
                assert left == [], f"{tp} of {cut}"
                log.flush()
            assert [world.values(tp) for tp in PARTITIONS] == [[b"1"], [b"2"], []], cut
        finally:
            world.close()
        seen += 1
    assert seen == 5 * 3 * 3 * 2


@pytest.mark.slow
def test_the_sweep_ends_transactions_that_an_interrupted_recovery_left(place: Path) -> None:
    """The recovering process was killed before it checked its open transactions."""
    for image, cut in Images(place):
        world = RealWorld(image, background=False)
        world.engine.transactions.recover_partition = lambda _: 0
        for tp in PARTITIONS:
            world.log(tp)
        try:
            world.coordinator.abort_timed_out()
            for tp in PARTITIONS:
                assert world.log(tp).open_transactions() == [], f"{tp} of {cut}"
            assert [world.values(tp) for tp in PARTITIONS] == [[b"1"], [b"2"], []], cut
        finally:
            world.close()


def test_a_commit_over_part_of_its_data_is_rejected_as_corruption(world: World) -> None:
    """The transaction is open in the partition, yet shorter than the decision says."""
    writer = Writer(world, "t")
    writer.write(B0, b"1")
    writer.write(B0, b"2")
    decided_only(world, writer)
    world.log(B0).replay(1)
    _, other = world.open()
    assert not other.drive(writer.producer_id, 0)
    assert world.log(B0).markers() == []


def test_a_record_appended_after_the_flush_is_durable_before_its_commit(world: World) -> None:
    """It came in between the flush of the data and the marker."""
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    identity = (writer.producer_id, 0)
    decided_only(world, writer)
    writer.become(*identity)
    writer.sequences[A0] = 1
    late = writer.append(A0, b"late")
    _, other = world.open()
    world.directory.trail.clear()
    assert other.drive(*identity)
    steps = [(what, where) for what, where, _ in world.directory.trail if where == "a-0"]
    assert steps == [("flush", "a-0"), ("append", "a-0")]
    assert world.values(A0) == [b"1", b"late"]
    assert late.base_offset == 1


def test_an_epoch_cached_by_another_process_is_durable_before_its_data(
    world: World,
) -> None:
    row = (0, encode_key("t"), transaction_value(TransactionMetadata("t", 500, 3, 60_000)), ())
    c = world.clog("t")
    c.append(build_batch([row]), origin=AppendOrigin.COORDINATOR)
    writer = Writer.__new__(Writer)
    writer.world, writer.name, writer.coordinator = world, "t", world.coordinator
    writer.become(500, 3)
    world.directory.trail.clear()
    writer.write(A0, b"1")
    steps = [(what, where) for what, where, _ in world.directory.trail]
    assert steps == [("flush", repr(c)), ("append", repr(c)), ("append", "a-0")]


def decided_only(world: World, writer: Writer) -> None:
    """Make the decision of a commit durable, but do not act on it in its process."""
    c = world.clog("t")
    c.faults["flush"] = errors.StorageError("later")
    with pytest.raises(errors.CommitOutcomeUnknown):
        writer.commit()
    c.flush()
