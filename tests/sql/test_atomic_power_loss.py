"""`log.atomic` and a power loss after the commit of the database (row 9)."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import PreparedTransactionPending
from eoslog.sql import Database
from tests.coordinator.transactions.carried.carried_images import without_zeros
from tests.reference import codec
from tests.sql.databases import Place
from tests.sql.processes.atomic import STOPPED, Orders, start

pytestmark = [pytest.mark.process, pytest.mark.slow]


def ends(path: Path) -> list[int]:
    """Where each batch of a file ends."""
    data = without_zeros(path.read_bytes())
    return [b.position + b.size for b in codec.iter_batches(data, records=False)]


def images(orders: Orders, to: Path) -> Iterator[tuple[Path, bool]]:
    """Yield what a power loss can leave, and whether it leaves the log's decision.

    Everything is durable when the database commits. After that, the process appends the decision,
    and when that is durable, the markers and the completion. Each file keeps any of these batches.
    """
    kept = to / "kept"
    assert orders.order(1, "atomic.db_commit", "stop") == STOPPED
    shutil.copytree(orders.path, kept)
    assert orders.resume(orders.pid) == 0
    lengths: dict[str, list[int]] = {}
    for file in kept.glob("*/*.log"):
        name = str(file.relative_to(kept))
        durable, written = ends(file), ends(Path(orders.path) / name)
        if written != durable:
            lengths[name] = [0, *written][len(durable) :]
    decisions = [name for name in lengths if name.startswith("__transaction_state")]
    assert (len(lengths), len(decisions)) == (2, 1)  # and the partition of the record
    for sizes in itertools.product(*lengths.values()):
        cut = dict(zip(lengths, sizes, strict=True))
        decided = cut[decisions[0]] > lengths[decisions[0]][0]
        if not decided and any(size > lengths[name][0] for name, size in cut.items()):
            continue  # a marker is written after the decision is durable
        image = to / "image"
        shutil.copytree(kept, image)
        for name, size in cut.items():
            data = (Path(orders.path) / name).read_bytes()[:size]
            (image / name).write_bytes(data)
        yield image, decided
        shutil.rmtree(image)


def test_row_9_a_decision_lost_with_the_power_is_repeated(
    place: Place, path: str, tmp_path: Path
) -> None:
    place.run("create table placed (number integer)")
    with eoslog.open(path) as log:
        log.create_topic("orders", 2)
        log.create_topic("other", 1)
    process = start()
    try:
        seen = []
        for image, decided in images(Orders(process, path, place), tmp_path):
            seen.append(decided)
            with eoslog.open(image) as log, Database(place.connect) as database:
                expected = [b"1"] if decided else []
                assert [record.value for record in log.read("orders")] == expected
                with log.producer(transactional_id="t") as producer:
                    if not decided:
                        with pytest.raises(PreparedTransactionPending):
                            producer.init_transactions()
                with log.producer(transactional_id="t") as producer:
                    with log.atomic(producer, database) as tx:
                        tx.produce("other", "next")
                assert [record.value for record in log.read("orders")] == [b"1"]
                assert log.check(full=True).ok
            place.run("delete from eoslog_outcome")  # the next image does not know the transaction
        assert set(seen) == {False, True}
        assert place.rows("select number from placed") == [(1,)]
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
