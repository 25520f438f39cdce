"""Half producers: what they send, and when they call the listener."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import eoslog
from eoslog import Outcome, errors
from tests.client.half.helpers import QUICK
from tests.waiting import until

COMMIT, ABORT, UNKNOWN = Outcome.COMMIT, Outcome.ABORT, Outcome.UNKNOWN


class Listener(eoslog.TransactionListener):
    """A listener whose answers a test sets."""

    def __init__(self, executed: Any = COMMIT, checked: Any = UNKNOWN) -> None:
        self.executed, self.checked = executed, checked
        self.calls: list[tuple[str, str, Any]] = []

    def execute_local_transaction(self, msg: eoslog.PreparedTransaction, arg: Any) -> Any:
        self.calls.append(("execute", msg.token, arg))
        if isinstance(self.executed, BaseException):
            raise self.executed
        return self.executed(msg) if callable(self.executed) else self.executed

    def check_local_transaction(self, msg: eoslog.PreparedTransaction) -> Any:
        self.calls.append(("check", msg.token, None))
        return self.checked


@pytest.fixture
def log(path: str) -> Iterator[eoslog.Log]:
    with eoslog.open(path) as opened:
        opened.create_topic("orders", 3)
        yield opened


def values(log: eoslog.Log, isolation: str = "read_committed") -> list[bytes]:
    return sorted(record.value for record in log.read("orders", isolation=isolation))


def test_row_N15_the_listener_decides_before_the_call_returns(log: eoslog.Log) -> None:
    listener = Listener()
    with log.half_producer("g", listener) as producer:
        result = producer.send_message_in_transaction(("orders", "1", "a"), arg=7)
    assert listener.calls == [("execute", result.transaction_id, 7)]
    assert (result.status, result.local_state, result.outcome) == ("SEND_OK", COMMIT, COMMIT)
    assert [(found.topic, found.offset) for found in result.metadata] == [("orders", -1)]
    assert values(log) == [b"1"]


def test_row_N05_a_rollback_leaves_no_record(log: eoslog.Log) -> None:
    with log.half_producer("g", Listener(Outcome.ROLLBACK_MESSAGE)) as producer:
        result = producer.send_message_in_transaction(("orders", "1"))
    assert (result.local_state, result.outcome) == (ABORT, ABORT)
    assert values(log, "read_uncommitted") == []
    assert log.pending() == []


def test_row_N01_no_reader_sees_a_half(log: eoslog.Log) -> None:
    seen: list[list[bytes]] = []

    def look(msg: eoslog.PreparedTransaction) -> Outcome:
        seen.extend(values(log, isolation) for isolation in ("read_committed", "read_uncommitted"))
        seen.append([record.value for record in msg.records])
        return COMMIT

    with log.half_producer("g", Listener(look)) as producer:
        producer.send_message_in_transaction(("orders", "1"))
    assert seen == [[], [], [b"1"]]


def test_an_exception_of_the_local_transaction_leaves_the_half_to_its_check(
    log: eoslog.Log,
) -> None:
    listener = Listener(ValueError("lost the connection"), COMMIT)
    with log.half_producer("g", listener, **QUICK) as producer:
        result = producer.send_message_in_transaction(("orders", "1"))
        assert (result.local_state, result.outcome) == (UNKNOWN, UNKNOWN)
        assert result.error is listener.executed
        until(lambda: values(log) == [b"1"])
    assert [call[:2] for call in listener.calls] == [
        ("execute", result.transaction_id),
        ("check", result.transaction_id),
    ]


def test_an_interrupt_of_the_local_transaction_leaves_the_half_to_its_check(
    log: eoslog.Log,
) -> None:
    listener = Listener(KeyboardInterrupt(), ABORT)
    with log.half_producer("g", listener, **QUICK) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send_message_in_transaction(("orders", "1"))
        until(lambda: log.pending() == [])
    assert values(log, "read_uncommitted") == []


@pytest.mark.parametrize("answer", [None, True, "COMMIT"])
def test_an_answer_that_is_not_an_outcome_leaves_the_half_to_its_check(
    log: eoslog.Log, answer: object
) -> None:
    with log.half_producer("g", Listener(answer)) as producer:
        result = producer.send_message_in_transaction(("orders", "1"))
    assert (result.local_state, result.outcome) == (UNKNOWN, UNKNOWN)
    assert isinstance(result.error, errors.ConfigError)
    assert [half.token for half in log.pending("g")] == [result.transaction_id]


def test_the_older_name_of_the_check_is_called(log: eoslog.Log) -> None:
    class Old(eoslog.TransactionListener):
        def execute_local_transaction(self, msg: eoslog.PreparedTransaction, arg: Any) -> Outcome:
            return Outcome.UNKNOW

        def check_local_transaction_state(self, msg: eoslog.PreparedTransaction) -> Outcome:
            return Outcome.COMMIT_MESSAGE

    with log.half_producer("g", Old(), **QUICK) as producer:
        producer.send_message_in_transaction(("orders", "1"))
        until(lambda: values(log) == [b"1"])


def test_a_listener_needs_no_base_class(log: eoslog.Log) -> None:
    class Plain:
        def execute_local_transaction(self, msg: Any, arg: Any) -> Outcome:
            return UNKNOWN

        async def check_local_transaction(self, msg: Any) -> Outcome:
            return COMMIT

    with log.half_producer("g", Plain(), **QUICK) as producer:  # type: ignore[arg-type]
        producer.send_message_in_transaction(("orders", "1"))
        until(lambda: values(log) == [b"1"])


def test_records_take_every_form(log: eoslog.Log) -> None:
    copied = eoslog.Record("orders", 2, 9, key=b"k", value=b"4", headers=[("h", b"1")])
    records = [
        ("orders", "1"), ("orders", "2", "k"),
        {"topic": "orders", "value": "3", "key": "k", "partition": 1, "timestamp": 5}, copied,
    ]  # fmt: skip
    with log.half_producer("g", Listener()) as producer:
        assert len(producer.send_message_in_transaction(records).metadata) == 4
        producer.send_message_in_transaction(copied)
    assert values(log) == [b"1", b"2", b"3", b"4", b"4"]
    (third,) = [record for record in log.read("orders") if record.value == b"3"]
    assert (third.key, third.partition, third.timestamp) == (b"k", 1, 5)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("orders", "records: expected a mapping such as"),
        (7, "records: expected a mapping such as"),
        ([], "records: expected at least one record, got none"),
        (("orders",), "records: expected a mapping such as"),
        ([("orders", "1", "k", 4)], "records: expected a mapping such as"),
        ({"value": "1"}, "records: expected a mapping such as"),
        ({"topic": "orders", "values": "1"}, "records: unknown field 'values'; expected one of"),
    ],
)
def test_invalid_records_are_rejected(log: eoslog.Log, records: object, message: str) -> None:
    listener = Listener()
    with log.half_producer("g", listener) as producer:
        with pytest.raises(errors.ConfigError, match=message):
            producer.send_message_in_transaction(records)
    assert (listener.calls, log.pending()) == ([], [])


def test_a_half_that_cannot_be_sent_runs_no_local_transaction(log: eoslog.Log) -> None:
    listener = Listener()
    with log.half_producer("g", listener) as producer:
        with pytest.raises(errors.UnknownTopicOrPartition):
            producer.send_message_in_transaction([("orders", "1"), ("missing", "2")])
        assert (listener.calls, log.pending()) == ([], [])
        producer.send_message_in_transaction(("orders", "3"))
    assert values(log) == [b"3"]


def test_a_fenced_producer_is_replaced(log: eoslog.Log) -> None:
    with log.half_producer("g", Listener()) as producer:
        producer.send_message_in_transaction(("orders", "1"))
        (name,) = [
            one.transactional_id
            for one in log.transactions(open_only=False)
            if one.transactional_id.startswith("g-half-")
        ]
        with log.producer(transactional_id=name) as other:
            other.init_transactions()
        with pytest.raises(errors.ProducerFenced):
            producer.send_message_in_transaction(("orders", "2"))
        producer.send_message_in_transaction(("orders", "3"))
    assert values(log) == [b"1", b"3"]


@pytest.mark.parametrize("group", ["", None, 7])
def test_a_group_must_be_a_name(log: eoslog.Log, group: Any) -> None:
    with pytest.raises(errors.ConfigError, match="group: expected a name"):
        log.half_producer(group, Listener())


class Deaf(eoslog.TransactionListener):
    """It cannot answer a check."""

    def execute_local_transaction(self, msg: Any, arg: Any) -> Outcome:
        return COMMIT


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (None, "expected an object with the method execute_local_transaction, got None"),
        (Listener, "expected an object with the method execute_local_transaction, got <class"),
        (eoslog.TransactionListener(), "does not define execute_local_transaction"),
        (Deaf(), "listener: Deaf does not define check_local_transaction"),
    ],
)
def test_an_incomplete_listener_is_rejected(log: eoslog.Log, listener: Any, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        log.half_producer("g", listener)


def test_an_invalid_setting_is_rejected(log: eoslog.Log) -> None:
    with pytest.raises(
        errors.ConfigError, match="register_resolver: max_checks: expected at least"
    ):
        log.half_producer("g", Listener(), max_checks=0)


def test_a_closed_half_producer_sends_and_answers_nothing(log: eoslog.Log) -> None:
    listener = Listener(UNKNOWN, COMMIT)
    producer = log.half_producer("g", listener)
    producer.send_message_in_transaction(("orders", "1"))
    producer.close()
    producer.close()
    with pytest.raises(errors.IllegalState, match="half producer of group 'g': it is closed"):
        producer.send_message_in_transaction(("orders", "2"))
    with pytest.raises(errors.IllegalState, match="it is closed"):
        producer.begin_transaction()
    assert len(log.pending("g")) == 1
    assert repr(producer) == "<HalfProducer of 'g', closed>"


def test_half_producers_of_a_group_use_different_ids_and_free_them(log: eoslog.Log) -> None:
    def ids() -> set[str]:
        found = {one.transactional_id for one in log.transactions(open_only=False)}
        return {name for name in found if name.startswith("g-half-")}

    for _ in range(2):
        with log.half_producer("g", Listener()) as one, log.half_producer("g", Listener()) as two:
            for producer in (one, two, one, two):
                producer.send_message_in_transaction(("orders", "1"))
        assert len(ids()) == 2
    assert len(values(log)) == 8


def test_threads_share_a_half_producer(log: eoslog.Log) -> None:
    together = threading.Barrier(4)

    def meet(msg: eoslog.PreparedTransaction) -> Outcome:
        together.wait()  # all four local transactions run at the same time
        return COMMIT

    with log.half_producer("g", Listener(meet)) as producer:
        threads = [
            threading.Thread(
                target=producer.send_message_in_transaction, args=(("orders", str(number)),)
            )
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert values(log) == [b"0", b"1", b"2", b"3"]


def test_no_check_decides_while_the_local_transaction_runs(log: eoslog.Log) -> None:
    listener = Listener(checked=ABORT)

    def slow(msg: eoslog.PreparedTransaction) -> Outcome:
        until(lambda: log.pending()[0].checks >= 2)
        assert [call[0] for call in listener.calls] == ["execute"]
        return COMMIT

    listener.executed = slow
    with log.half_producer("g", listener, first_check=0, interval=0.05) as producer:
        result = producer.send_message_in_transaction(("orders", "1"))
    assert result.outcome is COMMIT


def test_another_half_producer_decides_nothing_while_it_runs(log: eoslog.Log) -> None:
    listener, other = Listener(checked=ABORT), Listener(checked=ABORT)

    def slow(msg: eoslog.PreparedTransaction) -> Outcome:
        until(lambda: log.pending()[0].checks >= 2)
        assert other.calls == []
        return COMMIT

    listener.executed = slow
    with (
        log.half_producer("g", listener) as producer,
        log.half_producer("g", other, first_check=0, interval=0.05),
    ):
        result = producer.send_message_in_transaction(("orders", "1"))
    assert result.outcome is COMMIT


def test_a_half_producer_is_asked_after_a_newer_one_of_its_group_was_closed(
    log: eoslog.Log,
) -> None:
    listener = Listener(checked=COMMIT)
    listener.executed = UNKNOWN
    with log.half_producer("g", listener, **QUICK) as producer:
        log.half_producer("g", Listener(checked=ABORT), **QUICK).close()
        token = producer.send_message_in_transaction(("orders", "1")).transaction_id
        until(lambda: log.outcome(token) is COMMIT)


def test_the_caller_decides_a_transaction_of_its_own(log: eoslog.Log) -> None:
    with log.half_producer("g", Listener(checked=ABORT)) as producer:
        with producer.begin_transaction() as transaction:
            assert transaction.transaction_id is None
            half = producer.send(("orders", "1"), transaction)
            assert half.token == transaction.transaction_id
            assert values(log, "read_uncommitted") == []
            transaction.commit()
        with producer.begin_transaction() as transaction:
            producer.send([("orders", "2"), ("orders", "3")], transaction, meta={"order": 2})
            assert log.pending("g")[0].meta == {"order": 2}
            transaction.rollback()
    assert values(log, "read_uncommitted") == [b"1"]


def test_a_transaction_that_its_block_does_not_decide_is_checked(log: eoslog.Log) -> None:
    with log.half_producer("g", Listener(checked=COMMIT), **QUICK) as producer:
        with pytest.raises(ValueError, match="odd"), producer.begin_transaction() as transaction:
            producer.send(("orders", "1"), transaction)
            raise ValueError("odd")
        until(lambda: values(log) == [b"1"])


def test_a_transaction_takes_its_records_once(log: eoslog.Log) -> None:
    with log.half_producer("g", Listener()) as producer:
        with producer.begin_transaction() as transaction:
            with pytest.raises(errors.IllegalState, match="commit: nothing was sent; call send"):
                transaction.commit()
            producer.send(("orders", "1"), transaction)
            with pytest.raises(errors.IllegalState, match="this transaction has its records"):
                producer.send(("orders", "2"), transaction)
            transaction.commit()
        with pytest.raises(errors.IllegalState, match="this transaction has ended"):
            producer.send(("orders", "3"), transaction)
        with pytest.raises(errors.ConfigError, match="expected one of this producer's begin_tran"):
            producer.send(("orders", "4"), None)  # type: ignore[arg-type]
    assert values(log) == [b"1"]


def test_the_log_closes_its_half_producers(path: str) -> None:
    log = eoslog.open(path)
    producer = log.half_producer("g", Listener())
    log.close()
    with pytest.raises(errors.IllegalState, match="it is closed"):
        producer.begin_transaction()


def test_a_read_only_log_has_no_half_producer(path: str) -> None:
    eoslog.open(path).close()
    with eoslog.open(path, read_only=True) as log:
        with pytest.raises(errors.IllegalState, match="opened with read_only=True"):
            log.half_producer("g", Listener())
