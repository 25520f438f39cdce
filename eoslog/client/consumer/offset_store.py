"""A store outside of the log for a consumer's offsets, such as a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from eoslog._util.arguments import shown
from eoslog.config.keys import ConsumerConfig
from eoslog.errors import ConfigError
from eoslog.model import TopicPartition

__all__ = ["OffsetChange", "OffsetStore", "check_offset_store"]


class OffsetStore(Protocol):
    """A store of offsets; `eoslog.sql.Database` is one."""

    def committed_offsets(
        self, group_id: str, partitions: Mapping[TopicPartition, bytes]
    ) -> Mapping[TopicPartition, int]:
        """The offsets of a group; each partition comes with the id of its topic."""


class OffsetChange(NamedTuple):
    """A compare-and-set of one offset; `expected` is None if it is new."""

    partition: TopicPartition
    topic_id: bytes
    expected: int | None
    offset: int
    leader_epoch: int
    generation: int


def check_offset_store(store: Any, config: ConsumerConfig, producer: Any) -> None:
    """Check that a consumer with this configuration can use an offset store.

    Raises:
        ConfigError: if it cannot.
    """
    if not callable(getattr(store, "committed_offsets", None)):
        raise ConfigError(f"offset_store: expected an eoslog.sql.Database, got {shown(store)}")
    if producer is not None:
        raise ConfigError(
            "offset_store: the offsets are committed in the database or in the transactions of a "
            "producer, but both were given; pass only one of them"
        )
    if config.group_id is None:
        raise ConfigError(
            "offset_store: the offsets are stored under the name of the group, but there is no "
            "group.id; configure one"
        )
    if config.enable_auto_commit and "enable.auto.commit" in config.given:
        raise ConfigError(
            "enable.auto.commit=True: the offsets are stored in the transactions of the database; "
            "remove the key"
        )
    if config.processing_guarantee == "at_most_once":
        raise ConfigError(
            "processing.guarantee=at_most_once: the offsets are stored together with the effects "
            "in the database; use exactly_once"
        )
    if config.isolation_level != "read_committed":
        raise ConfigError(
            "offset_store: expected isolation.level=read_committed, got "
            f"{config.isolation_level}; records that the database has applied may still be aborted"
        )
