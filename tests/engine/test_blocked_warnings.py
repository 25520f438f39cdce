"""A fixed view ends no transaction, and names those that a writer would end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import eoslog
from eoslog import Producer
from eoslog.cli import main as command
from eoslog.errors import CorruptRecord, ErrorCode, IllegalState, KafkaError
from tests.engine.dying import READ, commit, die, resolve_staged, write
from tests.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("a", 1)
        log.create_topic("b", 1)
    return tmp_path / "log"


def values(log: eoslog.Log) -> list[bytes]:
    return [record.value for record in log.read("a")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    caplog.clear()
    return found


def test_a_decided_transaction_without_a_marker_is_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    die(path, commit, "txn.decided")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
        assert warnings(caplog) == [
            "a-0: readers stop at offset 2, before a transaction of 't' that is decided, but lacks "
            "its marker; a process that has the log open for writing ends it within seconds"
        ]
        with pytest.raises(KafkaError, match="this read-only log ends none") as failed:
            log.committed("g", [READ])
        assert failed.value.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        found = [(b.kind, b.group_id, b.topic, b.remedy) for b in log.blockers()]
        remedy = f"eoslog -d {path} stats"
        assert ("decided_transaction", None, "a", remedy) in found
        assert ("decided_transaction", "g", "b", remedy) in found
        assert warnings(caplog) == [], "one for each transaction, not for each partition"
    assert command(remedy.split()[1:]) == 0
    warnings(caplog)
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0", b"1"]
        assert log.committed("g", [READ])[READ].offset == 1
    assert warnings(caplog) == []


def test_an_open_transaction_of_a_dead_process_is_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    die(path, commit, "txn.flushed")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
        assert "offset 2, before a transaction of 't' that was not ended" in warnings(caplog)[0]
        (found,) = [blocker for blocker in log.blockers() if blocker.topic == "a"]
        assert (found.kind, found.remedy) == ("open_transaction", f"eoslog -d {path} stats")


def test_a_complete_transaction_is_not_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    die(path, commit, "txn.completed")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0", b"1"]
    assert warnings(caplog) == []


def prepare_before_a_commit(path: Path) -> None:
    """A prepared transaction stops readers, and a later one lacks its marker."""

    def work(producer: Producer) -> None:
        write(producer, 1)
        producer.prepare_transaction()
        with eoslog.open(path) as log, log.producer(transactional_id="other") as other:
            other.init_transactions()
            write(other, 2)
            other.commit_transaction()

    die(path, work, "txn.decided")


def test_a_prepared_transaction_is_not_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare_before_a_commit(path)
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
        assert warnings(caplog) == [], "only its token ends it"
        assert "prepared_transaction" in {blocker.kind for blocker in log.blockers()}


@pytest.mark.parametrize("step", ["resolve.durable", "txn.added", "txn.flushed"])
def test_a_staged_transaction_that_is_not_delivered_is_named(
    path: Path, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    die(path, resolve_staged(path), step)
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
        assert "readers do not see them: 1, the first of which" in "\n".join(warnings(caplog))
    with eoslog.open(path) as log:
        until(lambda: values(log) == [b"0", b"1"])
        assert log.committed("g", [READ])[READ].offset == 1
    warnings(caplog)
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0", b"1"]
    assert warnings(caplog) == []


def test_damaged_decisions_are_named_and_stop_no_reader_of_records(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with eoslog.open(path) as log, log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        write(producer, 0)
        producer.commit_transaction()
        write(producer, 1)
        producer.prepare_transaction()
    for file in path.glob("__transaction_state-*/*.log"):
        data = bytearray(file.read_bytes())
        if data:
            data[0] ^= 1
            file.write_bytes(data)
    with eoslog.open(path, read_only=True) as log:
        with pytest.raises(CorruptRecord):
            log.transactions()
        assert values(log) == [b"0"]
        (said,) = warnings(caplog)
        assert "can be read, which stops readers of a-0 at offset 2: " in said


def test_an_outdated_view_reads_nothing(path: Path) -> None:
    die(path, commit, "txn.decided")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
        assert command(["-d", str(path), "stats"]) == 0
        for read in (log.read, log.scan, log.last, log.describe_topic, log.partitions_of):
            with pytest.raises(IllegalState, match="open the log again"):
                read("a")
        for look in (log.snapshot, log.blockers, log.transactions, log.pending, log.groups):
            with pytest.raises(IllegalState, match="open the log again"):
                look()
