"""Records that a consumer has read and not finished are read again.

The causes are a lost group membership, an interrupt, an exception, or a topic that is
re-created. None of these records is committed as if it were done.
"""

from __future__ import annotations

import time

import pytest

import eoslog
from eoslog.client.consumer.partition_state import TopicPartitionState
from eoslog.client.recipes import run_transaction
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    EoslogError,
    FencedInstanceId,
    IllegalState,
    RequestTimedOut,
)
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
from tests.rows.tools import locked_elsewhere

pytestmark = pytest.mark.slow
T0 = TopicPartition("t", 0)
EXACTLY_ONCE = {
    "group_id": "g",
    "processing_guarantee": "exactly_once",
    "auto_offset_reset": "earliest",
}
AT_LEAST_ONCE = {"group_id": "g", "auto_offset_reset": "earliest"}


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path) as log:
        for name in ("t", "out"):
            log.create_topic(name)
        yield log


def write(log, values, topic="t"):
    with log.producer() as producer:
        for value in values:
            producer.produce(topic, value)


def values_of(log, topic):
    with log.consumer() as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        return [bytes(record.value) for record in reader.consume(1000, timeout=1)]


def committed(log):
    found = log._engine.groups.fetch_offsets("g", [T0]).get(T0)
    return None if found is None else found.offset


@pytest.fixture
def producer(log):
    with log.producer(transactional_id="tx") as producer:
        producer.init_transactions()
        yield producer


def take_out_of_the_group(log, consumer):
    (member,) = log.describe_group("g").members
    log._engine.groups.remove_members("g", [member.member_id])


def test_a_transaction_that_loses_its_membership_can_only_be_aborted(log, producer):
    write(log, [b"0", b"1", b"2", b"3"])
    with log.consumer(producer=producer, **EXACTLY_ONCE) as consumer:
        consumer.subscribe(["t"])

        def work(tx, lose):
            done = 0
            while done < 4:
                for record in consumer.consume(2, timeout=60):
                    tx.produce("out", record.value)
                    done += 1
                if done == 2 and lose:
                    take_out_of_the_group(log, consumer)
                    time.sleep(0.2)  # the next poll looks after the group
            tx.commit_offsets(consumer)

        with pytest.raises(CommitFailed), producer.transaction() as tx:
            work(tx, lose=True)
        assert values_of(log, "out") == []
        with producer.transaction() as tx:
            work(tx, lose=False)
    assert values_of(log, "out") == [b"0", b"1", b"2", b"3"]
    assert committed(log) == 4


def _raises(consumer, partitions):
    raise ValueError


@pytest.mark.parametrize(
    ("on_lost", "told"),
    [(None, CommitFailed), (_raises, ValueError)],
    ids=["who ignores the error", "a listener that raises"],
)
def test_a_producer_cannot_commit_after_its_consumer_lost_membership(log, producer, on_lost, told):
    write(log, [b"0", b"1"])
    with log.consumer(producer=producer, **EXACTLY_ONCE) as consumer:
        consumer.subscribe(["t"], on_lost=on_lost)
        producer.begin_transaction()
        for record in consumer.consume(1, timeout=60):
            producer.produce("out", record.value)
        take_out_of_the_group(log, consumer)
        time.sleep(0.2)
        with pytest.raises(told):
            consumer.consume(1, timeout=60)
        with pytest.raises(CommitFailed):
            producer.commit_transaction()
        producer.abort_transaction()
    assert values_of(log, "out") == []


def test_a_failing_listener_does_not_keep_lost_partitions(log):
    """Without `on_lost`, the committing `on_revoke` is notified of losses too."""
    write(log, [b"%d" % i for i in range(6)])
    with (
        log.consumer(enable_auto_commit=False, **AT_LEAST_ONCE) as first,
        log.consumer(enable_auto_commit=False, **AT_LEAST_ONCE) as second,
    ):
        first.subscribe(["t"], on_revoke=lambda consumer, _: consumer.commit())
        first.consume(2, timeout=60)
        take_out_of_the_group(log, first)
        second.subscribe(["t"])
        assert len(second.consume(6, timeout=60)) == 6
        second.commit()
        time.sleep(0.2)
        with pytest.raises(CommitFailed):
            first.consume(2, timeout=0.2)
        for _ in range(4):  # the partition may come back to the first one, at the end
            assert first.consume(2, timeout=0.2) == second.consume(1, timeout=0.1) == []
            assert not set(first.assignment()) & set(second.assignment())


def poll_until_it_raises(consumer, error):
    deadline = time.monotonic() + 60
    with pytest.raises(error) as raised:
        while time.monotonic() < deadline:
            consumer.poll(0.01)
    return raised.value


def test_a_consumer_that_cannot_join_again_commits_nothing(tmp_path):
    with eoslog.open(tmp_path, config={"group.max.size": 1}) as log:
        log.create_topic("t")
        write(log, [b"0", b"1", b"2"])
        with (
            log.producer(transactional_id="tx") as producer,
            log.consumer("t", enable_auto_commit=False, **AT_LEAST_ONCE) as first,
            log.consumer("t", enable_auto_commit=False, **AT_LEAST_ONCE) as second,
        ):
            producer.init_transactions()
            assert len(first.consume(3, timeout=60)) == 3
            member = first.group_metadata()
            take_out_of_the_group(log, first)
            assert len(second.consume(1, timeout=60)) >= 1
            assert "group.max.size" in str(poll_until_it_raises(first, EoslogError))
            assert first.group_metadata() == member
            producer.begin_transaction()
            with pytest.raises(CommitFailed, match="rebalanced"):
                producer.send_offsets_to_transaction({T0: 3}, first)
            producer.abort_transaction()
            with pytest.raises(CommitFailed):
                first.commit({T0: 3})
            assert committed(log) is None
            first.unsubscribe()
            first.assign([T0])
            assert first.group_metadata().member_id == ""
            second.unsubscribe()
            first.commit({T0: 3})
        assert committed(log) == 3


def test_a_consumer_of_an_invalid_group_closes_without_a_warning(log, caplog):
    with log.consumer(group_id="x" * 40_000) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(EoslogError, match="group id"):
            consumer.poll(0)
    log._engine.dropped.end()
    assert [one for one in caplog.records if one.name.startswith("eoslog")] == []


@pytest.mark.parametrize("told", [None, _raises], ids=["", "a listener that raises"])
def test_a_static_name_is_taken_back_only_after_subscribe(log, told):
    write(log, [b"0", b"1"])
    settings = {**AT_LEAST_ONCE, "group_instance_id": "x", "enable_auto_commit": False}
    with log.consumer(**settings) as first, log.consumer("t", **settings) as second:
        first.subscribe(["t"], on_lost=told)
        first.consume(1, timeout=60)
        second.consume(1, timeout=60)
        poll_until_it_raises(first, FencedInstanceId if told is None else ValueError)
        for _ in range(3):
            with pytest.raises(FencedInstanceId):
                first.poll(0)
            with pytest.raises(FencedInstanceId):
                first.commit({T0: 1})
        assert second.group_metadata().member_id in {
            member.member_id for member in log.describe_group("g").members
        }
        first.subscribe(["t"])
        assert len(first.consume(2, timeout=60)) == 2
        poll_until_it_raises(second, FencedInstanceId)


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
@pytest.mark.parametrize("listener", ["on_assign", "on_revoke", "on_lost"])
def test_a_listener_must_not_close_its_consumer(log, listener, call):
    write(log, [b"0"])
    refused = []

    def told(consumer, _):
        try:
            getattr(consumer, call)()
        except IllegalState as error:
            refused.append(str(error))

    with log.consumer(**AT_LEAST_ONCE) as consumer:
        consumer.subscribe(["t"], **{listener: told})
        assert len(consumer.consume(1, timeout=60)) == 1
        if listener == "on_lost":
            take_out_of_the_group(log, consumer)
            time.sleep(0.2)
            consumer.consume(1, timeout=0.3)
    assert refused and "listener" in refused[0]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_with_block_that_raises_commits_nothing_unfinished(log, error):
    write(log, [b"%d" % i for i in range(4)])
    done = []
    with pytest.raises(error), log.consumer("t", **AT_LEAST_ONCE) as consumer:
        for record in consumer.consume(10, timeout=60):
            if record.offset == 1:
                raise error
            done.append(record.offset)
    with log.consumer("t", **AT_LEAST_ONCE) as consumer:
        done += [record.offset for record in consumer.consume(10, timeout=60)]
    assert done == [0, 0, 1, 2, 3]
    assert committed(log) == 4


def test_a_with_block_raises_its_own_error_although_leaving_fails(log):
    """The error is the block's own, even if leaving the group fails after it."""
    write(log, [b"0"])

    def raises(consumer, partitions):
        raise CommitFailed("while leaving")

    with pytest.raises(ZeroDivisionError), log.consumer(**AT_LEAST_ONCE) as consumer:
        consumer.subscribe(["t"], on_revoke=raises)
        assert consumer.consume(1, timeout=60)
        raise ZeroDivisionError
    assert consumer.closed


def test_an_interrupt_loses_no_record_fetched_from_another_partition(tmp_path):
    with eoslog.open(tmp_path) as log:
        log.create_topic("t", 2)
        with log.producer() as producer:
            for i in range(3):
                producer.produce("t", b"a%d" % i, partition=0)
                producer.produce("t", b"b%d" % i, partition=1)
        armed = [True]

        def deserializer(value):
            if value == b"b1" and armed:
                armed.clear()
                raise KeyboardInterrupt
            return bytes(value)

        with log.consumer("t", value_deserializer=deserializer, **AT_LEAST_ONCE) as consumer:
            with pytest.raises(KeyboardInterrupt):
                consumer.consume(100, timeout=60)
            assert not armed
            found = consumer.consume(100, timeout=60)
        assert sorted(record.value for record in found) == [
            b"a0",
            b"a1",
            b"a2",
            b"b0",
            b"b1",
            b"b2",
        ]


def test_at_most_once_returns_records_again_after_a_failed_commit(log):
    write(log, [b"%d" % i for i in range(6)])
    with log.consumer(
        group_id="g", processing_guarantee="at_most_once", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["t"])
        consumer.consume(1, timeout=60)
        consumer.seek_to_beginning()
        files.arm_failpoint("pwrite", "EIO", 1)
        try:
            with pytest.raises(EoslogError):
                consumer.consume(3, timeout=0.3)
        finally:
            files.disarm_failpoints()
        time.sleep(0.2)
        assert [record.offset for record in consumer.consume(6, timeout=0.5)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_re_created_topic_is_read_from_its_start(log, auto_commit):
    write(log, [b"old%d" % i for i in range(5)])
    with log.consumer(enable_auto_commit=auto_commit, **AT_LEAST_ONCE) as consumer:
        consumer.subscribe(["t"])
        assert len(consumer.consume(10, timeout=60)) == 5
        log.delete_topic("t")
        log.create_topic("t")
        new = [b"new%d" % i for i in range(10)]
        write(log, new)
        found = []
        for _ in range(100):
            found += [bytes(record.value) for record in consumer.consume(20, timeout=0.3)]
            if len(found) >= len(new):
                break
        consumer.commit()
        assert found == new
    assert committed(log) == 10


def test_an_interrupt_does_not_restore_the_position_in_a_deleted_topic(log):
    """The interrupt comes after the committed offset is found.

    The consumer has not looked up the topic yet.
    """
    state = TopicPartitionState(T0)
    state.log = log._engine.partition("t", 0)
    state.move_to(3)
    before = state.place()
    log.delete_topic("t")
    state.move_to(1)
    state.put_back(*before)
    assert (state.position, state.committed, state.start) == (None, None, None)


def test_a_seek_in_a_re_created_topic_is_kept(log):
    write(log, [b"old%d" % i for i in range(5)])
    with log.consumer() as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert len(consumer.consume(10, timeout=60)) == 5
        log.delete_topic("t")
        log.create_topic("t")
        write(log, [b"new%d" % i for i in range(8)])
        consumer.seek(TopicPartition("t", 0, 6))
        found = [bytes(record.value) for record in consumer.consume(10, timeout=60)]
    assert found == [b"new6", b"new7"]


def test_current_lag_counts_the_records_of_a_re_created_topic(log):
    write(log, [b"old%d" % i for i in range(5)])
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert len(consumer.consume(10, timeout=60)) == 5
        log.delete_topic("t")
        log.create_topic("t")
        write(log, [b"new0", b"new1"])
        assert consumer.current_lag() == {T0: 2}


def test_a_transaction_can_be_aborted_if_commit_raises_before_its_request(log, producer):
    """A callback that raises, or a timeout, while what is buffered is sent."""

    def fails(error, metadata):
        raise ValueError

    with pytest.raises(ValueError), producer.transaction() as tx:
        tx.produce("t", b"1", on_delivery=fails)
    assert producer.transaction_state == "READY"
    assert log.transactions() == []
    with producer.transaction() as tx:
        tx.produce("t", b"2")
    assert values_of(log, "t") == [b"2"]


def test_close_aborts_a_transaction_if_commit_raised_before_its_request(log):
    def fails(error, metadata):
        raise ValueError

    producer = log.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", b"1", on_delivery=fails)
    with pytest.raises(ValueError):
        producer.commit_transaction()
    producer.close()
    assert log.transactions() == []
    assert values_of(log, "t") == []


def test_commit_offsets_rejects_a_closed_or_unsubscribed_consumer(log, producer):
    write(log, [b"0"])
    for end in ("close", "unsubscribe"):
        consumer = log.consumer(producer=producer, **EXACTLY_ONCE)
        consumer.subscribe(["t"])
        with pytest.raises(IllegalState), producer.transaction() as tx:
            for record in consumer.consume(10, timeout=60):
                tx.produce("out", record.value)
            getattr(consumer, end)()
            tx.commit_offsets(consumer)
    assert values_of(log, "out") == []
    assert committed(log) is None


def test_run_transaction_raises_the_timeout_without_beginning_again(log):
    """Another process has the lock of a partition.

    Therefore no write and no transaction end is possible there.
    """
    with log.producer(transactional_id="x", max_block_ms=3000) as producer:
        producer.init_transactions()
        with locked_elsewhere(log._engine.partition("t", 0)), pytest.raises(RequestTimedOut):
            run_transaction(producer, lambda tx: tx.produce("t", b"once"))
        if producer.transaction_state != "READY":
            producer.abort_transaction(60)
        producer.begin_transaction()
        producer.produce("t", b"once")
        producer.commit_transaction(60)
    assert values_of(log, "t") == [b"once"]


def test_consumer_rejects_an_invalid_producer_before_opening_the_log(tmp_path):
    with pytest.raises(ConfigError, match="producer"):
        eoslog.Consumer({"log.dir": str(tmp_path / "new")}, producer=object())
    assert not (tmp_path / "new").exists()
