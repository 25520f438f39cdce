"""The stores, with one interface: eoslog, Parquet and a Kafka broker."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import eoslog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.kafka.broker import Broker


class Store(Protocol):
    """A place for tables of `key` and `value`."""

    def make(self, name: str, partitions: int) -> None:
        """Makes an empty one, before the clock runs."""

    def write(self, frame: DataFrame, name: str) -> None:
        """Appends a DataFrame."""

    def read(self, name: str, **options: object) -> DataFrame:
        """All of it."""

    def remove(self, name: str) -> None:
        """Frees its disk."""


class Stream(Store, Protocol):
    """One that can be read and written as a stream."""

    def pipe(self, source: str, sink: str, checkpoint: Path, most: int) -> Any:
        """Copy one store into another by an AvailableNow query.

        The micro-batches have at most `most` records. Returns the query, which has ended.
        """


def _run(source: DataFrame, form: str, options: dict[str, object], checkpoint: Path) -> Any:
    writer = source.select("key", "value").writeStream.format(form).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return query


class Eoslog:
    """Topics of one directory, flushed before a write returns."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, str(path)
        # Stays open: a process that opens a directory that no process has open recovers it
        # first.
        self.log = eoslog.open(self.path)

    def make(self, name: str, partitions: int) -> None:
        self.log.create_topic(name, partitions)

    def write(self, frame: DataFrame, name: str) -> None:
        writer = frame.write.format("eoslog").options(path=self.path, topic=name)
        writer.mode("append").save()

    def read(self, name: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("eoslog").options(path=self.path, subscribe=name)
        return reader.options(**options).load()

    def pipe(self, source: str, sink: str, checkpoint: Path, most: int) -> Any:
        reader = self.spark.readStream.format("eoslog").options(path=self.path, subscribe=source)
        reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=most)
        return _run(reader.load(), "eoslog", {"path": self.path, "topic": sink}, checkpoint)

    def remove(self, name: str) -> None:
        self.log.delete_topic(name)

    def close(self) -> None:
        self.log.close()


class Parquet:
    """A folder a table."""

    def __init__(self, spark: SparkSession, folder: Path, codec: str) -> None:
        self.spark, self.folder, self.codec = spark, folder, codec

    def make(self, name: str, partitions: int) -> None:
        """Nothing: the files are made by the write."""

    def _path(self, name: str) -> str:
        return str(self.folder / self.codec / name)

    def write(self, frame: DataFrame, name: str) -> None:
        frame.write.option("compression", self.codec).mode("append").parquet(self._path(name))

    def read(self, name: str, **options: object) -> DataFrame:
        return self.spark.read.parquet(self._path(name))

    def remove(self, name: str) -> None:
        shutil.rmtree(self._path(name), ignore_errors=True)


class Kafka:
    """Topics of a broker, through Spark's own connector.

    Args:
        spark: with the connector's jars.
        broker: running.
        settings: of the producer, as `kafka.linger.ms`.
    """

    def __init__(self, spark: SparkSession, broker: Broker, **settings: object) -> None:
        from confluent_kafka.admin import AdminClient

        self.spark, self.settings = spark, settings
        self.servers = {"kafka.bootstrap.servers": broker.bootstrap}
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def make(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        for made in self.admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result()

    def write(self, frame: DataFrame, name: str) -> None:
        writer = frame.write.format("kafka").options(**self.servers, **self.settings, topic=name)
        writer.save()

    def read(self, name: str, **options: object) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.servers, subscribe=name).load()

    def pipe(self, source: str, sink: str, checkpoint: Path, most: int) -> Any:
        reader = self.spark.readStream.format("kafka").options(**self.servers, subscribe=source)
        reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=most)
        options = {**self.servers, **self.settings, "topic": sink}
        return _run(reader.load(), "kafka", options, checkpoint)

    def remove(self, name: str) -> None:
        for gone in self.admin.delete_topics([name]).values():
            gone.result()
