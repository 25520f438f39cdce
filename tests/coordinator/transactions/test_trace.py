"""`log.trace` reports every request, and a listener does no harm."""

from __future__ import annotations

import pytest

from eoslog import errors
from tests.coordinator.world import A0, World, Writer


def test_the_trace_names_every_request(world: World) -> None:
    events: list[dict[str, object]] = []
    stop = world.coordinator.trace(events.append)
    world.coordinator.find_coordinator("t")
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    world.coordinator.add_offsets_to_txn(*writer.identity, "g")
    writer.commit()
    with pytest.raises(errors.InvalidTxnState):
        writer.commit()
    names = [
        "FindCoordinator",
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "WriteTxnMarkers",
        "WriteTxnMarkers",
        "EndTxn",
        "EndTxn",
    ]
    assert [e["request"] for e in events] == names
    assert events[1]["producer_epoch"] == 0
    assert events[6]["error"] is None
    assert isinstance(events[7]["error"], errors.InvalidTxnState)
    stop()
    world.coordinator.find_coordinator("t")
    assert len(events) == len(names)


def test_a_trace_listener_that_fails_is_logged_and_the_request_continues(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: dict[str, object]) -> None:
        raise ZeroDivisionError

    events: list[dict[str, object]] = []
    world.coordinator.trace(broken)
    world.coordinator.trace(events.append)
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.commit()
    assert events[-1]["request"] == "EndTxn"
    assert "EndTxn: a listener of log.trace failed" in caplog.text
