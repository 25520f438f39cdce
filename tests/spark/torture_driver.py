"""The driver of the torture: a Spark session that runs one job a line of its input.

Run as a process of its own, so that its JVM can be killed: `python torture_driver.py LOG CHECKPOINT
MASTER`. Each line in is a job in JSON, each line out its outcome.
"""

import json
import sys
from pathlib import Path

LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Small jobs are over before a compiler pays."""


def main() -> None:
    path, checkpoint, master, scratch = sys.argv[1:]
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "600m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.extraJavaOptions", LIGHT_JVM)
        .config("spark.executor.extraJavaOptions", LIGHT_JVM)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "25")
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.local.dir", scratch)
        .config("spark.task.maxFailures", "4")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    say(ready=True, jvm=jvm)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            RUN[job["kind"]](spark, path, checkpoint, job)
            say(done=True)
        except Exception as error:  # told to the harness, which decides
            say(error=str(error)[-2000:])


def batch(spark, path, checkpoint, job):
    """Rows of one version, through a read of the same directory and a shuffle."""
    rows = (
        spark.read.format("eoslog")
        .options(path=path, subscribe="numbers", minBytesPerPartition=0, batchRows=25)
        .load()
        .selectExpr("key", f"concat('{job['version']}-', string(value)) as value")
    )
    writer = rows.write.format("eoslog").options(
        path=path, topic="out", inlineLimitBytes=job["inline"]
    )
    writer = writer.option("txnAppId", "torture").option("txnVersion", job["version"])
    writer.mode("append").save()


def stream(spark, path, checkpoint, job):
    """What was added to `in`, in micro-batches."""
    source = spark.readStream.format("eoslog").options(
        path=path, subscribe="in", startingOffsets="earliest", maxRecordsPerTrigger=job["most"],
        minBytesPerPartition=0, batchRows=25,
    )  # fmt: skip
    sink = source.load().select("key", "value").writeStream.format("eoslog")
    sink = sink.options(path=path, topic="streamed", inlineLimitBytes=job["inline"])
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


RUN = {"batch": batch, "stream": stream}


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
