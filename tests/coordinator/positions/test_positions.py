"""Named positions are set on conditions, read, deleted and compacted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import eoslog
from eoslog import Log, Producer, errors
from eoslog.coordinator.positions.positions import PositionFold
from eoslog.coordinator.positions.records import (
    PositionValue,
    decode_name,
    decode_value,
    encode_value,
)
from eoslog.model import POSITIONS_TOPIC

VALUES: list[PositionValue] = [
    0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63), 2**200, "", "7", "höhe\n", b"", b"7", b"\xff\x00",
]  # fmt: skip


@pytest.fixture
def log(path: str) -> Iterator[Log]:
    with eoslog.open(path) as opened:
        opened.create_topic("t")
        yield opened


@contextlib.contextmanager
def producing(log: Log, name: str = "job") -> Iterator[Producer]:
    with log.producer(transactional_id=name) as producer:
        producer.init_transactions()
        yield producer


def put(
    producer: Producer, name: str, value: PositionValue, *expected: PositionValue | None
) -> None:
    with producer.transaction() as tx:
        tx.set_position(name, value, *expected)


def test_positions_keep_their_types_and_values(log: Log) -> None:
    with producing(log) as producer:
        for at, value in enumerate(VALUES):
            put(producer, f"p{at:02}", value)
        put(producer, "buffer", bytearray(b"x"))  # type: ignore[arg-type]
    wanted = {"buffer": b"x"} | {f"p{at:02}": value for at, value in enumerate(VALUES)}
    assert log.positions() == wanted
    assert list(log.positions()) == sorted(wanted)
    for name, value in wanted.items():
        found = log.position(name)
        assert found == value and type(found) is type(value)
    log.close()
    with eoslog.open(log.path, read_only=True) as reader:
        assert reader.positions() == wanted
        with pytest.raises(errors.IllegalState, match="read_only=True"):
            reader.delete_position("p00")


@pytest.mark.parametrize("value", VALUES)
def test_a_record_has_a_version_a_type_and_a_payload(value: PositionValue) -> None:
    data = encode_value(value)
    kind = [bytes, str, int].index(type(value))
    assert data[:2] == bytes((0, kind))
    assert decode_value(data) == value
    assert encode_value(-129) == b"\x00\x02\xff\x7f"


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x01\x00", b"\x00\x03x", b"\x00\x02", b"\x00\x01\xff"]
)
def test_a_record_of_another_form_is_corrupt(data: bytes) -> None:
    with pytest.raises(errors.CorruptRecord):
        decode_value(data)
    for key in (None, b"\xff"):
        with pytest.raises(errors.CorruptRecord):
            decode_name(key)


def test_a_log_without_positions_answers_and_creates_nothing(log: Log) -> None:
    assert log.position("a") is None and log.positions() == {}
    assert log.delete_position("a") is False
    assert not log._engine.metadata.first_use_topics


@pytest.mark.parametrize(
    ("name", "value", "expected", "error"),
    [
        (7, 1, None, errors.ConfigError),
        ("", 1, None, errors.ConfigError),
        ("x" * 1025, 1, None, errors.ConfigError),
        ("\udc00", 1, None, errors.ConfigError),
        ("a", None, None, errors.ConfigError),
        ("a", True, None, errors.ConfigError),
        ("a", 1.5, None, errors.ConfigError),
        ("a", "\udc00", None, errors.ConfigError),
        ("a", 1, 1.5, errors.ConfigError),
        ("a", bytes((1 << 20) + 1), None, errors.RecordTooLarge),
    ],
)
def test_bad_arguments_are_named_and_leave_the_transaction_usable(
    log: Log, name: object, value: object, expected: object, error: type[Exception]
) -> None:
    with producing(log) as producer, producer.transaction() as tx:
        with pytest.raises(error, match="set_position"):
            tx.set_position(name, value, expected)  # type: ignore[arg-type]
        tx.set_position("good", bytes(1 << 20))
    assert list(log.positions()) == ["good"]
    for call in (log.position, log.delete_position):
        with pytest.raises(errors.ConfigError, match=f"{call.__name__}: name"):
            call("")


def test_expected_is_compared_with_the_committed_position_and_its_type(log: Log) -> None:
    with producing(log) as producer:
        put(producer, "a", 1, None)
        for wrong in (None, 2, "1", b"1"):
            with pytest.raises(errors.PositionConflict, match=r"'a': expected .*, found 1; abort"):
                put(producer, "a", 9, wrong)
        put(producer, "a", 2, 1)
        put(producer, "a", "by default any")
    assert log.position("a") == "by default any"


def test_a_conflict_prevents_the_commit_of_the_transaction(log: Log) -> None:
    with producing(log) as producer:
        put(producer, "a", 1)
        producer.begin_transaction()
        producer.produce("t", value="copied twice")
        with producing(log, "holder") as _, contextlib.suppress(errors.PositionConflict):
            eoslog.Transaction(producer).set_position("a", 2, expected=7)
        with pytest.raises(errors.PositionConflict) as caught:
            producer.commit_transaction()
        assert caught.value.abortable
        producer.abort_transaction()
        put(producer, "a", 2, 1)
    assert list(log.read("t")) == [] and log.position("a") == 2


def test_a_transaction_sees_its_own_position_and_others_do_not(log: Log) -> None:
    with producing(log) as producer:
        with producer.transaction() as tx:
            tx.set_position("a", 1, expected=None)
            tx.set_position("a", 2, expected=1)
            assert log.position("a") is None
        assert log.position("a") == 2
        with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
            tx.set_position("a", 3)
            raise ZeroDivisionError
        assert log.position("a") == 2


def test_an_open_transaction_holds_its_names_against_all_others(log: Log) -> None:
    with producing(log, "one") as one, producing(log, "two") as two:
        put(one, "a", 1)
        one.begin_transaction()
        eoslog.Transaction(one).set_position("a", 2, expected=1)
        for expected in ((), (1,), (2,)):
            with pytest.raises(errors.PositionConflict, match="part of an open transaction"):
                put(two, "a", 3, *expected)
        with pytest.raises(errors.PositionConflict, match="part of an open transaction"):
            log.delete_position("a")
        put(two, "b", 1)
        assert log.positions() == {"a": 1, "b": 1}
        one.commit_transaction()
        with pytest.raises(errors.PositionConflict, match="found 2"):
            put(two, "a", 3, 1)
        put(two, "a", 3, 2)
    assert log.positions() == {"a": 3, "b": 1}


def test_a_producer_that_is_fenced_sets_no_position(log: Log) -> None:
    with producing(log) as old:
        put(old, "a", 1)
        old.begin_transaction()
        eoslog.Transaction(old).set_position("a", 2)
        with producing(log) as new:
            put(new, "a", 3, 1)  # the old transaction was aborted, so its name is free
            with pytest.raises(errors.ProducerFenced):
                eoslog.Transaction(old).set_position("a", 4)
            with pytest.raises(errors.ProducerFenced):
                old.commit_transaction()
        assert log.position("a") == 3


def test_a_staged_transaction_sets_no_position(log: Log) -> None:
    with producing(log) as producer:
        with producer.transaction(mode="staged") as tx:
            with pytest.raises(errors.IllegalState, match='mode="inline"'):
                tx.set_position("a", 1)
            tx.produce("t", value="kept")
        assert [record.value for record in log.read("t")] == [b"kept"]
    assert log.positions() == {}


def test_a_prepared_transaction_holds_its_names_until_its_decision(log: Log) -> None:
    with producing(log, "one") as one, producing(log, "two") as two:
        one.begin_transaction()
        eoslog.Transaction(one).set_position("a", 1, expected=None)
        token = one.prepare_transaction().token
        with pytest.raises(errors.PositionConflict, match="part of an open transaction"):
            put(two, "a", 2, None)
        log.resolve(token, eoslog.Outcome.COMMIT)
        assert log.position("a") == 1


def test_a_deleted_position_is_unset_and_can_be_set_again(log: Log) -> None:
    with producing(log) as producer:
        put(producer, "a", 1)
        put(producer, "b", 1)
        assert log.delete_position("a") is True
        assert log.delete_position("a") is False
        assert log.positions() == {"b": 1}
        put(producer, "a", 2, None)
    log.close()
    with eoslog.open(log.path) as again:
        assert again.positions() == {"a": 2, "b": 1}


def test_compaction_keeps_the_last_position_of_each_name(log: Log) -> None:
    with producing(log) as producer:
        for at in range(50):
            put(producer, "a", at)
            put(producer, f"gone{at}", at)
            log.delete_position(f"gone{at}")
        with contextlib.suppress(ZeroDivisionError), producer.transaction() as tx:
            tx.set_position("a", "aborted")
            raise ZeroDivisionError
        with eoslog.open(log.path, read_only=True) as reader:
            assert reader.positions() == {"a": 49}
            log.clean(POSITIONS_TOPIC, roll=True)
            put(producer, "b", 1)
            assert reader.positions() == log.positions() == {"a": 49, "b": 1}
    log.close()
    with eoslog.open(log.path) as again:
        assert again.positions() == {"a": 49, "b": 1}
        assert again.check(full=True).ok


def test_a_read_folds_only_the_new_records(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[int] = []
    apply = PositionFold.apply

    def counted(fold: PositionFold, batch: object) -> None:
        applied.append(1)
        apply(fold, batch)  # type: ignore[arg-type]

    with producing(log) as producer:
        for at in range(20):
            put(producer, "a", at)
        log.positions()
        monkeypatch.setattr(PositionFold, "apply", counted)
        put(producer, "a", 20)
        assert log.position("a") == 20 and log.positions() == {"a": 20}
        assert len(applied) == 2  # the record and its marker


def test_records_that_are_not_positions_are_reported_with_their_place(log: Log) -> None:
    log._engine.internal_topic(POSITIONS_TOPIC).append(
        eoslog._core.build_batch([(0, b"a", b"\x09\x00", ())])
    )
    for call in (log.positions, lambda: log.position("a")):
        with pytest.raises(errors.CorruptRecord, match="__positions-0, offset 0"):
            call()


def test_a_deletion_is_durable_before_it_is_acted_on(log: Log) -> None:
    with producing(log) as producer:
        put(producer, "a", 1)
        put(producer, "b", 1)
    topic = log._engine.internal_topic(POSITIONS_TOPIC)
    log._engine._background.close()  # its flush, also one that is due already
    log.delete_position("a")
    assert topic.durable_end == topic.log_end
    # As another process does that has not flushed its deletion yet.
    topic.append(eoslog._core.build_batch([(0, b"b", None, ())]))
    assert topic.durable_end < topic.log_end
    assert log.position("b") is None
    assert topic.durable_end == topic.log_end
