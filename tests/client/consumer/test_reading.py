"""Reads from an in-memory directory: isolation, positions, errors, threads."""

from __future__ import annotations

import threading
import time

import pytest

from eoslog import _core
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    IllegalState,
    KafkaError,
    NoOffset,
    OffsetOutOfRange,
    SerializationError,
    UnknownTopicOrPartition,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from tests.client.consumer.helpers import T0, T1, consumer, drain, values


def test_consumed_records_have_their_attributes(host, log):
    log.append(_core.build_batch([(1000, b"k", b"v", (("h", b"x"),))]))
    record = consumer(host).poll(0)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("t", 0, 0, 1000)
    assert (record.key, record.value, list(record.headers)) == (b"k", b"v", [("h", b"x")])


def test_poll_waits_for_a_record_until_its_timeout(host, log):
    c = consumer(host)
    started = time.monotonic()
    assert c.poll(0.1) is None
    assert time.monotonic() - started >= 0.1
    threading.Timer(0.05, log.put, ["late"]).start()
    assert values([c.poll(60)]) == ["late"]


def test_consume_returns_at_most_max_poll_records(host, log):
    log.put(*"abcde")
    c = consumer(host, max_poll_records=2)
    assert [values(c.consume(timeout=0)) for _ in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]
    assert len(consumer(host, max_poll_records=2).consume(10, 0)) == 2
    assert len(consumer(host).consume(10, 0)) == 5


def test_consume_returns_records_of_all_partitions_in_rotation(host, log):
    log.put(*"aaaa")
    host.partition("t", 1).put(*"bbbb")
    c = consumer(host, assign=(T0, T1))
    assert sorted(drain(c, 3)) == list("aaaabbbb")
    for _ in range(4):
        log.put("a")
        host.partition("t", 1).put("b")
    assert {values([c.poll(0)])[0] for _ in range(5)} == {"a", "b"}


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [("read_committed", ["plain", "yes", "plain2"]),
     ("read_uncommitted", ["plain", "yes", "no", "plain2", "open", "after"])],
)  # fmt: skip
def test_A13_isolation_level_decides_which_records_are_visible(host, log, isolation, expected):
    log.put("plain")
    log.put("yes", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.put("no", producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    log.mark(1, 0, commit=True)
    log.mark(2, 0, commit=False)
    log.put("plain2")
    log.put("open", producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    log.put("after")
    c = consumer(host, isolation_level=isolation)
    assert drain(c) == expected
    assert c.position(T0) == (6 if isolation == "read_committed" else 8)
    if isolation == "read_committed":
        log.mark(3, 0, commit=True)
        assert drain(c) == ["open", "after"]


def test_A13_read_committed_is_the_default(host, log):
    log.put("open", producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    assert drain(consumer(host)) == []


def test_the_position_steps_over_aborted_batches_and_markers(host, log):
    log.put("no", producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    log.mark(2, 0, commit=False)
    c = consumer(host)
    assert c.poll(0) is None
    assert c.position(T0) == 2


def test_a_blocked_reader_has_an_abandoned_transaction_completed(host, log):
    log.put("x", producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    host.transactions.resolve = lambda blocked: blocked.mark(3, 0, commit=True)
    assert values([consumer(host).poll(60)]) == ["x"]


def test_no_record_above_the_high_watermark_is_returned(host, log):
    log.put("a")
    log.put("b")
    log.visible = 1
    for isolation in ("read_committed", "read_uncommitted"):
        assert drain(consumer(host, isolation_level=isolation)) == ["a"]


def test_reading_starts_by_assigned_offset_committed_offset_or_reset_policy(host, log):
    log.put(*"ab")
    assert drain(consumer(host, auto_offset_reset="latest")) == []
    assert drain(consumer(host, assign=[TopicPartition("t", 0, 1)])) == ["b"]
    with pytest.raises(NoOffset, match="t-0"):
        consumer(host, auto_offset_reset="none").poll(0)
    host.groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(1)})
    assert drain(consumer(host, auto_offset_reset="none", group_id="g")) == ["b"]


def test_reading_starts_at_the_named_end(host, log):
    log.put(*"ab")
    host.groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(1)})
    first, last = TopicPartition("t", 0, "earliest"), TopicPartition("t", 0, "latest")
    assert drain(consumer(host, assign=[first], group_id="g", auto_offset_reset="none")) == [*"ab"]
    c = consumer(host, assign=[last], auto_offset_reset="none")
    log.put("c")  # "latest" is the moment of assign
    assert drain(c) == ["c"]
    c.assign([T0])
    assert drain(c) == []
    c.assign([first])
    assert drain(c) == [*"abc"]
    c.seek(T0, "earliest")
    assert drain(c, 2) == [*"abc"]
    c.seek(last)
    assert drain(c) == []
    with pytest.raises(ConfigError, match="t-0: .*got -1"):
        c.assign([T1, TopicPartition("t", 0, -1)])
    assert c.assignment() == [T0]
    c.seek(T0, 0)
    c.rewind()
    assert drain(c) == ["c"]  # where reading began


@pytest.mark.parametrize(("isolation", "lag"), [("read_committed", 2), ("read_uncommitted", 3)])
def test_current_lag_is_the_distance_from_the_position_to_the_end(host, log, isolation, lag):
    log.put(*"ab")
    log.append(
        _core.build_batch(
            [(0, None, b"open", ())],
            producer_id=7, producer_epoch=0, base_sequence=0, transactional=True,
        )
    )  # fmt: skip
    c = consumer(host, assign=(T0, T1), isolation_level=isolation)
    assert c.current_lag(T0) == lag
    assert c.current_lag() == {T0: lag, T1: 0}
    c.poll(0)
    assert c.current_lag([T0]) == {T0: lag - 1}
    c.seek_to_end()
    assert c.current_lag() == {T0: 0, T1: 0}
    c.seek(T0, 9)
    assert c.current_lag(T0) == 0
    with pytest.raises(IllegalState):
        c.current_lag(TopicPartition("t", 2))
    with pytest.raises(NoOffset):
        consumer(host, auto_offset_reset="none").current_lag()


def test_current_lag_is_unknown_while_the_committed_offset_is_undecided(host, log):
    log.put(*"ab")
    host.groups.txn_offset_commit("g", "tx", 5, 0, "", -1, None, {T0: OffsetAndMetadata(1)})
    c = consumer(host, group_id="g")
    assert c.current_lag(T0) is None
    host.group_partition("g").mark(5, 0, commit=True)
    assert c.current_lag(T0) == 1


def test_latest_is_resolved_when_assign_is_called(host, log):
    c = consumer(host, auto_offset_reset="latest")
    log.put("new")
    assert drain(c) == ["new"]


def test_an_undecided_committed_offset_blocks_only_its_partition(host, log):
    log.put(*"ab")
    host.partition("t", 1).put("c")
    host.groups.txn_offset_commit("g", "tx", 5, 0, "", -1, None, {T0: OffsetAndMetadata(1)})
    c = consumer(host, group_id="g", assign=(T0, T1))
    assert drain(c) == ["c"]
    host.group_partition("g").mark(5, 0, commit=True)
    assert drain(c) == ["b"]


def test_seek_drops_fetched_records(host, log):
    log.put(*"abcd", timestamp=1000)
    log.put("e", timestamp=2000)
    c = consumer(host)
    c.poll(0)
    c.seek(T0, 3)
    assert c.position([T0])[0].offset == 3
    assert drain(c) == ["d", "e"]
    c.seek_to_beginning()
    assert drain(c, 2) == list("abcde")
    c.seek_to_end(T0)
    assert c.position(T0) == 5
    c.seek_to_time(T0, 1500)
    assert drain(c) == ["e"]
    c.seek_to_time(None, 9999)
    assert drain(c) == []
    c.seek(TopicPartition("t", 0, 4))
    assert drain(c) == ["e"]
    with pytest.raises(ConfigError):
        c.seek(T0, -1)
    with pytest.raises(IllegalState):
        c.seek(T1, 0)


def test_an_offset_out_of_range_resets_or_raises_by_policy(host, log):
    log.put(*"abc")
    log.log_start = 2
    strict = consumer(host, auto_offset_reset="none", assign=[TopicPartition("t", 0, 0)])
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange):
            strict.poll(0)
    strict.seek(T0, 9)
    with pytest.raises(OffsetOutOfRange):
        strict.poll(0)
    assert drain(consumer(host, assign=[TopicPartition("t", 0, 0)])) == ["c"]


def test_paused_partitions_keep_fetched_records(host, log):
    log.put(*"abc")
    c = consumer(host)
    assert values([c.poll(0)]) == ["a"]
    c.pause([T0])
    assert c.paused() == [T0]
    assert c.consume(9, 0) == []
    c.resume(T0)
    assert drain(c) == ["b", "c"]


def numbered(log, *counts):
    """Batches of so many records, whose values are their numbers."""
    begin = 0
    for count in counts:
        log.put(*map(str, range(begin, begin + count)))
        begin += count


def test_a_fetch_is_returned_completely_whatever_the_limits_of_its_calls_are(host, log):
    numbered(log, 900, 1, 700, 300, 1500)
    wanted = list(map(str, range(3401)))
    for limit in (1, 7, 901, 1000, 1601, 5000):
        c = consumer(host)
        assert drain(c, limit) == wanted
        assert c.position(T0) == 3401
    c = consumer(host)
    mixed = values(c.consume(500, 0)) + values(c.poll(0) for _ in range(900))
    assert mixed + drain(c, 1000) == wanted


def test_the_position_is_after_the_last_returned_record_until_a_fetch_ends(host, log):
    numbered(log, 1000)
    log.put("no", producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    log.mark(2, 0, commit=False)
    log.put("later")
    log.put("no", producer_id=2, producer_epoch=0, base_sequence=1, transactional=True)
    log.mark(2, 0, commit=False)
    c = consumer(host)
    assert len(c.consume(1000, 0)) == 1000
    assert c.position(T0) == 1000
    assert values(c.consume(1000, 0)) == ["later"]
    assert c.position(T0) == 1005


def test_a_move_drops_the_part_of_a_fetch_that_is_not_decoded(host, log):
    numbered(log, 1000, 1000)
    c = consumer(host)
    for _ in range(2):
        assert values(c.consume(1000, 0)) == list(map(str, range(1000)))
        c.seek(T0, 500)
        assert values(c.consume(2, 0)) == ["500", "501"]
        c.seek_to_beginning()


def test_a_rest_of_a_fetch_is_returned_before_the_next_partition(host, log):
    numbered(log, 1000, 1000)
    host.partition("t", 1).put("other")
    c = consumer(host, assign=(T0, T1))
    assert [values(c.consume(1000, 0))[0] for _ in range(3)] == ["0", "1000", "other"]


def test_a_backlog_of_one_partition_does_not_keep_the_others_waiting(host, log):
    """Each fetch is one batch, and no limit of a call ends where a fetch ends."""
    for _ in range(20):
        log.put(*"aaaa")
        host.partition("t", 1).put(*"bbbb")
    for limit in (3, 7, 50):
        c = consumer(host, assign=(T0, T1), max_partition_fetch_bytes=1)
        seen = []
        while len(seen) < 160:
            seen += values(c.consume(limit, 0))
            assert abs(seen.count("a") - seen.count("b")) <= 4
        assert c.consume(limit, 0) == []


def test_damage_after_the_decoded_records_raises_at_its_position(host, log):
    numbered(log, 1000, 1)
    base, data = log.entries[1]
    log.entries[1] = (base, data[:-2] + b"\xff" + data[-1:])
    c = consumer(host)
    assert len(c.consume(1000, 0)) == 1000
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            c.consume(1000, 0)
        assert c.position(T0) == 1000
    log.entries[1] = (base, data)
    assert drain(c) == ["1000"]


def test_a_corrupt_batch_raises_at_its_position_until_seek(host, log):
    log.put("a")
    log.put("b")
    log.put("c")
    base, data = log.entries[1]
    log.entries[1] = (base, data[:-2] + b"\xff" + data[-1:])
    c = consumer(host)
    assert values(c.consume(9, 0)) == ["a"]
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            c.consume(9, 0)
        assert c.position(T0) == 1
    c.seek(T0, 2)
    assert drain(c) == ["c"]


def test_a_failing_deserializer_raises_at_its_position_until_seek(host, log):
    log.put("1", "2", "x", "4")
    c = consumer(host, value_deserializer=lambda data: int(data))
    assert [r.value for r in c.consume(9, 0)] == [1, 2]
    for _ in range(2):
        with pytest.raises(SerializationError, match="t-0 at offset 2"):
            c.poll(0)
    c.seek(T0, 3)
    assert c.poll(0).value == 4


@pytest.mark.parametrize(
    ("deserializer", "told"),
    [("long", "long: expected 8 bytes, got 3"), (lambda data: int(data), "ValueError: invalid")],
)
def test_a_deserializer_error_names_its_record_which_may_be_skipped(host, log, deserializer, told):
    log.put("no", producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    log.mark(2, 0, commit=False)
    log.put("bad")
    c = consumer(host, value_deserializer=deserializer)
    told = f"t-0 at offset 2: {told}"
    with pytest.raises(SerializationError, match=told) as caught:
        c.poll(0)
    assert str(caught.value).endswith("consumer.seek(TopicPartition('t', 0), 3)")
    c.seek(T0, 3)
    assert c.poll(0) is None


def test_an_error_in_one_partition_loses_no_record_of_another(host, log):
    log.put("bad")
    host.partition("t", 1).put("good")
    base, data = log.entries[0]
    log.entries[0] = (base, data[:-2] + b"\xff" + data[-1:])
    c = consumer(host, assign=(T0, T1))
    seen = []
    for _ in range(4):
        try:
            seen += values(c.consume(9, 0))
        except CorruptRecord:
            pass
    assert seen == ["good"]


def test_iteration_ends_after_wakeup_or_close(host, log):
    log.put(*"ab")
    c = consumer(host)
    seen = []
    for record in c:
        seen.append(record)
        if len(seen) == 2:
            threading.Timer(0.05, c.wakeup).start()
    assert values(seen) == ["a", "b"]
    log.put("c")
    for record in c:
        c.close()
    with pytest.raises(IllegalState, match="closed"):
        c.poll(0)
    with pytest.raises(IllegalState, match="closed"):
        iter(c)
    c.close()


def test_a_consumer_rejects_a_second_thread(host, monkeypatch):
    c = consumer(host)
    errors = []

    def use():
        try:
            c.poll(0)
        except IllegalState as error:
            errors.append(error)

    def meanwhile(*arguments, **options):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return wait_any(*arguments, **options)

    wait_any = host.wait_any
    monkeypatch.setattr(host, "wait_any", meanwhile)
    while not errors:
        c.poll(0.01)
    assert "thread" in str(errors[0])


def test_assign_and_subscribe_exclude_each_other(host):
    c = consumer(host, group_id="g")
    with pytest.raises(IllegalState):
        c.subscribe(["t"])
    c.unsubscribe()
    c.subscribe(["t"])
    with pytest.raises(IllegalState):
        c.assign([T0])
    c.subscribe([])
    with pytest.raises(IllegalState, match="subscribe"):
        c.poll(0)


def test_assign_rejects_a_missing_topic_or_partition(host):
    for partition in (TopicPartition("nope"), TopicPartition("t", 7)):
        with pytest.raises(UnknownTopicOrPartition):
            consumer(host, assign=[partition])
    with pytest.raises(ConfigError):
        consumer(host, assign=["t"])


def test_subscribe_without_a_group_reads_all_partitions_without_commits(host, log):
    log.put("a")
    c = consumer(host, assign=())
    c.subscribe("t")
    assert c.assignment() == [T0, T1]
    assert drain(c) == ["a"]
    for call in (c.commit, lambda: c.committed([T0]), c.group_metadata):
        with pytest.raises(KafkaError, match="group"):
            call()


def test_consume_arrow_has_the_columns_of_a_scan(host, log):
    pa = pytest.importorskip("pyarrow")
    log.append(_core.build_batch([(1000, b"k", b"v", (("h", None),)), (1001, None, None, ())]))
    batch = consumer(host).consume_arrow(timeout=0)
    assert batch.column("value").to_pylist() == [b"v", None]
    assert batch.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert batch.column("headers").to_pylist() == [[{"key": "h", "value": None}], []]
    assert consumer(host, assign=(T1,)).consume_arrow(timeout=0).schema == batch.schema
    with pytest.raises(ConfigError):
        consumer(host, value_deserializer="string").consume_arrow(timeout=0)


def test_consume_arrow_moves_the_position_as_consume_does(host, log):
    pytest.importorskip("pyarrow")
    log.put(*"abcde")
    log.put("no", producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    log.mark(2, 0, commit=False)
    log.put(*"fg")
    c = consumer(host)
    assert values([c.poll(0)]) == ["a"]
    seen = []
    for expected in (3, 9, 9):
        seen += c.consume_arrow(2 if expected == 3 else 9, timeout=0).column("value").to_pylist()
        assert c.position(T0) == expected
    assert seen == [b"b", b"c", b"d", b"e", b"f", b"g"]
    log.put("bad")
    base, data = log.entries[-1]
    log.entries[-1] = (base, data[:-2] + b"\xff" + data[-1:])
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            c.consume_arrow(timeout=0)


def test_consume_arrow_returns_other_partitions_after_a_damaged_one(host, log):
    pytest.importorskip("pyarrow")
    for damaged in (log, other := host.partition("t", 1)):
        damaged.put("bad")
    base, data = log.entries[-1]
    log.entries[-1] = (base, data[:-2] + b"\xff" + data[-1:])
    c = consumer(host, assign=(T0, T1))
    for expected in (b"bad", b"more"):
        with pytest.raises(CorruptRecord):
            c.consume_arrow(timeout=0)
        assert c.consume_arrow(timeout=0).column("value").to_pylist() == [expected]
        other.put("more")


def test_G08_each_start_offset_sees_exactly_the_committed_records(host, log):
    expected = {}
    for number in range(12):
        pid, kind = number % 4, ("commit", "abort", "plain")[number % 3]
        header = {
            "producer_id": pid,
            "producer_epoch": 0,
            "base_sequence": 0,
            "transactional": True,
        }
        base = log.put("a", "b", **({} if kind == "plain" else header))
        if number >= 2 and kind == "plain":
            log.mark((number - 1) % 4, 0, commit=False)
            log.mark((number - 2) % 4, 0, commit=True)
        if kind != "abort":
            expected.update({base: "a", base + 1: "b"})
    stable = log.last_stable_offset
    c = consumer(host)
    for offset in range(log.log_start, stable + 1):
        c.seek(T0, offset)
        seen = {}
        while records := c.consume(3, 0):
            seen.update({r.offset: r.value.decode() for r in records})
        assert seen == {o: v for o, v in expected.items() if offset <= o < stable}
        assert c.position(T0) == stable
