"""Streaming sink, exactly once: version = batch id, application = query id.

Spark creates a new writer for planning, for commit and for abort, each in another process, and
passes only the batch id to `commit`. The query id is a local property in the tasks and travels in
their messages. A batch always has at least one message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from eoslog.errors import ConfigError, IllegalState
from pyspark_eoslog.write.batch import StagedMessage, StagingTask, attempts_of, topic_ids_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options.options import Options

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
DESCRIPTION = "spark.job.description"
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


class EoslogStreamWriter(DataSourceStreamArrowWriter):
    """A sink that appends each micro-batch once, whichever process is killed.

    Complete mode appends the complete result, as Kafka's sink does. The application is the query
    id. A new checkpoint has a new one, so a query that starts again is not mistaken for a replay. A
    batch of a checkpoint that went back is distinguished from a replay and refused. This needs a
    checkpoint in a directory that the driver's host can read. Without one, a different batch with
    the number of the last one is refused only if it has another number of rows.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the DataFrame against the topics.

        Raises:
            ConfigError: if the sink cannot write a column, or `txnVersion` is set, which in a
                stream is the batch id.
        """
        if options.txn_version is not None:
            raise ConfigError(
                "option 'txnVersion' has no effect in a stream, where the batch id is the version; "
                "remove it"
            )
        self.options = options
        self.task = StagingTask(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt; runs in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        batch_id = context.getLocalProperty(BATCH_ID) if context else None
        if not query_id:
            raise IllegalState(
                f"Spark did not set the local property {QUERY_ID}, which exactly once needs"
            )
        checkpoint = self.options.checkpoint_location or _checkpoint_of_session(
            query_id, context.getLocalProperty(CHECKPOINTS), context.getLocalProperty(DESCRIPTION)
        )
        message = self.task.run(iterator, job_name(query_id, batch_id))
        return replace(message, query_id=query_id, checkpoint=checkpoint)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, unless it was published before.

        **Durability:** all rows are durable and visible on return.

        Raises:
            IllegalState: if Spark's checkpoint went back to a batch that was published before; if
                this host cannot read the checkpoint, only if the number of rows differs. Also if a
                written topic was re-created after the batch was planned.
        """
        from pyspark_eoslog.write.publish import publish_once

        first = _first(messages)
        if first is None or first.query_id is None:
            raise IllegalState(
                f"batch {batchId} has no message that names its query, so "
                "it cannot be committed exactly once"
            )
        query_id = first.query_id
        publish_once(
            self.options,
            query_id,
            batchId,
            attempts_of(messages),
            # Attempts that outlived the last batch may have left files in its folder.
            jobs=[job_name(query_id, str(batchId)), job_name(query_id, str(batchId - 1))],
            topic_ids=topic_ids_of(messages),
            micro_batch=_mark_of_batch(first.checkpoint, query_id, batchId),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files of the named attempts."""
        # Spark also calls this after a failed commit, which may have become durable. It removes
        # only staged files, never published data.
        from eoslog.connector import discard, failpoint

        failpoint("spark.abort")
        discard(self.options.path, attempts_of(messages))


def job_name(query_id: str, batch_id: str | None) -> str:
    """Return the name of the staging directory of a micro-batch."""
    return f"stream-{query_id}-{batch_id}"


def mark_of(offsets: bytes) -> str:
    """Return a mark that distinguishes a batch from another with the same number.

    Args:
        offsets: Content of the checkpoint's file with the batch's input and its time.
    """
    from eoslog.connector import crc32c

    return f"{crc32c(offsets):08x}"


def _mark_of_batch(checkpoint: str | None, query_id: str, batch_id: int) -> str:
    """Return the mark of a batch; empty if this host cannot read the checkpoint."""
    if not checkpoint:
        return ""
    # Spark starts this process in its own working directory, to which a relative path refers.
    folder = os.path.abspath(checkpoint.removeprefix("file:"))
    try:
        with open(os.path.join(folder, "metadata"), "rb") as file:
            if json.load(file)["id"] != query_id:
                return ""  # the path is of another file system
        with open(os.path.join(folder, "offsets", str(batch_id)), "rb") as file:
            return mark_of(file.read())
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _checkpoint_of_session(
    query_id: str, checkpoints: str | None, description: str | None
) -> str | None:
    """Return the checkpoint of a query in the session's folder of checkpoints.

    The name of the checkpoint is the query's. Without one, each start has a new checkpoint.
    """
    head, found, _ = (description or "").partition(f"id = {query_id}")
    name = head.removesuffix("\n").removesuffix("<br/>")
    return os.path.join(checkpoints, name) if checkpoints and found and name else None


def _first(messages: Sequence[WriterCommitMessage | None]) -> StagedMessage | None:
    return next((one for one in messages if isinstance(one, StagedMessage) and one.query_id), None)
