"""What can go wrong, as exceptions that say what the caller may do now.

Three attributes answer it: `retriable` (call again), `abortable` (abort the transaction, go on),
`fatal` (close the handle, make a new one). Messages carry the two values that disagree.

Source: Kafka `org.apache.kafka.common.errors`, KIP-360, KIP-890, KIP-1050.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from eoslog.error_codes import ErrorCode

__all__ = [  # noqa: RUF022 (grouped as the tree below)
    "ErrorCode", "EoslogError", "KafkaError", "StorageError", "DiskFull", "TooManyOpenFiles",
    "LogPoisoned",
    "ProducerFenced", "InvalidProducerEpoch", "OutOfOrderSequence", "UnknownProducerId",
    "DuplicateSequence", "InvalidProducerIdMapping", "InvalidTxnState", "ConcurrentTransactions",
    "InvalidTransactionTimeout", "TransactionAborted", "TransactionAbortable",
    "CommitOutcomeUnknown", "TransactionalIdNotFound", "NotCoordinator", "CoordinatorNotAvailable",
    "CoordinatorLoadInProgress", "CommitFailed", "IllegalGeneration", "UnknownMember",
    "RebalanceInProgress", "FencedInstanceId", "FencedMemberEpoch", "StaleMemberEpoch",
    "GroupNotFound", "NonEmptyGroup", "OffsetOutOfRange", "NoOffset",
    "UnknownTopicOrPartition", "TopicAlreadyExists", "InvalidTopic", "InvalidPartitions",
    "RecordTooLarge", "CorruptRecord", "InvalidRecord", "SerializationError",
    "AuthorizationFailed", "QueueFull", "LockTimeout", "DeliveryTimeout", "RequestTimedOut",
    "IllegalState", "ConfigError", "PolicyViolation", "error_for",
]  # fmt: skip


class EoslogError(Exception):
    """The root of everything eoslog raises on purpose."""


class KafkaError(EoslogError):
    """An error with one of Kafka's codes.

    Args:
        code: the code, for this class; subclasses know theirs and take the message first.
        message: what happened, with the values that disagree; the code's description if empty.
        retriable, abortable, fatal: override the code's category where the place decides it
            (Kafka calls INVALID_PRODUCER_EPOCH abortable on Produce and fatal elsewhere).
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
        """Keep the code and the category."""
        self.code = ErrorCode.of(code)
        self.message = message or self.code.description
        super().__init__(self.message)
        named = (retriable, abortable, fatal)
        # Naming one category denies the two others: exactly one answer at a time.
        given = any(named)
        self.retriable = bool(retriable) if given or retriable is False else self.code.retriable
        self.abortable = bool(abortable) if given or abortable is False else self.code.abortable
        self.fatal = bool(fatal) if given or fatal is False else self.code.fatal

    @property
    def name(self) -> str:
        """The code's name in Kafka, as `PRODUCER_FENCED`."""
        return self.code.name

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would hand the message to __init__ as the code.
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(cls: type[EoslogError], message: str, state: dict[str, Any]) -> EoslogError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class _Coded(KafkaError):
    """A KafkaError whose class knows the code: the message comes first."""

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
    """A newer instance with the same transactional id took over: close this one."""


class InvalidProducerEpoch(_Coded, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """The epoch is older than the partition's: abort; a coordinator then says ProducerFenced."""


class OutOfOrderSequence(_Coded, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """The batch is not the next one: a batch before it is missing."""


class UnknownProducerId(OutOfOrderSequence, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The partition holds nothing of this producer id."""


class DuplicateSequence(_Coded, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The batch is stored already; harmless, and raised only where it was asked for."""


class InvalidProducerIdMapping(_Coded, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING):
    """The transactional id has another producer id, or has expired: abort, then go on."""


# Transactions.
class InvalidTxnState(_Coded, code=ErrorCode.INVALID_TXN_STATE):
    """The transaction's state does not allow the operation."""


class ConcurrentTransactions(_Coded, code=ErrorCode.CONCURRENT_TRANSACTIONS):
    """The previous transaction of this id is still being completed."""


class InvalidTransactionTimeout(_Coded, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT):
    """transaction.timeout.ms is not in 1..transaction.max.timeout.ms."""


class TransactionAborted(_Coded, code=ErrorCode.LOCAL_TRANSACTION_ABORTED):
    """The record was dropped because its transaction was aborted."""


class TransactionAbortable(_Coded, code=ErrorCode.TRANSACTION_ABORTABLE):
    """The transaction cannot commit any more: abort it."""


class CommitOutcomeUnknown(_Coded, code=ErrorCode.LOCAL_COMMIT_OUTCOME_UNKNOWN):
    """The decision was appended, but whether it is durable is not known.

    Neither abort nor rewind: a new `init_transactions()` settles it and says how it ended.
    """


class TransactionalIdNotFound(_Coded, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
    """No such transactional id."""


class NotCoordinator(_Coded, code=ErrorCode.NOT_COORDINATOR):
    """The id belongs to another coordinator: look it up again."""


class CoordinatorNotAvailable(_Coded, code=ErrorCode.COORDINATOR_NOT_AVAILABLE):
    """The coordinator cannot answer now."""


class CoordinatorLoadInProgress(
    CoordinatorNotAvailable, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
):
    """The coordinator is still reading its log."""


# Groups.
class CommitFailed(_Coded, code=ErrorCode.LOCAL_COMMIT_FAILED):
    """The group moved on: the offsets were not committed and the partitions may be another's."""


class IllegalGeneration(_Coded, code=ErrorCode.ILLEGAL_GENERATION):
    """The generation is not the group's current one."""


class UnknownMember(_Coded, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group does not know the member (never joined, left, or was removed)."""


class RebalanceInProgress(_Coded, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group is rebalancing: poll, then try again."""


class FencedInstanceId(_Coded, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another member took over this group.instance.id."""


class FencedMemberEpoch(_Coded, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The member's epoch was fenced: rejoin."""


class StaleMemberEpoch(_Coded, code=ErrorCode.STALE_MEMBER_EPOCH):
    """The member's epoch is not the current one: poll, then try again."""


class GroupNotFound(_Coded, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """No such group."""


class NonEmptyGroup(_Coded, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members: stop them first."""


# Logs and topics.
class OffsetOutOfRange(_Coded, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is below the log's start or above its end."""


class NoOffset(_Coded, code=ErrorCode.LOCAL_NO_OFFSET):
    """The group has no offset here and auto.offset.reset is none."""


class UnknownTopicOrPartition(_Coded, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """No such topic or partition (topics are never created by writing to them)."""


class TopicAlreadyExists(_Coded, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """The topic exists."""


class InvalidTopic(_Coded, ValueError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic name is illegal, or names an internal topic."""


class InvalidPartitions(_Coded, ValueError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is impossible."""


class RecordTooLarge(_Coded, ValueError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """The record or batch is larger than a limit."""


class InvalidRecord(_Coded, ValueError, code=ErrorCode.INVALID_RECORD):
    """A record breaks a rule of its topic."""


class PolicyViolation(_Coded, ValueError, code=ErrorCode.POLICY_VIOLATION):
    """The topic's cleanup policy does not allow it."""


class CorruptRecord(_Coded, ValueError, code=ErrorCode.CORRUPT_MESSAGE):
    """Stored or given bytes are not what their format says.

    Args:
        message: what is wrong.
        path: file, if known.
        position: byte in the file or buffer, if known.
        expected, found: the two values that disagree, if there are two.
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
        """Compose the message from what is known."""
        text = message
        if expected is not None or found is not None:
            text += f": expected {expected!r}, found {found!r}"
        if path is not None or position is not None:
            place = path if path is not None else "data"
            text += f" ({place}" + (f" at {position})" if position is not None else ")")
        # Reading the same bytes again gives the same bytes: unlike on Kafka's wire, no retry.
        category.setdefault("retriable", False)
        super().__init__(text, **category)
        self.path, self.position = path, position
        self.expected, self.found = expected, found

    def located(self, path: str, base: int = 0, where: str = "") -> CorruptRecord:
        """The same error of bytes that begin at `base` in a file; itself where it names one.

        Args:
            path: the file.
            base: its byte that positions were counted from.
            where: what the message shall begin with.
        """
        if self.path is not None:
            return self
        position = None if self.position is None else base + self.position
        text = self.message.removesuffix(f" (data at {self.position})")
        named = type(self)(f"{where}: {text}" if where else text, path=path, position=position)
        named.expected, named.found = self.expected, self.found
        return named


class UnsupportedFormat(CorruptRecord, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
    """A record format, codec or file version that is not known here: perhaps a newer one."""


class SerializationError(_Coded, ValueError, TypeError, code=ErrorCode.LOCAL_SERIALIZATION):
    """A key or value has the wrong type, or its serializer failed."""


# Access, limits, misuse.
class AuthorizationFailed(_Coded, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """No access. For programs written against Kafka: eoslog has no access lists of its own."""


class RequestTimedOut(_Coded, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT):
    """A call took longer than it may; calling again is safe."""


class QueueFull(_Coded, TimeoutError, code=ErrorCode.LOCAL_QUEUE_FULL):
    """The producer's buffer stayed full for max.block.ms."""


class LockTimeout(_Coded, TimeoutError, code=ErrorCode.LOCAL_TIMED_OUT):
    """A lock is held by another process, which the message names."""


class DeliveryTimeout(_Coded, TimeoutError, code=ErrorCode.LOCAL_DELIVERY_TIMEOUT):
    """The record was not delivered within delivery.timeout.ms."""


class IllegalState(_Coded, RuntimeError, code=ErrorCode.LOCAL_STATE):
    """The call does not fit the handle's state: closed, forked, or out of order."""


class ConfigError(_Coded, ValueError, code=ErrorCode.INVALID_CONFIG):
    """A configuration key is unknown, a value is wrong, or two of them conflict."""


class StorageError(EoslogError, OSError):
    """A file operation failed.

    Args:
        message: what was being done.
        errno: the system's error number, 0 if none.
        path: the file, if known.
    """

    code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = False
    abortable = False
    fatal = True

    def __init__(self, message: str = "", errno: int = 0, path: str | None = None) -> None:
        """Compose the message from what is known."""
        system = f"[{errno}] {os.strerror(errno)}" if errno else ""
        text = ": ".join(part for part in (message, system) if part) or "storage error"
        if path is not None:
            text += f" ({path})"
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
    """No space left: nothing of the append was kept; free space, then try again."""

    retriable = True
    fatal = False


class TooManyOpenFiles(StorageError):
    """No file descriptor was free (`ulimit -n`): close some, then ask again.

    What a change appended may be there and only its flush missing: asking again finds it.
    """

    retriable = True
    fatal = False


class LogPoisoned(StorageError):
    """A flush of this partition failed: it takes no appends until all have closed it."""


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
    """The exception for a code: its named class where there is one, else KafkaError."""
    known = ErrorCode.of(code)
    cls = _BY_CODE.get(known)
    return KafkaError(known, message) if cls is None else cls(message, code=known)


# Names that people have read in books and older clients.
DuplicateSequenceNumber = DuplicateSequence
InvalidSequenceNumber = OutOfOrderSequence
InvalidPidMapping = InvalidProducerIdMapping
InvalidTxnRequest = InvalidTxnState
NotCoordinatorForTransactionalId = NotCoordinator
NotCorrdinatorForGTransactionalId = NotCoordinator  # a printed misspelling, kept findable
UnknownMemberId = UnknownMember
MessageTooLarge = RecordTooLarge
CorruptMessage = CorruptRecord
NoOffsetForPartition = NoOffset
AuthorizationException = AuthorizationFailed
ProducerFencedException = ProducerFenced
OutOfOrderSequenceException = OutOfOrderSequence
InvalidProducerEpochException = InvalidProducerEpoch
CommitFailedException = CommitFailed
