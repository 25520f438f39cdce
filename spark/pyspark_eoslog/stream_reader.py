"""Streaming source: offsets as JSON of topics and partitions, whole transactions up to the latest
offset.

Runs in one long-lived process of the driver, which keeps the directory open; `read` runs in tasks
from a pickled copy and keeps no state.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from eoslog.errors import (
    ConfigError,
    EoslogError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from eoslog.model import TopicPartition
from pyspark_eoslog.catalog import LogCatalog, open_log
from pyspark_eoslog.limits import Offsets, limited
from pyspark_eoslog.options import LATEST, START, Bound, Options, PartitionKey
from pyspark_eoslog.planning import pinned, resolve, subscribed_partitions, within_log
from pyspark_eoslog.reader import ReadTask, read_task
from pyspark_eoslog.schema import check_source_schema
from pyspark_eoslog.splitting import plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eoslog.log import Log

logger = logging.getLogger(__name__)


class EoslogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as an unbounded table; new partitions begin at their earliest offset."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Checks options and schema.

        Raises:
            ConfigError: A user schema with a column or type that there is not, an end, which a
            stream has not, or a layout that streams don't read.
        """
        check_source_schema(schema)
        if options.ending is not None:
            raise ConfigError(
                f"option '{options.ending.option}' has no meaning in a stream: it has no end"
            )
        if options.layout != "eoslog":
            raise ConfigError(
                f"option 'layout' = {options.layout!r} is for batch reads: a stream needs the "
                "ends that an eoslog directory publishes"
            )
        self.options = options
        self.schema = schema
        self._initial: dict[str, Any] | None = None
        self._refused: EoslogError | None = None  # why there is none
        self._pinned: Offsets | None = None
        self._log: Log | None = None
        self._reported: Offsets = {}
        self._moved_at = -math.inf  # the first batch does not wait, as with Kafka's source
        self._done = False

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read files by path; a handle belongs to its process.
        return {**self.__dict__, "_log": None}

    def _catalog(self) -> LogCatalog:
        if self._log is not None and self._log.engine.outdated:
            # Opened where nobody wrote, by who may only read; somebody has written since.
            self._log.close()
            self._log = None
        if self._log is None:
            self._log = open_log(self.options.path)
            if self.options.commit_group is not None and self._log.engine.read_only:
                raise ConfigError(
                    f"option 'commitGroup' = {self.options.commit_group!r} needs a directory that "
                    f"may be written: {self.options.path} is read-only here"
                )
        return LogCatalog(self._log, self.options.isolation)

    def _rest(self) -> None:
        """Spark kills this process at the end of a query: by then the directory must be closed, or
        the next to open it has to recover it. An AvailableNow run knows when it has come there.
        """
        if self._done:
            self.stop()

    def stop(self) -> None:
        """The query ends: lets go of the directory."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins: settled by the first call.

        Spark asks again until the first micro-batch is committed, after a restart too, and keeps no
        answer: what counts then is what that batch's end says (`START`). So options that don't fit,
        any more, are told where they are needed.
        """
        if self._initial is None:
            try:
                self._initial = to_json(self._begin())
            except (ConfigError, OffsetOutOfRange, UnknownTopicOrPartition) as error:
                self._initial, self._refused = {}, error
        return self._initial

    def _begin(self) -> Offsets:
        bound = self.options.starting or Bound("startingOffsets", word=LATEST)
        catalog = self._catalog()
        latest = catalog.latest(self._subscribed(catalog))
        starts = resolve(catalog, self.options, bound, latest)
        begin = {}
        for key, start in starts.items():
            end = latest[key]
            try:
                begin[key], _ = within_log(catalog, self.options, key, start, max(start, end), end)
            except OffsetOutOfRange as error:
                raise OffsetOutOfRange(f"option '{bound.option}': {error}") from None
        return begin

    def getDefaultReadLimit(self) -> ReadLimit:
        """What bounds a micro-batch, so that Spark says when to ignore it (trigger once).

        Spark knows one limit at a time; `latestOffset` applies all of those given.
        """
        options = self.options
        rows = options.max_records_per_trigger or options.max_offsets_per_trigger
        if rows is not None:
            return ReadMaxRows(rows)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Pins the end of an AvailableNow run."""
        self._pinned = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` itself if there is nothing to read.

        Raises:
            OffsetOutOfRange, UnknownTopicOrPartition: Under `failOnDataLoss`, a partition ends
            before what was read of it, or is gone, or the query can't begin where it is told to.
            ConfigError: Options of the start that don't fit the partitions.
        """
        if start != self._initial:  # the first batch is committed, if this is not another's start
            self._initial = self._refused = None
            return self._next(start, limit)
        if self._refused is not None:
            raise self._refused
        return {**self._next(start, limit), START: start}

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        seen = from_json(start)
        # Spark asks for the next batch once the one before is in its commit log.
        self._report(seen)
        end = self._latest() if self._pinned is None else self._pinned
        begin = self._with_new_partitions(seen, end)
        begin, end = self._without_lost(begin, end)
        pending = sum(max(end[key] - begin[key], 0) for key in end)
        if pending == 0 and end == seen:
            self._done = self._pinned is not None
            self._rest()
            return start
        if not isinstance(limit, ReadAllAvailable):
            least = self.options.min_offsets_per_trigger
            waited = time.monotonic() - self._moved_at
            late = self._pinned is not None or waited >= self.options.max_trigger_delay_s
            if least is not None and pending < least and not late:
                return start
            end = limited(self._catalog(), self.options, begin, end)
        self._moved_at = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the log, so that progress reports show the lag."""
        latest = to_json(self._latest())
        self._rest()
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; asked again after a restart, for the range it was in.

        Raises:
            OffsetOutOfRange: Retention deleted what was not read yet, under `failOnDataLoss`.
        """
        stop = from_json(end)
        catalog = self._catalog()
        if START in end and START not in start:
            start = end[START]
        elif self._refused is not None and start == self._initial:
            raise self._refused
        begin = self._with_new_partitions(from_json(start), stop)
        there = self._existing(catalog, stop)
        ends = catalog.latest(sorted(there))
        ranges = []
        for key, last in sorted(stop.items()):
            if key not in there:
                self._lose(UnknownTopicOrPartition(f"{key[0]}-{key[1]} is gone"))
                continue
            first = begin[key]
            if first > last:
                self._lose(
                    OffsetOutOfRange(
                        f"{key[0]}-{key[1]}: the query has read up to {first}, its next batch ends "
                        f"at {last}: the topic was deleted and made anew; "
                        "set failOnDataLoss to false to read it from its start"
                    )
                )
                first = catalog.earliest(*key)
            # Planned below that, but by other options, or in a topic that is another one now.
            latest = max(ends[key], min(last, catalog.readable(*key)))
            first, last = within_log(catalog, self.options, key, first, last, latest)
            ranges.append(pinned(catalog, key, first, last))
        return [ReadTask(pieces) for pieces in plan(ranges, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task: the records of its pieces."""
        if isinstance(partition, ReadTask):
            yield from read_task(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has finished with everything below: told to `commitGroup`, for tools that show
        lag. Spark's checkpoint stays the truth.
        """
        self._report(from_json(end))
        self._rest()

    def _report(self, offsets: Offsets) -> None:
        group = self.options.commit_group
        if group is None or offsets == self._reported:
            return
        try:
            self._catalog().log.reset_offsets(
                group, {TopicPartition(*key): offset for key, offset in offsets.items()}
            )
            self._reported = offsets
        except ConfigError:
            raise
        except EoslogError as error:
            # Progress is for show: a query doesn't end because it can't be shown.
            logger.warning(
                "option 'commitGroup' = %r: progress was not committed: %s", group, error
            )

    def _latest(self) -> Offsets:
        catalog = self._catalog()
        return catalog.latest(self._subscribed(catalog))

    def _subscribed(self, catalog: LogCatalog) -> list[PartitionKey]:
        tolerant = not self.options.fail_on_data_loss  # a topic may have been deleted
        return subscribed_partitions(catalog, self.options, tolerant=tolerant)

    def _with_new_partitions(self, begin: Offsets, end: Offsets) -> Offsets:
        """A partition that came later is read from 0, as by Kafka's source: what was deleted of it
        before the query saw it is a loss like any other.
        """
        catalog = self._catalog()
        new = self._existing(catalog, [key for key in end if key not in begin])
        if self.options.fail_on_data_loss:
            return begin | dict.fromkeys(new, 0)
        return begin | {key: catalog.earliest(*key) for key in new}

    def _without_lost(self, begin: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Both vectors over the partitions that there are; ends never fall, unless a topic was
        made anew and loss is accepted.
        """
        catalog = self._catalog()
        there = self._existing(catalog, begin)
        starts, stops = {}, {}
        for key, first in begin.items():
            name = f"{key[0]}-{key[1]}"
            if key not in there:
                self._lose(
                    UnknownTopicOrPartition(
                        f"{name} is gone, the query has read it up to {first}; "
                        "set failOnDataLoss to false to go on without it"
                    )
                )
                continue
            last = end.get(key, first)
            if last < first and catalog.end(*key) < first:
                self._lose(
                    OffsetOutOfRange(
                        f"{name}: the query has read up to {first}, the log ends at "
                        f"{catalog.end(*key)}: it was deleted and made anew; "
                        "set failOnDataLoss to false to read it from its start"
                    )
                )
            elif last < first:
                last = first
            first = min(first, last)
            if not self.options.fail_on_data_loss:
                # Or a limit would go through what retention left in empty micro-batches.
                first = max(first, min(catalog.earliest(*key), last))
            starts[key], stops[key] = first, last
        return starts, stops

    def _existing(self, catalog: LogCatalog, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Those of the partitions that there are now."""
        wanted, found = set(keys), set()
        for topic in {topic for topic, _ in wanted}:
            with suppress(UnknownTopicOrPartition):
                found |= {(topic, partition) for partition in catalog.partitions(topic)}
        return wanted & found

    def _lose(self, error: EoslogError) -> None:
        if self.options.fail_on_data_loss:
            raise error
        logger.warning("failOnDataLoss is off: %s", error)


def to_json(offsets: Offsets) -> dict[str, Any]:
    """`{"topic": {"0": 23}}`, the form of Spark's Kafka source."""
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def from_json(offsets: dict[str, Any]) -> Offsets:
    """The inverse of `to_json`; where a stream began is left out."""
    return {
        (topic, int(partition)): offset
        for topic, inner in offsets.items()
        if topic != START
        for partition, offset in inner.items()
    }
