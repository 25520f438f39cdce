"""Repair never makes producer ids available again that were in use."""

from __future__ import annotations

import os

import pytest

import eoslog
from eoslog._core import build_batch
from eoslog.model import AppendOrigin
from eoslog.storage.check import truncation as log_cut
from eoslog.storage.format.serde import Writer
from tests.rows.tools import values

METADATA = "__cluster_metadata-0/00000000000000000000.log"
BLOCK = 1000


@pytest.fixture
def place(tmp_path):
    """A closed directory of a topic, and of one producer with three records in it."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number in range(3):
                producer.send("t", b"old%d" % number).result(60)
    return tmp_path / "log"


def the_block(place):
    """The last batch of the metadata log: the block of ids that was taken."""
    return eoslog.inspect(place / METADATA, records=False)["batches"][-1]


def damage(place):
    with open(place / METADATA, "r+b") as file:
        file.seek(the_block(place)["position"] + 70)
        file.write(b"\xff")


def write_anew(place):
    """A new producer's id, and all that is in the topic once it has written."""
    with eoslog.open(place) as log:
        with log.producer() as producer:
            for number in range(3):
                assert not producer.send("t", b"new%d" % number).result(60).duplicate
        return producer.producer_id, values(log)


WHOLE = [b"old0", b"old1", b"old2", b"new0", b"new1", b"new2"]


def test_repair_reserves_the_producer_ids_of_a_block_that_it_cuts_off(place):
    damage(place)
    size = os.path.getsize(place / METADATA) - the_block(place)["position"]
    report = eoslog.repair(place, "cut")
    assert report.bytes_cut == size
    assert "producer id 0 is in use" in report.problems[-1].message
    assert write_anew(place) == (BLOCK, WHOLE)
    assert eoslog.repair(place).ok


@pytest.mark.parametrize("mode", ["cut", "as-kafka"])
def test_repair_reserves_the_producer_ids_of_a_missing_block(place, mode):
    os.truncate(place / METADATA, the_block(place)["position"])
    assert "continues at 1000" in eoslog.repair(place, mode).problems[-1].message
    assert write_anew(place) == (BLOCK, WHOLE)


def test_repair_killed_before_its_cut_still_reserves_producer_ids(place):
    damage(place)
    block = the_block(place)
    with open(place / METADATA, "ab") as file:
        file.write(bytes(200))
    log_cut.keep_producer_ids(str(place), (0, block["position"], block["base_offset"]))
    assert not eoslog.repair(place).ok
    eoslog.repair(place, "cut")
    assert eoslog.repair(place).ok
    assert write_anew(place) == (BLOCK, WHOLE)


def test_repair_reserves_producer_ids_that_only_a_snapshot_contains(place):
    with eoslog.open(place) as log:
        partition = log._engine.partition("t", 0)
        partition.roll()
        log.delete_records({eoslog.TopicPartition("t", 0): 3})
        assert len(partition.producers()) == 1
    damage(place)
    eoslog.repair(place, "cut")
    assert write_anew(place)[0] == BLOCK


def test_repair_reserves_the_producer_ids_of_transactional_ids(tmp_path):
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        log._engine.metadata.allocate_producer_ids()
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            first = producer.producer_id
    damage(tmp_path)
    eoslog.repair(tmp_path, "cut")
    with eoslog.open(tmp_path) as log, log.producer() as other:
        other.send("t", b"x").result(60)
    assert first == BLOCK
    assert other.producer_id == 2 * BLOCK


def test_repair_reserves_the_next_producer_id_of_a_transactional_id(place):
    out = Writer().i16(1).i64(5).i16(32766).i32(1000).i8(2)
    out.compact_array(1).compact_string("t").compact_array(1).i32(0).tagged().i64(1).i64(1)
    value = out.tagged({1: Writer().i64(7777).take()}).take()
    key = Writer().i16(0).string("tx").take()
    with eoslog.open(place) as log:
        partition = log._engine.transaction_partition("tx")
        state = build_batch([(1, key, value, ())])
        partition.append(state, origin=AppendOrigin.COORDINATOR)
        partition.flush()
    damage(place)
    assert "continues at 8000" in eoslog.repair(place, "cut").problems[-1].message


def test_repair_ignores_a_producer_id_that_has_no_successor(place):
    with eoslog.open(place) as log:
        partition = log._engine.partition("t", 0)
        record = [(1, None, b"x", ())]
        batch = build_batch(record, producer_id=2**63 - 1, producer_epoch=0, base_sequence=0)
        partition.append(batch)
    damage(place)
    eoslog.repair(place, "cut")
    assert write_anew(place)[0] == BLOCK


@pytest.mark.parametrize("outcome", ["UNKNOWN", "ABORT"])
def test_repair_reserves_the_producer_id_of_a_token(place, outcome):
    """A token of a reused id would name two transactions."""

    def prepare(log, name):
        producer = log.producer(transactional_id=name)
        producer.init_transactions()
        producer.begin_transaction(mode="staged")
        producer.produce("t", b"prepared")
        return producer.prepare_transaction().token

    with eoslog.open(place) as log:  # creates the internal topic
        log.resolve(prepare(log, "first"), eoslog.Outcome.ABORT)
    with eoslog.open(place) as log:
        ids = log._engine.producer_ids
        while ids.next_producer_id() % BLOCK != BLOCK - 2:
            pass
        token = prepare(log, "second")  # the first id of another block
        if outcome == "ABORT":
            log.resolve(token, eoslog.Outcome.ABORT)
    used = int(token.split(":")[1])
    assert used >= BLOCK
    damage(place)
    message = eoslog.repair(place, "cut").problems[-1].message
    assert f"continues at {(used // BLOCK + 1) * BLOCK}" in message
    with eoslog.open(place) as log:
        assert log.outcome(token) is eoslog.Outcome[outcome]
