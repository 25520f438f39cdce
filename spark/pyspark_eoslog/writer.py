"""Batch write: tasks stage, the driver publishes the winners in one transaction.

`StagingTask` serves the streaming sink as well; the two differ only in who
names the version.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from eoslog.client.staging import Attempt, begin_job
from eoslog.errors import ConfigError, InvalidTopic, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS
from pyspark_eoslog.encoder import TopicTarget
from pyspark_eoslog.schema import check_sink_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options import Options

DEFAULT_MAX_MESSAGE_BYTES = 1048588


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver: the attempt it staged, and the query it ran for where there is
    one.
    """

    attempt: Attempt
    query_id: str | None = None


class StagingTask:
    """The part of a write that runs in a task; plain values, pickled to executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Checks the DataFrame against the topics there are.

        Raises:
            ConfigError: Columns that the sink can't write.
            UnknownTopicOrPartition: The topic of the option `topic` doesn't exist.
        """
        check_sink_schema(schema, options.topic)
        self.path = options.path
        self.topic = options.topic
        self.compression = options.compression
        self.inline_limit = options.inline_limit_bytes
        self.segment_bytes = options.segment_bytes
        self.retention_s = options.staging_retention_hours * 3600
        self.targets = topic_targets(options.path, options.topic)

    def run(self, rows: Iterator[pa.RecordBatch], job: str, *, make_folder: bool = True) -> Attempt:
        """Encodes and stages the rows of this attempt.

        Args:
            rows: What the task got.
            job: Names the staging folder.
            make_folder: False where the driver made it.

        **Durability:** what stays out of the message is on disk on return; topics are untouched.

        Raises:
            ConfigError: The directory is not there on this host, or not to be written.
        """
        try:
            return self._run(rows, job, make_folder)
        except OSError as error:  # a StorageError is one
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM):
                raise
            raise ConfigError(
                f"option 'path' = {self.path!r}: the executor on {os.uname().nodename} can't write "
                f"there: {error}; it must name the same directory on every host, writable by the "
                "user that Spark runs as. Or the job has ended without this task"
            ) from error

    def _run(self, rows: Iterator[pa.RecordBatch], job: str, make_folder: bool) -> Attempt:
        from pyspark import TaskContext

        from eoslog.client.staging import AttemptWriter
        from eoslog.storage import files
        from pyspark_eoslog.encoder import RowEncoder
        from pyspark_eoslog.tasks import settle

        context = TaskContext.get()
        number, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = f"{number:05d}-{attempt}-{uuid.uuid4().hex[:12]}"
        out = AttemptWriter(
            self.path,
            job,
            name,
            number,
            self.inline_limit,
            make_folder=make_folder,
            retention_s=self.retention_s,
            segment_bytes=self.segment_bytes,
        )
        try:
            files.failpoint("spark.write.begun")
            encoder = RowEncoder(out, self.targets, self.topic, self.compression, seed=number)
            settle()
            for batch in rows:
                encoder.add(batch)
                files.failpoint("spark.write.rows")
            encoder.flush()
            attempt = out.finish()
            files.failpoint("spark.write.finished")
            return attempt
        except BaseException:
            out.discard()
            raise


def topic_targets(path: str, topic: str | None) -> dict[str, TopicTarget]:
    """Partition counts and size limits of the topics that may be written to.

    Raises:
        UnknownTopicOrPartition: `topic` is given and doesn't exist.
        InvalidTopic: It is one of the log's own.
    """
    from pyspark_eoslog.catalog import open_for_planning

    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"option 'topic' = {topic!r}: it is internal, nobody writes to it")
    with open_for_planning(path) as log:
        names = (
            [topic]
            if topic is not None
            else [name for name in log.topics() if name not in INTERNAL_TOPICS]
        )
        targets = {}
        for name in names:
            try:
                described = log.describe_topic(name)
            except UnknownTopicOrPartition:
                raise UnknownTopicOrPartition(
                    f"option 'topic' = {name!r}: there is no such topic in {path}; create it "
                    "first, nothing is created by writing"
                ) from None
            limit = int(described.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
            targets[name] = TopicTarget(len(described.partitions), limit)
        return targets


def attempts_of(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    """The attempts that messages name; failed tasks have none."""
    return [message.attempt for message in messages if isinstance(message, StagedMessage)]


class EoslogWriter(DataSourceArrowWriter):
    """Appends a DataFrame: all partitions of all topics become visible together, or none does.

    With `txnAppId` and `txnVersion` a version that was committed before, or an older one, is
    skipped (under `txnReplay` = last an older one is refused), so that a job may be run again
    after any failure. The planned writer is pickled, so
    the job's name is the same for all tasks and the commit.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Checks the DataFrame and makes the staging folder of the job.

        Raises:
            ConfigError: Overwrite mode, or columns that the sink can't write.
        """
        if overwrite:
            raise ConfigError(
                "mode 'overwrite' is not possible: a log is only appended to; use mode('append'), "
                "or a new topic, or Log.delete_records first"
            )
        self.options = options
        self.task = StagingTask(options, schema)
        self.job = f"batch-{uuid.uuid4().hex}"
        begin_job(options.path, self.job, options.staging_retention_hours * 3600)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Runs in a task: stages the rows of one attempt."""
        # Tasks don't make the folder: an attempt that outlives the job's end shall leave nothing.
        return StagedMessage(self.task.run(iterator, self.job, make_folder=False))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publishes the winning attempts, unless this version was published before.

        **Durability:** all rows are durable and visible on return.
        """
        from pyspark_eoslog.publish import publish_once

        app_id, version = self.options.txn_app_id, self.options.txn_version
        publish_once(
            self.options,
            app_id,
            version,
            attempts_of(messages),
            jobs=[self.job],
            micro_batch="" if self.options.txn_replay == "last" else None,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes what the job staged."""
        # Published data lies in the topics: what is removed here can't undo a commit that became
        # durable.
        from eoslog.client.staging import discard_job
        from eoslog.storage import files

        files.failpoint("spark.abort")
        discard_job(self.options.path, self.job)


__all__ = ["EoslogWriter", "StagedMessage", "StagingTask", "attempts_of", "topic_targets"]
