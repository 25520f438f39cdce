r"""Exactly-once streaming aggregation of flights and delays by carrier and week.

    spark-submit spark/pipelines/windowed_delays.py --dir DIR --source flights --target weekly \
        --checkpoint CHECKPOINT

A micro-batch has at most `per_trigger` records, so a transaction of the source can be split over
two. The sink publishes each once, with the key (query id, batch id). A window is written when the
watermark has passed its end, so each appears in the target exactly once. After a crash, start the
job again with the same checkpoint. It processes the existing records and ends (`availableNow`); for
a service, leave out the trigger.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

FLIGHT = "carrier STRING, dep_delay DOUBLE, time_hour TIMESTAMP"
LATE = "14 days"


def flights(records: DataFrame) -> DataFrame:
    """The flights in the values of a topic."""
    from pyspark.sql.functions import col, from_json

    value = from_json(col("value").cast("string"), FLIGHT).alias("flight")
    return records.select(value).select("flight.*")


def weekly(rows: DataFrame) -> DataFrame:
    """Flights and minutes of departure delay per carrier and week."""
    from pyspark.sql.functions import col, count, window
    from pyspark.sql.functions import sum as sum_

    grouped = rows.groupBy("carrier", window("time_hour", "7 days"))
    found = grouped.agg(count("*").alias("flights"), sum_("dep_delay").alias("minutes"))
    return found.select("carrier", col("window.start").alias("week"), "flights", "minutes")


def run(
    spark: SparkSession, directory: str, source: str, target: str, checkpoint: str,
    per_trigger: int = 100_000,
) -> StreamingQuery:  # fmt: skip
    """Aggregate `source` into `target`; return the query, which ends on its own."""
    from pyspark.sql.functions import col, struct, to_json

    stream = spark.readStream.format("eoslog").options(
        path=directory, subscribe=source, startingOffsets="earliest",
        maxRecordsPerTrigger=per_trigger, columns="value", commitGroup=f"{target}-job",
    )  # fmt: skip
    windows = weekly(flights(stream.load()).withWatermark("time_hour", LATE))
    value = to_json(struct(*(col(name) for name in windows.columns)))
    sink = windows.select(col("carrier").alias("key"), value.alias("value")).writeStream
    sink = sink.format("eoslog").options(path=directory, topic=target)
    sink = sink.option("checkpointLocation", checkpoint).outputMode("append")
    return sink.trigger(availableNow=True).start()


def main() -> None:
    """Run with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("--dir", "--source", "--target", "--checkpoint"):
        parser.add_argument(option, required=True)
    given = parser.parse_args()
    spark = session("windowed delays")
    run(spark, given.dir, given.source, given.target, given.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
