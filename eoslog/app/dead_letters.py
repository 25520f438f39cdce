"""The dead letters of apps: listed, shown, and sent back.

A replay is a transaction with the records that it sends and the named position
`APP.dead/replayed`. The position has the id of the topic of dead letters, and the offsets of all
dead letters that were sent back. It is set on the condition that it has not changed. So a replay
that is killed repeats nothing, and two replays at the same time send no dead letter twice. A
position of a topic that was deleted does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from eoslog.app import failed_records, retry_topic
from eoslog.app.clients import LARGEST_REQUEST
from eoslog.app.failed_records import FailedRecord, dead_topic
from eoslog.app.retry_queue import WaitingRecord
from eoslog.errors import IllegalState, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.storage.format.checkpoints import id_text
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog.client.producer.transactions.transaction import Transaction
    from eoslog.log import Log

__all__ = ["DeadLetter", "apps_with_dead_letters", "dead_letter", "dead_letters", "replay"]

_IN_A_TRANSACTION = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a task gave up.

    Attributes:
        offset: its offset in the topic of the app's dead letters, which names it.
        timestamp: when it was given up, in ms since the epoch.
        replayed: whether it was sent back.
        record: the record, with the task, the cause and the number of attempts.
    """

    offset: int
    timestamp: int
    replayed: bool
    record: FailedRecord


class _Ranges:
    """A set of offsets as text, such as "0-4,7"."""

    def __init__(self, text: str = "") -> None:
        self._offsets: list[list[int]] = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            self._offsets.append([int(first), int(last or first)])

    def __contains__(self, offset: int) -> bool:
        return any(first <= offset <= last for first, last in self._offsets)

    def add(self, offset: int) -> None:
        self._offsets.append([offset, offset])
        joined: list[list[int]] = []
        for first, last in sorted(self._offsets):
            if joined and first <= joined[-1][1] + 1:
                joined[-1][1] = max(last, joined[-1][1])
            else:
                joined.append([first, last])
        self._offsets = joined

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self._offsets)


def _position(app: str) -> str:
    return f"{dead_topic(app)}/replayed"


def _replayed(log: Log, app: str) -> tuple[str | None, str, _Ranges]:
    """Return an app's position, the id of the topic, and the offsets sent back."""
    now = id_text(log.topic_id(dead_topic(app)))
    found = log.position(_position(app))
    text = found if isinstance(found, str) else None
    known, _, offsets = (text or "").rpartition(":")  # earlier versions stored no id
    return text, now, _Ranges(offsets if known in ("", now) else "")


def apps_with_dead_letters(log: Log) -> list[str]:
    """Return the ids of the apps that have dead letters, in order."""
    suffix = dead_topic("")
    named = [topic.removesuffix(suffix) for topic in log.topics() if topic.endswith(suffix)]
    return [app for app in named if next(dead_letters(log, app), None) is not None]


def dead_letters(log: Log, app: str, start: int | None = None) -> Iterator[DeadLetter]:
    """Yield the dead letters of an app, the oldest first.

    Args:
        log: the log.
        app: the id of the app.
        start: the first offset; None means all.

    Raises:
        UnknownTopicOrPartition: if the app has no dead letters.
    """
    topic = _require_topic(log, app)
    *_, replayed = _replayed(log, app)
    for found in log.read(topic, start=start):
        try:
            record = FailedRecord.stored(found.key, found.value, found.headers)
        except (ValueError, TypeError):
            continue  # another program has written it
        yield DeadLetter(found.offset, found.timestamp, found.offset in replayed, record)


def _require_topic(log: Log, app: str) -> str:
    topic = dead_topic(app)
    if topic not in log.topics():
        raise UnknownTopicOrPartition(
            f"app {app!r} has no dead letters: topic {topic!r} does not exist; `eoslog dead list` "
            "lists those of all apps"
        )
    return topic


def dead_letter(log: Log, app: str, offset: int) -> DeadLetter:
    """Return one dead letter of an app.

    Raises:
        OffsetOutOfRange: if there is no dead letter at the offset.
        UnknownTopicOrPartition: if the app has no dead letters.
    """
    topic = dead_topic(app)
    if topic in log.topics():
        bounds = log.offsets(topic, 0)
        if not bounds.log_start <= offset < bounds.last_stable:
            raise _missing(app, offset)
    for found in dead_letters(log, app, offset):
        if found.offset == offset:
            return found
        break
    raise _missing(app, offset)


def _missing(app: str, offset: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"app {app!r} has no dead letter at offset {offset}; `eoslog dead list {app}` lists them"
    )


def replay(
    log: Log, app: str, offsets: Iterable[int] | None = None, *, only_task: bool = False
) -> list[int]:
    """Send dead letters back, each once, and return the offsets of those sent.

    A record goes to its partition of the input topic, with its key, value, headers and timestamp.

    Args:
        log: the log.
        app: the id of the app.
        offsets: the offsets of dead letters; None means all. Those that were sent back before are
            left out.
        only_task: send them to the task that failed, by the app's retry topic, instead of to the
            input topic, which other programs may read too.

    Raises:
        PositionConflict: if another replay of the app runs.
        ProducerFenced: if a later replay of the app has begun.
        IllegalState: if the topic of dead letters was deleted and re-created during the call; what
            was read of it last was not sent.
        OffsetOutOfRange: if there is no dead letter at an offset; nothing was sent.
        UnknownTopicOrPartition: if the app has no dead letters, or its input no longer exists.

    Durability:
        The records are durable when the call returns.
    """
    wanted = None if offsets is None else set(offsets)
    for offset in sorted(wanted or ()):
        dead_letter(log, app, offset)
    sent: list[int] = []
    with log.producer(
        transactional_id=f"{app}.replay", max_request_size=LARGEST_REQUEST
    ) as producer:
        producer.init_transactions()  # completes or aborts what a killed replay has left
        _require_topic(log, app)
        before, topic_id, replayed = _replayed(log, app)
        left = (
            found
            for found in dead_letters(log, app, min(wanted, default=0) if wanted else None)
            if (wanted is None or found.offset in wanted) and not found.replayed
        )
        while some := list(islice(left, _IN_A_TRANSACTION)):
            if only_task:
                _make_room(log, app, some)
            for found in some:
                replayed.add(found.offset)
            with producer.transaction() as tx:
                for found in some:
                    _send(tx, app, found, only_task)
                failpoint("app.replayed")
                if id_text(log.topic_id(dead_topic(app))) != topic_id:
                    raise IllegalState(
                        f"app {app!r}: topic {dead_topic(app)!r} was deleted and re-created during "
                        "the replay; list the dead letters, and call replay again"
                    )
                now = f"{topic_id}:{replayed}"
                tx.set_position(_position(app), now, expected=before)
            failpoint("app.replay_committed")
            before = now
            sent += [found.offset for found in some]
    return sent


def _make_room(log: Log, app: str, some: list[DeadLetter]) -> None:
    inputs = {found.record.topic for found in some}
    most = max(found.record.partition for found in some) + 1
    known = set(log.topics())
    most = max(most, *(len(log.partitions_of(topic)) for topic in inputs & known), 1)
    size = max(found.record.size for found in some)
    retry_topic.ensure_topic(log, app, most, inputs, size)


def _send(tx: Transaction, app: str, letter: DeadLetter, only_task: bool) -> None:
    record = letter.record
    if only_task:
        key = failed_records.place_key("replay", letter.offset, record.place)
        waiting = WaitingRecord(record.again(attempts=0), time.time_ns() // 1_000_000, key)
        key, value, headers, partition = retry_topic.encoded(waiting, retry_topic.REPLAY)
        tx.produce(
            failed_records.retry_topic(app), value, key, headers=headers, partition=partition
        )
        return
    tx.produce(
        record.topic, record.value, record.key, headers=list(record.headers),
        partition=record.partition, timestamp=record.timestamp,
    )  # fmt: skip
