"""A wall clock that is wrong for a moment expires and deletes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.model import Outcome, TopicPartition

DAY_S = 86_400.0
SEARCHES_S = {7_700.0, 600.0, 15.0}
"""The intervals of the searches for ids and outcomes, offsets, and old segments."""


class Searches:
    """A log with what can expire; the test begins each search for it."""

    def __init__(self, log: eoslog.Log) -> None:
        self.log = log
        self.now = log._engine.clock()
        log._engine.use_clock(lambda: self.now)
        log.create_topic("t", 1, {"retention.ms": 3_600_000})
        with log.producer(transactional_id="id") as producer:
            producer.init_transactions()
            producer.begin_transaction(mode="staged")
            producer.produce("t", b"v")
            self.token = producer.prepare_transaction().token
        log.resolve(self.token, Outcome.COMMIT)
        log.reset_offsets("g", {TopicPartition("t", 0): 1})

    def search(self) -> None:
        """Begin the searches, and wait for them."""
        background = self.log._engine._background
        for timer in background._timers:
            if timer.interval_s in SEARCHES_S:
                timer.run()
        assert background.tasks.join()

    def known(self) -> tuple[bool, Outcome | None, list[str], int]:
        """Whether the log has the id, the outcome, the groups, and the number of records."""
        ids = {one.transactional_id for one in self.log.transactions(open_only=False)}
        return "id" in ids, self.log.outcome(self.token), self.log.groups(), len(self.log.last("t"))


@pytest.fixture
def searches(tmp_path: Path) -> Iterator[Searches]:
    settings = {
        "transaction.remove.expired.transaction.cleanup.interval.ms": 7_700_000,
        "offsets.retention.minutes": 60,
    }
    with eoslog.open(tmp_path / "log", settings) as log:
        yield Searches(log)


def test_a_clock_that_is_ahead_for_a_moment_deletes_nothing(searches: Searches) -> None:
    searches.now += 30 * DAY_S
    searches.search()
    searches.now -= 30 * DAY_S
    searches.search()
    searches.search()
    assert searches.known() == (True, Outcome.COMMIT, ["g"], 1)


def test_a_clock_that_stays_ahead_deletes_at_the_second_search(searches: Searches) -> None:
    searches.now += 30 * DAY_S
    searches.search()
    searches.search()
    assert searches.known() == (False, None, [], 0)


def test_a_jump_before_every_search_delays_the_deletions_only_once(searches: Searches) -> None:
    """A machine that is suspended again and again sees one before each search."""
    for _ in range(2):
        searches.now += 30 * DAY_S
        searches.search()
    assert searches.known() == (False, None, [], 0)
