"""Records that only eoslog has as plain data, for `inspect`.

| topic | records | decoded by |
|---|---|---|
| `__transaction_state` | prepared transactions and their checks: types 100 and 101 | `prepared` |
| `__staged_transactions` | payload of staged transactions | `staged` |
| `__positions` | named positions | `position` |

Formats: `prepared_records.py` and `staged_records.py` in `coordinator/transactions/`, and
`coordinator/positions/records.py`.
"""

from __future__ import annotations

from typing import Any

from eoslog import _core
from eoslog.coordinator.positions.records import decode_name, decode_value
from eoslog.coordinator.transactions.prepared_records import (
    CHECK_VERSION,
    PreparedEntry,
    decode_check,
    decode_entry,
    prepared_key,
)
from eoslog.coordinator.transactions.staged_records import decode_key
from eoslog.engine.prepared_view import decode_meta
from eoslog.errors import CorruptRecord
from eoslog.storage.format.checkpoints import id_text

__all__ = ["position", "prepared", "staged"]


def prepared(key: bytes, value: bytes | None) -> dict[str, Any] | None:
    """Decode a record of a prepared transaction; None for other keys.

    Raises:
        CorruptRecord: if the value cannot be decoded.
    """
    known = prepared_key(key)
    if known is None:
        return None
    version, (producer_id, epoch) = known
    check = version == CHECK_VERSION
    found: dict[str, Any] = {
        "type": "prepared_transaction_check" if check else "prepared_transaction",
        "key_version": version,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }
    if value is None:
        return {**found, "tombstone": True}
    if check:
        due, checks, state = decode_check(value, (producer_id, epoch))
        return {**found, "state": state.wire_name, "checks": checks, "due_at": due}
    return found | _entry(decode_entry((producer_id, epoch), value))


def _entry(entry: PreparedEntry) -> dict[str, Any]:
    return {
        "mode": entry.mode,
        "state": entry.state.wire_name,
        "transactional_id": entry.transactional_id,
        "resolver": entry.resolver,
        "meta": _meta(entry.meta),
        "prepared_at": entry.prepared_at_ms,
        "due_at": entry.due_at_ms,
        "decided_at": entry.decided_at_ms,
        "deliver_at": entry.deliver_at_ms,
        "checks": entry.checks,
        "owner": list(entry.owner),
        "takeovers": entry.takeovers,
        "records": entry.records,
        "bytes": entry.size,
        "spans": [
            {
                "topic": tp.topic,
                "topic_id": id_text(span.topic_id),
                "partition": tp.partition,
                "first_offset": span.first,
                "last_offset": span.last,
            }
            for tp, span in entry.spans
        ],
        "offsets": [{**one._asdict(), "topic_id": id_text(one.topic_id)} for one in entry.offsets],
    }


def _meta(data: bytes | None) -> Any:
    """The application's value; bytes, and what is not JSON, in hex."""
    try:
        meta = decode_meta(data)
    except ValueError:
        meta = data
    return meta.hex() if isinstance(meta, bytes) else meta


def staged(key: bytes, value: bytes | None) -> dict[str, Any]:
    """Decode a record of `__staged_transactions`: batches of one partition.

    Raises:
        CorruptRecord: if it cannot be decoded.
    """
    producer_id, epoch, part = decode_key(key)
    found = {
        "type": "staged_records",
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "part": part,
    }
    if value is None:
        return {**found, "tombstone": True}
    batches = list(_core.iter_batches(value))
    size = sum(batch.size for batch in batches)
    if size != len(value):
        raise CorruptRecord(
            "staged records are not complete batches",
            expected=f"{len(value)} bytes",
            found=f"{size}",
        )
    return {
        **found,
        "bytes": len(value),
        "records": [
            {
                "timestamp": timestamp,
                "key": None if name is None else name.hex(),
                "value": None if data is None else data.hex(),
                "headers": [[title, None if more is None else more.hex()] for title, more in heads],
            }
            for batch in batches
            for _, timestamp, name, data, heads in batch.records()
        ],
    }


def position(key: bytes, value: bytes | None) -> dict[str, Any]:
    """Decode a record of `__positions`: a name and its position.

    Raises:
        CorruptRecord: if it cannot be decoded.
    """
    name = {"type": "position", "name": decode_name(key)}
    if value is None:
        return {**name, "tombstone": True}
    found = decode_value(value)
    return {
        **name,
        "kind": type(found).__name__,
        "value": found.hex() if isinstance(found, bytes) else found,
    }
