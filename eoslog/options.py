"""Types of the options that logs, producers, consumers and topics take.

Type checkers find a misspelt option and a value of another type::

    from eoslog.options import ProducerOptions

    settings: ProducerOptions = {"linger_ms": 5, "compression_type": "zstd"}
    producer = log.producer(**settings)

At run time, text is accepted for each value too, for example `linger_ms="5"`, and so are options of
other clients that have no effect here. Pass those in a mapping.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from eoslog.config.topic_keys import TopicChanges, TopicOptions

if TYPE_CHECKING:
    from eoslog.model import IsolationLevel

__all__ = [
    "CommonProducerOptions",
    "ConsumerOptions",
    "GroupConsumerOptions",
    "KafkaMoveOptions",
    "LogConsumerOptions",
    "LogOptions",
    "NamedProducerOptions",
    "ProcessOptions",
    "ProducerOptions",
    "ResolverOptions",
    "TopicChanges",
    "TopicOptions",
]  # fmt: skip

Format: TypeAlias = (
    Literal[
        "bytes", "string", "json", "short", "integer", "long", "float", "double", "uuid", "msgpack"
    ]
    | Callable[[Any], Any]
    | type[bytes]
    | type[str]
    | None
)
Guarantee: TypeAlias = Literal[
    "exactly_once", "exactly_once_v2", "exact_once", "at_least_once", "at_most_once"
]
BatchFormat: TypeAlias = Literal["records", "arrow"]
OnError: TypeAlias = Literal["stop", "skip", "retry", "dead_letter"]
Path: TypeAlias = str | os.PathLike[str] | None


class LogOptions(TypedDict, total=False):
    """Options of `eoslog.open`: the keys of `log`."""

    transaction_state_log_num_partitions: int
    offsets_topic_num_partitions: int
    transaction_state_log_segment_bytes: int
    offsets_topic_segment_bytes: int
    transaction_max_timeout_ms: int
    outcome_retention_ms: int
    prepared_inline_max_ms: int
    pending_max_count: int
    pending_max_bytes: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    publishing_id_expiration_ms: int
    offsets_retention_minutes: int
    offset_metadata_max_bytes: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    log_retention_check_interval_ms: int
    log_cleaner_backoff_ms: int
    log_flush_offset_checkpoint_interval_ms: int

    # Defaults of new topics.
    log_cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact"]
    compression_type: Literal["producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    log_cleaner_delete_retention_ms: int
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_index_interval_bytes: int
    log_cleaner_max_compaction_lag_ms: int
    message_max_bytes: int
    log_message_timestamp_after_max_ms: int
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_min_compaction_lag_ms: int
    log_preallocate: bool
    log_retention_bytes: int
    log_retention_ms: int
    log_retention_minutes: int
    log_retention_hours: int
    log_segment_bytes: int
    log_index_size_max_bytes: int
    log_roll_jitter_ms: int
    log_roll_jitter_hours: int
    log_roll_ms: int
    log_roll_hours: int


class CommonProducerOptions(TypedDict, total=False):
    """Options of `Log.run_transaction`: those of each producer."""

    log_dir: Path
    log_create: bool
    client_id: str
    acks: Literal[0, 1, -1, "all"]
    enable_idempotence: bool
    retries: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    retry_backoff_ms: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int | None
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    strict_ids: bool
    transaction_timeout_ms: int
    partitioner_class: str | Callable[[str, bytes | None, int], int] | None
    partitioner_ignore_keys: bool
    key_serializer: Format
    value_serializer: Format
    strict_duplicates: bool

    # Other names of the same options.
    max_inflight: int
    max_in_flight: int
    max_inflight_requests_per_connection: int
    max_inflight_requests: int
    compression_codec: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    request_required_acks: Literal[0, 1, -1, "all"]
    message_timeout_ms: int
    queue_buffering_max_ms: float
    message_send_max_retries: int
    message_max_bytes: int
    partitioner: str | Callable[[str, bytes | None, int], int] | None
    path: Path
    create: bool
    key: Format
    value: Format


class ProducerOptions(CommonProducerOptions, total=False):
    """Options of `Log.producer` and `Producer`: the keys of `producer`."""

    transactional_id: str | None


class NamedProducerOptions(ProducerOptions, total=False):
    """Options of `NamedProducer`, which `Log.producer` returns for a `name`."""

    name: str | None


class ConsumerOptions(TypedDict, total=False):
    """Options of `Log.consumer` besides the group: the keys of `consumer`."""

    log_dir: Path
    log_create: bool
    client_id: str
    group_instance_id: str | None
    isolation_level: IsolationLevel | Literal["read_committed", "read_uncommitted"]
    auto_offset_reset: Literal["earliest", "latest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_commit_when: Literal["after", "before"]
    processing_guarantee: Literal["at_most_once", "at_least_once", "exactly_once"] | None
    check_crcs: bool
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    partition_assignment_strategy: str | Sequence[str]
    default_api_timeout_ms: int
    key_deserializer: Format
    value_deserializer: Format

    # Other names of the same options.
    auto_commit: bool
    auto_commit_enable: bool
    path: Path
    create: bool
    key: Format
    value: Format
    max_partition_fetch_size: int
    fetch_message_max_bytes: int


class LogConsumerOptions(ConsumerOptions, total=False):
    """Options of `Log.consumer`, which also takes the arguments of `Consumer`."""

    producer: Any
    offset_store: Any


class GroupConsumerOptions(ConsumerOptions, total=False):
    """Options of `Consumer`, with the group."""

    group_id: str | None


class ProcessOptions(TypedDict, total=False):
    """Options of `Log.process`: those of `App`, and of `App.task` without tables."""

    processing_guarantee: Guarantee
    commit_interval: float
    max_records: int
    key: Format
    value: Format
    to: str | None
    batch: int | None
    batch_format: BatchFormat
    retries: Sequence[float]
    on_error: OnError
    max_deaths: int
    task_timeout: float | None


class ResolverOptions(TypedDict, total=False):
    """Options of `Log.half_producer`, as of `Log.register_resolver`."""

    first_check: float
    interval: float
    backoff: float
    max_checks: int
    timeout: float
    on_exhausted: Literal["park", "commit", "abort"]
    workers: int


class KafkaMoveOptions(TypedDict, total=False):
    """Options of `Log.export_kafka` and `Log.import_kafka`."""

    job: str | None
    records: int
    follow: bool
    groups: Sequence[str] | Literal["all"]
    config: Mapping[str, Any] | None
    progress: Callable[[Any], None] | None
