"""Absurd values, and the calls of the package that they are given to.

The tables are made from `eoslog.__all__` and from signatures: a call that is added is tried too.
"""

from __future__ import annotations

import mmap
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from eoslog import GroupMetadata, OffsetAndMetadata, TopicPartition

__all__ = ["RECORDS", "values"]

RECORDS = [b"zero", b"one", b"two"]
_TP = TopicPartition("t", 0)


class Odd:
    """An object that compares with nothing and has no size."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")


class Text(str):
    """A string of a class of its own."""


def values() -> dict[str, Any]:
    """A new one of each: calls may keep, change and use up what they are given."""
    huge = mmap.mmap(-1, 2**31 + 4096)  # pages that are never touched take no memory
    return {
        "None": None,
        "object": object(),
        "class": object,
        "function": print,
        "Odd": Odd(),
        "ellipsis": ...,
        "true": True,
        "empty list": [],
        "list of None": [None],
        "list of lists": [[]],
        "nested": [[["t"]]],
        "empty dict": {},
        "dict of None": {None: None},
        "tuple": ("t", 0),
        "tuple of three": ("t", 0, 0),
        "set": {1},
        "generator": (n for n in range(3)),
        "empty bytes": b"",
        "bytes": b"t",
        "bytearray": bytearray(b"t"),
        "not UTF-8": b"\xff\xfe",
        "huge buffer": huge,
        "empty": "",
        "space": " ",
        "newline": "a\nb",
        "NUL": "a\0b",
        "surrogate": "\ud800",
        "surrogate escape": "caf\udce9",
        "parent": "../x",
        "slash": "a/b",
        "absolute": "/proc/nowhere/at/all",
        "dots": "..",
        "subclass": Text("x" * 300),
        "250 chars": "x" * 250,
        "32,767 bytes": "x" * 32_767,
        "32,768 bytes": "x" * 32_768,
        "wide": "\u00fc" * 16_384,
        "1 MiB": "x" * 2**20,
        "digits": "5",
        "bad pattern": "^(",
        "zero": 0,
        "minus one": -1,
        "minus two": -2,
        "2**15": 2**15,
        "2**31": 2**31,
        "-2**31 - 1": -(2**31) - 1,
        "2**63": 2**63,
        "2**63 - 1": 2**63 - 1,
        "-2**63": -(2**63),
        "2**64": 2**64,
        "10**400": 10**400,
        "-10**400": -(10**400),
        "10**5000": 10**5000,
        "half": 0.5,
        "nan": float("nan"),
        "infinity": float("inf"),
        "minus infinity": float("-inf"),
        "complex": 1j,
        "Decimal": Decimal(1),
        "Decimal NaN": Decimal("NaN"),
        "Decimal sNaN": Decimal("sNaN"),
        "Fraction": Fraction(1, 3),
        "path": Path("x"),
        "pattern": re.compile("t"),
        "bytes pattern": re.compile(b"t"),
        "partition": _TP,
        "same partition twice": [_TP, _TP],
        "missing partition": TopicPartition("t", 99),
        "missing topic": TopicPartition("none", 0),
        "negative partition": TopicPartition("t", -1),
        "huge partition": TopicPartition("t", 2**40),
        "10**5000 partition": TopicPartition("t", 10**5000),
        "partition at text": [TopicPartition("t", 0, "text")],
        "partition at nan": [TopicPartition("t", 0, float("nan"))],
        "partition at true": [TopicPartition("t", 0, True)],
        "partition at 2**63": [TopicPartition("t", 0, 2**63)],
        "partition of None": [TopicPartition(None, None)],  # type: ignore[arg-type]
        "partition of surrogate": [TopicPartition("\ud800", 0, 0)],
        "partition of NUL": [TopicPartition("a\0b", 0, 0)],
        "partition of parent": [TopicPartition("../x", 0, 0)],
        "partition of bytes": [TopicPartition(b"t", 0, 0)],  # type: ignore[arg-type]
        "partition by text": [TopicPartition("t", "0", 0)],  # type: ignore[arg-type]
        "partition by float": [TopicPartition("t", 0.5, 0)],  # type: ignore[arg-type]
        "partition by true": [TopicPartition("t", True, 0)],
        "partition of a list": TopicPartition([], {}),  # type: ignore[arg-type]
        "offsets by text": {_TP: "text"},
        "offsets by None": {_TP: None},
        "offsets by true": {_TP: True},
        "offsets by float": {_TP: 1.5},
        "offsets by nan": {_TP: float("nan")},
        "offsets by 2**63": {_TP: 2**63},
        "offsets by Odd": {_TP: Odd()},
        "offsets of nowhere": {TopicPartition("none", 0): 0},
        "offsets of missing": {TopicPartition("t", 7): 0},
        "offsets of huge": {TopicPartition("t", 2**40): 0},
        "offsets of surrogate": {TopicPartition("\ud800", 0): 0},
        "offsets of long": {TopicPartition("x" * 40_000, 0): 0},
        "offsets of None": {TopicPartition(None, 0): 0},  # type: ignore[arg-type]
        "offsets of text": {TopicPartition("t", "0"): 0},  # type: ignore[arg-type]
        "epoch as text": {_TP: OffsetAndMetadata(1, "text")},  # type: ignore[arg-type]
        "epoch of 2**31": {_TP: OffsetAndMetadata(1, 2**31)},
        "epoch of true": {_TP: OffsetAndMetadata(1, True)},
        "metadata of bytes": {_TP: OffsetAndMetadata(1, -1, b"m")},  # type: ignore[arg-type]
        "metadata of None": {_TP: OffsetAndMetadata(1, -1, None)},  # type: ignore[arg-type]
        "metadata surrogate": {_TP: OffsetAndMetadata(1, -1, "\ud800")},
        "metadata of 40,000": {_TP: OffsetAndMetadata(1, -1, "x" * 40_000)},
        "topic id as text": {_TP: OffsetAndMetadata(1, topic_id="x")},  # type: ignore[arg-type]
        "topic id of 3 bytes": {_TP: OffsetAndMetadata(1, topic_id=b"abc")},
        "offset as text": {_TP: OffsetAndMetadata("1")},  # type: ignore[arg-type]
        "offset and metadata": OffsetAndMetadata(1, "text"),  # type: ignore[arg-type]
        "group of None": GroupMetadata(None),  # type: ignore[arg-type]
        "group of surrogate": GroupMetadata("\ud800"),
        "group of 32,768": GroupMetadata("x" * 32_768),
        "member of surrogate": GroupMetadata("g", "\ud800"),
        "member of bytes": GroupMetadata("g", b"m", 1),  # type: ignore[arg-type]
        "generation as text": GroupMetadata("g", "m", "1"),  # type: ignore[arg-type]
        "generation of 2**40": GroupMetadata("g", "m", 2**40),
        "instance of 5": GroupMetadata("g", "m", 1, 5),  # type: ignore[arg-type]
        "header without value": [("h",)],
        "header of three": [("h", b"v", 1)],
        "header surrogate": [("\ud800", b"v")],
        "header of None": [(None, b"v")],
        "header of bytes": [(b"h", b"v")],
        "header of NUL": [("\0", b"v")],
        "header value object": [("h", object())],
        "header value number": {"h": 5},
        "header value surrogate": {"h": "\ud800"},
        "header huge": [("h", huge)],
        "headers of text": ["ab", "cd"],
        "headers of numbers": [5],
        "header name number": {5: b"v"},
        "many headers": [("h", b"")] * 100_000,
        "unknown key": {"no.such.key": 1},
        "key of number": {1: 1},
        "error": ValueError("x"),
        **_arrow(),
    }


def _arrow() -> dict[str, Any]:
    import pyarrow as pa

    pairs = pa.array([[("h", b"v")]], pa.map_(pa.string(), pa.binary()))
    v = pa.array([b"v"])
    struct = pa.struct([("key", pa.string()), ("value", pa.binary())])
    wrong = pa.struct([("name", pa.string()), ("value", pa.binary())])
    tables = {
        "no column": pa.table({}),
        "no value": pa.table({"key": v}),
        "other column": pa.table({"values": v}),
        "column twice": pa.Table.from_arrays([v, v], ["value", "value"]),
        "headers as a map": pa.table({"value": v, "headers": pairs}),
        "headers as text": pa.table({"value": v, "headers": ["x"]}),
        "headers as numbers": pa.table({"value": v, "headers": [[1]]}),
        "headers misnamed": pa.table(
            {"value": v, "headers": pa.array([[{"name": "h", "value": b"v"}]], pa.list_(wrong))}
        ),
        "header of null": pa.table({"value": v, "headers": pa.array([[None]], pa.list_(struct))}),
        "header key of null": pa.table(
            {"value": v, "headers": pa.array([[{"key": None, "value": b"v"}]], pa.list_(struct))}
        ),
        "header key of number": pa.table({"value": v, "headers": [[{"key": 5, "value": b"v"}]]}),
        "headers of a struct": pa.table({"value": v, "headers": [{"key": "h", "value": b"v"}]}),
        "headers as dictionary": pa.table(
            {"value": v, "headers": pa.array(["h"]).dictionary_encode()}
        ),
        "headers of nulls": pa.table({"value": v, "headers": pa.nulls(1)}),
        "nested value": pa.table({"value": [[b"v"]]}),
        "struct value": pa.table({"value": [{"a": 1}]}),
        "value of numbers": pa.table({"value": [1]}),
        "value of nulls": pa.table({"value": pa.nulls(1)}),
        "dictionary of numbers": pa.table({"value": pa.array([1]).dictionary_encode()}),
        "map value": pa.table({"value": pairs}),
        "key of floats": pa.table({"value": v, "key": [0.5]}),
        "partition as text": pa.table({"value": v, "partition": ["0"]}),
        "partition 2**40": pa.table({"value": v, "partition": [2**40]}),
        "partition -1": pa.table({"value": v, "partition": [-1]}),
        "partition 99": pa.table({"value": v, "partition": [99]}),
        "partition as dictionary": pa.table(
            {"value": v, "partition": pa.array([0]).dictionary_encode()}
        ),
        "timestamp as text": pa.table({"value": v, "timestamp": ["now"]}),
        "timestamp 2**63": pa.table({"value": v, "timestamp": pa.array([2**63], pa.uint64())}),
        "timestamp in s": pa.table({"value": v, "timestamp": pa.array([2**62], pa.timestamp("s"))}),
        "timestamp -5": pa.table({"value": v, "timestamp": [-5]}),
        "timestamp as date": pa.table({"value": v, "timestamp": pa.array([2**30], pa.date32())}),
        "timestamp as duration": pa.table(
            {"value": v, "timestamp": pa.array([5], pa.duration("s"))}
        ),
        "array": v,
        "chunked": pa.chunked_array([v, v]),
        "schema": pa.schema([("value", pa.binary())]),
        "extension": pa.table({"value": pa.array([b"x" * 16]).cast(pa.binary(16))}),
        "decimal": pa.table({"value": [Decimal(1)]}),
        "run end": pa.table(
            {"value": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), v)}
        ),
        "union": pa.table({"value": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [v])}),
        "list view": pa.table({"value": pa.array([[b"v"]], pa.list_view(pa.binary()))}),
    }
    return {f"arrow {name}": value for name, value in tables.items()}
