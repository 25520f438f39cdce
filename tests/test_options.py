"""The types of options are those of the configuration, for type checkers."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from eoslog import App, options
from eoslog.config import broker_keys
from eoslog.config.documented import KINDS
from eoslog.coordinator.checks.check_policy import CheckPolicy
from eoslog.kafka.cluster import MoveOptions
from eoslog.model import IsolationLevel

TYPED = {
    "log": options.LogOptions,
    "producer": options.NamedProducerOptions,
    "consumer": options.GroupConsumerOptions,
    "topic": options.TopicOptions,
}
NOT_OPTIONS = {"durability", "eoslog.test.lose.acks"}
"""An argument of `open`, and a key for tests."""


def hints(kind: type) -> dict[str, Any]:
    found = get_type_hints(kind, None, {"IsolationLevel": IsolationLevel})
    return {name.replace("_", "."): hint for name, hint in found.items()}


def members(hint: Any) -> list[Any]:
    """The types of a union, and the values of its literals."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    inner = get_args(hint) if "Union" in str(get_origin(hint)) or "|" in str(hint) else ()
    return [part for one in inner for part in members(one)] if inner else [hint]


@pytest.mark.parametrize("kind", TYPED)
def test_the_options_are_the_keys_of_the_configuration(kind: str) -> None:
    config = KINDS[kind]
    keys = set(config.parsers())
    names = keys | {name for name, key in config.ALIASES.items() if key in keys}
    if kind == "log":
        names |= {n for found in broker_keys.TOPIC_DEFAULTS.values() for n, _ in found}
    assert set(hints(TYPED[kind])) == names - NOT_OPTIONS
    assert not TYPED[kind].__required_keys__


@pytest.mark.parametrize("kind", TYPED)
def test_the_type_of_an_option_has_its_default_and_its_choices(kind: str) -> None:
    config = KINDS[kind]
    for name, hint in hints(TYPED[kind]).items():
        key = config.ALIASES.get(name, name)
        if key not in config.parsers():
            continue  # a default of topics
        found = members(hint)
        default = config.default(key.replace(".", "_"))
        if isinstance(default, tuple):
            assert str in found
        elif default not in found:
            kinds = tuple(one for one in found if isinstance(one, type))
            assert isinstance(default, (*kinds, *((int,) if float in kinds else ()))), name
        assert isinstance(default, bool) == (bool in found), name
        literals = [one for one in found if isinstance(one, str | int)]
        for one in literals:
            if one != "msgpack":
                config.parsers()[key](key, one)
        choices = re.fullmatch(r"one of (.*?)(, or None)?", config.parsers()[key].expects)
        if choices:
            assert set(choices[1].split(", ")) == {one for one in literals if one}, name


@pytest.mark.parametrize("kind", TYPED)
def test_every_alias_has_the_type_of_its_key(kind: str) -> None:
    found = hints(TYPED[kind])
    for alias, key in KINDS[kind].ALIASES.items():
        if alias in found:
            assert found[alias] == found[key], alias
    if kind == "log":
        topic = hints(options.TopicOptions)
        for key, names in broker_keys.TOPIC_DEFAULTS.items():
            assert {str(found[name]) for name, _ in names} == {str(topic[key])}


def test_the_options_of_process_are_those_of_an_app_and_a_task() -> None:
    app = inspect.signature(App.__init__).parameters.keys() - {"self", "path_or_log", "id"}
    task = inspect.signature(App.task).parameters.keys() - {"self", "topic", "tables"}
    assert options.ProcessOptions.__optional_keys__ == app | task


def test_changes_of_a_topic_are_its_options_or_none() -> None:
    changes = hints(options.TopicChanges)
    assert not options.TopicChanges.__required_keys__
    assert changes == {name: hint | None for name, hint in hints(options.TopicOptions).items()}


def test_the_options_of_resolvers_and_moves_are_those_of_their_classes() -> None:
    policy = {name.replace("_", ".") for name in CheckPolicy.__dataclass_fields__}
    assert set(hints(options.ResolverOptions)) == policy
    assert set(hints(options.KafkaMoveOptions)) == set(MoveOptions.__dataclass_fields__)
    common = set(hints(options.ConsumerOptions))
    assert set(hints(options.LogConsumerOptions)) == common | {"producer", "offset.store"}


PROGRAM = """
import eoslog
from eoslog import Record
from eoslog.options import ConsumerOptions, ProducerOptions, TopicChanges, TopicOptions

def right(log: eoslog.Log, handler: eoslog.TransactionListener) -> None:
    settings: ProducerOptions = {"linger_ms": 5, "compression_type": "zstd", "acks": "all"}
    log.producer(**settings)
    log.producer(transactional_id="till", key="string", value="json")
    log.producer(name="till", strict_ids=True).close()
    log.consumer("orders", group_id="g", auto_offset_reset="earliest", key=bytes.decode)
    reading: ConsumerOptions = {"auto_offset_reset": "earliest", "max_poll_records": 5}
    log.consumer("orders", group_id="g", **reading)
    log.run_transaction(lambda tx: None, transactional_id="t", linger_ms=0.5)
    log.half_producer("g", handler, first_check=1, on_exhausted="abort")
    topic: TopicOptions = {"retention.ms": 5, "cleanup.policy": "compact,delete"}
    log.create_topic("orders", config=topic)
    log.create_topic("orders", config={"cleanup.policy": "compact", "retention.ms": 5})
    log.process("orders", print, group_id="g", value="json", on_error="skip", until="caught_up")
    app = eoslog.App(log, "shop", "at_least_once", max_records=5)
    rows = app.table("rows", key="uuid", store="sqlite")

    @app.task("orders", tables=[rows], key=bytes.decode, on_error="dead_letter", batch=5)
    def work(batch: list[Record[str, bytes]], ctx: eoslog.Context) -> None: ...

    app.run(processes=3, until="caught_up")
    log.alter_topic("orders", topic)
    log.alter_topic("orders", {"cleanup.policy": "delete", "retention.ms": None})
    changes: TopicChanges = {"compression.type": None, "segment.bytes": 1 << 20}
    log.alter_topic("orders", changes)
    eoslog.open("shop", durability="os", pending_max_count=5, log_retention_ms=1).close()

def sum_of(record: Record[str, dict[str, int]]) -> int:
    return record.value["sum"] + len(record.key)

def wrong(log: eoslog.Log, handler: eoslog.TransactionListener) -> None:
    eoslog.open("shop", pending_max_cuont=5)                        # error
    eoslog.open("shop", pending_max_count="many")                   # error
    log.producer(transactionalid="till")                            # error
    log.producer(linger_ms=b"5")                                    # error
    log.producer(compression_type="zst")                            # error
    log.producer(name="till", strict_id=True)                       # error
    log.consumer("orders", auto_ofset_reset="earliest")             # error
    log.consumer("orders", auto_offset_reset="first")               # error
    log.consumer("orders", enable_auto_commit=0.5)                  # error
    log.consumer("orders", value="jason")                           # error
    log.run_transaction(lambda tx: None, transactional_id="t", linger=5)  # error
    log.half_producer("g", handler, frist_check=1)                  # error
    log.import_kafka("localhost:9092", record=5)                    # error
    eoslog.Producer(log_dir="shop", ack="all")                      # error
    eoslog.Consumer(log_dir="shop", groupid="g")                    # error
    topic: TopicOptions = {"retention.m": 5}                        # error
    log.create_topic("orders", config={"clean.policy": "compact"})  # error
    log.create_topic("orders", config={"cleanup.policy": "compacted"})  # error
    log.create_topic("orders", config={"retention.ms": "long"})     # error
    log.alter_topic("orders", {"clean.policy": "compact"})          # error
    log.alter_topic("orders", {"cleanup.policy": "compacted"})      # error
    log.alter_topic("orders", {"retention.ms": "long"})             # error
    log.process("orders", print, group_id="g", on_eror="skip")      # error
    log.process("orders", print, group_id="g", batch_format="arow")  # error
    app = eoslog.App(log, "shop", "exactly once")                   # error
    app.table("rows", store="disk")                                 # error
    app.table("rows", value="jason")                                # error
    app.task("orders", on_error="dead_leter")                       # error
    app.task("orders", value="jason")                               # error
    app.run(until="end")                                            # error
    log.read("orders", value="jason")                               # error
    log.table("orders", key="text")                                 # error
    uncommitted: ConsumerOptions = {"isolation_level": "committed"}  # error

def wrong_record(record: Record[str, dict[str, int]]) -> None:
    record.value.sum                                                # error
    record.key + 1                                                  # error
"""
ERRORS = {n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.slow
def test_mypy_finds_each_wrong_use_and_no_right_one(program: Path) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
         f"--cache-dir={program.parent}", str(program)],
        capture_output=True, text=True, cwd=program.parent, check=False,
    )  # fmt: skip
    found = {int(n) for n in re.findall(r"^program.py:(\d+): error", done.stdout, re.MULTILINE)}
    assert found == ERRORS, done.stdout + done.stderr


@pytest.mark.slow
def test_basedpyright_finds_each_wrong_use_and_no_right_one(program: Path) -> None:
    pytest.importorskip("basedpyright")
    (program.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable,
         str(program)],
        capture_output=True, text=True, cwd=program.parent, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)["generalDiagnostics"]
    found = {
        one["range"]["start"]["line"] + 1
        for one in told
        if one["severity"] == "error" and one["file"] == str(program)
    }
    assert found == ERRORS, told


def test_the_types_of_keys_and_values_are_parameters_of_a_record() -> None:
    from eoslog import Record

    assert get_args(Record[str, int]) == (str, int)
    assert Record[str, int]("t", 0, 5, value=b"1") == Record("t", 0, 5, value=b"1")
