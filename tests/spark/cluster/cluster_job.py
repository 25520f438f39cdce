"""The job of the cluster test: one topic copied through executors on two hosts.

    spark-submit cluster_job.py LOG VERSION

Prints a line of JSON: the hosts that it ran on, and the path of eoslog on the executors.
"""

import json
import os
import sys


def where(hosts):
    """A function that adds the place of the executor's package to each batch.

    It leaves a file for each host in the folder `hosts`, and waits until both take part.
    """

    def placed(batches):
        import os
        import time
        from pathlib import Path

        import pyarrow as pa

        import eoslog

        Path(hosts, os.environ["SPARK_LOCAL_HOSTNAME"]).touch()
        while len(os.listdir(hosts)) < 2:
            time.sleep(0.02)
        for batch in batches:
            place = pa.array([eoslog.__file__] * batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, place], ["key", "value", "place"])

    return placed


def main() -> None:
    path, version = sys.argv[1:]
    os.mkdir(hosts := f"{path}-hosts-{version}")
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("eoslog cluster").getOrCreate()
    options = {"path": path, "subscribe": "in", "maxRecordsPerPartition": 100}
    rows = spark.read.format("eoslog").options(**options, minBytesPerPartition=0).load()
    seen = rows.select("key", "value").mapInArrow(
        where(hosts), "key binary, value binary, place string"
    )
    places = sorted(row.place for row in seen.select("place").distinct().collect())
    writer = rows.select("key", "value").write.format("eoslog")
    writer = writer.options(path=path, topic="out", inlineLimitBytes=0)
    writer.options(txnAppId="cluster", txnVersion=version).mode("append").save()
    print(json.dumps({"hosts": sorted(os.listdir(hosts)), "places": places}))
    spark.stop()


if __name__ == "__main__":
    main()
