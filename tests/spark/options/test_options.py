"""Options are checked before the source opens anything.

The message names the option and the value.
"""

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.options.options import EARLIEST, LATEST, Options, assigned_partitions

from eoslog.errors import ConfigError


def parse(**options):
    return Options.parse({"path": "/data", **options})


def test_options_default_to_a_read_of_committed_records():
    options = parse(subscribe="orders,refunds")
    assert options.subscription == ("subscribe", "orders,refunds")
    assert options.isolation == "read_committed"
    assert options.starting is None and options.ending is None
    assert options.fail_on_data_loss and not options.include_headers


def test_option_names_are_case_insensitive():
    assert Options.parse({"PATH": "/data", "includeheaders": "TRUE"}).include_headers


def test_offsets_per_partition_accept_earliest_and_latest():
    options = parse(assign='{"t": [1, 0]}', startingOffsets='{"t": {"0": 23, "1": -2}}')
    assert options.starting.offsets == {("t", 0): 23, ("t", 1): EARLIEST}
    assert parse(endingOffsets='{"t": {"0": -1}}').ending.offsets == {("t", 0): LATEST}
    assert assigned_partitions('{"t": [1, 0]}') == [("t", 0), ("t", 1)]


def test_a_global_timestamp_overrides_timestamps_and_offsets():
    options = parse(
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"t": {"0": 7}}',
        startingOffsets="earliest",
    )
    assert options.starting.timestamp_ms == 5 and options.starting.offsets is None
    options = parse(startingOffsetsByTimestamp='{"t": {"0": 7}}', startingOffsets="earliest")
    assert options.starting.timestamps_ms == {("t", 0): 7}


def test_options_of_a_network_client_are_accepted():
    parse(**{"kafka.bootstrap.servers": "a:9092", "kafka.ssl.truststore.location": "x"})
    assert parse(**{"kafka.isolation.level": "read_uncommitted"}).isolation == "read_uncommitted"


def test_client_options_without_effect_are_ignored_and_named_once(caplog):
    names = ["client.id", "max.poll.records", "request.timeout.ms", "session.timeout.ms", "acks"]
    names += ["max.partition.fetch.bytes", "sasl.jaas.config", "security.protocol", "ssl.protocol"]
    for _ in range(3):
        parse(**{f"kafka.{name}": "1" for name in names}, **{"kafka.bootstrap.servers": "a:1"})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert all(f"kafka.{name}" in caplog.text for name in names)
    assert "bootstrap" not in caplog.text


def test_a_file_uri_is_accepted_as_a_path():
    assert Options.parse({"path": "file:/data/log"}).path == "/data/log"
    assert Options.parse({"path": "file:///data/log"}).path == "/data/log"


def test_option_values_accept_units_of_size_and_time():
    options = parse(maxBytesPerPartition="64m", maxBytesPerTrigger="1 GB", maxTriggerDelay="90s")
    assert options.max_bytes_per_partition == 64 << 20
    assert options.max_bytes_per_trigger == 1 << 30
    assert options.max_trigger_delay_s == 90


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": ""}, ["'path'"]),
        ({"path": "s3://bucket/x"}, ["'path'", "s3"]),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, ["'subscribe'", "'assign'"]),
        ({"subscribe": " , "}, ["'subscribe'"]),
        ({"subscribePattern": "("}, ["'subscribePattern'"]),
        ({"assign": "a:0"}, ["'assign'", "a:0"]),
        ({"assign": '{"a": ["0"]}'}, ["'assign'"]),
        ({"startingOffset": "earliest"}, ["startingoffset", "'startingOffsets'"]),
        ({"startingOffsets": "soon"}, ["'startingOffsets'", "soon"]),
        ({"startingOffsets": '{"a": {"0": -3}}'}, ["'startingOffsets'", "-3"]),
        ({"startingOffsets": '{"a": {"x": 1}}'}, ["'startingOffsets'"]),
        ({"startingOffsets": '{"a": {"²": 1}}'}, ["'startingOffsets'"]),
        ({"endingOffsets": "earliest"}, ["'endingOffsets'"]),
        ({"endingOffsets": '{"a": {"0": -2}}'}, ["'endingOffsets'", "-2"]),
        ({"startingTimestamp": "now"}, ["'startingTimestamp'", "now"]),
        ({"endingTimestamp": "-1"}, ["'endingTimestamp'", "-1"]),
        ({"isolationLevel": "serializable"}, ["'isolationLevel'", "serializable"]),
        ({"minPartitions": "0"}, ["'minPartitions'", "0"]),
        ({"maxRecordsPerPartition": "many"}, ["'maxRecordsPerPartition'", "many"]),
        ({"maxBytesPerPartition": "lots"}, ["'maxBytesPerPartition'", "lots"]),
        ({"maxBytesPerPartition": "0"}, ["'maxBytesPerPartition'", "0"]),
        ({"minBytesPerPartition": "-1"}, ["'minBytesPerPartition'", "-1"]),
        ({"maxBytesPerTrigger": "1x"}, ["'maxBytesPerTrigger'", "1x"]),
        ({"maxOffsetsPerTrigger": "0"}, ["'maxOffsetsPerTrigger'", "0"]),
        ({"maxTriggerDelay": "15"}, ["'maxTriggerDelay'", "15"]),
        ({"batchRows": str(1 << 31)}, ["'batchRows'", "2147483647"]),
        ({"layout": "pulsar"}, ["'layout'", "pulsar"]),
        ({"failOnDataLoss": "maybe"}, ["'failOnDataLoss'", "maybe"]),
        ({"includeHeaders": "yes"}, ["'includeHeaders'", "yes"]),
        ({"columns": ","}, ["'columns'"]),
        ({"txnAppId": ""}, ["'txnAppId'"]),
        ({"txnAppId": "a", "txnVersion": "-1"}, ["'txnVersion'", "-1"]),
        ({"kafka.auto.offset.reset": "latest"}, ["'kafka.auto.offset.reset'", "startingOffsets"]),
        ({"kafka.value.deserializer": "X"}, ["'kafka.value.deserializer'", "valueFormat"]),
        ({"commitGroup": "__eoslog-spark-x"}, ["'commitGroup'", "__eoslog-spark-x"]),
        ({"commitGroup": ""}, ["'commitGroup'", "empty"]),
        ({"kafka.interceptor.classes": "X"}, ["'kafka.interceptor.classes'"]),
        ({"kafka.partitioner.class": "X"}, ["'kafka.partitioner.class'", "'partition'"]),
        ({"kafka.isolation.levle": "x"}, ["kafka.isolation.levle", "'kafka.isolation.level'"]),
        ({"compression": "brotli"}, ["'compression'", "brotli"]),
    ],
)
def test_a_wrong_option_is_named_with_its_value(options, words):
    with pytest.raises(ConfigError) as caught:
        Options.parse({"path": "/data", **options})
    for word in words:
        assert word in str(caught.value)
