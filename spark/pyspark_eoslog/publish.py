"""The driver's half of a write: publish each (application, version) once, durably, and never twice.

The record of the last version of an application is a committed offset: group
`__eoslog-spark-APPLICATION`, partition 0 of the topic that is written to, or of
`__consumer_offsets` where the rows name their topics, offset = version. So the same version may go
to several topics, as it may to several tables elsewhere. It is committed in the same transaction as
the data, so one cannot be there without the other, and it is looked up
in memory. Its metadata says how many records the version had, and which micro-batch it was.

The transactional id `eoslog-spark-APPLICATION` fences a second driver: whoever calls
`init_transactions` last wins, and finishes what the other had decided before it looks up the
version.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import eoslog
from eoslog.client import staging
from eoslog.client.publishing import Staged
from eoslog.errors import CommitOutcomeUnknown, IllegalState, TransactionAborted
from eoslog.model import CONSUMER_OFFSETS_TOPIC, OWN_GROUPS, OffsetAndMetadata, TopicPartition
from eoslog.storage import files

if TYPE_CHECKING:
    from eoslog.client.staging import Attempt
    from eoslog.log import Log
    from pyspark_eoslog.options import Options

logger = logging.getLogger(__name__)

# Kafka's greatest; publishing may copy staged files, which takes as long as the disk takes.
TRANSACTION_TIMEOUT_MS = 900_000


def version_group(app_id: str) -> str:
    """The group whose committed offset is the application's last version."""
    return f"{OWN_GROUPS}spark-{app_id}"


def version_key(topic: str | None) -> TopicPartition:
    """Where the version of what is written to a topic is kept; nobody reads it as a position."""
    return TopicPartition(topic if topic is not None else CONSUMER_OFFSETS_TOPIC, 0)


def last_version(log: Log, app_id: str, topic: str | None = None) -> int | None:
    """The greatest version of an application that was committed to a topic, None if there is none.

    Args:
        log: The directory.
        app_id: As the option `txnAppId`.
        topic: As the option `topic`; None where the rows name their topics.
    """
    committed = _last_commit(log, app_id, topic)
    return committed.offset if committed is not None else None


def _last_commit(log: Log, app_id: str, topic: str | None) -> OffsetAndMetadata | None:
    key = version_key(topic)
    found = log.engine.groups.fetch_offsets(version_group(app_id), [key], require_stable=True)
    committed = found.get(key)
    return committed if committed is not None and committed.offset >= 0 else None


def publish_once(
    options: Options,
    app_id: str | None,
    version: int | None,
    attempts: Sequence[Attempt],
    *,
    jobs: Sequence[str],
    micro_batch: str | None = None,
) -> bool:
    """Publishes the winning attempts in one transaction, unless this version was published before.

    Args:
        options: Of the write.
        app_id: Whom versions belong to; None for a write that is not to be recognised again.
        version: Grows from write to write; an equal or smaller one was committed before.
        attempts: What the winning tasks staged.
        jobs: Staging directories to retire when it is decided.
        micro_batch: Of a stream, whose last version alone may come again: what tells this batch
            from another of the same version, empty where that is not known.

    Returns:
        Whether anything was published; False for a replay.

    Raises:
        IllegalState: A micro-batch older than the last one, or another one of its version: what it
            holds may never have been written.
        ProducerFenced: Another driver took over the application's transactional id.
        CommitOutcomeUnknown: Still not known after asking again; a retry with the same version is
            safe, and skipped where a later one was committed meanwhile.
        TransactionAborted: It was not known and then found to be aborted.

    **Durability:** data and version are durable on return.
    """
    files.failpoint("spark.commit.begun")
    with (
        eoslog.open(options.path, create=False) as log,
        # Reads what was staged while the producer is made ready.
        Staged(options.path, attempts, strict=log.engine.durability == "strict") as staged,
    ):
        published = _publish(log, options, app_id, version, staged, micro_batch)
    # Decided: nobody needs the files any more, neither the winners' nor those of attempts that
    # lost.
    staging.retire(options.path, jobs, options.staging_retention_hours * 3600)
    files.failpoint("spark.commit.finished")
    return published


def _publish(
    log: Log,
    options: Options,
    app_id: str | None,
    version: int | None,
    staged: Staged,
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
                    "batch %d of the query %r follows on batch %d here: those between went "
                    "elsewhere, or this directory is an older copy and lacks them",
                    version,
                    app_id,
                    last.offset,
                )
            return False
        if micro_batch is not None:
            _check_same(app_id, version, said, last)
        logger.info("version %d of %r was committed before: skipped", version, app_id)
        return True

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
            staged.publish(producer, offsets=offsets, group=group)
            return True
        except CommitOutcomeUnknown as error:
            logger.warning("the outcome of the commit of %s is not known, asking again", name)
            unknown = error
    files.failpoint("spark.commit.unknown")
    # The next instance of the id drives the transaction to its end and tells which end that was.
    with log.producer(config) as successor:
        outcome = successor.init_transactions()
        if app_id is None:  # the id is of this write alone
            if outcome is None:
                raise unknown
            if outcome.committed:
                return True
        elif is_replay():  # the outcome may be another write's
            if last_version(log, app_id, options.topic) == version:
                return True
            raise CommitOutcomeUnknown(
                f"{name}: another write committed a later version meanwhile; whether version "
                f"{version} was committed before can't be told any more: {unknown}"
            ) from unknown
    # What was staged is used up: the job, or the micro-batch, is to be run again.
    raise TransactionAborted(f"{name}: the commit failed and was aborted: {unknown}") from unknown


def _check_same(app_id: str, version: int, now: dict[str, Any], last: OffsetAndMetadata) -> None:
    """Spark runs its last micro-batch again, with the same input, and never an older one.

    Raises:
        IllegalState: It is an older one, or another: the checkpoint has gone back.
    """
    try:
        before = json.loads(last.metadata or "{}")
    except ValueError:
        before = {}
    other = before.get("batch") and now["batch"] and before["batch"] != now["batch"]
    if version < last.offset or other:
        raise IllegalState(
            f"batch {version} of the query {app_id!r} was committed here before, "
            f"up to batch {last.offset}: the query's checkpoint has gone back (restored from a "
            "copy, or its files were lost), and skipping this batch could lose its rows. See what "
            "the topic holds already and go on with a new checkpoint, startingOffsets where the "
            "topic ends; in foreachBatch another app_id, or another txnAppId, does it too"
        )
    known = bool(before.get("batch") and now["batch"])
    if not known and before.get("records", now["records"]) != now["records"]:
        logger.warning(
            "batch %d of the query %r was committed before with %s records, it has %d now: "
            "skipped. If its input is always the same, its checkpoint has gone back, and rows are "
            "missing",
            version,
            app_id,
            before["records"],
            now["records"],
        )
