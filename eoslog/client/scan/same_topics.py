"""Reads that repeat if a topic is re-created while they run.

Such a read would mix offsets, partitions or records of the old and the new topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from eoslog.errors import EoslogError

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["of_same_topics"]

T = TypeVar("T")


def of_same_topics(engine: Engine, names: Collection[str], read: Callable[[], T]) -> T:
    """Return what a function reads, all of it from the topics that exist now.

    Args:
        engine: the engine.
        names: the names of the topics.
        read: reads the topics. It is called again if one was re-created during the call.

    Raises:
        UnknownTopicOrPartition: if a topic does not exist, before or after the read.
        EoslogError: as `read`.
    """

    def ids() -> list[bytes]:
        return [engine.topic(name).topic_id for name in names]

    while True:
        before = ids()
        try:
            found = read()
        except (EoslogError, LookupError):  # the new topic may lack an offset or a partition
            if ids() == before:
                raise
            continue
        if ids() == before:
            return found
