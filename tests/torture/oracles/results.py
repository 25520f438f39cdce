"""How the oracles compare a result with the right one."""

from __future__ import annotations

from typing import Any

Known = dict[str, Any]
"""What the undamaged directory returns, by what is asked."""


class Wrong(AssertionError):
    """A read, a deletion or a decision had another result than the right one."""


def same(found: Any, wanted: Any, what: str) -> None:
    """Raise where a result is another one."""
    if found != wanted:
        raise Wrong(f"{what}: {str(found)[:200]} instead of {str(wanted)[:200]}")
