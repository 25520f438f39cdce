"""`OutboxRelay`: rows of a table become records, each once and in order."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

import eoslog
from eoslog.errors import IllegalState
from eoslog.sql import Database, OutboxRelay
from tests.waiting import until


def insert(place: Any, *values: Any, topic: str = "out") -> None:
    place.run(*(f"insert into outbox (topic, value) values ('{topic}', '{v}')" for v in values))


def values(log: eoslog.Log, topic: str = "out") -> list[str]:
    return [record.value.decode() for record in log.read(topic)]


def test_a_step_publishes_rows_and_deletes_them(place, log, relay):
    headers = json.dumps({"trace": "7", "none": None})
    place.run(
        "insert into outbox (topic, key, value, headers, partition) "
        f"values ('out', 'ada', 'pear', '{headers}', 0)",
        "insert into outbox (topic, key) values ('out', 'bob')",
    )
    assert relay.step() == 2
    first, second = log.read("out")
    assert (first.key, first.value, first.partition) == (b"ada", b"pear", 0)
    assert sorted(first.headers) == [("none", None), ("trace", b"7")]
    assert (second.key, second.value) == (b"bob", None)
    assert place.rows("select count(*) from outbox") == [(0,)]
    assert relay.step() == 0
    assert relay.status() == (0, 0, relay.status().leader)


def test_a_row_that_is_not_committed_is_not_published(place, log, relay):
    connection = place.connect()
    connection.execute("insert into outbox (topic, value) values ('out', 'later')")
    assert relay.step() == 0
    connection.commit()
    connection.close()
    assert relay.step() == 1
    assert values(log) == ["later"]


def test_a_relay_publishes_to_many_topics_in_one_transaction(place, log, relay):
    log.create_topic("two", partitions=3)
    insert(place, *range(5))
    insert(place, *range(5), topic="two")
    assert relay.step() == 10
    assert values(log) == list("01234")
    assert sorted(values(log, "two")) == list("01234")


def test_caught_up_returns_after_all_batches(place, log, database):
    with OutboxRelay(database, log, name="shop", records=7) as relay:
        relay.create()
        insert(place, *range(50))
        assert relay.run("caught_up") == 50
    assert values(log) == [str(number) for number in range(50)]


def test_a_waiting_relay_publishes_what_is_inserted_until_it_is_closed(place, log, relay):
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
            for number in range(3):
                insert(place, number)
                [record] = consumer.consume(1, timeout=30)
                assert record.value == b"%d" % number
    finally:
        relay.close()
        thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(IllegalState, match="the relay is closed"):
        relay.step()


def test_a_relay_reports_once_that_a_database_is_down_and_that_it_is_back(
    place, log, relay, caplog
):
    caplog.set_level("INFO", "eoslog.sql")
    missing = "host=127.0.0.1 port=1" if place.postgresql else "/missing/base.sqlite"
    refusals = iter(range(4))

    def connect() -> Any:
        for _ in refusals:
            return place._replace(where=missing).connect()
        return place.connect()

    insert(place, 1)
    with Database(connect) as database, OutboxRelay(database, log, name="late") as late:
        thread = threading.Thread(target=late.run)
        thread.start()
        try:
            with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
                assert len(consumer.consume(1, timeout=60)) == 1
        finally:
            late.close()
            thread.join(30)
    said = re.findall("trying again|working again", caplog.text)
    assert said == ["trying again", "working again"]
    assert next(refusals, None) is None


def test_a_relay_that_only_waits_does_not_say_that_its_database_is_back(
    place, log, database, relay, caplog
):
    caplog.set_level("INFO", "eoslog.sql")

    def connect() -> Any:
        missing = "host=127.0.0.1 port=1" if place.postgresql else "/missing/base.sqlite"
        return place._replace(where=missing).connect()

    steps = []
    with Database(connect) as lost, OutboxRelay(lost, log, name="late") as late:
        step = late._step
        late._step = lambda: steps.append(step()) or steps[-1]
        thread = threading.Thread(target=late.run)
        thread.start()
        try:
            until(lambda: "trying again" in caplog.text)
            with OutboxRelay(database, log, name="late") as other:
                assert other.step() == 0
                until(lambda: len(steps) >= 2)
        finally:
            late.close()
            thread.join(30)
    assert not any(one.leads for one in steps)
    assert "working again" not in caplog.text


def test_a_new_relay_of_the_name_continues_after_the_last_one(place, log, database):
    for number in range(3):
        with OutboxRelay(database, log, name="shop") as relay:
            relay.create()
            insert(place, number)
            assert relay.step() == 1
            assert relay.step() == 0
    assert values(log) == list("012")


def test_one_of_two_relays_of_a_name_works_until_its_end(place, log, database, relay):
    insert(place, 1)
    assert relay.step() == 1
    with OutboxRelay(database, log, name="shop") as second:
        insert(place, 2)
        assert second.step() == 0
        relay.close()
        assert second.step() == 1
    assert values(log) == ["1", "2"]
    assert log.positions() == {}


def test_a_fenced_relay_publishes_nothing(place, log, database, relay):
    insert(place, 1)
    assert relay.step() == 1
    log.delete_position("outbox/shop")  # so that the next relay takes over immediately
    with OutboxRelay(database, log, name="shop") as second:
        insert(place, 2)
        assert second.step() == 1
        insert(place, 3)
        assert relay.step() == 0
        assert second.step() == 1
    assert relay.step() == 0
    insert(place, 4)
    assert relay.step() == 1
    assert values(log) == ["1", "2", "3", "4"]


def test_rows_are_marked_where_there_is_a_column_for_it(place, log, database):
    columns = {"published": "sent_at"}
    with OutboxRelay(database, log, name="shop", columns=columns) as relay:
        relay.create()
        insert(place, 1, 2)
        assert relay.run("caught_up") == 2
        assert place.rows("select count(*) from outbox where sent_at is not null") == [(2,)]
        insert(place, 3)
        assert relay.run("caught_up") == 1
        place.run("update outbox set sent_at = null where value = '1'")
        assert relay.run("caught_up") == 1
    assert values(log) == ["1", "2", "3", "1"]


def test_columns_name_those_of_a_table_that_exists(place, log, database):
    place.run(
        "create table event (number integer primary key, aggregate text, payload text, who integer)"
    )
    columns = {"id": "number", "topic": "aggregate", "value": "payload", "key": "who"}
    with OutboxRelay(database, log, name="events", table="event", columns=columns) as relay:
        relay.create()
        place.run("insert into event values (1, 'out', 'paid', 7)")
        assert relay.step() == 1
    [record] = log.read("out")
    assert (record.key, record.value) == (b"7", b"paid")


def test_a_relay_reads_two_tables_under_two_names(place, log, database, relay):
    with OutboxRelay(database, log, name="other", table="other") as other:
        other.create()
        insert(place, 1)
        place.run("insert into other (topic, value) values ('out', '2')")
        assert (relay.step(), other.step()) == (1, 1)
    assert values(log) == ["1", "2"]


def test_racing_relays_create_the_table_once(place, log):
    databases = [Database(place.connect) for _ in range(4)]
    relays = [OutboxRelay(one, log, name="shop") for one in databases]
    failed: list[BaseException] = []

    def create(relay: OutboxRelay) -> None:
        for _ in range(50):
            try:
                relay.create()
                return
            except eoslog.errors.DatabaseUnavailable:
                continue
            except BaseException as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=create, args=(relay,)) for relay in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    insert(place, 1)
    assert sum(relay.step() for relay in relays) == 1
    for one in (*relays, *databases):
        one.close()
