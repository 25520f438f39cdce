"""Topics that are deleted, grow or get other settings while an application runs."""

from __future__ import annotations

import threading

import pytest

import eoslog
from eoslog.app.retry_topic import Deaths, RetryTopic, ensure_topic
from eoslog.errors import ConfigError, UnknownTopicOrPartition
from eoslog.storage.format.checkpoints import id_text
from tests.app.test_failures import Failing, values

SHORT = 0.02


def counting(log):
    """An application with an input, an output and a table, each with a partition."""
    app = eoslog.App(log, "counting")
    counts = app.table("counts", default=int)

    @app.task("in", key="string", to="out", tables=[counts])
    def count(record, ctx):
        counts[record.key] += 1
        return record.value

    app.create_topics()
    put(log, 0)
    return app


def put(log, number):
    with log.producer() as producer:
        producer.produce("in", str(number), str(number))


@pytest.mark.parametrize("topic", ["in", "out", "counts"])
def test_a_topic_that_is_deleted_ends_the_run_with_its_name(log, topic):
    app, errors = counting(log), []

    def run():
        try:
            app.run()
        except UnknownTopicOrPartition as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while not any(log.read("out")):
        assert thread.is_alive()
    log.delete_topic(topic)
    if topic != "in":
        put(log, 1)
    thread.join(30)
    assert not thread.is_alive()
    [error] = errors
    assert error.startswith(f"app 'counting', task 'count': topic '{topic}' does not exist")


def test_an_input_that_grows_ends_the_run_with_both_counts(log):
    app = counting(log)
    with app:
        while app.step():
            pass
        log.create_partitions("in", 4)
        with pytest.raises(ConfigError, match="'in' has 4 .* table 'counts' has 1"):
            for number in range(1000):
                put(log, number)
                app.step()


def test_a_retry_topic_that_is_deleted_is_created_again(log):
    app = Failing(log, {5: 1}, retries=(SHORT,), on_error="dead_letter")
    with app.app as running:
        while not running._begun().waiting():
            running.step()
        log.delete_topic("shop.retries")
        assert running.run(until="caught_up").dead_letters == 0
    assert values(log) == list(range(20))


@pytest.mark.parametrize("retries", [(), (SHORT,)])
def test_records_wait_and_die_after_their_topic_got_a_larger_limit(log, retries):
    app = Failing(log, {5: 9, 6: 9}, retries=retries, on_error="dead_letter")
    app.run()
    log.alter_topic("numbers", {"max.message.bytes": 4_000_000})
    with log.producer(max_request_size=8_000_000) as producer:
        producer.produce("numbers", b"9" * 3_000_000, "large")
    report = app.run()
    assert (report.records, report.dead_letters) == (1, 1)
    assert max(len(record.value) for record in log.read("shop.dead")) == 3_000_000


def test_a_record_of_a_re_created_input_replaces_none_that_waits(log):
    """Both have the same place."""
    for value in ("5", "105"):
        if value == "105":
            log.delete_topic("numbers")
            log.create_topic("numbers", partitions=2)
            with log.producer() as producer:
                producer.produce_many("numbers", [value] * 3, [value] * 3, partition=1)
        app = Failing(log, {int(value): 1}, retries=(3600,)).app
        with app:
            while app.step():
                pass
    waiting = RetryTopic(log, "shop").restore("numbers", 1).waiting
    found = {one.record.value for one in waiting if one.record.offset == 2}
    assert found == {b"5", b"105"}


def test_exits_do_not_count_for_a_record_of_a_re_created_input(log):
    log.create_topic("in")
    place = ("in", 0, 0, "work")
    ensure_topic(log, "again", 1, ["in"])
    old = id_text(log.topic_id("in"))
    key, value, headers, partition = Deaths(3, 7, 0).encoded(place, old)
    with log.producer() as producer:
        producer.produce("again.retries", value, key, headers=headers, partition=partition)
    assert RetryTopic(log, "again").restore("in", 0).deaths == {place: Deaths(3, 7, 0)}
    log.delete_topic("in")
    log.create_topic("in")
    assert RetryTopic(log, "again").restore("in", 0).deaths == {}
