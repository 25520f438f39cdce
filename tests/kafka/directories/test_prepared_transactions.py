"""A real broker over a directory with prepared transactions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics
from tests.kafka.differential.wire import TransactionEntry, Wire
from tests.kafka.directories import transaction_state
from tests.kafka.directories.test_dump import dump
from tests.kafka.directories.transaction_state import (
    AFTER,
    BEFORE,
    COUNT,
    KEPT,
    NO_TIMEOUT_MS,
    PAYLOAD,
    TOPIC,
    Placed,
    transaction,
)
from tests.waiting import until

UNKNOWN_ID = 105
UNKNOWN_STATE, OWN_KEYS, FIVE_DAYS, THIRTY_DAYS, OVERDUE, IDLE, TAKEN, EMPTY = map(
    Placed, range(COUNT)
)
EXEMPT = {jars.DIRECTORIES: False, jars.BEHAVIOUR: True}
"""Whether a version exempts a transaction with the greatest timeout from timing out."""


def own_keys() -> transaction_state.Rows:
    """Token and check records: what a broker does not know, whatever is in them."""
    key = struct.Struct(">hqh")
    yield key.pack(100, 77, 3), b"\0\0arbitrary 1"
    yield key.pack(100, 77, 3), b"\0\0arbitrary 2"
    yield key.pack(101, 77, 3), b"\xff" * 40
    yield key.pack(100, 78, 0), None
    yield key.pack(101, 78, 0), b""


@pytest.fixture(scope="module", params=[jars.DIRECTORIES, jars.BEHAVIOUR])
def broker(request: pytest.FixtureRequest, broker_of: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker over the records of the cases, each in a partition of its own."""
    broker = broker_of(
        request.param, config={"transaction.state.log.num.partitions": COUNT}
    ).start()
    create_topics(broker, {TOPIC: COUNT})
    with Wire(broker.bootstrap) as wire:  # creates `__transaction_state`
        until(lambda: wire.find_coordinator(EMPTY.name("any"), 1) == 0)
    broker.stop()
    cases = {
        UNKNOWN_STATE: transaction(UNKNOWN_STATE, 64, tags=KEPT),
        OWN_KEYS: own_keys(),
        FIVE_DAYS: transaction(FIVE_DAYS, 1, tags=KEPT),
        THIRTY_DAYS: transaction(THIRTY_DAYS, 1, days=30, tags=KEPT),
        OVERDUE: transaction(OVERDUE, 1, timeout_ms=1000, tags=KEPT),
        IDLE: transaction(IDLE, 0, tags=KEPT),
        TAKEN: transaction(TAKEN, 1, tags=KEPT),
    }
    for place, rows in cases.items():
        transaction_state.write(broker, place, rows)
        if place not in (OWN_KEYS, IDLE):
            transaction_state.write_open_data(broker, place)
    (broker.logs / ".kafka_cleanshutdown").unlink()
    yield broker.start()


def described(broker: Broker, name: str) -> TransactionEntry:
    """What the broker says of an id when it has loaded the id's partition."""
    with Wire(broker.bootstrap) as wire:
        found: list[TransactionEntry] = []
        loading = (14, 15, 16)
        until(
            lambda: (
                bool(found.append(wire.describe_transaction(name)))
                or found[-1].error not in loading
            )
        )
        return found[-1]


def stable(broker: Broker, place: Placed) -> bool:
    """Whether the last stable offset of the id's target partition is the end."""
    admin, tp = (
        AdminClient({"bootstrap.servers": broker.bootstrap}),
        TopicPartition(TOPIC, place.partition),
    )
    ends = [
        admin.list_offsets({tp: OffsetSpec.latest()}, isolation_level=isolation)[tp].result().offset
        for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
    ]
    return ends[0] == ends[1]


def commit(broker: Broker, name: str, place: Placed) -> None:
    """Commit a transaction of this id with a record in the target partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(TOPIC, b"another", partition=place.partition)
    producer.commit_transaction(30)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(OWN_KEYS, id="token and check records"),
        pytest.param(FIVE_DAYS, id="prepared for five days"),
        pytest.param(THIRTY_DAYS, id="prepared for thirty days"),
        pytest.param(OVERDUE, id="over its timeout"),
        pytest.param(IDLE, id="idle with an unknown tag"),
    ],
)
def test_a_broker_uses_a_partition_with_these_records(broker: Broker, place: Placed) -> None:
    for name, (producer_id, epoch) in (("before", BEFORE), ("after", AFTER)):
        entry = described(broker, place.name(name))
        assert (entry.producer_id, entry.producer_epoch) == (producer_id + place.partition, epoch)
        commit(broker, place.name(name), place)
        assert described(broker, place.name(name)).producer_id == producer_id + place.partition
    commit(broker, place.name("new"), place)
    until(lambda: described(broker, place.name("new")).state == "CompleteCommit")


def test_a_broker_forgets_all_ids_after_a_record_with_an_unknown_state(broker: Broker) -> None:
    """So eoslog never writes 64 or 65 as the state of an id."""
    place = UNKNOWN_STATE
    assert described(broker, place.name("before")).producer_id == BEFORE[0]
    for name in ("prepared", "after"):
        assert described(broker, place.name(name)).error == UNKNOWN_ID
    commit(broker, place.name("after"), place)
    assert described(broker, place.name("after")).producer_id < BEFORE[0]
    assert not stable(broker, place)
    assert "Unknown transaction state id 64" in broker.log()


def test_a_broker_keeps_a_prepared_transaction_open_for_five_days(broker: Broker) -> None:
    place = FIVE_DAYS
    overdue = OVERDUE.name("prepared")
    until(lambda: described(broker, overdue).state == "CompleteAbort")  # the timer has run
    entry = described(broker, place.name("prepared"))
    assert entry[1:] == (
        "Ongoing", NO_TIMEOUT_MS, place.producer_id, 4, [(TOPIC, place.partition)]
    )  # fmt: skip
    assert not stable(broker, place)
    until(lambda: stable(broker, OVERDUE))


def test_only_a_new_broker_keeps_a_prepared_transaction_open_for_thirty_days(
    broker: Broker,
) -> None:
    """An old one ends it 2**31 - 1 ms after its begin: after 24 days and 20 hours."""
    until(lambda: described(broker, OVERDUE.name("prepared")).state == "CompleteAbort")
    name = THIRTY_DAYS.name("prepared")
    if EXEMPT[broker.version]:
        assert described(broker, name).state == "Ongoing"
        assert not stable(broker, THIRTY_DAYS)
    else:
        until(lambda: described(broker, name).state == "CompleteAbort")


def test_a_producer_that_inits_on_a_broker_aborts_what_its_id_left_prepared(
    broker: Broker,
) -> None:
    name = TAKEN.name("prepared")
    assert described(broker, name).state == "Ongoing"
    assert not stable(broker, TAKEN)
    Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name}).init_transactions(
        30
    )
    assert described(broker, name).state in ("Empty", "CompleteAbort")
    until(lambda: stable(broker, TAKEN))


def test_a_broker_drops_an_unknown_tag_when_it_writes_the_id_again(broker: Broker) -> None:
    name = IDLE.name("prepared")
    assert described(broker, name).producer_epoch == 4
    commit(broker, name, IDLE)
    data = transaction_state.state_log(broker, IDLE).read_bytes()
    assert data.count(name.encode()) > 1
    assert data.count(PAYLOAD) == 1


@pytest.mark.parametrize(
    ("place", "printed"),
    [
        (OWN_KEYS, ("unknown::version=100", "Unknown record type 100 at offset 1, skipping")),
        (FIVE_DAYS, ("state=Ongoing", '"transactionStatus":1')),
        (IDLE, ("state=Empty", '"transactionStatus":0')),
    ],
)
def test_dump_log_segments_prints_a_partition_with_these_records(
    broker: Broker, place: Placed, printed: tuple[str, str]
) -> None:
    path = transaction_state.state_log(broker, place)
    code, output, complaints = dump(
        broker.version, [path], "--deep-iteration", "--transaction-log-decoder"
    )
    assert (code, complaints) == (0, "")
    assert any(text in output for text in printed)
    assert place.name("after") in output


def test_kafka_transactions_shows_a_prepared_transaction_as_ongoing(
    broker: Broker,
) -> None:
    tool = ("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap)
    name = FIVE_DAYS.name("prepared")
    described(broker, name)
    (line,) = [line for line in broker.run(*tool, "list").splitlines() if line.startswith(name)]
    assert line.split()[1:] == ["1", str(FIVE_DAYS.producer_id), "Ongoing"]
    answer = broker.run(*tool, "describe", "--transactional-id", name)
    assert f"{TOPIC}-{FIVE_DAYS.partition}" in answer
    assert str(NO_TIMEOUT_MS) in answer


def test_a_broker_that_compacts_keeps_the_newest_token_record(broker: Broker) -> None:
    """The last test of the module: it changes a setting of the broker."""
    compacts = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.001"}
    resource = ConfigResource(
        ResourceType.TOPIC,
        "__transaction_state",
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in compacts.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    folder = transaction_state.state_log(broker, OWN_KEYS).parent

    def stored() -> bytes:
        return b"".join(path.read_bytes() for path in folder.glob("*.log"))

    def compacted() -> bool:
        commit(broker, OWN_KEYS.name("new"), OWN_KEYS)  # a record rolls the segment
        try:
            found = stored()
        except FileNotFoundError:  # the broker has just removed a segment
            return False
        # All are missing while the broker renames the segments.
        return b"arbitrary 1" not in found and b"arbitrary 2" in found and b"\xff" * 40 in found

    until(compacted)
