"""eoslog: an embedded, exactly-once log in Kafka's format, shared by processes.

Names are imported at their first use, so that a worker or the command line starts fast.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eoslog.version import __version__

if TYPE_CHECKING:
    from eoslog import errors, sql, tpc
    from eoslog._core import Record
    from eoslog.admin.inspect import inspect
    from eoslog.admin.offline import check, repair
    from eoslog.aio.consumer import AsyncConsumer
    from eoslog.aio.producer import AsyncProducer
    from eoslog.aio.transaction import AsyncTransaction
    from eoslog.app.app import App
    from eoslog.app.context import Context
    from eoslog.app.tables.table import AppTable
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.client.half_producer import HalfProducer
    from eoslog.client.producer.named.producer import NamedProducer
    from eoslog.client.producer.producer import Delivery, Producer
    from eoslog.client.producer.transactions.transaction import Transaction
    from eoslog.client.recipes import dedupe
    from eoslog.client.scan.scan import Scan
    from eoslog.client.scan.segment_scan import SegmentRange, read_segments, segment_range
    from eoslog.client.table import Table
    from eoslog.client.transaction_listener import TransactionListener, TransactionSendResult
    from eoslog.descriptions import (
        Blocker,
        GroupDescription,
        GroupMetadata,
        MemberDescription,
        PartitionDescription,
        PreparedTransaction,
        ProcessDescription,
        ProducerDescription,
        TopicDescription,
        TransactionDescription,
        TransactionOutcome,
    )
    from eoslog.errors import EoslogError, ErrorCode, KafkaError, StorageError
    from eoslog.kafka.adopt_directory import import_kafka_dir
    from eoslog.log import Log
    from eoslog.model import (
        AppendLock,
        IsolationLevel,
        OffsetAndMetadata,
        Offsets,
        Outcome,
        RecordMetadata,
        TimestampType,
        TopicPartition,
    )
    from eoslog.opening import open  # noqa: A004
    from eoslog.reports import (
        BackupReport,
        CheckReport,
        Damage,
        ImportReport,
        Problem,
        RepairReport,
        RunReport,
        TornTransaction,
    )

_WHERE = {
    "_core": "Record",
    "aio.consumer": "AsyncConsumer",
    "aio.producer": "AsyncProducer",
    "aio.transaction": "AsyncTransaction",
    "client.consumer.consumer": "Consumer",
    "kafka.adopt_directory": "import_kafka_dir",
    "admin.inspect": "inspect",
    "admin.offline": "check repair",
    "app.app": "App",
    "app.context": "Context",
    "app.tables.table": "AppTable",
    "client.half_producer": "HalfProducer",
    "client.transaction_listener": "TransactionListener TransactionSendResult",
    "client.producer.named.producer": "NamedProducer",
    "client.producer.producer": "Delivery Producer",
    "client.scan.scan": "Scan",
    "client.scan.segment_scan": "SegmentRange read_segments segment_range",
    "client.table": "Table",
    "client.producer.transactions.transaction": "Transaction",
    "errors": "EoslogError ErrorCode KafkaError StorageError",
    "client.recipes": "dedupe",
    "opening": "open",
    "log": "Log",
    "model": "AppendLock IsolationLevel OffsetAndMetadata Offsets Outcome RecordMetadata "
    "TimestampType TopicPartition",
    "descriptions": "Blocker GroupDescription GroupMetadata MemberDescription PartitionDescription "
    "PreparedTransaction ProcessDescription ProducerDescription TopicDescription "
    "TransactionDescription TransactionOutcome",
    "reports": "BackupReport CheckReport Damage ImportReport Problem RepairReport RunReport "
    "TornTransaction",
}
_DEPRECATED = {
    "GroupCoordinator": "coordinator.groups.coordinator",
    "TransactionCoordinator": "coordinator.transactions.coordinator",
}
"""Names that the next version removes; no public call takes or returns them."""
_MODULES = ("errors", "sql", "tpc")
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [  # noqa: RUF022
    "__version__", "errors",
    "App", "AppTable", "AppendLock", "AsyncConsumer", "AsyncProducer", "AsyncTransaction",
    "BackupReport", "Blocker", "CheckReport", "Consumer", "Context", "Damage", "Delivery",
    "EoslogError", "ErrorCode", "GroupDescription", "GroupMetadata", "HalfProducer",
    "ImportReport", "IsolationLevel", "KafkaError", "Log", "MemberDescription",
    "NamedProducer", "OffsetAndMetadata", "Offsets", "Outcome", "PartitionDescription",
    "PreparedTransaction", "Problem", "ProcessDescription",
    "Producer", "ProducerDescription", "Record", "RecordMetadata", "RepairReport", "RunReport",
    "Scan",
    "SegmentRange", "StorageError", "Table", "TimestampType", "TopicDescription", "TopicPartition",
    "TornTransaction", "Transaction", "TransactionDescription", "TransactionListener",
    "TransactionOutcome", "TransactionSendResult", "check", "dedupe",
    "import_kafka_dir", "inspect", "open", "read_segments", "repair", "segment_range", "sql",
    "tpc",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None and name in _DEPRECATED:
        warnings.warn(
            f"eoslog.{name} is internal and will be removed; use the methods of eoslog.Log",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(f"eoslog.{_DEPRECATED[name]}"), name)
    if name in _MODULES:
        return import_module(f"eoslog.{name}")
    if module is None:
        raise AttributeError(f"module 'eoslog' has no attribute {name!r}")
    value = getattr(import_module(f"eoslog.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_MODULES})
