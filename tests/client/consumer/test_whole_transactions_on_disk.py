"""`poll_transactions` on real directories, and on those of a broker."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.client.consumer import transaction_pieces, whole_transactions
from eoslog.client.consumer.transaction_pieces import TransactionPiece
from tests.captures import extract

T = [TopicPartition("t", number) for number in range(3)]
WRITER = """
import sys
import eoslog
from eoslog.storage.fs import files

path, point, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = eoslog.open(path)
producer = log.producer(transactional_id="writer")
producer.init_transactions()
producer.begin_transaction()
for number in range(6):
    producer.produce("t", b"killed", partition=number % 3)
producer.flush()
files.arm_failpoint(point, "kill", nth)
producer.commit_transaction()
"""


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 3)
        opened.create_topic("one")
        yield opened


@pytest.fixture
def producer(log):
    with log.producer(transactional_id="x") as made:
        made.init_transactions()
        yield made


def reader(log, *, assign=T, **config):
    config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
    consumer = log.consumer(**config)
    consumer.assign(assign)
    return consumer


def visible(log, topics=("t",)):
    """The places of all visible records."""
    return {(r.topic, r.partition, r.offset) for topic in topics for r in log.read(topic)}


def places(records):
    return [(r.topic, r.partition, r.offset) for r in records]


def written(log, topics=("t",)):
    """The places of the visible records of each transaction."""
    seen = visible(log, topics)
    found = defaultdict(set)
    for topic in topics:
        for number in range(len(log.describe_topic(topic).partitions)):
            part = log._engine.partition(topic, number)
            for batch in part.batches(part.log_start, part.log_end):
                if batch.transactional and not batch.control:
                    of_batch = {(topic, number, offset) for offset, *_ in batch.records()}
                    found[batch.producer_id, batch.producer_epoch] |= of_batch & seen
    return list(found.values())


def whole(transactions, records):
    """Check that a list has each transaction completely; return how many it has."""
    got = set(places(records))
    complete = [one for one in transactions if one & got]
    assert all(one <= got for one in complete)
    return len(complete)


@pytest.mark.parametrize(
    ("point", "nth", "visible"),
    [("txn.flushed", 1, 0), ("txn.decided", 1, 6), ("txn.marked", 1, 6), ("txn.marked", 2, 6)],
)
def test_row_G09_a_writer_killed_between_markers_splits_nothing(tmp_path, point, nth, visible):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", 3)
        consumer = reader(log)
        with log.producer() as plain:
            plain.produce("t", b"plain", partition=2)
        assert [r.value for r in consumer.poll_transactions(10)] == [b"plain"]
        result = subprocess.run(
            [sys.executable, "-c", WRITER, str(path), point, str(nth)],
            check=False, env={**os.environ, "EOSLOG_FAILPOINTS": "1"},
        )  # fmt: skip
        assert result.returncode == -signal.SIGKILL
        records = consumer.poll_transactions(30 if visible else 1)
        assert [r.value for r in records] == [b"killed"] * visible
        assert consumer.poll_transactions(0) == []


@pytest.mark.parametrize("seed", range(2))
def test_threads_that_write_split_nothing(log, seed):
    def write(number):
        rng = random.Random(seed * 100 + number)
        with log.producer(transactional_id=f"p{number}", linger_ms=0) as producer:
            producer.init_transactions()
            for _ in range(30):
                producer.begin_transaction()
                for _ in range(rng.randrange(1, 5)):
                    producer.produce("t", b"x", partition=rng.randrange(3))
                if rng.random() < 0.8:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    consumer = reader(log, max_poll_records=5)
    polls = []
    while any(thread.is_alive() for thread in threads):
        polls.append(consumer.poll_transactions(0.05))
    while records := consumer.poll_transactions(1):
        polls.append(records)
    transactions = written(log)
    assert sum(whole(transactions, records) for records in polls) > 50
    assert sorted(places(r for records in polls for r in records)) == sorted(visible(log))


def kept_pieces():
    """The pieces that are in memory and in use."""
    gc.collect()
    return sum(type(found) is TransactionPiece for found in gc.get_objects())


def test_a_long_history_is_returned_whole_and_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_transactions, "_WINDOW", 200)
    monkeypatch.setattr(transaction_pieces, "_WINDOW_BYTES", 4096)
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", 3)
        for name in ("a", "b", "c"):  # one after the other, and c in one partition alone
            with log.producer(transactional_id=name, linger_ms=0) as producer:
                producer.init_transactions()
                for number in range(400):
                    producer.begin_transaction()
                    for partition in {number % 3, number // 7 % 3} if name != "c" else {2}:
                        producer.produce("t", b"x", partition=partition)
                    producer.abort_transaction() if number % 9 == 8 else producer.commit_transaction()
        for group in (None, "g"):  # with a group, offsets that are never committed
            consumer = reader(log, max_poll_records=20, **({"group_id": group} if group else {}))
            polls, most, of_other_tests = [], 0, kept_pieces()
            while records := consumer.poll_transactions(0):
                polls.append(records)
                if len(polls) % 5 == 1:
                    most = max(most, kept_pieces() - of_other_tests)
            assert 0 < most < 600
            transactions = [one for one in written(log) if one]
            assert sum(whole(transactions, records) for records in polls) == len(transactions)
            got = [place for records in polls for place in places(records)]
            assert sorted(got) == sorted(visible(log))
            consumer.close()


def test_offsets_that_a_transaction_commits_split_nothing(log, producer):
    """A member that takes over reads whole transactions again."""
    with log.producer(transactional_id="source") as source:
        source.init_transactions()
        for _ in range(5):
            with source.transaction() as tx:
                for partition in (0, 1, 2, 1):
                    tx.produce("t", b"x", partition=partition)
    options = {"group_id": "g", "max_poll_records": 4}
    for _ in range(5):
        with reader(log, **options) as consumer:
            with pytest.raises(RuntimeError), producer.transaction() as tx:
                records = consumer.poll_transactions(10)
                assert (len(records), whole(written(log), records)) == (4, 1)
                tx.commit_offsets(consumer)
                raise RuntimeError
            assert consumer.poll_transactions(10) == records
            with producer.transaction() as tx:
                tx.produce("one", b"done")
                tx.commit_offsets(consumer)
    with reader(log, **options) as consumer:
        assert consumer.poll_transactions(0) == []


def test_deleted_parts_of_transactions_are_left_out(log, producer):
    for _ in range(3):
        with producer.transaction() as tx:
            for partition in (0, 1, 1):
                tx.produce("t", b"x", partition=partition)
        producer.flush()
    log.delete_records({T[1]: 4})
    consumer = reader(log, max_poll_records=1)
    polls = [consumer.poll_transactions(1) for _ in range(4)]
    places = [[(r.partition, r.offset) for r in records] for records in polls]
    assert sorted(places[:3], key=lambda place: place[0]) == [
        [(0, 0)], [(0, 2), (1, 4)], [(0, 4), (1, 6), (1, 7)],
    ]  # fmt: skip


def test_compaction_leaves_whole_what_it_keeps(log):
    log.create_topic(
        "c", 2, {"cleanup.policy": "compact", "segment.bytes": 2000, "delete.retention.ms": 0,
                 "min.cleanable.dirty.ratio": 0.0},
    )  # fmt: skip
    with log.producer(transactional_id="c") as producer:
        producer.init_transactions()
        for number in range(60):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce("c", b"v" * 50, key=b"%d" % (number % 7), partition=partition)
            producer.commit_transaction() if number % 5 else producer.abort_transaction()
    both = [TopicPartition("c", 0), TopicPartition("c", 1)]
    consumer = reader(log, assign=both, max_poll_records=1)
    assert whole(written(log, ["c"]), consumer.poll_transactions(10)) == 1
    assert log.clean("c", roll=True)
    polls = []
    while records := consumer.poll_transactions(1):
        polls.append(records)
    transactions = written(log, ["c"])
    assert all(whole(transactions, records) == 1 for records in polls)
    got = places(r for records in polls for r in records)
    assert sorted(got) == sorted(visible(log, ["c"]) - {("c", 0, 2), ("c", 1, 2)})


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "killed"])
def test_transactions_that_a_kafka_broker_wrote_are_returned_whole(tmp_path, state):
    """Kafka 3.9 keeps the epoch of a producer over its transactions."""
    topics = ["compact", "orders", "payments", "stamped"]
    place = extract("world-3.9.2.tar.xz", tmp_path, without="/cut-")
    eoslog.import_kafka_dir(place / "world" / state, tmp_path / "log", topics=topics)
    with eoslog.open(tmp_path / "log") as log:
        partitions = [
            TopicPartition(name, number)
            for name in topics
            for number in range(len(log.describe_topic(name).partitions))
        ]
        consumer = reader(log, assign=partitions, max_poll_records=1)
        log.abort_transaction("etl-2")
        transactions = written(log, topics)
        got, count = [], 0
        while records := consumer.poll_transactions(1):
            count += whole(transactions, records)
            got += places(records)
        assert count == 5
        assert sorted(got) == sorted(visible(log, topics))
