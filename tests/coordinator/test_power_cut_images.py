"""Every image that a power cut can leave of two transactions, settled by whoever comes first.

The logs are flushed independently: of each, what was flushed is there, and any length of the rest.
All images are laid out and opened; whatever touches the directory first, nothing is left open.
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
from eoslog.coordinator.transaction_records import encode_key
from eoslog.coordinator.transaction_state import TransactionMetadata
from eoslog.model import AppendOrigin, TopicPartition
from tests.coordinator.test_transaction_engine import RealWorld
from tests.coordinator.world import A0, A1, B0, World, Writer
from tests.reference import codec

PARTITIONS = (A0, A1, B0)
NAME = "t"


def _lengths(path: Path, flushed: int) -> list[int]:
    """Sizes that a segment may have after a power cut: its first batches were flushed."""
    ends = [0, *(b.position + b.size for b in codec.iter_batches(path.read_bytes()))]
    return ends[flushed:]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory: hundreds of images are opened, and nothing here is about the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


class Images:
    """A directory in the middle of its second transaction, and what may be left of it.

    The first is committed over a-0 and a-1, its markers are published; the second has written to
    all three partitions.
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
                with (self.image / file).open("r+b") as opened:
                    opened.truncate(size)
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
def test_nothing_stays_open_whatever_a_power_cut_left_and_whoever_comes_first(
    place: Path, first: str
) -> None:
    images = Images(place)
    seen = 0
    for image, cut in images:
        world = RealWorld(image)
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
def test_the_sweep_ends_what_the_recovery_of_a_partition_did_not_come_to(place: Path) -> None:
    """Who recovered the partition was killed before it looked its open transactions up."""
    for image, cut in Images(place):
        world = RealWorld(image)
        world.engine.partitions.on_recovered = lambda _: None
        for tp in PARTITIONS:
            world.log(tp)
        try:
            world.coordinator.abort_timed_out()
            for tp in PARTITIONS:
                assert world.log(tp).open_transactions() == [], f"{tp} of {cut}"
            assert [world.values(tp) for tp in PARTITIONS] == [[b"1"], [b"2"], []], cut
        finally:
            world.close()


def test_a_commit_over_a_part_of_its_data_is_refused_as_corruption(world: World) -> None:
    """The transaction is open in the partition, yet shorter than the decision says."""
    writer = Writer(world, "t")
    writer.write(B0, b"1")
    writer.write(B0, b"2")
    decided_only(world, writer)
    world.log(B0).replay(1)
    _, other = world.open()
    assert not other.drive(writer.producer_id, 0)
    assert world.log(B0).markers() == []


def test_a_stragglers_record_is_durable_before_it_is_committed(world: World) -> None:
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


def test_an_epoch_that_somebody_else_left_in_the_cache_is_durable_before_data_bears_it(
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
    """A commit whose decision becomes durable, and that its own process does not act on."""
    c = world.clog("t")
    c.faults["flush"] = errors.StorageError("later")
    with pytest.raises(errors.CommitOutcomeUnknown):
        writer.commit()
    c.flush()
