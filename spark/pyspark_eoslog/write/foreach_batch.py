"""Exactly-once writes in `foreachBatch`, for update mode and for several sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OWN = {"txnappid", "txnversion", "txnreplay"}
_QUERY_ID = "sql.streaming.queryId"


def write_once(
    path: str, topic: str | None = None, *, app_id: str, **options: str
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each batch once.

    The version is the batch id. The application is `app_id` with the query's id: a new checkpoint
    is a new query, whose batches begin at 0 and are not replays. If a checkpoint went back, the
    query fails with IllegalState.

    Args:
        path: The eoslog directory.
        topic: Topic of all rows; None to use the column `topic`.
        app_id: Name of this sink, unique among the sinks of the query.
        options: Further options of the sink.

    Raises:
        ValueError: if `app_id` is empty. The function itself raises RuntimeError outside of a
            query.
        ConfigError: if an option has no effect in a write, or this function sets it.
    """
    if not app_id:
        raise ValueError("app_id must name the sink: it tells the writes of one batch apart")
    # Spark imports this package to list data sources, so its import must not need others.
    from eoslog.errors import ConfigError
    from pyspark_eoslog.options.options import Use, check_use

    own = [name for name in options if name.lower() in _OWN]
    if own:
        raise ConfigError(
            f"write_once: options {', '.join(map(repr, own))} are set from the query and the batch "
            "id; remove them (app_id names the application)"
        )
    check_use(options, Use.BATCH_WRITE)

    def write(frame: DataFrame, batch_id: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise RuntimeError(
                f"Spark did not set {_QUERY_ID}: use this function in foreachBatch only"
            )
        writer = frame.write.format("eoslog").options(path=path, **options)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer = writer.option("txnAppId", f"{app_id}-{query_id}").option("txnVersion", batch_id)
        writer = writer.option("txnReplay", "last")  # an older version: the checkpoint went back
        writer.mode("append").save()

    return write
