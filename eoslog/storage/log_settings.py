"""What a partition needs of its topic's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FOR_EVER = (1 << 63) - 1
"""The value of a limit that is none."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a partition needs of its topic's configuration; sizes in bytes, times in ms."""

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
    flush_messages: int = FOR_EVER
    message_timestamp_after_max_ms: int = FOR_EVER
    message_timestamp_before_max_ms: int = FOR_EVER
    segment_jitter_ms: int = 0

    @property
    def compacts(self) -> bool:
        """Whether only the last record of each key has to stay."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments go by time and size."""
        return "delete" in self.cleanup_policy

    @classmethod
    def of(cls, config: Mapping[str, str]) -> LogSettings:
        """From a topic's configuration under Kafka's names; others are the topic's business."""
        values: dict[str, Any] = {}
        for key, value in config.items():
            name = key.replace(".", "_")
            known = cls.__dataclass_fields__.get(name)
            if known is not None:
                values[name] = _KINDS[known.type](value)  # type: ignore[index]
        values["log_append_time"] = config.get("message.timestamp.type") == "LogAppendTime"
        return cls(**values)


_KINDS: dict[str, type] = {"int": int, "float": float, "str": str}
