"""The part of a topic's configuration that its partitions use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FOR_EVER = (1 << 63) - 1
"""The value of a limit that does not limit."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The part of a topic's configuration that a partition uses. Sizes in bytes, times in ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    retention_ms: int = -1
    retention_bytes: int = -1
    flush_ms: int = 10
    log_append_time: bool = False
    cleanup_policy: str = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOR_EVER
    delete_retention_ms: int = 86_400_000
    compression_type: str = "producer"
    compression_gzip_level: int | None = None
    compression_lz4_level: int | None = None
    compression_zstd_level: int | None = None
    flush_messages: int = FOR_EVER
    message_timestamp_after_max_ms: int = FOR_EVER
    message_timestamp_before_max_ms: int = FOR_EVER
    segment_jitter_ms: int = 0
    preallocate: bool = False

    @property
    def codec_level(self) -> int | None:
        """The level of the topic's codec, None for the codec's own default."""
        return getattr(self, f"compression_{self.compression_type}_level", None)

    @property
    def compacts(self) -> bool:
        """Whether compaction may remove all but the last record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return "delete" in self.cleanup_policy

    @property
    def has_limits(self) -> bool:
        """Whether `retention.ms` or `retention.bytes` limits what a partition keeps."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0

    @classmethod
    def of(cls, config: Mapping[str, str]) -> LogSettings:
        """Make settings from a topic's configuration, with Kafka's names; ignores other keys."""
        values: dict[str, Any] = {}
        for key, value in config.items():
            name = key.replace(".", "_")
            known = cls.__dataclass_fields__.get(name)
            if known is not None:
                values[name] = _KINDS[known.type](value)  # type: ignore[index]
        values["log_append_time"] = config.get("message.timestamp.type") == "LogAppendTime"
        return cls(**values)


def _boolean(value: str) -> bool:
    return value.lower() == "true"


_KINDS: dict[str, Callable[[str], Any]] = {
    "bool": _boolean, "int": int, "int | None": int, "float": float, "str": str,
}  # fmt: skip
