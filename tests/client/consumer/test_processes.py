"""Groups of real processes: takeover, kills, hung and static members, fencing."""

from __future__ import annotations

import os
import signal
import time

import pytest

import eoslog
from eoslog import _core
from eoslog.client.consumer.consumer import Consumer
from eoslog.engine.engine import Engine
from eoslog.errors import CommitFailed, IllegalState
from eoslog.model import TopicPartition
from tests.client.consumer.group_process import GroupProcess
from tests.waiting import until

pytestmark = pytest.mark.process

PARTITIONS = 4


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def engine(directory):
    engine = Engine.open(directory)
    engine.metadata.create_topic("t", PARTITIONS, {})
    yield engine
    engine.close()


@pytest.fixture
def start(directory, engine):
    started = []

    def run(*topics, **config):
        config = {"group.id": "g", "auto.offset.reset": "earliest", **config}
        process = GroupProcess(directory, *(topics or ("t",)), **config)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()


@pytest.fixture
def local(directory, engine):
    made = []

    def make(**config):
        config = {
            "log.dir": str(directory),
            "group.id": "g",
            "auto.offset.reset": "earliest",
            **config,
        }
        consumer = Consumer(config)
        consumer.subscribe("t")
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def put(engine, partition, *values):
    log = engine.partition("t", partition)
    log.append(_core.build_batch([(1, None, v.encode(), ()) for v in values]))


def drain(consumer, count):
    """So many records, and what there is beyond them."""
    out = []

    def read(timeout):
        out.extend((r.partition, r.value.decode()) for r in consumer.consume(100, timeout))
        return len(out) >= count

    until(lambda: read(0.3))
    read(0.1)
    return out


def joined(consumer, count):
    consumer.consume(100, 0)
    return len(consumer.assignment()) == count


def shared(consumer, process, counts=(2, 2)):
    """Both poll once; whether each has its share."""
    theirs = len(process.ask("assignment", True))
    return joined(consumer, counts[0]) and theirs == counts[1]


def test_A07_a_killed_consumers_successor_starts_at_the_committed_offset(engine, start, local):
    put(engine, 0, *(str(i) for i in range(10)))
    a = start(enable_auto_commit=False)
    until(lambda: a.consume(4) and True)
    assert a.commit() == "done"
    a.consume(3)
    a.kill()
    assert [value for _, value in drain(local(), 6)] == [str(i) for i in range(4, 10)]


def test_a_killed_member_is_removed_immediately_and_its_partitions_move(engine, start, local):
    mine = local()
    until(lambda: joined(mine, PARTITIONS))
    other = start(session_timeout_ms=1_800_000)  # no process waits for its end
    until(lambda: shared(mine, other))
    other.kill()
    until(lambda: joined(mine, PARTITIONS))
    assert len(engine.groups.describe_group("g").members) == 1


def test_a_group_reads_every_partition_exactly_once_through_joins_and_kills(engine, start):
    members = [start(), start(), start()]

    def settled():
        shares = [m.ask("assignment", True) for m in members]
        owned = sorted(p for share in shares for p in share)
        assert len(owned) == len(set(owned)), shares
        return owned == list(range(PARTITIONS)) and all(shares)

    until(settled)
    members.pop(0).kill()
    until(settled)
    members.append(start())
    until(settled)
    assert members[0].ask("close") == "closed"
    members.pop(0)
    until(settled)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_every_assignment_strategy_balances_two_processes(engine, start, local, strategy):
    mine = local(**{"partition.assignment.strategy": strategy})
    other = start(partition_assignment_strategy=strategy)
    until(lambda: shared(mine, other))
    assert engine.groups.describe_group("g").assignor == strategy


def test_A15_a_suspended_member_is_replaced_and_its_late_commit_rejected(engine, start, local):
    for partition in range(PARTITIONS):
        put(engine, partition, "a", "b")
    stale = start(enable_auto_commit=False, session_timeout_ms=2_000)
    until(lambda: len(stale.ask("assignment", True)) == PARTITIONS)
    assert stale.consume()
    stale.signal(signal.SIGSTOP)
    mine = local(**{"session.timeout.ms": 2_000, "enable.auto.commit": False})
    until(lambda: joined(mine, PARTITIONS))
    mine.commit()
    stale.signal(signal.SIGCONT)
    answer = stale.commit()
    assert answer["error"] == "CommitFailed"
    # It joins again at its next poll, with another member id, and the group shares again.
    until(lambda: shared(mine, stale))


def test_A15_a_member_that_polls_too_rarely_is_removed_by_its_own_process(engine, local):
    put(engine, 0, "a", "b")
    slow = local(**{"max.poll.interval.ms": 1500, "enable.auto.commit": False})
    assert slow.consume(1, 60)
    until(lambda: not engine.groups.describe_group("g").members)
    with pytest.raises(CommitFailed):
        slow.commit()
    assert slow.consume(1, 60)[0].offset == 0, "read again: nothing was committed"


def test_a_static_member_keeps_its_partitions_across_a_restart(engine, start, local):
    mine = local(**{"group.instance.id": "one"})
    other = start(group_instance_id="two")
    until(lambda: shared(mine, other))
    place, [old_id, generation] = other.assignment(), other.ask("member")
    other.kill()
    assert joined(mine, 2), "the place is kept"
    again = start(group_instance_id="two")
    until(lambda: again.ask("assignment", True) == place)
    new_id, new_generation = again.ask("member")
    assert new_id != old_id
    assert new_generation == generation
    assert joined(mine, 2)


def test_a_static_member_loses_its_partitions_after_its_session_timeout(engine, start, local):
    mine = local()
    other = start(group_instance_id="two", session_timeout_ms=4_000)
    until(lambda: shared(mine, other))
    other.kill()
    killed = time.monotonic()
    until(lambda: joined(mine, PARTITIONS))
    assert time.monotonic() - killed > 0.5, "it kept its partitions for a while"


def test_a_second_holder_of_a_static_name_fences_the_first(engine, start):
    old = start(group_instance_id="one", enable_auto_commit=False)
    until(lambda: len(old.ask("assignment", True)) == PARTITIONS)
    put(engine, 0, "a")
    until(lambda: old.consume())
    new = start(group_instance_id="one")
    until(lambda: len(new.ask("assignment", True)) == PARTITIONS)
    assert old.commit()["error"] == "FencedInstanceId"
    time.sleep(0.2)
    assert old.consume()["error"] == "FencedInstanceId"


def test_a_forked_child_cannot_use_an_inherited_consumer(engine, local):
    put(engine, 0, "a")
    mine = local()
    until(lambda: mine.consume(9, 0.1))
    child = os.fork()
    if not child:
        try:
            mine.poll(0)
        except IllegalState:
            mine.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    put(engine, 0, "b")
    assert drain(mine, 1) == [(0, "b")]
    mine.commit()


def test_a_topic_re_created_by_another_process_is_read_from_its_start(directory, engine, local):
    put(engine, 0, "a", "b")
    mine = local()
    assert drain(mine, 2) == [(0, "a"), (0, "b")]
    mine.commit()
    with eoslog.open(directory) as log:
        log.delete_topic("t")
        until(lambda: mine.consume(9, 0.1) == [] and not mine.assignment())
        assert log.describe_group("g").offsets == {}
        log.create_topic("t", 1)
        put(engine, 0, "new")
        until(lambda: [r.value for r in mine.consume(9, 0.1)] == [b"new"])


def test_committed_offsets_are_kept_after_every_process_has_exited(directory, start, engine):
    put(engine, 0, "a", "b", "c")
    a = start()
    until(lambda: a.consume(2))
    a.commit([["t", 0, 2]])
    a.kill()
    while Engine.open(directory) is engine:
        engine.close()  # The reference just taken, and the fixture's.
        engine.close()
    again = Engine.open(directory)
    try:
        assert again.groups.fetch_offsets("g")[TopicPartition("t", 0)].offset == 2
        assert again.groups.list_groups() == ["g"]
    finally:
        again.close()
        again.close()
