"""The driver of the torture: a Spark session that runs one job per input line.

It runs as a process of its own, so that its JVM can be killed: `python driver.py LOG CHECKPOINT
MASTER`. Each line in is a job in JSON, each line out its outcome.
"""

import json
import os
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
        .config("spark.jars", os.environ.get("EOSLOG_TORTURE_JARS", ""))
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
        path=path, topic="out", inlineLimitBytes=job["inline"], segmentBytes=job["segment"]
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
    sink = sink.options(
        path=path, topic="streamed", inlineLimitBytes=job["inline"], segmentBytes=job["segment"]
    )
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


PADDED = 4000
"""Bytes of a value on the way to Kafka: a batch of 25 is more than Python holds back from the JVM."""


def steps(batches):
    """The steps of a sink that has none of its own.

    They are before the rows, after each batch and after the last one.
    """
    from eoslog.storage.fs import files

    files.failpoint("spark.write.begun")
    for batch in batches:
        yield batch
        files.failpoint("spark.write.rows")
    files.failpoint("spark.write.finished")


def kafka_batch(spark, path, checkpoint, job):
    """As `batch`, into Spark's Kafka sink, which knows no versions."""
    rows = (
        spark.read.format("eoslog")
        .options(path=path, subscribe="numbers", minBytesPerPartition=0, batchRows=25)
        .load()
        .selectExpr(f"rpad(concat('{job['version']}-', string(value)), {PADDED}, ' ') as value")
    )
    writer = rows.mapInArrow(steps, "value string").write.format("kafka")
    writer.options(**{"kafka.bootstrap.servers": job["servers"], "topic": "out"}).save()


def kafka_stream(spark, path, checkpoint, job):
    """As `stream`, into Spark's Kafka sink."""
    source = spark.readStream.format("eoslog").options(
        path=path, subscribe="in", startingOffsets="earliest", maxRecordsPerTrigger=job["most"],
        minBytesPerPartition=0, batchRows=25,
    )  # fmt: skip
    rows = source.load().selectExpr(f"rpad(string(value), {PADDED}, ' ') as value")
    sink = rows.mapInArrow(steps, "value string").writeStream.format("kafka")
    sink = sink.options(**{"kafka.bootstrap.servers": job["servers"], "topic": "streamed"})
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


RUN = {
    "batch": batch, "stream": stream, "kafka batch": kafka_batch, "kafka stream": kafka_stream,
}  # fmt: skip


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    main()
