"""A worker: reads the inputs, calls the tasks, and commits, in one thread.

A transaction begins with the first record that there is. It has at most `max_records` records, and
commits after `commit_interval` at the latest. Rebalances happen in polls. The consumer keeps
partitions while a transaction has records of them.

After an aborted transaction, the records are read again from the committed positions. If it is not
known whether a transaction has committed, the clients are opened again. Then the committed
positions say which records are processed, and tables are read again.

Tables of a partition are read when its first record comes. The position is known then, so the
tables have the changes of all records before it. A partition of a table belongs to the owner of
that partition of all topics whose tasks use the table. Until a worker owns all of them, those that
it owns are paused.
"""

from __future__ import annotations

import contextlib
import time
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from eoslog._util.user_frames import user_frames
from eoslog.app.batches import Batches
from eoslog.app.clients import Clients, OutputTransaction, clients_of
from eoslog.app.failures import Failure, Failures
from eoslog.app.tables.owned import OwnedTables
from eoslog.app.task_calls import TaskCalls
from eoslog.app.tasks import Task
from eoslog.app.topology import check_topics
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    ConfigError,
    EoslogError,
    GroupNotFound,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    RecordTooLarge,
    SerializationError,
    StorageError,
    TaskFailed,
    UnknownTopicOrPartition,
)
from eoslog.model import TopicPartition
from eoslog.reports import RunReport
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.app.instance import Instance
    from eoslog.app.tables.table import AppTable
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.log import Log

__all__ = ["AppWorker"]

logger = get_logger("eoslog.app")

_OUTPUT_ERRORS = (
    ConfigError, InvalidRecord, InvalidTopic, RecordTooLarge, SerializationError,
    UnknownTopicOrPartition,
)  # fmt: skip
"""Of a record that a task has sent: the task is the cause, not the log."""
_NEW_CLIENTS = (CommitFailed, CommitOutcomeUnknown)
"""The group has removed the consumer; or the positions may be committed."""
_RECOVERIES = 5
RejectedCall = tuple[str, int, int, int]
"""Topic, partition, first offset and attempt; the attempt is 0 for a batch of several records."""


class _OutputRejected(Exception):
    """Invalid output of a task, after other output that is in the transaction."""

    def __init__(self, call: RejectedCall, error: Exception) -> None:
        super().__init__(call, error)
        self.call = call
        self.error = error


class AppWorker:
    """One member of the application's group; used by one thread.

    Attributes:
        report: what the worker has done.
        calls: the calls of tasks; any thread can ask for an overdue one.
        idle: whether the last step has found no record.
    """

    def __init__(
        self,
        log: Log,
        app_id: str,
        tasks: list[Task],
        instance: Instance,
        guarantee: str,
        commit_interval: float,
        max_records: int,
        stopping: Callable[[], bool],
    ) -> None:
        """Open the clients; the first step joins the group."""
        self.report = RunReport()
        self.idle = False
        self._log = log
        self._app_id = app_id
        self._instance = instance
        self._guarantee = guarantee
        self._commit_interval = commit_interval
        self._max_records = max_records
        self._failures = Failures(app_id, log, tasks)
        self._tasks = {task.topic: task for task in tasks}
        self._timeout = max(task.task_timeout for task in tasks)
        self._tables = OwnedTables(log, app_id, instance.folder, stopping)
        self._shared = _shared(self._tasks)
        self._batches = Batches()
        self._doubtful = False
        self._restores = False
        """Whether the consumer has partitions without the records that wait, after an error."""
        self._done = 0
        """Records of the transaction whose commit has begun."""
        self._forgotten = 0
        """Records of the transaction whose partition was released before they were processed."""
        self._rejected: dict[RejectedCall, Exception] = {}
        self._sends_each = False
        """Whether the output of each call is sent alone, because some of it was rejected late."""
        self._recoveries = 0
        self._rebalanced = False
        """Whether partitions came or went, because a topic was deleted or grew, for example."""
        self.calls = TaskCalls(app_id)
        self._clients = self._open()

    def _open(self) -> Clients:
        return clients_of(
            self._guarantee,
            self._log,
            self._app_id,
            self._instance.number,
            sorted(self._tasks),
            self._commit_interval + self._timeout,
            any(task.tables for task in self._tasks.values()),
            self._max_records,
            self._assigned,
            self._revoked,
        )

    # Partitions.

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        logger.info("app %s: assigned %s", self._app_id, _names(partitions))
        self._rebalanced = True
        self._restores = True
        self._failures.assigned(partitions)
        self._restores = False
        self._pause(set(consumer.assignment()))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        logger.info("app %s: released %s", self._app_id, _names(partitions))
        self._rebalanced = True
        self._failures.revoked(partitions)
        self._forgotten += self._batches.forget(partitions)
        for partition in partitions:
            self._tables.release(self._tasks[partition.topic].tables, partition.partition)
        self._pause(set(consumer.assignment()) - set(partitions))

    def _pause(self, owned: set[TopicPartition]) -> None:
        """Pause partitions whose tables another worker may still use."""
        for topics in self._shared:
            for partition in owned:
                if partition.topic in topics:
                    number = partition.partition
                    whole = all(TopicPartition(topic, number) in owned for topic in topics)
                    consumer = self._clients.consumer
                    (consumer.resume if whole else consumer.pause)(partition)
        self._failures.hold(self._clients.consumer.paused() if self._shared else ())

    def _restored(self, tables: Sequence[AppTable], partition: int, read: Record | None) -> bool:
        """Restore tables of a partition, outside of a transaction.

        Returns:
            False if the application stops; the record that was `read` is read again.
        """
        restored = False
        try:
            restored = self._tables.take(tables, partition)
        finally:
            if not restored and read is not None:
                self._clients.put_back([read])
        return restored

    # Transactions.

    def step(self, wait: float, *, linger: bool) -> int:
        """Process records in one transaction.

        Args:
            wait: the longest wait for the first record, in seconds.
            linger: wait for more records until the commit interval is over.

        Returns:
            The number of records whose results are committed; 0 after an abort too.

        Raises:
            TaskFailed: if a task has failed, and the application must stop.
            UnknownTopicOrPartition: if a topic was deleted.
            EoslogError: if the log cannot be used.
        """
        if self._rebalanced:
            self._rebalanced = False
            check_topics(self._log, self._app_id, self._tasks.values())
        try:
            done = self._step(wait, linger)
        except _OutputRejected as rejected:
            if self._guarantee == "at_most_once":
                self._warn_dropped(rejected)
            else:
                self._rejected[rejected.call] = rejected.error
            self._aborted()
            return 0
        except CommitOutcomeUnknown as error:
            self._reopen(error)
            return 0
        except KafkaError as error:
            self._sends_each = self._guarantee != "at_most_once" and _of_output(error)
            lost = isinstance(error, CommitFailed)
            if not (error.fatal or error.abortable or error.retriable or lost):
                self._aborted()
                raise
            self._reopen(error)
            return 0
        except BaseException:
            self._rejected.clear()  # the caller may correct the cause before the next step
            self._aborted()
            raise
        if done:
            self._recoveries = 0
        return done

    def _step(self, wait: float, linger: bool) -> int:
        self.idle = False
        if self._doubtful or self._restores or not self._clients.usable:
            self._open_again()
        record = self._clients.next(self._failures.seconds_until_due(wait))
        first_due = self._failures.first_due()
        if record is None and first_due is not None and not self._clients.fenced:
            record = self._clients.next(wait)  # another worker could try the same records
            if record is None:
                return 0
        if record is None and first_due is None:
            self.idle = True
            return 0
        if record is not None:
            tables = self._tasks[record.topic].tables
            if not self._restored(tables, record.partition, record):
                return 0
        if first_due is not None and not self._restored(first_due[0].tables, first_due[1], record):
            return 0
        done = self._forgotten = 0
        deadline = time.monotonic() + self._commit_interval
        with self._clients.transaction() as transaction:
            try:
                again = self._process_due(deadline, transaction)
            except BaseException:
                self._clients.keep([] if record is None else [record])
                raise
            while record is not None:
                task = self._tasks[record.topic]
                if task.tables and not self._tables.has(task.tables, record.partition):
                    self._clients.put_back([record])
                    break  # tables are restored before a transaction, which has a timeout
                self._process(task, record, transaction)
                done += 1
                left = deadline - time.monotonic()
                if done >= self._max_records or left <= 0:
                    break
                record = self._clients.next(left if linger else 0)
            done -= self._finish_batches(deadline, transaction) + self._forgotten
            self._tables.send(transaction)
            if self._failures.settles:
                self._clients.output_first()
                self._failures.settle(transaction)
            if self._failures.settles or self._failures.busy():
                self._clients.positions_last()
            self._done = done
            self._doubtful = True
        self._tables.apply()
        self._doubtful = False
        self._committed(done)
        return done + again

    def _process_due(self, deadline: float, transaction: OutputTransaction) -> int:
        """Try records again whose time has come, and return how many."""
        done = 0
        for task, record in self._failures.due():
            if not self._tables.has(task.tables, record.partition):
                break  # the next step restores them, before its transaction
            if not self._failures.takes(task, record, transaction):
                begin = partial(self._failures.begin, task, record, transaction)
                if not self._clients.begin_attempt(begin):
                    break
                self._run(task, [record], transaction, self._failures.busy())
            done += 1
            if done >= self._max_records or time.monotonic() > deadline:
                break
        return done

    def _finish_batches(self, deadline: float, transaction: OutputTransaction) -> int:
        """Process batches that are not full; return how many records are left."""
        finished = left = 0
        while (records := self._batches.take()) is not None:
            if finished and time.monotonic() > deadline:
                self._clients.put_back(records)
                left += len(records)
            else:
                task = self._tasks[records[0].topic]
                self._run_batch(task, records, transaction)
                finished += 1
        return left

    def _committed(self, done: int) -> None:
        self._rejected.clear()
        self._sends_each = False
        self._count(done, self._failures.decided)
        self._failures.committed()

    def _count(self, done: int, decided: Counter[str]) -> None:
        """Add a transaction that has committed to the report."""
        self.report.records += done
        self.report.transactions += 1
        for name, number in decided.items():
            setattr(self.report, name, getattr(self.report, name) + number)

    def _aborted(self) -> None:
        self._roll_back(surely=False)
        self.report.aborted += 1

    def _warn_dropped(self, rejected: _OutputRejected) -> None:
        logger.warning(
            "app %r: output of %s-%d at offset %d was rejected after other output: %s; "
            "at_most_once does not repeat it, so what the call got is dropped",
            self._app_id, *rejected.call[:3], rejected.error,
        )  # fmt: skip

    def _roll_back(self, *, surely: bool) -> None:
        self._clients.keep(self._batches.clear())
        if self._guarantee == "at_most_once":
            self._end_interrupted()
        elif self._guarantee == "exactly_once" and (surely or not self._doubtful):
            self._tables.roll_back()
            self._failures.aborted()
        else:
            self._tables.release_all()  # their topics may have the changes
            self._failures.aborted()

    def _end_interrupted(self) -> None:
        """Write what the calls leave, because at_most_once does not repeat them."""
        self._failures.interrupted()
        try:
            if not self._doubtful:
                self._tables.send(self._clients.producer)
                self._clients.output_first()
        except EoslogError as error:
            logger.warning(
                "app %r: changes of tables were not written: %s; at_most_once does not repeat "
                "their calls, so they are dropped",
                self._app_id, error,
            )  # fmt: skip
        finally:
            self._tables.release_all()
        if self._failures.settles:
            with contextlib.suppress(EoslogError):  # the next transaction stores it again
                self._clients.output_first()
                self._failures.settle(self._clients.producer)
                self._clients.producer.flush()

    def _reopen(self, error: KafkaError) -> None:
        """Continue after an error of the transaction, from the committed positions."""
        surely = self._clients.usable and not isinstance(error, _NEW_CLIENTS)
        before, decided, committing = self._clients, self._failures.decided, self._doubtful
        self._roll_back(surely=surely)
        self._rejected.clear()
        check_topics(self._log, self._app_id, self._tasks.values())  # one may be the cause
        self._recoveries += 1
        if self._recoveries > _RECOVERIES:
            raise error
        logger.warning(
            "app %s: reading again from the committed positions: %s", self._app_id, error
        )
        if surely:
            self._doubtful = False
        else:
            self._open_again()
        if committing and not surely and self._clients.know_committed(before):
            self._count(self._done, decided)
        else:
            self.report.aborted += 1

    def _open_again(self) -> None:
        """Continue with new clients, and with tables as the log has them."""
        self._tables.release_all()
        self._batches.clear()
        with contextlib.suppress(EoslogError):  # of records that are read again
            self._clients.close()
        self._clients = self._open()
        self._doubtful = self._restores = False

    # Records. These methods run for each of them: a call less is a percent of the rate.

    def _process(self, task: Task, record: Record, transaction: OutputTransaction) -> None:
        if task.batch is not None:
            records = self._batches.add(task, record)
            if records is not None:
                self._run_batch(task, records, transaction)
            return
        busy = self._failures.busy()
        if not (busy and self._failures.takes(task, record, transaction)):
            self._run(task, [record], transaction, busy)

    def _run_batch(self, task: Task, records: list[Record], transaction: OutputTransaction) -> None:
        """Call the function of a task with the records of a batch that need not wait.

        The others wait from now on. A batch that is put back is read again with all its records, so
        none of them may wait before.
        """
        busy = self._failures.busy()
        if busy:
            takes = self._failures.takes
            records = [record for record in records if not takes(task, record, transaction)]
        if records:
            self._run(task, records, transaction, busy)

    def _run(
        self, task: Task, records: list[Record], transaction: OutputTransaction, busy: bool
    ) -> None:
        """Call the function of a task, and send its output."""
        first, failures = records[0], self._failures
        attempt = failures.attempt_of(task, first) if busy else 1
        error: BaseException | None = None
        if self._rejected:
            error = self._rejected_of(records, attempt)
        if error is None:
            notes = failures.notes
            note = notes.begin(
                first.topic, first.partition, task.number, first.offset, records[-1].offset
            )
            try:
                if task.tables:
                    with self._tables.call(task.tables, first.partition):
                        outputs = self.calls.run(task, records, attempt)
                else:
                    outputs = self.calls.run(task, records, attempt)
            except (StorageError, KeyboardInterrupt):
                notes.end(note)
                raise  # of a table's file, or of a person; the record is not the cause
            except (Exception, CancelledError) as failed:
                # Not SystemExit: the next process counts the end of this one. The task has
                # cancelled what it awaits: Ctrl-C is a KeyboardInterrupt.
                notes.end(note)
                error = failed.with_traceback(user_frames(failed) or failed.__traceback__)
            else:
                notes.end(note)
                if outputs:
                    call = (*_place(first), attempt if len(records) == 1 else 0)
                    error = self._produce(call, outputs, transaction)
            if error is None:
                if task.tables:
                    self._tables.keep(task.tables, first.partition)
                if busy:
                    failures.succeeded(task, records)
                return
            if task.tables:
                self._tables.forget(task.tables, first.partition)
        try:
            failures.failed(Failure(task, records, attempt, error), transaction)
        except TaskFailed:
            if not failures.tries(task, first):
                self._clients.keep(records)
            raise

    def _rejected_of(self, records: list[Record], attempt: int) -> Exception | None:
        """Return why the log has rejected the output of this call before the last abort.

        A batch that is read again may have other records. It fails if one of them has begun a call
        that was rejected, for each is tried alone then. An attempt of one record fails only if the
        same attempt was rejected, without other records.
        """
        attempts = (attempt,) if len(records) == 1 else (0, attempt)
        for record in records:
            for each in attempts:
                error = self._rejected.get((*_place(record), each))
                if error is not None:
                    return error
        return None

    def _produce(
        self, call: RejectedCall, outputs: list[Any], transaction: OutputTransaction
    ) -> Exception | None:
        """Send the output of a call.

        Returns:
            Why the log rejects the output, if it rejects the first record; None if all is sent.

        Raises:
            _OutputRejected: if it rejects a later one, so that the transaction must abort.
        """
        sent = False
        try:
            for topic, value, key, headers, partition, timestamp in outputs:
                transaction.produce(
                    topic, value, key, headers=headers, partition=partition, timestamp=timestamp
                )
                sent = True
            if self._sends_each:
                self._clients.producer.flush()
        except KafkaError as error:
            failed = self._clients.failed
            if not _of_output(error) or (failed and not self._sends_each):
                raise  # it may be of the output of an earlier call
            if not sent and not failed:
                return error
            raise _OutputRejected(call, error) from error
        return None

    # The end.

    def caught_up(self) -> bool:
        """Whether no input record is left, and none waits in any process."""
        if not self.idle or self._failures.waiting():
            return False
        paused = set(self._clients.consumer.paused())
        mine = set(self._clients.consumer.assignment()) - paused
        try:
            lag = self._log.lag(self._app_id)
            owned = paused | self._owned_by_others()
        except GroupNotFound:
            lag, owned = {}, paused
        for topic in self._tasks:
            for partition in self._log.partitions_of(topic):
                if partition in mine:
                    continue  # the step found no record
                if partition not in owned:
                    return False  # its next owner finds the records that wait
                # After the lag: a failed record waits before the position moves past it.
                if self._unread(partition, lag) or self._failures.waits_elsewhere(partition):
                    return False
        return True

    def _unread(self, partition: TopicPartition, lag: dict[TopicPartition, int]) -> bool:
        if partition in lag:
            return lag[partition] > 0
        offsets = self._log.offsets(partition.topic, partition.partition)
        return offsets.last_stable > offsets.log_start

    def _owned_by_others(self) -> set[TopicPartition]:
        own = self._clients.consumer.group_metadata().member_id
        members = self._log.describe_group(self._app_id).members
        return {at for one in members if one.member_id != own for at in one.assigned}

    def waiting(self) -> int:
        """The number of records that wait for another attempt; any thread can call it."""
        return self._failures.waiting()

    def doing(self) -> str:
        """The task and the record that is processed now, or ""; any thread can call it."""
        return self._failures.doing()

    def wakeup(self) -> None:
        """End a wait for records; any thread can call it."""
        self._clients.consumer.wakeup()

    def close(self) -> None:
        """Leave the group, and free the number of the worker."""
        try:
            self.calls.close()
            self._clients.close()
            self._failures.close()
        finally:
            self._tables.release_all()
            self._instance.close()


def _of_output(error: KafkaError) -> bool:
    return isinstance(error, _OUTPUT_ERRORS) or error.code is ErrorCode.INVALID_TIMESTAMP


def _place(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _shared(tasks: dict[str, Task]) -> list[set[str]]:
    """Return the sets of topics whose tasks share tables."""
    groups: list[tuple[set[str], set[AppTable]]] = []
    for topic, task in tasks.items():
        topics, tables = {topic}, set(task.tables)
        for group in [one for one in groups if one[1] & tables]:
            groups.remove(group)
            topics |= group[0]
            tables |= group[1]
        groups.append((topics, tables))
    return [topics for topics, _ in groups if len(topics) > 1]


def _names(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
