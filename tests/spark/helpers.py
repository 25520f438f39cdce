"""Helpers of the Spark tests: read, write, and check a topic without Spark."""

from pathlib import Path

from pyspark.errors import StreamingQueryException

from eoslog.connector.staging import STAGING

ENDED_S = 500
"""Seconds for what ends without waiting: a failed test, not a slow machine, takes longer."""
TOO_SLOW = "Python worker failed to connect back"
"""The error of Spark if a stream's Python worker needs more than 10 s to start."""


def ended(begin):
    """A query that has ended; begun again if its worker was too slow to start.

    The worker starts before the query notes an offset, so another start changes nothing.
    """
    for _ in range(20):
        query = begin()
        try:
            assert query.awaitTermination(ENDED_S)
            return query
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error):
                raise
    raise AssertionError(TOO_SLOW)


def reader(spark, log, **options):
    return spark.read.format("eoslog").options(path=log.path, **options)


def read(spark, log, topic, **options):
    return reader(spark, log, subscribe=topic, **options).load()


def write(frame, log, topic, **options):
    frame.write.format("eoslog").options(path=log.path, topic=topic, **options).mode(
        "append"
    ).save()


def produce(log, topic, records, *, abort=False, transactional_id="test"):
    """Records `(value, key, partition, timestamp)` in one transaction."""
    with log.producer({"transactional.id": transactional_id}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value, key, partition, timestamp in records:
            producer.produce(topic, value, key, partition=partition, timestamp=timestamp)
        if abort:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def values(log, topic, isolation="read_committed"):
    """All values of a topic, as eoslog itself reads them."""
    found = []
    for batch in log.scan(topic, columns=["value"], isolation=isolation, binary="copy"):
        found += batch.column("value").to_pylist()
    return found


def staged(log):
    """Names of the jobs in the staging directory, except those being removed."""
    folder = Path(log.path) / STAGING
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return sorted(name for name in names if not name.endswith(".done"))


def message_of(caught):
    """What the user gets to read."""
    return str(caught.value)
