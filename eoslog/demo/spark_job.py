"""The Spark job: join flights with delays, aggregate, write and read back."""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import TYPE_CHECKING

from eoslog.demo import plan
from eoslog.demo.child import say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT_SCHEMA = "id LONG, carrier STRING, hour INT"
DELAY_SCHEMA = "id LONG, dep_delay LONG, arr_delay LONG, late BOOLEAN"
RESULT_SCHEMA = "carrier STRING, hour INT, flights LONG, dep_delay LONG, arr_delay LONG, late LONG"


def session(scratch: str) -> SparkSession:
    """Start Spark on this machine's first two cores; it writes only in `scratch`."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("eoslog demo flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", scratch)
        .config("spark.local.dir", scratch)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, directory: str, topic: str, schema: str) -> DataFrame:
    """Read a topic's committed records and parse their JSON values."""
    from pyspark.sql.functions import col, from_json

    records = spark.read.format("eoslog").option("path", directory).option("subscribe", topic)
    value = from_json(col("value").cast("string"), schema).alias("value")
    return records.load().select(value).select("value.*")


def aggregate(flights: DataFrame, delays: DataFrame) -> DataFrame:
    """Sum the delays of each carrier and scheduled hour."""
    from pyspark.sql.functions import col, count
    from pyspark.sql.functions import sum as sum_

    return (
        flights.join(delays, "id")
        .groupBy("carrier", "hour")
        .agg(
            count("id").alias("flights"),
            sum_("dep_delay").alias("dep_delay"),
            sum_("arr_delay").alias("arr_delay"),
            sum_(col("late").cast("long")).alias("late"),
        )
    )


def write(result: DataFrame, directory: str) -> None:
    """Write the aggregate into its topic in one transaction."""
    from pyspark.sql.functions import col, struct, to_json

    value = to_json(struct(*(col(name) for name in result.columns)))
    records = result.select(
        col("carrier").cast("binary").alias("key"), value.cast("binary").alias("value")
    )
    writer = records.write.format("eoslog").option("path", directory)
    writer.option("topic", plan.CARRIER_DELAYS).mode("append").save()


def main(argv: list[str] | None = None) -> int:
    """Run the job and say what Spark read and what it found written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    directory = parser.parse_args(argv).dir
    with tempfile.TemporaryDirectory(prefix="eoslog-spark-") as scratch:
        spark = session(scratch)
        say("started", version=spark.version)
        flights = read(spark, directory, plan.FLIGHTS, FLIGHT_SCHEMA)
        delays = read(spark, directory, plan.DELAYS, DELAY_SCHEMA)
        result = aggregate(flights, delays).cache()
        groups = result.count()
        say("aggregated", groups=groups)
        write(result, directory)
        say("written")
        back = read(spark, directory, plan.CARRIER_DELAYS, RESULT_SCHEMA)
        differing = back.exceptAll(result).count() + result.exceptAll(back).count()
        say("done", groups=groups, read_back=back.count(), differing=differing)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
