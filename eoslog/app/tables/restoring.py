"""Reading a table's topic into a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from eoslog.app.tables.partition import Changes, Store
from eoslog.errors import TransactionAbortable
from eoslog.model import TopicPartition
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.log import Log

__all__ = ["restore"]

logger = get_logger("eoslog.app")

_RECORDS = 65_536
_WAIT_S = 0.2
_WARN_EVERY_S = 10.0


def restore(
    log: Log, app_id: str, partition: TopicPartition, store: Store, stopping: Callable[[], bool]
) -> bool:
    """Apply what the table's topic has committed, from `store.applied` to its end.

    Call it when the input position is known: no transaction that could change the position is
    undecided then. So all changes before the position are below the end of the topic now. Each
    undecided transaction below the end must end first, because committed changes may follow it.

    Args:
        log: the log.
        app_id: the id of the application, for messages.
        partition: the partition of the table's topic.
        store: the store.
        stopping: whether to give up.

    Returns:
        False if it gave up; the store may have a part.

    Raises:
        TransactionAbortable: if another worker has taken over the store.
        EoslogError: if the topic cannot be read.
    """
    offsets = log.offsets(partition.topic, partition.partition)
    end, began = offsets.log_end, time.monotonic()

    def at(store: Store) -> int:
        return max(store.applied, offsets.log_start)

    if (start := at(store)) >= end:
        return True
    records, warned, wait_s = 0, began, 0.0
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(partition.topic, partition.partition, start)])
        while (position := consumer.position(partition)) is None or position < end:
            found = consumer.consume(_RECORDS, wait_s)
            wait_s = 0.0 if found else _WAIT_S  # the end may follow: a marker is not returned
            if found:
                # The last value of a key wins.
                changes: Changes = {record.key: record.value for record in found}
                last = found[-1]
                if not store.apply(changes, last.offset + 1, last.key):
                    raise TransactionAbortable(
                        f"table {partition}: another worker has taken over the rows; they are read "
                        "again"
                    )
                records += len(found)
            elif stopping():
                return False
            elif time.monotonic() - warned > _WARN_EVERY_S:
                warned = time.monotonic()
                logger.warning(
                    "app %s: table %s: blocked at offset %s by an undecided transaction, waiting",
                    app_id, partition, position,
                )  # fmt: skip
    logger.info(
        "app %s: table %s: restored %d records in %.2f s",
        app_id, partition, records, time.monotonic() - began,
    )  # fmt: skip
    return True
