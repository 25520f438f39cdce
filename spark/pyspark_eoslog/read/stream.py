"""Streaming source: offsets are JSON objects of topics and partitions.

They have the ids of the topics, so that a re-created topic is not mistaken for the one that the
query has read. Offsets of earlier versions have no ids.

The latest offset never splits a transaction. The reader runs in one long-lived process of the
driver, which keeps the directory open. `read` runs in tasks from a pickled copy and keeps no state.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence, Set
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

from eoslog.connector.byte_ranges import RELISTINGS
from eoslog.errors import (
    ConfigError,
    EoslogError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from pyspark_eoslog.options.options import (
    LATEST,
    START,
    TOPIC_IDS,
    Bound,
    Options,
    PartitionKey,
)
from pyspark_eoslog.read.batch import ReadTask, read_task
from pyspark_eoslog.read.catalog import LogCatalog, open_log
from pyspark_eoslog.read.limits import Offsets, limited
from pyspark_eoslog.read.planning import (
    is_subscribed,
    pinned,
    resolve,
    subscribed_partitions,
    within_log,
)
from pyspark_eoslog.read.splitting import plan
from pyspark_eoslog.schema import check_source_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eoslog import Log

logger = logging.getLogger(__name__)

TopicIds = dict[str, str]


class EoslogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of topics as an unbounded table.

    Reading of new partitions begins at their earliest offset.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check options and schema.

        Raises:
            ConfigError: if a user schema has a column or type that does not exist, if the options
                set an end, or if streams cannot read the layout.
        """
        check_source_schema(schema)
        if options.ending is not None:
            raise ConfigError(
                f"option '{options.ending.option}' has no effect in a stream, "
                "which has no end; remove it"
            )
        if options.layout != "eoslog":
            raise ConfigError(
                f"option 'layout' = {options.layout!r} is only for batch reads, because a stream "
                "needs the ends that an eoslog directory publishes"
            )
        self.options = options
        self.schema = schema
        self._initial: dict[str, Any] | None = None
        self._refused: EoslogError | None = None  # reason why there is no start
        self._pinned: tuple[Offsets, TopicIds] | None = None
        self._ids: TopicIds = {}  # of the topics as the query first saw them
        self._log: Log | None = None
        self._reported: tuple[Offsets, TopicIds] = {}, {}
        self._moved_at = -math.inf  # the first batch does not wait, as with Kafka's source
        self._done = False

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read files by path; a handle belongs to its process.
        return {**self.__dict__, "_log": None}

    def _catalog(self) -> LogCatalog:
        if self._log is not None and self._log.outdated:
            # A read-only view from before a writer opened the directory: it is out of date.
            self._log.close()
            self._log = None
        if self._log is None:
            self._log = open_log(self.options.path)
            if self.options.commit_group is not None and self._log.read_only:
                raise ConfigError(
                    f"option 'commitGroup' = {self.options.commit_group!r} needs a writable "
                    f"directory, and {self.options.path} is read-only"
                )
        return LogCatalog(self._log, self.options.isolation)

    def _rest(self) -> None:
        """Close the directory at the end of an AvailableNow run.

        Spark kills this process at the end of a query. If the directory is still open then, the
        next process that opens it must recover it. An AvailableNow run knows its end.
        """
        if self._done:
            self.stop()

    def stop(self) -> None:
        """Close the directory at the end of the query."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint; the first call fixes it.

        Spark calls again until the first micro-batch is committed, also after a restart, and does
        not store the result. The end of that batch stores the start under `START`. So options that
        no longer fit raise an error only in the calls that use them.
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
        latest, self._ids = self._latest()
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
        """Return a limit of a micro-batch, which Spark may drop (trigger once).

        Spark has one limit at a time; `latestOffset` applies all limits of the options.
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
        """Pin the end of an AvailableNow run."""
        self._pinned = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing to read.

        Raises:
            OffsetOutOfRange: if `failOnDataLoss` is set and a topic was re-created, or a partition
                ends before the offset that the query has read, or the start of the options does
                not exist.
            UnknownTopicOrPartition: if `failOnDataLoss` is set and a partition is deleted.
            ConfigError: if the start of the options does not fit the partitions.
        """
        if start != self._initial:  # the first batch is committed, unless another query began it
            self._initial = self._refused = None
            return self._next(start, limit)
        if self._refused is not None:
            raise self._refused
        ids = {topic: one for topic, one in self._ids.items() if topic in start}
        return {**self._next(start, limit), START: {**start, TOPIC_IDS: ids}}

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        seen = from_json(start)
        # Spark requests the next batch after the one before is in its commit log.
        self._report(start)
        end, ids = self._ends()
        ids = self._topic_ids(seen | end) | ids
        known = {**ids, **self._ids, **start.get(TOPIC_IDS, {})}
        self._ids = ids | {topic: known[topic] for topic, _ in seen if topic in known}
        other = {topic for topic, _ in seen if topic in ids and known[topic] != ids[topic]}
        begin = self._with_new_partitions(seen, end)
        begin, end = self._without_lost(begin, end, other)
        pending = sum(max(end[key] - begin[key], 0) for key in end)
        if pending == 0 and end == seen and not other:
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
        return with_ids(end, ids)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the log, so that progress reports show the lag."""
        latest = to_json(self._latest()[0])
        self._rest()
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; after a restart, of the interrupted batch.

        Raises:
            OffsetOutOfRange: if `failOnDataLoss` is set and retention deleted unread records, or a
                topic was re-created.
        """
        stop = from_json(end)
        catalog = self._catalog()
        ids = self._topic_ids(stop)
        planned = ids | end.get(TOPIC_IDS, {})
        if START in end and START not in start:
            start = end[START]
        elif self._refused is not None and start == self._initial:
            raise self._refused
        read = planned | start.get(TOPIC_IDS, {})
        begin = self._with_new_partitions(from_json(start), stop)
        there = self._existing(catalog, stop)
        ends = catalog.latest(sorted(there))
        ranges = []
        for key, last in sorted(stop.items()):
            same = read.get(key[0]) == planned.get(key[0])
            if same and begin.get(key) == last:
                continue  # nothing to read; the next batch checks the topic
            if key not in there:
                self._lose(UnknownTopicOrPartition(f"{key[0]}-{key[1]} was deleted"))
                continue
            first = begin[key]
            if planned[key[0]] != ids.get(key[0]):  # None: it was re-created in the meantime
                # The next batch begins at the start of the new topic.
                self._lose(_re_created(key, last))
                continue
            if read[key[0]] != planned[key[0]]:
                self._lose(_re_created(key, first))
                first = catalog.earliest(*key)
            if first > last:
                self._lose(
                    OffsetOutOfRange(
                        f"{key[0]}-{key[1]}: the query has read up to {first}, but its next "
                        f"batch ends at {last}: the topic was deleted and re-created; "
                        "set failOnDataLoss to false to read it from its start"
                    )
                )
                first = catalog.earliest(*key)
            # The plan was below that, but with other options, or before the topic was re-created.
            latest = max(ends[key], min(last, catalog.readable(*key)))
            first, last = within_log(catalog, self.options, key, first, last, latest)
            ranges.append(pinned(catalog, key, first, last))
        if self._topic_ids(stop) != ids:
            raise OffsetOutOfRange(
                "a topic was deleted or re-created while its micro-batch was planned; start the "
                "query again"
            )
        return [ReadTask(pieces) for pieces in plan(ranges, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task's pieces; runs in that task."""
        if isinstance(partition, ReadTask):
            yield from read_task(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets to `commitGroup`, for tools that show lag.

        Spark has finished all records below them. Spark's checkpoint remains authoritative.
        """
        self._report(end)
        self._rest()

    def _report(self, progress: dict[str, Any]) -> None:
        group = self.options.commit_group
        if group is None:
            return
        reached = from_json(progress), {**self._ids, **progress.get(TOPIC_IDS, {})}
        if reached == self._reported:
            return
        try:
            self._catalog().log.reset_offsets(group, _of_topics(*reached))
            self._reported = reached
        except ConfigError:
            raise
        except EoslogError as error:
            # This progress is informational, so an error in its commit must not end the query.
            logger.warning(
                "option 'commitGroup' = %r: progress was not committed: %s", group, error
            )

    def _latest(self) -> tuple[Offsets, TopicIds]:
        """Return the ends, and the ids of the topics that they belong to."""
        catalog = self._catalog()
        for _ in range(RELISTINGS):
            try:
                keys = self._subscribed(catalog)
                ids = self._topic_ids(keys)
                ends = catalog.latest(keys)
            except UnknownTopicOrPartition:  # a topic was deleted in the meantime
                if self.options.fail_on_data_loss:
                    raise
                continue
            if self._topic_ids(keys) == ids:
                return ends, ids
        raise OffsetOutOfRange(
            f"topics were deleted or re-created in each of {RELISTINGS} attempts to read their "
            "ends; retry"
        )

    def _ends(self) -> tuple[Offsets, TopicIds]:
        """Return the ends to read up to, and the ids of their topics.

        An AvailableNow run has pinned them. The pinned end of a re-created topic is of the topic
        before, so the ends are pinned again.
        """
        if self._pinned is None:
            return self._latest()
        ends, ids = self._pinned
        now = self._topic_ids(ends)
        if any(one != ids.get(topic) for topic, one in now.items()):
            self._pinned = self._latest()
        return self._pinned

    def _topic_ids(self, keys: Iterable[PartitionKey]) -> TopicIds:
        """Return the ids of those topics that exist now."""
        catalog, ids = self._catalog(), {}
        for topic in {topic for topic, _ in keys}:
            with suppress(UnknownTopicOrPartition):
                ids[topic] = catalog.log.topic_id(topic).hex()
        return ids

    def _subscribed(self, catalog: LogCatalog) -> list[PartitionKey]:
        tolerant = not self.options.fail_on_data_loss  # a topic may have been deleted
        return subscribed_partitions(catalog, self.options, tolerant=tolerant)

    def _with_new_partitions(self, begin: Offsets, end: Offsets) -> Offsets:
        """Add new partitions, which are read from offset 0 as by Kafka's source.

        Records that were deleted before the query saw the partition count as lost data.
        """
        catalog = self._catalog()
        new = self._existing(catalog, [key for key in end if key not in begin])
        if self.options.fail_on_data_loss:
            return begin | dict.fromkeys(new, 0)
        return begin | {key: catalog.earliest(*key) for key in new}

    def _without_lost(
        self, begin: Offsets, end: Offsets, re_created: Set[str]
    ) -> tuple[Offsets, Offsets]:
        """Reduce both vectors to the existing partitions.

        Ends never decrease, unless a topic was re-created and loss is accepted. A topic that is no
        longer subscribed is left out, without an error, once it is deleted or re-created.

        Args:
            begin: First offsets to read.
            end: Ends of the partitions.
            re_created: Topics whose id is not the one that the query has read.
        """
        catalog = self._catalog()
        there = self._existing(catalog, begin)
        starts, stops = {}, {}
        for key, first in begin.items():
            name = f"{key[0]}-{key[1]}"
            gone = key not in there
            if (gone or key[0] in re_created) and not is_subscribed(self.options, key):
                continue  # subscribed again, it is a new partition
            if gone:
                self._lose(
                    UnknownTopicOrPartition(
                        f"{name} was deleted, and the query has read it up to {first}; "
                        "set failOnDataLoss to false to continue without it"
                    )
                )
                continue
            last = end.get(key, first)
            if key[0] in re_created:
                self._lose(_re_created(key, first))
                first = catalog.earliest(*key)
                last = max(first, min(end.get(key, first), catalog.readable(*key)))
            elif last < first and catalog.end(*key) < first:
                self._lose(
                    OffsetOutOfRange(
                        f"{name}: the query has read up to {first}, but the log ends at "
                        f"{catalog.end(*key)}: the topic was deleted and re-created; "
                        "set failOnDataLoss to false to read it from its start"
                    )
                )
            elif last < first:
                last = first
            first = min(first, last)
            if not self.options.fail_on_data_loss:
                # Otherwise limits would divide deleted offsets into empty micro-batches.
                first = max(first, min(catalog.earliest(*key), last))
            starts[key], stops[key] = first, last
        return starts, stops

    def _existing(self, catalog: LogCatalog, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Return those of the partitions that exist now."""
        wanted, found = set(keys), set()
        for topic in {topic for topic, _ in wanted}:
            with suppress(UnknownTopicOrPartition):
                found |= {(topic, partition) for partition in catalog.partitions(topic)}
        return wanted & found

    def _lose(self, error: EoslogError) -> None:
        if self.options.fail_on_data_loss:
            raise error
        logger.warning("failOnDataLoss is off: %s", error)


def _re_created(key: PartitionKey, read: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"{key[0]}-{key[1]}: the query has read up to {read}, and then the topic was deleted and "
        "re-created; set failOnDataLoss to false to read it from its start"
    )


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Convert offsets to `{"topic": {"0": 23}}`, the form of Spark's Kafka source."""
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def _of_topics(offsets: Offsets, ids: TopicIds) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets with the ids of their topics, as far as they are known."""
    known = {topic: bytes.fromhex(one) for topic, one in ids.items()}
    return {
        TopicPartition(*key): OffsetAndMetadata(offset, topic_id=known.get(key[0]))
        for key, offset in offsets.items()
    }


def with_ids(offsets: Offsets, ids: TopicIds) -> dict[str, Any]:
    """Convert offsets as `to_json` does, and add the ids of their topics."""
    topics = sorted({topic for topic, _ in offsets})
    own = {topic: ids[topic] for topic in topics if topic in ids}
    return to_json(offsets) | ({TOPIC_IDS: own} if own else {})


def from_json(offsets: dict[str, Any]) -> Offsets:
    """Convert the result of `with_ids` back, without ids and start of the stream."""
    return {
        (topic, int(partition)): offset
        for topic, inner in offsets.items()
        if topic not in (START, TOPIC_IDS)
        for partition, offset in inner.items()
    }
