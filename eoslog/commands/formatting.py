"""Records as lines: what `consume` prints and what `produce` takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eoslog.commands.context import cell, shown

if TYPE_CHECKING:
    from eoslog import Record

TAKEN = ("key", "key_hex", "value", "value_hex", "headers", "timestamp")
"""The fields of an object that `produce --jsonl` writes."""
IGNORED = ("topic", "partition", "offset")
"""Those that `consume` prints beside them: where a record was, not where it goes."""
CSV_COLUMNS = (
    "topic", "partition", "offset", "timestamp", "key", "key_hex", "value", "value_hex", "headers",
)  # fmt: skip
_HEADERS = "headers: expected [[name, value], ...]"
_EXCERPT = 80

Parse = Callable[[bytes], dict[str, Any]]


class BadLine(ValueError):
    """A line that is not a record, with the reason and the line."""

    def __init__(self, line: bytes, why: object) -> None:
        """Show no more of the line than fits."""
        super().__init__(f"{why}, in {cell(line)[:_EXCERPT]!r}")


def text_parser(separator: bytes | None) -> Parse:
    """Reads lines of VALUE, or of KEY separator VALUE."""

    def parse(line: bytes) -> dict[str, Any]:
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is None:
            return {"value": line}
        key, found, value = line.partition(separator)
        if not found:
            raise BadLine(line, f"no {cell(separator)!r}")
        return {"key": key, "value": value}

    return parse


def parse_json(line: bytes) -> dict[str, Any]:
    """Return the arguments of `Producer.produce` that a JSON object represents.

    Raises:
        BadLine: if the text is not a JSON object, or a field is unknown or of another type.
    """
    try:
        given = json.loads(_text(line))
        if not isinstance(given, dict):
            raise TypeError("expected an object")
        return _record(given)
    except json.JSONDecodeError as error:  # which counts lines too, from this one on
        raise BadLine(line, f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise BadLine(line, "nested too deep") from None
    except (ValueError, TypeError) as error:
        raise BadLine(line, error) from None


def _text(line: bytes) -> str:
    try:
        return line.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8: {error.reason} at byte {error.start}") from None


def _record(given: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(given.keys() - {*TAKEN, *IGNORED}):
        raise ValueError(
            f"unknown {', '.join(map(repr, unknown))}: known are {', '.join(TAKEN)}; "
            f"{', '.join(IGNORED)} are not used"
        )
    record = {"key": _bytes(given, "key"), "value": _bytes(given, "value")}
    return {**record, "headers": _headers(given), "timestamp": _timestamp(given)}


def _bytes(given: dict[str, Any], name: str) -> bytes | None:
    value, digits = given.get(name), given.get(f"{name}_hex")
    if digits is not None:
        if value is not None:
            raise ValueError(f"{name} and {name}_hex: give one of them")
        return _unhex(digits, f"{name}_hex")
    if value is None:
        return None
    return _encoded(value if isinstance(value, str) else json.dumps(value), name)


def _unhex(digits: Any, what: str) -> bytes:
    if isinstance(digits, str):
        try:
            return bytes.fromhex(digits)
        except ValueError:
            pass
    raise ValueError(f"{what}: expected hexadecimal digits, got {_short(digits)}")


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what}: half a surrogate pair has no UTF-8") from None


def _headers(given: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    headers = given.get("headers")
    if headers is None:
        return []
    if not isinstance(headers, list):
        raise TypeError(f"{_HEADERS}, got {_short(headers)}")
    return [_header(pair) for pair in headers]


def _header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError(f"{_HEADERS}, got {_short(pair)}")
    name, value = pair
    _encoded(name, "headers")
    if value is None:
        return name, None
    if isinstance(value, str):
        return name, _encoded(value, f"header {name!r}")
    if isinstance(value, dict) and value.keys() == {"hex"}:
        return name, _unhex(value["hex"], f"header {name!r}")
    raise TypeError(
        f'header {name!r}: expected text, null or {{"hex": "ff01"}}, got {_short(value)}'
    )


def _timestamp(given: dict[str, Any]) -> int | None:
    value = given.get("timestamp")
    # Kafka's -1 is "none".
    if value is None or (value == -1 and not isinstance(value, bool)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"timestamp: expected ms since 1970, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as an object for `parse_json`; bytes outside UTF-8 are hex."""
    row: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text = None if data is None else _readable(data)
        if isinstance(text, dict):
            row[f"{name}_hex"] = text["hex"]
        else:
            row[name] = text
    if record.headers:
        row["headers"] = [
            [name, None if value is None else _readable(value)] for name, value in record.headers
        ]
    return row


def _readable(data: Any) -> str | dict[str, str]:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return {"hex": bytes(data).hex()}


def line_of(record: Record) -> str:
    """A record as people read it."""
    key = "" if record.key is None else f"{shown(record.key)}  "
    value = "(null)" if record.value is None else shown(record.value)
    return f"{f'{record.topic}-{record.partition}':<16} {record.offset:>9}  {key}{value}"
