"""What the moves to Kafka and back ask of a `Log`: public calls only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from eoslog.client.consumer.consumer import Consumer
from eoslog.client.producer.producer import Producer
from eoslog.descriptions import GroupDescription, TopicDescription
from eoslog.model import OffsetAndMetadata, Offsets, TopicPartition

if TYPE_CHECKING:
    from eoslog.options import LogConsumerOptions, ProducerOptions, TopicOptions

__all__ = ["MovedLog"]


class MovedLog(Protocol):
    """An open directory, as one side of a move; `Log` describes each call."""

    @property
    def cluster_id(self) -> str:
        """The id of the log."""

    def topics(self) -> list[str]:
        """Names of the user topics."""

    def topic_id(self, name: str) -> bytes:
        """What tells a topic from another one of its name."""

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with its partitions' offsets."""

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Every partition of a topic."""

    def create_topic(
        self, name: str, partitions: int = 1, config: TopicOptions | None = None
    ) -> TopicDescription:
        """Create a topic."""

    def create_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""

    def offsets(self, topic: str, partition: int) -> Offsets:
        """The published ends of a partition now."""

    def groups(self) -> list[str]:
        """Ids of all groups."""

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members and its committed offsets."""

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group."""

    def reset_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | str | OffsetAndMetadata],
        *,
        forward_only: bool = False,
    ) -> None:
        """Set the committed offsets of a group without members."""

    def position(self, name: str) -> int | str | bytes | None:
        """The committed named position; None if there is none."""

    def producer(
        self, config: Mapping[str, Any] | None = None, **options: Unpack[ProducerOptions]
    ) -> Producer:
        """A producer on this directory."""

    def consumer(
        self, *topics: str, group_id: str | None = None, **options: Unpack[LogConsumerOptions]
    ) -> Consumer:
        """A consumer on this directory."""
