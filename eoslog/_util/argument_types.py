"""Explanation of errors that arguments of public calls caused, by signatures.

A call runs as it is. If it ends with an error that is not the package's own, its arguments are
compared with the annotations of its signature. A ConfigError names a value that does not fit.
If all fit, the error goes through as it is: a defect, or an error of the caller's function.
A TypeError for a keyword that the signature lacks names the parameter that is spelt like it.
"""

from __future__ import annotations

import functools
import inspect
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar

from eoslog._util.arguments import is_one_value, shown
from eoslog.descriptions import GroupMetadata
from eoslog.errors import ConfigError, EoslogError
from eoslog.model import OffsetAndMetadata, TopicPartition

__all__ = ["explained", "explained_calls", "fits"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_CAUSES = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, struct.error, BufferError,
    NotImplementedError, AssertionError, RecursionError,
)  # fmt: skip
_MAX_TEXT_BYTES = 32_767
_BITS = {"producer_epoch": 16, "data_epoch": 16, "partition": 32, "leader_epoch": 32,
         "member_epoch": 32, "generation_id": 32, "timeout_ms": 32, "session_timeout_ms": 32,
         "rebalance_timeout_ms": 32}  # fmt: skip
"""Of whole numbers by the parameter's name; all others have 64."""
_ALIASES = {
    "Partitions": "TopicPartition | Iterable[TopicPartition]",
    "Topics": "str | re.Pattern[str] | Iterable[str]",
    "Listener": "Callable",
    "Bound": "int | Mapping[TopicPartition, int] | None",
    "Group": "GroupMetadata | Consumer | str",
    "Offsets": "TopicPartition | Mapping[TopicPartition, int | OffsetAndMetadata]"
    " | Iterable[TopicPartition]",
    "OffsetMap": "Mapping[TopicPartition, OffsetAndMetadata]",
}
_BY_NAME = {"engine": "Engine | None", "host": "Engine", "producer": "Producer | None",
            "consumer": "Consumer"}  # fmt: skip
"""Of parameters that are annotated as Any, because the type is of a layer above."""
_PLAIN: dict[str, tuple[type, ...]] = {
    "None": (type(None),),
    "bool": (bool,),
    "bytes": (bytes,),
    "TopicPartition": (TopicPartition,),
    "OffsetAndMetadata": (OffsetAndMetadata,),
    "GroupMetadata": (GroupMetadata,),
    "EoslogError": (EoslogError,),
    "MutableSet[Any]": (set,),
}
_HAS = {
    "Consumer": ("group_metadata", "rewind"),
    "Producer": ("transactional_id", "begin_transaction"),
    "Engine": ("partitions", "close", "transactions"),
    "GroupHost": ("partitions", "close", "transactions"),
    "TransactionHost": ("partitions", "close", "transactions"),
    "HostLog": ("log_start", "batches"),
    "LogConfig": ("given", "group_max_size"),
    "StagedSegment": ("path",),
    "TransactionMarker": ("producer_id",),
    "SegmentRange": ("topic", "partition", "start", "end", "aborted"),
    "Source": ("pieces",),
    "os.PathLike[str]": ("__fspath__",),
    "re.Pattern[str]": ("fullmatch",),
    "MutableMapping[Any, Any]": ("__setitem__", "keys"),
    "Hashable": (),
}
"""What objects of the package's own classes have, and of others that are known by a protocol."""


def explained(call: F) -> F:
    """Wrap a function so that its errors name an argument of the wrong type."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def checked(*args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except EoslogError:
            raise
        except _CAUSES as error:
            try:
                given = signature.bind(*args, **keywords).arguments
            except TypeError:  # arguments that the signature lacks
                hint = _hint(signature, keywords)
                if not hint:
                    raise error from None
                raise TypeError(f"{error}; {hint}") from None
            wrong = _wrong(call.__name__, signature, given)
            if wrong is None:
                raise
            raise wrong from error

    return checked  # type: ignore[return-value]


def explained_calls(*but: str) -> Callable[[type[T]], type[T]]:
    """Wrap a class's public methods by `explained`, except those run per record."""

    def wrap(cls: type[T]) -> type[T]:
        for name in dir(cls):
            call = inspect.getattr_static(cls, name)
            public = name == "__init__" or not name.startswith("_")
            if public and name not in but and inspect.isfunction(call):
                setattr(cls, name, explained(call))
        return cls

    return wrap


def _hint(signature: inspect.Signature, keywords: Collection[str]) -> str:
    """Find a missing parameter whose name is similar to an unknown keyword."""
    missing = [name for name in signature.parameters if name not in {*keywords, "self"}]
    for key in keywords:
        near = get_close_matches(key.lower(), missing, n=1)
        if near and key not in signature.parameters:
            return f"did you mean {near[0]!r} instead of {key!r}?"
    return ""


def _wrong(name: str, signature: inspect.Signature, given: Mapping[str, Any]) -> ConfigError | None:
    for key, value in given.items():
        parameter = signature.parameters[key]
        if key == "self" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        expected = parameter.annotation
        if expected == "Any":
            expected = _BY_NAME.get(key, expected)
        if parameter.kind is parameter.VAR_POSITIONAL:
            expected = f"Iterable[{expected}]"
        if not isinstance(expected, str) or fits(expected, value, key):
            continue
        what = key if name == "__init__" else f"{name}: {key}"
        return ConfigError(f"{what}: expected {_description(expected, key)}, got {shown(value)}")
    return None


def _description(expected: str, name: str) -> str:
    parts = [_ALIASES.get(part, part) for part in _parts(expected, " | ")]
    bits = f" of {_BITS.get(name, 64)} bits" if "int" in parts else ""
    text = f", {_MAX_TEXT_BYTES} bytes of UTF-8 at most" if "str" in parts else ""
    return " | ".join(parts) + bits + text


def fits(expected: str, value: Any, name: str = "") -> bool:
    """Return whether a value fits an annotation; unknown names fit every value."""
    parts = _parts(_ALIASES.get(expected, expected), " | ")
    if len(parts) > 1:
        return any(fits(part, value, name) for part in parts)
    kind = parts[0]
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind]) and _fields_fit(value)
    if kind in _HAS:
        named = not isinstance(value, type) and all(hasattr(value, has) for has in _HAS[kind])
        if kind == "re.Pattern[str]":
            return named and isinstance(value.pattern, str)
        return named and (kind != "Hashable" or _hashes(value))
    if kind in ("str", "int", "float"):
        return {"str": _is_text, "int": _is_int, "float": _is_number}[kind](value, name)
    if kind.startswith("Callable"):
        return callable(value)
    container, _, inner = kind.removesuffix("]").partition("[")
    if container == "Mapping":
        key, of = _parts(inner, ", ")
        return isinstance(value, Mapping) and all(
            fits(key, k, "") and fits(of, v, name) for k, v in value.items()
        )
    if container in ("Iterable", "Sequence", "Collection", "list"):
        return _is_series(container, inner, value, name)
    return True


@functools.cache
def _parts(text: str, separator: str) -> tuple[str, ...]:
    """The parts of an annotation between separators that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and text.startswith(separator, place) and place >= start:
            parts.append(text[start:place])
            start = place + len(separator)
    return (*parts, text[start:])


def _is_text(value: Any, _name: str) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= _MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False


def _is_int(value: Any, name: str) -> bool:
    if isinstance(value, bool) or not hasattr(value, "__index__") or isinstance(value, type):
        return False
    half = 1 << (_BITS.get(name, 64) - 1)
    return -half <= int(value) < half


def _is_number(value: Any, _name: str) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def _is_series(container: str, inner: str, value: Any, name: str) -> bool:
    if is_one_value(value) or not isinstance(value, Iterable):
        return False
    if container != "Iterable" and not isinstance(value, Collection):
        return False
    if isinstance(value, Iterator):  # it is used up
        return True
    return all(fits(inner, item, name) for item in value)


def _fields_fit(value: Any) -> bool:
    if isinstance(value, TopicPartition):
        return _is_text(value.topic, "topic") and _is_int(value.partition, "partition")
    if not is_dataclass(value):
        return True
    return all(fits(str(f.type), getattr(value, f.name), f.name) for f in fields(value))


def _hashes(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
