"""Errors: one tree, Kafka's codes, one answer to what the caller may do, names from the books."""

import errno
import pickle

import pytest

from eoslog import errors
from eoslog.errors import ErrorCode, KafkaError, error_for

CLASSES = [
    cls
    for cls in (getattr(errors, name) for name in errors.__all__)
    if isinstance(cls, type)
    and issubclass(cls, errors.EoslogError)
    and cls is not errors.EoslogError
]
CODED = [cls for cls in CLASSES if issubclass(cls, KafkaError) and cls is not KafkaError]


def test_the_module_exports_every_error_under_its_name():
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
        if name == value.__name__ and not name.startswith("_")
    }
    assert defined == {cls.__name__ for cls in CLASSES} | {"EoslogError"}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_at_most_one_of_retriable_abortable_fatal(cls):
    error = cls(ErrorCode.NONE) if cls is KafkaError else cls("why")
    assert isinstance(error, errors.EoslogError)
    assert sum([error.retriable, error.abortable, error.fatal]) <= 1
    assert error.name == error.code.name


@pytest.mark.parametrize("cls", CODED)
def test_every_error_has_a_message_without_being_given_one(cls):
    assert str(cls()) == cls.code.description
    assert str(cls("two values: 1, 2")) == "two values: 1, 2"


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_cross_process_boundaries_whole(cls):
    error = cls(ErrorCode.NONE, "why") if cls is KafkaError else cls("why")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (str(copy), copy.code, copy.args) == (str(error), error.code, error.args)
    assert (copy.retriable, copy.abortable, copy.fatal) == (
        error.retriable,
        error.abortable,
        error.fatal,
    )


def test_the_table_has_every_code_of_kafka_once():
    wire = [code for code in ErrorCode if code >= -1]
    assert [int(code) for code in wire] == list(range(-1, 134))
    assert all(code.description.endswith(".") for code in ErrorCode)


# Kafka's RetriableException family, from the protocol's table.
RETRIABLE = {
    2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88,
    89, 100, 103, 106, 122, 123,
}  # fmt: skip
FATAL = {31, 35, 48, 50, 53, 90}


def test_categories_are_kafkas():
    wire = {code for code in ErrorCode if code >= -1}
    assert {int(code) for code in wire if code.retriable} == RETRIABLE
    assert {int(code) for code in wire if code.fatal} == FATAL
    assert all(ErrorCode(code).abortable for code in (10, 45, 47, 49, 59, 120))


# TransactionTimedOut has the code of the call that failed, as a ProducerFenced: its class is chosen
# where the cause is known.
@pytest.mark.parametrize("cls", [c for c in CODED if c is not errors.TransactionTimedOut])
def test_a_code_gives_its_class(cls):
    assert type(error_for(cls.code, "why")) is cls


def test_codes_without_a_class_and_of_the_future_are_plain_kafka_errors():
    error = error_for(ErrorCode.INVALID_FETCH_SIZE)
    assert type(error) is KafkaError
    assert (error.code, error.name) == (4, "INVALID_FETCH_SIZE")
    assert error_for(9999).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_for(29).name == "TOPIC_AUTHORIZATION_FAILED"


def test_I01_the_sample_programs_three_errors():
    assert errors.ProducerFenced().fatal
    assert issubclass(errors.OutOfOrderSequence, KafkaError)
    assert errors.AuthorizationFailed().fatal
    assert errors.ProducerFencedException is errors.ProducerFenced
    assert errors.OutOfOrderSequenceException is errors.OutOfOrderSequence
    assert errors.AuthorizationException is errors.AuthorizationFailed


def test_I02_an_old_epoch_is_abortable_on_produce_and_fatal_elsewhere():
    produce, elsewhere = errors.InvalidProducerEpoch(), errors.InvalidProducerEpoch(fatal=True)
    assert (produce.abortable, produce.fatal) == (True, False)
    assert (elsewhere.abortable, elsewhere.fatal) == (False, True)
    assert errors.ProducerFenced().fatal
    assert not issubclass(errors.ProducerFenced, errors.InvalidProducerEpoch)


def test_I03_invalid_pid_mapping_is_abortable():
    assert errors.InvalidPidMapping is errors.InvalidProducerIdMapping
    assert errors.InvalidProducerIdMapping().abortable


def test_I04_not_coordinator_in_both_spellings_is_retriable():
    assert errors.NotCoordinatorForTransactionalId is errors.NotCoordinator
    assert errors.NotCorrdinatorForGTransactionalId is errors.NotCoordinator
    assert errors.NotCoordinator().retriable


def test_I05_invalid_txn_request_is_invalid_txn_state():
    assert errors.InvalidTxnRequest is errors.InvalidTxnState
    assert errors.InvalidTxnState().fatal
    assert errors.InvalidTxnState(abortable=True).abortable


def test_I06_coordinator_not_available_is_retriable():
    assert errors.CoordinatorNotAvailable().retriable
    assert errors.CoordinatorLoadInProgress().retriable
    assert issubclass(errors.CoordinatorLoadInProgress, errors.CoordinatorNotAvailable)


def test_I07_a_duplicate_needs_nothing_done():
    error = errors.DuplicateSequenceNumber()
    assert not (error.retriable or error.abortable or error.fatal)


def test_I08_a_sequence_error_can_be_fatal_and_name_its_cause():
    error = errors.InvalidSequenceNumber("sequence 7 after 3: the log was truncated", fatal=True)
    assert error.fatal
    assert not error.abortable
    assert "truncated" in str(error)


def test_I09_a_transaction_timeout_out_of_range_is_fatal():
    assert errors.InvalidTransactionTimeout().fatal


def test_a_corrupt_record_names_the_file_the_byte_and_both_values():
    error = errors.CorruptRecord("crc", path="t-0/0.log", position=61, expected=1, found=2)
    assert str(error) == "crc: expected 1, found 2 (t-0/0.log at 61)"
    assert (error.path, error.position, error.expected, error.found) == ("t-0/0.log", 61, 1, 2)
    assert isinstance(error, ValueError)
    assert not error.retriable  # the same bytes come back


def test_storage_errors_are_os_errors_with_number_and_file():
    error = errors.DiskFull("append", errno.ENOSPC, "t-0/0.log")
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (errno.ENOSPC, "t-0/0.log")
    assert "No space left" in str(error)
    assert error.retriable
    assert errors.LogPoisoned("flush").fatal
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.errno, copy.filename, str(copy)) == (error.errno, error.filename, str(error))


def test_waiting_too_long_is_a_timeout_error():
    for cls in (
        errors.DeliveryTimeout,
        errors.QueueFull,
        errors.LockTimeout,
        errors.RequestTimedOut,
    ):
        assert issubclass(cls, TimeoutError)


def test_wrong_values_are_value_errors_and_wrong_states_runtime_errors():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.InvalidTopic, ValueError)
    assert issubclass(errors.IllegalState, RuntimeError)
