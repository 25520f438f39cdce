"""Configuration: Kafka's keys and defaults as frozen dataclasses.

What differs from Kafka's defaults: `isolation.level=read_committed`, `retention.ms=-1`,
`offsets.retention.minutes=-1` (nothing is deleted by default), `flush.ms=10`.

Source: Kafka ProducerConfig, ConsumerConfig, TopicConfig, KafkaConfig; KIP-98, KIP-679.
"""

from __future__ import annotations

from eoslog.config.codec_levels import CODEC_LEVELS, CODECS, check_codec_level
from eoslog.config.consumer_keys import ConsumerConfig
from eoslog.config.log_keys import LogConfig
from eoslog.config.producer_keys import ACKS_ALL, TRANSACTION_MAX_TIMEOUT_MS, ProducerConfig
from eoslog.config.topic_keys import TopicConfig

__all__ = [
    "ACKS_ALL",
    "CODECS",
    "CODEC_LEVELS",
    "TRANSACTION_MAX_TIMEOUT_MS",
    "ConsumerConfig",
    "LogConfig",
    "ProducerConfig",
    "TopicConfig",
    "check_codec_level",
]
