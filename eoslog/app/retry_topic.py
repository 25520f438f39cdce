"""The retry topic of an app: records that wait, and counts of crashes.

The topic is compacted. Its key names what a record is about, so its latest records are its state,
and a tombstone ends it. A record of partition P of an input topic is in partition P. So the owner
of the input partition finds there what its predecessors have left:

    ["record", id, topic, partition, offset, task]       a record that waits
    ["deaths", id, topic, partition, offset, task]       the processes that ended in its handler
    ["replay", number, topic, partition, offset, task]   a dead letter that was sent back

The id is that of the input topic. If the topic is deleted and re-created, its new records have the
places of old ones.

The value of a waiting record is one byte, 1 or 0 for null, and the value. Its headers are those of
`failed_records`, followed by the time of the next attempt, the key, and the origin: the random
number of a worker, or `replay` for the command `eoslog dead replay`.

Workers write here in the transaction of the position. The count of a process that a handler ended
is written and flushed before the handler runs again. With `at_most_once`, so is a waiting record
whose attempt begins: the time of its next attempt is -1, for it has none.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from eoslog.app.failed_records import FailedRecord, dead_topic, place_key, retry_topic
from eoslog.app.retry_queue import WaitingRecord
from eoslog.config.parsing import INT_MAX
from eoslog.config.topic_keys import TopicConfig
from eoslog.errors import InvalidPartitions, RequestTimedOut
from eoslog.model import TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.format.checkpoints import id_text

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.descriptions import TopicDescription

__all__ = [
    "REPLAY",
    "Deaths",
    "RetryTopic",
    "Stored",
    "StoredRecord",
    "begun",
    "encoded",
    "ensure_dead_topic",
    "ensure_topic",
]

logger = get_logger("eoslog.app")

Place = tuple[str, int, int, str]
StoredRecord = tuple[bytes, "bytes | None", list[tuple[str, "bytes | None"]], int]
"""Key, value, headers and partition of a record of the topic."""

_OWN = ("eoslog.due", "eoslog.key", "eoslog.origin")
REPLAY = b"replay"
_BEGUN = -1
_RESTORE_S = 60.0
_DEATHS = "deaths"


@dataclass(frozen=True, slots=True)
class Deaths:
    """The processes that ended while the handler of a record ran."""

    count: int
    owner: int
    """The random number of the last one, so that none is counted twice."""
    last: int
    """The offset of the last record of the batch; the record's own without one."""

    def encoded(self, place: Place, topic_id: str) -> StoredRecord:
        """Return the record of the topic, for an input topic with this id."""
        value = json.dumps(asdict(self), separators=(",", ":")).encode()
        return (place_key(_DEATHS, topic_id, place), value, [], place[1])


def begun(waiting: WaitingRecord, origin: bytes) -> StoredRecord:
    """Return the record of the topic for one whose last attempt begins."""
    return encoded(replace(waiting, due=_BEGUN), origin)


def encoded(waiting: WaitingRecord, origin: bytes) -> StoredRecord:
    """Return the record of the topic for a record that waits.

    Args:
        waiting: the record.
        origin: which worker writes it, or `REPLAY`.
    """
    record = waiting.record
    value = b"0" if record.value is None else b"1" + record.value
    own: list[tuple[str, bytes | None]] = [
        ("eoslog.due", str(waiting.due).encode()),
        ("eoslog.key", record.key),
        ("eoslog.origin", origin),
    ]
    return (waiting.id, value, [*record.all_headers(), *own], record.partition)


def ended(waiting: WaitingRecord) -> StoredRecord:
    """Return the tombstone of a record that waits no longer."""
    return (waiting.id, None, [], waiting.record.partition)


def survived(place: Place, topic_id: str) -> StoredRecord:
    """Return the tombstone of a count of processes."""
    return (place_key(_DEATHS, topic_id, place), None, [], place[1])


def _decoded(record: Record) -> tuple[WaitingRecord, bytes | None]:
    """Return the waiting record of a stored one, and its origin."""
    headers = record.headers
    (_, due), (_, key), (_, origin) = headers[-len(_OWN) :]
    value = record.value[1:] if record.value[:1] == b"1" else None
    failed = FailedRecord.stored(key, value, headers[: -len(_OWN)])
    return WaitingRecord(failed, int(due or b"0"), bytes(record.key)), origin


def ensure_topic(log: Any, app: str, partitions: int, inputs: Iterable[str], size: int = 0) -> str:
    """Create the retry topic, or add partitions, and return its name.

    Args:
        log: the open log.
        app: the id of the app.
        partitions: the least number of partitions.
        inputs: the input topics, whose largest records must fit.
        size: the bytes of a record that must fit too. It can be larger than its topic allows,
            which limits compressed batches, or allowed larger ones before.
    """
    name = retry_topic(app)
    found = _ensured(log, name, partitions, {"cleanup.policy": "compact"}, inputs, size)
    if len(found.partitions) < partitions:
        try:
            log.create_partitions(name, partitions)
        except InvalidPartitions:  # another process was faster
            logger.debug("%s: has %d partitions already", name, partitions)
    return name


def ensure_dead_topic(log: Any, app: str, inputs: Iterable[str], size: int) -> None:
    """Create the topic of dead letters, or let larger records in."""
    _ensured(log, dead_topic(app), 1, {}, inputs, size)


def _ensured(
    log: Any, name: str, partitions: int, config: dict[str, Any], inputs: Iterable[str], size: int
) -> TopicDescription:
    """Return a topic that takes the records of inputs, and one of a size."""
    largest = _largest_message(log, inputs, size)
    config = {**config, "max.message.bytes": largest}
    found: TopicDescription = log.create_topic(name, partitions, config, exist_ok=True)
    if TopicConfig.of(dict(found.config)).max_message_bytes < largest:
        log.alter_topic(name, {"max.message.bytes": largest})
    return found


def _largest_message(log: Any, inputs: Iterable[str], size: int) -> int:
    """Return a message size for records of inputs or of a size, with more headers."""
    known = set(log.topics())
    sizes = [
        TopicConfig.of(dict(log.describe_topic(topic).config)).max_message_bytes
        for topic in inputs
        if topic in known
    ]
    largest = max(sizes, default=TopicConfig().max_message_bytes)
    return min(max(largest, size) + _HEADERS_LARGEST, INT_MAX)


_HEADERS_LARGEST = 65_536


class Stored(NamedTuple):
    """What a partition of the topic has for one input partition."""

    waiting: list[WaitingRecord]
    """In the order of their offsets; those of a deleted topic of the name come first."""
    begun: list[WaitingRecord]
    """Whose attempt has begun with `at_most_once`, and did not end."""
    deaths: dict[Place, Deaths]


class RetryTopic:
    """Reads the retry topic for the owner of input partitions.

    Attributes:
        name: the name of the topic.
        origin: the origin of what this worker writes.
    """

    def __init__(self, log: Any, app: str) -> None:
        """Open nothing; a missing topic has no records."""
        self._log = log
        self.name = retry_topic(app)
        self.origin = secrets.token_hex(8).encode()
        self._follower: Consumer | None = None
        self._ends: dict[tuple[str, int], int] = {}
        self._waiting: dict[TopicPartition, tuple[int, set[str]]] = {}
        """Of input partitions of others: the end of the topic's partition, and the tasks."""

    def restore(self, topic: str, partition: int) -> Stored:
        """Return what the previous owners of an input partition have left.

        All of it is visible: the call waits for transactions that are undecided.

        Raises:
            RequestTimedOut: if a transaction is undecided after a minute.
        """
        stored, end = Stored([], [], {}), 0
        if self._exists(partition):
            stored, end = self._stored(topic, partition)
        self._ends[topic, partition] = end
        return stored

    def tasks_waiting(self, at: TopicPartition) -> set[str] | None:
        """Return the tasks for which records of another owner's input partition wait.

        Returns:
            Names of tasks; None if they are not known, because a transaction is undecided.
        """
        if not self._exists(at.partition):
            return set()
        ends = self._log.offsets(self.name, at.partition)
        if ends.last_stable < ends.log_end:
            return None
        end, tasks = self._waiting.get(at, (0, set()))
        if end != ends.log_end:
            stored, end = self._stored(at.topic, at.partition)
            tasks = {found.record.task for found in (*stored.waiting, *stored.begun)}
            self._waiting[at] = end, tasks
        return tasks

    def _stored(self, topic: str, partition: int) -> tuple[Stored, int]:
        """Return what the topic has for an input partition, and its end."""
        stored = Stored([], [], {})
        topic_id = id_text(self._log.topic_id(topic))
        waiting: dict[bytes, WaitingRecord] = {}
        records, end = self._read(partition)
        for record in records:
            about = json.loads(record.key)
            if about[-4:-2] != [topic, partition]:
                continue
            place: Place = tuple(about[-4:])
            if about[0] == _DEATHS:
                if about[1] != topic_id:
                    continue  # of a record of a deleted topic
                stored.deaths.pop(place, None)
                if record.value is not None:
                    stored.deaths[place] = Deaths(**json.loads(record.value))
                continue
            if record.value is None:
                waiting.pop(record.key, None)
            else:
                waiting[record.key] = _decoded(record)[0]

        def place_in_line(found: WaitingRecord) -> tuple[bool, int]:
            kind, of = json.loads(found.id)[:2]
            return kind == "replay" or of == topic_id, found.record.offset

        # Not in the order of the topic: compaction keeps only the last attempt of a record.
        for found in sorted(waiting.values(), key=place_in_line):
            (stored.begun if found.due == _BEGUN else stored.waiting).append(found)
        return stored, end

    def _read(self, partition: int) -> tuple[list[Record], int]:
        """Return the records of a partition up to now, and where they end."""
        at = TopicPartition(self.name, partition)
        ends = self._log.offsets(self.name, partition)
        found: list[Record] = []
        with self._log.consumer(enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition(self.name, partition, ends.log_start)])
            deadline = time.monotonic() + _RESTORE_S
            while consumer.position(at) < ends.log_end:
                records = consumer.consume(1000, timeout=0.1)
                found.extend(records)
                if not records and time.monotonic() > deadline:
                    raise RequestTimedOut(
                        f"{at}: a transaction is undecided, so the records that wait are not "
                        "known; `eoslog why` names its process"
                    )
            return found, consumer.position(at)

    def _exists(self, partition: int) -> bool:
        if self.name not in self._log.topics():
            return False
        return any(tp.partition == partition for tp in self._log.partitions_of(self.name))

    def arrived(self) -> list[WaitingRecord]:
        """Return the waiting records that others have stored since the last call.

        They are dead letters that were sent to tasks, and records that an earlier owner has stored
        late, of the input partitions that were restored and not forgotten.
        """
        starts: dict[int, int] = {}
        for (_, partition), end in self._ends.items():
            if partition in starts or self._exists(partition):
                starts[partition] = min(end, starts.get(partition, end))
        if not starts:
            return []
        follower = self._follow(starts)
        found = []
        while records := follower.consume(500, timeout=0):
            for record in records:
                if record.value is None or not record.headers:
                    continue
                waiting, origin = _decoded(record)
                if origin == self.origin or waiting.due == _BEGUN:
                    continue
                restored = self._ends.get((waiting.record.topic, record.partition))
                if restored is not None and record.offset >= restored:
                    found.append(waiting)
        return found

    def _follow(self, starts: dict[int, int]) -> Consumer:
        if self._follower is None:
            self._follower = self._log.consumer(enable_auto_commit=False)
        now = {tp.partition for tp in self._follower.assignment()}
        if now != starts.keys():
            self._follower.assign(
                TopicPartition(self.name, n) if n in now else TopicPartition(self.name, n, start)
                for n, start in sorted(starts.items())
            )
        return self._follower

    def forget(self, topic: str, partition: int) -> None:
        """Stop following the records of an input partition."""
        self._ends.pop((topic, partition), None)

    def close(self) -> None:
        """Close the consumer of replayed records."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None
