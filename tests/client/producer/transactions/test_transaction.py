"""`with producer.transaction()` reads the input of an aborted transaction again.

No input that another member reads is committed twice, whatever fails in between.
"""

from __future__ import annotations

import os
import threading
import time

import pytest

import eoslog
from eoslog.client.consumer.consumer import Consumer
from eoslog.errors import CommitFailed, ConfigError, IllegalState
from eoslog.model import TopicPartition

T0, T1 = TopicPartition("in", 0), TopicPartition("in", 1)
GROUP = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path) as log:
        log.create_topic("in", 2)
        log.create_topic("out")
        with log.producer() as producer:
            for partition in (0, 1):
                for number in range(3):
                    producer.produce("in", b"%d-%d" % (partition, number), partition=partition)
        yield log


INPUT = [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1", b"1-2"]


@pytest.fixture
def make_producer(log, opened):
    def make(name="tx", **options):
        made = log.producer(transactional_id=name, **options)
        opened.append(made)
        made.init_transactions()
        return made

    return make


@pytest.fixture
def producer(make_producer):
    return make_producer()


@pytest.fixture
def consumer(log, opened):
    def make(*topics, producer=None, **options):
        made = log.consumer(*topics, producer=producer, **{**GROUP, **options})
        opened.append(made)
        return made

    return make


def outputs(log):
    return sorted(
        bytes(value) for batch in log.scan("out") for value in batch.column("value").to_pylist()
    )


def work(producer, consumer, count):
    """One transaction of `count` records."""
    with producer.transaction() as tx:
        pass_on(tx, consumer, count)
        tx.commit_offsets(consumer)


def pass_on(tx, consumer, count):
    for _ in range(count):
        tx.produce("out", consumer.poll(60).value)


def poll_until(consumer, done):
    """Follow the group, without taking a record, until `done()`."""
    deadline = time.monotonic() + 60
    consumer.pause(consumer.assignment())
    while not done():
        assert time.monotonic() < deadline
        consumer.poll(0.01)
        consumer.pause(consumer.assignment())
    consumer.resume(consumer.assignment())


def failing(error):
    def told(failure, metadata):
        if failure is not None:
            raise error

    return told


@pytest.mark.parametrize("told", [RuntimeError, KeyboardInterrupt])
def test_an_abort_rewinds_although_a_callback_raises(log, make_producer, consumer, told):
    producer = make_producer(linger_ms=60_000)
    c = consumer("in", producer=producer)
    expected = ZeroDivisionError if told is RuntimeError else KeyboardInterrupt
    with pytest.raises(expected), producer.transaction() as tx:
        tx.produce("out", c.poll(60).value, on_delivery=failing(told))
        raise ZeroDivisionError
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_tx_abort_leaves_no_output_and_rewinds_the_consumer(log, producer, consumer):
    c = consumer("in", producer=producer)
    with producer.transaction() as tx:
        pass_on(tx, c, 2)
        tx.commit_offsets(c)
        tx.abort()
        assert producer.transaction_state == "READY"
        with pytest.raises(IllegalState, match="begin_transaction"):
            tx.produce("out", b"late")
        with pytest.raises(IllegalState, match="abort_transaction"):
            tx.abort()
    work(producer, c, 6)
    assert outputs(log) == INPUT
    assert c.committed([T0, T1]) == [T0, T1]
    assert [tp.offset for tp in c.committed([T0, T1])] == [3, 3]


def test_a_block_raises_the_error_that_follows_its_tx_abort(log, producer, consumer):
    c = consumer("in", producer=producer)
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        pass_on(tx, c, 2)
        tx.abort()
        c.poll(60)
        raise ZeroDivisionError
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_a_block_commits_after_an_aborted_one_of_the_same_object(log, producer):
    tx = producer.transaction()
    with tx:
        tx.abort()
    with tx:
        tx.produce("out", b"again")
    assert outputs(log) == [b"again"]


def test_tx_abort_rewinds_although_a_callback_raises(log, make_producer, consumer):
    producer = make_producer(linger_ms=60_000)
    c = consumer("in", producer=producer)
    with producer.transaction() as tx:
        tx.produce("out", c.poll(60).value, on_delivery=failing(RuntimeError))
        with pytest.raises(RuntimeError):
            tx.abort()
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_a_block_does_not_leave_open_a_transaction_begun_after_tx_abort(log, producer, consumer):
    reader = consumer("in", producer=producer)
    with pytest.raises(IllegalState, match="still open at the end"), producer.transaction() as tx:
        tx.abort()
        producer.begin_transaction()
        pass_on(producer, reader, 2)
    assert producer.transaction_state == "READY"
    with producer.transaction() as tx:
        tx.abort()
        producer.begin_transaction()
        producer.commit_transaction()  # by hand, as it was begun
    work(producer, reader, 6)
    assert outputs(log) == INPUT


@pytest.mark.parametrize("place, offset", [("earliest", 0), ("latest", 3)])
def test_commit_offsets_resolves_a_position_at_an_end_of_the_log(
    log, producer, consumer, place, offset
):
    reader = consumer()
    reader.assign([T0, T1])
    with producer.transaction() as tx:
        reader.seek(T0, place)
        tx.commit_offsets(reader)
    assert reader.committed(T0) == offset
    assert reader.committed(T1) == 0


def test_commit_offsets_leaves_out_a_position_in_a_deleted_topic(log, producer, consumer):
    reader = consumer()
    reader.assign([T0, TopicPartition("out", 0)])
    reader.seek_to_end()
    log.delete_topic("out")
    with producer.transaction() as tx:
        tx.commit_offsets(reader)
    assert reader.committed(T0) == 3


@pytest.fixture
def elsewhere(log, opened, tmp_path_factory):
    """A consumer of a copy of the directory, whose topics have the same ids."""
    path = tmp_path_factory.mktemp("copy") / "log"
    log.backup(path)
    copy = eoslog.open(path)
    opened.append(copy)
    return copy


def test_no_transaction_commits_offsets_of_a_consumer_of_another_directory(
    log, producer, elsewhere
):
    reader = elsewhere.consumer("in", **GROUP)
    reader.poll(60)
    message = f"the consumer reads {elsewhere.path}, and the producer writes {log.path};"
    with producer.transaction() as tx:
        with pytest.raises(ConfigError, match=message):
            tx.commit_offsets(reader)
        with pytest.raises(ConfigError, match=message):
            tx.send_offsets([TopicPartition("in", 0, 1)], reader)
    with pytest.raises(ConfigError, match=message):
        Consumer({"log.dir": elsewhere.path, "group.id": "g"}, producer)
    assert log.committed("g") == {}


def test_two_paths_of_a_directory_are_one_directory(log, opened, tmp_path):
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    consumer = log.consumer("in", **GROUP)
    producer = eoslog.Producer({"log.dir": str(link), "transactional.id": "tx"})
    opened.extend([producer, consumer])
    producer.init_transactions()
    consumer.poll(60)
    with producer.transaction() as tx:
        tx.commit_offsets(consumer)
    assert sum(one.offset for one in log.committed("g").values()) == 1


def test_a_consumer_bound_inside_a_transaction_is_rewound(log, producer, opened):
    with pytest.raises(ZeroDivisionError), producer.transaction():
        c = Consumer(
            {"log.dir": log.path, "group.id": "g", "auto.offset.reset": "earliest"}, producer
        )
        opened.append(c)
        c.subscribe("in")
        c.poll(60)
        raise ZeroDivisionError
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_commit_offsets_binds_the_consumer(log, producer, consumer):
    c = consumer("in")
    work(producer, c, 1)
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        pass_on(tx, c, 2)
        raise ZeroDivisionError
    work(producer, c, 5)
    assert outputs(log) == INPUT


def test_records_read_before_an_abort_without_a_rewind_are_read_again(log, producer, consumer):
    c = consumer("in")
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        pass_on(tx, c, 2)
        raise ZeroDivisionError
    with pytest.raises(CommitFailed, match="aborted") as refused:
        work(producer, c, 1)
    assert refused.value.abortable and not refused.value.fatal
    assert producer.transaction_state == "READY"
    work(producer, c, 6)
    assert outputs(log) == INPUT


@pytest.mark.parametrize("end", ["abort", "close", "init", "fenced"])
def test_records_read_before_an_abort_outside_a_block_are_read_again(
    log, make_producer, consumer, end
):
    producer = make_producer()
    c = consumer("in", producer=producer)
    producer.begin_transaction()
    pass_on(producer, c, 2)
    producer.flush()
    if end == "abort":
        producer.abort_transaction()
    elif end == "close":
        producer.close()
        producer = make_producer()
    else:
        old, producer = producer, make_producer()
        if end == "fenced":
            with pytest.raises(eoslog.errors.ProducerFenced):
                old.commit_transaction()
    with pytest.raises(CommitFailed, match="aborted"):
        work(producer, c, 1)
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_a_bound_consumer_is_not_affected_by_aborts_of_other_producers(
    log, make_producer, consumer
):
    producer, other = make_producer(), make_producer("other")
    c = consumer("in", producer=producer)
    with producer.transaction() as tx:
        pass_on(tx, c, 2)
        other.begin_transaction()
        other.abort_transaction()
        tx.commit_offsets(c)
    assert outputs(log) == INPUT[:2]


def test_two_producers_may_use_one_consumer_alternately(log, make_producer, consumer):
    producers = [make_producer(), make_producer("other")]
    c = consumer("in")
    for turn in range(6):
        work(producers[turn % 2], c, 1)
    assert outputs(log) == INPUT


@pytest.mark.parametrize("at_start", [True, False], ids=["bound", "by commit_offsets"])
def test_an_abort_of_one_of_two_producers_rewinds_their_consumer(
    log, make_producer, consumer, at_start
):
    producer, other = make_producer(), make_producer("other")
    c = consumer("in", producer=producer if at_start else None)
    work(producer, c, 1)
    with pytest.raises(ZeroDivisionError), other.transaction() as tx:
        pass_on(tx, c, 2)
        raise ZeroDivisionError
    with pytest.raises(CommitFailed, match="aborted"):
        work(producer, c, 1)
    work(producer, c, 5)
    assert outputs(log) == INPUT


@pytest.mark.parametrize("how", ["aborted by another thread", "begun by another thread"])
def test_commit_offsets_finds_the_aborted_transaction_of_another_thread(
    log, make_producer, consumer, how
):
    producer, other = make_producer(), make_producer("other")
    c = consumer("in", producer=producer)
    work(producer, c, 1)

    def turn():
        other.begin_transaction()
        pass_on(other, c, 2)

    def elsewhere(run):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    if how == "aborted by another thread":
        turn()
        elsewhere(other.abort_transaction)
    else:
        elsewhere(turn)
        other.close()
    with pytest.raises(CommitFailed, match="aborted"):
        work(producer, c, 1)
    work(producer, c, 5)
    assert outputs(log) == INPUT


def test_records_read_in_a_block_that_closes_its_producer_are_read_again(
    log, make_producer, consumer
):
    """A fenced producer cannot abort; its sender may find out in another thread."""
    producer, other = make_producer(), make_producer("other")
    c = consumer("in", producer=producer)
    with pytest.raises(IllegalState, match="closed"), other.transaction() as tx:
        other.close()
        assert len(c.consume(2, 60)) == 2
        tx.produce("out", b"never")
    with pytest.raises(CommitFailed, match="aborted"):
        work(producer, c, 1)
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_another_producer_cannot_commit_records_read_for_an_open_transaction(
    log, make_producer, consumer
):
    producer, other = make_producer(), make_producer("other")
    c = consumer("in", producer=producer)
    producer.begin_transaction()
    pass_on(producer, c, 2)
    with pytest.raises(CommitFailed, match="transaction of another producer"):
        work(other, c, 1)
    producer.abort_transaction()
    work(other, c, 6)
    assert outputs(log) == INPUT


def test_a_bound_consumer_is_not_affected_by_aborts_of_other_threads(log, make_producer, consumer):
    producer, other = make_producer(), make_producer("other")
    c = consumer("in", producer=producer)
    first = c.poll(60)  # its transaction comes later

    def aborts():
        other.begin_transaction()
        other.abort_transaction()

    thread = threading.Thread(target=aborts)
    thread.start()
    thread.join()
    with producer.transaction() as tx:
        tx.produce("out", first.value)
        tx.commit_offsets(c)
    assert outputs(log) == INPUT[:1]


def test_an_abort_does_not_affect_records_committed_before_it(log, producer, consumer):
    c = consumer("in")
    assert len(c.consume(2, 60)) == 2
    c.commit()
    producer.begin_transaction()
    producer.abort_transaction()
    c.seek(TopicPartition("in", 0, 2))
    work(producer, c, 1)


def test_a_consumer_in_use_is_rewound_before_its_next_commit(log, producer, consumer):
    """Another thread is in the middle of a call when the transaction fails."""
    inside, go_on = threading.Event(), threading.Event()

    def deserializer(value):
        if threading.current_thread() is reader:
            inside.set()
            assert go_on.wait(60)
        return bytes(value)

    with log.producer() as more:
        c = consumer(producer=producer, value_deserializer=deserializer)
        c.assign([T0])
        reader = threading.Thread(target=lambda: c.consume(1, 60))
        gathered = [c.poll(60).value for _ in range(3)]
        more.produce("in", b"0-3", partition=0)
        more.flush()
    reader.start()
    assert inside.wait(60)
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        for value in gathered:
            tx.produce("out", value)
        raise ZeroDivisionError
    go_on.set()
    reader.join()
    with pytest.raises(CommitFailed, match="in use when an earlier transaction was aborted"):
        work(producer, c, 0)
    work(producer, c, 4)
    assert outputs(log) == [*INPUT[:3], b"0-3"]


@pytest.mark.slow
@pytest.mark.parametrize("bound", [True, False])
def test_a_partition_revoked_in_between_is_committed_by_only_one_producer(
    log, make_producer, consumer, bound
):
    """Without the bound consumer, a revocation does not wait for the transaction."""
    pa, pb = make_producer("a"), make_producer("b")
    a = consumer("in", producer=pa if bound else None)
    b = consumer("in")
    gathered = [a.poll(60).value for _ in range(5)]
    if not bound:
        pa.begin_transaction()
        pa.commit_transaction()
    b.poll(0)
    with pytest.raises(CommitFailed, match="was reassigned"):
        if bound:
            poll_until(a, lambda: len(a.assignment()) == 1)
        with pa.transaction() as tx:
            if not bound:
                poll_until(a, lambda: len(a.assignment()) == 1)
            for value in gathered:
                tx.produce("out", value)
            tx.commit_offsets(a)
    work(pb, b, 3)
    work(pa, a, 3)
    assert outputs(log) == INPUT


@pytest.mark.parametrize("how", ["assign", "unsubscribe", "lost"])
def test_commit_offsets_rejects_a_partition_that_was_given_up(log, producer, consumer, how):
    c = consumer(producer=producer)
    if how == "lost":
        c.subscribe(["in"])
    else:
        c.assign([T0, T1])
    gathered = [c.poll(60).value for _ in range(4)]
    if how == "assign":
        c.assign([T1])
    elif how == "unsubscribe":
        c.unsubscribe()
        c.assign([T1])
    else:
        (member,) = log.describe_group("g").members
        log._engine.groups.remove_members("g", [member.member_id])
        before = c.group_metadata()
        poll_until(c, lambda: c.assignment() and c.group_metadata() != before)
    with pytest.raises(CommitFailed, match="was reassigned"), producer.transaction() as tx:
        for value in gathered:
            tx.produce("out", value)
        tx.commit_offsets(c)
    c.unsubscribe()
    c.assign([T0, T1])
    work(producer, c, 6)
    assert outputs(log) == INPUT


def test_a_partition_may_be_given_up_after_all_its_records_are_committed(log, producer, consumer):
    c = consumer(producer=producer)
    c.assign([T0, T1])
    work(producer, c, 4)
    c.assign([T1])
    work(producer, c, 2)
    c.assign([T0])
    c.assign([T1])
    work(producer, c, 0)
    assert outputs(log) == INPUT


def test_records_read_after_commit_offsets_do_not_count_as_committed(log, producer, consumer):
    c = consumer(producer=producer)
    c.assign([T0])
    with producer.transaction() as tx:
        pass_on(tx, c, 1)
        tx.commit_offsets(c)
        late = c.poll(60).value
    c.assign([T1])
    with pytest.raises(CommitFailed, match="was reassigned"), producer.transaction() as tx:
        tx.produce("out", late)
        tx.commit_offsets(c)
    c.assign([T0])
    work(producer, c, 2)
    assert outputs(log) == INPUT[:3]


def test_a_block_cannot_commit_after_commit_offsets_failed(log, producer, consumer):
    c = consumer(producer=producer)
    c.assign([T0])
    c.poll(60)
    c.assign([T1])
    with pytest.raises(CommitFailed), producer.transaction() as tx:
        tx.produce("out", b"0-0")
        with pytest.raises(CommitFailed):
            tx.commit_offsets(c)
    assert outputs(log) == []


def test_a_forked_child_leaves_the_block_with_its_own_error(log, producer):
    parent = os.getpid()
    with log.consumer("in", producer=producer, **GROUP) as consumer:
        try:
            with producer.transaction() as tx:
                count = len(consumer.consume(6, timeout=60))
                tx.produce("out", b"%d" % count)
                child = os.fork()
                if child == 0:
                    raise ValueError
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                tx.commit_offsets(consumer)
        except BaseException as error:
            if os.getpid() == parent:
                raise
            os._exit(7 if type(error) is ValueError else 1)
    assert [record.value for record in log.read("out")] == [b"%d" % count]
    assert sum(at.offset for at in log.committed("g").values()) == count
