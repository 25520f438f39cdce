"""Dead letters whose topic is deleted and re-created."""

from __future__ import annotations

import pytest

import eoslog
from eoslog.app import dead_letters as dead
from eoslog.app.dead_letters import dead_letters, replay
from eoslog.errors import IllegalState
from tests.app.test_failures import Failing


def feed(log, value):
    with log.producer() as producer:
        producer.produce("numbers", value, "k", partition=0)
    Failing(log, {int(value): 1}, on_error="dead_letter").run()


def sent(log):
    return [record.value for record in log.read("numbers")].count(b"50")


def test_a_replay_leaves_out_no_letter_of_a_topic_that_was_created_again(log):
    """The offsets that were sent back are those of the deleted topic."""
    feed(log, "50")
    assert replay(log, "shop") == [0]
    log.delete_topic("shop.dead")
    feed(log, "50")
    assert [letter.replayed for letter in dead_letters(log, "shop")] == [False]
    before = sent(log)
    assert replay(log, "shop") == [0]
    assert sent(log) == before + 1
    assert [letter.replayed for letter in dead_letters(log, "shop")] == [True]
    assert replay(log, "shop") == []


def test_a_topic_that_is_created_again_during_a_replay_ends_it(log, monkeypatch):
    feed(log, "50")
    send = dead._send

    def slow(*args):
        monkeypatch.setattr(dead, "_send", send)
        send(*args)
        log.delete_topic("shop.dead")
        log.create_topic("shop.dead")

    monkeypatch.setattr(dead, "_send", slow)
    with pytest.raises(IllegalState, match="re-created"):
        replay(log, "shop")
    assert sent(log) == 1
    feed(log, "51")
    assert replay(log, "shop") == [0]


def test_a_position_of_an_earlier_version_counts(log):
    """It has no id of the topic."""
    for value in ("50", "51"):
        feed(log, value)
    first, second = [letter.offset for letter in dead_letters(log, "shop")]
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.set_position("shop.dead/replayed", str(first))
    assert [letter.replayed for letter in dead_letters(log, "shop")] == [True, False]
    assert replay(log, "shop") == [second]
    assert [letter.replayed for letter in dead_letters(log, "shop")] == [True, True]


@pytest.mark.parametrize("only_task", [True, False])
def test_a_replay_sends_a_record_that_is_larger_than_other_producers_send(log, only_task):
    log.create_topic("large", config={"max.message.bytes": 1 << 22})
    with log.producer(max_request_size=1 << 22) as producer:
        producer.produce("large", b"x" * (1 << 21), "k")
    fails = [True]
    app = eoslog.App(log, "shop")

    @app.task("large", to="sizes", on_error="dead_letter")
    def work(record, ctx):
        if fails:
            raise ValueError("no")
        return str(len(record.value))

    app.create_topics()
    app.run(until="caught_up")
    fails.clear()
    assert replay(log, "shop", only_task=only_task) == [0]
    app.run(until="caught_up")
    assert [record.value for record in log.read("sizes")] == [b"%d" % (1 << 21)]


@pytest.mark.parametrize("retries", [(), (0.0,)])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
@pytest.mark.parametrize("limit", ["compressed", "lowered", "largest"])
def test_a_record_that_is_larger_than_its_topic_allows_is_kept(log, limit, guarantee, retries):
    """The limit is that of a compressed batch, and can be set lower after the write."""
    most = {"compressed": None, "lowered": 1 << 22, "largest": (1 << 31) - 1}[limit]
    log.create_topic("large", config={"max.message.bytes": most} if most else {})
    with log.producer(max_request_size=1 << 22, compression_type="zstd") as producer:
        producer.produce("large", b"x" * (1 << 21), "k", headers={"h": b"y" * (1 << 20)})
    if limit == "lowered":
        log.alter_topic("large", {"max.message.bytes": 1 << 20})
    app = eoslog.App(log, "shop", guarantee)

    @app.task("large", on_error="dead_letter", retries=retries)
    def work(record, ctx):
        raise ValueError("no")

    report = app.run(until="caught_up")
    assert (report.retried, report.dead_letters) == (len(retries), 1)
    [letter] = dead_letters(log, "shop")
    assert letter.record.value == b"x" * (1 << 21)
    assert letter.record.headers == (("h", b"y" * (1 << 20)),)
    assert replay(log, "shop", only_task=True) == [0]


@pytest.mark.parametrize("retries", [(), (0.0,)])
def test_a_larger_record_is_kept_after_a_smaller_one(log, retries):
    """The producer knows the limit of the app's topic from the smaller one."""
    log.create_topic("mixed")
    with log.producer(max_request_size=1 << 22, compression_type="zstd") as producer:
        for size in (10, 1 << 21):
            producer.produce("mixed", b"x" * size, "k")
    app = eoslog.App(log, "shop")

    @app.task("mixed", on_error="dead_letter", retries=retries)
    def work(record, ctx):
        raise ValueError("no")

    app.run(until="caught_up")
    assert [len(letter.record.value) for letter in dead_letters(log, "shop")] == [10, 1 << 21]
