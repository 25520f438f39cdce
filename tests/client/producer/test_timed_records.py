"""Records with a time of delivery: `Producer.send(..., deliver_at=)`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Outcome, errors
from eoslog.storage.fs import files
from tests.descriptors import opened_files
from tests.waiting import until

T = 1_700_000_000.0
AT = 1_700_000_060_000
PROGRAM = """
import sys, time
import eoslog
from eoslog.storage.fs import files

path, kind, point = sys.argv[1:4]
log = eoslog.open(path)
options = {"transactional_id": "till"} if kind == "transactional" else {}
producer = log.producer(**options)
if options:
    producer.init_transactions()
if point != "none":
    files.arm_failpoint(point, "kill", 1)
sent = producer.send("orders", "3 apples", deliver_at=1_600_000_000_000)
print(sent.token, flush=True)
while not list(log.read("orders")):
    time.sleep(0.01)
"""


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with eoslog.open(tmp_path / "d") as opened:
        opened.create_topic("orders", 2)
        opened._engine.clock = lambda: T
        yield opened


def plain(log: eoslog.Log) -> eoslog.Producer:
    return log.producer(acks=0, linger_ms=60_000, retries=0, compression_type="gzip")


def transactional(log: eoslog.Log) -> eoslog.Producer:
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    return producer


def named(log: eoslog.Log) -> eoslog.Producer:
    producer = log.producer(name="relay")
    producer.init_transactions()
    return producer


every = pytest.mark.parametrize("create", [plain, transactional, named])


def values(log: eoslog.Log, **options: Any) -> list[bytes | None]:
    return [record.value for record in log.read("orders", **options)]


def look_at(log: eoslog.Log, seconds: float) -> None:
    """Set the clock, and do what is due."""
    log._engine.clock = lambda: T + seconds
    log._engine.checks.look(lambda what, run: run())


@every
def test_row_N02_a_timed_record_appears_at_its_time_and_not_before(
    log: eoslog.Log, create: Callable[[eoslog.Log], eoslog.Producer]
) -> None:
    with create(log) as producer:
        sent = producer.send("orders", "1", "k", headers={"h": b"x"}, partition=1, deliver_at=AT)
    [waiting] = log.pending()
    assert (sent.token, waiting.due_at, waiting.mode) == (waiting.token, AT, "staged")
    look_at(log, 59.9)
    assert values(log) == []
    assert values(log, isolation="read_uncommitted") == []
    look_at(log, 60.0)
    until(lambda: values(log) == [b"1"])
    [record] = log.read("orders")
    assert (record.key, record.partition, list(record.headers)) == (b"k", 1, [("h", b"x")])
    assert log.outcome(waiting.token) is Outcome.COMMIT


@every
def test_a_record_whose_time_is_in_the_past_appears(
    log: eoslog.Log, create: Callable[[eoslog.Log], eoslog.Producer]
) -> None:
    with create(log) as producer:
        sent = producer.send("orders", "1", "k", deliver_at=AT - 24 * 3600 * 1000)
    until(lambda: values(log) == [b"1"])
    assert log.outcome(sent.token) is Outcome.COMMIT


@every
def test_a_canceled_record_never_appears(
    log: eoslog.Log, create: Callable[[eoslog.Log], eoslog.Producer]
) -> None:
    with create(log) as producer:
        gone, kept = (producer.send("orders", value, deliver_at=AT) for value in ("1", "2"))
        assert gone.token is not None and kept.token is not None
        log.resolve(gone.token, Outcome.ABORT)
        look_at(log, 61.0)
        until(lambda: values(log) == [b"2"])
        with pytest.raises(errors.OutcomeConflict):
            log.resolve(kept.token, Outcome.ABORT)


@every
def test_the_delivery_of_a_timed_record_is_done_and_has_no_offset(
    log: eoslog.Log, create: Callable[[eoslog.Log], eoslog.Producer]
) -> None:
    with create(log) as producer:
        sent = producer.send("orders", "1", partition=1, timestamp=7, deliver_at=AT)
        metadata = sent.result(0)
        assert (metadata.partition, metadata.offset, metadata.timestamp) == (1, -1, 7)
        assert sent.done() and sent.exception() is None and str(sent.token) in repr(sent)


def test_other_records_of_the_producer_have_no_token_and_do_not_wait(log: eoslog.Log) -> None:
    with log.producer(linger_ms=0) as producer:
        producer.send("orders", "later", deliver_at=AT)
        now = producer.send("orders", "now")
        now.result(30)
    assert now.token is None
    assert values(log) == [b"now"]


@pytest.mark.parametrize("create", [transactional, named])
def test_a_transactional_producer_continues_after_a_timed_record(
    log: eoslog.Log, create: Callable[[eoslog.Log], eoslog.Producer]
) -> None:
    with create(log) as producer:
        producer.send("orders", "later", deliver_at=AT)
        with producer.transaction() as tx:
            tx.produce("orders", "now")
            for send in (producer.send, tx.send):
                with pytest.raises(errors.IllegalState, match="is open; end it first"):
                    send("orders", "x", deliver_at=AT)
    assert values(log) == [b"now"]
    assert len(log.pending()) == 1


def test_a_timed_record_of_a_fenced_producer_is_not_sent(log: eoslog.Log) -> None:
    with transactional(log) as old, transactional(log):
        with pytest.raises(errors.ProducerFenced):
            old.send("orders", "x", deliver_at=AT)
    assert log.pending() == []


@every
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deliver_at": "soon"}, "deliver_at: expected ms since 1970 as int, got 'soon'"),
        ({"deliver_at": 1.5}, "deliver_at: expected ms since 1970"),
        (
            {"deliver_at": -1},
            "deliver_at: expected ms since 1970, in the years 1973 to 9999, got -1",
        ),
        ({"deliver_at": int(T)}, "got 1700000000; .* is now"),
        ({"deliver_at": int(T) * 10**6}, "got 1700000000000000; .* is now"),
        ({"topic": "nope"}, "topic 'nope' does not exist"),
        ({"partition": 9}, "partition"),
        ({"value": object()}, "value"),
        ({"publishing_id": 1}, "publishing_id"),
    ],
)
def test_an_invalid_timed_record_leaves_the_producer_usable(
    log: eoslog.Log, create: Callable[[eoslog.Log], eoslog.Producer], changes: dict[str, Any],
    expected: str,
) -> None:  # fmt: skip
    arguments = {"topic": "orders", "value": "1", "deliver_at": AT, **changes}
    with create(log) as producer:
        with pytest.raises(errors.EoslogError, match=expected):
            producer.send(**arguments)
        assert log.pending() == []
        producer.send("orders", "1", deliver_at=AT)
    assert len(log.pending()) == 1


def test_timed_records_of_a_producer_leave_its_log_closed(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "d") as log:
        log.create_topic("orders", 2)
        log._engine.clock = lambda: T
        with plain(log) as producer:
            for number in range(3):
                producer.send("orders", str(number), deliver_at=AT)
        assert opened_files(tmp_path)
    assert opened_files(tmp_path) == []


def test_a_producer_without_buffered_records_is_true(log: eoslog.Log) -> None:
    with log.producer() as producer:
        assert len(producer) == 0
        assert producer


def test_a_named_producer_that_commits_automatically_sends_no_timed_record(
    log: eoslog.Log,
) -> None:
    with log.producer(name="relay") as producer:
        with pytest.raises(errors.IllegalState, match="call init_transactions"):
            producer.send("orders", "1", deliver_at=AT)


def test_the_limit_of_pending_transactions_counts_timed_records(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "d", pending_max_count=2) as log:
        log.create_topic("orders")
        with log.producer() as producer:
            for number in range(2):
                producer.send("orders", str(number), deliver_at=1 << 42)
            with pytest.raises(errors.PolicyViolation, match=r"pending\.max\.count"):
                producer.send("orders", "2", deliver_at=1 << 42)
            log.resolve(log.pending()[0].token, Outcome.ABORT)
            producer.send("orders", "2", deliver_at=1 << 42)


def test_a_producer_closes_the_second_producer_of_its_timed_records(log: eoslog.Log) -> None:
    for number in range(3):
        with plain(log) as producer:
            producer.send("orders", str(number), deliver_at=AT)
    assert len(log.pending()) == 3
    used = {found.transactional_id for found in log.transactions(open_only=False)}
    assert len([name for name in used if name.startswith("deliver-at-")]) == 1


def test_an_error_after_the_prepare_says_that_the_record_may_be_sent(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: object) -> None:
        raise errors.StorageError("disk")

    producer = transactional(log)
    with monkeypatch.context() as patch:
        patch.setattr("eoslog.client.producer.producer.described", failed)
        with pytest.raises(errors.CommitOutcomeUnknown, match="the record is prepared"):
            producer.send("orders", "1", deliver_at=AT)
    assert len(log.pending()) == 1
    producer.send("orders", "2", deliver_at=AT)
    assert len(log.pending()) == 2


def test_a_failed_abort_says_that_the_record_may_be_sent(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = transactional(log)
    files.arm_failpoint("stage.appended", "EIO", 1)
    monkeypatch.setattr(
        producer, "abort_transaction", lambda: (_ for _ in ()).throw(errors.StorageError("disk"))
    )
    try:
        with pytest.raises(errors.CommitOutcomeUnknown, match="look for it with log.pending"):
            producer.send("orders", "1", deliver_at=AT)
    finally:
        files.disarm_failpoints()


# Kills: the process dies at each step of the send and of the delivery by the clock.

SENDING = [
    ("stage.written", False),
    ("stage.payload_durable", False),
    ("stage.appended", True),
    ("stage.durable", True),
]
DELIVERING = [
    "resolve.appended", "resolve.durable", "deliver.appended", "txn.prepared", "txn.decided",
    "txn.marked", "deliver.decided",
]  # fmt: skip
CASES = [(kind, *case) for kind in ("plain", "transactional") for case in SENDING]
CASES += [("plain", point, True) for point in DELIVERING]


@pytest.mark.process
@pytest.mark.parametrize(("kind", "point", "stands"), CASES)
def test_a_kill_at_any_step_delivers_a_timed_record_once_or_never(
    tmp_path: Path, kind: str, point: str, stands: bool
) -> None:
    path = tmp_path / "d"
    with eoslog.open(path) as log:
        log.create_topic("orders")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), kind, point],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "EOSLOG_FAILPOINTS": "1"},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    with eoslog.open(path) as log:
        if stands:  # the clock of this process delivers it
            until(lambda: list(log.read("orders")))
        for token in done.stdout.split():  # the send had returned
            until(lambda token=token: log.outcome(token) is Outcome.COMMIT)
        with log.producer() as producer:  # a later record is a fence for a second copy
            producer.send("orders", "end").result(30)
        expected = [b"3 apples"] if stands else []
        assert [record.value for record in log.read("orders")] == [*expected, b"end"]
        assert log.pending() == []
