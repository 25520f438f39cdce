"""Records as lines: what `consume` prints and what `produce` takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from eoslog.commands.context import cell, shown
from eoslog.commands.printing.json_text import NOT_FINITE, as_json, finite
from eoslog.errors import SerializationError
from eoslog.model import TopicPartition
from eoslog.serializers import FORMATS, deserializer, serializer, undecodable

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


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "short": int, "integer": int, "long": int, "float": float, "double": float,
    "json": json.loads, "msgpack": json.loads,
}  # fmt: skip
"""How a format reads text; the others take the text as it is."""


def format_options(command: Any) -> Any:
    """Add both options to a command."""
    for what in ("value", "key"):
        command = click.option(
            f"--{what}-format", type=click.Choice(FORMATS),
            help=f"Format of {what}s in the log. [default: UTF-8 text, or hexadecimal digits]",
        )(command)  # fmt: skip
    return command


class Formats:
    """Encodes and decodes the keys and values of records."""

    def __init__(self, key: str | None, value: str | None) -> None:
        """Look up the formats; None and "bytes" change nothing.

        Raises:
            ConfigError: if a package of a format is not installed.
        """
        self._names = {"key": key, "value": value}
        self._encode = {what: serializer(f"--{what}-format", n) for what, n in self._names.items()}
        self._decode = {
            what: deserializer(f"--{what}-format", n) for what, n in self._names.items()
        }

    def __bool__(self) -> bool:
        return any(self._decode.values())

    def has(self, what: str) -> bool:
        """Whether there is a format of keys, or of values."""
        return self._encode[what] is not None

    def from_object(self, what: str, value: Any) -> bytes | None:
        """Encode an object of JSON.

        Raises:
            SerializationError: if the value does not have the format.
        """
        encode = self._encode[what]
        assert encode is not None
        if self._names[what] in ("float", "double") and value in NOT_FINITE:
            value = float(value)
        return encode(value)

    def from_text(self, what: str, text: bytes) -> bytes | None:
        """Encode a text: a number, JSON, or the text itself, as the format needs.

        Raises:
            SerializationError: if the text does not have the format.
        """
        name = self._names[what]
        if name is None or not self.has(what):
            return text
        try:
            value = _FROM_TEXT.get(name, str)(text.decode())
        except RecursionError:
            raise SerializationError(f"{what}: nested too deep") from None
        except ValueError as error:
            raise SerializationError(f"{what}: expected the format {name}: {error}") from None
        return self.from_object(what, value)

    def decoded(self, record: Record, row: dict[str, Any], *, as_text: bool = False) -> None:
        """Replace the key and the value of a row by decoded ones.

        Args:
            record: the record.
            row: gets the key and the value.
            as_text: write numbers and objects as JSON text.

        Raises:
            SerializationError: if one does not have the format; the message names the record.
        """
        for what, decode in self._decode.items():
            data = getattr(record, what)
            if decode is None or data is None:
                continue
            try:
                value = decode(data)
            except Exception as error:
                place = TopicPartition(record.topic, record.partition)
                advice = f"leave out --{what}-format, or name the format of the record"
                raise undecodable(place, record.offset, error, advice) from None
            if as_text:
                value = finite(value) if isinstance(value, float) else value
                value = value if isinstance(value, str) else as_json(value)
            row.pop(f"{what}_hex", None)
            row[what] = value


def text_parser(separator: bytes | None, formats: Formats) -> Parse:
    """Reads lines of VALUE, or of KEY separator VALUE."""

    def parse(line: bytes) -> dict[str, Any]:
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is None:
            return {"value": formats.from_text("value", line)}
        key, found, value = line.partition(separator)
        if not found:
            raise BadLine(line, f"no {cell(separator)!r}")
        return {"key": formats.from_text("key", key), "value": formats.from_text("value", value)}

    return parse


def parse_json(line: bytes, formats: Formats) -> dict[str, Any]:
    """Return the arguments of `Producer.produce` that a JSON object represents.

    Raises:
        SerializationError: if the key or the value does not have its format.
        BadLine: if the text is not a JSON object, or a field is unknown or of another type.
    """
    try:
        given = json.loads(_text(line))
        if not isinstance(given, dict):
            raise TypeError("expected an object")
        return _record(given, formats)
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


def _record(given: dict[str, Any], formats: Formats) -> dict[str, Any]:
    if unknown := sorted(given.keys() - {*TAKEN, *IGNORED}):
        raise ValueError(
            f"unknown {', '.join(map(repr, unknown))}: known are {', '.join(TAKEN)}; "
            f"{', '.join(IGNORED)} are not used"
        )
    record = {what: _bytes(given, what, formats) for what in ("key", "value")}
    return {**record, "headers": _headers(given), "timestamp": _timestamp(given)}


def _bytes(given: dict[str, Any], name: str, formats: Formats) -> bytes | None:
    value, digits = given.get(name), given.get(f"{name}_hex")
    if digits is not None:
        if value is not None:
            raise ValueError(f"{name} and {name}_hex: give one of them")
        return _unhex(digits, f"{name}_hex")
    if value is None:
        return None
    if formats.has(name):
        return formats.from_object(name, value)
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


def row_of(
    record: Record, formats: Formats | None = None, *, as_text: bool = False
) -> dict[str, Any]:
    """Return a record as an object for `parse_json`; bytes outside UTF-8 are hex.

    Args:
        record: the record.
        formats: the formats of its key and value; None: text.
        as_text: write numbers and objects of formats as JSON text.
    """
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
    if formats:
        formats.decoded(record, row, as_text=as_text)
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


def line_of(record: Record, formats: Formats) -> str:
    """A record as people read it."""
    row: dict[str, Any] = {"key": record.key, "value": record.value}
    if formats:
        formats.decoded(record, row, as_text=True)
    key = "" if record.key is None else f"{shown(row['key'])}  "
    value = "(null)" if record.value is None else shown(row["value"])
    return f"{f'{record.topic}-{record.partition}':<16} {record.offset:>9}  {key}{value}"
