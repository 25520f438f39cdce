"""Applications whose processes are killed or stopped."""

from __future__ import annotations

import logging
import os
import random
import re
import signal

import pytest

import eoslog
from eoslog.app import clients
from eoslog.storage.fs import files
from tests.app import counting
from tests.rows.tools import SCALE
from tests.waiting import until

STORES = ("memory", "sqlite")
PLACES = ("app.processed", "app.offsets", "app.applying", "app.sqlite", "app.applied")
NO_PLACE = ("memory", "app.sqlite")
KILLED = -signal.SIGKILL


@pytest.fixture
def words(path):
    """A log with 400 words; no handle is open in this process."""
    with eoslog.open(path, durability="os") as log:
        counting.feed(log, 400)
    return path


def checked(path):
    with eoslog.open(path) as log:
        counting.check(log)


@pytest.mark.parametrize("store", STORES)
def test_row_A20_a_killed_count_has_each_word_once_and_no_repeated_change(path, store):
    """Of 300,000 words and 200 kills with EOSLOG_ROW_SCALE=10."""
    with eoslog.open(path, durability="os") as log:
        counting.feed(log, 30_000 * SCALE)
    chance = random.Random(20)
    for _ in range(20 * SCALE):
        number = chance.randrange(1, 2_000)
        pid = counting.forked(
            lambda: counting.run_to_record(path, store, number, signal.SIGKILL, max_records=200)
        )
        assert counting.ended(pid) == KILLED
    assert counting.ended(counting.forked(lambda: counting.run(path, store))) == 0
    checked(path)


@pytest.mark.parametrize(
    ("store", "place"),
    [(store, place) for store in STORES for place in PLACES if (store, place) != NO_PLACE],
)
def test_a_process_killed_at_a_place_leaves_the_state_of_the_position(words, store, place):
    for nth in (1, 2):
        pid = counting.forked(
            lambda: counting.run_to_place(words, store, place, "kill", nth, max_records=50)
        )
        assert counting.ended(pid) == KILLED
    assert counting.ended(counting.forked(lambda: counting.run(words, store, max_records=50))) == 0
    checked(words)


@pytest.mark.parametrize("place", ["app.processed", "app.offsets", "app.applying", "app.applied"])
@pytest.mark.parametrize("store", STORES)
def test_an_owner_that_was_stopped_and_replaced_sets_nothing_back(words, store, place):
    stopped = counting.forked(
        lambda: counting.run_to_place(words, store, place, "stop", 2, max_records=50)
    )
    assert counting.ended(stopped) == -signal.SIGSTOP
    with eoslog.open(words) as log:
        [member] = log.describe_group("counter").members
        log._engine.groups.leave("counter", member.member_id)  # as after the session timeout
        log.abort_transaction("counter-0")
        counting.application(log, store, max_records=50).run(until="caught_up")
        counting.check(log)
    os.kill(stopped, signal.SIGCONT)
    assert counting.ended(stopped) == 0
    checked(words)
    with eoslog.open(words) as log:
        counting.feed(log, 100)
        counting.application(log, store).run(until="caught_up")
        counting.check(log)


@pytest.mark.parametrize("store", STORES)
def test_a_task_that_hangs_is_named_and_loses_its_partitions(
    words, store, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(clients, "_MARGIN_S", 0.2)
    monkeypatch.setattr(clients, "_RESTORE_MS", 0)
    hangs, go_on, lines = (tmp_path / name for name in ("hangs", "go-on", "lines"))
    left = [90]

    def at():
        left[0] -= 1
        if not left[0]:
            hangs.touch()
            until(go_on.exists)

    def run():
        logging.getLogger("eoslog.app").addHandler(logging.FileHandler(lines))
        counting.application(words, store, at, 5, max_records=50).run(until="caught_up")

    hung = counting.forked(run)
    until(hangs.exists)
    with eoslog.open(words) as log:
        counting.application(log, store).run(until="caught_up")
        counting.check(log)
        place = r"words-\d at offset \d+ has run for \d+\.\d s, task_timeout is 5 s; set a longer"
        named = f"app 'counter', task 'count': {place}"
        until(lambda: re.search(named, lines.read_text()))
        go_on.touch()
        assert counting.ended(hung) == 1
        counting.check(log)
    assert "TaskTimeout: app 'counter', task 'count': words-" in capfd.readouterr().err


@pytest.mark.parametrize("point", ["txn.flushed", "txn.prepared", "txn.decided"])
@pytest.mark.parametrize("store", STORES)
def test_a_commit_with_an_unknown_outcome_is_neither_lost_nor_repeated(
    words, store, point, disarmed, caplog
):
    with eoslog.open(words) as log, counting.application(log, store, max_records=50) as app:
        assert app.step() and app.step()
        files.arm_failpoint(point, "interrupt")  # the producer does not know what it has decided
        assert app.step() == 0
        assert "interrupted by KeyboardInterrupt, its decision may be written" in caplog.text
        report = app.run(until="caught_up")
        counting.check(log)
    assert report.records == 400
    assert report.aborted == (point == "txn.flushed")  # else it has committed
