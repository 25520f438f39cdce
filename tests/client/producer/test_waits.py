"""A producer does not wait for deleted topics or for locked partitions."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from eoslog import _core
from eoslog.errors import (
    IllegalState,
    LockTimeout,
    QueueFull,
    RequestTimedOut,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from eoslog.log import Log
from eoslog.storage.fs import files
from tests.client.helpers import visible
from tests.rows.tools import locked_elsewhere


@pytest.fixture
def locked(log: Log) -> Any:
    """Have another process hold the append lock of `one`, as a stopped process would."""
    part = log._engine.partition("one", 0)
    _, at = log._engine.session.append_lock(part.slot)
    name = f"eoslog.lock-{part.slot % 64:02d}"
    fd = files.open_file(os.path.join(log.path, name))
    assert _core.try_lock(fd, at)
    yield part
    files.close(fd)


def test_records_of_a_deleted_topic_fail_immediately_with_its_name(log: Log) -> None:
    with log.producer(linger_ms=60_000, delivery_timeout_ms=600_000) as producer:
        told: list[Any] = []
        producer.produce("one", b"v", on_delivery=lambda error, where: told.append(error))
        producer.produce("one", b"w")
        producer.produce("t", b"kept", partition=0)
        log.delete_topic("one")
        with pytest.raises(UnknownTopicOrPartition, match="one"):
            producer.flush()
        assert [type(error) for error in told] == [UnknownTopicOrPartition]
        assert producer.flush() == 0
    assert log.offsets("t", 0).log_end == 1


def test_buffered_records_are_sent_to_a_topic_that_was_re_created(log: Log) -> None:
    with log.producer(linger_ms=60_000, delivery_timeout_ms=600_000) as producer:
        delivery = producer.send("one", b"v")
        log.delete_topic("one")
        log.create_topic("one")
        producer.flush()
        assert delivery.result(0).offset == 0


def test_a_topic_deleted_in_a_transaction_fails_its_commit_until_an_abort(log: Log) -> None:
    with log.producer(
        transactional_id="x", linger_ms=60_000, delivery_timeout_ms=600_000
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("one", b"v")
        log.delete_topic("one")
        for _ in range(2):
            with pytest.raises(TransactionAbortable, match="'one'.*call abort_transaction") as end:
                producer.commit_transaction()
            assert (end.value.abortable, end.value.retriable) == (True, False)
            assert isinstance(end.value.__cause__, UnknownTopicOrPartition)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.produce("b", b"v")
        producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_a_full_buffer_raises_after_max_block_ms_with_a_locked_partition(
    log: Log, locked: Any
) -> None:
    """R31 of docs/contributing/regressions.md."""
    producer = log.producer(
        buffer_memory=1000, batch_size=100, linger_ms=60_000, max_block_ms=100,
        request_timeout_ms=200_000, delivery_timeout_ms=600_000,
    )  # fmt: skip
    with pytest.raises(QueueFull, match=r"buffer full for 100 ms \(max\.block\.ms\)"):
        for _ in range(100):
            producer.produce("one", bytes(80))
    with pytest.raises(IllegalState, match="closed before this record was sent"):
        producer.close(0.0)


def test_a_locked_partition_is_tried_for_request_timeout_ms(log: Log, locked: Any) -> None:
    with log.producer(retries=0, linger_ms=0, request_timeout_ms=30) as producer:
        with pytest.raises(LockTimeout, match=r"not free within 0\.03 s"):
            producer.send("one", b"v").result(60)


def test_flush_returns_at_its_timeout_although_the_partition_is_locked(
    log: Log, locked: Any
) -> None:
    """R31 of docs/contributing/regressions.md."""
    producer = log.producer(
        linger_ms=60_000, request_timeout_ms=200_000, delivery_timeout_ms=600_000
    )
    producer.produce("one", b"v")
    assert producer.flush(0.05) == 1
    with pytest.raises(IllegalState, match="closed before this record was sent"):
        producer.close(0.0)


def test_a_commit_that_could_not_send_buffered_records_raises_a_timeout(log: Log) -> None:
    """Another thread's cycle outlasts its timeout."""
    with log.producer(transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("b", b"v")
        taken, tried = threading.Event(), threading.Event()

        def cycle() -> None:
            with producer._sender._lock:
                taken.set()
                tried.wait(60)

        thread = threading.Thread(target=cycle)
        thread.start()
        assert taken.wait(60)
        with pytest.raises(RequestTimedOut, match="1 records are not sent"):
            producer.commit_transaction(0)
        tried.set()
        thread.join()
        assert visible(log) == []
        producer.commit_transaction()
        assert visible(log) == [b"v"]


def test_the_timeout_on_a_locked_partition_names_the_holder(log: Log, locked: Any) -> None:
    with pytest.raises(LockTimeout, match="held by process"):
        locked.append(_core.build_batch([(0, None, b"v", ())]), timeout=0.01)


def test_records_left_by_a_flush_are_sent_without_another_call(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background thread leaves the work to the flushing thread and continues."""
    monkeypatch.setattr("eoslog.client.producer.sender._IDLE_S", 600.0)
    with log.producer(linger_ms=0, delivery_timeout_ms=600_000) as producer:
        with locked_elsewhere(log._engine.partition("one", 0)):
            first = producer.send("one", b"v")
            assert producer.flush(0.3) == 1
        assert first.result(60).offset == 0
        assert producer.send("one", b"w").result(60).offset == 1


def test_an_interrupt_at_the_start_of_flush_keeps_the_sender_thread_running(log: Log) -> None:
    class Interrupted:
        """The bell, and a signal as its `hold` returns."""

        def __init__(self, bell: _core.Bell) -> None:
            self.bell = bell

        def hold(self) -> None:
            self.bell.hold()
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self.bell, name)

    with log.producer(linger_ms=0) as producer:
        bell = producer._sender._bell
        producer._sender._bell = Interrupted(bell)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        producer._sender._bell = bell
        assert not bell.held
        assert producer.send("one", b"v").result(60).offset == 0


def test_an_interrupt_as_flush_gets_its_lock_leaves_the_lock_free(log: Log) -> None:
    class Interrupted:
        """The lock, and a signal as its `acquire` returns in this thread."""

        def __init__(self, lock: threading.RLock) -> None:
            self.lock, self.thread = lock, threading.get_ident()

        def acquire(self, *args: Any, **keywords: Any) -> bool:
            taken = self.lock.acquire(*args, **keywords)
            if threading.get_ident() == self.thread:
                raise KeyboardInterrupt
            return taken

        def __enter__(self) -> bool:
            return self.lock.__enter__()

        def __exit__(self, *raised: Any) -> None:
            self.lock.__exit__(*raised)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.lock, name)

    with log.producer(linger_ms=0) as producer:
        producer.send("one", b"v").result(60)
        lock = producer._sender._lock
        producer._sender._lock = Interrupted(lock)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        producer._sender._lock = lock
        try:
            assert producer.send("one", b"w").result(60).offset == 1  # the sender's thread sends it
        finally:
            while lock._is_owned():  # else `close` would wait for that thread
                lock.release()
