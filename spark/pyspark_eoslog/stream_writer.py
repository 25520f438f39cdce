"""Streaming sink, exactly once: version = batch id, application = query id.

Spark makes a new writer for planning, for commit and for abort, each in another process, and tells
`commit` only the batch id. The query id is a local property in the tasks; it travels in their
messages. A batch always has one message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from eoslog.errors import ConfigError, IllegalState
from pyspark_eoslog.writer import StagedMessage, StagingTask, attempts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_eoslog.options import Options

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class EoslogStreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch once, whatever is killed; complete mode appends the whole result as
    Kafka's sink does.

    The application is the query id, which a new checkpoint renews, so a query that starts over is
    not taken for a replay. A checkpoint that went back is told from a replay, and refused.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        """Checks the DataFrame against the topics.

        Raises:
            ConfigError: Columns that the sink can't write, or `txnVersion`, which is the batch id
            here.
        """
        if options.txn_version is not None:
            raise ConfigError(
                "option 'txnVersion' has no meaning in a stream: the batch id is the version"
            )
        self.options = options
        self.task = StagingTask(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Runs in a task: stages the rows of one attempt."""
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
        """Publishes the batch, unless it was published before.

        **Durability:** all rows are durable and visible on return.

        Raises:
            IllegalState: Spark's checkpoint has gone back behind what was published.
        """
        from pyspark_eoslog.publish import publish_once

        query_id = _query_id(messages)
        if query_id is None:
            raise IllegalState(
                f"batch {batchId} has no message that names its query: it can't be committed once"
            )
        publish_once(
            self.options,
            query_id,
            batchId,
            attempts_of(messages),
            # Attempts that outlived the last batch may have left something in its folder.
            jobs=[job_name(query_id, str(batchId)), job_name(query_id, str(batchId - 1))],
            micro_batch=_mark_of_batch(self.options.checkpoint_location, batchId),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Removes what the named attempts staged."""
        # Comes after a failed commit too, which may have become durable: only staged files go,
        # never published data.
        from eoslog.client.staging import discard
        from eoslog.storage import files

        files.failpoint("spark.abort")
        discard(self.options.path, attempts_of(messages))


def job_name(query_id: str, batch_id: str | None) -> str:
    """Staging directory of a micro-batch."""
    return f"stream-{query_id}-{batch_id}"


def _mark_of_batch(checkpoint: str | None, batch_id: int) -> str:
    """Tells a batch from another of the same number: the checksum of the file in which Spark's
    checkpoint keeps its input, with the time it was made; empty where that can't be read here.
    """
    from eoslog import _core

    folder = (checkpoint or "").removeprefix("file:")
    if not os.path.isabs(folder):
        return ""
    try:
        with open(os.path.join(folder, "offsets", str(batch_id)), "rb") as file:
            return f"{_core.crc32c(file.read()):08x}"
    except OSError:
        return ""


def _query_id(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next(
        (one.query_id for one in messages if isinstance(one, StagedMessage) and one.query_id), None
    )
