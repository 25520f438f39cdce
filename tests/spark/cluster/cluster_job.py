"""The job of the cluster test: one topic copied through executors on two hosts.

    spark-submit cluster_job.py LOG VERSION

Prints a line of JSON: the hosts that it ran on, and the path of eoslog on the executors.
"""

import json
import sys


def where(batches):
    """Each batch with the host and the place of the package that its executor uses."""
    import os
    import time

    import pyarrow as pa

    import eoslog

    host = os.environ["SPARK_LOCAL_HOSTNAME"]
    time.sleep(0.5)  # so that neither executor takes all tasks
    for batch in batches:
        count = batch.num_rows
        found = {"key": batch.column(0), "value": batch.column(1)}
        found |= {"host": pa.array([host] * count), "place": pa.array([eoslog.__file__] * count)}
        yield pa.RecordBatch.from_pydict(found)


def main() -> None:
    path, version = sys.argv[1:]
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("eoslog cluster").getOrCreate()
    options = {"path": path, "subscribe": "in", "maxRecordsPerPartition": 100}
    rows = spark.read.format("eoslog").options(**options, minBytesPerPartition=0).load()
    seen = rows.select("key", "value").mapInArrow(
        where, "key binary, value binary, host string, place string"
    )
    found = seen.select("host", "place").distinct().collect()
    writer = rows.select("key", "value").write.format("eoslog")
    writer = writer.options(path=path, topic="out", inlineLimitBytes=0)
    writer.options(txnAppId="cluster", txnVersion=version).mode("append").save()
    print(json.dumps({"hosts": sorted({r.host for r in found}),
                      "places": sorted({r.place for r in found})}))  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
