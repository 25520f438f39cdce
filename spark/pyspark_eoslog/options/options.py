"""Options of `format("eoslog")`, checked before anything is opened.

Names and meanings are those of Spark's Kafka source and sink. This module is pure data: it does
not touch a directory or import pyspark.
"""

from __future__ import annotations

import difflib
import enum
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eoslog.errors import ConfigError
from eoslog.errors import shown_value as shown
from eoslog.model import OWN_GROUPS
from pyspark_eoslog.options import kafka_settings
from pyspark_eoslog.options.values import demand_text, texts_of

EARLIEST = -2
LATEST = -1
START = "@start"
"""Key for the start of a stream in the end of its first micro-batch; not a valid topic name."""
TOPIC_IDS = "@ids"
"""Key for the ids of the topics in a stream's offsets; not a valid topic name."""

PartitionKey = tuple[str, int]


class Use(enum.Enum):
    """What Spark does with the options; the value names it in messages."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a stream read"
    BATCH_WRITE = "a batch write"
    STREAM_WRITE = "a stream write"


_READS = (Use.BATCH_READ, Use.STREAM_READ)
_WRITES = (Use.BATCH_WRITE, Use.STREAM_WRITE)
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
# Title in the reference, the uses in which the options have an effect, and their names.
_GROUPS: tuple[tuple[str, tuple[Use, ...], frozenset[str]], ...] = (
    (
        "Reading and writing",
        (*_READS, *_WRITES),
        frozenset({"path", "checkpointLocation", "location"}),
    ),
    (
        "Reading",
        _READS,
        frozenset({
            *_SUBSCRIPTIONS, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
            "startingOffsetsByTimestampStrategy", "isolationLevel", "kafka.isolation.level",
            "includeHeaders", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
            "columns", "valueFormat", "keyFormat", "batchRows", "layout", "maxBytesPerPartition",
            "minBytesPerPartition",
        }),
    ),
    (
        "Reading a batch",
        (Use.BATCH_READ,),
        frozenset({"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"}),
    ),
    (
        "Reading a stream",
        (Use.STREAM_READ,),
        frozenset({
            "maxOffsetsPerTrigger", "maxRecordsPerTrigger", "maxBytesPerTrigger",
            "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroup",
        }),
    ),
    (
        "Writing",
        _WRITES,
        frozenset({
            "topic", "compression", "inlineLimitBytes", "segmentBytes", "stagingRetentionHours",
        }),
    ),
    (
        "Writing a batch",
        (Use.BATCH_WRITE,),
        frozenset({"txnAppId", "txnVersion", "txnReplay"}),
    ),
)  # fmt: skip
_USES = {name.lower(): uses for _, uses, names in _GROUPS for name in names}
# Options for a network or for Spark itself, without meaning for a directory. They are accepted so
# that a job can move unchanged.
_IGNORED = {
    "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "queryName",
    # Options that the catalog adds to those of a table.
    "provider", "serialization.format", "owner", "external", "is_managed_location", "comment",
    "collation", "table_type",
}  # fmt: skip
_IGNORED_PREFIX = "option."
_KAFKA_PREFIX = "kafka."
_KNOWN = {
    name.lower(): name
    for names in (*(names for _, _, names in _GROUPS), _IGNORED)
    for name in names
}
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_GREATEST = (1 << 63) - 1
_MOST_ROWS = (1 << 31) - 1
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

# A task costs 30 to 60 ms before its first row, so smaller ranges share a task.
MIN_BYTES_PER_PARTITION = 4 << 20


@dataclass(frozen=True)
class Bound:
    """The start or end of a read, in the form that the user gave.

    Exactly one of the forms is set, in Kafka's order of precedence: one time for all, a time per
    partition, an offset per partition, or a word (`EARLIEST`, `LATEST`).
    """

    option: str
    word: int | None = None
    timestamp_ms: int | None = None
    timestamps_ms: dict[PartitionKey, int] | None = None
    offsets: dict[PartitionKey, int] | None = None

    def time_of(self, key: PartitionKey) -> int | None:
        """Return the time of a partition; None if the bound is not a time."""
        return (self.timestamps_ms or {}).get(key, self.timestamp_ms)


@dataclass(frozen=True)
class Options:
    """The parsed and checked options, in plain values that travel to executors.

    Attributes:
        subscription: `("subscribe" | "subscribePattern" | "assign", value)`, or None in a pure
            write.
        starting: First offset to read; None for the default of batch or stream.
        ending: Offset after the last one to read; None for the default.
        columns: Columns to read, in this order; None for all.
        layout: `eoslog`, or `kafka` for the data directory of a Kafka broker.
        max_bytes_per_partition: Most bytes of batches that a task reads, unless one batch is
            larger.
        min_bytes_per_partition: Size up to which ranges are packed into one task; 0 for one task
            per range.
        max_offsets_per_trigger, max_records_per_trigger, max_bytes_per_trigger: Bounds of a
            micro-batch; the smallest counts. Offsets count markers and aborted records too.
        max_trigger_delay_s: Seconds after which a micro-batch runs with less than
            `min_offsets_per_trigger`.
        txn_replay: Versions that may be repeated and are then skipped: `any` earlier one, or only
            the `last`.
    """

    path: str
    subscription: tuple[str, str] | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    timestamp_strategy: str = "error"
    isolation: str = "read_committed"
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int | None = None
    min_bytes_per_partition: int = MIN_BYTES_PER_PARTITION
    layout: str = "eoslog"
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] | None = None
    key_format: str = "binary"
    value_format: str = "binary"
    batch_rows: int = 32768
    max_records_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    min_offsets_per_trigger: int | None = None
    commit_group: str | None = None
    topic: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_replay: str = "any"
    checkpoint_location: str | None = None
    compression: str = "none"
    inline_limit_bytes: int = 1 << 20
    segment_bytes: int = 16 << 20
    staging_retention_hours: float = 24.0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Check names, forms and combinations.

        `check_use` checks whether the options have an effect, once their use is known.

        Args:
            options: Options from Spark; names in any case.

        Raises:
            ConfigError: if an option is invalid; the error names the option and its value.
        """
        values = _Values(options)
        # A table of the catalog gives its path as its location.
        path = values.text("path") or values.text("location")
        if not path:
            raise ConfigError(
                "option 'path' is missing; set it to the log's directory: .option('path', DIR). "
                "Spark does not pass the options of a table to a write. To read, create the table "
                "with CREATE TABLE name USING eoslog OPTIONS (path '...', subscribe '...') and "
                "no list of columns. To write, use INSERT INTO name WITH (path='...', topic='...') "
                "(key, value) ..., a temporary view, or writeStream.option('path', ...)"
                ".toTable(name). Instead of CREATE TABLE ... AS SELECT, use "
                "write.options(...).saveAsTable(name)"
            )
        version = values.integer("txnVersion", minimum=0)
        app_id = values.text("txnAppId")
        if app_id is not None and not app_id:
            raise ConfigError("option 'txnAppId' is empty")
        starting, ending = _bound(values, "starting"), _bound(values, "ending")
        _check_order(starting, ending)
        include_headers = values.boolean("includeHeaders", False)
        columns = _columns(values)
        if include_headers and columns is not None and "headers" not in columns:
            raise ConfigError(
                "option 'includeHeaders' = 'true' has no effect with 'columns' = "
                f"{shown(values.text('columns'))}; add headers to 'columns', or remove "
                "'includeHeaders'"
            )
        return cls(
            path=_local_path(path),
            subscription=_subscription(values),
            starting=starting,
            ending=ending,
            timestamp_strategy=values.choice(
                "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
            ),
            isolation=_isolation(values),
            include_headers=include_headers,
            min_partitions=values.integer("minPartitions", minimum=1),
            max_records_per_partition=values.integer("maxRecordsPerPartition", minimum=1),
            max_bytes_per_partition=values.size("maxBytesPerPartition", minimum=1),
            min_bytes_per_partition=_or(
                values.size("minBytesPerPartition", minimum=0), MIN_BYTES_PER_PARTITION
            ),
            layout=values.choice("layout", ("eoslog", "kafka"), "eoslog"),
            fail_on_data_loss=values.boolean("failOnDataLoss", True),
            columns=columns,
            key_format=values.choice("keyFormat", ("binary", "string"), "binary"),
            value_format=values.choice("valueFormat", ("binary", "string"), "binary"),
            batch_rows=_or(values.integer("batchRows", minimum=1, maximum=_MOST_ROWS), 32768),
            max_records_per_trigger=values.integer("maxRecordsPerTrigger", minimum=1),
            max_offsets_per_trigger=values.integer("maxOffsetsPerTrigger", minimum=1),
            max_bytes_per_trigger=values.size("maxBytesPerTrigger", minimum=1),
            max_trigger_delay_s=values.seconds("maxTriggerDelay", 900.0),
            min_offsets_per_trigger=values.integer("minOffsetsPerTrigger", minimum=1),
            commit_group=values.group("commitGroup"),
            topic=values.text("topic"),
            txn_app_id=app_id,
            txn_version=version,
            txn_replay=values.choice("txnReplay", ("any", "last"), "any"),
            checkpoint_location=values.text("checkpointLocation"),
            compression=values.choice("compression", _COMPRESSIONS, "none"),
            inline_limit_bytes=_or(values.integer("inlineLimitBytes", minimum=0), 1 << 20),
            segment_bytes=_or(values.size("segmentBytes", minimum=1), 16 << 20),
            staging_retention_hours=_or(values.integer("stagingRetentionHours", minimum=1), 24),
        )

    @property
    def is_read(self) -> bool:
        """Whether the options name topics to read."""
        return self.subscription is not None

    def require_read(self) -> None:
        """Check that the options name topics to read.

        Raises:
            ConfigError: if they do not.
        """
        if self.subscription is None:
            raise ConfigError(
                "nothing to read; set the option 'subscribe', 'subscribePattern' or 'assign'"
            )


def names_directory(options: Mapping[str, str]) -> bool:
    """Return whether the options name a directory; those of a catalog table do not."""
    return any(name in ("path", "location") for name in texts_of(options))


def without_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the properties of a table that is being created.

    Spark passes `TBLPROPERTIES` together with the options, and the options under `option.NAME` too.
    A property with the name of an option counts as the option.
    """
    # Only the creation of a table passes its provider.
    given = {name.lower() for name in options if isinstance(name, str)}
    if "provider" not in given:
        return dict(options)
    return {
        name: value
        for name, value in options.items()
        if _is_known(name.lower()) or f"{_IGNORED_PREFIX}{name.lower()}" in given
    }


def of_table_read(table: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table, overridden by those of a read of it.

    The two names of the isolation level override each other.
    """
    levels = {"isolationlevel", "kafka.isolation.level"}
    overridden = levels if levels & {name.lower() for name in given} else set()
    kept = {name: value for name, value in table.items() if name.lower() not in overridden}
    return {**kept, **given}


def check_use(options: Mapping[str, str], use: Use) -> None:
    """Check that each option has an effect in a use.

    A temporary view is read and written with one set of options. So the options of the other
    direction are accepted if `subscribe` (or its like) is in those of a write, or `topic` is in
    those of a read. The settings `kafka.*` are accepted everywhere.

    Args:
        options: Options that the user gave; those that a table stores serve for all its uses.
        use: What Spark does with them.

    Raises:
        ConfigError: if an options have no effect; the error names them and their values.
    """
    raw = texts_of(options)
    other, marks = (_WRITES, ("topic",)) if use in _READS else (_READS, _SUBSCRIPTIONS)
    two_way = any(mark.lower() in raw for mark in marks)
    without = []
    for name in sorted(raw):
        uses = _USES.get(name, (use,))
        accepted = name.startswith(_KAFKA_PREFIX) or (two_way and uses[0] in other)
        if use not in uses and not accepted:
            without.append(name)
    if without:
        named = ", ".join(f"'{_KNOWN[name]}' = {shown(raw[name])}" for name in without)
        several = len(without) > 1
        reason = instead = ""
        if use is Use.STREAM_WRITE and any(name.startswith("txn") for name in without):
            reason = ", where the query is the application and the batch id is the version"
            instead = (
                "; to name an application, use foreachBatch(write_once(PATH, TOPIC, app_id=NAME))"
            )
        raise ConfigError(
            f"option{'s' if several else ''} {named} {'have' if several else 'has'} no effect in "
            f"{use.value}{reason}; remove {'them' if several else 'it'}{instead}"
        )
    if use is Use.BATCH_WRITE:
        _check_txn(raw)


def _check_txn(raw: Mapping[str, str]) -> None:
    app_id, version = raw.get("txnappid"), raw.get("txnversion")
    if (version is None) != (app_id is None):
        raise ConfigError(
            f"options 'txnAppId' ({shown(app_id)}) and 'txnVersion' ({shown(version)}) "
            "belong together; set both or neither"
        )
    if "txnreplay" in raw and app_id is None:
        raise ConfigError(
            f"option 'txnReplay' = {shown(raw['txnreplay'])} has no effect without 'txnAppId' and "
            "'txnVersion'; set both, or remove it"
        )


class _Values:
    """The raw options under lower-case names, with typed access.

    Errors name the option and its value.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.raw = texts_of(options)
        for name in self.raw:
            reason = kafka_settings.rejection(name)
            if reason is not None:
                raise ConfigError(
                    f"option '{name}' = {shown(self.raw[name])} is not supported: {reason}"
                )
            if not _is_known(name):
                near = difflib.get_close_matches(name, _KNOWN, n=1)
                hint = f"; did you mean '{_KNOWN[near[0]]}'?" if near else ""
                raise ConfigError(f"unknown option '{name}' = {shown(self.raw[name])}{hint}")
        kafka_settings.warn_ignored(frozenset(self.raw))

    def text(self, name: str) -> str | None:
        return self.raw.get(name.lower())

    def integer(self, name: str, *, minimum: int, maximum: int = _GREATEST) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(
                f"option '{name}' must be a whole number, got {shown(text)}"
            ) from None
        if value < minimum:
            raise ConfigError(f"option '{name}' must be at least {minimum}, got {shown(value)}")
        if value > maximum:
            raise ConfigError(f"option '{name}' must be at most {maximum}, got {shown(value)}")
        return value

    def size(self, name: str, *, minimum: int) -> int | None:
        """Parse a size in bytes: `1048576`, `64k`, `64m`, `1g`."""
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"(\d{1,19})\s*([kmg]?)b?", text.strip().lower())
        if match is None:
            raise ConfigError(
                f"option '{name}' must be bytes like 1048576 or 64m, got {shown(text)}"
            )
        value = int(match[1]) * _UNITS[match[2]]
        if value < minimum:
            raise ConfigError(f"option '{name}' must be at least {minimum}, got {shown(text)}")
        return value

    def seconds(self, name: str, default: float) -> float:
        """Parse a time: `90s`, `15m`, `500ms`."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,19})\s*(ms|s|m|min|h|d)", text.strip().lower())
        if match is None:
            raise ConfigError(f"option '{name}' must be a time like 90s or 15m, got {shown(text)}")
        return int(match[1]) * _TIMES[match[2]]

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise ConfigError(f"option '{name}' must be true or false, got {shown(text)}")
        return text.strip().lower() == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in allowed:
            raise ConfigError(
                f"option '{name}' must be one of {', '.join(allowed)}, got {shown(text)}"
            )
        return text.strip().lower()

    def group(self, name: str) -> str | None:
        text = self.text(name)
        if text == "":
            raise ConfigError(f"option '{name}' is empty; name a group, or leave the option out")
        if text is not None and text.startswith(OWN_GROUPS):
            raise ConfigError(
                f"option '{name}' = {shown(text)}: groups that begin with {OWN_GROUPS} store write "
                "versions; choose another name"
            )
        return text

    def per_partition(self, name: str, *, words: bool) -> dict[PartitionKey, int]:
        """Parse `{"topic": {"0": 23, "1": -2}}`; negative offsets only if `words` is set."""
        text = self.text(name) or ""
        form = f'option \'{name}\' must be JSON like {{"topic": {{"0": 23}}}}, got {shown(text)}'
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(form) from None
        if not isinstance(parsed, dict) or not all(
            isinstance(inner, dict) for inner in parsed.values()
        ):
            raise ConfigError(form)
        result: dict[PartitionKey, int] = {}
        for own in (START, TOPIC_IDS):  # copied from a progress report or a checkpoint
            parsed.pop(own, None)
        for topic, inner in parsed.items():
            for partition, value in inner.items():
                if not (
                    re.fullmatch("[0-9]{1,10}", partition)
                    and isinstance(value, int)
                    and not isinstance(value, bool)
                ):
                    raise ConfigError(form)
                if not (EARLIEST if words else 0) <= value <= _GREATEST:
                    raise ConfigError(
                        f"option '{name}': {value} for {topic}-{partition} is not an offset or time"
                    )
                result[(topic, int(partition))] = value
        return result


def _is_known(name: str) -> bool:
    settings = kafka_settings.is_ignored(name) or kafka_settings.rejection(name) is not None
    return name in _KNOWN or name.startswith(_IGNORED_PREFIX) or settings


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _local_path(path: str) -> str:
    """Return an absolute path, because executors have other working directories.

    Spark may pass a path as a `file:` URI. eoslog cannot open paths with other schemes.
    """
    if path.startswith("file:"):
        return re.sub(r"^file:/*", "/", path)
    scheme = re.match(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://", path)
    if scheme:
        raise ConfigError(
            f"option 'path' must name a local directory, got {shown(path)} "
            f"(a {scheme.group(1)} address)"
        )
    return os.path.abspath(path)


def _subscription(values: _Values) -> tuple[str, str] | None:
    given = [name for name in _SUBSCRIPTIONS if values.text(name) is not None]
    if len(given) > 1:
        names = ", ".join(f"'{name}' = {shown(values.text(name))}" for name in given)
        raise ConfigError(f"give only one of subscribe, subscribePattern and assign, got {names}")
    if not given:
        return None
    text = values.text(given[0]) or ""
    if not text.strip(" ,"):
        raise ConfigError(f"option '{given[0]}' is empty")
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"option 'subscribePattern' = {shown(text)} is not a regular expression: "
                f"{shown(str(error))}"
            ) from None
    elif given[0] == "assign":
        assigned_partitions(text)
    return given[0], text


def assigned_partitions(text: str) -> list[PartitionKey]:
    """Parse the partitions of `assign`, `{"topic": [0, 1]}`, in order.

    Raises:
        ConfigError: if the text does not have that form.
    """
    demand_text("assign", text)
    form = f"option 'assign' must be JSON like {{\"topic\": [0, 1]}}, got {shown(text)}"
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(form) from None
    if not isinstance(parsed, dict) or not all(
        isinstance(inner, list) for inner in parsed.values()
    ):
        raise ConfigError(form)
    keys = [(topic, partition) for topic, inner in parsed.items() for partition in inner]
    if not all(type(partition) is int and partition >= 0 for _, partition in keys) or not keys:
        raise ConfigError(form)
    return sorted(set(keys))


def _bound(values: _Values, side: str) -> Bound | None:
    """Parse the start or end of the range.

    The precedence is Kafka's: global time, time per partition, offsets.
    """
    if (time := values.integer(f"{side}Timestamp", minimum=0)) is not None:
        return Bound(f"{side}Timestamp", timestamp_ms=time)
    if values.text(f"{side}OffsetsByTimestamp") is not None:
        name = f"{side}OffsetsByTimestamp"
        return Bound(name, timestamps_ms=values.per_partition(name, words=False))
    name = f"{side}Offsets"
    text = values.text(name)
    if text is None:
        return None
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if word is not None:
        if side == "ending" and word == EARLIEST:
            raise ConfigError(
                "option 'endingOffsets' must not be 'earliest', because nothing would be read"
            )
        return Bound(name, word=word)
    offsets = values.per_partition(name, words=True)
    if side == "ending" and EARLIEST in offsets.values():
        raise ConfigError(
            f"option 'endingOffsets' must not contain -2 (earliest), got {shown(text)}"
        )
    return Bound(name, offsets=offsets)


def _check_order(starting: Bound | None, ending: Bound | None) -> None:
    """Check that no partition starts after its end, among offsets or times.

    Raises:
        ConfigError: if one does, because nothing of it would be read.
    """
    if starting is None or ending is None:
        return
    for name, at in sorted((starting.offsets or {}).items()):
        end = (ending.offsets or {}).get(name, LATEST)
        if at > end >= 0:
            raise _after_end(starting, at, ending, end, name)
    if starting.timestamp_ms is not None and ending.timestamp_ms is not None:
        if starting.timestamp_ms > ending.timestamp_ms:
            raise _after_end(starting, starting.timestamp_ms, ending, ending.timestamp_ms)
        return
    for name in sorted({*(starting.timestamps_ms or {}), *(ending.timestamps_ms or {})}):
        first, last = starting.time_of(name), ending.time_of(name)
        if first is not None and last is not None and first > last:
            raise _after_end(starting, first, ending, last, name)


def _after_end(
    starting: Bound, first: int, ending: Bound, last: int, key: PartitionKey | None = None
) -> ConfigError:
    where = f" of {key[0]}-{key[1]}" if key is not None else ""
    return ConfigError(
        f"option '{starting.option}': the start{where} is {first}, after the end {last} of "
        f"'{ending.option}', so nothing would be read; set an end that is not before the start"
    )


def _isolation(values: _Values) -> str:
    levels = ("read_committed", "read_uncommitted")
    own, kafka = (
        values.choice(name, levels, "") for name in ("isolationLevel", "kafka.isolation.level")
    )
    if own and kafka and own != kafka:
        raise ConfigError(
            f"options 'isolationLevel' = {shown(own)} and 'kafka.isolation.level' = "
            f"{shown(kafka)} differ; remove one of them"
        )
    return own or kafka or "read_committed"


def _columns(values: _Values) -> tuple[str, ...] | None:
    text = values.text("columns")
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(f"option 'columns' names no column, got {shown(text)}")
    return names
