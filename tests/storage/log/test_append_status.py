"""The statuses that storage names are those of the core."""

from __future__ import annotations

from eoslog import _core
from eoslog.storage.log.append_status import AppendStatus


def test_every_status_of_the_core_has_its_name_and_number() -> None:
    assert {status.name: status.value for status in AppendStatus} == _core.STATUS
