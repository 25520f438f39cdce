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

    from pyspark_eoslog.options import Options
    from pyspark_eoslog.reader import EoslogReader
    from pyspark_eoslog.splitting import Pinned
    from pyspark_eoslog.stream_reader import EoslogStreamReader
    from pyspark_eoslog.stream_writer import EoslogStreamWriter
    from pyspark_eoslog.writer import EoslogWriter


_OLDEST = (4, 2)
"""Of pyspark: the first with limits of a stream's micro-batches and Arrow writers of both kinds."""


class EoslogDataSource(DataSource):
    """`format("eoslog")`: a directory of eoslog topics as a Spark source and sink.

    Where a batch read begins and ends is settled here, at `load()`, and travels with the pickled
    instance: the same DataFrame gives the same rows however often it is evaluated and however much
    the log has grown. It can't wait for `schema()`, which Spark skips when the user gives a schema.

    A table of the catalog is read without any option: Spark 4 keeps none for Python sources. They
    lie in the metadata of the table's columns, put there by `schema()` when the table was made.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Checks the option names and values, and pins the ranges of a read.

        Args:
            options: Spark's options; names are case-insensitive.

        Raises:
            ConfigError: An unknown option, a value of the wrong form, or options that exclude each
            other; a pyspark that is too old. UnknownTopicOrPartition: A topic that is not there.
        """
        super().__init__(options)
        _check_version()
        from pyspark_eoslog.options import Options, names_directory

        self._given = dict(options)
        self._ranges: list[Pinned] | None = None
        self._refused: Exception | None = None
        self.parsed: Options | None = None
        if names_directory(options):
            self.parsed = Options.parse(options)
            if self.parsed.is_read:  # also for a stream, which is not told apart yet
                self._pin()

    def _pin(self) -> None:
        """Fixes the ranges. Bounds that don't fit are told when a batch is read: for a stream,
        which has not been told apart yet, they mean nothing once it has a checkpoint. The same for
        a topic that is gone, where loss is accepted.
        """
        from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
        from pyspark_eoslog.planning import pin_ranges

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
            self._refused = error  # a stream goes on without it

    def _options(self, schema: StructType | None = None) -> Options:
        """The options given, or those of the table whose columns these are.

        Raises:
            ConfigError: There are none.
        """
        if self.parsed is None:
            from pyspark_eoslog.options import Options
            from pyspark_eoslog.schema import same_columns, source_schema, table_options

            table = table_options(schema) if schema is not None else {}
            parsed = Options.parse({**table, **self._given})
            if table and not same_columns(schema, source_schema(parsed)):
                # What was selected from a table and saved as another keeps the metadata.
                parsed = Options.parse(self._given)
            self.parsed = parsed
        return self.parsed

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "eoslog"

    def schema(self) -> StructType:
        """The columns of a read, where the user gives no schema."""
        from pyspark_eoslog.schema import source_schema, with_table_options

        schema = source_schema(self._options())
        # Only the making of a table brings its provider.
        made = any(name.lower() == "provider" for name in self._given)
        return with_table_options(schema, self._given) if made else schema

    def reader(self, schema: StructType) -> EoslogReader:
        """A batch read of the ranges pinned at `load()`."""
        from pyspark_eoslog.reader import EoslogReader

        options = self._options(schema)
        options.require_read()
        if self._refused is not None:
            raise self._refused
        if self._ranges is None:
            self._pin()
            if self._refused is not None:
                raise self._refused
        assert self._ranges is not None
        return EoslogReader(options, schema, self._ranges)

    def writer(self, schema: StructType, overwrite: bool) -> EoslogWriter:
        """A batch write, atomic over all partitions."""
        from pyspark_eoslog.writer import EoslogWriter

        return EoslogWriter(self._options(), schema, overwrite)

    def streamReader(self, schema: StructType) -> EoslogStreamReader:
        """A stream of committed records."""
        from pyspark_eoslog.stream_reader import EoslogStreamReader

        options = self._options(schema)
        options.require_read()
        return EoslogStreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> EoslogStreamWriter:
        """An exactly-once sink; `overwrite` means complete mode, which appends."""
        from pyspark_eoslog.stream_writer import EoslogStreamWriter

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
