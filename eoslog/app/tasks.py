"""A task: a function over the records of a topic, and how it runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any

from eoslog._core import Record
from eoslog._util.arguments import as_int, as_seconds, shown
from eoslog.app.running_notes import task_number
from eoslog.errors import ConfigError, SerializationError
from eoslog.model import TopicPartition
from eoslog.serializers import Deserializer, Serializer, deserializer, serializer, undecodable
from eoslog.storage.metadata.metadata_log import check_topic_name

if TYPE_CHECKING:
    from eoslog.app.tables.table import AppTable

__all__ = ["DEFAULT_TIMEOUT_S", "NEVER_RUNS", "Format", "Task", "task_of"]

DEFAULT_TIMEOUT_S = 60.0
NEVER_RUNS = "the function yields, so it runs only with a topic for its results; set to="
_POLICIES = ("stop", "skip", "retry", "dead_letter")
_BATCH_FORMATS = ("records", "arrow")


class Format:
    """How keys or values become bytes and back; bytes stay bytes without a format."""

    __slots__ = ("decode", "encode", "spec", "what")

    def __init__(self, what: str, spec: Any) -> None:
        """Look up a format by its name, or take a function that decodes.

        Raises:
            ConfigError: if the format is unknown.
        """
        self.what = what
        self.spec = spec
        self.decode: Deserializer | None = deserializer(what, spec)
        named = not callable(spec) or spec is bytes or spec is str
        self.encode: Serializer | None = serializer(what, spec) if named else None

    def bytes_of(self, value: Any) -> Any:
        """Encode a value; None and bytes stay as they are.

        Raises:
            SerializationError: if it is not in the format; without one, if it is not bytes or text.
        """
        if value is None or type(value) is bytes:
            return value
        if self.encode is not None:
            return self.encode(value)
        if not isinstance(value, str):
            _check_buffer(self.what, value)
        return value

    def __repr__(self) -> str:
        return repr(self.spec)


def _check_buffer(what: str, value: Any) -> None:
    try:
        memoryview(value)
    except TypeError:
        raise SerializationError(
            f"{what}: expected bytes, str or None, got {type(value).__name__}; set {what}= of the "
            "task to a format, for example 'json'"
        ) from None


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A function over the records of a topic.

    Attributes:
        name: the name of the function.
        topic: the input topic.
        handler: the function.
        key: the format of input keys.
        value: the format of input values.
        to: the topic of returned values, or None.
        tables: the tables that the function may use.
        batch: the most records of a call; None calls the function for each record.
        batch_format: "records" or "arrow".
        retries: the delays before further attempts, in seconds.
        on_error: what happens after the last attempt.
        max_deaths: the number of processes that a record may end.
        task_timeout: the longest call, in seconds.
        number: the number of the name in notes of running records.
        is_async: whether the function is a coroutine function, or an asynchronous generator.
    """

    name: str
    topic: str
    handler: Callable[..., Any]
    key: Format
    value: Format
    to: str | None
    tables: tuple[AppTable, ...]
    batch: int | None
    batch_format: str
    retries: tuple[float, ...]
    on_error: str
    max_deaths: int
    task_timeout: float
    number: int
    is_async: bool

    def decoded(self, record: Record) -> Record:
        """Return the record with its key and value decoded.

        Raises:
            SerializationError: if one is not in the format; the message names the record.
        """
        key, value = self.key.decode, self.value.decode
        if key is None and value is None:
            return record
        try:
            return Record(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                record.timestamp_type,
                record.key if key is None else key(record.key),
                record.value if value is None else value(record.value),
                record.headers,
                record.leader_epoch,
            )
        except Exception as error:
            place = TopicPartition(record.topic, record.partition)
            advice = f"correct the producer, or the formats of task {self.name!r}"
            raise undecodable(place, record.offset, error, advice) from error


def task_of(
    handler: Callable[..., Any], topic: str, options: dict[str, Any], tables: Sequence[AppTable]
) -> Task:
    """Check the options of a task.

    Raises:
        ConfigError: if an option is invalid; the message names the task.
        InvalidTopic: if the name of a topic is invalid.
    """
    function = handler
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return _checked(name, handler, function, topic, options, tables)
    except (ConfigError, SerializationError) as error:
        raise ConfigError(f"task {name!r}: {error}") from None


def _checked(
    name: str,
    handler: Callable[..., Any],
    function: Callable[..., Any],
    topic: str,
    options: dict[str, Any],
    tables: Sequence[AppTable],
) -> Task:
    batch, timeout = options["batch"], options["task_timeout"]
    if batch is not None and as_int("batch", batch, "1 or more") < 1:
        raise ConfigError(f"batch: expected 1 or more, got {batch}")
    for option, choices in (("on_error", _POLICIES), ("batch_format", _BATCH_FORMATS)):
        if options[option] not in choices:
            raise ConfigError(
                f"{option}: expected {', '.join(choices)}, got {shown(options[option])}"
            )
    if options["batch_format"] == "arrow" and batch is None:
        raise ConfigError("batch_format='arrow' needs batch, the most records of a call; set it")
    if as_int("max_deaths", options["max_deaths"], "1 or more") < 1:
        raise ConfigError(f"max_deaths: expected 1 or more, got {options['max_deaths']}")
    seconds = DEFAULT_TIMEOUT_S if timeout is None else as_seconds("task_timeout", timeout)
    if not seconds:
        raise ConfigError("task_timeout: expected more than 0 seconds, got 0")
    retries = options["retries"]
    if isinstance(retries, str | bytes) or not isinstance(retries, Sequence):
        raise ConfigError(f"retries: expected a list of delays in seconds, got {shown(retries)}")
    to = None if options["to"] is None else check_topic_name(options["to"])
    if to is None and (isgeneratorfunction(function) or isasyncgenfunction(function)):
        raise ConfigError(NEVER_RUNS)
    return Task(
        name=name,
        topic=check_topic_name(topic),
        handler=handler,
        key=Format("key", options["key"]),
        value=Format("value", options["value"]),
        to=to,
        tables=tuple(tables),
        batch=batch,
        batch_format=options["batch_format"],
        retries=tuple(as_seconds("retries", delay) for delay in retries),
        on_error=options["on_error"],
        max_deaths=options["max_deaths"],
        task_timeout=seconds,
        number=task_number(name),
        is_async=iscoroutinefunction(function) or isasyncgenfunction(function),
    )
