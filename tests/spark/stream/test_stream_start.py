"""The start of a stream is decided once.

Spark asks for it until its first micro-batch is committed.
"""

import json
import threading

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.options.options import START, TOPIC_IDS, Options
from pyspark_eoslog.read.stream import EoslogStreamReader
from pyspark_eoslog.schema import source_schema

from eoslog import TopicPartition
from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from tests.spark.helpers import produce, values
from tests.spark.stream.test_stream import begun, run, sink, source


def feed(log, topic, first, end):
    produce(log, topic, [(b"%d" % n, None, 0, None) for n in range(first, end)])


def plain(log, topic, first, end):
    """Without a transaction: its marker becomes readable some time after the commit."""
    with log.producer() as producer:
        producer.produce_many(topic, [b"%d" % n for n in range(first, end)], partition=0)


def numbers(log):
    return sorted(int(value) for value in values(log, "out"))


def rows(reader, first, end):
    tasks = reader.partitions(first, end)
    batches = (batch for task in tasks for batch in reader.read(task))
    return [int(value) for batch in batches for value in batch.column(1).to_pylist()]


@pytest.fixture
def topic(log):
    log.create_topic("t")
    plain(log, "t", 0, 10)
    return log


@pytest.fixture
def topics(log):
    log.create_topic("in")
    feed(log, "in", 0, 100)
    return log


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_batch_starts_where_it_was_first_planned(topic, made, restarted):
    reader = made(startingOffsets="latest")
    begin = reader.initialOffset()
    feed(topic, "t", 10, 15)
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    feed(topic, "t", 15, 40)
    reader = made(startingOffsets="latest") if restarted else reader
    assert rows(reader, reader.initialOffset(), end) == list(range(10, 15))
    after = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert rows(reader, end, after) == list(range(15, 40))
    assert START in end and START not in after, "the first batch alone says it"


def test_an_empty_range_does_not_count_as_the_first_batch(topic, made):
    reader = made()
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert rows(reader, end, end) == []


def test_a_pattern_whose_topics_were_all_deleted_does_not_restart(topic, made):
    given = {"startingOffsets": '{"t": {"0": 4}}', "failOnDataLoss": "false"}
    reader = made(**given)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topic.create_partitions("t", 2)  # so that the options fit no more
    again = made(**given)
    assert rows(again, again.initialOffset(), end) == [4, 5, 6, 7, 8, 9]
    topic.delete_topic("t")
    gone = again.latestOffset(end, again.getDefaultReadLimit())
    assert again.latestOffset(gone, again.getDefaultReadLimit()) == gone == {}


def test_a_first_batch_without_rows_fixes_the_start(topic, made):
    reader = made(startingOffsets="latest")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    feed(topic, "t", 10, 12)
    again = made(startingOffsets="latest")
    assert rows(again, again.initialOffset(), end) == []
    assert rows(again, end, again.latestOffset(end, again.getDefaultReadLimit())) == [10, 11]


def test_changed_starting_options_do_not_move_a_planned_batch(topic, made):
    reader = made(startingOffsets='{"t": {"0": 4}}')
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    other = made(startingOffsets="latest")
    assert rows(other, other.initialOffset(), end) == [4, 5, 6, 7, 8, 9]


def test_retention_within_a_planned_first_batch_is_data_loss(topic, made):
    reader = made()
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topic.delete_records({TopicPartition("t", 0): 6})
    with pytest.raises(
        OffsetOutOfRange, match="start offset 0 was deleted by retention, and the log starts at 6"
    ):
        rows(made(), made().initialOffset(), end)
    accepting = made(failOnDataLoss="false")
    assert rows(accepting, accepting.initialOffset(), end) == [6, 7, 8, 9]


def test_a_batch_that_ends_before_it_begins_is_data_loss(topic, made):
    begin, end = {"t": {"0": 9}}, {"t": {"0": 3}}
    with pytest.raises(OffsetOutOfRange, match="deleted and re-created"):
        rows(made(), begin, end)
    assert rows(made(failOnDataLoss="false"), begin, end) == [0, 1, 2]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_re_created_topic_that_is_longer_is_data_loss(topic, made, restarted):
    reader = made()
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert rows(reader, {}, end) == list(range(10))
    topic.delete_topic("t")
    topic.create_topic("t")
    feed(topic, "t", 100, 115)
    reader = made() if restarted else reader
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match="t-0: .* read up to 10, .* re-created"):
            reader.latestOffset(end, reader.getDefaultReadLimit())
    with pytest.raises(OffsetOutOfRange, match="re-created"):
        rows(reader, {}, end)
    accepting = made(failOnDataLoss="false", maxOffsetsPerTrigger="12")
    assert rows(accepting, {}, end) == [], "the next batch reads the new topic"
    then = accepting.latestOffset(end, accepting.getDefaultReadLimit())
    assert rows(accepting, end, then) == list(range(100, 112))
    last = accepting.latestOffset(then, accepting.getDefaultReadLimit())
    assert rows(accepting, then, last) == [112, 113, 114]


class Recreating(dict):
    """Offsets whose first look-up of the topic ids creates the topic `t` again."""

    log = None

    def get(self, *args):
        log, self.log = self.log, None
        if log is not None:
            log.create_topic("t")
        return super().get(*args)


class Deleting(EoslogStreamReader):
    """A reader that calls a function after its next look-up of topic ids."""

    change = None

    def _topic_ids(self, keys):
        found = super()._topic_ids(keys)
        change, self.change = self.change, None
        if change is not None:
            change()
        return found


def test_a_topic_deleted_while_its_end_is_read_is_left_out(topic):
    topic.create_topic("other")
    plain(topic, "other", 20, 23)
    given = {"path": topic.path, "subscribe": "t,other", "startingOffsets": "earliest"}
    options = Options.parse({**given, "failOnDataLoss": "false"})
    reader = Deleting(options, source_schema(options))
    start = reader.initialOffset()
    reader.change = lambda: topic.delete_topic("other")
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["t"] == {"0": 10}
    assert "other" not in end
    reader.stop()


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_topic_re_created_during_the_planning_is_data_loss(topic, made, loss):
    reader = made(failOnDataLoss=loss)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topic.delete_topic("t")
    planned = Recreating(end)
    planned.log = topic
    with pytest.raises(OffsetOutOfRange, match="re-created"):
        rows(reader, {}, planned)


def test_a_topic_re_created_before_the_first_batch_is_data_loss(topic, made):
    for loss in ("true", "false"):
        reader = made(startingOffsets="latest", failOnDataLoss=loss)
        start = reader.initialOffset()
        topic.delete_topic("t")
        topic.create_topic("t")
        feed(topic, "t", 100, 115)
        if loss == "true":
            with pytest.raises(OffsetOutOfRange, match="re-created"):
                reader.latestOffset(start, reader.getDefaultReadLimit())
        else:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            assert rows(reader, start, end) == list(range(100, 115))


def batches(reader, start):
    """The rows of all batches after an offset, and the offset after them."""
    found = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        found += rows(reader, start, end)
        start = end
    return found, start


@pytest.mark.parametrize("first", [True, False])
def test_an_available_now_run_reads_a_re_created_topic_once(topic, made, first):
    """The old end is between two ends of the new topic."""
    reader = made(failOnDataLoss="false", maxOffsetsPerTrigger="5")
    reader.prepareForTriggerAvailableNow()
    start, found = {}, []
    if not first:
        start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        found = rows(reader, {}, start)
        assert found == [0, 1, 2, 3, 4]
    topic.delete_topic("t")
    topic.create_topic("t")
    feed(topic, "t", 100, 103)
    more, end = batches(reader, reader.initialOffset() if first else start)
    assert more == [100, 101, 102]
    feed(topic, "t", 103, 120)
    assert batches(made(failOnDataLoss="false"), end)[0] == list(range(103, 120))


@pytest.fixture
def with_other(topic, made):
    """A reader of the topics `t` and `other`, and the end of its first batch."""
    topic.create_topic("other")
    plain(topic, "other", 20, 23)
    reader = made(subscribe="t,other")
    return reader, reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


@pytest.mark.parametrize("subscribed", [{"subscribe": "t"}, {"assign": '{"t": [0]}'}])
@pytest.mark.parametrize("re_created", [False, True])
def test_a_topic_that_is_no_longer_subscribed_may_be_deleted(
    topic, with_other, made, subscribed, re_created
):
    _, end = with_other
    topic.delete_topic("other")
    if re_created:
        topic.create_topic("other")
        feed(topic, "other", 50, 52)
    feed(topic, "t", 10, 12)
    reader = made(**subscribed)
    then = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert rows(reader, end, then) == [10, 11]
    assert "other" not in then
    if re_created:
        again = made(subscribe="t,other")
        last = again.latestOffset(then, again.getDefaultReadLimit())
        assert rows(again, then, last) == [50, 51], "subscribed again, it is read from its start"


def test_a_planned_batch_that_reads_nothing_of_a_topic_does_not_need_it(topic, with_other, made):
    reader, end = with_other
    feed(topic, "t", 10, 12)
    then = reader.latestOffset(end, reader.getDefaultReadLimit())
    topic.delete_topic("other")
    assert rows(made(), end, then) == [10, 11]


def test_a_planned_batch_with_unread_records_of_a_deleted_topic_is_data_loss(
    topic, with_other, made
):
    _, end = with_other
    topic.delete_topic("other")
    reader = made()
    with pytest.raises(UnknownTopicOrPartition, match="other-0 was deleted"):
        rows(reader, reader.initialOffset(), end)


def test_offsets_without_topic_ids_are_accepted_and_ids_kept_from_then(log, made):
    log.create_topic("t")
    plain(log, "t", 0, 10)
    reader = made()
    old = {"t": {"0": 4}}
    end = reader.latestOffset(old, reader.getDefaultReadLimit())
    assert rows(reader, old, end) == [4, 5, 6, 7, 8, 9]
    assert end["t"] == {"0": 10} and list(end[TOPIC_IDS]) == ["t"]
    assert made(startingOffsets=json.dumps(end)).initialOffset() == {"t": {"0": 10}}
    reader = made()
    full = {"t": {"0": 10}}
    assert reader.latestOffset(full, reader.getDefaultReadLimit()) == full
    log.delete_topic("t")
    log.create_topic("t")
    feed(log, "t", 100, 115)
    with pytest.raises(OffsetOutOfRange, match="re-created"):
        reader.latestOffset(full, reader.getDefaultReadLimit())


def test_progress_in_an_old_topic_is_not_committed_for_its_new_one(topic, made, caplog):
    reader = made(commitGroup="etl")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topic.delete_topic("t")
    topic.create_topic("t")
    reader.commit(end)
    assert "'t' was deleted and re-created" in caplog.text
    assert topic.groups() == []


def test_the_start_in_an_old_topic_is_not_committed_for_its_new_one(topic, made):
    reader = made(commitGroup="etl", startingOffsets="latest")
    begin = reader.initialOffset()
    topic.delete_topic("t")
    topic.create_topic("t")
    with pytest.raises(OffsetOutOfRange, match="re-created"):
        reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert topic.groups() == []


def test_equal_progress_in_a_new_topic_is_committed_too(topic, made):
    reader = made(commitGroup="etl", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.commit(end)
    topic.delete_topic("t")
    topic.create_topic("t")
    plain(topic, "t", 100, 110)
    reader.commit(reader.latestOffset(end, reader.getDefaultReadLimit()))
    assert topic.describe_group("etl").offsets[TopicPartition("t", 0)].offset == 10


def test_an_unavailable_start_is_reported_with_its_option(topic, made):
    reader = made(startingOffsets='{"t": {"0": 99}}')
    with pytest.raises(OffsetOutOfRange, match="option 'startingOffsets': t-0: offset 99 is"):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    with pytest.raises(OffsetOutOfRange, match="option 'startingOffsets'"):
        reader.partitions(reader.initialOffset(), {"t": {"0": 10}})


def test_outdated_options_do_not_stop_a_planned_batch(topic, made):
    given = {"startingOffsets": '{"t": {"0": 4}}'}
    reader = made(**given)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topic.create_partitions("t", 2)  # and the options name one of them
    again = made(**given)
    assert rows(again, again.initialOffset(), end) == [4, 5, 6, 7, 8, 9]
    produce(topic, "t", [(b"10", None, 1, None)])
    assert rows(again, end, again.latestOffset(end, again.getDefaultReadLimit())) == [10]
    new = made(**given)
    with pytest.raises(ConfigError, match="must name exactly the partitions .* missing: t-1"):
        new.latestOffset(new.initialOffset(), new.getDefaultReadLimit())


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_repeated_batch_shows_no_record_of_an_open_transaction(topic, made, loss):
    with topic.producer({"transactional.id": "open"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(5):
            producer.produce("t", b"%d" % n, partition=0)
        producer.flush()
        other = made(isolationLevel="read_uncommitted", startingOffsets='{"t": {"0": 7}}')
        end = other.latestOffset(other.initialOffset(), other.getDefaultReadLimit())
        reader = made(failOnDataLoss=loss)
        if loss == "true":
            with pytest.raises(OffsetOutOfRange, match="beyond .* the end for read_committed"):
                rows(reader, reader.initialOffset(), end)
        else:
            assert rows(reader, reader.initialOffset(), end) == [7, 8, 9]
        producer.abort_transaction()


def test_the_end_of_a_first_batch_can_be_copied_into_the_options(topic, made):
    text = '{"@start": {"t": {"0": 2}}, "t": {"0": 7}}'
    assert made(startingOffsets=text).initialOffset() == {"t": {"0": 7}}


def test_a_query_killed_in_its_first_batch_restarts_at_the_same_offset(spark, topics, tmp_path):
    # The sink's topic is not there yet: nothing of the batch is committed.
    with pytest.raises(Exception, match="'out'"):
        run(spark, topics, tmp_path / "c", startingOffsets="latest")
    feed(topics, "in", 100, 107)
    topics.create_topic("out")
    run(spark, topics, tmp_path / "c", startingOffsets="latest")
    assert numbers(topics) == list(range(100, 107))


def test_a_stream_from_latest_returns_no_earlier_record(spark, topics, tmp_path):
    topics.create_topic("out")
    done = threading.Event()

    def grow():
        number = 100
        while not done.is_set():
            feed(topics, "in", number, number + 1)
            number += 1
            done.wait(0.05)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        frame = source(spark, topics, startingOffsets="latest").load().select("value")
        query = begun(sink(frame, topics, tmp_path / "c").start, topics)
    finally:
        done.set()
        writer.join()
    query.processAllAvailable()
    query.stop()
    found = numbers(topics)
    assert found[0] >= 100 and found == list(range(found[0], len(values(topics, "in"))))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"in": {"0": -1}}'}, [10, 11]),
        ({"startingOffsets": '{"in": {"0": 7}}'}, [7, 8, 9, 10, 11]),
        ({"startingTimestamp": "0"}, list(range(12))),
        ({"startingOffsetsByTimestamp": '{"in": {"0": 0}}'}, list(range(12))),
        ({"startingTimestamp": "99999999999999",
          "startingOffsetsByTimestampStrategy": "latest"}, [10, 11]),
    ],
)  # fmt: skip
def test_a_stream_starts_by_partition_or_timestamp(spark, log, tmp_path, options, expected):
    for name in ("in", "out"):
        log.create_topic(name)
    feed(log, "in", 0, 10)
    run(spark, log, tmp_path / "c", **options)
    feed(log, "in", 10, 12)
    run(spark, log, tmp_path / "c", **options)
    assert numbers(log) == expected
