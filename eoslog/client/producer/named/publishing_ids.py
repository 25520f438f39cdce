"""Publishing ids: the last id of a producer name in each partition.

The last ids of a name are committed offsets of the group `__eoslog-ids-<name>` in
`__consumer_offsets`: the offset is the id, and the metadata is the topic's id in hexadecimal. The
producer writes them in the transaction of the records, so a record and its id become visible
together or not at all. Compaction keeps the last value of each key, and no retention applies.

The name is also the transactional id `__name-<name>`. Initializing it fences the earlier producer
of the name and ends its transaction, so the ids that are read afterwards do not change any more.

Source: KIP-98 (fencing by the epoch), KIP-447 (stable reads); RabbitMQ streams for publishing ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import shown
from eoslog.client.prepared import resolve
from eoslog.client.producer.partitioner import partition_for_key
from eoslog.config.keys import ProducerConfig
from eoslog.errors import (
    ConfigError,
    PreparedTransactionPending,
    PublishingIdRegression,
    SerializationError,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    NAMED_TRANSACTIONS,
    PUBLISHING_IDS_GROUP,
    OffsetAndMetadata,
    Outcome,
    TopicPartition,
)

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["PublishingIds", "last_publishing_id"]

LARGEST_ID = 2**63 - 1

_Placed = tuple[bytes, int]
"""A partition by the id of its topic: a re-created topic has no ids."""


def last_publishing_id(engine: Engine, name: str, topic: str, partition: int) -> int | None:
    """See `Log.last_publishing_id`."""
    place = TopicPartition(topic, partition)
    topic_id = _topic_id(engine, place)
    found = engine.groups.fetch_offsets(PUBLISHING_IDS_GROUP + name, [place]).get(place)
    return None if found is None or found.metadata != topic_id.hex() else found.offset


def _topic_id(engine: Engine, place: TopicPartition) -> bytes:
    info = engine.topic(place.topic)
    if place.partition not in info.partitions:
        raise UnknownTopicOrPartition(
            f"no partition {shown(place.partition)} in topic {place.topic!r} with "
            f"{len(info.partitions)} partitions"
        )
    return info.topic_id


class PublishingIds:
    """The last ids of one name, as its only producer knows them.

    The producer's lock guards it.

    Invariants:
        - `_stored`: the committed ids; None if they must be read again.
        - `_pending`: the ids of the open transaction, each with the id of its topic.
        - `written`: whether the transaction has all of `_pending`.
        - `doubtful`: an interrupt came while a record was buffered, so it is not known whether the
          transaction has the record.
    """

    def __init__(self, engine: Engine, config: ProducerConfig) -> None:
        """Start without ids; the first record reads them."""
        assert config.name is not None
        self._engine = engine
        self.name = config.name
        self.group = PUBLISHING_IDS_GROUP + self.name
        self._strict = config.strict_ids
        self._partitioner = config.partitioner_class
        self._by_key = self._partitioner is None and not config.partitioner_ignore_keys
        self._stored: dict[_Placed, int] | None = None
        self._pending: dict[TopicPartition, tuple[int, bytes]] = {}
        self.written = True
        self.doubtful = False

    # The committed ids.

    def forget(self) -> None:
        """Read the committed ids again before the next use."""
        self._stored = None
        self._pending.clear()
        self.written = True
        self.doubtful = False

    def _load(self) -> dict[_Placed, int]:
        self._await_prepared()
        found: dict[_Placed, int] = {}
        for place, stored in self._engine.groups.fetch_offsets(self.group).items():
            try:
                topic_id = self._engine.topic(place.topic).topic_id
            except UnknownTopicOrPartition:
                continue  # it is being deleted, and its offsets with it
            if stored.metadata == topic_id.hex():
                found[topic_id, place.partition] = stored.offset
        return found

    def _await_prepared(self) -> None:
        """Complete a decided transaction of the name that was set aside.

        An inline one was decided before this transaction began. One that was set aside
        (`prepared.inline.max.ms`) lets the name continue, and its ids are not in the group yet.

        Raises:
            PreparedTransactionPending: if it is not decided.
        """
        prepared, name = self._engine.transactions.prepared, NAMED_TRANSACTIONS + self.name
        for token, entry in prepared.index.of_id(name):
            if any(offset.group_id == self.group for offset in entry.offsets):
                raise PreparedTransactionPending(
                    f"producer name {self.name!r}: its prepared transaction {token!r} has "
                    "publishing ids and is not decided; decide it with log.resolve(token, outcome)"
                )
        for token, entry in prepared.index.undelivered():
            if entry.transactional_id == name:
                resolve(self._engine, token, Outcome.COMMIT)

    # Records.

    def place(self, topic: str, key: Any, partition: int | None) -> TopicPartition:
        """Choose the partition of a record as the accumulator does.

        Raises:
            ConfigError: if neither the caller nor the key names one.
            SerializationError: if the topic or the key has a wrong type.
        """
        if not isinstance(topic, str):
            raise SerializationError(f"topic: expected str, got {type(topic).__name__}")
        if partition is not None:
            return TopicPartition(topic, partition)
        if key is None:
            raise ConfigError(
                "publishing_id: the record has no key and no partition, so a repeat may go to "
                "another partition; pass key or partition"
            )
        count = len(self._engine.topic(topic).partitions)
        if not callable(self._partitioner):
            if not self._by_key:
                raise ConfigError(
                    "publishing_id: partitioner.class or partitioner.ignore.keys ignores the key; "
                    "pass partition"
                )
            return TopicPartition(topic, partition_for_key(key, count))
        try:
            data = key.encode() if isinstance(key, str) else bytes(memoryview(key))
        except TypeError:
            raise SerializationError(
                f"key: expected bytes or str, got {type(key).__name__}"
            ) from None
        return TopicPartition(topic, self._partitioner(topic, data, count))

    def admit(self, place: TopicPartition, publishing_id: int) -> bytes | None:
        """Compare an id with the last one in the partition.

        Returns:
            The id of the topic, for `advance`; None if the record is a duplicate.

        Raises:
            PublishingIdRegression: if it is a duplicate, and the producer has `strict_ids=True`.
            ConfigError: if the id is not an int from 0 to 2^63-1.
            TransactionAbortable: if the topic was re-created during the transaction.
            UnknownTopicOrPartition: if the partition does not exist.
        """
        if type(publishing_id) is not int or not 0 <= publishing_id <= LARGEST_ID:
            raise ConfigError(
                f"publishing_id: expected an int from 0 to 2^63-1, got {shown(publishing_id)}"
            )
        topic_id = _topic_id(self._engine, place)
        last = self._last(place, topic_id)
        if last is None or publishing_id > last:
            return topic_id
        if self._strict:
            raise PublishingIdRegression(
                f"{place}: publishing id {publishing_id} of producer name {self.name!r} is not "
                f"above the last one, {last}; continue with a higher id"
            )
        return None

    def _last(self, place: TopicPartition, topic_id: bytes) -> int | None:
        """The last id in a partition, with that of the open transaction."""
        if self._stored is None:
            self._stored = self._load()
        pending = self._pending.get(place)
        if pending is None:
            return self._stored.get((topic_id, place.partition))
        if pending[1] != topic_id:
            raise TransactionAbortable(
                f"topic {place.topic!r} was deleted and re-created during the transaction; abort it"
            )
        return pending[0]

    def is_pending(self, place: TopicPartition) -> bool:
        """Whether the last id in the partition is of the open transaction."""
        return place in self._pending

    def advance(self, place: TopicPartition, publishing_id: int, topic_id: bytes) -> None:
        """Note the id of a record that was buffered."""
        self._pending[place] = (publishing_id, topic_id)
        self.written = False

    # The transaction.

    def write(self, write: Callable[[dict[TopicPartition, OffsetAndMetadata]], object]) -> None:
        """Give the pending ids to the transaction, unless it has them already."""
        if not self.written:
            write(
                {
                    place: OffsetAndMetadata(last, metadata=topic_id.hex(), topic_id=topic_id)
                    for place, (last, topic_id) in self._pending.items()
                }
            )
            self.written = True

    def committed(self) -> None:
        """Take the pending ids as the committed ones."""
        if self._stored is not None:
            for place, (last, topic_id) in self._pending.items():
                self._stored[topic_id, place.partition] = last
        self._pending.clear()

    def begin(self) -> None:
        """Begin a transaction.

        The ids are read again if the end of the last transaction is not known.
        """
        if self._pending or self.doubtful:
            self.forget()
