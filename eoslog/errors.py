"""The exceptions of eoslog, which say what the caller can do.

Three attributes do so: `retriable` (call again), `abortable` (abort the transaction, then continue)
and `fatal` (close the handle and create a new one). Messages have the values that disagree.

Source: Kafka `org.apache.kafka.common.errors`, KIP-360, KIP-890, KIP-1050.
"""

from __future__ import annotations

import os
from errno import EACCES, EPERM, EROFS
from typing import Any, ClassVar

from eoslog.error_codes import ErrorCode
from eoslog.shown_paths import shown
from eoslog.shown_values import printable
from eoslog.shown_values import shown_value as shown_value

__all__ = [  # noqa: RUF022 (grouped as the tree below)
    "ErrorCode", "EoslogError", "KafkaError", "StorageError", "DiskFull", "TooManyOpenFiles",
    "LogPoisoned", "DirectoryReplaced",
    "ProducerFenced", "InvalidProducerEpoch", "OutOfOrderSequence", "UnknownProducerId",
    "DuplicateSequence", "InvalidProducerIdMapping", "InvalidTxnState", "ConcurrentTransactions",
    "InvalidTransactionTimeout", "TransactionAborted", "TransactionAbortable",
    "TransactionTimedOut",
    "CommitOutcomeUnknown", "OutcomeConflict", "UnknownToken", "PreparedTransactionPending",
    "PublishingIdRegression", "PositionConflict",
    "TransactionalIdNotFound", "NotCoordinator", "CoordinatorNotAvailable",
    "CoordinatorLoadInProgress", "CommitFailed", "IllegalGeneration", "UnknownMember",
    "RebalanceInProgress", "FencedInstanceId", "FencedMemberEpoch", "StaleMemberEpoch",
    "GroupNotFound", "NonEmptyGroup", "OffsetOutOfRange", "NoOffset",
    "UnknownTopicOrPartition", "TopicAlreadyExists", "InvalidTopic", "InvalidPartitions",
    "RecordTooLarge", "CorruptRecord", "UnsupportedFormat", "InvalidRecord", "SerializationError",
    "AuthorizationFailed", "QueueFull", "LockTimeout", "DeliveryTimeout", "RequestTimedOut",
    "IllegalState", "ConfigError", "PolicyViolation", "DatabaseError", "DatabaseUnavailable",
    "OutboxRowRejected",
    "ApplicationError", "TaskFailed", "TaskTimeout", "TopologyChanged",
    "error_for",
]  # fmt: skip


def _text(value: object) -> str:
    found = getattr(value, "__fspath__", lambda: value)()  # a path counts as its name
    return found if isinstance(found, str) else shown_value(found)


class EoslogError(Exception):
    """The base class of all exceptions of eoslog.

    Catch it to handle every error that eoslog raises::

        try:
            eoslog.open("shop", create=False)
        except eoslog.EoslogError as error:
            print(error)
    """

    @property
    def help(self) -> str:
        """The page and anchor in the documentation.

        For example `reference/errors.html#producerfenced`, which says what causes the error and
        what to do. The anchor does not change between versions.
        """
        known = next(
            cls.__name__
            for cls in type(self).__mro__
            if cls.__module__ == __name__ and not cls.__name__.startswith("_")
        )
        return f"reference/errors.html#{known.lower()}"


class KafkaError(EoslogError):
    """An error with one of Kafka's codes.

    The attributes say what the caller can do::

        try:
            log.create_topic("orders")
        except eoslog.KafkaError as error:
            print(error.code.name, error.retriable, error)

    Attributes:
        code: Kafka's code.
        retriable: whether the same call may succeed later.
        abortable: whether the producer can continue after `abort_transaction`.
        fatal: whether the handle must be closed.

    Args:
        code: the code; subclasses have their own code, and take the message first.
        message: what happened, with the values that disagree; the code's description if empty.
        retriable: overrides the code's category, as `abortable` and `fatal` do. For example, Kafka
            calls INVALID_PRODUCER_EPOCH abortable for Produce and fatal for other requests.
        abortable: see `retriable`.
        fatal: see `retriable`.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(
        self,
        code: ErrorCode | int = ErrorCode.UNKNOWN_SERVER_ERROR,
        message: str = "",
        *,
        retriable: bool | None = None,
        abortable: bool | None = None,
        fatal: bool | None = None,
    ) -> None:
        """Set the code, the message and the category."""
        self.code = ErrorCode.of(code)
        self.message = printable(shown(_text(message))) or self.code.description
        super().__init__(self.message)
        named = (retriable, abortable, fatal)
        # Setting one category clears the two others, because at most one is true.
        given = any(named)
        self.retriable = bool(retriable) if given or retriable is False else self.code.retriable
        self.abortable = bool(abortable) if given or abortable is False else self.code.abortable
        self.fatal = bool(fatal) if given or fatal is False else self.code.fatal

    @property
    def name(self) -> str:
        """The code's name in Kafka, for example `PRODUCER_FENCED`."""
        return self.code.name

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would pass the message to `__init__` as the code.
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(cls: type[EoslogError], message: str, state: dict[str, Any]) -> EoslogError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class _Coded(KafkaError):
    """A KafkaError whose class has the code; the message is the first argument."""

    code_of_class: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls, code: ErrorCode | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if code is not None:
            cls.code_of_class = cls.code = code

    def __init__(
        self,
        message: str = "",
        *,
        code: ErrorCode | int | None = None,
        retriable: bool | None = None,
        abortable: bool | None = None,
        fatal: bool | None = None,
    ) -> None:
        super().__init__(
            self.code_of_class if code is None else code,
            message,
            retriable=retriable,
            abortable=abortable,
            fatal=fatal,
        )


# Producer state.
class ProducerFenced(_Coded, code=ErrorCode.PRODUCER_FENCED):
    """Another producer with the same transactional id took over.

    Close this producer. If no other producer should run, create a new one.
    """


class InvalidProducerEpoch(_Coded, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """The producer's epoch is older than the epoch in the partition.

    Abort the transaction. If another producer took over, the abort raises ProducerFenced.
    """


class OutOfOrderSequence(_Coded, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """The batch's sequence is not the next one, so an earlier batch is missing.

    Abort the transaction. Without a transaction, the producer continues with a new epoch.
    """


class UnknownProducerId(OutOfOrderSequence, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The partition has no state of this producer id.

    The state has expired, or its records were deleted. Abort the transaction.
    """


class DuplicateSequence(_Coded, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The batch is stored already, so nothing was written.

    This is harmless. It is raised only with `strict.duplicates=True`.
    """


class InvalidProducerIdMapping(_Coded, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING):
    """The transactional id has another producer id, or has expired.

    Abort the transaction; the producer then gets a new producer id and can continue.
    """


# Transactions.
class InvalidTxnState(_Coded, code=ErrorCode.INVALID_TXN_STATE):
    """The transaction's state does not allow the operation.

    Close the producer and create a new one.
    """


class ConcurrentTransactions(_Coded, code=ErrorCode.CONCURRENT_TRANSACTIONS):
    """The previous transaction of this transactional id is not complete.

    Call again.
    """


class InvalidTransactionTimeout(_Coded, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT):
    """The value of `transaction.timeout.ms` is out of range.

    Use a value from 1 to the log's `transaction.max.timeout.ms`.
    """


class TransactionAborted(_Coded, code=ErrorCode.LOCAL_TRANSACTION_ABORTED):
    """The record was dropped because its transaction was aborted.

    Produce the record again in a new transaction.
    """


class TransactionTimedOut(ProducerFenced, InvalidProducerEpoch, TransactionAborted):
    """The transaction exceeded `transaction.timeout.ms` and was aborted.

    The class is a subclass of ProducerFenced, InvalidProducerEpoch and TransactionAborted, for
    programs that catch those. `code` is Kafka's code for the request.

    If the error is found while records are sent, its code is INVALID_PRODUCER_EPOCH and it is
    abortable: abort the transaction and continue with the same producer. If it is found by a commit
    or by `send_offsets_to_transaction`, its code is PRODUCER_FENCED (or INVALID_TXN_STATE while the
    abort is being completed) and it is fatal: close the producer and create a new one.
    """


class TransactionAbortable(_Coded, code=ErrorCode.TRANSACTION_ABORTABLE):
    """The transaction can no longer commit.

    Abort it, then continue with the same producer.
    """


class CommitOutcomeUnknown(_Coded, code=ErrorCode.LOCAL_COMMIT_OUTCOME_UNKNOWN):
    """The decision to commit was appended, but may not be durable.

    Do not abort or rewind. Close the producer and create a new one: its `init_transactions()`
    returns whether the transaction was committed.
    """


class OutcomeConflict(_Coded, code=ErrorCode.LOCAL_OUTCOME_CONFLICT):
    """A prepared transaction was already decided the other way.

    The message names the decision, which stands. Make the other system agree with it.
    """


class UnknownToken(_Coded, code=ErrorCode.LOCAL_UNKNOWN_TOKEN):
    """The token names no prepared transaction of this log.

    The token is of another log, or its outcome is older than `outcome.retention.ms`.
    """


class PreparedTransactionPending(_Coded, code=ErrorCode.LOCAL_PREPARED_TRANSACTION_PENDING):
    """A transactional id, or a group's offset, waits for a prepared transaction.

    Decide it with `Log.resolve`, or initialise with `init_transactions(keep_prepared=True)`.
    """


class PublishingIdRegression(_Coded, ValueError, code=ErrorCode.LOCAL_PUBLISHING_ID_REGRESSION):
    """The publishing id is not above the producer's last one in the partition.

    Only a producer with `strict_ids=True` raises it. Others drop the record as a duplicate.
    """


class PositionConflict(_Coded, code=ErrorCode.LOCAL_POSITION_CONFLICT):
    """A named position is not the one that the transaction expects.

    Another process has moved it. Abort the transaction, and read the position again.
    """


class TransactionalIdNotFound(_Coded, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
    """The transactional id does not exist.

    `Log.transactions(open_only=False)` lists all ids.
    """


class NotCoordinator(_Coded, code=ErrorCode.NOT_COORDINATOR):
    """The id belongs to another coordinator.

    Look up the coordinator again.
    """


class CoordinatorNotAvailable(_Coded, code=ErrorCode.COORDINATOR_NOT_AVAILABLE):
    """The coordinator is not available now.

    Call again.
    """


class CoordinatorLoadInProgress(
    CoordinatorNotAvailable, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
):
    """The coordinator is still loading its state.

    Call again.
    """


# Groups.
class CommitFailed(_Coded, code=ErrorCode.LOCAL_COMMIT_FAILED):
    """The group rebalanced, so the offsets were not committed.

    Another member may own the partitions. In a transaction, abort it. Then poll again.
    """


class IllegalGeneration(_Coded, code=ErrorCode.ILLEGAL_GENERATION):
    """The generation is not the group's current one.

    Poll again to rejoin the group.
    """


class UnknownMember(_Coded, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The member is not in the group: it never joined, has left, or was removed.

    Poll again to rejoin the group.
    """


class RebalanceInProgress(_Coded, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group is rebalancing.

    Poll, then call again.
    """


class FencedInstanceId(_Coded, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another consumer took over this `group.instance.id`.

    Use each `group.instance.id` for one consumer only.
    """


class FencedMemberEpoch(_Coded, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The member's epoch was fenced.

    Poll again to rejoin the group.
    """


class StaleMemberEpoch(_Coded, code=ErrorCode.STALE_MEMBER_EPOCH):
    """The member's epoch is not the current one.

    Poll, then call again.
    """


class GroupNotFound(_Coded, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """The group does not exist.

    `Log.groups` lists all groups.
    """


class NonEmptyGroup(_Coded, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members.

    Stop its consumers first.
    """


# Logs and topics.
class OffsetOutOfRange(_Coded, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is below the log start or beyond the log end.

    `Log.offsets` returns both. Retention may have deleted the record.
    """


class NoOffset(_Coded, code=ErrorCode.LOCAL_NO_OFFSET):
    """The group has no committed offset, and `auto.offset.reset` is none.

    Seek to a position, commit an offset, or set `auto.offset.reset`.
    """


class UnknownTopicOrPartition(_Coded, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """The topic or partition does not exist.

    Create the topic with `Log.create_topic`; producing does not create topics.
    """


class TopicAlreadyExists(_Coded, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """The topic exists already.

    Choose another name, or pass `exist_ok=True`.
    """


class InvalidTopic(_Coded, ValueError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic name is illegal, or is that of an internal topic.

    A name has at most 249 letters, digits, ".", "_" and "-".
    """


class InvalidPartitions(_Coded, ValueError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is out of range.

    A topic has 1 to 10,000 partitions, and the number can only increase.
    """


class RecordTooLarge(_Coded, ValueError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """The record or batch is larger than a limit.

    Send smaller records, or raise the limit that the message names.
    """


class InvalidRecord(_Coded, ValueError, code=ErrorCode.INVALID_RECORD):
    """A record is not valid for its topic, or does not match its batch header.

    Correct the record. For example, a compacted topic requires a key.
    """


class PolicyViolation(_Coded, ValueError, code=ErrorCode.POLICY_VIOLATION):
    """A policy or a limit does not allow the operation.

    The message names it, for example the topic's `cleanup.policy` or `pending.max.count`.
    """


class CorruptRecord(_Coded, ValueError, code=ErrorCode.CORRUPT_MESSAGE):
    """Bytes in a file or an argument do not match their format.

    Run `eoslog check` to see all damage, and `eoslog repair` to see what can be done.

    Args:
        message: what is wrong.
        path: the file, if known.
        position: the position in the file or buffer in bytes, if known.
        expected: the expected value, if there is one.
        found: the value in the bytes, if there is one.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        **category: Any,
    ) -> None:
        """Compose the message from the arguments."""
        text = message
        if expected is not None or found is not None:
            text += f": expected {expected!r}, found {found!r}"
        if path is not None or position is not None:
            path = None if path is None else shown(path)
            place = path if path is not None else "data"
            text += f" ({place}" + (f" at {position})" if position is not None else ")")
        # Unlike on Kafka's network, reading the bytes again gives the same bytes: not retriable.
        category.setdefault("retriable", False)
        super().__init__(text, **category)
        self.path, self.position = path, position
        self.expected, self.found = expected, found

    def located(self, path: str, base: int = 0, where: str = "") -> CorruptRecord:
        """Return the error with a file and a position, unless it has them.

        Args:
            path: the file.
            base: the position in the file from which the error's position counts.
            where: a prefix for the message.
        """
        if self.path is not None:
            return self
        position = None if self.position is None else base + self.position
        text = self.message.removesuffix(f" (data at {self.position})")
        named = type(self)(f"{where}: {text}" if where else text, path=path, position=position)
        named.expected, named.found = self.expected, self.found
        return named


class UnsupportedFormat(CorruptRecord, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
    """The record format, codec or file version is unknown.

    Another program or a newer version of eoslog may have written it.
    """


class SerializationError(_Coded, ValueError, TypeError, code=ErrorCode.LOCAL_SERIALIZATION):
    """A key or value has the wrong type, or its serializer failed.

    Correct the value, or configure another serializer or deserializer.
    """


# Access, limits, misuse.
class AuthorizationFailed(_Coded, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """Access is denied.

    eoslog has no access lists and does not raise it. Programs written for Kafka may catch it.
    """


class RequestTimedOut(_Coded, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT):
    """A call has exceeded its timeout.

    Call again, which is safe.
    """


class QueueFull(_Coded, TimeoutError, code=ErrorCode.LOCAL_QUEUE_FULL):
    """The producer's buffer was full for `max.block.ms`.

    Produce more slowly, or raise `buffer.memory`.
    """


class LockTimeout(_Coded, TimeoutError, code=ErrorCode.LOCAL_TIMED_OUT):
    """Another process held a lock for too long.

    The message names the process. `Log.locks` and `eoslog why` show the holders.
    """


class DeliveryTimeout(_Coded, TimeoutError, code=ErrorCode.LOCAL_DELIVERY_TIMEOUT):
    """The record was not delivered within `delivery.timeout.ms`.

    The message says whether its outcome is unknown. The cause is the last error of the partition.
    """


class IllegalState(_Coded, RuntimeError, code=ErrorCode.LOCAL_STATE):
    """The call is not allowed in the handle's state.

    The handle is closed, was inherited through a fork, or the call is out of order.
    """


class ConfigError(_Coded, ValueError, code=ErrorCode.INVALID_CONFIG):
    """A configuration key is unknown, a value is invalid, or two keys conflict.

    The message names the key, the value and what is expected.
    """


UNWRITABLE = frozenset({EACCES, EPERM, EROFS})
"""The `errno` of a StorageError where permissions or a mount forbid writing."""


class StorageError(EoslogError, OSError):
    """A file operation failed.

    `errno` and `filename` are those of an OSError::

        try:
            eoslog.open("/root/shop")
        except eoslog.StorageError as error:
            print(error.errno, error.filename)

    Args:
        message: the operation that failed.
        errno: the system's error number; 0 if there is none.
        path: the file, if known.
    """

    code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = False
    abortable = False
    fatal = True

    def __init__(self, message: str = "", errno: int = 0, path: str | None = None) -> None:
        """Compose the message from the arguments."""
        message = _text(message)
        errno = errno if isinstance(errno, int) and 0 < errno < 1 << 31 else 0
        path = None if path is None else _text(path)
        system = f"[{errno}] {os.strerror(errno)}" if errno else ""
        text = ": ".join(part for part in (message, system) if part) or "storage error"
        text, path = shown(text), None if path is None else shown(path)
        if path is not None:
            text += f" ({path})"
        text = printable(text)
        super().__init__(text)
        self.message = text
        self.errno = errno or None
        self.path = self.filename = path

    @property
    def name(self) -> str:
        """The code's name in Kafka."""
        return self.code.name

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "errno": self.errno, "filename": self.filename}
        return (_rebuild_storage, (type(self), self.message, state))


def _rebuild_storage(cls: type[StorageError], message: str, state: dict[str, Any]) -> StorageError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    for key, value in state.items():
        setattr(error, key, value)
    return error


class DiskFull(StorageError):
    """The disk has no space left; nothing of the append was kept.

    Free space, then call again.
    """

    retriable = True
    fatal = False


class TooManyOpenFiles(StorageError):
    """The process has no free file descriptor.

    Close files, or raise the limit (`ulimit -n`), then call again. A record may have been appended
    before its flush failed; the second call detects that.
    """

    retriable = True
    fatal = False


class LogPoisoned(StorageError):
    """A flush of this partition failed, so it rejects appends.

    Close the log in every process, then open it again.
    """


class DirectoryReplaced(StorageError):
    """The log directory was moved, removed or replaced while it was open.

    This process does not write to the directory that is at the path now. Close the log and open it
    again.
    """

    def again(self) -> DirectoryReplaced:
        """Return a copy of the error, to raise it again."""
        return type(self)(self.message).of(self.path)

    def of(self, path: str | None) -> DirectoryReplaced:
        """Set the directory without adding it to the message, and return the error."""
        self.path = self.filename = path
        return self


class _Uncoded(EoslogError):
    """An error for which Kafka has no code; `_unnamed` replaces an empty message."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable = False
    abortable = False
    fatal = False
    _unnamed: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        """Set the message."""
        self.message = printable(shown(_text(message))) or self._unnamed
        super().__init__(self.message)

    @property
    def name(self) -> str:
        """The code's name in Kafka."""
        return self.code.name


class DatabaseError(_Uncoded):
    """A database of `eoslog.sql` cannot be used.

    It is read-only or damaged, or its tables have another version, or the log is an older copy than
    the database. The message has the cause::

        try:
            database.create()
        except eoslog.errors.DatabaseError as error:
            print(error.retriable, error)

    Args:
        message: what the database reported.
    """

    _unnamed = "database error"


class DatabaseUnavailable(DatabaseError):
    """The database is down, too slow, or another connection holds its locks.

    Its transaction is rolled back, or was committed before the connection was lost. Nothing is
    lost. Call again.
    """

    retriable = True


class OutboxRowRejected(DatabaseError):
    """A row of an outbox cannot become a record.

    The cause is the error of the record, for example `UnknownTopicOrPartition`. Correct or delete
    the row, or correct the cause; then call again.

    Args:
        message: the table, the row and the cause.
        row_id: the id of the row.
    """

    def __init__(self, message: str = "", row_id: Any = None) -> None:
        """Set the message and the row."""
        super().__init__(message)
        self.row_id = row_id

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.row_id))


class ApplicationError(_Uncoded):
    """An application cannot continue.

    The message names the application and the cause::

        try:
            app.run()
        except eoslog.errors.ApplicationError as error:
            print(error)

    Args:
        message: what has happened.
    """

    _unnamed = "application error"


class TaskFailed(ApplicationError):
    """A task of an application has failed for a record.

    The transaction is aborted, so nothing of the record is committed. The cause is what the task
    has raised::

        try:
            app.run()
        except eoslog.errors.TaskFailed as error:
            print(error.task, error.topic, error.partition, error.offset)

    Args:
        message: the application, the task, the record and the cause.
        app: the id of the application.
        task: the name of the task.
        topic: the topic of the record.
        partition: the partition of the record.
        offset: the offset of the record.
    """

    def __init__(
        self,
        message: str = "",
        app: str = "",
        task: str = "",
        topic: str = "",
        partition: int = -1,
        offset: int = -1,
    ) -> None:
        """Set the message and the place."""
        super().__init__(message)
        self.app = app
        self.task = task
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.app, self.task, self.topic, self.partition, self.offset)
        return (type(self), (self.message, *place))


class TaskTimeout(TaskFailed):
    """A task of an application took longer than its `task_timeout`.

    The transaction is aborted. Set a longer `task_timeout`, or let the task do less.
    """


class TopologyChanged(ApplicationError):
    """Another process runs an application of this id with other tasks or tables.

    Stop the other processes first, or give the changed application another id.
    """


_BY_CODE: dict[ErrorCode, type[_Coded]] = {}


def _collect(cls: type[_Coded]) -> None:
    for child in cls.__subclasses__():
        _BY_CODE.setdefault(child.code_of_class, child)
        _collect(child)


_collect(_Coded)
for _code in (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
):
    _BY_CODE[_code] = AuthorizationFailed


def error_for(code: ErrorCode | int, message: str = "") -> KafkaError:
    """Return the exception for a code, of its own class if there is one."""
    known = ErrorCode.of(code)
    cls = _BY_CODE.get(known)
    return KafkaError(known, message) if cls is None else cls(message, code=known)


# Names from books and older clients.
DuplicateSequenceNumber = DuplicateSequence
InvalidSequenceNumber = OutOfOrderSequence
InvalidPidMapping = InvalidProducerIdMapping
InvalidTxnRequest = InvalidTxnState
NotCoordinatorForTransactionalId = NotCoordinator
NotCorrdinatorForGTransactionalId = NotCoordinator  # misspelled like this in a book
UnknownMemberId = UnknownMember
MessageTooLarge = RecordTooLarge
CorruptMessage = CorruptRecord
NoOffsetForPartition = NoOffset
AuthorizationException = AuthorizationFailed
ProducerFencedException = ProducerFenced
OutOfOrderSequenceException = OutOfOrderSequence
InvalidProducerEpochException = InvalidProducerEpoch
CommitFailedException = CommitFailed
