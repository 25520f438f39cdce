"""Batch read: Arrow batches from the byte ranges of a task, on any executor.

A task opens segment files and nothing else: no lock, no shared mapping, no directory state. So a
long job blocks no other process, and any host that sees the files can read them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from eoslog.connector import bounds_of
from eoslog.connector.byte_ranges import (
    RELISTINGS,
    ByteRange,
    is_of_topic,
    log_path,
    open_partition,
    windows,
)
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicOrPartition,
)
from pyspark_eoslog.read.splitting import Pinned, RangePart, plan
from pyspark_eoslog.read.task import settle
from pyspark_eoslog.schema import SCAN_COLUMNS, arrow_schema, check_source_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options.options import Options


class ReadTask(InputPartition):
    """The input of one task: pieces of partitions, in order, in plain values."""

    def __init__(self, pieces: Sequence[RangePart]) -> None:
        self.pieces = list(pieces)

    def __repr__(self) -> str:
        shown = (f"{one.topic}-{one.partition} [{one.start}, {one.end})" for one in self.pieces)
        return f"ReadTask({', '.join(shown)})"


def read_task(options: Options, schema: StructType, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task as batches of exactly `schema`.

    Raises:
        OffsetOutOfRange: if retention deleted a part after it was planned, unless `failOnDataLoss`
            is off.
        UnknownTopicOrPartition: if the topic was deleted since then, unless `failOnDataLoss` is
            off.
        CorruptRecord: if a checksum is wrong, or this host sees a file shorter than the driver.
    """
    import pyarrow as pa

    from eoslog.connector import Scan, Source, failpoint

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
    # A scan without columns returns no row count.
    columns = names or ["offset"]
    rows = options.batch_rows
    for batch in Scan(sources, columns=columns, batch_rows=rows, binary="copy", flat=True):
        failpoint("spark.read")
        try:
            arrays = [as_wanted(batch.column(at), field.type) for at, field in enumerate(target)]
        except CorruptRecord as error:
            raise CorruptRecord(f"{task!r}: {error}") from None
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _aborted_of(piece: RangePart) -> Callable[[int, int], Sequence[tuple[int, int, int]]] | None:
    return (lambda *_: piece.aborted) if piece.aborted else None


class _Gap(Exception):
    """An error for offsets that no segment of a listing has."""


class _Bytes:
    """The batches of a piece, in windows read from its files.

    If a file was deleted, or replaced by the cleaner, after the planning, the directory is listed
    again and the offsets are looked up again.
    """

    def __init__(self, piece: RangePart, options: Options) -> None:
        self._piece = piece
        self._strict = options.fail_on_data_loss
        # A broker that starts during the read may truncate its files. In eoslog only `repair` and
        # the recovery of unflushed bytes truncate.
        self._ours = options.layout == "eoslog"

    def __call__(self, start: int, end: int) -> Iterator[Any]:
        from eoslog.connector import Piece as Batches
        from eoslog.connector import in_order, is_local

        spans: Sequence[ByteRange] | None = self._piece.spans
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
                    first = span.first if self._ours else -1
                    if not span.position:
                        self._check_contiguous(start, span.base)
                    ours = False
                    least = span.base
                    for at, data in windows(
                        path, span.position, span.end,
                        inode=span.inode, first=first, mapped=mapped,
                    ):  # fmt: skip
                        # Checked with the file open: a re-created topic may get the same inode.
                        ours = ours or self._is_ours(path)
                        least, sound, damage = in_order(data, least, span.bound)
                        yield Batches(sound, path, at)
                        start = max(start, least)
                        if damage is not None and start < end:
                            raise damage.located(path, at, self._name)
                if start < end and not self._cleaned_within(start, end):
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
        raise OffsetOutOfRange(
            f"{self._name}: segments changed in each attempt to read offset {start}; retry"
        )

    def _cleaned_within(self, start: int, end: int) -> bool:
        """Return whether the cleaner removed these offsets within a segment."""
        files = open_partition(self._piece.directory, self._piece.topic_id)
        place = files.locate(start, end)
        return (
            place is not None and place.base_offset >= end and files.bases[place.segment] <= start
        )

    def _check_contiguous(self, start: int, following: int) -> None:
        """Check that the next segment begins at the end of the one before.

        If it does not, a segment is missing or was not listed. A broker's cleaner may leave gaps,
        and a copied partition folder does not show how far it was compacted.

        Raises:
            _Gap: if there is a gap that no broker's cleaner can explain.
        """
        if following <= start:
            return
        directory = self._piece.directory
        key = (self._piece.topic, self._piece.partition)
        _, cleaned_to = bounds_of(os.path.dirname(directory), key)
        if cleaned_to is None and self._ours:
            cleaned_to = 0
        if cleaned_to is not None and following > cleaned_to:
            raise _Gap(
                f"offsets {start} to {following - 1} are missing from {directory}: a segment file "
                "is missing or truncated, and retention or compaction did not remove it; run "
                "`eoslog repair`"
            )

    @property
    def _name(self) -> str:
        return f"{self._piece.topic}-{self._piece.partition}"

    def _is_ours(self, path: str) -> bool:
        if not is_of_topic(self._piece.directory, self._piece.topic_id):
            raise FileNotFoundError(f"{path} is of another topic: the topic was re-created")
        return True

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"{self._name}: the executor on {os.uname().nodename} can't read "
            f"{self._piece.directory}: {error}; option 'path' must name the same directory on "
            "every host, readable by the user that Spark runs as"
        )

    def _again(self, start: int, end: int) -> tuple[int, list[ByteRange]]:
        """Return the start of the rest and its spans, from a new listing of the files."""
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
                    f"{self._name}: offset {start} was deleted after the read was planned, and the "
                    f"log now starts at {first}; set failOnDataLoss to false to begin at {first}"
                )
            start = first
        return start, files.spans(start, end) if start < end else []


def as_wanted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a column of a flat scan to the type that Spark requires.

    Bytes may become text, and an empty list of headers becomes null, as in Spark's Kafka source.

    Raises:
        CorruptRecord: if a value cannot be converted.
    """
    if array.type.equals(wanted) and array.type.num_fields == 0:
        return array
    if array.type.num_fields:
        return _null_where_empty(array.cast(wanted))
    try:
        return array.cast(wanted)
    except ValueError as error:
        raise CorruptRecord(
            f"a record is not valid UTF-8 ({error}), but option 'valueFormat' or 'keyFormat', or "
            "the schema, has the type string; use the type binary"
        ) from None


def _null_where_empty(lists: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), None, lists)


class EoslogReader(DataSourceReader):
    """A reader of pinned offset ranges in plain values, because Spark pickles it.

    `pushFilters` is not defined on purpose: in Spark 4 a pushed filter stays on the shared
    relation and silently drops rows of other scans of the same DataFrame. Ranges are options.
    """

    def __init__(self, options: Options, schema: StructType, ranges: Sequence[Pinned]) -> None:
        """Create a reader of the given ranges.

        Args:
            options: Parsed options.
            schema: The source's own schema, or the user's.
            ranges: One range per log partition, as pinned at load.

        Raises:
            ConfigError: if a user schema has a column or type that does not exist.
        """
        check_source_schema(schema)
        self.options = options
        self.schema = schema
        self.ranges = list(ranges)

    def __getstate__(self) -> dict[str, Any]:
        # Each task carries its own ranges; otherwise each would carry the plan of all tasks.
        return {**self.__dict__, "ranges": []}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return [ReadTask(pieces) for pieces in plan(self.ranges, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task's pieces; runs in that task."""
        # If there is nothing to read, Spark still runs one task, on a partition that it creates.
        if isinstance(partition, ReadTask):
            yield from read_task(self.options, self.schema, partition)
