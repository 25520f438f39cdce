"""Offsets of consumers in a database, changed by compare-and-set.

A consumer knows the offset that the database has for each of its partitions. It changes the offset
only from that value, so a consumer that lost its partition cannot commit: the offset has moved, or
the new owner's own change finds the moved offset, rolls back and reads again.

The key has the topic's id, so an offset of a deleted topic is never used for its successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from eoslog.client.consumer.offset_store import OffsetChange
from eoslog.errors import CommitFailed
from eoslog.model import TopicPartition
from eoslog.sql.schema import Tables
from eoslog.sql.session import DatabaseSession

__all__ = ["AppliedOffset", "all_offsets", "read_offsets", "store_offsets"]


class AppliedOffset(NamedTuple):
    """The offset of a consumer group in a partition."""

    consumer: str
    topic: str
    topic_id: str
    partition: int
    next_offset: int


def all_offsets(session: DatabaseSession, tables: Tables) -> list[AppliedOffset]:
    """Return all offsets, by group and partition."""
    sql = (
        f"SELECT consumer, topic, topic_id, partition, next_offset FROM {tables.offsets} "
        "ORDER BY consumer, topic, partition"
    )
    try:
        with tables.reading(session):
            tables.check(session, tables.offsets)
            return [AppliedOffset(*row) for row in session.execute(sql).rows]
    finally:
        session.rollback()


def read_offsets(
    session: DatabaseSession,
    tables: Tables,
    consumer: str,
    partitions: Mapping[TopicPartition, bytes],
) -> dict[TopicPartition, int]:
    """Return the offsets of a consumer group, without partitions that have none.

    Raises:
        DatabaseError: if the table is damaged.
    """
    found: dict[TopicPartition, int] = {}
    try:
        with tables.reading(session):
            for partition, topic_id in partitions.items():
                offset = _offset(session, tables, consumer, partition, topic_id)
                if offset is not None:
                    found[partition] = offset
    finally:
        session.rollback()
    return found


def _offset(
    session: DatabaseSession,
    tables: Tables,
    consumer: str,
    partition: TopicPartition,
    topic_id: bytes,
) -> int | None:
    found = tables.find(
        session,
        tables.offsets,
        "next_offset",
        "consumer = ? AND topic_id = ? AND partition = ?",
        (consumer, topic_id.hex(), partition.partition),
    )
    return None if found is None else int(found)


def store_offsets(
    session: DatabaseSession, tables: Tables, consumer: str, changes: Iterable[OffsetChange]
) -> None:
    """Change the offsets of a consumer group in the open transaction.

    Raises:
        CommitFailed: if the database has another offset than the consumer expects.
        DatabaseError: if the table is damaged.
    """
    for change in sorted(changes, key=lambda change: change.partition):  # in order: no deadlock
        with tables.reading(session):
            if _store(session, tables, consumer, change):
                continue
            has = _offset(session, tables, consumer, change.partition, change.topic_id)
        raise CommitFailed(
            f"group {consumer!r}: offsets were not stored: {change.partition} has offset {has} "
            f"in the database, expected {change.expected}; another consumer owns the "
            "partition, or a transaction was rolled back without consumer.rewind(); roll back, "
            "call consumer.rewind(), then poll again"
        )


def _store(session: DatabaseSession, tables: Tables, consumer: str, change: OffsetChange) -> bool:
    key = (consumer, change.topic_id.hex(), change.partition.partition)
    new = (change.partition.topic, change.offset, change.leader_epoch, change.generation)
    if change.expected is None:
        sql = (
            f"INSERT INTO {tables.offsets} (topic, next_offset, leader_epoch, generation, "
            "consumer, topic_id, partition) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        )
        inserted = session.execute(sql, (*new, *key)).changed == 1
        if inserted:
            names = ("consumer", "topic_id", "partition")
            tables.check_inserted(session, tables.offsets, **dict(zip(names, key, strict=True)))
        return inserted
    sql = (
        f"UPDATE {tables.offsets} SET topic = ?, next_offset = ?, leader_epoch = ?, "
        "generation = ?, updated = CURRENT_TIMESTAMP "
        "WHERE consumer = ? AND topic_id = ? AND partition = ? AND next_offset = ?"
    )
    return session.execute(sql, (*new, *key, change.expected)).changed == 1
