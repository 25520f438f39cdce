"""The driver's half of a write: publish each (application, version) once, durably, and never twice.

The record of the last version of an application is a committed offset: group
`__eoslog-spark-APPLICATION`, partition `__consumer_offsets-0`, offset = version. It is committed
in the same transaction as the data, so one cannot be there without the other, and it is looked up
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
from eoslog.model import CONSUMER_OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition
from eoslog.storage import files

if TYPE_CHECKING:
    from eoslog.client.staging import Attempt
    from eoslog.log import Log
    from pyspark_eoslog.options import Options

logger = logging.getLogger(__name__)

# An offset belongs to a partition that exists; this one always does, and nobody reads it as a
# position.
VERSION_KEY = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
# Kafka's greatest; publishing copies staged files, which takes as long as the disk takes.
TRANSACTION_TIMEOUT_MS = 900_000


def version_group(app_id: str) -> str:
    """The group whose committed offset is the application's last version."""
    return f"__eoslog-spark-{app_id}"


def last_version(log: Log, app_id: str) -> int | None:
    """The greatest version of an application that was committed, None if there is none."""
    found = log.engine.groups.fetch_offsets(
        version_group(app_id), [VERSION_KEY], require_stable=True
    )
    committed = found.get(VERSION_KEY)
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
        if app_id is not None and _is_replay(log, app_id, version):
            return False
        offsets = {VERSION_KEY: OffsetAndMetadata(version)} if version is not None else None
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
        if app_id is not None and _is_replay(log, app_id, version):
            return True
    if outcome is None and app_id is None:
        raise unknown  # neither an outcome nor a version to look up
    # What was staged is used up: the job, or the micro-batch, is to be run again.
    raise TransactionAborted(f"{name}: the commit failed and was aborted: {unknown}") from unknown


def _is_replay(log: Log, app_id: str, version: int | None) -> bool:
    last = last_version(log, app_id)
    if last is None or version is None or version > last:
        return False
    logger.info(
        "version %d of %r was committed before (last is %d): skipped", version, app_id, last
    )
    return True
