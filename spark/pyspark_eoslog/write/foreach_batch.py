"""Exactly-once writes in `foreachBatch`, for update mode and for several sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OWN = {"txnappid", "txnversion", "txnreplay"}
_QUERY_ID = "sql.streaming.queryId"


def write_once(
    path: str, topic: str | None = None, *, app_id: str, **options: str
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each batch once.

    The version is the batch id. The application is `app_id` with the query's id: a new checkpoint
    is a new query, whose batches begin at 0 and are not replays. If a checkpoint went back, the
    query fails with IllegalState. If Spark does not show the query's checkpoint, a batch with the
    number of the last one is refused only if it has another number of rows.

    Args:
        path: The eoslog directory.
        topic: Topic of all rows; None to use the column `topic`.
        app_id: Name of this sink, unique among the sinks of the query. A second write of a batch
            with the same name and topic is skipped.
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
        from pyspark_eoslog.write.batch import MICRO_BATCH

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
        context = frame.sparkSession.sparkContext
        context.setLocalProperty(MICRO_BATCH, _mark(frame.sparkSession, query_id, batch_id))
        try:
            writer.mode("append").save()
        finally:
            context.setLocalProperty(MICRO_BATCH, None)  # type: ignore[arg-type]

    return write


def _mark(session: SparkSession, query_id: str, batch_id: int) -> str:
    """Return the mark of a batch; empty if Spark does not show the checkpoint.

    Spark's JVM reads the checkpoint, which may be in any file system.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from pyspark_eoslog.write.stream import mark_of

    jvm, java = session.sparkContext._jvm, session._jsparkSession
    try:
        key = jvm.java.util.UUID.fromString(query_id)
        query = java.sharedState().activeStreamingQueries().get(key)
        name = f"{query.resolvedCheckpointRoot()}/offsets/{batch_id}"
        path = jvm.org.apache.hadoop.fs.Path(name)
        stream = path.getFileSystem(java.sessionState().newHadoopConf()).open(path)
        try:
            return mark_of(stream.readAllBytes())
        finally:
            stream.close()
    except (Py4JError, AttributeError, TypeError):
        return ""
