"""Bulk reads: the records of partitions as Arrow record batches.

A scan reads its partitions one after the other. The bounds of each are fixed when the scan is
created. Reading begins with the first batch, and every iteration reads again. With `binary="view"`,
keys and values point into the mapped segment: no value is copied, and the mapping stays until its
last batch is freed. pyarrow cannot sort, filter, join or write as CSV columns of binary_view.
Therefore `to_table` copies (`binary="copy"`), unless the caller chose views.

Source: Arrow columnar format (Variable-size Binary View), Arrow C stream interface.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from eoslog import _core
from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_int, as_items, as_list_of, shown
from eoslog._util.extras import package
from eoslog.client.arrow import schema as arrow
from eoslog.client.scan.pieces import Piece
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    EoslogError,
    KafkaError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from eoslog.model import IsolationLevel, TopicPartition
from eoslog.serializers import Deserializer, deserializer, undecodable
from eoslog.shown_html import html_table
from eoslog.storage.format.decompress_ahead import DecompressAhead

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from eoslog._core import Record

__all__ = [
    "Bound",
    "Scan",
    "Source",
    "StreamKeepingErrors",
    "is_committed",
    "keeping_errors",
    "records_of",
]

T = TypeVar("T")
Bound = int | Mapping[TopicPartition, int] | None
"""One offset for all partitions, or one for each; None means the partition's own bound."""

BATCH_BYTES = 64 << 20
"""A record batch ends early when its log batches reach this size in bytes."""

COPY_BYTES = 8 << 20
"""The same limit if values are copied: small enough to stay in the CPU's caches."""

ROWS = 10_000
"""Records that `Scan.records` decodes in one step at first."""


class Pieces(Protocol):
    """Complete batches of a partition from an offset on, in order."""

    def __call__(self, start: int, end: int) -> Iterator[Piece]:
        """Yield pieces; a batch that one piece cuts off is complete in the next."""


@dataclass(frozen=True)
class Source:
    """One partition of a scan, with its bounds."""

    topic: str
    partition: int
    start: int
    end: int
    pieces: Pieces
    aborted: Callable[[int, int], Sequence[tuple[int, int, int]]] | None
    """None with read_uncommitted."""
    damage: CorruptRecord | None = None
    """The error to raise at `end`, if damage ends the range."""
    epochs: Callable[[], _core.LeaderEpochs] | None = None
    """Returns the leader epochs of records; None takes those in the batches."""


@explained_calls()
class Scan:
    """Records of one or more partitions as Arrow columns.

    Use `Log.scan` or `read_segments` to create one::

        with eoslog.open("shop") as log:
            scan = log.scan("orders")
            for record in scan.records():
                print(record.offset, record.value)
            table = scan.to_table()  # needs pyarrow

    A scan can be iterated any number of times; each iteration reads again. It implements the Arrow
    C stream interface, so `pyarrow.table(scan)`, `polars.DataFrame(scan)` and DuckDB accept it.
    Methods that return pyarrow's classes raise ConfigError if pyarrow is not installed.

    Thread-safe: threads can iterate at the same time.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        columns: Sequence[str] | None = None,
        batch_rows: int = 65536,
        binary: str | None = None,
        flat: bool = False,
    ) -> None:
        """Create a scan from its sources; `Log.scan` and `read_segments` call this."""
        self._view = binary is None or arrow.is_view(binary)
        self._chosen = binary is not None
        if columns is not None:
            columns = as_list_of(str, "columns", "names", columns)
        if not 1 <= as_int("batch_rows", batch_rows) <= (1 << 31) - 1:
            raise ConfigError(f"batch_rows: expected 1 to 2147483647, got {batch_rows}")
        self._sources = as_items(sources)
        if not all(hasattr(source, "pieces") for source in self._sources):
            raise ConfigError(f"sources: expected a list of Source, got {shown(sources)}")
        self._columns = list(arrow.COLUMNS if columns is None else columns)
        self._batch_rows = batch_rows
        self._flat = flat
        self._fields = arrow.fields_of(self._columns, view=self._view, flat=flat)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every batch of this scan."""
        return arrow.schema_of(self._columns, view=self._view, flat=self._flat)

    @property
    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """The start and end offset (exclusive) of each partition."""
        return {TopicPartition(s.topic, s.partition): (s.start, s.end) for s in self._sources}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of 1 to `batch_rows` rows.

        Raises:
            CorruptRecord: if a batch is damaged, after the batches before it.
            OffsetOutOfRange: if records that were not read yet are deleted.
            UnknownTopicOrPartition: if the topic is deleted during the iteration.
        """
        arrow.require_pyarrow()  # fail before anything is read
        for _, columns in self._sourced_batches():
            yield arrow.record_batch(columns)

    def _sourced_batches(self) -> Iterator[tuple[Source, arrow.Columns]]:
        topics = sorted({source.topic for source in self._sources})
        ahead = DecompressAhead()
        decoder = _core.ColumnDecoder(
            arrow.decoded_columns(self._columns),
            view=self._view,
            flat=self._flat,
            max_rows=self._batch_rows,
            max_bytes=BATCH_BYTES if self._view else COPY_BYTES,
            ahead=ahead,
        )
        with contextlib.closing(ahead):
            for source in self._sources:
                for columns in self._read(source, topics, decoder):
                    yield source, columns

    def _read(
        self, source: Source, topics: list[str], decoder: _core.ColumnDecoder
    ) -> Iterator[arrow.Columns]:
        offset, end = source.start, source.end
        if offset < end:
            aborted = None
            if source.aborted is not None:
                aborted = _core.AbortedTransactions(source.aborted(offset, end))
            try:
                for piece in source.pieces(offset, end):
                    position = 0
                    while True:
                        try:
                            offset, position = decoder.feed(
                                piece.data, position, offset, end, aborted
                            )
                        except CorruptRecord as error:
                            raise _located(error, source, piece) from error
                        if not decoder.full:
                            break
                        yield from self._taken(decoder, source, topics)
            except (CorruptRecord, OffsetOutOfRange, UnknownTopicOrPartition):
                yield from self._taken(decoder, source, topics)
                raise
            yield from self._taken(decoder, source, topics)
        if source.damage is not None:
            raise source.damage

    def _taken(
        self, decoder: _core.ColumnDecoder, source: Source, topics: list[str]
    ) -> Iterator[arrow.Columns]:
        if not decoder.rows:
            return
        try:
            taken = decoder.take()
        except KafkaError as error:
            raise arrow.beyond_microseconds(records_of(source), error) from None
        topic = topics.index(source.topic)
        every = range(taken["rows"])
        for start in every[:: self._batch_rows]:
            rows = every[start : start + self._batch_rows]
            yield arrow.columns_of(taken, self._fields, topics, topic, source.partition, rows)

    def records(self, *, key: Any = None, value: Any = None) -> Iterator[Record]:
        """Yield all records, without pyarrow.

        Args:
            key: the format of keys: "string", "json", "integer", "long", "double", "uuid",
                "msgpack", or a callable that takes the bytes. None: keys stay bytes.
            value: the format of values, as `key`.

        Yields:
            Records with all fields, whatever `columns` says.

        Raises:
            ConfigError: if a format is unknown.
            SerializationError: if a key or value is not in the format, after the records before
                it.
            CorruptRecord: if a batch is damaged, after the records before it.
            OffsetOutOfRange: if records that were not read yet are deleted.
            UnknownTopicOrPartition: if the topic is deleted during the iteration.
        """
        formats = deserializer("key", key), deserializer("value", value)
        return (record for source in self._sources for record in records_of(source, *formats))

    def reader(self) -> pa.RecordBatchReader:
        """Return one iteration as a pyarrow RecordBatchReader.

        Raises:
            ConfigError: if pyarrow is not installed.
        """
        return arrow.require_pyarrow().RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Read all records into a pyarrow table.

        Keys and values are copied into binary columns, unless the scan has `binary="view"`.

        Raises:
            ConfigError: if pyarrow is not installed.
            EoslogError: as an iteration.
        """
        if not self._chosen:
            return Scan(
                self._sources, columns=self._columns, batch_rows=self._batch_rows, binary="copy"
            ).to_table()
        return arrow.require_pyarrow().Table.from_batches(list(self), schema=self.schema)

    def to_polars(self) -> polars.DataFrame:
        """Read all records into a polars data frame, without pyarrow.

        Raises:
            ConfigError: if polars is not installed.
            EoslogError: as an iteration.
        """
        frames: Any = package("polars", "to_polars")
        failed: list[EoslogError] = []
        try:
            return frames.DataFrame(StreamKeepingErrors(self, failed))  # type: ignore[no-any-return]
        except frames.exceptions.PolarsError as error:
            if failed:
                raise failed[0] from error
            raise

    def to_pandas(self) -> pandas.DataFrame:
        """Read all records into a pandas data frame; keys and values are bytes.

        Raises:
            ConfigError: if pandas or pyarrow is not installed.
            EoslogError: as an iteration.
        """
        package("pandas", "to_pandas")
        return self.to_table().to_pandas()

    def to_parquet(self, path: str | os.PathLike[str]) -> int:
        """Write all records to a Parquet file, batch by batch.

        The file appears when it is complete and on the disk; a file of that name is replaced.

        Args:
            path: the file.

        Returns:
            The number of records.

        Raises:
            ConfigError: if `path` is not a path, or pyarrow is not installed.
            StorageError: if the file cannot be written.
            EoslogError: as an iteration.
        """
        from eoslog.client.arrow.parquet import write

        copies = Scan(  # Parquet has no views
            self._sources, columns=self._columns, batch_rows=self._batch_rows, binary="copy"
        )
        return write(copies.reader(), path)

    def __arrow_c_schema__(self) -> object:
        """Return the schema for the Arrow C data interface."""
        return _core.arrow_schema(self._fields)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return one iteration for the Arrow C stream interface, without pyarrow.

        Args:
            requested_schema: ignored; the interface lets the caller cast.
        """
        return self._stream()

    def _stream(self, failed: Callable[[EoslogError], object] | None = None) -> object:
        """Return one iteration for the Arrow C stream interface.

        Args:
            failed: takes an error; the interface passes its text only.
        """
        columns = (part.column for _, part in self._sourced_batches())
        return _core.arrow_stream(self._fields, keeping_errors(columns, failed))

    def __repr__(self) -> str:
        return f"Scan({len(self._sources)} partitions, columns={self._columns})"

    def _repr_html_(self) -> str:
        """Return a small table of the ranges, for notebooks; no record is read."""
        rows = ((f"{s.topic}-{s.partition}", s.start, s.end) for s in self._sources)
        caption = f"Scan of {', '.join(self._columns)}"
        return html_table(caption, ("partition", "start", "end"), rows, len(self._sources))


def keeping_errors(
    items: Iterable[T], failed: Callable[[EoslogError], object] | None
) -> Iterator[T]:
    """Yield the items, and pass an error to `failed` before it is raised."""
    try:
        yield from items
    except EoslogError as error:
        if failed is not None:
            failed(error)
        raise


class StreamKeepingErrors:
    """A scan for a library that passes only the text of an error; keeps the error."""

    def __init__(self, scan: Scan, failed: list[EoslogError]) -> None:
        """Append errors to `failed`."""
        self._scan = scan
        self._failed = failed

    def __arrow_c_schema__(self) -> object:
        return self._scan.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._scan._stream(self._failed.append)


def records_of(
    source: Source, key: Deserializer | None = None, value: Deserializer | None = None
) -> Iterator[Record]:
    """Yield the records of one partition, with deserialized keys and values."""
    offset, end = source.start, source.end
    if offset < end:
        aborted = None
        if source.aborted is not None:
            aborted = _core.AbortedTransactions(source.aborted(offset, end))
        epochs = None if source.epochs is None else source.epochs()
        decode = functools.partial(_core.decode_records, source.topic, source.partition)
        for piece in source.pieces(offset, end):
            most = ROWS
            while True:
                try:
                    found, after = decode(
                        piece.data, offset, end, aborted, most, key, value, epochs=epochs
                    )
                except CorruptRecord as error:
                    raise _located(error, source, piece) from error
                except Exception as error:
                    if key is None and value is None:
                        raise
                    # Without formats, the bad record is the first visible one.
                    [bad], _ = decode(piece.data, offset, end, aborted, 1)
                    tp = TopicPartition(source.topic, source.partition)
                    advice = "read it as bytes, or begin after it"
                    raise undecodable(tp, bad.offset, error, advice) from error
                yield from found
                if after == offset:
                    break  # the piece is read completely
                offset = after
                most *= 2  # each call decompresses its first batch again: keep the calls few
    if source.damage is not None:
        raise source.damage


def _located(error: CorruptRecord, source: Source, piece: Piece) -> CorruptRecord:
    return error.located(piece.path, piece.position, f"{source.topic}-{source.partition}")


def is_committed(isolation: str | IsolationLevel) -> bool:
    """Whether a scan excludes uncommitted records.

    Raises:
        ConfigError: if there is no such isolation level.
    """
    try:
        return IsolationLevel(isolation) is IsolationLevel.READ_COMMITTED
    except ValueError:
        known = ", ".join(level.value for level in IsolationLevel)
        raise ConfigError(f"isolation: expected one of {known}, got {shown(isolation)}") from None
