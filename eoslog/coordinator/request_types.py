"""What transactional requests are made of, where a tuple says more than its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eoslog.model import TopicPartition, TransactionOutcome


class InitResult(NamedTuple):
    """A producer's identity; `outcome`: what became of the id's last transaction before it."""

    producer_id: int
    producer_epoch: int
    outcome: TransactionOutcome | None = None


class Coordinator(NamedTuple):
    """Where a key's coordinator is: always this directory, and the partition that holds the key."""

    node_id: int
    topic: str
    partition: int


class TransactionMarker(NamedTuple):
    """One entry of WriteTxnMarkers."""

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Sequence[TopicPartition]
