"""Batch read: one Arrow batch after the other out of `[start, end)` of a partition, on any
executor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from eoslog.errors import ConfigError, OffsetOutOfRange
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


def executor_log(path: str) -> Log:
    """A read-only handle, cached per directory and process.

    Raises:
        ConfigError: The directory can't be read on this host.
    """
    import eoslog

    key = _key_of(path)
    log = _open_logs.get(key)
    if log is None:
        log = _open_logs[key] = eoslog.open(path, create=False, read_only=True)
    return log


def _forget(path: str) -> None:
    log = _open_logs.pop(_key_of(path), None)
    if log is not None:
        log.close()


def _key_of(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(
            f"option 'path' = {path!r}: "
            f"the executor on {os.uname().nodename} can't read it: {error.strerror}"
        ) from None
    return os.getpid(), status.st_dev, status.st_ino


def _log_that_sees(path: str, isolation: str, piece: OffsetRange) -> Log:
    """A handle from which the whole range can be read.

    A read-only handle may have fixed its ends when it was opened: it is replaced once where they
    lie below what the driver saw.
    """
    for attempt in range(2):
        log = executor_log(path)
        ends = log.offsets(piece.topic, piece.partition)
        bound = ends.last_stable if isolation == "read_committed" else ends.high_watermark
        if bound >= piece.end:
            return log
        if attempt == 0:
            _forget(path)
    raise OffsetOutOfRange(
        f"{piece.topic}-{piece.partition}: the driver planned up to {piece.end}, the executor on "
        f"{os.uname().nodename} sees {isolation} records up to {bound} only"
    )


def read_range(
    options: Options, schema: StructType, piece: OffsetRange
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a range as batches of exactly `schema`.

    Raises:
        OffsetOutOfRange: Retention has deleted a part of the range since it was planned (unless
            `failOnDataLoss` is off), or this host doesn't see all of it.
        CorruptRecord: A batch whose checksum is wrong.
    """
    import pyarrow as pa

    from eoslog.model import TopicPartition

    log = _log_that_sees(options.path, options.isolation, piece)
    start = piece.start
    if not options.fail_on_data_loss:
        start = max(start, log.offsets(piece.topic, piece.partition).log_start)
        if start >= piece.end:
            return
    target = arrow_schema(schema)
    names = [SCAN_COLUMNS[name] for name in schema.fieldNames()]
    key = TopicPartition(piece.topic, piece.partition)
    scan = log.scan(
        piece.topic,
        partitions=[piece.partition],
        start={key: start},
        end={key: piece.end},
        isolation=options.isolation,
        # A scan without columns has no row count to hand on.
        columns=names or ["offset"],
        batch_rows=options.batch_rows,
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
        self.options = options
        self.schema = schema
        self.ranges = split(ranges, options.min_partitions, options.max_records_per_partition)

    def partitions(self) -> Sequence[InputPartition]:
        """One task per range."""
        return [OffsetRange(*one) for one in self.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the records of one range."""
        # With nothing to read Spark still runs one task, on a partition of its own making.
        if isinstance(partition, OffsetRange):
            yield from read_range(self.options, self.schema, partition)
