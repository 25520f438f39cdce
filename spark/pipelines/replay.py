r"""Replay: the records of a span of time from one topic into another, once.

    spark-submit spark/pipelines/replay.py --dir DIR --source flights --target again \
        --from 2013-06-01 --until 2013-07-01

Key, value, partition and timestamp stay; offsets are the target's. The time index finds the start
of the span, so no earlier record is read. Each record is also compared with the span, because
records need not be in order of their times. The span is the version: a second replay of it into the
same target writes nothing.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def milliseconds(day: str) -> int:
    """A date or time (UTC unless it says otherwise) as ms since 1970."""
    moment = datetime.fromisoformat(day)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def replay(
    spark: SparkSession, directory: str, source: str, target: str, since: str, until: str
) -> None:
    """Copy the records of [since, until) from `source` into `target`, once."""
    first, last = milliseconds(since), milliseconds(until)
    frame = spark.read.format("eoslog").options(
        path=directory, subscribe=source, startingTimestamp=first,
        startingOffsetsByTimestampStrategy="latest", includeHeaders="true",
    )  # fmt: skip
    span = frame.load().where(
        f"timestamp >= timestamp_millis({first}) AND timestamp < timestamp_millis({last})"
    )
    writer = span.select("key", "value", "partition", "timestamp", "headers").write
    writer = writer.format("eoslog").options(path=directory, topic=target)
    name = f"replay-{source}-{target}-{first}-{last}"
    writer.options(txnAppId=name, txnVersion=0).mode("append").save()


def main() -> None:
    """Run with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("--dir", "--source", "--target", "--from", "--until"):
        parser.add_argument(option, required=True)
    given = vars(parser.parse_args())
    spark = session("replay")
    replay(spark, given["dir"], given["source"], given["target"], given["from"], given["until"])
    spark.stop()


if __name__ == "__main__":
    main()
