"""Streaming sink, exactly once: version = batch id, application = query id.

Spark creates a new writer for planning, for commit and for abort, each in another process, and
passes only the batch id to `commit`. The query id is a local property in the tasks and travels in
their messages. A batch always has at least one message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from eoslog.errors import ConfigError, IllegalState
from pyspark_eoslog.write.batch import StagedMessage, StagingTask, attempts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options.options import Options

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class EoslogStreamWriter(DataSourceStreamArrowWriter):
    """A sink that appends each micro-batch once, whichever process is killed.

    Complete mode appends the complete result, as Kafka's sink does. The application is the query
    id. A new checkpoint has a new one, so a query that starts again is not mistaken for a replay. A
    batch of a checkpoint that went back is distinguished from a replay and refused.
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
        return StagedMessage(self.task.run(iterator, job_name(query_id, batch_id)), query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, unless it was published before.

        **Durability:** all rows are durable and visible on return.

        Raises:
            IllegalState: if Spark's checkpoint went back to a batch that was published before.
        """
        from pyspark_eoslog.write.publish import publish_once

        query_id = _query_id(messages)
        if query_id is None:
            raise IllegalState(
                f"batch {batchId} has no message that names its query, so "
                "it cannot be committed exactly once"
            )
        publish_once(
            self.options,
            query_id,
            batchId,
            attempts_of(messages),
            # Attempts that outlived the last batch may have left files in its folder.
            jobs=[job_name(query_id, str(batchId)), job_name(query_id, str(batchId - 1))],
            micro_batch=_mark_of_batch(self.options.checkpoint_location, batchId),
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


def _mark_of_batch(checkpoint: str | None, batch_id: int) -> str:
    """Return a mark that distinguishes a batch from another with the same number.

    The mark is the checksum of the checkpoint file with the batch's input, and the file's time. It
    is empty if this host cannot read the file.
    """
    from eoslog.connector import crc32c

    folder = (checkpoint or "").removeprefix("file:")
    if not os.path.isabs(folder):
        return ""
    try:
        with open(os.path.join(folder, "offsets", str(batch_id)), "rb") as file:
            return f"{crc32c(file.read()):08x}"
    except OSError:
        return ""


def _query_id(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next(
        (one.query_id for one in messages if isinstance(one, StagedMessage) and one.query_id), None
    )
