"""The driver's half of a write: publish each (application, version) once, durably, and never twice.

The record of the last version of an application is a committed offset: group
`__eoslog-spark-APPLICATION`, partition 0 of the topic that is written to, or of
`__consumer_offsets` where the rows name their topics, offset = version. So the same version may go
to several topics, as it may to several tables elsewhere. It is committed in the same transaction as
the data, so one cannot be there without the other, and it is looked up
in memory. The transactional id `eoslog-spark-APPLICATION` fences a second driver: whoever calls
`init_transactions` last wins, and finishes what the other had decided before it looks up the
version.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import eoslog
from eoslog.client import staging
from eoslog.client.publishing import publish
from eoslog.errors import CommitOutcomeUnknown, TransactionAborted
from eoslog.model import CONSUMER_OFFSETS_TOPIC, OWN_GROUPS, OffsetAndMetadata, TopicPartition
from eoslog.storage import files

if TYPE_CHECKING:
    from eoslog.client.staging import Attempt
    from eoslog.log import Log
    from pyspark_eoslog.options import Options

logger = logging.getLogger(__name__)

# Kafka's greatest; publishing copies staged files, which takes as long as the disk takes.
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
    key = version_key(topic)
    found = log.engine.groups.fetch_offsets(version_group(app_id), [key], require_stable=True)
    committed = found.get(key)
    return committed.offset if committed is not None and committed.offset >= 0 else None


def publish_once(
    options: Options,
    app_id: str | None,
    version: int | None,
    attempts: Sequence[Attempt],
    *,
    jobs: Sequence[str],
) -> bool:
    """Publishes the winning attempts in one transaction, unless this version was published before.

    Args:
        options: Of the write.
        app_id: Whom versions belong to; None for a write that is not to be recognised again.
        version: Grows from write to write; an equal or smaller one was committed before.
        attempts: What the winning tasks staged.
        jobs: Staging directories to retire when it is decided.

    Returns:
        Whether anything was published; False for a replay.

    Raises:
        ProducerFenced: Another driver took over the application's transactional id.
        CommitOutcomeUnknown: Still not known after asking again; a retry with the same version is
        safe. TransactionAborted: It was not known and then found to be aborted.

    **Durability:** data and version are durable on return.
    """
    files.failpoint("spark.commit.begun")
    log = eoslog.open(options.path, create=False)
    try:
        published = _publish(log, options, app_id, version, attempts)
    finally:
        log.close()
    # Decided: nobody needs the files any more, neither the winners' nor those of attempts that
    # lost.
    staging.retire(options.path, jobs, options.staging_retention_hours * 3600)
    files.failpoint("spark.commit.finished")
    return published


def _publish(
    log: Log, options: Options, app_id: str | None, version: int | None, attempts: Sequence[Attempt]
) -> bool:
    if app_id is None and not any(one.count for one in attempts):
        return False
    name = (
        f"eoslog-spark-{app_id}" if app_id is not None else f"eoslog-spark-once-{uuid.uuid4().hex}"
    )
    config = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
    with log.producer(config) as producer:
        producer.init_transactions()
        if app_id is not None and _is_replay(log, app_id, options.topic, version):
            return False
        offsets = None
        if version is not None:
            offsets = {version_key(options.topic): OffsetAndMetadata(version)}
        group = version_group(app_id) if app_id is not None else None
        try:
            publish(producer, options.path, attempts, offsets=offsets, group=group)
            return True
        except CommitOutcomeUnknown as error:
            logger.warning("the outcome of the commit of %s is not known, asking again", name)
            unknown = error
    # The next instance of the id drives the transaction to its end and tells which end that was.
    with log.producer(config) as successor:
        outcome = successor.init_transactions()
        if outcome is not None and outcome.committed:
            return True
        if app_id is not None and _is_replay(log, app_id, options.topic, version):
            return True
    if outcome is None and app_id is None:
        raise unknown  # neither an outcome nor a version to look up
    # What was staged is used up: the job, or the micro-batch, is to be run again.
    raise TransactionAborted(f"{name}: the commit failed and was aborted: {unknown}") from unknown


def _is_replay(log: Log, app_id: str, topic: str | None, version: int | None) -> bool:
    last = last_version(log, app_id, topic)
    if last is None or version is None or version > last:
        return False
    logger.info(
        "version %d of %r was committed before (last is %d): skipped", version, app_id, last
    )
    return True
