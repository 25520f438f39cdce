"""confluent-kafka's configuration keys are accepted, or name their replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.config.keys import ConsumerConfig, ProducerConfig
from eoslog.errors import ConfigError

PRODUCER = {
    "bootstrap.servers": "localhost:9092", "acks": "all", "linger.ms": 5, "log_level": 3,
    "queue.buffering.max.messages": 100_000, "queue.buffering.max.kbytes": 1_048_576,
    "queue.buffering.backpressure.threshold": 1, "batch.num.messages": 10_000,
    "sticky.partitioning.linger.ms": 10, "delivery.report.only.error": False, "logger": None,
    "statistics.interval.ms": 1000, "error_cb": None,
}  # fmt: skip
CONSUMER = {
    "group.id": "g", "queued.min.messages": 1, "queued.max.messages.kbytes": 1000,
    "fetch.error.backoff.ms": 1, "group.protocol.type": "x", "enable.partition.eof": False,
    "enable.auto.offset.store": "true", "on_commit": None, "log_level": 3,
}  # fmt: skip


def test_librdkafka_keys_without_effect_are_accepted(tmp_path: Path) -> None:
    with eoslog.Producer({"log.dir": tmp_path / "log", **PRODUCER}) as producer:
        assert producer._config.linger_ms == 5
    with eoslog.Consumer({"log.dir": tmp_path / "log", **CONSUMER}):
        pass


def test_an_alias_of_a_limit_sets_the_limit() -> None:
    assert ConsumerConfig.of({"fetch.message.max.bytes": 77}).max_partition_fetch_bytes == 77


@pytest.mark.parametrize(
    ("settings", "key", "value", "instead"),
    [
        (ProducerConfig, "error_cb", print, "calls raise their errors"),
        (ProducerConfig, "stats_cb", print, r"Log\.stats"),
        (ProducerConfig, "logger", object(), "getLogger"),
        (ProducerConfig, "on_delivery", print, "pass on_delivery to produce"),
        (ProducerConfig, "delivery.report.only.error", True, "called for each record"),
        (ConsumerConfig, "error_cb", print, "calls raise their errors"),
        (ConsumerConfig, "stats_cb", print, "current_lag"),
        (ConsumerConfig, "on_commit", print, r"commit\(\) returns when"),
        (ConsumerConfig, "enable.partition.eof", True, r"Log\.read.*current_lag"),
        (ConsumerConfig, "enable.partition.eof", "true", r"Log\.read.*current_lag"),
        (ConsumerConfig, "enable.auto.offset.store", False, r"commit\(record\)"),
    ],
)
def test_keys_that_change_a_loop_name_their_replacement(
    settings: Any, key: str, value: object, instead: str
) -> None:
    with pytest.raises(ConfigError, match=instead) as caught:
        settings.of({key: value})
    assert str(caught.value).startswith(f"{key}={value!r} ")
    assert "did you mean" not in str(caught.value)
