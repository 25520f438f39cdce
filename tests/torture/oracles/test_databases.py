"""The oracles of `Log.atomic` and `Log.sink` detect what must not be.

Each test makes a difference between a database and a log that the verdict must name.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import eoslog
from eoslog.sql import Database
from tests.faults.harness import live, start
from tests.sql.databases import Place
from tests.torture.harnesses.databases import suspended
from tests.torture.oracles import applied as applied_oracle
from tests.torture.oracles import orders as orders_oracle
from tests.torture.workloads import applied, one_order, orders

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("wal", str(tmp_path / "base.sqlite"))


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    (tmp_path / "journals").mkdir()
    return tmp_path / "journals"


@pytest.fixture
def shop(tmp_path: Path, place: Place, journals: Path) -> Path:
    live(orders.founded, tmp_path / "log", place).fine()
    live(orders.sells, tmp_path / "log", place, journals, "one", 5).fine()
    return tmp_path / "log"


def shop_violations(shop: Path, place: Place, journals: Path) -> str:
    violations, counts = orders_oracle.verify(shop, place, journals)
    assert counts["orders placed"] > 0
    return "\n".join(violations)


def test_an_intact_shop_has_no_violation(shop, place, journals):
    assert shop_violations(shop, place, journals) == ""


def test_a_lost_row_is_a_violation(shop, place, journals):
    place.run("delete from placed where rowid = (select min(rowid) from placed)")
    found = shop_violations(shop, place, journals)
    assert "records without rows" in found
    assert "only its parts" in found or "answered True" in found


def test_a_lost_record_is_a_violation(shop, place, journals):
    place.run("insert into placed values ('one.99', 0)")
    assert "rows without records: ['one.99/0']" in shop_violations(shop, place, journals)


def test_a_record_that_appears_twice_is_a_violation(shop, place, journals):
    with eoslog.open(shop) as log, log.producer() as producer:
        value = next(iter(log.read("orders"))).value
        producer.produce("orders", value, partition=0)
    found = shop_violations(shop, place, journals)
    assert f"records that are there twice: ['{value.decode()}']" in found


def test_an_order_that_was_rolled_back_and_appears_is_a_violation(shop, place, journals):
    file = journals / "one.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ended = next(line for line in lines if line["what"] == "ended" and line["commit"])
    ended["commit"] = False
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert f"{ended['label']}: answered False" in shop_violations(shop, place, journals)


def test_an_outcome_row_that_disagrees_with_the_log_is_a_violation(shop, place, journals):
    place.run("insert into eoslog_outcome (token, decision) values ('other:1:2:3', 'C')")
    assert "other:1:2:3: C in the database" in shop_violations(shop, place, journals)


def test_offsets_of_moved_inputs_that_disagree_are_a_violation(shop, place, journals):
    assert shop_violations(shop, place, journals) == ""
    place.run("update eoslog_offsets set next_offset = 7 where partition = 0")
    assert "database 0: the stored offset is 7" in shop_violations(shop, place, journals)


@pytest.mark.parametrize("settle", ["", "ask", "enter"])
def test_a_process_killed_between_the_commits_leaves_no_violation(shop, place, journals, settle):
    arguments = (shop, place, journals, "two", 7, "order")
    life = live(one_order.sells_once, *arguments, faults=(("atomic.db_commit", "kill", 1),))
    assert life.killed
    assert orders_oracle.check(shop, place, journals, settle) == []


def test_an_outcome_row_deleted_before_the_decision_is_a_violation(shop, place, journals):
    arguments = (shop, place, journals, "two", 7, "order")
    live(one_order.sells_once, *arguments, faults=(("atomic.db_commit", "kill", 1),))
    place.run("delete from eoslog_outcome where rowid = (select max(rowid) from eoslog_outcome)")
    found = orders_oracle.check(shop, place, journals, "")
    assert any("None in the database, and the row of orders two.1/0 is there" in x for x in found)


def test_a_second_decision_ends_a_program_with_an_error(shop, place, journals):
    """Faults do not explain this typed error."""
    arguments = (shop, place, journals, "two", 7, "order")
    faults = (("atomic.db_commit", "stop", 1),)
    worker = start(one_order.sells_once, *arguments, faults=faults)
    suspended(worker)
    with eoslog.open(shop) as log:
        [prepared] = log.pending()
        log.resolve(prepared.token, eoslog.Outcome.ABORT)
    worker.signal(signal.SIGCONT)
    assert "OutcomeConflict" in (worker.end().error or "")


@pytest.fixture
def bills(tmp_path: Path, place: Place) -> Path:
    live(applied.founded, tmp_path / "log", place).fine()
    # The verdict of an end applies all records, however long that takes.
    assert applied_oracle.verify(tmp_path / "log", place, finished=True)[0] == []
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("delete from applied where part = 1 and number = 0", "no row below the stored offset"),
        ("insert into applied select * from applied where part = 0 limit 1", "there twice"),
        ("insert into applied values (0, 999, 'x')", "rows of no committed record"),
        ("update eoslog_offsets set next_offset = 1 where partition = 2", "rows above the stored"),
    ],
)
def test_a_row_of_a_sink_that_is_wrong_is_a_violation(bills, place, statement, words):
    assert applied_oracle.verify(bills, place, finished=False)[0] == []
    assert place.rows("select * from applied")
    place.run(statement)
    assert words in "\n".join(applied_oracle.verify(bills, place, finished=False)[0])


def test_the_last_offset_of_a_sink_is_judged_at_its_end(bills, place):
    violations, counts = applied_oracle.verify(bills, place, finished=True)
    assert violations == []
    assert counts["rows"] == 30
    with eoslog.open(bills) as log, Database(place.connect) as database:
        with log.producer() as producer:
            producer.produce("in", "late", partition=0)
        _, wrong = applied_oracle.judge(log, database, place, finished=True)
    assert any("the last record" in text for text in wrong)
