"""Batch read: one Arrow batch after the other out of `[start, end)` of a partition, on any
executor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from eoslog.errors import ConfigError
from pyspark_eoslog.planning import Range, split
from pyspark_eoslog.schema import SCAN_COLUMNS, arrow_schema, check_source_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eoslog.log import Log
    from pyspark_eoslog.options import Options


class OffsetRange(InputPartition):
    """What one task reads. Plain values only: it is pickled to an executor that has its own
    eoslog.
    """

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"OffsetRange({self.topic}-{self.partition}, [{self.start}, {self.end}))"


# Worker processes serve many tasks; opening a directory anew for each would cost more than a small
# task.
_open_logs: dict[tuple[int, int, int], Log] = {}


def executor_log(path: str, topic: str, partition: int, end: int) -> Log:
    """A read-only handle that can see `[.., end)` of a partition, cached per directory and process.

    A read-only handle may have fixed its ends when it was opened; it is replaced where the log has
    grown since.

    Raises:
        ConfigError: The directory can't be read on this host.
    """
    import eoslog

    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(
            f"option 'path' = {path!r}: "
            f"the executor on {os.uname().nodename} can't read it: {error.strerror}"
        ) from None
    key = (os.getpid(), status.st_dev, status.st_ino)
    log = _open_logs.get(key)
    if log is not None and log.offsets(topic, partition).high_watermark < end:
        del _open_logs[key]
        log.close()
        log = None
    if log is None:
        log = _open_logs[key] = eoslog.open(path, create=False, read_only=True)
    return log


def read_range(
    path: str, isolation: str, schema: StructType, batch_rows: int, piece: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a range as batches of exactly `schema`.

    Raises:
        OffsetOutOfRange: Retention has deleted a part of the range since it was planned.
        CorruptRecord: A batch whose checksum is wrong.
    """
    import pyarrow as pa

    from eoslog.model import TopicPartition

    target = arrow_schema(schema)
    names = [SCAN_COLUMNS[name] for name in schema.fieldNames()]
    key = TopicPartition(piece.topic, piece.partition)
    log = executor_log(path, piece.topic, piece.partition, piece.end)
    scan = log.scan(
        piece.topic,
        partitions=[piece.partition],
        start={key: piece.start},
        end={key: piece.end},
        isolation=isolation,
        # A scan without columns has no row count to hand on.
        columns=names or ["offset"],
        batch_rows=batch_rows,
        binary="copy",
    )
    for batch in scan:
        if batch.num_rows:
            arrays = [
                _as(batch.column(name), field.type)
                for name, field in zip(names, target, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _as(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array in the type Spark insists on: dictionaries decoded, milliseconds as microseconds,
    bytes as text.
    """
    if array.type.equals(wanted):
        return array
    return array.cast(wanted)


class EoslogReader(DataSourceReader):
    """Reads pinned offset ranges; no state but plain values, as Spark pickles it to every task.

    `pushFilters` is not defined on purpose: in Spark 4 a pushed filter stays on the shared
    relation and silently drops rows of other scans of the same DataFrame. Ranges are options.
    """

    def __init__(self, options: Options, schema: StructType, ranges: Sequence[Range]) -> None:
        """Splits the ranges into tasks.

        Args:
            options: Parsed options.
            schema: What Spark wants: the source's own schema, or the user's.
            ranges: One per log partition, as pinned at load.

        Raises:
            ConfigError: A user schema with a column or type that there is not.
        """
        check_source_schema(schema)
        self.path = options.path
        self.isolation = options.isolation
        self.batch_rows = options.batch_rows
        self.schema = schema
        self.ranges = split(ranges, options.min_partitions, options.max_records_per_partition)

    def partitions(self) -> Sequence[InputPartition]:
        """One task per range."""
        return [OffsetRange(*one) for one in self.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the records of one range."""
        # With nothing to read Spark still runs one task, on a partition of its own making.
        if isinstance(partition, OffsetRange):
            yield from read_range(
                self.path, self.isolation, self.schema, self.batch_rows, partition
            )
