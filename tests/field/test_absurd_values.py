"""Public calls with absurd values raise errors of the package and damage nothing.

The calls come from `eoslog.__all__` and their parameters from signatures, so a new call is tried too.
One argument at a time is absurd, and the others are valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import OffsetAndMetadata, TopicPartition
from eoslog.errors import EoslogError, KafkaError
from tests.field.absurd import RECORDS, values

pytest.importorskip("pyarrow")

_TP = TopicPartition("t", 0)


class _Listener(eoslog.TransactionListener):
    def execute_local_transaction(self, msg: Any, arg: Any) -> Any:
        return eoslog.Outcome.ABORT

    def check_local_transaction(self, msg: Any) -> Any:
        return eoslog.Outcome.ABORT


class World:
    """A log with records, a group and a transaction, and a client of each kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = eoslog.open(path / "log", durability="os", offsets_topic_num_partitions=2,
                               transaction_state_log_num_partitions=2)  # fmt: skip
        self.log.create_topic("t", 2)
        self.writer = self.log.producer(linger_ms=0, max_block_ms=100)
        self.writer.produce_many("t", RECORDS, partition=0)
        self.writer.flush()
        self.log.reset_offsets("committed", {_TP: 1})
        self.spent: list[Any] = []
        self.awaited: dict[str, Any] = {}
        self.loop = asyncio.new_event_loop()
        self.ids = 0

    def producer(self, **options: Any) -> Any:
        client = self.log.producer(linger_ms=0, max_block_ms=100, **options)
        self.spent.append(client)
        return client

    def transactional(self) -> Any:
        self.ids += 1  # an id that a call has prepared is not free
        client = self.producer(transactional_id=f"x{self.ids}")
        client.init_transactions(60)
        client.begin_transaction()
        return client

    def transaction(self) -> Any:
        client = self.producer(transactional_id="x")
        client.init_transactions(60)
        return client.transaction().__enter__()

    def named(self) -> Any:
        return self.producer(name="n")

    def half(self) -> Any:
        client = self.log.half_producer("h", _Listener())
        self.spent.append(client)
        return client

    def token(self) -> str:
        """The token of a transaction that is decided to abort."""
        client = self.transactional()
        token = client.prepare_transaction().token
        client.abort_transaction()
        return str(token)

    def app(self) -> Any:
        """An application with a task whose results are not used."""
        client = eoslog.App(self.log, "app")
        client.task("t", batch=10)(lambda records, ctx: None)
        self.spent.append(client)
        return client

    def context(self) -> Any:
        [task] = self.app()._tasks.values()
        return eoslog.Context("app", task, self.log.last("t")[0])

    def database(self) -> Any:
        return eoslog.sql.Database(str(self.path / "rows.db"))

    def consumer(self, *topics: str, **options: Any) -> Any:
        client = self.log.consumer(*topics, auto_offset_reset="earliest", **options)
        client.wakeup()
        self.spent.append(client)
        return client

    def grouped(self) -> Any:
        client = self.consumer(group_id="g", enable_auto_commit=False)
        client.assign([_TP])
        return client

    def wait(self, awaited: Any) -> Any:
        return self.loop.run_until_complete(awaited)

    def async_consumer(self) -> Any:
        client = self.awaited.get("consumer")
        if client is None or client.closed:  # one that is left by a value is used by the next one
            client = self.awaited["consumer"] = self.log.async_consumer(
                group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
            )
            self.wait(client.start())
        self.wait(client.unsubscribe())
        self.wait(client.assign([_TP]))
        return client

    def async_producer(self) -> Any:
        client = self.awaited.get("producer")
        if client is None or client.closed:
            client = self.awaited["producer"] = self.log.async_producer(
                linger_ms=0, max_block_ms=100, transactional_id="x"
            )
            self.wait(client.start())
        if client.transaction_state != "READY":
            self.wait(client.abort_transaction())
        return client

    def async_transactional(self) -> Any:
        client = self.async_producer()
        self.wait(client.begin_transaction())
        return client

    def async_transaction(self) -> Any:
        return self.wait(self.async_producer().transaction().__aenter__())

    def scan(self) -> Any:
        return self.log.scan("t")

    def renew(self) -> None:
        while self.spent:
            client = self.spent.pop()
            with contextlib.suppress(EoslogError):
                client.close()

    def close(self) -> None:
        self.renew()
        for client in self.awaited.values():
            with contextlib.suppress(EoslogError):
                self.wait(client.stop())
        self.loop.close()
        self.writer.close()
        self.log.close()


def _delivery(world: World) -> Any:
    delivery = eoslog.Delivery()
    delivery(None, eoslog.RecordMetadata("t", 0, 0, 0))
    return delivery


def _segment(world: World) -> str:
    return str(world.path / "log" / "t-0")


# Whom a class's methods are called on, and what each call takes where nothing is absurd.
OWNERS: dict[str, Callable[[World], Any]] = {
    "Log": lambda w: w.log,
    "Producer": lambda w: w.transactional(),
    "Consumer": lambda w: w.grouped(),
    "Transaction": lambda w: w.transaction(),
    "Delivery": _delivery,
    "Scan": lambda w: w.scan(),
    "NamedProducer": lambda w: w.named(),
    "HalfProducer": lambda w: w.half(),
    "AsyncConsumer": lambda w: w.async_consumer(),
    "AsyncProducer": lambda w: w.async_transactional(),
    "AsyncTransaction": lambda w: w.async_transaction(),
    "App": lambda w: w.app(),
    "AppTable": lambda w: w.app().table("rows"),
    "Context": lambda w: w.context(),
    "Table": lambda w: w.log.table("t", "bytes", "bytes"),
}
GIVEN: dict[str, Callable[[World], dict[str, Any]]] = {
    "open": lambda w: {"path": w.path / "other"},
    "check": lambda w: {"paths": w.path / "log"},
    "repair": lambda w: {"path": w.path / "log"},
    "inspect": lambda w: {"path": _segment(w)},
    "read_segments": lambda w: {"path": _segment(w)},
    "segment_range": lambda w: {"path": _segment(w)},
    "import_kafka_dir": lambda w: {"source": _segment(w), "path": w.path / "imported"},
    "App": lambda w: {"path_or_log": w.log, "id": "app"},
    "App.table": lambda w: {"topic": "rows"},
    "App.task": lambda w: {"topic": "t"},
    **{f"AppTable.{name}": lambda w: {"key": "x"} for name in ("get", "pop", "setdefault")},
    "Table.get": lambda w: {"key": b"x"},
    "AppTable": lambda w: {
        "app_id": "app",
        "topic": "t",
        "key": "string",
        "value": "json",
        "default": None,
        "store": "memory",
    },
    "Context.send": lambda w: {"topic": "t"},
    "Log.table": lambda w: {"topic": "t"},
    "dedupe": lambda w: {"store": set(), "key": 1},
    "Log": lambda w: {"engine": w.log._engine},
    "Producer": lambda w: {"config": {"log.dir": w.path / "log"}},
    "Consumer": lambda w: {"config": {"log.dir": w.path / "log", "group.id": "g"}},
    "Transaction": lambda w: {"producer": w.producer(transactional_id="x")},
    "Scan": lambda w: {"sources": []},
    "Log.abort_transaction": lambda w: {"transactional_id": "y"},
    "Log.alter_topic": lambda w: {"name": "t", "config": {}},
    "HalfProducer": lambda w: {"log": w.log, "group": "h", "listener": _Listener()},
    "AsyncConsumer": lambda w: {"make": list, "adopt": list},
    "AsyncConsumer.call": lambda w: {"function": repr},
    "AsyncConsumer.beginning_offsets": lambda w: {"partitions": [_TP]},
    "AsyncConsumer.end_offsets": lambda w: {"partitions": [_TP]},
    "AsyncConsumer.offsets_for_times": lambda w: {"timestamps": {_TP: 1}},
    "AsyncConsumer.pause": lambda w: {"partitions": _TP},
    "AsyncConsumer.resume": lambda w: {"partitions": _TP},
    "AsyncProducer": lambda w: {"make": list, "adopt": list},
    "AsyncProducer.call": lambda w: {"function": repr},
    "AsyncProducer.partitions_for": lambda w: {"topic": "t"},
    "AsyncProducer.send": lambda w: {"topic": "t", "value": b"v"},
    "AsyncProducer.send_and_wait": lambda w: {"topic": "t", "value": b"v"},
    "AsyncProducer.send_offsets_to_transaction": lambda w: {"offsets": {_TP: 1}, "group": "g"},
    "AsyncTransaction": lambda w: {"producer": None, "transaction": None},
    "AsyncTransaction.commit_offsets": lambda w: {"consumer": w.async_consumer()},
    "AsyncTransaction.send": lambda w: {"topic": "t", "value": b"v"},
    "AsyncTransaction.send_offsets": lambda w: {"offsets": {_TP: 1}, "group": "g"},
    "AsyncTransaction.set_position": lambda w: {"name": "p", "value": 1},
    "Log.async_consumer": lambda w: {"topics": "t", "group_id": "g"},
    "HalfProducer.send": lambda w: {"records": ("t", "v"), "transaction": None},
    "HalfProducer.send_message_in_transaction": lambda w: {"records": ("t", "v")},
    "NamedProducer": lambda w: {"config": {"log.dir": w.path / "log"}, "name": "n"},
    "Log.atomic": lambda w: {
        "producer": w.producer(transactional_id="y"),
        "database": w.database(),
    },
    "Log.half_producer": lambda w: {"group": "h", "listener": _Listener()},
    "Log.last_publishing_id": lambda w: {"name": "n", "topic": "t", "partition": 0},
    "Log.last": lambda w: {"topic": "t"},
    "Log.query": lambda w: {"sql": "select 1"},
    "Scan.to_parquet": lambda w: {"path": w.path / "x.parquet"},
    "Log.register_resolver": lambda w: {"name": "r", "fn": lambda p: eoslog.Outcome.ABORT},
    "Log.resolve": lambda w: {"token": w.token(), "outcome": eoslog.Outcome.ABORT},
    "Log.sink": lambda w: {"consumer": w.grouped(), "database": w.database()},
    "Producer.complete_transaction": lambda w: {"state": w.token()},
    "Transaction.set_position": lambda w: {"name": "p", "value": 1},
    "Log.backup": lambda w: {"path": w.path / "backup"},
    "Log.committed": lambda w: {"group_id": "committed", "partitions": [_TP]},
    "Log.consumer": lambda w: {"topics": "t", "group_id": "g"},
    "Log.create_partitions": lambda w: {"name": "t", "total": 2},
    "Log.create_topic": lambda w: {"name": "t", "exist_ok": True},
    "Log.delete_group": lambda w: {"group_id": "none"},
    "Log.delete_records": lambda w: {"offsets": {_TP: 0}},
    "Log.delete_topic": lambda w: {"name": "none"},
    "Log.describe_group": lambda w: {"group_id": "committed"},
    "Log.describe_topic": lambda w: {"name": "t"},
    "Log.export_kafka": lambda w: {"bootstrap": "localhost:1"},
    "Log.import_kafka": lambda w: {"bootstrap": "localhost:1"},
    "Log.lag": lambda w: {"group_id": "committed"},
    "Log.match_topics": lambda w: {"pattern": "t"},
    "Log.offset_for_time": lambda w: {"topic": "t", "partition": 0, "timestamp_ms": 5},
    "Log.offsets": lambda w: {"topic": "t", "partition": 0},
    "Log.partitions_of": lambda w: {"topic": "t"},
    "Log.producers": lambda w: {"topic": "t", "partition": 0},
    "Log.read": lambda w: {"topic": "t"},
    "Log.reset_offsets": lambda w: {"group_id": "r", "offsets": {_TP: 0}},
    "Log.run_transaction": lambda w: {"fn": lambda tx: None, "transactional_id": "y"},
    "Log.scan": lambda w: {"topic": "t"},
    "Log.topic_id": lambda w: {"name": "t"},
    "Log.trace": lambda w: {"callback": lambda event: None},
    "Producer.partitions_for": lambda w: {"topic": "t"},
    "Producer.produce": lambda w: {"topic": "t", "value": b"v"},
    "Producer.send": lambda w: {"topic": "t", "value": b"v"},
    "Producer.produce_many": lambda w: {"topic": "t", "values": [b"v"]},
    "Producer.produce_arrow": lambda w: {"topic": "t", "data": w.scan().reader().read_all()},
    "Producer.produce_batches": lambda w: {"topic": "t", "partition": 0, "batches": []},
    "Producer.send_offsets_to_transaction": lambda w: {"offsets": {_TP: 1}, "group_metadata": "g"},
    "Producer.xid": lambda w: {
        "format_id": 1,
        "global_transaction_id": "g",
        "branch_qualifier": "b",
    },
    "Producer.tpc_begin": lambda w: {"xid": (1, "g", "b")},
    "Consumer.assign": lambda w: {"partitions": [_TP]},
    "Consumer.commit": lambda w: {"offsets": {_TP: 1}},
    "Consumer.commit_async": lambda w: {"offsets": {_TP: 1}},
    "Consumer.commit_sync": lambda w: {"offsets": {_TP: 1}},
    "Consumer.committed": lambda w: {"partitions": [_TP]},
    "Consumer.current_lag": lambda w: {"partitions": [_TP]},
    "Consumer.pause": lambda w: {"partitions": [_TP]},
    "Consumer.resume": lambda w: {"partitions": [_TP]},
    "Consumer.position": lambda w: {"partitions": [_TP]},
    "Consumer.seek": lambda w: {"partition": _TP, "offset": 0},
    "Consumer.seek_to_time": lambda w: {"partitions": [_TP], "timestamp_ms": 1},
    "Consumer.subscribe": lambda w: {"topics": ["t"]},
    "Transaction.commit_offsets": lambda w: {"consumer": w.grouped()},
    "Transaction.produce": lambda w: {"topic": "t", "value": b"v"},
    "Transaction.send": lambda w: {"topic": "t", "value": b"v"},
    "Transaction.produce_many": lambda w: {"topic": "t", "values": [b"v"]},
    "Transaction.produce_arrow": lambda w: {"topic": "t", "data": w.scan().reader().read_all()},
    "Transaction.produce_batches": lambda w: {"topic": "t", "partition": 0, "batches": []},
    "Transaction.send_offsets": lambda w: {"offsets": {_TP: 1}, "group_metadata": "g"},
}


def _public() -> Iterator[str]:
    """Every public function, class and method, as `Log.offsets`."""
    for name in eoslog.__all__:
        thing = getattr(eoslog, name)
        if inspect.isclass(thing):
            if (
                issubclass(thing, enum.Enum | tuple)
                or is_dataclass(thing)
                or thing is TopicPartition
            ):
                continue
            yield name
            for method in dir(thing):
                plain = not method.startswith("_") and callable(getattr(thing, method))
                if plain and not hasattr(Exception, method):
                    yield f"{name}.{method}"
        elif callable(thing):
            yield name


def _bound(world: World, name: str) -> Callable[..., Any]:
    owner, _, method = name.partition(".")
    return getattr(OWNERS[owner](world), method) if method else getattr(eoslog, owner)


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    owner, _, method = name.partition(".")
    thing = getattr(eoslog, owner)
    try:
        found = dict(inspect.signature(getattr(thing, method) if method else thing).parameters)
    except ValueError:  # EoslogError takes what Exception takes
        return {}
    found.pop("self", None)
    return found


def _call(call: Callable[..., Any], name: str, given: dict[str, Any]) -> Any:
    """Call by keyword, and by position where a parameter takes nothing else."""
    places, keywords = [], {}
    for parameter in _parameters(name).values():
        if parameter.name not in given:
            continue
        value = given.pop(parameter.name)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            places.append(value)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            keywords[parameter.name] = value
    return call(*places, **keywords, **given)


def _use(world: World, found: Any) -> None:
    """What a call returns may do its work later."""
    if isinstance(found, eoslog.Scan):
        found.to_table()
        list(found.records())
    elif inspect.iscoroutine(found):
        world.wait(found)
    elif inspect.isgenerator(found):
        for _ in found:
            pass
    elif isinstance(found, eoslog.Log | eoslog.Producer | eoslog.Consumer):
        found.close()


FITTING = {
    ("AsyncConsumer.call", "function", "class"),
    ("AsyncProducer.call", "function", "class"),
    ("Producer.produce", "on_delivery", "class"),
    ("Transaction.produce", "on_delivery", "class"),
    ("Log.run_transaction", "fn", "class"),  # called, as every callable; what it raises is its own
    ("NamedProducer.produce", "on_delivery", "class"),
    *((f"{owner}.poll", "timeout", label) for owner in ("Producer", "NamedProducer") for label in (
        "2**15", "2**31", "2**63", "2**63 - 1", "2**64", "10**400", "10**5000", "infinity")),
}  # fmt: skip
"""Values that fit, and would take long or raise what is the caller's own."""

CALLS = sorted(set(_public()))


def _mistake(error: BaseException) -> str | None:
    """The mistake in an error that an absurd value caused, or None."""
    if not isinstance(error, EoslogError):
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:120]} ({Path(where.filename).name}:{where.lineno})"
    if not str(error).strip():
        return f"{type(error).__name__} without a message"
    str(error).encode()
    return None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


GIVEN |= {
    f"AsyncConsumer.{name}": GIVEN[f"Consumer.{name}"]
    for name in (
        "assign", "commit", "committed", "current_lag", "position", "seek", "seek_to_time", "subscribe",
    )
}  # fmt: skip
GIVEN |= {
    f"NamedProducer.{name.partition('.')[2]}": made
    for name, made in GIVEN.items()
    if name.startswith("Producer.")
}
ELSEWHERE = {
    **{
        f"TransactionListener.{name}": "the program writes it"
        for name in (
            "execute_local_transaction",
            "check_local_transaction",
            "check_local_transaction_state",
        )
    },
    "Log.export_kafka": "it connects to a cluster",
    "Log.import_kafka": "it connects to a cluster",
    "AppTable.update": "it is of the standard library",
    "Context": "an application creates it",
    "Table": "log.table creates it",
    "App.run": "it does not end; tests/app has its arguments",
    "Log.process": "it does not end; tests/app has its arguments",
}


@pytest.mark.parametrize("name", [n for n in CALLS if _parameters(n) and n not in ELSEWHERE])
def test_field_C4_a_call_with_an_absurd_value_raises_an_error_of_the_package(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.path)
    mistakes = []
    for parameter in _parameters(name):
        for label, absurd in values().items():
            base = GIVEN.get(name, lambda w: {})(world)
            call = _bound(world, name)
            try:
                if (name, parameter, label) in FITTING or parameter in ("options", "keywords"):
                    continue
                _use(world, _call(call, name, {**base, parameter: absurd}))
            except Exception as error:
                wrong = _mistake(error)
                if wrong:
                    mistakes.append(f"{parameter}={label}: {wrong}")
            world.renew()
    assert not mistakes, "\n" + "\n".join(mistakes)
    _unharmed(world)


def _unharmed(world: World) -> None:
    assert world.log.check(full=True).ok
    kept = [record.value for record in world.log.read("t", partitions=[0])]
    assert kept[:3] == RECORDS
    world.writer.produce("t", b"after", partition=1)
    world.writer.flush()
    assert [r.value for r in world.log.read("t", partitions=[1])][-1] == b"after"


def test_field_C4_an_id_that_no_record_can_contain_is_rejected_by_its_kind(world: World) -> None:
    groups, transactions = world.log._engine.groups, world.log._engine.transactions
    for bad in ("\ud800", "x" * 32_768, "\u00fc" * 16_384, "", b"g", None):
        with pytest.raises(EoslogError, match="group id"):
            world.log.reset_offsets(bad, {_TP: 1})  # type: ignore[arg-type]
        with pytest.raises(EoslogError, match="transactional id"):
            transactions.abort_transaction(bad)
    for name in ("instance_id", "client_id"):
        for bad in ("\ud800", "x" * 32_768, 5):
            with pytest.raises(KafkaError, match="bytes|UTF-8") as caught:
                groups.join("j", subscription=["t"], **{name: bad})
            assert caught.value.code is eoslog.ErrorCode.INVALID_REQUEST
    with pytest.raises(eoslog.errors.UnknownMember, match="no member 'm'"):
        member = groups.join("k", subscription=["t"])
        groups.commit_offsets("k", "m", -1, {_TP: OffsetAndMetadata(1)})
    groups.leave("k", member)
    assert "j" not in world.log.groups()
    _unharmed(world)
