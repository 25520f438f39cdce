"""The entry point that Spark looks up: one class that hands out readers and writers.

This module imports pyspark's public base class and nothing else: Spark imports every `pyspark_*`
package to list data sources, and one failing import hides all of them. eoslog itself is imported
inside the methods.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_eoslog.reader import EoslogReader
    from pyspark_eoslog.stream_reader import EoslogStreamReader
    from pyspark_eoslog.stream_writer import EoslogStreamWriter
    from pyspark_eoslog.writer import EoslogWriter


class EoslogDataSource(DataSource):
    """`format("eoslog")`: a directory of eoslog topics as a Spark source and sink.

    Where a batch read begins and ends is settled here, at `load()`, and travels with the pickled
    instance: the same DataFrame gives the same rows however often it is evaluated and however much
    the log has grown. It can't wait for `schema()`, which Spark skips when the user gives a schema.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Checks the option names and values, and pins the ranges of a read.

        Args:
            options: Spark's options; names are case-insensitive.

        Raises:
            ConfigError: An unknown option, a value of the wrong form, or options that exclude each
            other. UnknownTopicOrPartition: A topic that is not there.
        """
        super().__init__(options)
        from pyspark_eoslog.options import Options

        self.parsed = Options.parse(options)
        self._ranges: list[tuple[str, int, int, int]] | None = None
        if self.parsed.is_read and not self.parsed.is_stream_only:
            self._pin()

    def _pin(self) -> None:
        from pyspark_eoslog.planning import pin_ranges

        self._ranges = pin_ranges(self.parsed)

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "eoslog"

    def schema(self) -> StructType:
        """The columns of a read, where the user gives no schema."""
        from pyspark_eoslog.schema import source_schema

        return source_schema(self.parsed)

    def reader(self, schema: StructType) -> EoslogReader:
        """A batch read of the ranges pinned at `load()`."""
        from pyspark_eoslog.reader import EoslogReader

        self.parsed.require_read()
        if self._ranges is None:
            self._pin()
        assert self._ranges is not None
        return EoslogReader(self.parsed, schema, self._ranges)

    def writer(self, schema: StructType, overwrite: bool) -> EoslogWriter:
        """A batch write, atomic over all partitions."""
        from pyspark_eoslog.writer import EoslogWriter

        return EoslogWriter(self.parsed, schema, overwrite)

    def streamReader(self, schema: StructType) -> EoslogStreamReader:
        """A stream of committed records."""
        from pyspark_eoslog.stream_reader import EoslogStreamReader

        self.parsed.require_read()
        return EoslogStreamReader(self.parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> EoslogStreamWriter:
        """An exactly-once sink; `overwrite` means complete mode, which appends."""
        from pyspark_eoslog.stream_writer import EoslogStreamWriter

        return EoslogStreamWriter(self.parsed, schema)


DefaultSource = EoslogDataSource
