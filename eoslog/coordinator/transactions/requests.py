"""Named tuples of transactional requests and responses.

    Kafka's request           method of `TransactionCoordinator`
    FindCoordinator (10)      find_coordinator
    InitProducerId (22)       init_producer_id
    AddPartitionsToTxn (24)   add_partitions_to_txn; verify_partition_in_txn only verifies
    AddOffsetsToTxn (25)      add_offsets_to_txn
    EndTxn (26)               end_txn
    WriteTxnMarkers (27)      write_txn_markers
    DescribeTransactions (65) describe_transactions
    ListTransactions (66)     list_transactions

`abort_transaction` is eoslog's own; Kafka's tools abort with WriteTxnMarkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eoslog.descriptions import TransactionOutcome
from eoslog.model import TopicPartition


class InitResult(NamedTuple):
    """A producer's identity, and the outcome of the id's previous transaction."""

    producer_id: int
    producer_epoch: int
    outcome: TransactionOutcome | None = None


class CoordinatorPlace(NamedTuple):
    """The coordinator of a key: always this directory, with the partition of the key."""

    node_id: int
    topic: str
    partition: int


class TransactionMarker(NamedTuple):
    """One entry of WriteTxnMarkers."""

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Sequence[TopicPartition]
