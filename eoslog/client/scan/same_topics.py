"""Reads that start again if a topic is re-created while they run.

Otherwise they would mix offsets, partitions or records of the old and the new topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from eoslog.errors import EoslogError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["of_same_topics"]

T = TypeVar("T")

_MOST_READS = 16


def of_same_topics(engine: Engine, names: Collection[str] | None, read: Callable[[], T]) -> T:
    """Return the result of a call during which no topic was re-created.

    Args:
        engine: the engine.
        names: the names of the topics, each of which must exist before and after the call; None
            means all topics, some of which may be created or deleted.
        read: the function to call, and to call again if a topic was re-created.

    Raises:
        UnknownTopicOrPartition: if a topic does not exist, or was re-created in each of 16 calls.
        EoslogError: as `read`.
    """

    def ids() -> dict[str, bytes]:
        if names is not None:
            return {name: engine.topic(name).topic_id for name in names}
        engine.metadata.refresh()
        return {name: info.topic_id for name, info in engine.metadata.topics.items()}

    for _ in range(_MOST_READS):
        before = ids()
        try:
            found = read()
        except (EoslogError, LookupError):  # the new topic may lack what was read
            if not (remade := _remade(before, ids())):
                raise
        else:
            if not (remade := _remade(before, ids())):
                return found
    raise UnknownTopicOrPartition(
        f"topic {remade[0]!r} was deleted and re-created in each of {_MOST_READS} attempts to read "
        "it; stop the program that keeps re-creating it, then call again"
    )


def _remade(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return [name for name, one in before.items() if after.get(name, one) != one]
