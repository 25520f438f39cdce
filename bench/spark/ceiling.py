"""The ceilings of Spark's Python path: a minimal source and a minimal sink.

The source returns one prepared Arrow batch repeatedly, and the sink drops what it gets. Neither
does anything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)


class Share(InputPartition):
    """The number of rows that a task returns."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Ceiling(DataSource):
    """`format("ceiling")`, to read.

    Its options are `batch` (an Arrow IPC file), `rows` and `tasks`.
    """

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return CeilingWriter()

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        with pa.memory_map(self.options["batch"]) as file:
            return from_arrow_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(dict(self.options))


class CeilingReader(DataSourceReader):
    """Plans equal shares."""

    def __init__(self, options: dict[str, str]) -> None:
        self.path = options["batch"]
        self.rows, self.tasks = int(options["rows"]), int(options["tasks"])

    def partitions(self) -> Sequence[InputPartition]:
        edges = [self.rows * at // self.tasks for at in range(self.tasks + 1)]
        return [Share(high - low) for low, high in itertools.pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        with pa.memory_map(self.path) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
            left = partition.rows
            while left >= batch.num_rows:
                yield batch
                left -= batch.num_rows
            if left:
                yield batch.slice(0, left)


class CeilingWriter(DataSourceArrowWriter):
    """Takes rows and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
