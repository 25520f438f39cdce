"""Streaming source: offsets as JSON of topics and partitions, whole transactions up to the latest
offset.

Runs in one long-lived process of the driver; `read` runs in tasks from a pickled copy and keeps no
state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from eoslog.errors import ConfigError
from pyspark_eoslog.options import LATEST, Bound, Options, PartitionKey
from pyspark_eoslog.planning import (
    latest_offsets,
    open_for_planning,
    resolve,
    split,
    subscribed_partitions,
    within_log,
)
from pyspark_eoslog.reader import OffsetRange, read_range
from pyspark_eoslog.schema import check_source_schema

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pyspark 4.0 and 4.1 have no rate limits
    raise ConfigError("the streaming source needs pyspark 4.2 or newer") from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Offsets = dict[PartitionKey, int]


class EoslogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as an unbounded table; new partitions begin at their earliest offset."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Checks options and schema.

        Raises:
            ConfigError: A user schema with a column or type that there is not, or an end, which a
            stream has not.
        """
        check_source_schema(schema)
        if options.ending is not None:
            raise ConfigError(
                f"option '{options.ending.option}' has no meaning in a stream: it has no end"
            )
        self.options = options
        self.schema = schema
        self._pinned: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        bound = self.options.starting or Bound("startingOffsets", word=LATEST)
        with open_for_planning(self.options.path) as log:
            keys = subscribed_partitions(log, self.options)
            return to_json(
                resolve(log, self.options, bound, latest_offsets(log, keys, self.options.isolation))
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRecordsPerTrigger`, or everything."""
        limit = self.options.max_records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Pins the end of an AvailableNow run."""
        self._pinned = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` itself if there is nothing to read."""
        begin = from_json(start)
        end = self._latest() if self._pinned is None else self._pinned
        # Partitions that the query never saw begin where they begin.
        with_new = self._with_new_partitions(begin, end)
        end = {key: max(end.get(key, offset), offset) for key, offset in with_new.items()}
        pending = sum(end[key] - with_new[key] for key in end)
        if pending == 0:
            return start
        least = self.options.min_offsets_per_trigger
        if least is not None and pending < least and self._pinned is None:
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(with_new, end, limit.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the log, so that progress reports show the lag."""
        return to_json(self._latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; asked again after a restart, for the range it was in."""
        stop = from_json(end)
        begin = self._with_new_partitions(from_json(start), stop)
        ranges = []
        with open_for_planning(self.options.path) as log:
            latest = latest_offsets(log, sorted(stop), self.options.isolation)
            for (topic, partition), last in sorted(stop.items()):
                first, last = within_log(
                    log, self.options, topic, partition, begin[topic, partition], last,
                    max(latest[topic, partition], last),
                )  # fmt: skip
                ranges.append((topic, partition, first, last))
        pieces = split(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [OffsetRange(*piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the records of one range."""
        if isinstance(partition, OffsetRange):
            yield from read_range(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint is the truth."""

    def _latest(self) -> Offsets:
        with open_for_planning(self.options.path) as log:
            keys = subscribed_partitions(log, self.options)
            return latest_offsets(log, keys, self.options.isolation)

    def _with_new_partitions(self, begin: Offsets, end: Offsets) -> Offsets:
        new = [key for key in end if key not in begin]
        if not new:
            return dict(begin)
        with open_for_planning(self.options.path) as log:
            return begin | {key: log.offsets(*key).log_start for key in new}


def to_json(offsets: Offsets) -> dict[str, Any]:
    """`{"topic": {"0": 23}}`, the form of Spark's Kafka source."""
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def from_json(offsets: dict[str, Any]) -> Offsets:
    """The inverse of `to_json`."""
    return {
        (topic, int(partition)): offset
        for topic, inner in offsets.items()
        for partition, offset in inner.items()
    }


def limited(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """Ends moved back so that about `most` offsets lie between, shared by how much each partition
    has waiting.

    At least one offset moves, or the query would stand still.
    """
    sizes = {key: end[key] - begin[key] for key in end}
    total = sum(sizes.values())
    if total <= most:
        return end
    result, carried = {}, 0.0
    for key in sorted(sizes):
        # Shares are carried over, so that rounding down never leaves the sum at zero.
        carried += sizes[key] * most / total
        taken = min(sizes[key], int(carried + 1e-9))
        carried -= taken
        result[key] = begin[key] + taken
    return result
