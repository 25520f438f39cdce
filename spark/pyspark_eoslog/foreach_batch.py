"""Exactly once out of `foreachBatch`: for queries in update mode, and for more than one sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


def write_once(
    path: str, topic: str | None = None, *, app_id: str, **options: str
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch` that writes each micro-batch once.

    The version is the batch id, the application `app_id` and the query's id together: a new
    checkpoint is a new query, whose batches begin at 0 and are no replays. A checkpoint that has
    gone back ends the query by IllegalState.

    Args:
        path: The eoslog directory.
        topic: Where all rows go; None to follow a column `topic`.
        app_id: Names this sink among those that the query feeds.
        options: Further options of the sink.

    Raises:
        ValueError: `app_id` is empty. The function itself raises RuntimeError outside of a query.
    """
    if not app_id:
        raise ValueError("app_id must name the sink: it tells the writes of one batch apart")

    def write(frame: DataFrame, batch_id: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise RuntimeError(f"no streaming query runs here: Spark did not set {_QUERY_ID}")
        writer = frame.write.format("eoslog").options(path=path, **options)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer = writer.option("txnAppId", f"{app_id}-{query_id}").option("txnVersion", batch_id)
        writer = writer.option("txnReplay", "last")  # an older one: the checkpoint has gone back
        writer.mode("append").save()

    return write
