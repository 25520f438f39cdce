"""Tools for tests of programs that use a log.

`eoslog.testing.plugin` is the plugin for pytest.

Names are imported at their first use, because pytest loads this package in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eoslog.storage.fs.files import failpoint
    from eoslog.testing.assertions import assert_records
    from eoslog.testing.clock import Clock
    from eoslog.testing.killing import kill
    from eoslog.testing.temporary import TemporaryLogs

__all__ = ["Clock", "TemporaryLogs", "assert_records", "failpoint", "kill"]

_WHERE = {
    "Clock": "testing.clock",
    "TemporaryLogs": "testing.temporary",
    "assert_records": "testing.assertions",
    "failpoint": "storage.fs.files",
    "kill": "testing.killing",
}


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'eoslog.testing' has no attribute {name!r}")
    value = getattr(import_module(f"eoslog.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
