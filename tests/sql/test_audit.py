"""A log and a database of which one was restored from a copy (rows 14 and 15)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import Outcome, TopicPartition
from eoslog.errors import ConfigError, DatabaseError, OutcomeConflict
from eoslog.sql import AuditReport, Database, audit
from tests.sql.databases import Place

TABLES = ("eoslog_outcome", "eoslog_offsets", "placed", "applied")


@pytest.fixture
def place(place: Place) -> Place:
    place.run("create table placed (number integer)", "create table applied (value text)")
    return place


class Shop:
    """A program that places orders and applies them to a database."""

    def __init__(self, path: str, place: Place) -> None:
        """Create the topics."""
        self.path, self.place = path, place
        with eoslog.open(path) as log:
            log.create_topic("out", exist_ok=True)
            log.create_topic("orders", exist_ok=True)

    def order(self, *numbers: int, name: str = "t") -> None:
        """Commit a row and a record for each number."""
        with (
            eoslog.open(self.path) as log,
            Database(self.place.connect) as database,
            log.producer(transactional_id=name) as producer,
        ):
            for number in numbers:
                with log.atomic(producer, database) as tx:
                    tx.connection.execute(f"insert into placed values ({number})")
                    tx.produce("out", f"{number}")

    def apply(self, *numbers: int) -> None:
        """Produce records, and apply what the database has not applied."""
        with (
            eoslog.open(self.path) as log,
            Database(self.place.connect) as database,
            log.consumer(group_id="g", auto_offset_reset="earliest") as consumer,
        ):
            with log.producer() as producer:
                producer.produce_many("orders", [str(number) for number in numbers])
            consumer.assign([TopicPartition("orders", 0)])
            for batch in log.sink(consumer, database, timeout=0.2):
                if not batch:
                    break
                for record in batch:
                    text = record.value.decode()
                    batch.connection.execute(f"insert into applied values ('{text}')")

    def audit(self, **options: str) -> AuditReport:
        with eoslog.open(self.path) as log, Database(self.place.connect, **options) as database:
            return audit(log, database)

    # Copies.

    def back_up_log(self, to: Path) -> None:
        with eoslog.open(self.path) as log:
            log.backup(to)

    def restore_log(self, copy: Path) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(copy, self.path)

    def back_up_database(self) -> None:
        """Copy the file of SQLite, or the rows of PostgreSQL."""
        if self.place.postgresql:
            for name in TABLES:
                self.place.run(f"create table saved_{name} as select * from {name}")
        else:
            self.place.run("pragma wal_checkpoint(truncate)")
            shutil.copy(self.place.where, f"{self.place.where}.copy")

    def restore_database(self) -> None:
        if self.place.postgresql:
            for name in TABLES:
                self.place.run(f"truncate {name}", f"insert into {name} select * from saved_{name}")
        else:
            for end in ("-wal", "-shm", "-journal"):
                Path(f"{self.place.where}{end}").unlink(missing_ok=True)
            shutil.copy(f"{self.place.where}.copy", self.place.where)


@pytest.fixture
def shop(place: Place, path: str) -> Iterator[Shop]:
    return Shop(path, place)


def kinds(report: AuditReport) -> list[str]:
    return [found.kind for found in report.findings]


def test_a_log_and_its_database_agree(shop):
    shop.order(1, 2, 3)
    shop.order(4, name="other")
    shop.apply(5, 6)
    report = shop.audit()
    assert report.ok and report.findings == report.notes == []
    assert (report.transactions, report.outcomes, report.offsets) == (4, 2, 1)


def test_an_audit_changes_nothing(shop):
    shop.order(1, 2)
    rows = shop.place.rows("select token, decision from eoslog_outcome")
    with eoslog.open(shop.path) as log:
        end = log.offsets("out", 0)
    assert shop.audit().ok
    assert shop.place.rows("select token, decision from eoslog_outcome") == rows
    with eoslog.open(shop.path, read_only=True) as log, Database(shop.place.connect) as database:
        assert audit(log, database).ok
        assert log.offsets("out", 0) == end


@pytest.mark.parametrize("before", [[], [1, 2]])
def test_row_14_N19_an_older_database_is_found_by_commits_of_the_log(shop, before):
    shop.order(*before)
    shop.back_up_database() if before else None
    if not before:
        shop.order(0, name="other")  # so that the tables exist
        shop.back_up_database()
    shop.order(3, 4)
    shop.order(5, name="another")
    shop.restore_database()
    report = shop.audit()
    assert kinds(report) == ["database-older"] * 3
    assert "the database is an older copy" in report.findings[0].message
    with eoslog.open(shop.path) as log:
        assert all(log.outcome(one.subject) is Outcome.COMMIT for one in report.findings)


def test_row_14_the_next_commit_of_a_producer_does_not_hide_another_producer(shop):
    shop.order(1)
    shop.order(1, name="other")
    shop.back_up_database()
    shop.order(2)
    shop.order(2, name="other")
    shop.restore_database()
    shop.order(3)
    report = shop.audit()
    assert kinds(report) == ["database-older"]
    assert "'other'" in report.findings[0].message


def test_row_15_an_older_log_is_found_by_what_the_database_has_committed(shop, tmp_path):
    shop.order(1, 2)
    shop.apply(1, 2, 3)
    shop.back_up_log(tmp_path / "copy")
    shop.order(3)
    shop.order(4, name="another")
    shop.apply(4, 5)
    shop.restore_log(tmp_path / "copy")
    report = shop.audit()
    assert kinds(report) == ["log-older"] * 3
    tokens, offset = report.findings[:2], report.findings[2]
    assert all("the log is an older copy" in found.message for found in tokens)
    assert offset.subject == "g orders-0"
    assert "up to offset 5, and the log ends at 3" in offset.message


def test_both_sides_restored_to_one_moment_agree(shop, tmp_path):
    shop.order(1, 2)
    shop.apply(1)
    shop.back_up_log(tmp_path / "copy")
    shop.back_up_database()
    shop.order(3)
    shop.apply(2)
    shop.restore_log(tmp_path / "copy")
    shop.restore_database()
    assert shop.audit().ok
    shop.order(4)
    shop.apply(5)
    assert shop.audit().ok
    assert shop.place.rows("select value from applied order by value") == [("1",), ("5",)]


def test_an_outcome_that_the_log_has_forgotten_is_not_a_disagreement(shop, path):
    shop.order(1)
    with eoslog.open(path, outcome_retention_ms=0) as log:
        log._engine.transactions.prepared.expire()
        with Database(shop.place.connect) as database:
            assert audit(log, database).ok


def prepare(shop: Shop, database: Database, resolver: str = "shop") -> str:
    """Prepare a transaction, as a program that dies in `log.atomic`."""
    with eoslog.open(shop.path) as log, log.producer(transactional_id="x") as producer:
        producer.init_transactions(keep_prepared=True)
        producer.begin_transaction(mode="staged")
        producer.produce("out", "9")
        return producer.prepare_transaction({"eoslog.database": database.id}, resolver).token


def test_a_decision_against_the_database_is_a_conflict(shop):
    with Database(shop.place.connect) as database, eoslog.open(shop.path) as log:
        aborted, committed = prepare(shop, database), prepare(shop, database)
        add = "insert into eoslog_outcome (token, decision) values "
        shop.place.run(f"{add} ('{aborted}', 'C')", f"{add} ('{committed}', 'A')")
        log.resolve(aborted, Outcome.ABORT)
        log.resolve(committed, Outcome.COMMIT)
        with pytest.raises(OutcomeConflict):
            log.resolve(aborted, Outcome.COMMIT)
    report = shop.audit()
    assert kinds(report) == ["outcome-conflict"] * 2
    texts = {found.subject: found.message for found in report.findings}
    assert "the database has committed it" in texts[aborted]
    assert "the database has aborted it" in texts[committed]


def test_a_commit_that_the_log_has_not_decided_is_a_note(shop):
    with Database(shop.place.connect) as database:
        token, _ = prepare(shop, database), prepare(shop, database)
    shop.place.run(f"insert into eoslog_outcome (token, decision) values ('{token}', 'C')")
    report = shop.audit()
    assert report.ok
    assert [(note.kind, note.subject) for note in report.notes] == [("undecided", token)]


def test_a_namesake_of_the_database_is_found_by_its_id(shop, tmp_path):
    with Database(shop.place.connect) as database:
        token = prepare(shop, database)
    other = Shop(shop.path, Place("wal", str(tmp_path / "other.sqlite")))
    with Database(other.place.connect) as database:
        database.create()
    report = other.audit(name="shop")
    assert kinds(report) == ["other-database"]
    assert report.findings[0].subject == token
    assert other.audit().ok


def test_records_that_the_log_has_deleted_too_early_are_missing(shop):
    shop.apply(1, 2)
    shop.back_up_database()
    shop.apply(3, 4)
    with eoslog.open(shop.path) as log:
        log.delete_records({TopicPartition("orders", 0): 3})
    assert shop.audit().ok
    shop.restore_database()
    report = shop.audit()
    assert kinds(report) == ["records-missing"]
    assert "up to offset 2, and the log begins at 3" in report.findings[0].message


def test_offsets_of_a_deleted_topic_are_a_note(shop):
    shop.apply(1, 2)
    with eoslog.open(shop.path) as log:
        log.delete_topic("orders")
        log.create_topic("orders")
    report = shop.audit()
    assert report.ok
    assert [note.kind for note in report.notes] == ["topic-unknown"]


def test_outcomes_of_other_logs_are_left_out(shop, tmp_path):
    shop.order(1)
    other = Shop(str(tmp_path / "other"), shop.place)
    other.order(2)
    assert other.audit().ok and other.audit().outcomes == 1
    assert shop.audit().ok


def test_a_database_without_tables_is_refused_and_stays_as_it_is(shop, tmp_path):
    with eoslog.open(shop.path) as log:
        with Database(shop.place.connect) as database:
            with pytest.raises(DatabaseError, match=r"it has no tables eoslog_\*"):
                audit(log, database)
            with pytest.raises(DatabaseError, match=r"it has no tables eoslog_\*"):
                audit(log, database)
        with Database(tmp_path / "missing.sqlite") as database:
            with pytest.raises(ConfigError, match=r"the SQLite file .*missing\.sqlite does not"):
                audit(log, database)
        for uri in (
            f"file:{tmp_path}/missing.sqlite",
            f"file://{tmp_path}/missing.sqlite?mode=rwc",
        ):
            with Database(uri) as database:
                with pytest.raises(ConfigError, match=r"the SQLite file .*missing\.sqlite does"):
                    audit(log, database)
        assert not (tmp_path / "missing.sqlite").exists()
        with pytest.raises(ConfigError, match="expected an eoslog.sql.Database, got"):
            audit(log, tmp_path)
        with pytest.raises(ConfigError, match="expected an open log, got"):
            audit(tmp_path, Database(tmp_path / "x"))
