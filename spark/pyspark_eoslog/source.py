"""The entry point that Spark looks up: a class that creates readers and writers.

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

    from pyspark_eoslog.options.options import Options, Use
    from pyspark_eoslog.read.batch import EoslogReader
    from pyspark_eoslog.read.splitting import Pinned
    from pyspark_eoslog.read.stream import EoslogStreamReader
    from pyspark_eoslog.write.batch import EoslogWriter
    from pyspark_eoslog.write.stream import EoslogStreamWriter


_OLDEST = (4, 2)
"""Oldest pyspark version: the first with micro-batch limits and both Arrow writers."""


class EoslogDataSource(DataSource):
    """`format("eoslog")`: a directory of eoslog topics as a Spark source and sink.

    The start and end of a batch read are fixed in `load()` and travel with the pickled instance.
    So the same DataFrame gives the same rows at every evaluation, even after the log has grown.
    `schema()` would be too late, because Spark skips it if the user gives a schema.

    A table of the catalog is read without any option: Spark 4 keeps none for Python sources. The
    options are in the metadata of the table's columns, where `schema()` put them when the table was
    created.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the option names and values, and pin the ranges of a read.

        Args:
            options: Spark's options; names are case-insensitive.

        Raises:
            ConfigError: if an option is unknown, a value has the wrong form, options exclude each
                other, or pyspark is too old.
            UnknownTopicOrPartition: if a topic does not exist.
        """
        super().__init__(options)
        _check_version()
        from pyspark_eoslog.options.options import Options, names_directory, without_properties

        options = without_properties(options)
        self._given = dict(options)
        self._ranges: list[Pinned] | None = None
        self._refused: Exception | None = None
        self.parsed: Options | None = None
        if names_directory(options):
            self.parsed = Options.parse(options)
            if self.parsed.is_read:  # batch or stream: Spark has not yet shown which it is
                self._pin()

    def _pin(self) -> None:
        """Pin the ranges; keep an error of the bounds until a batch is read.

        At this point the read may still be a stream, for which the bounds have no meaning once it
        has a checkpoint. The error of a deleted topic is kept too, if loss is accepted.
        """
        from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
        from pyspark_eoslog.read.planning import pin_ranges

        assert self.parsed is not None
        try:
            self._ranges = pin_ranges(self.parsed)
        except (ConfigError, OffsetOutOfRange) as error:
            if self.parsed.starting is None and self.parsed.ending is None:
                raise
            self._refused = error
        except UnknownTopicOrPartition as error:
            if self.parsed.fail_on_data_loss:
                raise
            self._refused = error  # a stream does not need the ranges

    def _options(self, schema: StructType | None = None) -> Options:
        """Return the given options, or those of the table with these columns.

        Raises:
            ConfigError: if there are none.
        """
        if self.parsed is None:
            from pyspark_eoslog.options.options import Options, of_table_read
            from pyspark_eoslog.schema import (
                check_table_read,
                same_columns,
                source_schema,
                table_options,
            )

            table = table_options(schema) if schema is not None else {}
            parsed = Options.parse(of_table_read(table, self._given))
            if schema is not None and table and not same_columns(schema, source_schema(parsed)):
                check_table_read(schema, Options.parse(table), self._given)
                # Columns that were selected from a table and saved as another keep the metadata.
                parsed = Options.parse(self._given)
            self.parsed = parsed
        return self.parsed

    def _read_options(self, schema: StructType, use: Use) -> Options:
        """Return the options of a read of these columns.

        Raises:
            ConfigError: if they name no topics, or a given option has no effect.
        """
        from pyspark_eoslog.options.options import check_use
        from pyspark_eoslog.schema import check_column_options

        options = self._options(schema)
        options.require_read()
        check_use(self._given, use)
        check_column_options(schema, options)
        return options

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "eoslog"

    def schema(self) -> StructType:
        """Return the columns of a read without a user schema."""
        from pyspark_eoslog.schema import source_schema, with_table_options

        schema = source_schema(self._options())
        # Only the creation of a table passes its provider.
        made = any(name.lower() == "provider" for name in self._given)
        return with_table_options(schema, self._given) if made else schema

    def reader(self, schema: StructType) -> EoslogReader:
        """Create a batch reader of the ranges pinned at `load()`."""
        from pyspark_eoslog.options.options import Use
        from pyspark_eoslog.read.batch import EoslogReader

        options = self._read_options(schema, Use.BATCH_READ)
        if self._refused is not None:
            raise self._refused
        if self._ranges is None:
            self._pin()
            if self._refused is not None:
                raise self._refused
        assert self._ranges is not None
        return EoslogReader(options, schema, self._ranges)

    def writer(self, schema: StructType, overwrite: bool) -> EoslogWriter:
        """Create a batch writer, atomic over all partitions."""
        from pyspark_eoslog.options.options import Use, check_use
        from pyspark_eoslog.write.batch import EoslogWriter

        check_use(self._given, Use.BATCH_WRITE)
        return EoslogWriter(self._options(), schema, overwrite)

    def streamReader(self, schema: StructType) -> EoslogStreamReader:
        """Create a reader of a stream of committed records."""
        from pyspark_eoslog.options.options import Use
        from pyspark_eoslog.read.stream import EoslogStreamReader

        options = self._read_options(schema, Use.STREAM_READ)
        return EoslogStreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> EoslogStreamWriter:
        """Create an exactly-once sink; `overwrite` means complete mode, which appends."""
        from pyspark_eoslog.options.options import Use, check_use
        from pyspark_eoslog.write.stream import EoslogStreamWriter

        check_use(self._given, Use.STREAM_WRITE)
        return EoslogStreamWriter(self._options(), schema)


def _check_version() -> None:
    import pyspark

    from eoslog.errors import ConfigError

    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _OLDEST:
        raise ConfigError(
            f"format('eoslog') needs pyspark {_OLDEST[0]}.{_OLDEST[1]} or newer, this is pyspark "
            f"{pyspark.__version__}"
        )


DefaultSource = EoslogDataSource
