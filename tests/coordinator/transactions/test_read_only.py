"""A read-only log ends no transaction, and names those that a writer would end."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.cli import main as command
from eoslog.errors import CorruptRecord, ErrorCode, KafkaError
from eoslog.storage.fs import files

pytestmark = pytest.mark.process

READ = TopicPartition("b", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("a", 1)
        log.create_topic("b", 1)
    return tmp_path / "log"


def die_in_a_commit(path: Path, step: str) -> None:
    """Commit one transaction, and die in the commit of a second one."""
    pid = os.fork()
    if not pid:
        log = eoslog.open(path)
        with log.producer(transactional_id="t") as producer:
            producer.init_transactions()
            for number in range(2):
                producer.begin_transaction()
                producer.produce("a", b"%d" % number)
                producer.send_offsets_to_transaction({READ: number}, f"g{number}")
                if number:
                    files.arm_failpoint(step, "kill")
                producer.commit_transaction()
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def values(log: eoslog.Log) -> list[bytes]:
    return [record.value for record in log.read("a")]


def test_a_decided_transaction_without_a_marker_is_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    die_in_a_commit(path, "txn.decided")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
        (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert warning == (
            "a-0: readers stop at offset 2, before a transaction of 't' that is decided, but lacks "
            "its marker; open the log for writing once, which ends it"
        )
        assert log.committed("g0", [READ])[READ].offset == 0
        with pytest.raises(KafkaError, match="or open it for writing") as failed:
            log._engine.groups.fetch_offsets("g1", [READ], timeout=0.0)
        assert failed.value.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        (blocker,) = [found for found in log.blockers() if found.topic == "a"]
        assert (blocker.kind, blocker.remedy) == ("decided_transaction", f"eoslog -d {path} stats")
    assert command(blocker.remedy.split()[1:]) == 0
    caplog.clear()
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0", b"1"]
        assert log.committed("g1", [READ])[READ].offset == 1
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_an_open_transaction_of_a_dead_process_is_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    die_in_a_commit(path, "txn.flushed")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
    assert "offset 2, before a transaction of 't' that was not ended; open" in caplog.text


def test_a_complete_transaction_is_not_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    die_in_a_commit(path, "txn.completed")
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0", b"1"]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_damaged_decisions_do_not_stop_a_reader_of_records(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with eoslog.open(path) as log, log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for number in range(2):
            producer.begin_transaction()
            producer.produce("a", b"%d" % number)
            if number:
                producer.prepare_transaction()
            else:
                producer.commit_transaction()
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == [b"0"]
    assert not caplog.records, "a prepared transaction is ended by its token"
    for file in path.glob("__transaction_state-*/*.log"):
        data = bytearray(file.read_bytes())
        if data:
            data[0] ^= 1
            file.write_bytes(data)
    with eoslog.open(path, read_only=True) as log:
        with pytest.raises(CorruptRecord):
            log.transactions()
        assert values(log) == [b"0"]
