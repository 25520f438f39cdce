"""Consume-transform-produce on a real directory: offsets and outputs are atomic."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from eoslog.client.consumer.consumer import Consumer
from eoslog.client.producer.producer import Producer
from eoslog.engine.engine import Engine
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    IllegalState,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from eoslog.model import OffsetAndMetadata, TopicPartition

T0 = TopicPartition("in", 0)


@pytest.fixture
def engine(path):
    engine = Engine.open(path)
    engine.metadata.create_topic("in", 2, {})
    engine.metadata.create_topic("out", 2, {})
    yield engine
    engine.close()


@pytest.fixture
def producer(path, opened):
    def make(transactional_id="tx", **config):
        made = Producer({"log.dir": path, "transactional.id": transactional_id, **config})
        opened.append(made)
        made.init_transactions()
        return made

    return make


@pytest.fixture
def consumer(path, engine, opened):
    def make(*topics, producer=None, **config):
        config = {"log.dir": path, "group.id": "g", "auto.offset.reset": "earliest", **config}
        config.setdefault("enable.auto.commit", False)
        made = Consumer(config, producer)
        opened.append(made)
        made.subscribe(list(topics or ("in",)))
        return made

    return make


@pytest.fixture
def feed(path, engine):
    with Producer({"log.dir": path}) as plain:
        for number in range(10):
            plain.produce("in", str(number), partition=0)


def outputs(path, isolation="read_committed"):
    reader = Consumer(
        {"log.dir": path, "auto.offset.reset": "earliest", "isolation.level": isolation}
    )
    with reader:
        reader.subscribe(["out"])
        found = []
        while records := reader.consume(100, 0.2):
            found += [r.value.decode() for r in records]
        return sorted(found)


def committed(engine, **options):
    found = engine.groups.fetch_offsets("g", [T0], **options)
    return found[T0].offset if T0 in found else None


def test_A11_outputs_and_offsets_commit_together(path, engine, feed, producer, consumer):
    p = producer()
    c = consumer(producer=p, processing_guarantee="exactly_once")
    with p.transaction() as tx:
        for record in c.consume(4, 60):
            tx.produce("out", b"<" + record.value + b">")
        tx.commit_offsets(c)
        assert committed(engine, require_stable=False) is None
    assert committed(engine) == 4
    assert outputs(path) == ["<0>", "<1>", "<2>", "<3>"]


@pytest.mark.slow
def test_A12_an_exception_aborts_and_rewinds(path, engine, feed, producer, consumer):
    p = producer()
    c = consumer(producer=p)
    with p.transaction() as tx:
        c.consume(2, 60)
        tx.commit_offsets(c)
    with pytest.raises(RuntimeError), p.transaction() as tx:
        for record in c.consume(4, 60):
            tx.produce("out", record.value)
        tx.commit_offsets(c)
        p.flush()
        raise RuntimeError
    assert committed(engine) == 2
    assert outputs(path) == []
    assert outputs(path, "read_uncommitted") == ["2", "3", "4", "5"]
    assert c.poll(60).value == b"2"


def test_A12_an_abort_without_a_committed_offset_rewinds_to_the_start(
    engine, feed, producer, consumer
):
    p = producer()
    c = consumer(producer=p)
    with pytest.raises(RuntimeError), p.transaction() as tx:
        c.consume(4, 60)
        tx.commit_offsets(c)
        raise RuntimeError
    assert c.poll(60).value == b"0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "expected"),
    [("produce first", [*"0123", *"23456789"]), ("commit first", [*"01", *"456789"]),
     ("transaction", [*"0123456789"])],
)  # fmt: skip
def test_A14_two_commits_repeat_or_lose_records_and_a_transaction_does_not(
    path, engine, feed, producer, consumer, order, expected
):
    def work(p, c, crash):
        while records := c.consume(2, 0.3):
            step = work_step(p, c, records, crash and records[0].value == b"2")
            if step == "crashed":
                return

    def work_step(p, c, records, crash):
        if order == "transaction":
            try:
                with p.transaction() as tx:
                    for record in records:
                        tx.produce("out", record.value)
                    if crash:
                        raise KeyboardInterrupt
                    tx.commit_offsets(c)
            except KeyboardInterrupt:
                return "crashed"
            return None
        steps = [lambda: write(p, records), c.commit]
        for step in steps if order == "produce first" else reversed(steps):
            step()
            if crash:
                return "crashed"
        return None

    def write(p, records):
        for record in records:
            p.produce("out", record.value)
        p.flush()

    transactional = order == "transaction"
    for crash in (True, False):
        p = producer() if transactional else Producer({"log.dir": path})
        c = consumer(producer=p if transactional else None)
        work(p, c, crash)
        engine.groups.remove_members("g", [c.group_metadata().member_id])
        if not transactional:
            p.close()
    assert outputs(path) == sorted(expected)


def test_A15_the_transaction_of_a_stale_member_is_rejected(path, engine, feed, producer, consumer):
    """R80 of docs/contributing/regressions.md."""
    p = producer()
    c = consumer(producer=p)
    p.begin_transaction()
    for record in c.consume(4, 60):
        p.produce("out", record.value)
    stale = c.group_metadata()
    engine.groups.remove_members("g", [stale.member_id])
    fresh = consumer()
    assert len(fresh.consume(10, 60)) == 10
    with pytest.raises(CommitFailed):
        p.send_offsets_to_transaction({T0: 4}, stale)
    p.abort_transaction()
    fresh.commit()
    assert committed(engine) == 10
    assert outputs(path) == []


def test_E14_a_group_is_added_once_per_transaction(engine, feed, producer, consumer):
    events = []
    engine.transactions.trace(events.append)
    p = producer()
    c = consumer()
    c.consume(4, 60)
    p.begin_transaction()
    log = engine.transaction_partition("tx")
    p.send_offsets_to_transaction({T0: 1}, c.group_metadata())
    before = log.log_end
    p.send_offsets_to_transaction({T0: 2}, c.group_metadata())
    assert log.log_end == before
    p.commit_transaction()
    assert committed(engine) == 2


def test_E15_a_fenced_producer_cannot_write_offsets(engine, feed, producer, consumer):
    old = producer()
    old.begin_transaction()
    producer()
    with pytest.raises(ProducerFenced):
        old.send_offsets_to_transaction({T0: 1}, "g")
    assert committed(engine) is None


def test_E16_a_read_of_committed_offsets_waits_for_the_marker(engine, feed, producer):
    p = producer()
    p.begin_transaction()
    p.send_offsets_to_transaction({T0: 7}, "g")
    assert committed(engine, require_stable=False) is None
    with pytest.raises(Exception, match="undecided"):
        committed(engine, timeout=0.1)
    p.commit_transaction()
    assert committed(engine) == 7


def test_H08_send_offsets_accepts_the_name_of_a_group(engine, producer):
    p = producer()
    p.begin_transaction()
    p.send_offsets_to_transaction([TopicPartition("in", 0, 3)], "group0323")
    p.commit_transaction()
    found = engine.groups.fetch_offsets("group0323")
    assert found == {T0: OffsetAndMetadata(3)}


def test_H03_exactly_once_consumers_commit_only_in_transactions(feed, producer, consumer):
    c = consumer(producer=producer(), processing_guarantee="exact_once")
    c.poll(60)
    with pytest.raises(IllegalState):
        c.commit()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"enable.auto.commit": True}, "enable.auto.commit"),
     ({"isolation.level": "read_uncommitted"}, "read_uncommitted")],
)  # fmt: skip
@pytest.mark.parametrize("call", ["commit_offsets", "send_offsets", "producer"])
def test_H07_E04_offsets_of_an_unsuitable_consumer_are_rejected(
    engine, feed, producer, consumer, options, named, call
):
    """One consumer commits automatically, the other reads uncommitted records."""
    p = producer()
    c = consumer(**options)
    c.poll(60)
    with pytest.raises(ConfigError, match=named), p.transaction() as tx:
        if call == "commit_offsets":
            tx.commit_offsets(c)
        else:
            send = tx.send_offsets if call == "send_offsets" else p.send_offsets_to_transaction
            send(c.positions(), c)


def test_a_topic_re_created_during_commit_offsets_inherits_no_position(
    feed, producer, consumer, engine
):
    """The topic is re-created after the offsets are read, before the group gets them."""
    p = producer()
    c = consumer(producer=p)
    assert len(c.consume(3, 60)) == 3
    made_again = []

    def make_again(event):
        if event["request"] == "AddOffsetsToTxn" and not made_again:
            made_again.append(engine.topics.delete("in"))
            engine.topics.create("in", 2, {})

    stop = p._engine.transactions.trace(make_again)
    with pytest.raises(TransactionAbortable, match="'in' was deleted and re-created"):  # noqa: SIM117
        with p.transaction() as tx:
            tx.commit_offsets(c)
    stop()
    assert made_again
    assert engine.groups.fetch_offsets("g") == {}


def test_commit_offsets_rejects_positions_in_a_re_created_topic(feed, producer, consumer, engine):
    p = producer()
    c = consumer()
    assert len(c.consume(3, 60)) == 3
    before = c._link.positions()
    engine.topics.delete("in")
    engine.topics.create("in", 2, {})
    assert c._link.positions() == {}
    with pytest.raises(UnknownTopicOrPartition, match="re-created"):
        c.commit(before)
    p.begin_transaction()
    with pytest.raises(TransactionAbortable, match="re-created"):
        p.send_offsets_to_transaction(before, c)
    p.abort_transaction()
    assert engine.groups.fetch_offsets("g") == {}


@pytest.mark.slow
def test_a_rebalance_waits_for_the_end_of_the_bound_transaction(feed, producer, consumer):
    p = producer()
    c = consumer(producer=p)
    c.consume(1, 60)
    with p.transaction() as tx:
        other = consumer()
        other.consume(1, 0)
        for _ in range(3):
            c.consume(1, 1)
            time.sleep(0.15)
        assert len(c.assignment()) == 2
        tx.commit_offsets(c)
    deadline = time.monotonic() + 60
    while len(c.assignment()) == 2:
        assert time.monotonic() < deadline
        c.consume(1, 0.2)
    assert len(c.assignment()) == 1


@pytest.mark.parametrize("how", ["by hand", "in a block"])
def test_a_consumer_that_polls_only_inside_transactions_yields_a_partition(
    feed, producer, consumer, how
):
    p = producer()
    c = consumer(producer=p)
    other = consumer()
    for _ in range(60):
        if how == "in a block":
            with p.transaction() as tx:
                c.consume(1, 0.1)
                tx.send_offsets(c._link.positions(), c.group_metadata())
        else:
            p.begin_transaction()
            c.consume(1, 0.1)
            p.send_offsets_to_transaction(c._link.positions(), c.group_metadata())
            p.commit_transaction()
        other.consume(1, 0.01)
        if len(c.assignment()) == len(other.assignment()) == 1:
            break
    assert len(c.assignment()) == len(other.assignment()) == 1


WORKER = """
    import os, signal, sys
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.client.producer.producer import Producer
    from eoslog.model import TopicPartition
    PLACES = [TopicPartition("in", 0), TopicPartition("in", 1)]
    path, die_at = sys.argv[1], int(sys.argv[2])
    p = Producer({"log.dir": path, "transactional.id": "tx"})
    p.init_transactions()
    c = Consumer({"log.dir": path, "group.id": "g", "auto.offset.reset": "earliest",
                  "processing.guarantee": "exactly_once_v2"}, p)
    c.subscribe("in")
    steps = 0
    def step():
        global steps
        steps += 1
        if steps == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    while sum(place.offset or 0 for place in c.committed(PLACES)) < 10:
        records = c.consume(3, 0.5)
        if not records:
            continue
        p.begin_transaction()
        step()
        for record in records:
            p.produce("out", record.value)
        p.flush()
        step()
        p.send_offsets_to_transaction(c.positions(), c.group_metadata())
        step()
        p.commit_transaction()
        step()
    c.close()
    p.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("die_at", [2, 3, 4, 6, 7, 8])
def test_A11_a_worker_killed_at_any_step_leaves_each_input_processed_once(
    path, engine, feed, die_at
):
    run = [sys.executable, "-c", textwrap.dedent(WORKER), path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    first = subprocess.run([*run, str(die_at)], env=env, timeout=300, check=False)
    assert first.returncode == -signal.SIGKILL
    subprocess.run([*run, "-1"], env=env, timeout=300, check=True)
    assert outputs(path) == sorted("0123456789")
    assert committed(engine) == 10


SWARM_WORKER = """
    import os, sys
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.client.producer.producer import Producer
    from eoslog.errors import CommitFailed, KafkaError
    path, slot = sys.argv[1:]
    p = Producer({"log.dir": path, "transactional.id": "tx" + slot, "transaction.timeout.ms": 5000})
    p.init_transactions()
    c = Consumer({"log.dir": path, "group.id": "g", "auto.offset.reset": "earliest",
                  "session.timeout.ms": 1500, "client.id": "w" + slot,
                  "partition.assignment.strategy": "cooperative-sticky",
                  "processing.guarantee": "exactly_once"}, p)
    c.subscribe("in")
    while True:
        records = c.consume(7, 0.2)
        if not records:
            continue
        try:
            with p.transaction() as tx:
                for record in records:
                    tx.produce("out", record.value)
                tx.commit_offsets(c)
        except CommitFailed:
            continue
        except KafkaError as error:
            if error.fatal:
                os._exit(3)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_A11_A15_killed_and_suspended_workers_process_each_input_once(path, engine, seed):
    choice = random.Random(seed)
    count = 3000
    with Producer({"log.dir": path}) as plain:
        for number in range(count):
            plain.produce("in", str(number), partition=number % 2)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = textwrap.dedent(SWARM_WORKER)

    def start(slot):
        return subprocess.Popen([sys.executable, "-c", code, path, str(slot)], env=env)

    def done():
        offsets = engine.groups.fetch_offsets("g", require_stable=False)
        return sum(o.offset for o in offsets.values())

    def finished():
        found = engine.groups.fetch_offsets("g", require_stable=False)
        ends = {p: engine.partition("in", p).log_end for p in (0, 1)}
        return all(
            found.get(TopicPartition("in", p), OffsetAndMetadata(0)).offset >= e
            for p, e in ends.items()
        )

    workers = [start(slot) for slot in range(3)]
    deadline, turns = time.monotonic() + 400, 0
    try:
        while not finished():
            assert time.monotonic() < deadline, f"{done()} of {count}"
            time.sleep(choice.uniform(0.1, 0.8))
            turns += 1
            slot = choice.randrange(3)
            worker = workers[slot]
            # A slow machine may need longer for a start than a worker lives.
            action = choice.choice(["kill", "stop", "none"]) if turns < 80 else "none"
            if worker.poll() is not None:
                workers[slot] = start(slot)
            elif action == "kill":
                worker.kill()
                worker.wait()
                workers[slot] = start(slot)
            elif action == "stop":
                worker.send_signal(signal.SIGSTOP)
                time.sleep(choice.uniform(0.1, 2.5))
                worker.send_signal(signal.SIGCONT)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for slot in range(
        3
    ):  # an open transaction of a killed process blocks readers until it is ended
        with Producer({"log.dir": path, "transactional.id": f"tx{slot}"}) as successor:
            successor.init_transactions()
    assert outputs(path) == sorted(str(number) for number in range(count))
