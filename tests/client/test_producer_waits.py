"""What a producer does not wait for: topics that are gone, partitions whose lock is taken."""

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
from eoslog.storage import files
from tests.client.helpers import visible
from tests.rows.tools import locked_elsewhere


@pytest.fixture
def locked(log: Log) -> Any:
    """Whose append lock of `one` is held by somebody else, as by a stopped process."""
    part = log.engine.partition("one", 0)
    _, at = log.engine.session.append_lock(part.slot)
    name = f"eoslog.lock-{part.slot % 64:02d}"
    fd = files.open_file(os.path.join(log.path, name))
    assert _core.try_lock(fd, at)
    yield part
    files.close(fd)


def test_records_of_a_deleted_topic_fail_at_once_with_its_name(log: Log) -> None:
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


def test_records_for_a_topic_made_anew_meanwhile_go_into_it(log: Log) -> None:
    with log.producer(linger_ms=60_000, delivery_timeout_ms=600_000) as producer:
        delivery = producer.send("one", b"v")
        log.delete_topic("one")
        log.create_topic("one")
        producer.flush()
        assert delivery.result(0).offset == 0


def test_a_topic_deleted_in_a_transaction_fails_its_commit_and_an_abort_goes_on(log: Log) -> None:
    with log.producer(
        transactional_id="x", linger_ms=60_000, delivery_timeout_ms=600_000
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("one", b"v")
        log.delete_topic("one")
        for _ in range(2):
            with pytest.raises(TransactionAbortable, match="call abort_transaction.*'one'") as end:
                producer.commit_transaction()
            assert (end.value.abortable, end.value.retriable) == (True, False)
            assert isinstance(end.value.__cause__, UnknownTopicOrPartition)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.produce("b", b"v")
        producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_a_full_buffer_raises_after_max_block_ms_though_the_partition_is_locked(
    log: Log, locked: Any
) -> None:
    """R31 of docs/reliability.md."""
    producer = log.producer(
        buffer_memory=1000, batch_size=100, linger_ms=60_000, max_block_ms=100,
        request_timeout_ms=200_000, delivery_timeout_ms=600_000,
    )  # fmt: skip
    with pytest.raises(QueueFull, match="max.block.ms = 100"):
        for _ in range(100):
            producer.produce("one", bytes(80))
    with pytest.raises(IllegalState, match="closed before this was sent"):
        producer.close(0.0)


def test_a_locked_partition_is_tried_for_request_timeout_ms(log: Log, locked: Any) -> None:
    with log.producer(retries=0, linger_ms=0, request_timeout_ms=30) as producer:
        with pytest.raises(LockTimeout, match=r"not free within 0\.03 s"):
            producer.send("one", b"v").result(60)


def test_flush_returns_after_its_timeout_though_the_partition_is_locked(
    log: Log, locked: Any
) -> None:
    """R31 of docs/reliability.md."""
    producer = log.producer(
        linger_ms=60_000, request_timeout_ms=200_000, delivery_timeout_ms=600_000
    )
    producer.produce("one", b"v")
    assert producer.flush(0.05) == 1
    with pytest.raises(IllegalState, match="closed before this was sent"):
        producer.close(0.0)


def test_a_commit_that_never_looked_at_what_is_buffered_is_no_success(log: Log) -> None:
    """Another thread's cycle outlasts its timeout."""
    with log.producer(transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("b", b"v")
        taken, tried = threading.Event(), threading.Event()

        def cycle() -> None:
            with producer._sender._lock:
                taken.set()
                tried.wait(2)

        thread = threading.Thread(target=cycle)
        thread.start()
        assert taken.wait(20)
        with pytest.raises(RequestTimedOut, match="1 records are not sent"):
            producer.commit_transaction(0)
        tried.set()
        thread.join()
        assert visible(log) == []
        producer.commit_transaction()
        assert visible(log) == [b"v"]


def test_the_wait_for_a_locked_partition_ends_with_the_holder_named(log: Log, locked: Any) -> None:
    with pytest.raises(LockTimeout, match="held by process"):
        locked.append(_core.build_batch([(0, None, b"v", ())]), timeout=0.01)


def test_what_a_flush_has_left_is_sent_without_another_call(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background thread leaves the work to who flushes, and goes on with it at once."""
    monkeypatch.setattr("eoslog.client.sender._IDLE_S", 600.0)
    with log.producer(linger_ms=0, delivery_timeout_ms=600_000) as producer:
        with locked_elsewhere(log.engine.partition("one", 0)):
            first = producer.send("one", b"v")
            assert producer.flush(0.3) == 1
        assert first.result(60).offset == 0
        assert producer.send("one", b"w").result(60).offset == 1


def test_an_interrupt_as_a_flush_begins_leaves_the_background_thread_at_work(log: Log) -> None:
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
