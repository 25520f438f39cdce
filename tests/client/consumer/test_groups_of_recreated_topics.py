"""Group members that own partitions of a topic that was deleted and re-created."""

from __future__ import annotations

import time

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import CommitFailed
from tests.waiting import until

GROUP = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}


@pytest.mark.parametrize("transactional", [True, False])
def test_two_owners_of_a_deleted_topic_do_not_share_the_re_created_partition(
    tmp_path, transactional
):
    """The topic is re-created twice.

    No owner has checked its group since it got the partition.
    """
    with eoslog.open(tmp_path / "log") as log:
        # The one that comes later is the first by name, to whom a single partition is given.
        members = [log.consumer("t", client_id=name, **GROUP) for name in "ba"]
        held = []
        for member in members:
            if held:
                log.delete_topic("t")
            log.create_topic("t")
            until(lambda m=member: not m.consume(9, 0.1) and m.assignment())
            member._membership.next_step = time.monotonic() + 3600
            held.append(member)
        log.delete_topic("t")
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", "once")
        offsets = [TopicPartition("t", 0, 1)]
        for number, member in enumerate(members):
            assert member.consume(1, 0.2) == [], "it was given to nobody yet"
            producer = log.producer(transactional_id=f"tx{number}")
            producer.init_transactions()
            with pytest.raises(CommitFailed), producer.transaction() as tx:
                if transactional:
                    tx.send_offsets(offsets, member.group_metadata())
                else:
                    member.commit(offsets)
        members[0]._membership.next_step = members[1]._membership.next_step = 0.0
        found = []
        until(lambda: [found.extend(m.consume(9, 0.1)) for m in members] and found)
        assert [r.value for r in found] == [b"once"]


def test_a_consumer_that_polls_inside_transactions_revokes_between_them(tmp_path):
    """All records that it has read are committed at that point.

    This holds even though the next transaction is open.
    """
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        producer = log.producer(transactional_id="tx")
        producer.init_transactions()
        with log.producer() as feeder:
            for number in range(200):
                feeder.produce("t", str(number), partition=number % 2)
        first, second = (log.consumer("t", **GROUP) for _ in range(2))

        def both() -> bool:
            with producer.transaction() as tx:
                first.consume(1, 0.05)
                tx.commit_offsets(first)
            second.consume(1, 0.01)
            return len(first.assignment()) == len(second.assignment()) == 1

        until(both)


@pytest.mark.parametrize("stored", ["group", "database"])
def test_an_offset_of_a_deleted_topic_is_not_a_position_in_a_new_one(tmp_path, monkeypatch, stored):
    """The topic is re-created after a consumer has read the committed offset."""
    partition = TopicPartition("t", 0)
    with eoslog.open(tmp_path / "log") as log:
        fill(log, "old")
        keys = {**GROUP}
        if stored == "group":
            with log.consumer(**GROUP) as earlier:
                earlier.assign([partition])
                assert len(earlier.consume(3, 1)) == 3
                earlier.commit()
            place, name = log._engine.groups, "fetch_offsets"
        else:
            place, name = Offsets(), "committed_offsets"
            keys["offset_store"] = place
        fetch = getattr(place, name)

        def slow(*args, **options):
            found = fetch(*args, **options)
            monkeypatch.setattr(place, name, fetch)
            log.delete_topic("t")
            fill(log, "new")
            return found

        monkeypatch.setattr(place, name, slow)
        with log.consumer(**keys) as consumer:
            consumer.assign([partition])
            found = []
            until(lambda: [found.extend(consumer.consume(9, 0.1))] and len(found) >= 3)
        assert [record.value for record in found] == [b"new"] * 3


def fill(log, value):
    log.create_topic("t")
    with log.producer() as producer:
        producer.produce_many("t", [value] * 3)


class Offsets:
    """A store that has an offset of the first topic only."""

    known = None

    def committed_offsets(self, group_id, partitions):
        self.known = self.known or partitions
        return {place: 2 for place in partitions if partitions == self.known}
