"""Configuration: Kafka's keys, their ranges, the rules between them, and errors."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.errors import ConfigError, InvalidTransactionTimeout, SerializationError

ALL = [ProducerConfig, ConsumerConfig, TopicConfig, LogConfig]


@pytest.mark.parametrize("cls", ALL)
def test_each_default_equals_the_result_of_its_parser(cls):
    made = cls.of()
    for key, parser in cls.parsers().items():
        default = cls.default(key.replace(".", "_"))
        assert default is None or parser(key, default) == default, key
    assert made.given == frozenset()


def test_defaults_are_those_of_kafka_except_where_stated():
    producer, consumer, topic = ProducerConfig.of(), ConsumerConfig.of(), TopicConfig.of()
    assert (producer.acks, producer.enable_idempotence, producer.linger_ms) == (-1, True, 5)
    assert producer.max_in_flight_requests_per_connection == 5
    assert (producer.batch_size, producer.transaction_timeout_ms) == (16384, 60000)
    assert (consumer.isolation_level, consumer.auto_offset_reset) == ("read_committed", "latest")
    assert consumer.enable_auto_commit is False  # no group.id
    assert (topic.retention_ms, topic.flush_ms, topic.max_message_bytes) == (-1, 10, 1048588)
    assert LogConfig.of().offsets_retention_minutes == -1


@pytest.mark.parametrize(
    ("cls", "key", "hint"),
    [
        (ProducerConfig, "linger.mss", "linger.ms"),
        (ProducerConfig, "transactionalid", "transactional.id"),
        (ProducerConfig, "enable_idempotance", "enable.idempotence"),
        (ConsumerConfig, "group.idd", "group.id"),
        (ConsumerConfig, "autoOffsetReset", "auto.offset.reset"),
        (TopicConfig, "retention.msec", "retention.ms"),
    ],
)
def test_an_unknown_key_is_rejected_with_the_nearest_one_as_a_suggestion(cls, key, hint):
    with pytest.raises(ConfigError, match=f"unknown .* key '{key}'; did you mean '{hint}'"):
        cls.of({key: 1})


def test_an_unknown_key_without_a_near_one_is_rejected_without_a_suggestion():
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.of({"zzzzqqqq": 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (ProducerConfig, {"linger.ms": "soon"}),
        (ProducerConfig, {"linger.ms": -1}),
        (ProducerConfig, {"linger.ms": float("nan")}),
        (ProducerConfig, {"batch.size": True}),
        (ProducerConfig, {"batch.size": 1.5}),
        (ProducerConfig, {"batch.size": 2**31}),
        (ProducerConfig, {"enable.idempotence": 1}),
        (ProducerConfig, {"acks": 2}),
        (ProducerConfig, {"acks": "some"}),
        (ProducerConfig, {"acks": True}),
        (ProducerConfig, {"compression.type": "rar"}),
        (ProducerConfig, {"compression.type": 3}),
        (ProducerConfig, {"transactional.id": ""}),
        (ProducerConfig, {"transactional.id": 7}),
        (ProducerConfig, {"log.dir": 7}),
        (ProducerConfig, {"key.serializer": "no.such.Serializer"}),
        (ProducerConfig, {"partitioner.class": "no.such.Partitioner"}),
        (ProducerConfig, {7: 7}),
        (ProducerConfig, ["acks"]),
        (ConsumerConfig, {"group.id": ""}),
        (ConsumerConfig, {"isolation.level": "serializable"}),
        (ConsumerConfig, {"auto.offset.reset": "sometimes"}),
        (ConsumerConfig, {"partition.assignment.strategy": "magic"}),
        (ConsumerConfig, {"partition.assignment.strategy": 5}),
        (ConsumerConfig, {"partition.assignment.strategy": []}),
        (ConsumerConfig, {"max.poll.records": 0}),
        (ConsumerConfig, {"processing.guarantee": "twice"}),
        (TopicConfig, {"cleanup.policy": "burn"}),
        (TopicConfig, {"cleanup.policy": ""}),
        (TopicConfig, {"retention.ms": -2}),
        (TopicConfig, {"message.timestamp.type": "Never"}),
        (TopicConfig, {"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 5}),
        (LogConfig, {"durability": "maybe"}),
    ],
)
def test_a_wrong_type_or_range_is_a_config_error_that_shows_the_value(cls, config):
    with pytest.raises(ConfigError):
        cls.of(config)


def test_B01_B02_acks_is_validated_and_the_last_value_in_a_config_wins():
    assert ProducerConfig.of({"acks": "0"}).acks == 0
    assert ProducerConfig.of({"acks": "1"}).acks == 1
    assert ProducerConfig.of({"acks": "all"}).acks == -1
    assert ProducerConfig.of({"acks": "-1"}).acks == -1
    assert ProducerConfig.of({"acks": "all", "linger.ms": 1}, acks=1).acks == 1
    config = {"acks": "all"}
    config["acks"] = "1"
    assert ProducerConfig.of(config).acks == 1


def test_B03_exactly_once_settings_give_an_idempotent_producer():
    config = ProducerConfig.of({"acks": "all", "enable.idempotence": "true"})
    assert config.enable_idempotence
    assert config.acks == -1


JAVA = "org.apache.kafka.common.serialization."


def test_B04_java_serializer_classes_encode_as_kafka_does():
    producer = ProducerConfig.of(
        {
            "key.serializer": JAVA + "IntegerSerializer",
            "value.serializer": JAVA + "StringSerializer",
        }
    )
    consumer = ConsumerConfig.of(
        {
            "key.deserializer": JAVA + "IntegerDeserializer",
            "value.deserializer": JAVA + "StringDeserializer",
        }
    )
    assert producer.key_serializer(258) == b"\x00\x00\x01\x02"
    assert consumer.key_deserializer(b"\x00\x00\x01\x02") == 258
    assert consumer.value_deserializer(producer.value_serializer("ä")) == "ä"
    assert producer.value_serializer(None) is None
    with pytest.raises(SerializationError, match="expected 4 bytes"):
        consumer.key_deserializer(b"123")
    with pytest.raises(SerializationError, match="expected int"):
        producer.key_serializer("258")
    with pytest.raises(SerializationError, match="integer: cannot encode 4294967296"):
        producer.key_serializer(2**32)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": [1, null]}', b' {"a": 1}\n', b'\xef\xbb\xbf{"a": 1}', '{"ä": 1}'.encode("utf-16"),
        '{"ä": 1}'.encode("utf-32-le"), b"1", b'"x"', b"NaN", b'"\xed\xa0\x80"', b"1 2", b"{}x",
        b"", b"\xff", b"{", b"[1,]",
    ],
)  # fmt: skip
def test_B04_json_is_read_as_python_reads_it(data):
    read = ConsumerConfig.of(value_deserializer="json").value_deserializer
    try:
        expected = json.loads(data)
    except ValueError:
        with pytest.raises(SerializationError, match="json: the bytes are not JSON"):
            read(data)
    else:
        assert repr(read(data)) == repr(expected)


@pytest.mark.parametrize(
    "value",
    [
        {"ä": [1, None, True, 1.5, -0.0]}, {1: 2, None: 3, False: {}}, "\ud800\n", 7, float("inf"), [],
        (1, [2, (3,)]), 10**30,
    ],
)  # fmt: skip
def test_B04_json_is_written_as_python_writes_it(value):
    write = ProducerConfig.of(value_serializer="json").value_serializer
    assert write(value) == json.dumps(value, separators=(",", ":")).encode()


def test_B04_the_error_of_a_json_value_names_the_cause():
    write = ProducerConfig.of(value_serializer="json").value_serializer
    endless = [1]
    endless.append({"again": endless})
    for value, words in (
        (endless, "json: cannot encode .*: Circular reference detected"),
        ({"a": object()}, "json: cannot encode .*: Object of type object is not JSON serializable"),
        ({(1, 2): 3}, "json: cannot encode .*: keys must be str"),
    ):
        with pytest.raises(SerializationError, match=words):
            write(value)
        assert write([1]) == b"[1]"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("uuid", "7", "uuid: expected a UUID, got '7'"),
        ("string", "\ud800", "string: cannot encode"),
    ],
)
def test_B04_a_value_without_the_format_is_a_serialization_error(name, value, words):
    with pytest.raises(SerializationError, match=words):
        ProducerConfig.of(value_serializer=name).value_serializer(value)


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("string", "a", b"a"),
        (str, "a", b"a"),
        ("json", {"a": [1]}, b'{"a":[1]}'),
        ("long", -2, b"\xff" * 7 + b"\xfe"),
        ("double", 1.0, b"\x3f\xf0" + b"\0" * 6),
        ("short", 1, b"\0\x01"),
        (lambda v: bytes(v), [1, 2], b"\1\2"),
    ],
)
def test_B04_serializers_are_accepted_by_name_or_callable(name, value, data):
    assert ProducerConfig.of(value_serializer=name).value_serializer(value) == data
    if not callable(name) or name is str:
        got = ConsumerConfig.of(value_deserializer=name).value_deserializer(data)
        assert got == value


def test_B04_bytes_are_passed_unchanged():
    assert ProducerConfig.of(value_serializer="bytes").value_serializer is None
    assert ProducerConfig.of(value_serializer=JAVA + "ByteArraySerializer").value_serializer is None


def test_B05_network_keys_are_accepted_and_listed_at_debug(caplog):
    caplog.set_level(logging.DEBUG, logger="eoslog.config")
    config = ProducerConfig.of(
        {"bootstrap.servers": "h1:9092,h2:9092", "ssl.ca.location": "x", "sasl_mechanism": "PLAIN"}
    )
    assert config.given == frozenset()
    assert "bootstrap.servers, sasl.mechanism, ssl.ca.location" in caplog.text
    assert ConsumerConfig.of(bootstrap_servers="h:9092").log_dir is None


def test_B08_a_transactional_id_requires_idempotence():
    assert ProducerConfig.of(transactional_id="t").enable_idempotence
    with pytest.raises(ConfigError, match=r"transactional.id='t'.*enable.idempotence=False"):
        ProducerConfig.of({"transactional.id": "t", "enable.idempotence": False})


def test_B09_retries_are_unlimited_and_bounded_by_the_delivery_timeout():
    config = ProducerConfig.of(enable_idempotence=True)
    assert config.retries == 2**31 - 1
    assert config.delivery_timeout_ms == 120_000
    with pytest.raises(ConfigError, match="retries=0"):
        ProducerConfig.of(enable_idempotence=True, retries=0)
    assert ProducerConfig.of(retries=0).enable_idempotence is False
    grown = ProducerConfig.of(linger_ms=100_000, request_timeout_ms=60_000)
    assert grown.delivery_timeout_ms == 160_000
    with pytest.raises(ConfigError, match=r"delivery.timeout.ms=100 .* = 205"):
        ProducerConfig.of(delivery_timeout_ms=100, request_timeout_ms=200)
    short = ProducerConfig.of(delivery_timeout_ms=500)
    assert (short.delivery_timeout_ms, short.request_timeout_ms) == (500, 495)


@pytest.mark.parametrize("wanted", [{"enable.idempotence": True}, {"transactional.id": "t"}])
def test_B10_idempotence_accepts_one_to_five_in_flight_and_acks_all_only(wanted):
    key = "max.in.flight.requests.per.connection"
    for n in range(1, 6):
        assert ProducerConfig.of({**wanted, key: n}).enable_idempotence
    for bad in ({key: 6}, {"acks": 1}, {"acks": 0}):
        with pytest.raises(ConfigError):
            ProducerConfig.of({**wanted, **bad})
    with pytest.raises(ConfigError):
        ProducerConfig.of({key: 6})
    assert ProducerConfig.of({"acks": 1}).enable_idempotence is False
    assert ProducerConfig.of({"enable.idempotence": False, key: 6}).enable_idempotence is False


def test_B11_transaction_id_is_an_alias_that_logs_a_deprecation():
    with pytest.warns(DeprecationWarning, match=r"transaction.id is called transactional.id"):
        assert ProducerConfig.of({"transaction.id": "t"}).transactional_id == "t"
    assert ProducerConfig.of(transactional_id="t").transactional_id == "t"
    assert ProducerConfig.of({"max.inflight": 3}).max_in_flight_requests_per_connection == 3


@pytest.mark.parametrize("timeout", [0, -1])
def test_B12_I09_a_transaction_timeout_out_of_range_is_rejected(timeout):
    with pytest.raises(InvalidTransactionTimeout, match=str(timeout)) as caught:
        ProducerConfig.of({"transaction.timeout.ms": timeout})
    assert caught.value.fatal


def test_B12_transaction_timeout_has_a_default_and_bounds():
    assert ProducerConfig.of().transaction_timeout_ms == 60_000
    assert ProducerConfig.of(transaction_timeout_ms=900_000).transaction_timeout_ms == 900_000
    assert LogConfig.of().transaction_max_timeout_ms == 900_000
    with pytest.raises(ConfigError, match="2147483647"):
        ProducerConfig.of(transaction_timeout_ms=1 << 31)


def test_H01_H03_processing_guarantee_decides_auto_commit():
    for word in ("exactly_once", "exactly_once_v2", "exact_once"):
        config = ConsumerConfig.of({"group.id": "g", "processing.guarantee": word})
        assert config.exactly_once
        assert not config.enable_auto_commit
    with pytest.raises(ConfigError, match=r"enable.auto.commit=True"):
        ConsumerConfig.of(group_id="g", processing_guarantee="exact_once", enable_auto_commit=True)
    before = ConsumerConfig.of(group_id="g", processing_guarantee="at_most_once")
    assert (before.enable_auto_commit, before.auto_commit_when) == (True, "before")
    assert ConsumerConfig.of(group_id="g").auto_commit_when == "after"


def test_auto_commit_is_off_without_a_group():
    with pytest.raises(ConfigError, match=r"group.id"):
        ConsumerConfig.of(enable_auto_commit=True)


def test_heartbeat_follows_a_short_session_and_conflicts_when_set():
    assert ConsumerConfig.of(session_timeout_ms=900).heartbeat_interval_ms == 300
    with pytest.raises(ConfigError, match="heartbeat"):
        ConsumerConfig.of(session_timeout_ms=900, heartbeat_interval_ms=900)


def test_assignors_are_accepted_by_name_list_or_java_class():
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    for given_value, expected in [
        ("range", ("range",)),
        (["roundrobin", "sticky"], ("roundrobin", "sticky")),
        (f"range,{java}", ("range", "cooperative-sticky")),
    ]:
        config = ConsumerConfig.of(partition_assignment_strategy=given_value)
        assert config.partition_assignment_strategy == expected


def test_compression_level_applies_to_the_chosen_codec():
    assert ProducerConfig.of(compression_type="zstd").codec_level is None
    config = ProducerConfig.of({"compression.type": "zstd", "compression.zstd.level": 7})
    assert config.codec_level == 7
    assert ProducerConfig.of(compression_type="gzip", compression_level=2).codec_level == 2


@pytest.mark.parametrize(
    ("codec", "key", "level", "message"),
    [
        (
            "gzip",
            "compression.level",
            10,
            "compression.level: expected -1 or 1..9 for gzip, got 10",
        ),
        ("gzip", "compression.gzip.level", 0, "compression.gzip.level: expected -1 or 1..9"),
        ("lz4", "compression.level", 0, "compression.level: expected 1..17 for lz4, got 0"),
        ("zstd", "compression.zstd.level", 23, "compression.zstd.level"),
    ],
)
def test_a_level_that_the_codec_does_not_have_is_rejected(codec, key, level, message):
    with pytest.raises(ConfigError, match=message):
        ProducerConfig.of({"compression.type": codec, key: level})


def test_a_topic_config_is_stored_as_strings_and_read_back():
    config = TopicConfig.of(
        {"retention_ms": 5, "segment.bytes": "77", "cleanup.policy": "delete,compact"}
    )
    stored = config.as_strings()
    assert stored == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "5",
        "segment.bytes": "77",
    }
    assert TopicConfig.of(stored) == config


def test_paths_may_be_path_objects():
    assert ProducerConfig.of(log_dir=Path("/x")).log_dir == "/x"


@given(st.dictionaries(st.text(max_size=20), st.integers() | st.text(max_size=5), max_size=3))
def test_any_dict_is_accepted_or_rejected_with_a_config_error(config):
    for cls in ALL:
        try:
            cls.of(config)
        except (ConfigError, InvalidTransactionTimeout):
            pass
