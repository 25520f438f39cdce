"""eoslog: an exactly-once, Kafka-format log that many processes on a machine share.

Names are imported at their first use: starting a worker or the command line costs what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eoslog import errors
from eoslog.version import __version__

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.client.consumer import Consumer
    from eoslog.client.import_kafka import import_kafka_dir
    from eoslog.client.inspect import inspect
    from eoslog.client.offline import check, repair
    from eoslog.client.producer import Delivery, Producer
    from eoslog.client.recipes import dedupe
    from eoslog.client.scan import Scan, SegmentRange, read_segments, segment_range
    from eoslog.client.transaction_scope import Transaction
    from eoslog.coordinator.group_coordinator import GroupCoordinator
    from eoslog.coordinator.transaction_coordinator import TransactionCoordinator
    from eoslog.errors import EoslogError, ErrorCode, KafkaError, StorageError
    from eoslog.log import Log, open  # noqa: A004
    from eoslog.model import (
        AppendLock,
        BackupReport,
        CheckReport,
        GroupDescription,
        GroupMetadata,
        ImportReport,
        IsolationLevel,
        MemberDescription,
        OffsetAndMetadata,
        Offsets,
        PartitionDescription,
        ProducerDescription,
        RecordMetadata,
        RepairReport,
        TimestampType,
        TopicDescription,
        TopicPartition,
        TransactionDescription,
        TransactionOutcome,
    )

_WHERE = {
    "_core": "Record",
    "client.consumer": "Consumer",
    "client.import_kafka": "import_kafka_dir",
    "client.inspect": "inspect",
    "client.offline": "check repair",
    "client.producer": "Delivery Producer",
    "client.scan": "Scan SegmentRange read_segments segment_range",
    "client.transaction_scope": "Transaction",
    "coordinator.group_coordinator": "GroupCoordinator",
    "coordinator.transaction_coordinator": "TransactionCoordinator",
    "errors": "EoslogError ErrorCode KafkaError StorageError",
    "client.recipes": "dedupe",
    "log": "Log open",
    "model": "AppendLock BackupReport CheckReport GroupDescription GroupMetadata ImportReport "
    "IsolationLevel MemberDescription OffsetAndMetadata Offsets PartitionDescription "
    "ProducerDescription "
    "RecordMetadata RepairReport TimestampType TopicDescription TopicPartition "
    "TransactionDescription TransactionOutcome",
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [  # noqa: RUF022
    "__version__", "errors", "AppendLock", "BackupReport", "CheckReport", "Consumer", "Delivery",
    "EoslogError",
    "ErrorCode", "GroupCoordinator", "GroupDescription", "GroupMetadata", "ImportReport",
    "IsolationLevel", "KafkaError",
    "Log", "MemberDescription", "OffsetAndMetadata", "Offsets", "PartitionDescription",
    "Producer", "ProducerDescription", "Record", "RecordMetadata", "RepairReport", "Scan",
    "SegmentRange", "StorageError", "TimestampType", "TopicDescription", "TopicPartition",
    "Transaction", "TransactionCoordinator", "TransactionDescription", "TransactionOutcome",
    "check", "dedupe",
    "import_kafka_dir", "inspect", "open", "read_segments", "repair", "segment_range",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'eoslog' has no attribute {name!r}")
    value = getattr(import_module(f"eoslog.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
