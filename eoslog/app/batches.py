"""Records of a batch, as a task gets them: a list, or a pyarrow RecordBatch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eoslog._util.extras import package
from eoslog.model import TopicPartition
from eoslog.serializers import undecodable

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.app.tasks import Task

__all__ = ["Batches", "argument_of"]


class Batches:
    """Records that wait for the call of their task; each batch is of one partition."""

    def __init__(self) -> None:
        """Begin without records."""
        self._waiting: dict[tuple[str, int], list[Record]] = {}

    def add(self, task: Task, record: Record) -> list[Record] | None:
        """Add a record; return the batch if it is full."""
        assert task.batch is not None
        key = record.topic, record.partition
        records = self._waiting.setdefault(key, [])
        records.append(record)
        return self._waiting.pop(key) if len(records) >= task.batch else None

    def take(self) -> list[Record] | None:
        """Remove and return a batch that is not full; None if there is none."""
        return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None

    def forget(self, partitions: Iterable[TopicPartition]) -> int:
        """Drop the records of partitions that another worker reads; return how many."""
        return sum(len(self._waiting.pop((at.topic, at.partition), ())) for at in partitions)

    def clear(self) -> list[Record]:
        """Drop all records, which are read again, and return them."""
        records = [record for batch in self._waiting.values() for record in batch]
        self._waiting.clear()
        return records


def argument_of(task: Task, records: list[Record]) -> Any:
    """Return what the function of a task of batches is called with.

    Raises:
        SerializationError: if a key or a value is not in the format of the task.
        ConfigError: if pyarrow is needed and not installed.
    """
    decoded = [task.decoded(record) for record in records]
    return decoded if task.batch_format == "records" else _arrow(task, decoded)


def _arrow(task: Task, records: list[Record]) -> Any:
    """Return a record batch with topic, partition, offset, timestamp, key and value."""
    package("pyarrow", "batch_format='arrow'", "arrow")
    import pyarrow as pa

    first = records[0]
    columns: dict[str, Any] = {
        "topic": pa.array([first.topic] * len(records)),
        "partition": pa.array([first.partition] * len(records), pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": pa.array([r.timestamp for r in records], pa.timestamp("ms", "UTC")),
    }
    for name in ("key", "value"):
        values = [getattr(record, name) for record in records]
        raw = getattr(task, name).decode is None
        try:
            columns[name] = pa.array(values, pa.binary() if raw else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            place = TopicPartition(first.topic, first.partition)
            advice = "use batch_format='records', or values of one type"
            raise undecodable(place, first.offset, error, advice) from error
    return pa.RecordBatch.from_pydict(columns)
