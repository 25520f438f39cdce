"""Every key that Kafka and librdkafka document is accepted.

Keys without effect are listed. `tests/kafka/generators/config_keys.py` writes the lists from
Kafka's own definitions.
"""

from __future__ import annotations

import logging

import pytest

import eoslog
from eoslog.config import broker_keys as config_broker
from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.config.parsing import Settings
from eoslog.errors import ConfigError
from eoslog.storage.format import codecs
from tests.paths import KAFKA_DATA

LISTS = KAFKA_DATA / "config"
CLASSES = {
    "producer": ProducerConfig, "consumer": ConsumerConfig, "topic": TopicConfig,
    "broker": LogConfig, "admin": LogConfig,
}  # fmt: skip


def documented() -> list[tuple[type[Settings], str]]:
    """Each class with each key that it is documented to take."""
    found = set()
    (kafka,) = LISTS.glob("kafka-*.txt")
    for line in kafka.read_text().splitlines():
        kind, name, _ = line.split()
        found.add((CLASSES[kind], name))
    for line in (LISTS / "librdkafka.txt").read_text().splitlines():
        kind, name = line.split()
        kinds = ("producer", "consumer") if kind == "both" else (kind,)
        found |= {(CLASSES[each], name) for each in kinds}
    return sorted(found, key=lambda item: (item[0].KIND, item[1]))


def test_field_C11_the_lists_of_documented_keys_are_complete():
    counts = {cls: sum(each is cls for each, _ in documented()) for cls in CLASSES.values()}
    assert counts[LogConfig] > 370 and counts[TopicConfig] >= 34
    assert counts[ProducerConfig] > 200 and counts[ConsumerConfig] > 200


@pytest.mark.parametrize(
    ("cls", "key"), documented(), ids=[f"{cls.KIND}-{key}" for cls, key in documented()]
)
def test_field_C11_a_documented_key_has_an_effect_or_is_listed_as_ignored(cls, key, caplog):
    caplog.set_level(logging.DEBUG, "eoslog.config")
    name = cls.ALIASES.get(key.replace("_", "."), key.replace("_", "."))
    honoured = name in cls.parsers() or (
        cls is LogConfig
        and any(
            name == each for names in config_broker.TOPIC_DEFAULTS.values() for each, _ in names
        )
    )
    if honoured:
        with pytest.raises(ConfigError, match="expected"):  # its value is looked at
            cls.of({key: object()})
        return
    cls.of({key: None})
    assert f"{cls.KIND}: ignoring keys without effect: {name}" in caplog.text
    if name in cls.REPLACED:
        with pytest.raises(ConfigError, match=r"has no effect in eoslog: \w"):
            cls.of({key: "something else"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "168"}, {"retention.ms": "604800000"}),
        ({"log.retention.hours": 168, "log.retention.minutes": 2}, {"retention.ms": "120000"}),
        (
            {"log.retention.minutes": 2, "log.retention.ms": 7, "log.retention.hours": 1},
            {"retention.ms": "7"},
        ),
        ({"log.retention.hours": -1}, {"retention.ms": "-1"}),
        ({"log.roll.hours": 1, "log_roll_jitter_hours": 1}, {"segment.ms": "3600000", "segment.jitter.ms": "3600000"}),
        ({"log.cleanup.policy": "compact"}, {"cleanup.policy": "compact"}),
        ({"message.max.bytes": 5000}, {"max.message.bytes": "5000"}),
        ({"compression.type": "gzip", "compression.gzip.level": 1}, {"compression.type": "gzip", "compression.gzip.level": "1"}),
        ({"log.segment.bytes": 4096, "num.partitions": 1, "broker.id": 4}, {"segment.bytes": "4096"}),
    ],
)  # fmt: skip
def test_field_C11_defaults_of_a_broker_apply_to_created_topics(tmp_path, given, expected):
    with eoslog.open(tmp_path / "log", given) as log:
        assert log.create_topic("t").config == expected
        other = {"retention_ms": 5, "segment.bytes": 100}
        assert dict(log.create_topic("own", config=other).config) == {
            **expected, "retention.ms": "5", "segment.bytes": "100",
        }  # fmt: skip


def test_field_C11_a_wrong_topic_default_names_the_key_of_the_broker(tmp_path):
    with pytest.raises(ConfigError, match=r"log\.retention\.ms: expected an integer"):
        eoslog.open(tmp_path / "log", {"log.retention.ms": "a day"})
    with (
        eoslog.open(tmp_path / "log", {"log.retention.ms": 5}),
        pytest.raises(ConfigError, match=r"topic\.defaults: expected .*got"),
    ):
        eoslog.open(tmp_path / "log", {"log.retention.ms": 6})


@pytest.mark.parametrize(
    ("codec", "level", "key"),
    [
        ("gzip", 1, "compression.gzip.level"), ("gzip", 9, "compression.gzip.level"),
        ("lz4", 12, "compression.lz4.level"), ("zstd", 19, "compression.zstd.level"),
    ],
)  # fmt: skip
def test_field_C11_a_topic_keeps_the_level_it_was_stored_with(tmp_path, codec, level, key):
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", config={"compression.type": codec, key: level})
        with log.producer(linger_ms=1000) as producer:
            for i in range(300):
                producer.produce("t", b"%d some words that come again, %d times" % (i, i * 7))
        (batch,) = log._engine.partition("t", 0).batches(0, 300)
        payload = batch.tobytes()[61:]
        plain = codecs.decompress(codec, payload)
        assert payload == codecs.compress(codec, plain, level)
        assert payload != codecs.compress(codec, plain)
        assert len(list(log.read("t"))) == 300


@pytest.mark.parametrize(
    ("key", "value"),
    [("gzip", 0), ("gzip", 10), ("lz4", 0), ("lz4", 18), ("zstd", 23), ("zstd", -131_073)],
)
def test_field_C11_a_level_that_a_codec_lacks_is_rejected(key, value):
    with pytest.raises(ConfigError, match=rf"compression\.{key}\.level: expected"):
        TopicConfig.of({f"compression.{key}.level": value})
    with pytest.raises(ConfigError, match=rf"compression\.{key}\.level: expected"):
        LogConfig.of({f"compression.{key}.level": value})
