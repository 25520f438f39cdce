"""Which columns of an outbox table have what the relay needs.

    id           names the row; unique
    topic        the topic of the record
    value        the value: a text, bytes, or NULL for a tombstone
    key          the key: a text, bytes, a number or NULL
    headers      a JSON object of names and texts, or a JSON list of pairs
    partition    the partition number; NULL lets the partitioner choose
    transaction  the id of the transaction that inserted the row, in the order of their begins
    published    when the row was published; NULL before

The table must have the first three. With a column `published`, rows are marked instead of deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError

__all__ = ["FIELDS", "OutboxColumns", "names_of", "quoted"]

FIELDS = ("id", "topic", "value", "key", "headers", "partition")
_REQUIRED = ("id", "topic", "value")
_KNOWN = (*FIELDS, "transaction", "published")
_DEFAULTS = {**{field: field for field in FIELDS}, "transaction": "transaction_id"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")


class OutboxColumns(NamedTuple):
    """The columns of one table, by what they have; None for what it lacks."""

    id: str
    topic: str
    value: str
    key: str | None
    headers: str | None
    partition: str | None
    transaction: str | None
    published: str | None


def names_of(columns: Any) -> dict[str, str | None]:
    """Return the names that an argument `columns` gives.

    Raises:
        ConfigError: if it is not a mapping of known fields to names.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise ConfigError(f"columns: expected a mapping or None, got {shown(columns)}")
    for field, name in columns.items():
        if field not in _KNOWN:
            raise ConfigError(f"columns: expected the keys {', '.join(_KNOWN)}, got {shown(field)}")
        if name is None and field in _REQUIRED:
            raise ConfigError(f"columns: {field}: an outbox needs this column; name it")
        if name is not None and (not isinstance(name, str) or not _NAME.fullmatch(name)):
            raise ConfigError(f"columns: {field}: expected the name of a column, got {shown(name)}")
    return dict(columns)


def created(names: Mapping[str, str | None], *, transaction: bool) -> dict[str, str]:
    """The columns of a new table, by field."""
    wanted = {**_DEFAULTS, **names}
    if not transaction:
        wanted["transaction"] = names.get("transaction")
    return {field: name for field, name in wanted.items() if name is not None}


def found(table: str, names: Mapping[str, str | None], has: Mapping[str, str]) -> OutboxColumns:
    """Return the columns that a table with the columns `has` offers.

    Raises:
        ConfigError: if a column is missing that is required, or that `names` has; or if the mark
            has another meaning, too.
    """
    columns: dict[str, str | None] = {}
    for field in _KNOWN:
        name = names.get(field, _DEFAULTS.get(field))
        if name is not None and name not in has:
            if field in names or field in _REQUIRED:
                raise ConfigError(
                    f"table {table}: there is no column {name!r} for the {field}; it has "
                    f"{', '.join(has) or 'no columns'}; pass columns={{{field!r}: NAME}}"
                )
            name = None
        columns[field] = name
    published = columns["published"]
    if published is not None and list(columns.values()).count(published) > 1:
        raise ConfigError(
            f"columns: published: the column {published!r} has another meaning, too; pass a column "
            "of its own, or none, so that rows are deleted"
        )
    return OutboxColumns(**columns)  # type: ignore[arg-type]


def quoted(name: str) -> str:
    """Quote a checked name of a table, a schema and a table, or a column."""
    return ".".join(f'"{part}"' for part in name.split("."))


def check_table(table: Any) -> str:
    """Return the name of a table, with or without a schema.

    Raises:
        ConfigError: if it is not such a name.
    """
    parts = table.split(".") if isinstance(table, str) else []
    if not 1 <= len(parts) <= 2 or not all(_NAME.fullmatch(part) for part in parts):
        raise ConfigError(f"table: expected TABLE or SCHEMA.TABLE, got {shown(table)}")
    return str(table)
