"""What a partition needs of its topic's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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

    @classmethod
    def of(cls, config: Mapping[str, str]) -> LogSettings:
        """From a topic's configuration under Kafka's names; others are the topic's business."""
        numbers = {
            key.replace(".", "_"): int(value)
            for key, value in config.items()
            if key.replace(".", "_") in cls.__dataclass_fields__
        }
        return cls(
            **numbers, log_append_time=config.get("message.timestamp.type") == "LogAppendTime"
        )
