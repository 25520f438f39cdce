"""`poll_transactions`: every cut has each transaction completely or not at all."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog.client.consumer import transaction_pieces, whole_transactions
from eoslog.errors import ConfigError, CorruptRecord, RecordTooLarge, SerializationError
from tests.client.consumer.helpers import consumer, values
from tests.client.consumer.transaction_world import PLAIN, World

PRODUCERS, PARTITIONS = st.integers(0, 3), st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("write"), PRODUCERS, PARTITIONS, st.integers(1, 3)),
    st.tuples(st.just("write"), PRODUCERS, PARTITIONS, st.integers(1, 3)),
    st.tuples(st.just("write_plain"), PARTITIONS, st.integers(1, 3)),
    st.tuples(st.just("decide"), PRODUCERS, st.booleans()),
    st.tuples(st.just("mark"), PRODUCERS, PARTITIONS),
    st.tuples(st.just("end"), PRODUCERS),
    st.tuples(st.just("poll"), st.sampled_from([None, None, 1, 3, 100])),
    st.tuples(st.just("rewind")),
    st.tuples(st.just("commit")),
)


def reader(world, **config):
    config.setdefault("enable_auto_commit", False)
    return consumer(world.host, assign=world.partitions, **config)


class Reading:
    """A consumer of a world that checks what it gets."""

    def __init__(self, world, *, exact=True):
        self.world = world
        self.exact = exact  # whether it must return what is readable
        self.consumer = reader(world, group_id="g", max_poll_records=5)
        self.returned = []
        self.committed = 0

    def positions(self):
        return [position.offset for position in self.consumer.position(self.world.partitions)]

    def poll(self, most=None):
        before = self.positions()
        try:
            records = self.consumer.poll_transactions(0, most)
        except RecordTooLarge as error:
            assert not self.world.skipped(before, self.positions())
            needed = int(re.search(r"\(max_records=(\d+)\)", str(error)).group(1))
            assert needed > most
            records = self.consumer.poll_transactions(0, needed)
            assert len(records) == needed
        self.world.check(records)
        readable = self.world.readable(before)
        assert bool(records) == readable if self.exact else readable or not records
        self.returned += records
        return records

    def rewind(self):
        self.consumer.rewind()
        del self.returned[self.committed :]

    def commit(self):
        self.consumer.commit()
        self.committed = len(self.returned)

    def finish(self):
        self.world.end_all()
        while self.poll():
            pass
        expected = [t.number for t in self.world.all if t.commit]
        assert sorted(self.world.check(self.returned)) == expected
        plain = [record for record in self.returned if int(record.value) == PLAIN]
        assert len(plain) == sum(self.world.plain)
        assert self.consumer.poll_transactions(0) == []


def run(world, steps, reading=None):
    reading = reading or Reading(world)
    for name, *arguments in steps:
        if name in ("poll", "rewind", "commit"):
            getattr(reading, name)(*arguments)
        elif name == "decide":
            world.decide(arguments[0], commit=arguments[1])
        else:
            getattr(world, name)(*arguments)
    reading.finish()


@pytest.fixture(scope="module", params=[None, 1, 3], ids=["all", "one", "three"])
def window(request):
    """How many pieces the consumer keeps of each partition; None means all."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param is not None:
            patch.setattr(whole_transactions, "_WINDOW", request.param)
            patch.setattr(whole_transactions, "_LEAST", request.param)
            patch.setattr(transaction_pieces, "_WINDOW_BYTES", 1)
        yield request.param


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_row_G09_no_interleaving_splits_a_transaction(window, steps):
    run(World(), steps)


@pytest.mark.parametrize("limit", [None, 100])
def test_row_G09_a_transaction_over_partitions_is_returned_whole(limit):
    world = World()
    world.write(1, 0, 2)
    world.write(1, 2, 3)
    c = reader(world)
    assert c.poll_transactions(0, limit) == []
    world.decide(1, commit=True)
    world.mark(1, 0)
    assert c.poll_transactions(0, limit) == []
    world.mark(1, 2)
    records = c.poll_transactions(0, limit)
    assert [(r.partition, r.offset) for r in records] == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert c.positions() == {world.partitions[0]: 3, world.partitions[1]: 0, world.partitions[2]: 4}


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_transactions_of_one_epoch_are_not_split(window, steps):
    """Brokers before transaction version 2 keep the epoch."""
    world = World(same_epoch=True)
    run(world, steps, Reading(world, exact=False))


def test_transactions_of_one_epoch_in_one_partition_stay_apart():
    world = World(same_epoch=True)
    for _ in range(3):
        world.write(1, 0)
        world.end(1)
    c = reader(world)
    assert [len(c.poll_transactions(0, 1)) for _ in range(4)] == [1, 1, 1, 0]


def test_transactions_that_overlap_are_returned_together():
    world = World()
    for producer, partition in [(1, 0), (2, 0), (1, 0), (2, 1), (3, 1), (2, 1), (3, 2), (4, 2)]:
        world.write(producer, partition)
    for producer in (1, 3, 4):
        world.end(producer)
    c = reader(world)
    assert world.check(c.poll_transactions(0)) == []
    world.end(2)
    with pytest.raises(RecordTooLarge, match="have 7 records, more than max_records=6"):
        c.poll_transactions(0, 6)
    assert sorted(world.check(c.poll_transactions(0, 7))) == [0, 1, 2]
    assert world.check(c.poll_transactions(0, 7)) == [3]


def test_row_G09_a_transaction_that_finds_no_room_leaves_no_trace():
    world = World()
    world.write(1, 0)
    world.end(1)
    world.write(2, 0)
    world.write(2, 1, 3)
    world.write(3, 2)
    world.write(2, 2)  # follows the record of the third one, as a marker would
    world.end(3)
    world.end(2)
    c = reader(world, max_poll_records=4)
    assert sorted(world.check(c.poll_transactions(0))) == [0, 2]
    assert world.check(c.poll_transactions(0)) == [1]


def test_a_record_outside_of_transactions_holds_nothing_back():
    world = World()
    world.write(1, 0)
    world.write_plain(0, 3)
    world.write_plain(1, 3)
    c = reader(world)
    assert values(c.poll_transactions(0, 2)) == ["-1", "-1"]
    assert values(c.poll_transactions(0, 2)) == ["-1"]
    assert c.poll_transactions(0, 2) == []
    world.end(1)
    assert values(c.poll_transactions(0)) == ["0", "-1", "-1", "-1"]


def test_an_aborted_transaction_is_skipped_and_joins_nothing():
    world = World()
    world.write(1, 0)
    for partition in range(3):
        world.write(2, partition, 50)
        world.write(3, partition)
    world.end(2, commit=False)
    world.write(1, 2)
    world.end(1)
    world.end(3)
    c = reader(world, max_poll_records=1)
    found = [world.check(c.poll_transactions(0)) for _ in range(2)]
    assert sorted(map(sorted, found)) == [[], [0, 2]]
    assert c.current_lag() == dict.fromkeys(world.partitions, 0)


def test_max_records_counts_no_aborted_records():
    world = World()
    world.write(1, 0)
    world.write(2, 0, 100)
    world.end(2, commit=False)
    world.write(1, 0)
    world.end(1)
    c = reader(world)
    with pytest.raises(RecordTooLarge, match=r"have 2 records.*\(max_records=2\)"):
        c.poll_transactions(0, 1)
    assert len(c.poll_transactions(0, 2)) == 2


def test_an_error_about_max_records_skips_only_aborted_records():
    world = World()
    for partition in range(3):
        world.write(1, partition, 50)
    world.end(1, commit=False)
    world.write(2, 0, 3)
    world.write(2, 1, 3)
    world.end(2)
    c = reader(world, group_id="g")
    for _ in range(2):
        with pytest.raises(RecordTooLarge, match=r"have 6 records.*\(max_records=6\)"):
            c.poll_transactions(0, 5)
    moved = [position.offset for position in c.position(world.partitions)]
    assert moved[2] > 50 and not world.skipped([0, 0, 0], moved)
    c.commit()
    c.close()
    c = reader(world, group_id="g")
    assert len(c.poll_transactions(0, 6)) == 6
    assert c.poll_transactions(0, 6) == []


def test_a_partition_that_is_not_assigned_holds_nothing_back():
    world = World()
    world.write(1, 0)
    world.write(1, 2)
    world.decide(1, commit=True)
    world.mark(1, 0)
    c = consumer(world.host, assign=world.partitions[:2])
    assert [(r.partition, r.offset) for r in c.poll_transactions(0)] == [(0, 0)]


def test_a_paused_partition_holds_its_transactions_back():
    world = World()
    world.write(1, 0)
    world.end(1)
    world.write(2, 0)
    world.write(2, 1)
    world.end(2)
    c = reader(world)
    c.pause(world.partitions[1])
    assert values(c.poll_transactions(0)) == ["0"]
    assert c.poll_transactions(0) == []
    c.resume(world.partitions[1])
    assert world.check(c.poll_transactions(0)) == [1]


def test_an_assignment_that_changes_changes_the_cut():
    world = World()
    world.write(1, 0)
    world.write(1, 1)
    world.decide(1, commit=True)
    world.mark(1, 0)
    c = reader(world)
    assert c.poll_transactions(0) == []
    c.assign([world.partitions[0]])
    assert len(c.poll_transactions(0)) == 1
    c.assign(world.partitions)
    world.mark(1, 1)
    assert [r.partition for r in c.poll_transactions(0)] == [1]


def test_a_seek_into_a_transaction_gives_the_rest_of_it():
    world = World()
    for partition in (0, 1, 0):
        world.write(1, partition, 2)
    world.end(1)
    c = reader(world)
    c.seek(world.partitions[0], 3)
    assert [(r.partition, r.offset) for r in c.poll_transactions(0)] == [(0, 3), (1, 0), (1, 1)]
    c.seek(world.partitions[0], 0)
    c.seek(world.partitions[1], 0)
    world.check(c.poll_transactions(0))
    c.seek(world.partitions[0], 5)
    assert c.poll_transactions(0) == []


def test_records_that_poll_has_fetched_are_returned_once():
    world = World()
    world.write_plain(0, 3)
    world.write(1, 0, 2)
    world.write(1, 1, 2)
    world.end(1)
    c = reader(world)
    assert c.poll(0).offset == 0
    records = c.poll_transactions(0)
    assert [(r.partition, r.offset) for r in records] == [
        (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1),
    ]  # fmt: skip
    assert c.poll(0) is None


def test_partitions_are_read_in_rotation():
    world = World()
    for partition in range(3):
        world.write_plain(partition, 10)
    c = reader(world)
    assert [{r.partition for r in c.poll_transactions(0, 2)} for _ in range(4)] == [
        {0}, {1}, {2}, {0},
    ]  # fmt: skip


def test_deleted_records_are_not_waited_for():
    world = World()
    for partition in (0, 1, 0):
        world.write(1, partition)
    world.end(1)
    log = world.logs[0]
    log.log_start = 1
    log.entries = [entry for entry in log.entries if entry[0] >= 1]
    c = reader(world)
    assert [(r.partition, r.offset) for r in c.poll_transactions(0)] == [(0, 1), (1, 0)]


def test_records_that_are_deleted_after_a_poll_are_skipped():
    world = World()
    world.write(1, 0)
    world.write(1, 1)
    c = reader(world)
    assert c.poll_transactions(0) == []
    world.end(1)
    world.write_plain(0)
    log = world.logs[0]
    log.log_start = 2
    log.entries = [entry for entry in log.entries if entry[0] >= 2]
    records = c.poll_transactions(0) + c.poll_transactions(0)
    assert sorted((r.partition, r.offset) for r in records) == [(0, 2), (1, 0)]


def test_a_damaged_batch_anywhere_is_an_error():
    """It could belong to any transaction."""
    world = World()
    world.write(1, 0)
    world.write(1, 1)
    world.end(1)
    world.write(2, 1)
    world.end(2)
    log = world.logs[1]
    base, data = log.entries[2]
    log.entries[2] = base, data[:43] + bytes(8) + data[51:]  # another producer id
    c = reader(world)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="batch at offset 2 does not match its CRC"):
            c.poll_transactions(0)
    assert set(c.positions().values()) == {0}


def test_transactions_before_a_record_that_cannot_be_decoded_come_first():
    world = World()
    for number in range(3):
        world.write(1, 0)
        world.write(1, 1)
        world.end(1)

    def refuse(value):
        if value == b"1":
            raise ValueError("no")
        return value

    c = reader(world, value_deserializer=refuse)
    assert values(c.poll_transactions(0)) == ["0", "0"]
    for _ in range(2):
        with pytest.raises(SerializationError, match="t-0 at offset 2"):
            c.poll_transactions(0)
    for partition in world.partitions[:2]:
        c.seek(partition, 4)
    assert values(c.poll_transactions(0)) == ["2", "2"]


def test_a_wait_ends_with_the_last_marker():
    world = World()
    world.write(1, 0)
    world.write(1, 1)
    world.decide(1, commit=True)
    world.mark(1, 0)
    c = reader(world)
    threading.Timer(0.05, world.mark, [1, 1]).start()
    assert world.check(c.poll_transactions(60)) == [0]


def test_a_reader_completes_a_transaction_that_blocks_it():
    world = World()
    world.write(2, 1)
    world.write(1, 0)
    world.write(1, 1)
    world.decide(1, commit=True)
    world.mark(1, 0)
    world.host.transactions.resolve = lambda log: world.mark(1, 1) if log is world.logs[1] else None
    world.end(2)
    c = reader(world)
    found = c.poll_transactions(60) or []
    while len(found) < 3:
        found += c.poll_transactions(60)
    assert sorted(world.check(found)) == [0, 1]


def test_a_wakeup_ends_a_wait():
    c = reader(World())
    threading.Timer(0.05, c.wakeup).start()
    assert c.poll_transactions() == []


@pytest.mark.parametrize("limit", [0, -1, "1", 1.5, True])
def test_max_records_is_a_positive_integer(limit):
    with pytest.raises(ConfigError, match=r"max_records: expected 1 or more"):
        reader(World()).poll_transactions(0, limit)


def test_read_uncommitted_is_rejected():
    c = reader(World(), isolation_level="read_uncommitted")
    with pytest.raises(ConfigError, match="poll_transactions: isolation.level=read_uncommitted"):
        c.poll_transactions(0)
