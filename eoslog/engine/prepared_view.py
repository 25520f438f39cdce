"""Prepared transactions as programs see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog._util.arguments import shown
from eoslog.coordinator.transactions.prepared_records import STAGED, PreparedEntry
from eoslog.coordinator.transactions.state import TransactionState
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import ConfigError, EoslogError, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS, Outcome

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

META_MAX_BYTES = 4096
_JSON, _BYTES = b"j", b"b"


def encode_meta(meta: Any) -> bytes | None:
    """Encode the application's value of a prepared transaction.

    Args:
        meta: bytes, or what JSON can encode; None means none.

    Raises:
        ConfigError: if JSON cannot encode it, or it has more than 4,096 bytes.
    """
    if meta is None:
        return None
    if isinstance(meta, (bytes, bytearray, memoryview)):
        data = _BYTES + bytes(meta)
    else:
        try:
            data = _JSON + json.dumps(meta, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"meta: expected bytes or what JSON can encode, got {shown(meta)}: {error}"
            ) from None
    if len(data) - 1 > META_MAX_BYTES:
        raise ConfigError(
            f"meta: {len(data) - 1} bytes, at most {META_MAX_BYTES} are allowed; keep a key in it, "
            "and the rest in a database or in the records"
        )
    return data


def decode_meta(data: bytes | None) -> Any:
    """Decode what `encode_meta` has encoded."""
    if data is None:
        return None
    return data[1:] if data[:1] == _BYTES else json.loads(data[1:])


class PreparedRecords:
    """The records of a prepared transaction, read from the log at each iteration."""

    def __init__(self, engine: Engine, entry: PreparedEntry) -> None:
        """Keep what is needed to find them; nothing is read."""
        self._engine = engine
        self._entry = entry

    def __iter__(self) -> Iterator[_core.Record]:
        if self._entry.mode == STAGED:
            for _, part in self._engine.staged.parts(self._entry):
                for batch in _core.iter_batches(part.data):
                    yield from _records(part.partition.topic, part.partition.partition, batch, -1)
            return
        for tp, span in self._entry.spans:
            if tp.topic in INTERNAL_TOPICS:
                continue  # offsets of groups, and positions
            try:
                log = self._engine.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                continue  # deleted with its records
            for batch in log.batches(max(span.first, log.log_start), span.last + 1):
                if (batch.producer_id, batch.producer_epoch) == self._entry.key:
                    yield from _records(tp.topic, tp.partition, batch, 0)


def _records(topic: str, partition: int, batch: _core.Batch, offset: int) -> Iterator[_core.Record]:
    for found, timestamp, key, value, headers in batch.records():
        yield _core.Record(
            topic, partition, offset if offset < 0 else found, timestamp, 0, key, value, headers
        )


def describe(engine: Engine, token: str, entry: PreparedEntry) -> PreparedTransaction:
    """Return the public description of a prepared transaction."""
    due = entry.due_at_ms if entry.due_at_ms >= 0 else entry.deliver_at_ms
    checked = due >= 0 and entry.state is TransactionState.PREPARED  # a parked one is not
    return PreparedTransaction(
        token=token,
        state=entry.state.name,
        mode=entry.mode,
        age=max(0.0, (engine.clock_ms() - entry.prepared_at_ms) / 1000),
        checks=entry.checks,
        meta=decode_meta(entry.meta),
        resolver=entry.resolver,
        due_at=due if checked else None,
        records=PreparedRecords(engine, entry),
        _committed=partial(_committed, engine, token),
    )


def _committed(engine: Engine, token: str) -> bool:
    """Whether the log has decided by now to commit; False if it cannot be asked."""
    try:
        return engine.transactions.prepared.outcome(token) is Outcome.COMMIT
    except EoslogError:  # the log is closed, for example
        return False
