"""Typed fields from configuration keys: parsers, and the base of the dataclasses.

Keys may be dotted (`linger.ms`) or snake_case (`linger_ms`), in a dict or as keywords; a later
one wins over an earlier one. Values may be strings, as in a properties file.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Self

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, EoslogError
from eoslog.shown_paths import get_logger

logger = get_logger("eoslog.config")

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Parser:
    """How the value of a key is checked; called with the key and the value."""

    expects: str
    """What values there are, as messages and the documentation say it."""
    parse: Callable[[str, Any], Any]

    def __call__(self, key: str, value: Any) -> Any:
        """Return the parsed value, or raise ConfigError."""
        return self.parse(key, value)


SERIALIZERS = (
    "a callable, or one of bytes, string, json, short, integer, long, float, double, uuid, msgpack"
)


def _wrong(key: str, expected: str, value: object) -> ConfigError:
    return ConfigError(f"{key}: expected {expected}, got {shown(value)}")


def integer(low: int = 0, high: int = INT_MAX) -> Parser:
    """An integer in low..high, or its decimal string."""
    expected = f"an integer in {low}..{high}"

    def parse(key: str, value: Any) -> int:
        if isinstance(value, bool):
            raise _wrong(key, expected, value)
        try:
            number = int(value, 10) if isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            raise _wrong(key, expected, value) from None
        if not low <= number <= high:
            raise _wrong(key, expected, value)
        return number

    return Parser(expected, parse)


def number(low: float, high: float) -> Parser:
    """A float in low..high, or its string."""
    expected = f"a number in {low}..{high}"

    def parse(key: str, value: Any) -> float:
        if isinstance(value, bool):
            raise _wrong(key, expected, value)
        try:
            result = float(value)
        except (TypeError, ValueError):
            raise _wrong(key, expected, value) from None
        if not low <= result <= high:  # also refuses nan
            raise _wrong(key, expected, value)
        return result

    return Parser(expected, parse)


def _boolean(key: str, value: Any) -> bool:
    """A bool, or "true" or "false"."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise _wrong(key, boolean.expects, value)


def _text(key: str, value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise _wrong(key, text.expects, value)
    return value


def _any_text(key: str, value: Any) -> str:
    """A string, empty or not."""
    if not isinstance(value, str):
        raise _wrong(key, any_text.expects, value)
    return value


def optional(parser: Parser) -> Parser:
    """None, or what `parser` takes."""
    return Parser(
        f"{parser.expects}, or None",
        lambda key, value: None if value is None else parser(key, value),
    )


def choice(*names: str, **aliases: str) -> Parser:
    """One of a few words, in any case; aliases map further words to them."""
    expected = "one of " + ", ".join(names)

    def parse(key: str, value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else value
        word = aliases.get(word, word) if isinstance(word, str) else word
        if word not in names:
            raise _wrong(key, expected, value)
        return str(word)

    return Parser(expected, parse)


def _path(key: str, value: Any) -> str:
    """A path, as str or os.PathLike."""
    fspath = getattr(value, "__fspath__", None)
    result = fspath() if fspath is not None else value
    return str(text(key, result))


boolean = Parser("true or false", _boolean)
text = Parser("a string that is not empty", _text)
any_text = Parser("a string", _any_text)
path = Parser("a path", _path)


def setting(default: Any, parser: Parser, doc: str, *, unit: str = "", kafka: str = "") -> Any:
    """A dataclass field that `Settings.of` parses.

    Args:
        default: its value where the key is not given.
        parser: what values it takes.
        doc: its meaning, for the documentation: plain sentences, with Markdown's code spans.
        unit: of its number: ms, min, bytes, records.
        kafka: how it differs from Kafka's key of this name.
    """
    metadata = {"parser": parser, "doc": doc, "unit": unit, "kafka": kafka}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of the configuration dataclasses.

    Make one with `of`; the constructor takes values that are parsed already.
    """

    KIND: ClassVar[str] = ""
    ALIASES: ClassVar[Mapping[str, str]] = {}
    DEPRECATED: ClassVar[Mapping[str, str]] = {}
    SHORT: ClassVar[frozenset[str]] = frozenset()
    """Aliases that must not contradict the key they stand for."""

    IGNORED: ClassVar[frozenset[str]] = frozenset()
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ()
    REPLACED: ClassVar[Mapping[str, tuple[tuple[object, ...], str]]] = {}
    """Keys of other clients: the values that ask for nothing, and what stands in for the others."""

    KEYWORDS: ClassVar[tuple[str, ...]] = ()
    """Arguments of the calls that take the keys as keywords: an unknown key may mean one."""

    given: frozenset[str] = frozenset()
    """The keys that the user set, dotted; everything else is a default."""

    @classmethod
    def parsers(cls) -> dict[str, Parser]:
        """Dotted key to parser, for every key of this class."""
        return {
            f.name.replace("_", "."): f.metadata["parser"]
            for f in fields(cls)
            if "parser" in f.metadata
        }

    @classmethod
    def of(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> Self:
        """Parse and check a configuration.

        Args:
            config: keys, dotted or snake_case.
            keywords: more keys; they win over `config`.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or two conflict.
        """
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"{cls.KIND} configuration: expected a dict, got {shown(config)}")
        parsers = cls.parsers()
        values: dict[str, Any] = {}
        short: dict[str, str] = {}
        ignored: list[str] = []
        for key, value in [*(config or {}).items(), *keywords.items()]:
            name = cls._name(key)
            if name in parsers:
                parsed = cls._parsed(parsers[name], name, value)
                if (name in short or key in cls.SHORT) and values.get(name, parsed) != parsed:
                    raise ConfigError(
                        f"{short.get(name, key)} and {name} set the same, to different values; "
                        "leave one out"
                    )
                values[name] = parsed
                if key in cls.SHORT:
                    short[name] = key
            elif name in cls.IGNORED or name.startswith(cls.IGNORED_PREFIXES or ("\0",)):
                ignored.append(name)
            elif name in cls.REPLACED:
                harmless, instead = cls.REPLACED[name]
                if (value.strip().lower() if isinstance(value, str) else value) not in harmless:
                    raise ConfigError(f"{key}={shown(value)} has no effect in eoslog: {instead}")
                ignored.append(name)
            else:
                raise ConfigError(cls._unknown(key, parsers))
        if ignored:
            logger.debug(
                "%s: ignoring keys without effect: %s", cls.KIND, ", ".join(sorted(ignored))
            )
        given = frozenset(values)
        kwargs = {name.replace(".", "_"): value for name, value in values.items()}
        return cls(given=given, **cls.resolve(kwargs, given))

    @classmethod
    def resolve(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Apply the rules between keys; `values` holds what was given, by field name."""
        return values

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a field."""
        return cls.__dataclass_fields__[name].default

    @classmethod
    def _name(cls, key: object) -> str:
        if not isinstance(key, str):
            raise ConfigError(f"{cls.KIND} configuration: key {shown(key)} is not a string")
        name = key.replace("_", ".")
        if name in cls.DEPRECATED:
            name, old = cls.DEPRECATED[name], name
            warnings.warn(f"{old} is called {name}", DeprecationWarning, stacklevel=5)
        return cls.ALIASES.get(name, name)

    @staticmethod
    def _parsed(parser: Parser, name: str, value: Any) -> Any:
        try:
            return parser(name, value)
        except EoslogError:
            raise
        except Exception as error:  # a value that cannot be compared, or turned into a number
            raise _wrong(name, f"a value of its type ({type(error).__name__})", value) from error

    @classmethod
    def _unknown(cls, key: str, parsers: Iterable[str]) -> str:
        known = {
            name.replace("_", "."): name
            for name in (*cls.IGNORED, *cls.DEPRECATED, *cls.ALIASES, *parsers, *cls.KEYWORDS)
        }
        near = [
            known[name]
            for name in get_close_matches(key.replace("_", ".").lower(), known, n=1, cutoff=0.6)
        ]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown {cls.KIND} key {shown(key)}{hint}"

    def as_strings(self) -> dict[str, str]:
        """What the user set, as Kafka writes it: dotted keys, string values."""
        result = {}
        for key in sorted(self.given):
            value = getattr(self, key.replace(".", "_"))
            result[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return result
