"""A table of an application, as its tasks see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import shown
from eoslog._util.mapping_views import DocumentedMapping
from eoslog.client.producer.partitioner import partition_for_key
from eoslog.errors import ConfigError, IllegalState, RecordTooLarge, SerializationError
from eoslog.serializers import deserializer, serializer
from eoslog.storage.metadata.metadata_log import check_topic_name

if TYPE_CHECKING:
    from eoslog.app.tables.partition import TablePartition

__all__ = ["AppTable"]

_STORES = ("memory", "sqlite")
_NOT_GIVEN: Any = object()
_OVERHEAD = 100
"""At least what a batch of one record has besides its key and value."""


def _format_name(spec: Any) -> str:
    if spec is str:
        return "string"
    return "bytes" if spec in (None, bytes) else str(spec)


class AppTable(DocumentedMapping, MutableMapping[Any, Any]):
    """A table of an application: a mapping that commits with the position.

    `App.table` returns it::

        app = eoslog.App("shop", "totals")
        totals = app.table("totals", default=int)

        @app.task("orders", key="string", tables=[totals])
        def count(order, ctx):
            totals[order.key] += 1

    A task sees the partition of the table that has the number of its record's partition. A missing
    key gives `default()`, which is not stored. A value changes by assignment only: each access
    returns a new copy, so changing a list or a dict does not change the table.

    Outside of the application, read the topic with `Log.table`.

    Raises:
        IllegalState: from any method, if it is called outside of a task, or in a task that does not
            name the table in `tables`; or if the key belongs to another partition than the record.
        SerializationError: from any method, if a key or value is not in the format of the table.
        RecordTooLarge: if a key and its value are larger than `max.message.bytes` of the topic.
    """

    def __init__(
        self,
        app_id: str,
        topic: str,
        key: Any,
        value: Any,
        default: Callable[[], Any] | None,
        store: str,
    ) -> None:
        """Declare the table.

        Raises:
            ConfigError: if an option is invalid.
            InvalidTopic: if the name of the topic is invalid.
        """
        if not isinstance(store, str) or store not in _STORES:
            raise ConfigError(f"store: expected {' or '.join(_STORES)}, got {shown(store)}")
        if default is not None and not callable(default):
            raise ConfigError(
                f"default: expected a function without arguments, for example int, got "
                f"{shown(default)}"
            )
        for what, spec in (("key", key), ("value", value)):
            if callable(spec) and spec not in (bytes, str):
                raise ConfigError(f"{what}: a table needs the name of a format, got {shown(spec)}")
        self._app_id = app_id
        self._topic = check_topic_name(topic)
        self._store = store
        self._default = default
        self._encode_key, self._decode_key = serializer("key", key), deserializer("key", key)
        self._encode, self._decode = serializer("value", value), deserializer("value", value)
        self._formats = {"key": _format_name(key), "value": _format_name(value)}
        self._current: TablePartition | None = None

    @property
    def topic(self) -> str:
        """The topic of the table."""
        return self._topic

    @property
    def store(self) -> str:
        """Where the rows are between transactions, "memory" or "sqlite"."""
        return self._store

    def __repr__(self) -> str:
        return f"<Table {self._topic!r} of app {self._app_id!r}>"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    # Rows.

    def __getitem__(self, key: Any) -> Any:
        found = self._stored(key)
        if found is None:
            if self._default is None:
                raise KeyError(key)
            return self._default()
        return self._value(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        if value is None:
            raise SerializationError(
                f"table {self._topic!r}: key {shown(key)}: None is not a value, because a record "
                "without a value deletes the key; use del, or store another value"
            )
        partition, data = self._of(key)
        stored = self._bytes_of("value", value, self._encode)
        size = len(data) + len(stored) + _OVERHEAD
        if size > partition.largest:
            raise RecordTooLarge(
                f"table {self._topic!r}: key {shown(key)}: a record of about {size} bytes exceeds "
                f"max.message.bytes = {partition.largest} of the topic"
            )
        partition.changes[data] = stored

    def __delitem__(self, key: Any) -> None:
        partition, data = self._of(key)
        if partition.get(data) is None:
            raise KeyError(key)
        partition.changes[data] = None

    def __contains__(self, key: object) -> bool:
        return self._stored(key) is not None

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys of the record's partition."""
        for data in self._partition():
            yield data if self._decode_key is None else self._decode_key(data)

    def __len__(self) -> int:
        """Return the number of keys of the record's partition."""
        return len(self._partition())

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` for a missing key.

        Args:
            key: the key.
            default: what a missing key gives, in place of the default of the table.
        """
        found = self._stored(key)
        return default if found is None else self._value(found)

    def pop(self, key: Any, default: Any = _NOT_GIVEN) -> Any:
        """Delete a key, and return its value, or `default` for a missing key.

        Args:
            key: the key.
            default: what a missing key gives; without one, it raises KeyError.
        """
        if key not in self:
            if default is _NOT_GIVEN:
                raise KeyError(key)
            return default
        value = self[key]
        del self[key]
        return value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Store `default` for a missing key, and return the value of the key.

        Args:
            key: the key.
            default: the value that a missing key gets.
        """
        if key not in self:
            self[key] = default
        return self[key]

    def popitem(self) -> tuple[Any, Any]:
        """Delete a key, and return it with its value.

        Raises:
            KeyError: if there is none.
        """
        return super().popitem()

    def clear(self) -> None:
        """Delete all keys of the record's partition."""
        super().clear()

    def update(self, *others: Any, **keywords: Any) -> None:
        """Store several keys, as `dict.update` does.

        Args:
            others: a mapping, or pairs of keys and values.
            keywords: keys and values.
        """
        super().update(*others, **keywords)

    # The partition of the record that is processed.

    def _stored(self, key: Any) -> bytes | None:
        partition, data = self._of(key)
        return partition.get(data)

    def _value(self, data: bytes) -> Any:
        return data if self._decode is None else self._decode(data)

    def _of(self, key: Any) -> tuple[TablePartition, bytes]:
        partition = self._partition()
        data = self._bytes_of("key", key, self._encode_key)
        if partition.count > 1 and data not in partition.checked:
            owner = partition_for_key(data, partition.count)
            if owner != partition.number:
                raise IllegalState(
                    f"table {self._topic!r}: key {shown(key)} belongs to partition {owner}, and "
                    f"the record is of partition {partition.number}; use keys of the record's "
                    "partition, for example its key, or send the record to a topic that has the "
                    "table's key first"
                )
            partition.checked.add(data)
        return partition, data

    def _partition(self) -> TablePartition:
        if self._current is None:
            raise IllegalState(
                f"app {self._app_id!r}: table {self._topic!r} was used outside of a task, or in a "
                f"task that does not have it in tables=[...]; to read it anywhere, use "
                f"log.table({self._topic!r})"
            )
        return self._current

    def _bytes_of(self, what: str, value: Any, encode: Callable[[Any], bytes | None] | None) -> Any:
        try:
            data = value if encode is None else encode(value)
            if encode is None and isinstance(data, str):
                data = data.encode()
        except (SerializationError, UnicodeEncodeError) as error:
            raise SerializationError(f"table {self._topic!r}: {what}: {error}") from None
        if not isinstance(data, bytes):
            raise SerializationError(
                f"table {self._topic!r}: {what}: expected a value that is not None, in the format "
                f"of the table, got {shown(value)}"
            )
        return data
