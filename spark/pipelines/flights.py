"""All pipelines on the 336,776 flights of New York 2013 in sequence, with checks.

    python spark/pipelines/flights.py [--limit ROWS]

Not from the root of a checkout: Spark's Python workers import from where they are started first,
and the core is not built there. `make run` starts it elsewhere.

Each job runs twice, as after a crash: the second run must change nothing. What they made is
compared with what the CSV file says, computed by Arrow, without Spark and without eoslog.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import bulk_load
import compact_to_parquet
import replay
import windowed_delays
from pyspark.errors import StreamingQueryException
from session import session

import eoslog
from eoslog.demo import dataset

JUNE = ("2013-06-01", "2013-07-01")
failures: list[str] = []


def check(what: str, found: object, expected: object) -> None:
    """Say whether two things agree."""
    if found != expected:
        failures.append(what)
    shown = f"{found:,}" if isinstance(found, int) else "as the file says"
    agrees = "ok" if found == expected else f"WRONG, expected {expected!r:.200} got {found!r:.200}"
    print(f"  {what}: {shown}  {agrees}", flush=True)


def step(name: str, run: Callable[[], object]) -> None:
    """Run a job and say how long it took."""
    started = time.monotonic()
    run()
    print(f"{name}  {time.monotonic() - started:.1f} s", flush=True)


def values(directory: str, topic: str) -> list[bytes]:
    """What a topic holds, read without Spark."""
    with eoslog.open(directory, read_only=True) as log:
        scan = log.scan(topic, columns=["value"], binary="copy")
        return [one for batch in scan for one in batch.column("value").to_pylist()]


def main() -> int:
    """Run them all; 0 if everything agrees."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--limit", type=int, help="Use only the first N flights. [default: all]")
    limit = parser.parse_args().limit
    with tempfile.TemporaryDirectory(prefix="eoslog-pipelines-") as scratch:
        return run(Path(scratch), limit)


def run(scratch: Path, limit: int | None) -> int:
    """In a folder of its own."""
    directory, source = str(scratch / "log"), str(scratch / "flights.csv")
    with zipfile.ZipFile(dataset.data_directory() / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").splitlines(keepends=True)
    rows = lines[1:] if limit is None else lines[1 : limit + 1]
    Path(source).write_bytes(b"".join([lines[0], *rows]))
    with eoslog.open(directory) as log:
        for topic in ("flights", "weekly", "june"):
            log.create_topic(topic, 2)
    table = scratch / "table"
    started = time.monotonic()
    spark = session("flights", str(scratch / "spark"))
    print(f"session  {time.monotonic() - started:.1f} s", flush=True)
    try:

        def load() -> None:
            bulk_load.load(
                spark, source, directory, "flights", key="carrier", time="time_hour",
                name="flights-2013", version=1,
            )  # fmt: skip

        def windows() -> None:
            checkpoint = str(scratch / "checkpoint")
            for attempt in range(3):
                query = windowed_delays.run(spark, directory, "flights", "weekly", checkpoint)
                try:
                    query.awaitTermination()
                    return
                except StreamingQueryException as error:
                    # A busy machine may take longer to start a Python worker than Spark waits. A
                    # second run resumes where the first one ended.
                    if "connect back" not in str(error) or attempt == 2:
                        raise
                    print("  a worker was too slow: the query is started again", flush=True)

        def again() -> None:
            replay.replay(spark, directory, "flights", "june", *JUNE)

        step("bulk load", load)
        step("bulk load, again", load)
        check("flights loaded", len(values(directory, "flights")), len(rows))
        step("windowed aggregation", windows)
        check_windows(source, directory)
        step("windowed aggregation, again", windows)
        check_windows(source, directory)
        step("to Parquet", lambda: compact_to_parquet.compact(spark, directory, "flights", table))
        check("rows added by a second run",
              compact_to_parquet.compact(spark, directory, "flights", table), 0)  # fmt: skip
        found = spark.read.parquet(*compact_to_parquet.files(table))
        check("rows in Parquet", found.select("partition", "offset").distinct().count(), len(rows))
        step("replay of June", again)
        step("replay of June, again", again)
        wanted = sum(in_june(row.split(b",")) for row in rows)
        check("flights in June", len(values(directory, "june")), wanted)
    finally:
        spark.stop()
    print("pipelines: everything agrees" if not failures else f"WRONG: {', '.join(failures)}")
    return 1 if failures else 0


def in_june(fields: list[bytes]) -> bool:
    """Return whether a line of the file is of a flight whose hour is in June."""
    return fields[-1].strip().strip(b'"').startswith(b"2013-06")


def check_windows(source: str, directory: str) -> None:
    """The windows that the watermark has passed, as Arrow sums them up from the file."""
    import pyarrow as pa
    from pyarrow import compute, csv

    table = csv.read_csv(
        source, convert_options=csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    )
    hours = table["time_hour"].cast(pa.timestamp("s", "UTC")).cast(pa.int64())
    week = 7 * 86400
    starts = compute.subtract(hours, _modulo(hours, week))
    table = pa.table(
        {
            "carrier": table["carrier"],
            "week": starts,
            "delay": table["dep_delay"].cast(pa.float64()),
        }
    )
    sums = table.group_by(["carrier", "week"]).aggregate([("delay", "sum"), ([], "count_all")])
    passed = compute.max(hours).as_py() - 14 * 86400
    expected = {
        (row["carrier"], row["week"]): (row["count_all"], row["delay_sum"])
        for row in sums.to_pylist()
        if row["week"] + week <= passed
    }
    found = [json.loads(value) for value in values(directory, "weekly")]
    by_window = {
        (one["carrier"], replay.milliseconds(one["week"]) // 1000): (
            one["flights"], one.get("minutes"),
        )
        for one in found
    }  # fmt: skip
    check("windows written", len(found), len(expected))
    check("flights and delays of each window", by_window, expected)


def _modulo(column: object, by: int) -> object:
    from pyarrow import compute

    return compute.subtract(column, compute.multiply(compute.divide(column, by), by))


if __name__ == "__main__":
    sys.exit(main())
