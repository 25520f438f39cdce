"""The driver's half of a write: publish each (application, version) exactly once.

The last version of an application is stored as a committed offset. Its group is
`__eoslog-spark-APPLICATION`, and the offset is the version. The partition is number 0 of the
written topic, or of `__consumer_offsets` if the rows name their topics. So the same version may go
to several topics. The version is committed in the same transaction as the data, so neither exists
without the other, and its lookup is in memory. Its metadata has the number of records of the
version and the micro-batch.

The transactional id `eoslog-spark-APPLICATION` fences a second driver. The driver that calls
`init_transactions` last wins. It completes the decided transaction of the other driver before it
looks up the version.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import eoslog
from eoslog.connector import Staged, failpoint, retire
from eoslog.errors import CommitOutcomeUnknown, IllegalState, TransactionAborted
from eoslog.model import CONSUMER_OFFSETS_TOPIC, OWN_GROUPS, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eoslog import Log
    from eoslog.connector import Attempt
    from pyspark_eoslog.options.options import Options

logger = logging.getLogger(__name__)

# Kafka's maximum; publishing may copy staged files, which takes as long as the disk takes.
TRANSACTION_TIMEOUT_MS = 900_000


def version_group(app_id: str) -> str:
    """Return the group whose committed offset is the application's last version."""
    return f"{OWN_GROUPS}spark-{app_id}"


def version_key(topic: str | None) -> TopicPartition:
    """Return the partition that stores a topic's version; it is not a read position."""
    return TopicPartition(topic if topic is not None else CONSUMER_OFFSETS_TOPIC, 0)


def last_version(log: Log, app_id: str, topic: str | None = None) -> int | None:
    """Return the last committed version of an application in a topic, None if none.

    Args:
        log: The directory.
        app_id: Value of the option `txnAppId`.
        topic: Value of the option `topic`; None if the rows name their topics.
    """
    committed = _last_commit(log, app_id, topic)
    return committed.offset if committed is not None else None


def _last_commit(log: Log, app_id: str, topic: str | None) -> OffsetAndMetadata | None:
    key = version_key(topic)
    found = log.committed(version_group(app_id), [key])
    committed = found.get(key)
    return committed if committed is not None and committed.offset >= 0 else None


def publish_once(
    options: Options,
    app_id: str | None,
    version: int | None,
    attempts: Sequence[Attempt],
    *,
    jobs: Sequence[str],
    topic_ids: Iterable[tuple[str, bytes]] = (),
    micro_batch: str | None = None,
) -> bool:
    """Publish the winning attempts in one transaction, unless this is a replay.

    Args:
        options: Options of the write.
        app_id: Application of the version; None for a write that has no version.
        version: Number that increases from write to write; an equal or smaller one was committed
            before.
        attempts: The winning attempts.
        jobs: Staging directories to retire after the decision.
        topic_ids: The written topics, with the ids for which the rows were routed.
        micro_batch: For a stream, which may repeat only its last version: a mark that distinguishes
            this batch from another of the same version; empty if it is not known.

    Returns:
        Whether anything was published; False for a replay.

    Raises:
        IllegalState: if the micro-batch is older than the last one, or another one with the same
            version; its rows may never have been written. If a mark is not known, another number of
            records shows that it is another one.
        IllegalState: if a written topic was re-created.
        ProducerFenced: if another driver took over the application's transactional id.
        CommitOutcomeUnknown: if the outcome is unknown even after a second check. A retry with the
            same version is safe; it is skipped if a later version was committed in the meantime.
        TransactionAborted: if the outcome was unknown and then found to be an abort.

    **Durability:** data and version are durable on return.
    """
    failpoint("spark.commit.begun")
    with (
        eoslog.open(options.path, create=False) as log,
        # Reads the staged files while the producer is initialised.
        Staged(options.path, attempts, strict=log.durability == "strict") as staged,
    ):
        published = _publish(log, options, app_id, version, staged, topic_ids, micro_batch)
    # Decided: the files of winning and losing attempts are not needed any more.
    retire(options.path, jobs, options.staging_retention_hours * 3600)
    failpoint("spark.commit.finished")
    return published


def _publish(
    log: Log,
    options: Options,
    app_id: str | None,
    version: int | None,
    staged: Staged,
    topic_ids: Iterable[tuple[str, bytes]],
    micro_batch: str | None,
) -> bool:
    said = {"records": staged.count, "batch": micro_batch or ""}

    def is_replay() -> bool:
        if app_id is None or version is None:
            return False
        last = _last_commit(log, app_id, options.topic)
        if last is None or version > last.offset:
            if micro_batch and last is not None and version > last.offset + 1:
                logger.warning(
                    "query %r: batch %d follows batch %d in this log: the batches between were "
                    "written to another log, or this directory is an older copy without them",
                    app_id,
                    version,
                    last.offset,
                )
            return False
        if micro_batch is not None:
            _check_same(app_id, version, said, last)
        logger.info("version %d of %r was committed before: skipped", version, app_id)
        return True

    def check_topics() -> None:
        for name, planned in topic_ids:
            if log.topic_id(name) != planned:
                raise IllegalState(
                    f"topic {name!r} was deleted and re-created after the write was planned, and "
                    "the rows were routed for its earlier partitions; nothing was written; run "
                    "the job or the query again"
                )

    if app_id is None and not staged.count:
        return False
    name = (
        f"eoslog-spark-{app_id}" if app_id is not None else f"eoslog-spark-once-{uuid.uuid4().hex}"
    )
    config = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
    with log.producer(config) as producer:
        producer.init_transactions()
        if is_replay():
            return False
        offsets = None
        if version is not None:
            offsets = {
                version_key(options.topic): OffsetAndMetadata(version, metadata=json.dumps(said))
            }
        group = version_group(app_id) if app_id is not None else None
        try:
            staged.publish(producer, offsets=offsets, group=group, check=check_topics)
            return True
        except CommitOutcomeUnknown as error:
            logger.warning("the outcome of the commit of %s is not known, asking again", name)
            unknown = error
    failpoint("spark.commit.unknown")
    # The next instance of the id completes the transaction and returns its outcome.
    with log.producer(config) as successor:
        outcome = successor.init_transactions()
        if app_id is None:  # only this write uses the id
            if outcome is None:
                raise unknown
            if outcome.committed:
                return True
        elif is_replay():  # the outcome may be that of another write
            if last_version(log, app_id, options.topic) == version:
                return True
            raise CommitOutcomeUnknown(
                f"{name}: another write committed a later version in the meantime, so it is "
                f"unknown whether version {version} was committed before: {unknown}"
            ) from unknown
    # The staged files are consumed: Spark must run the job or the micro-batch again.
    raise TransactionAborted(f"{name}: the commit failed and was aborted: {unknown}") from unknown


def _check_same(app_id: str, version: int, now: dict[str, Any], last: OffsetAndMetadata) -> None:
    """Check that a repeated micro-batch is the last one, with the same input.

    Spark never repeats an older one.

    Raises:
        IllegalState: if it is an older or another one, because the checkpoint went back; without
            both marks, if it has another number of records.
    """
    try:
        before = json.loads(last.metadata or "{}")
    except ValueError:
        before = {}
    known = before.get("batch") and now["batch"]
    other = known and before["batch"] != now["batch"]
    if version < last.offset or other:
        why = (
            "the query's checkpoint went back (it was restored from a copy, or its files were lost)"
        )
    elif not known and before.get("records", now["records"]) != now["records"]:
        why = (
            f"then with {before['records']} records, now with {now['records']}, and the checkpoint "
            "that would show whether the input is the same cannot be read: either the query's "
            "checkpoint went back, or the query returns other rows for the same input"
        )
    else:
        return
    raise IllegalState(
        f"batch {version} of the query {app_id!r} was committed before, up to batch "
        f"{last.offset}: {why}, and skipping this batch could lose its rows; nothing was written; "
        "find the first input offset whose rows the topic lacks, and start the query with a new "
        "checkpoint and startingOffsets at that offset (a later one loses rows, an earlier one "
        "repeats them)"
    )
