"""Dead letters whose topic is deleted and re-created."""

from __future__ import annotations

import pytest

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
