"""Reads of the fold take no lock, and never find less than the last `refresh`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.errors import StorageError
from tests.coordinator.world import A0, World, Writer


@pytest.fixture
def clog(world: World) -> TransactionLog:
    """The log of an id with one committed transaction, folded."""
    writer = Writer(world, "w")
    writer.write(A0, b"1")
    writer.commit()
    clog = world.coordinator.logs.of("w")
    clog.refresh()
    return clog


def seen(clog: TransactionLog) -> list[Any]:
    (decision,) = clog.decisions()
    return [clog.get("w"), clog.decision(decision.key), decision]


def test_a_reader_finds_all_values_while_the_log_is_folded_again(
    clog: TransactionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found = seen(clog), list[Any]()
    batches = clog.log.batches

    def half(start: int, end: int) -> Iterator[Any]:
        assert start == clog.log.log_start
        reader = threading.Thread(
            target=lambda: found.extend((clog.get("w"), clog.decision(before[2].key)))
        )
        reader.start()
        reader.join()
        yield from batches(start, end)

    monkeypatch.setattr(clog.log, "batches", half)
    monkeypatch.setattr(clog.log, "cleaned_to", clog.log.log_end + 1)  # fold all again
    clog.refresh()
    assert found == before[:2]
    assert seen(clog) == before


def test_a_fold_from_the_start_that_fails_keeps_the_values(
    clog: TransactionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(clog)

    def failing(start: int, end: int) -> Iterator[Any]:
        assert start == clog.log.log_start
        raise StorageError("no descriptor is free")

    with monkeypatch.context() as patch:
        patch.setattr(clog.log, "cleaned_to", clog.log.log_end + 1)
        patch.setattr(clog.log, "batches", failing)
        with pytest.raises(StorageError):
            clog.refresh()
        assert seen(clog) == before
    clog.refresh()
    assert seen(clog) == before
