r"""Bulk load: a CSV or Parquet file into a topic, as one transaction, once.

    spark-submit spark/pipelines/bulk_load.py --source flights.csv --dir DIR --topic flights \
        --key carrier --time time_hour --name flights-2013 --version 1

Each row becomes a JSON value, under the key and the time of the columns named. The load is one
transaction over all partitions: readers see all of it or nothing. `--name` and `--version` make it
idempotent: if it runs again after a crash, or twice at the same time, the rows are written once.
They are sorted by time first. Tasks are published in their order, so each partition of the topic is
in the order of time. A downstream streaming job needs this so that its watermark does not drop rows
as late.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, source: str) -> DataFrame:
    """The rows of a CSV file with a header (nulls are empty or NA), or of Parquet."""
    if source.endswith(".parquet"):
        return spark.read.parquet(source)
    return spark.read.csv(source, header=True, inferSchema=True, nullValue="NA")


def records(rows: DataFrame, key: str, time: str) -> DataFrame:
    """Rows as key, value and timestamp, in the order of their times."""
    from pyspark.sql.functions import col, struct, to_json

    value = to_json(struct(*(col(name) for name in rows.columns)))
    return rows.sort(time).select(
        col(key).cast("string").alias("key"),
        value.alias("value"),
        col(time).cast("timestamp").alias("timestamp"),
    )


def load(
    spark: SparkSession, source: str, directory: str, topic: str, *, key: str, time: str,
    name: str, version: int,
) -> None:  # fmt: skip
    """Write the rows of `source` into `topic`, unless it has this version of `name`."""
    writer = records(read(spark, source), key, time).write.format("eoslog")
    writer = writer.options(path=directory, topic=topic, compression="zstd")
    writer.options(txnAppId=name, txnVersion=version).mode("append").save()


def main() -> None:
    """Load what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("--source", "--dir", "--topic", "--key", "--time", "--name"):
        parser.add_argument(option, required=True)
    parser.add_argument("--version", type=int, required=True)
    given = parser.parse_args()
    spark = session("bulk load")
    load(
        spark, given.source, given.dir, given.topic, key=given.key, time=given.time,
        name=given.name, version=given.version,
    )  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
