"""A topic as a read-only mapping: `Log.table`.

The rows are the last values of the keys, as of a snapshot that splits no transaction. `refresh`
reads what has committed since. Tombstones are removed by compaction after `delete.retention.ms`, so
a table that was not refreshed for half of that time is read again from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import shown
from eoslog._util.extras import package
from eoslog._util.mapping_views import DocumentedMapping
from eoslog.client.scan.log_scan import ScanOptions, scan
from eoslog.client.scan.same_topics import of_same_topics
from eoslog.config.topic_keys import TopicConfig
from eoslog.errors import ConfigError, OffsetOutOfRange, SerializationError
from eoslog.model import TopicPartition
from eoslog.serializers import deserializer, serializer, undecodable
from eoslog.shown_html import html_table

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog.engine.engine import Engine

__all__ = ["Table"]

_Offsets = dict[TopicPartition, int]
_Rows = dict[bytes, tuple[bytes, TopicPartition, int]]
"""By key: the value, and where its record is."""


@dataclass(frozen=True, slots=True)
class _TableState:
    """The rows as of the ends of a snapshot, and when the topic was read."""

    rows: _Rows
    ends: _Offsets
    starts: _Offsets
    topic_id: bytes
    read_at: float


@explained_calls()
class Table(DocumentedMapping):
    """The last value of each key of a topic, as a read-only mapping.

    `Log.table` returns it::

        table = log.table("orders", value="string")
        print(table.get("ada"), len(table))

    Each access returns a new copy. A record without a value deletes its key, and records without a
    key are not part of the table.

    Raises:
        SerializationError: from any method, if a key or value is not in the format.
        EoslogError: from any method of a table that follows its topic, if it cannot be read.
    """

    def __init__(
        self,
        engine: Engine,
        snapshot: Callable[[list[str]], dict[TopicPartition, int]],
        topic: str,
        key: Any,
        value: Any,
        follow: bool,
    ) -> None:
        """Read the topic up to its current end."""
        if not isinstance(follow, bool):
            raise ConfigError(f"follow: expected True or False, got {shown(follow)}")
        self._engine = engine
        self._snapshot = snapshot
        self._topic = topic
        self._encode_key, self._decode_key = serializer("key", key), deserializer("key", key)
        self._decode = deserializer("value", value)
        if self._encode_key is self._decode_key and callable(key):
            self._encode_key = None  # a function decodes; bytes look up keys then
        self._follow = follow
        self._state = _TableState({}, {}, {}, b"", time.monotonic())
        self.refresh()

    @property
    def topic(self) -> str:
        """The topic of the table."""
        return self._topic

    def refresh(self) -> None:
        """Read what has committed since the last call.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
            CorruptRecord: if a batch is damaged. The table stays as it was.
        """
        self._state = of_same_topics(self._engine, [self._topic], self._next_state)

    def _next_state(self) -> _TableState:
        last, now = self._state, time.monotonic()
        info = self._engine.topic(self._topic)
        kept_s = TopicConfig.of(dict(info.config)).delete_retention_ms / 1000
        again = info.topic_id != last.topic_id or now - last.read_at > kept_s / 2
        rows, known = ({}, {}) if again else (last.rows, last.ends)
        ends = self._snapshot([self._topic])
        if ends != known:
            try:
                rows = self._read(dict(rows), known, ends)
            except OffsetOutOfRange:  # records before the snapshot were deleted
                rows = self._read({}, {}, ends)
        starts = {tp: self._engine.partition(tp.topic, tp.partition).log_start for tp in ends}
        if again or starts != last.starts:  # retention or `delete_records` has deleted records
            rows = {key: row for key, row in rows.items() if row[2] >= starts[row[1]]}
        return _TableState(rows, ends, starts, info.topic_id, now)

    def _read(self, rows: _Rows, starts: _Offsets, ends: _Offsets) -> _Rows:
        options = ScanOptions(start=starts or None, end=ends)
        places = {number.partition: number for number in ends}
        for record in scan(self._engine, self._topic, options).records():
            if record.value is None:
                rows.pop(record.key, None)
            elif record.key is not None:
                rows[record.key] = (record.value, places[record.partition], record.offset)
        return rows

    # The mapping.

    def _current(self) -> _Rows:
        if self._follow:
            self.refresh()
        return self._state.rows

    def __getitem__(self, key: Any) -> Any:
        rows = self._current()
        try:
            data = key if self._encode_key is None else self._encode_key(key)
            data = data.encode() if isinstance(data, str) else data
        except (SerializationError, UnicodeEncodeError):
            raise KeyError(key) from None
        if not isinstance(data, bytes) or data not in rows:
            raise KeyError(key)
        return self._value(*rows[data])

    def _value(self, value: bytes, place: TopicPartition, offset: int) -> Any:
        return self._decoded(self._decode, value, place, offset)

    def _decoded(self, decode: Any, data: bytes, place: TopicPartition, offset: int) -> Any:
        if decode is None:
            return data
        try:
            return decode(data)
        except Exception as error:
            advice = f"give log.table({self._topic!r}) the formats of the topic"
            raise undecodable(place, offset, error, advice) from error

    def __iter__(self) -> Iterator[Any]:
        for key, (_, place, offset) in list(self._current().items()):
            yield self._decoded(self._decode_key, key, place, offset)

    def __len__(self) -> int:
        return len(self._current())

    def to_arrow(self) -> pa.Table:
        """Return the table as a pyarrow table with the columns `key` and `value`.

        Values that are dicts become a struct column.

        Raises:
            ConfigError: if pyarrow is not installed.
            SerializationError: if the values have no common type.
        """
        package("pyarrow", "to_arrow", "arrow")
        import pyarrow as pa

        rows = self._current()
        columns: dict[str, list[Any]] = {"key": [], "value": []}
        for key, (value, place, offset) in rows.items():
            columns["key"].append(self._decoded(self._decode_key, key, place, offset))
            columns["value"].append(self._value(value, place, offset))
        try:
            return pa.table(columns)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise SerializationError(
                f"to_arrow: the keys or values of table {self._topic!r} have no common type "
                f"({error}); use log.table({self._topic!r}, key='bytes', value='bytes')"
            ) from error

    def _repr_html_(self) -> str:
        """Return a small table of keys and values; damaged values are shown raw."""
        now = self._state.rows
        rows = (
            (_text(self._decode_key, key), _text(self._decode, row[0])) for key, row in now.items()
        )
        caption = f"Table {self._topic!r}, {len(now):,} keys"
        return html_table(caption, ("key", "value"), rows, len(now))

    def __repr__(self) -> str:
        return f"<Table {self._topic!r}, {len(self._state.rows)} keys>"


def _text(decode: Any, data: bytes) -> str:
    try:
        value = data if decode is None else decode(data)
    except Exception:
        value = data
    return value if isinstance(value, str) else repr(value)
