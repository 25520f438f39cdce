"""A scan whose keys or values are parsed into typed columns."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import shown
from eoslog.client.arrow import schema as arrow
from eoslog.client.arrow.formats import BadValue, ColumnFormat
from eoslog.client.scan.scan import Scan, Source, keeping_errors, records_of
from eoslog.errors import ConfigError, EoslogError
from eoslog.model import TopicPartition
from eoslog.serializers import undecodable

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog._core import Record

__all__ = ["FormattedScan"]


class FormattedScan(Scan):
    """A scan with the formats of keys and values, which it always copies."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        key: Any = None,
        value: Any = None,
        schema: Any = None,
        columns: Sequence[str] | None = None,
        batch_rows: int = 65536,
        binary: str | None = None,
    ) -> None:
        """Check the formats; nothing is read.

        Raises:
            ConfigError: if a format, the schema or a column is invalid, or `binary` is "view".
        """
        if binary is not None and arrow.is_view(binary):
            raise ConfigError(
                f"binary: columns with a format are copies, got {shown(binary)}; leave it out"
            )
        super().__init__(sources, columns=columns, batch_rows=batch_rows, binary="copy")
        self._specs = {"key": key, "value": value}
        found = {"key": ColumnFormat.of("key", key)}
        found["value"] = ColumnFormat.of("value", value, schema)
        self._formats = {name: one for name, one in found.items() if one is not None}
        for name in self._formats:
            if name not in self._columns:
                raise ConfigError(
                    f"{name}: got the format {shown(self._specs[name])}, but columns has no "
                    f"{name!r}: {self._columns}; add the column, or leave the format out"
                )

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every batch of this scan."""
        plain = super().schema
        pa = arrow.require_pyarrow()
        return pa.schema(
            [
                field.with_type(self._formats[field.name].type)
                if field.name in self._formats
                else field
                for field in plain
            ]
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of 1 to `batch_rows` rows.

        Raises:
            SerializationError: if a key or value is not in the format, after the records before
                it.
            EoslogError: as another scan.
        """
        pa = arrow.require_pyarrow()
        counts: dict[Source, int] = {}
        for source, columns in self._sourced_batches():
            batch = arrow.record_batch(columns)
            done = counts.get(source, 0)
            counts[source] = done + len(batch)
            try:
                yield self._converted(pa, batch)
            except BadValue as error:
                if error.index:
                    yield self._converted(pa, batch[: error.index])
                raise self._located(source, done + error.index, error.reason) from error

    def _converted(self, pa: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        bad: list[BadValue] = []
        arrays = []
        for field, array in zip(self.schema, batch.columns, strict=True):
            try:
                found = self._formats.get(field.name)
                arrays.append(array if found is None else found.convert(array))
            except BadValue as error:
                bad.append(error)
        if bad:
            raise min(bad, key=lambda error: error.index)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _located(self, source: Source, row: int, reason: Exception) -> EoslogError:
        record = next(itertools.islice(records_of(source), row, None), None)
        offset = source.start if record is None else record.offset  # None: deleted since
        place = TopicPartition(source.topic, source.partition)
        return undecodable(place, offset, reason, "read it as bytes, or begin after it")

    def records(self, *, key: Any = None, value: Any = None) -> Iterator[Record]:
        """Yield all records, with the formats of the scan unless others are passed."""
        return super().records(
            key=self._specs["key"] if key is None else key,
            value=self._specs["value"] if value is None else value,
        )

    def to_table(self) -> pa.Table:
        """Read all records into a pyarrow table."""
        return arrow.require_pyarrow().Table.from_batches(list(self), schema=self.schema)

    def to_parquet(self, path: str | os.PathLike[str]) -> int:
        """Write all records to a Parquet file, batch by batch."""
        from eoslog.client.arrow.parquet import write

        return write(self.reader(), path)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def _stream(self, failed: Callable[[EoslogError], object] | None = None) -> object:
        batches = keeping_errors(self, failed)
        pa = arrow.require_pyarrow()
        return pa.RecordBatchReader.from_batches(self.schema, batches).__arrow_c_stream__()
