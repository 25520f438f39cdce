"""What follows for a record whose function raises, or ends its process.

A failed record leaves the input: it waits in the retry topic, or goes to the dead letters, in the
transaction of the position after it. So it is in one place at every moment. Its output and its
changes of tables are dropped before.

A record that waits blocks the later records of its key, which wait after it. Other keys continue.
Each is tried alone, in the order of their times, by the owner of the input partition.

A record whose function ends the process has no such transaction. The next owner of its partition
finds the note of the record (`running_notes`), and counts the exit before it reads. After
`max_deaths` exits, the record goes to the dead letters without another attempt.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eoslog._core import Record
from eoslog.app import retry_topic
from eoslog.app.clients import LARGEST_REQUEST
from eoslog.app.error_policy import SteadyClock, delay_after, longest_delay
from eoslog.app.failed_records import FailedRecord, cause_of, dead_topic, place_key
from eoslog.app.instance import folder_of
from eoslog.app.retry_queue import RetryQueue, WaitingRecord
from eoslog.app.retry_topic import Deaths, Place, RetryTopic, StoredRecord
from eoslog.app.running_notes import Note, RunningNotes, topic_number
from eoslog.errors import TaskFailed, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.format.checkpoints import id_text
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog.app.clients import OutputTransaction
    from eoslog.app.tasks import Task

__all__ = ["Failure", "Failures", "task_failed"]

logger = get_logger("eoslog.app")

_REPLAYS_S = 0.5
"""How often the retry topic is read for records that others have stored."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that has raised.

    Its output and its changes of tables are dropped already.

    Attributes:
        task: the task.
        records: the records of the call, as they are in the log; one, or those of a batch.
        attempt: the number of the attempt, from 1.
        error: what the function has raised.
    """

    task: Task
    records: list[Record]
    attempt: int
    error: BaseException


class Failures:
    """The policy of one worker; all calls come from the worker's thread.

    Attributes:
        notes: the notes of the records whose functions run, for each call.
        decided: the numbers of records that the open transaction settles, by fields of `RunReport`.
    """

    def __init__(self, app_id: str, log: Any, tasks: list[Task]) -> None:
        """Begin without failures."""
        self._app_id = app_id
        self._log = log
        self._tasks = {task.name: task for task in tasks}
        self._inputs = sorted({task.topic for task in tasks})
        self.notes = RunningNotes(folder_of(log.path, app_id))
        self.decided: Counter[str] = Counter()
        self._topic = RetryTopic(log, app_id)
        self._queue = RetryQueue()
        self._now_ms = SteadyClock(log._engine.clock_ms)
        self._deaths: dict[Place, Deaths] = {}
        self._survived: list[Place] = []
        """Places whose count ends with the open transaction."""
        self._ends: list[StoredRecord] = []
        """Tombstones of the open transaction."""
        self._given: dict[Place, WaitingRecord] = {}
        """The record that `due` returned last, until it is settled."""
        self._begun: list[WaitingRecord] = []
        """Records that are not tried again, because their attempt has begun and did not end."""
        self._next_look = 0.0
        self._created: dict[int, int] = {}
        """Partitions of the retry topic that are known to exist, and a size that they take."""
        self._largest_dead = -1
        """A size of records that the topic of dead letters takes; -1 if it may not exist."""

    # Ownership of input partitions.

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Take over input partitions, with what their earlier owners have left.

        Raises:
            RequestTimedOut: if a transaction of an earlier owner is undecided after a minute.
            StorageError: if the notes of running records cannot be written.
        """
        partitions = list(partitions)
        self.revoked(partitions)  # clients that were opened again get the same ones
        for at in partitions:
            number = self._topic_number(at.topic)
            note = self.notes.claim(at.topic, at.partition, number)
            stored = self._topic.restore(at.topic, at.partition)
            for waiting in stored.begun:
                self._store(retry_topic.ended(waiting))
                self._warn_dropped(waiting)
            for waiting in stored.waiting:
                self._load(waiting)
            self._deaths.update(stored.deaths)
            if note is not None:
                self._count(at, note)
            self.notes.clear(at.topic, at.partition, number)

    def _topic_number(self, topic: str) -> int:
        with contextlib.suppress(UnknownTopicOrPartition):  # the next step says so
            return topic_number(self._log.topic_id(topic))
        return 0

    def _load(self, waiting: WaitingRecord) -> None:
        task = self._tasks.get(waiting.record.task)
        if task is not None:
            # If the clock was set back since, the time is too far in the future.
            latest = self._now_ms() + round(1000 * longest_delay(task))
            self._queue.load(replace(waiting, due=min(waiting.due, latest)))
        else:
            logger.warning(
                "app %r: %s waits for task %r, which the app does not have; it is kept in %s",
                self._app_id, waiting.record, waiting.record.task, self._topic.name,
            )  # fmt: skip

    def _count(self, at: TopicPartition, note: Note) -> None:
        """Count the exit of a process in the handler of the records of a note."""
        task = self._name_of(note.task)
        if task is None:
            return
        place = (at.topic, at.partition, note.first, task)
        before = self._deaths.get(place, Deaths(0, 0, note.last))
        if before.owner == note.owner or self._finished(at, place):
            return
        # No record of a batch is the culprit before each has run alone.
        one = note.first == note.last
        deaths = Deaths(before.count + 1 if one else 0, note.owner, note.last)
        self._deaths[place] = deaths
        self._store(deaths.encoded(place, self._topic_id(place)))
        failpoint("app.death_counted")
        logger.warning(
            "app %r, task %r: the process ended while %s at offset %d%s was processed (%d of %d)",
            self._app_id, task, at, note.first, "" if one else f" to {note.last}",
            max(deaths.count, 1), self._tasks[task].max_deaths,
        )  # fmt: skip

    def _store(self, stored: StoredRecord, size: int = 0) -> None:
        """Write to the retry topic, durably and outside of any transaction."""
        with self._log.producer(max_request_size=LARGEST_REQUEST) as producer:
            self._send(producer, stored, size)
            producer.flush()

    def _warn_dropped(self, waiting: WaitingRecord) -> None:
        logger.warning(
            "app %r, task %r: attempt %d of %s did not end; at_most_once does not repeat it, so "
            "the record is dropped",
            self._app_id, waiting.record.task, waiting.record.attempts + 1, waiting.record,
        )  # fmt: skip

    def _finished(self, at: TopicPartition, place: Place) -> bool:
        """Whether a record is committed, so that a note about it is old."""
        if any(waiting.record.place == place for waiting in self._queue):
            return False
        committed = self._log.committed(self._app_id, [at]).get(at)
        return committed is not None and place[2] < committed.offset

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget input partitions that other processes may own now."""
        for at in partitions:
            owned = (at.topic, at.partition)
            self.notes.release(*owned)
            self._queue.forget(*owned)
            self._topic.forget(*owned)
            for place in [place for place in self._deaths if place[:2] == owned]:
                del self._deaths[place]
            for place in [place for place in self._given if place[:2] == owned]:
                del self._given[place]
            self._begun = [begun for begun in self._begun if begun.line[:2] != owned]

    def close(self) -> None:
        """Close the clients of the policy."""
        self._topic.close()

    # One call of a task.

    def busy(self) -> bool:
        """Whether a record waits or has ended a process, so that the policy acts."""
        return bool(self._queue.count or self._deaths or self._given)

    def takes(self, task: Task, record: Record, transaction: OutputTransaction) -> bool:
        """Whether the policy keeps a record, so that the function must not run now.

        An earlier record of its key waits, or it has ended too many processes.

        Args:
            task: the task.
            record: the record, as it is in the log.
            transaction: gets what the policy stores about the record.
        """
        place = (record.topic, record.partition, record.offset, task.name)
        deaths = self._deaths.get(place)
        if deaths is not None and deaths.count >= task.max_deaths:
            cause = f"the process ended {deaths.count} times while the record was processed"
            failures = self._failures_of(place)
            self._bury(task, record, failures + deaths.count, cause, transaction)
            return True
        if place in self._given:
            return False
        batch = self._batch_with(place)
        if batch is None and not self._queue.blocks(
            record.topic, record.partition, task.name, record.key
        ):
            return False
        self._wait(task, record, 0, "", 0.0, transaction)
        if batch is not None and self._deaths[batch].last == record.offset:
            self._survive(batch)
        return True

    def _batch_with(self, place: Place) -> Place | None:
        """Return the place of a batch that ended its process and contains a record."""
        for first, deaths in self._deaths.items():
            same = first[:2] == place[:2] and first[3] == place[3]
            if same and first[2] < deaths.last and first[2] <= place[2] <= deaths.last:
                return first
        return None

    def begin(self, task: Task, record: Record, transaction: OutputTransaction) -> None:
        """Store that an attempt of a waiting record begins, so that none follows a crash.

        For `at_most_once`, whose output cannot be aborted.
        """
        waiting = self._given[record.topic, record.partition, record.offset, task.name]
        self._begun.append(waiting)
        size = waiting.record.size
        self._send(transaction, retry_topic.begun(waiting, self._topic.origin), size)

    def tries(self, task: Task, record: Record) -> bool:
        """Whether a record that waits is tried, so that it stays in the queue."""
        return (record.topic, record.partition, record.offset, task.name) in self._given

    def attempt_of(self, task: Task, record: Record) -> int:
        """The number of the attempt that begins now, from 1."""
        place = (record.topic, record.partition, record.offset, task.name)
        deaths = self._deaths.get(place)
        return 1 + self._failures_of(place) + (deaths.count if deaths else 0)

    def _failures_of(self, place: Place) -> int:
        waiting = self._given.get(place)
        return waiting.record.attempts if waiting is not None else 0

    def succeeded(self, task: Task, records: Iterable[Record]) -> None:
        """Settle records whose function has returned."""
        for record in records:
            place = (record.topic, record.partition, record.offset, task.name)
            self._settle(place)

    def failed(self, failure: Failure, transaction: OutputTransaction) -> None:
        """Decide about a call that has raised.

        Returning means that the records are settled: what the policy sends in the transaction
        commits with the position after them.

        Args:
            failure: the call.
            transaction: gets what the policy stores about the records.

        Raises:
            TaskFailed: if the application must stop; the transaction is aborted then.
        """
        task, attempt = failure.task, failure.attempt
        delay = delay_after(task, attempt)
        if delay is None and task.on_error == "stop":
            self._wait_again(failure)
            raise task_failed(self._app_id, failure) from failure.error
        if len(failure.records) > 1:
            for record in failure.records:  # each is tried alone, as its first attempt
                self._wait(task, record, 0, failure.error, 0.0, transaction)
            self._warn(failure, "each of them is tried alone")
            return
        record = failure.records[0]
        place = (record.topic, record.partition, record.offset, task.name)
        if delay is not None:
            self.decided["retried"] += 1
            self._wait(
                task, record, self._failures_of(place) + 1, failure.error, delay, transaction
            )
            self._warn(failure, f"attempt {attempt + 1} follows in {delay:g} s")
        elif task.on_error == "skip":
            self.decided["skipped"] += 1
            self._settle(place)
            self._warn(failure, "it is skipped")
        else:
            self._bury(task, record, attempt, failure.error, transaction)

    def _wait_again(self, failure: Failure) -> None:
        """Take back that the attempt of a record has begun, because it has no output."""
        record, task = failure.records[0], failure.task
        waiting = self._given.get((record.topic, record.partition, record.offset, task.name))
        if waiting in self._begun:
            self._begun.remove(waiting)
            self._store(retry_topic.encoded(waiting, self._topic.origin), waiting.record.size)

    def _warn(self, failure: Failure, follows: str) -> None:
        record, cause = failure.records[0], cause_of(failure.error)[0]
        more = "" if len(failure.records) == 1 else f" and {len(failure.records) - 1} more records"
        logger.warning(
            "app %r, task %r: attempt %d of %s-%d at offset %d%s failed: %s; %s",
            self._app_id, failure.task.name, failure.attempt, record.topic, record.partition,
            record.offset, more, cause, follows, exc_info=failure.error,
        )  # fmt: skip

    def _wait(
        self,
        task: Task,
        record: Record,
        failures: int,
        error: Any,
        delay: float,
        transaction: OutputTransaction,
    ) -> None:
        """Keep a record in the retry topic until its time."""
        failed = FailedRecord.of(self._app_id, task.name, record, failures, error)
        due = self._now_ms() + round(delay * 1000) if delay else 0
        before = self._ended(failed.place)
        later = WaitingRecord(
            failed, due, self._key_of(failed.place) if before is None else before.id
        )
        if before is None:
            self._queue.add(later)
        else:
            self._queue.replace(before, later)
        self._send(transaction, retry_topic.encoded(later, self._topic.origin), failed.size)

    def _bury(
        self, task: Task, record: Record, attempts: int, error: Any, transaction: OutputTransaction
    ) -> None:
        """Send a record to the dead letters."""
        dead = FailedRecord.of(self._app_id, task.name, record, attempts, error)
        name = dead_topic(self._app_id)
        if dead.size > self._largest_dead:
            retry_topic.ensure_dead_topic(self._log, self._app_id, self._inputs, dead.size)
            self._largest_dead = dead.size
        transaction.produce(name, dead.value, dead.key, headers=dead.all_headers(), partition=0)
        self._settle(dead.place)
        self.decided["dead_letters"] += 1
        logger.error(
            "app %r, task %r: %s went to the dead letters (%s), attempt %d: %s",
            self._app_id, task.name, dead, name, attempts, dead.cause,
            exc_info=error if isinstance(error, BaseException) else None,
        )  # fmt: skip

    def _settle(self, place: Place) -> None:
        """End the waiting and the count of a record."""
        waiting = self._ended(place)
        if waiting is not None:
            self._queue.remove(waiting)
            self._ends.append(retry_topic.ended(waiting))
        if place in self._deaths:
            self._survive(place)

    def _ended(self, place: Place) -> WaitingRecord | None:
        """Note that an attempt has ended, and return the record if it was waiting."""
        waiting = self._given.pop(place, None)
        if waiting in self._begun:
            self._begun.remove(waiting)
        return waiting

    def _survive(self, place: Place) -> None:
        if place not in self._survived:
            self._survived.append(place)
            self._ends.append(retry_topic.survived(place, self._topic_id(place)))

    def _topic_id(self, place: Place) -> str:
        return id_text(self._log.topic_id(place[0]))

    def _key_of(self, place: Place) -> bytes:
        return place_key("record", self._topic_id(place), place)

    def _send(self, transaction: OutputTransaction, stored: StoredRecord, size: int = 0) -> None:
        key, value, headers, partition = stored
        self._ensure_topic(partition, size)
        transaction.produce(self._topic.name, value, key, headers=headers, partition=partition)

    def _ensure_topic(self, partition: int, size: int) -> None:
        if size <= self._created.get(partition, -1):
            return
        known = set(self._log.topics())
        most = max(len(self._log.partitions_of(t)) for t in self._inputs if t in known)
        most = max(most, partition + 1)
        retry_topic.ensure_topic(self._log, self._app_id, most, self._inputs, size)
        self._created.update(dict.fromkeys(range(most), size))

    # Records whose time has come.

    def due(self) -> Iterator[tuple[Task, Record]]:
        """Yield the records that wait and are due, each after the one before is settled."""
        while (waiting := self._queue.due(self._now_ms())) is not None:
            of = waiting.record
            self._given[of.place] = waiting
            yield (
                self._tasks[of.task],
                Record(
                    of.topic, of.partition, of.offset, of.timestamp, 0, of.key, of.value, of.headers
                ),
            )

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Try no records of these input partitions until the next call."""
        self._queue.hold((at.topic, at.partition) for at in partitions)

    def first_due(self) -> tuple[Task, int] | None:
        """The task and the partition of the first record that is due; None without one."""
        waiting = self._queue.due(self._now_ms())
        if waiting is None:
            return None
        return self._tasks[waiting.record.task], waiting.record.partition

    def seconds_until_due(self, most: float) -> float:
        """The time until the next record is due, from 0 to `most`."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _REPLAYS_S
            known = {waiting.id for waiting in self._queue}
            for waiting in self._topic.arrived():
                if waiting.id not in known:
                    self._load(waiting)
        if not self._queue:
            return most
        due = self._queue.next_due()
        if due is None:
            return most
        return min(most, max(0.0, (due - self._now_ms()) / 1000))

    def waiting(self) -> int:
        """The number of records that wait for another attempt."""
        return len(self._queue)

    def waits_elsewhere(self, at: TopicPartition) -> bool:
        """Whether a record of another owner's input partition waits, or may wait."""
        tasks = self._topic.tasks_waiting(at)
        return tasks is None or not tasks.isdisjoint(self._tasks)

    def doing(self) -> str:
        """The task and the record whose function runs now, or ""; any thread can call it."""
        for topic, partition, number, offset in self.notes.running():
            name = self._name_of(number)
            if name is not None:
                return f"{name} {topic}-{partition} at offset {offset}"
        return ""

    def _name_of(self, number: int) -> str | None:
        """The name of the task that has a number in notes."""
        return next((task.name for task in self._tasks.values() if task.number == number), None)

    # The end of a transaction.

    @property
    def settles(self) -> bool:
        """Whether records wait no longer, because of output of the open transaction."""
        return bool(self._ends)

    def settle(self, transaction: OutputTransaction) -> None:
        """Store which records wait no longer.

        Without a transaction, their output must be in the log before.
        """
        for stored in self._ends:
            self._send(transaction, stored)

    def committed(self) -> None:
        """Note that the transaction has committed."""
        self._queue.commit()
        for place in self._survived:
            self._deaths.pop(place, None)
        self._survived.clear()
        self._ends.clear()
        self._given.clear()
        self._begun.clear()
        self.decided = Counter()

    def aborted(self) -> None:
        """Note that the transaction was aborted: its records are read again."""
        self._forget_topics()
        self._queue.abort()
        self._survived.clear()
        self._ends.clear()
        self._given.clear()
        self.decided = Counter()

    def interrupted(self) -> None:
        """Note that the transaction ended early, with all that was sent in it.

        For `at_most_once`, whose output cannot be aborted.
        """
        self._forget_topics()
        for waiting in self._begun:
            self._queue.remove(waiting)
            self._warn_dropped(waiting)
        self._ends.extend(map(retry_topic.ended, self._begun))
        self._queue.commit()
        self._given.clear()
        self._begun.clear()

    def _forget_topics(self) -> None:
        self._created.clear()  # a topic that was deleted since may be the cause
        self._largest_dead = -1


def task_failed(app_id: str, failure: Failure) -> TaskFailed:
    """Return the error that names the application, the task and the record."""
    if isinstance(failure.error, TaskFailed):
        return failure.error
    record, cause = failure.records[0], cause_of(failure.error)[0]
    more = "" if len(failure.records) == 1 else f" in a batch of {len(failure.records)} records"
    return TaskFailed(
        f"app {app_id!r}, task {failure.task.name!r}: {record.topic}-{record.partition} at offset "
        f"{record.offset}{more} failed: {cause}; nothing of it was committed: correct "
        "the task and run it again, or set on_error",
        app_id, failure.task.name, record.topic, record.partition, record.offset,
    )  # fmt: skip
