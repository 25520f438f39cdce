"""The rows that are written and read: the flights of New York 2013 as lines.

The lines have about 100 bytes and the aircraft as key. They are repeated under running numbers
until there are enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.demo import dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = 4


def prepare(folder: Path, count: int) -> None:
    """Writes `count` rows of `key` and `value` to uncompressed Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import compute

    flights = dataset.load()
    keys = compute.fill_null(flights["tailnum"], "?").cast(pa.binary()).combine_chunks()
    text = [
        compute.fill_null(column.cast(pa.string()), "")
        for name, column in zip(flights.column_names, flights.columns, strict=True)
        if name != "id"
    ]
    lines = compute.binary_join_element_wise(*text, ",").combine_chunks()
    folder.mkdir(parents=True)
    for number in range(FILES):
        low, high = count * number // FILES, count * (number + 1) // FILES
        with pq.ParquetWriter(
            folder / f"{number}.parquet",
            pa.schema([("key", pa.binary()), ("value", pa.binary())]),
            compression="none",
            use_dictionary=["key"],
        ) as writer:
            for start in range(low, high, 250_000):
                numbers = pa.array(range(start, min(start + 250_000, high)), pa.int64())
                at = compute.subtract(
                    numbers,
                    compute.multiply(compute.divide(numbers, len(lines)), pa.scalar(len(lines))),
                )
                value = compute.binary_join_element_wise(
                    lines.take(at), numbers.cast(pa.string()), ","
                )
                writer.write_table(
                    pa.table({"key": keys.take(at), "value": value.cast(pa.binary())})
                )


def digest(frame: DataFrame) -> tuple[int, ...]:
    """Count, bytes and two checksums of keys and values that no order changes."""
    row = frame.selectExpr(
        "count(*)",
        "sum(length(key) + length(value))",
        "sum(crc32(concat(key, binary(':'), value)))",
        "bit_xor(xxhash64(key, value))",
    ).collect()[0]
    return tuple(int(one) for one in row)
