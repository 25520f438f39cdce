"""Position and records agree in every image that a power loss can leave."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import Transaction, errors
from eoslog.storage.directory.session import CONTROL_FILE
from tests.coordinator.transactions.carried.carried_images import lose_from, without_zeros
from tests.reference import codec

DURABLE = {
    "__positions-0": 1,  # the first transaction's record; its marker may be lost
    "t-0": 1,
    "one": 4,  # init, twice Ongoing, and the decision; its completion may be lost
    "two": 1,  # init
}
"""Batches that were flushed, by partition or transactional id."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, because many images are opened."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def images(place: Path) -> Iterator[Path]:
    """Yield each image of a directory in the middle of a transaction.

    The first transaction is committed. The second one, of another producer, replaces its position.
    """
    live, kept, image = place / "live", place / "kept", place / "image"
    with eoslog.open(live) as log:
        log.create_topic("t", config={"segment.ms": 1 << 60})
        with (
            log.producer(transactional_id="one") as one,
            log.producer(transactional_id="two") as two,
        ):
            one.init_transactions()
            two.init_transactions()
            with one.transaction() as tx:
                tx.produce("t", value="1")
                tx.set_position("a", 1, expected=None)
            two.begin_transaction()
            two.produce("t", value="2")
            two.flush()
            Transaction(two).set_position("a", 2, expected=1)
            names = {key: key for key in ("__positions-0", "t-0")} | {
                key: log._engine.transaction_partition(key).name for key in ("one", "two")
            }
            shutil.copytree(live, kept)
            two.abort_transaction()
    assert len(set(names.values())) == len(DURABLE)
    lengths = {}
    for key, flushed in DURABLE.items():
        file = f"{names[key]}/{0:020}.log"
        data = without_zeros((kept / file).read_bytes())
        ends = [batch.position + batch.size for batch in codec.iter_batches(data)]
        lengths[file] = ends[flushed - 1 :]
    assert [len(ends) for ends in lengths.values()] == [3, 3, 2, 3]
    for sizes in itertools.product(*lengths.values()):
        shutil.copytree(kept, image)
        for file, size in zip(lengths, sizes, strict=True):
            lose_from(image / file, size)
        (image / CONTROL_FILE).unlink()  # it may say that a flush was faster
        yield image
        shutil.rmtree(image)


@pytest.mark.slow
def test_position_and_records_agree_after_any_power_loss(place: Path) -> None:
    for image in images(place):
        with eoslog.open(image) as log:
            assert log.position("a") == 1
            with log.producer(transactional_id="three") as producer:
                producer.init_transactions()
                with pytest.raises(errors.PositionConflict), producer.transaction() as tx:
                    tx.set_position("a", 3, expected=None)
                with producer.transaction() as tx:
                    tx.produce("t", value="3")
                    tx.set_position("a", 3, expected=1)
            assert log.position("a") == 3
            assert [record.value for record in log.read("t")] == [b"1", b"3"]
            assert log.check(full=True).ok
