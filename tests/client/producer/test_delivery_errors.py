"""A partition that rejects records for a while: who gets the error and how often."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from eoslog.errors import DeliveryTimeout, DiskFull, LockTimeout, StorageError
from eoslog.log import Log
from eoslog.storage.fs import files
from tests.client.helpers import Refusing, stored

QUICK = {
    "delivery_timeout_ms": 6000, "request_timeout_ms": 500, "retry_backoff_ms": 20, "linger_ms": 0,
}  # fmt: skip


@pytest.fixture
def fill(log: Log, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The disk refuses every append to `one` as told, until told otherwise."""
    part = log._engine.partition("one", 0)
    real = part.append

    def fill(action: str | None) -> None:
        def append(*arguments: Any, **keywords: Any) -> Any:
            if action is not None:
                files.arm_failpoint("pwrite", action)
            return real(*arguments, **keywords)

        monkeypatch.setattr(part, "append", append)

    yield fill
    files.disarm_failpoints()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if record.name == "eoslog.client.sender"
    ]


def test_a_full_disk_is_logged_once_and_named_by_each_delivery_timeout(
    log: Log, fill: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="eoslog.client.sender")
    with log.producer(**QUICK) as producer:
        fill("ENOSPC")
        delivery, behind = producer.send("one", b"a"), producer.send("one", b"b")
        for one in (delivery, behind):
            with pytest.raises(DeliveryTimeout, match="not written.*DiskFull.*No space") as raised:
                one.result(30)
            assert isinstance(raised.value.__cause__, DiskFull)
        (said,) = warnings(caplog)
        assert "one-0" in said and "No space left" in said and "retrying" in said
        fill(None)
        files.disarm_failpoints()
        assert producer.send("one", b"c").result(30).offset == 0
        fill("ENOSPC")
        with pytest.raises(DeliveryTimeout):
            producer.send("one", b"d").result(30)
        assert len(warnings(caplog)) == 2  # another outage
    assert [value for _, _, value in stored(log)] == [b"c"]


def test_a_failing_disk_is_logged_once_although_every_batch_fails(
    log: Log, fill: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with log.producer(**QUICK) as producer:
        fill("EIO")
        for value in (b"a", b"b"):
            with pytest.raises(StorageError, match="Input/output error"):
                producer.send("one", value).result(30)
    (said,) = warnings(caplog)
    assert "Input/output error" in said and "tried again" not in said


def test_an_error_unrelated_to_the_disk_is_named_but_not_logged(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [LockTimeout("held by process 1")] * 1000
    with log.producer(**QUICK) as producer:
        with pytest.raises(DeliveryTimeout, match="held by process 1") as raised:
            producer.send("one", b"a").result(30)
        assert isinstance(raised.value.__cause__, LockTimeout)
    assert warnings(caplog) == []
