"""Batch write: tasks stage, the driver publishes the winners in one transaction.

The streaming sink uses `StagingTask` too. The two differ only in the source of the version.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from eoslog.connector import Attempt, begin_job
from eoslog.errors import ConfigError, InvalidTopic, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS
from pyspark_eoslog.schema import check_sink_schema
from pyspark_eoslog.write.encoder import TopicTarget

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options.options import Options

DEFAULT_MAX_MESSAGE_BYTES = 1048588
_INLINE_BYTES = 16 << 20
"""Task number n sends at most 1/(n + 1) of this to the driver: 10,000 tasks send about 130 MiB.

The driver holds the messages of all tasks at once, and Spark limits them by
`spark.driver.maxResultSize`.
"""
_LEAST_INLINE_BYTES = 4 << 10
"""What each task may send: about the size of the rest of its result."""
MICRO_BATCH = "eoslog.microBatch"
"""Local property with the mark of the micro-batch that a batch write belongs to."""


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's message to the driver.

    Attributes:
        attempt: The staged attempt.
        query_id: Id of the streaming query; None in a batch write.
        checkpoint: Location of the query's checkpoint, if known.
        micro_batch: Mark that `write_once` gave to its batch; empty if there is none.
        topic_ids: Ids of the written topics when the write was planned.
    """

    attempt: Attempt
    query_id: str | None = None
    checkpoint: str | None = None
    micro_batch: str = ""
    topic_ids: dict[str, bytes | None] = field(default_factory=dict)


class StagingTask:
    """The part of a write that runs in a task; plain values, pickled to executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the DataFrame against the existing topics.

        Raises:
            ConfigError: if the sink cannot write a column.
            UnknownTopicOrPartition: if the topic of the option `topic` does not exist.
        """
        check_sink_schema(schema, options.topic)
        self.path = options.path
        self.topic = options.topic
        self.compression = options.compression
        self.inline_limit = options.inline_limit_bytes
        self.segment_bytes = options.segment_bytes
        self.retention_s = options.staging_retention_hours * 3600
        self.targets = topic_targets(options.path, options.topic)

    def run(
        self, rows: Iterator[pa.RecordBatch], job: str, *, make_folder: bool = True
    ) -> StagedMessage:
        """Encode and stage the rows of this attempt.

        Args:
            rows: The rows of the task.
            job: Name of the staging folder.
            make_folder: False if the driver created the folder.

        **Durability:** batches that are not in the message are in files on return; topics are
        untouched.

        Raises:
            ConfigError: if the directory does not exist on this host, or is not writable.
        """
        try:
            return self._run(rows, job, make_folder)
        except OSError as error:  # a StorageError is one
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM):
                raise
            raise ConfigError(
                f"option 'path' = {self.path!r}: the executor on {os.uname().nodename} cannot "
                f"write to it: {error}; name a directory that every host shares and that Spark's "
                "user may write to (if the job has ended, ignore this)"
            ) from error

    def _run(self, rows: Iterator[pa.RecordBatch], job: str, make_folder: bool) -> StagedMessage:
        from pyspark import TaskContext

        from eoslog.connector import AttemptWriter, failpoint
        from pyspark_eoslog.read.task import settle
        from pyspark_eoslog.write.encoder import RowEncoder

        context = TaskContext.get()
        number, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = f"{number:05d}-{attempt}-{uuid.uuid4().hex[:12]}"
        out = AttemptWriter(
            self.path,
            job,
            name,
            number,
            min(self.inline_limit, max(_INLINE_BYTES // (number + 1), _LEAST_INLINE_BYTES)),
            make_folder=make_folder,
            retention_s=self.retention_s,
            segment_bytes=self.segment_bytes,
        )
        try:
            failpoint("spark.write.begun")
            encoder = RowEncoder(out, self.targets, self.topic, self.compression, seed=number)
            settle()
            for batch in rows:
                encoder.add(batch)
                failpoint("spark.write.rows")
            encoder.flush()
            staged = out.finish()
            failpoint("spark.write.finished")
            return StagedMessage(staged, topic_ids=encoder.written)
        except BaseException:
            out.discard()
            raise


def topic_targets(path: str, topic: str | None) -> dict[str, TopicTarget]:
    """Return the ids, partition counts and size limits of the writable topics.

    Raises:
        UnknownTopicOrPartition: if `topic` is given and does not exist.
        InvalidTopic: if `topic` is an internal topic.
    """
    from pyspark_eoslog.read.catalog import open_for_planning

    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(
            f"option 'topic' = {topic!r} is an internal topic; name a topic of your own"
        )
    with open_for_planning(path) as log:
        names = (
            [topic]
            if topic is not None
            else [name for name in log.topics() if name not in INTERNAL_TOPICS]
        )
        targets = {}
        for name in names:
            try:
                topic_id = log.topic_id(name)  # before the partitions, which may be newer
                described = log.describe_topic(name)
            except UnknownTopicOrPartition:
                raise UnknownTopicOrPartition(
                    f"option 'topic' = {name!r}: there is no such topic in {path}; create it "
                    "first, nothing is created by writing"
                ) from None
            limit = int(described.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
            targets[name] = TopicTarget(len(described.partitions), limit, topic_id)
        return targets


def attempts_of(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    """Return the attempts in the messages; failed tasks have none."""
    return [message.attempt for message in messages if isinstance(message, StagedMessage)]


def topic_ids_of(messages: Sequence[WriterCommitMessage | None]) -> set[tuple[str, bytes]]:
    """Return the topics that the tasks wrote, with their ids at planning."""
    staged = [message for message in messages if isinstance(message, StagedMessage)]
    return {(name, one) for message in staged for name, one in message.topic_ids.items() if one}


class EoslogWriter(DataSourceArrowWriter):
    """A writer that appends a DataFrame atomically to all partitions of all topics.

    With `txnAppId` and `txnVersion` a version that was committed before is skipped, and so is an
    older one (`txnReplay` = last refuses an older one). So a job can run again after any failure.
    The planned writer is pickled, so all tasks and the commit have the same job name.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Check the DataFrame and create the staging folder of the job.

        Raises:
            ConfigError: if the mode is overwrite, or the sink cannot write a column.
        """
        if overwrite:
            raise ConfigError(
                "mode 'overwrite' is not supported, because a log is only appended to; "
                "use mode('append'), "
                "or a new topic, or Log.delete_records first"
            )
        self.options = options
        self.task = StagingTask(options, schema)
        self.job = f"batch-{uuid.uuid4().hex}"
        begin_job(options.path, self.job, options.staging_retention_hours * 3600)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt; runs in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        mark = context.getLocalProperty(MICRO_BATCH) if context else None
        # Tasks do not create the folder: an attempt that outlives the job must leave no files.
        message = self.task.run(iterator, self.job, make_folder=False)
        return replace(message, micro_batch=mark or "")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the winning attempts, unless this version was published before.

        Raises:
            IllegalState: if a written topic was re-created after the write was planned.

        **Durability:** all rows are durable and visible on return.
        """
        from pyspark_eoslog.write.publish import publish_once

        app_id, version = self.options.txn_app_id, self.options.txn_version
        marks = {one.micro_batch for one in messages if isinstance(one, StagedMessage)}
        publish_once(
            self.options,
            app_id,
            version,
            attempts_of(messages),
            jobs=[self.job],
            topic_ids=topic_ids_of(messages),
            micro_batch=max(marks, default="") if self.options.txn_replay == "last" else None,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files of the job."""
        # Published data is in the topics, so this removal cannot undo a durable commit.
        from eoslog.connector import discard_job, failpoint

        failpoint("spark.abort")
        discard_job(self.options.path, self.job)


__all__ = [
    "EoslogWriter",
    "StagedMessage",
    "StagingTask",
    "attempts_of",
    "topic_ids_of",
    "topic_targets",
]
