"""The reasons that a process gives for the removal of its own group members."""

from __future__ import annotations

import time

import pytest

from eoslog.coordinator.groups.local_members import LocalMembers
from eoslog.errors import UnknownMember


@pytest.mark.parametrize(
    ("before_s", "named"), [(5.5, True), (7.0, True), (1.0, False)], ids=["polled", "late", "early"]
)
def test_a_removal_after_the_last_heartbeat_names_the_session_timeout(
    before_s: float, named: bool
) -> None:
    members = LocalMembers()
    members.add("g", "m", rebalance_timeout_ms=300_000, session_timeout_ms=6_000)
    members.note_silence("g", "m", last_poll=time.monotonic() - before_s)
    error = members.explained(UnknownMember("unknown"), "g", "m")
    assert ("session.timeout.ms is 6000" in str(error)) == named
