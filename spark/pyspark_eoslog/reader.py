"""Batch read: Arrow batches out of the byte ranges that a task was given, on any executor.

A task opens segment files and nothing else: no lock, no shared mapping, no directory state. So a
long job keeps nobody from anything, and a host that sees the files can read them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.storage import checkpoints
from pyspark_eoslog.schema import SCAN_COLUMNS, arrow_schema, check_source_schema
from pyspark_eoslog.segments import (
    RELISTINGS,
    Span,
    is_of_topic,
    log_path,
    open_partition,
    windows,
)
from pyspark_eoslog.splitting import Piece, Pinned, plan
from pyspark_eoslog.tasks import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options import Options


class ReadTask(InputPartition):
    """What one task reads: pieces of partitions, in order. Plain values only."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = list(pieces)

    def __repr__(self) -> str:
        shown = (f"{one.topic}-{one.partition} [{one.start}, {one.end})" for one in self.pieces)
        return f"ReadTask({', '.join(shown)})"


def read_task(options: Options, schema: StructType, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yields the records of a task as batches of exactly `schema`.

    Raises:
        OffsetOutOfRange: Retention has deleted a part since it was planned, unless
            `failOnDataLoss` is off.
        UnknownTopicOrPartition: The topic was deleted since, unless the same.
        CorruptRecord: A batch whose checksum is wrong, or a file that this host sees shorter than
            the driver.
    """
    import pyarrow as pa

    from eoslog.client.scan import Scan, Source
    from eoslog.storage import codecs, files  # noqa: F401  binds the codecs of batches

    settle()
    target = arrow_schema(schema)
    names = [SCAN_COLUMNS[name] for name in schema.fieldNames()]
    sources = [
        Source(
            piece.topic,
            piece.partition,
            piece.start,
            piece.end,
            _Bytes(piece, options),
            _aborted_of(piece),
        )
        for piece in task.pieces
    ]
    # A scan without columns has no row count to hand on.
    columns = names or ["offset"]
    rows = options.batch_rows
    for batch in Scan(sources, columns=columns, batch_rows=rows, binary="copy", flat=True):
        files.failpoint("spark.read")
        try:
            arrays = [as_wanted(batch.column(at), field.type) for at, field in enumerate(target)]
        except CorruptRecord as error:
            raise CorruptRecord(f"{task!r}: {error}") from None
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _aborted_of(piece: Piece) -> Callable[[int, int], Sequence[tuple[int, int, int]]] | None:
    return (lambda *_: piece.aborted) if piece.aborted else None


class _Gap(Exception):
    """Offsets that no segment of a listing has."""


class _Bytes:
    """The batches of a piece, in windows read from its files.

    Where a file is not what the planner saw (deleted, or replaced by the cleaner), the directory
    is listed anew and the offsets are looked up again.
    """

    def __init__(self, piece: Piece, options: Options) -> None:
        self._piece = piece
        self._strict = options.fail_on_data_loss
        # A broker that is started meanwhile may cut its files short; of eoslog only `repair`,
        # and the recovery of what was never flushed.
        self._ours = options.layout == "eoslog"

    def __call__(self, start: int, end: int) -> Iterator[Any]:
        from eoslog.client.scan import Piece as Batches
        from eoslog.storage.filesystem import is_local

        spans: Sequence[Span] | None = self._piece.spans
        gap: _Gap | None = None
        for _ in range(RELISTINGS):
            try:
                if spans is None:
                    start, spans = self._again(start, end)
                    if start >= end:
                        return
                mapped = self._ours and is_local(self._piece.directory)
                for span in spans:
                    path = log_path(self._piece.directory, span.base)
                    same = {"inode": span.inode, "first": span.first if self._ours else -1}
                    if self._ours and not span.position:
                        self._check_contiguous(start, span.base)
                    ours = False
                    for at, data in windows(path, span.position, span.end, mapped=mapped, **same):
                        # Asked with the file open: a topic made anew may get the same inode.
                        ours = ours or self._is_ours(path)
                        yield Batches(data, path, at)
                        start = max(start, _next_offset(data))
                if self._ours and start < end and not self._cleaned_within(start, end):
                    self._check_contiguous(start, end)
                return
            except _Gap as failure:
                if gap is not None and gap.args == failure.args:
                    raise CorruptRecord(f"{self._name}: {failure}") from None
                gap = failure
            except CorruptRecord:
                if is_of_topic(self._piece.directory, self._piece.topic_id):
                    raise
            except FileNotFoundError:
                pass
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise self._unreadable(error) from None
            spans = None
        raise OffsetOutOfRange(f"{self._name}: the segments of {start} change again and again")

    def _cleaned_within(self, start: int, end: int) -> bool:
        """Whether the segment of these offsets goes on behind them: the cleaner left none."""
        files = open_partition(self._piece.directory, self._piece.topic_id)
        place = files.locate(start, end)
        return (
            place is not None and place.base_offset >= end and files.bases[place.segment] <= start
        )

    def _check_contiguous(self, start: int, following: int) -> None:
        """What follows a segment begins where it ends: else one is missing, or was not listed.

        Raises:
            _Gap: It does not, and no broker's cleaner had been there.
        """
        if following <= start:
            return
        directory = self._piece.directory
        cleaned = os.path.join(os.path.dirname(directory), checkpoints.CLEANER_CHECKPOINT)
        key = (self._piece.topic, self._piece.partition)
        if following > checkpoints.read_offsets(cleaned, lenient=True).get(key, 0):
            raise _Gap(
                f"offsets {start} to {following - 1} are missing from {directory}: the segment is "
                "not there, or cut short, and no retention or compaction took it; see "
                "`eoslog repair`"
            )

    @property
    def _name(self) -> str:
        return f"{self._piece.topic}-{self._piece.partition}"

    def _is_ours(self, path: str) -> bool:
        if not is_of_topic(self._piece.directory, self._piece.topic_id):
            raise FileNotFoundError(f"{path}: of a topic that was made anew")
        return True

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"{self._name}: the executor on {os.uname().nodename} can't read "
            f"{self._piece.directory}: {error}; option 'path' must name the same directory on "
            "every host, readable by the user that Spark runs as"
        )

    def _again(self, start: int, end: int) -> tuple[int, list[Span]]:
        """Where what is left begins and its spans, by the files that are there now."""
        try:
            files = open_partition(self._piece.directory, self._piece.topic_id)
        except UnknownTopicOrPartition:
            if self._strict:
                raise
            return end, []
        except (StorageError, ConfigError) as error:
            raise self._unreadable(error) from None
        first = files.bases[0]
        if first > start:
            if self._strict:
                raise OffsetOutOfRange(
                    f"{self._name}: offset {start} was deleted since the read was planned, the "
                    f"log starts at {first} now; set failOnDataLoss to false to begin there"
                )
            start = first
        return start, files.spans(start, end) if start < end else []


def _next_offset(data: Any) -> int:
    """The offset behind the last whole batch of a window."""
    from eoslog import _core

    _, _, _, next_offset, _ = _core.walk_batches(data, 0, 0, 1 << 62, len(data))
    return int(next_offset)


def as_wanted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column of a flat scan in the type that Spark insists on: bytes as text; and null for no
    headers, as in Spark's Kafka source.

    Raises:
        CorruptRecord: A value that has no such form.
    """
    if array.type.equals(wanted) and array.type.num_fields == 0:
        return array
    if array.type.num_fields:
        return _null_where_empty(array.cast(wanted))
    try:
        return array.cast(wanted)
    except ValueError as error:
        raise CorruptRecord(
            f"option 'valueFormat' or 'keyFormat' = string, or a schema that says so: "
            f"a record is no UTF-8 text ({error})"
        ) from None


def _null_where_empty(lists: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), None, lists)


class EoslogReader(DataSourceReader):
    """Reads pinned offset ranges; no state but plain values, as Spark pickles it to every task.

    `pushFilters` is not defined on purpose: in Spark 4 a pushed filter stays on the shared
    relation and silently drops rows of other scans of the same DataFrame. Ranges are options.
    """

    def __init__(self, options: Options, schema: StructType, ranges: Sequence[Pinned]) -> None:
        """Takes what is to be read.

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
        self.ranges = list(ranges)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks carry what they read; the whole plan would go to each of them.
        return {**self.__dict__, "ranges": []}

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [ReadTask(pieces) for pieces in plan(self.ranges, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the records of its pieces."""
        # With nothing to read Spark still runs one task, on a partition of its own making.
        if isinstance(partition, ReadTask):
            yield from read_task(self.options, self.schema, partition)
