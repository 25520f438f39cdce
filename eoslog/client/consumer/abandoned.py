"""Consumers that were dropped without `close`; their members still leave.

A finalizer may run in any thread, between any two steps, while that thread holds any lock. So the
finalizer takes no lock and only records that the member must leave. The background thread of the
open directory removes the member within about a second. Closing the directory does so too.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["MemberPlace", "watch"]


@dataclass(slots=True)
class MemberPlace:
    """The group of a consumer, and the id of its member or ""."""

    group_id: str
    member_id: str = ""


def watch(
    consumer: Any, engine: Engine, use: Any, place: MemberPlace, *, owns_engine: bool
) -> weakref.finalize[..., Any]:
    """Make the member leave when the consumer is garbage collected.

    Call `detach` on the result when the consumer is closed. The finalizer has no reference to the
    consumer. At exit it does nothing, because the group removes members of dead processes.
    """
    guard = weakref.finalize(consumer, _collected, engine, use, place, owns_engine)
    guard.atexit = False
    return guard


def _collected(engine: Engine, use: Any, place: MemberPlace, owns_engine: bool) -> None:
    if use.closed or use.forked:
        return
    with contextlib.suppress(Exception):  # a filter may turn the warning into an error
        engine.dropped.note(place.group_id, place.member_id, owns_engine)
        if not place.member_id:
            return
        warnings.warn(
            f"group {place.group_id!r}: a consumer was dropped without close(), so its member "
            f"{place.member_id} leaves the group; use `with` or call close()",
            ResourceWarning,
            stacklevel=2,
        )
