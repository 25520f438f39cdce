"""An option that would have no effect is refused, without a JVM.

What Spark does with the options is known when it asks for a reader or a writer.
"""

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import BinaryType, StringType, StructType
from pyspark_eoslog import DefaultSource, write_once
from pyspark_eoslog.options import options as module
from pyspark_eoslog.options.options import Options, Use

from eoslog.errors import ConfigError
from tests.spark.helpers import produce

READ, WRITE = {"subscribe": "t"}, {"topic": "t"}
# A value for each option that has an effect only in some uses.
VALUES = {
    "subscribe": "t", "subscribePattern": "t", "assign": '{"t": [0]}',
    "startingOffsets": '{"t": {"0": 1}}', "startingTimestamp": "0",
    "startingOffsetsByTimestamp": '{"t": {"0": 0}}',
    "startingOffsetsByTimestampStrategy": "latest", "isolationLevel": "read_uncommitted",
    "kafka.isolation.level": "read_uncommitted",
    "includeHeaders": "true", "minPartitions": "2", "maxRecordsPerPartition": "2",
    "failOnDataLoss": "false", "columns": "value", "valueFormat": "string", "keyFormat": "string",
    "batchRows": "9", "layout": "eoslog", "maxBytesPerPartition": "1m",
    "minBytesPerPartition": "0", "endingOffsets": '{"t": {"0": 1}}', "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"t": {"0": 1}}', "maxOffsetsPerTrigger": "5",
    "maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "1m", "minOffsetsPerTrigger": "1",
    "maxTriggerDelay": "1s", "commitGroup": "g", "topic": "t", "compression": "zstd",
    "inlineLimitBytes": "0", "segmentBytes": "1m", "stagingRetentionHours": "2",
}  # fmt: skip
READS = {name for title, _, names in module._GROUPS for name in names if title == "Reading"}
ENDS = {"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"}
STREAM = {
    "maxOffsetsPerTrigger", "maxRecordsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "commitGroup",
}  # fmt: skip
WRITES = {"compression", "inlineLimitBytes", "segmentBytes", "stagingRetentionHours"}
SUBSCRIPTIONS = {"subscribe", "subscribePattern", "assign"}
WITHOUT_EFFECT = [
    *((Use.BATCH_READ, name) for name in STREAM | WRITES),
    *((Use.STREAM_READ, name) for name in ENDS | WRITES),
    *(
        (use, name)
        for use in (Use.BATCH_WRITE, Use.STREAM_WRITE)
        for name in (READS | ENDS | STREAM) - SUBSCRIPTIONS - {"kafka.isolation.level"}
    ),
]


@pytest.fixture
def topic(log):
    log.create_topic("t")
    produce(log, "t", [(b"%d" % n, b"k", 0, None) for n in range(3)])
    return log


def ask(path, use, given, schema=None):
    """Let the source make the reader or the writer of a use, as Spark does."""
    source = DefaultSource({"path": path, **given})
    if use in (Use.BATCH_WRITE, Use.STREAM_WRITE):
        columns = StructType().add("value", BinaryType())
        make = source.writer if use is Use.BATCH_WRITE else source.streamWriter
        return make(columns, False)
    made = source.reader if use is Use.BATCH_READ else source.streamReader
    return made(schema or source.schema())


def base(use):
    return READ if use in (Use.BATCH_READ, Use.STREAM_READ) else WRITE


def test_every_option_with_limited_uses_is_tested():
    limited = {name for _, uses, names in module._GROUPS for name in names if len(uses) < 4}
    assert limited == set(VALUES) | {"txnAppId", "txnVersion", "txnReplay"}


@pytest.mark.parametrize(
    ("use", "name"),
    sorted(WITHOUT_EFFECT, key=lambda one: (one[0].value, one[1])),
    ids=lambda one: getattr(one, "name", one),
)
def test_an_option_without_effect_is_refused_by_name(topic, use, name):
    with pytest.raises(ConfigError) as caught:
        ask(topic.path, use, {**base(use), name: VALUES[name]})
    assert f"'{name}' = '{VALUES[name]}' has no effect in {use.value}" in str(caught.value)


@pytest.mark.parametrize("use", list(Use), ids=lambda use: use.name)
def test_an_option_is_accepted_where_it_has_an_effect(topic, use):
    for _, uses, names in module._GROUPS:
        for name in (names & VALUES.keys()) if use in uses else ():
            given = base(use) if name not in SUBSCRIPTIONS else {}
            ask(topic.path, use, {**given, name: VALUES[name]})


@pytest.mark.parametrize("name", ["txnAppId", "txnVersion", "txnReplay"])
@pytest.mark.parametrize("use", [Use.BATCH_READ, Use.STREAM_READ, Use.STREAM_WRITE])
def test_options_of_a_version_are_refused_outside_a_batch_write(topic, use, name):
    value = {"txnAppId": "x", "txnVersion": "1", "txnReplay": "last"}[name]
    with pytest.raises(ConfigError) as caught:
        ask(topic.path, use, {**base(use), name: value})
    assert f"'{name}' = '{value}' has no effect in {use.value}" in str(caught.value)
    assert ("write_once" in str(caught.value)) == (use is Use.STREAM_WRITE)


@pytest.mark.parametrize(
    "given",
    [{"txnAppId": "x"}, {"txnVersion": "1"}, {"txnReplay": "last"}, {"txnReplay": "any"}],
)
def test_a_batch_write_refuses_half_of_a_version(topic, given):
    with pytest.raises(ConfigError, match="'txnAppId'.*'txnVersion'.*set both"):
        ask(topic.path, Use.BATCH_WRITE, {**WRITE, **given})


@pytest.mark.parametrize("use", list(Use), ids=lambda use: use.name)
def test_settings_of_kafka_clients_are_accepted_in_every_use(topic, use):
    given = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.compression.type": "zstd",
        "groupIdPrefix": "g",
        "checkpointLocation": "/c",
    }
    ask(topic.path, use, {**base(use), **given})


@pytest.mark.parametrize("use", [Use.BATCH_READ, Use.BATCH_WRITE], ids=lambda use: use.name)
def test_options_of_a_view_serve_reads_and_writes(topic, use):
    view = {**READ, **WRITE, "compression": "zstd", "endingOffsets": "latest"}
    ask(topic.path, use, view)
    with pytest.raises(ConfigError, match="'commitGroup' = 'g' has no effect in a batch read"):
        ask(topic.path, Use.BATCH_READ, {**view, "commitGroup": "g"})


@pytest.mark.parametrize(
    ("given", "column"),
    [
        ({"columns": "key"}, "value string"),
        ({"columns": "value,key"}, "key binary, value binary"),
        ({"includeHeaders": "true"}, "value binary"),
        ({"valueFormat": "string"}, "value binary"),
        ({"keyFormat": "string"}, "key binary, value binary"),
    ],
)
@pytest.mark.parametrize("use", [Use.BATCH_READ, Use.STREAM_READ], ids=lambda use: use.name)
def test_an_option_that_a_schema_overrides_is_refused(topic, use, given, column):
    schema = StructType()
    for one in column.split(", "):
        name, kind = one.split()
        schema.add(name, BinaryType() if kind == "binary" else StringType())
    with pytest.raises(ConfigError, match=f"'{next(iter(given))}' = .* no effect with a schema"):
        ask(topic.path, use, {**READ, **given}, schema)


def test_options_that_agree_with_a_schema_are_accepted(topic):
    schema = StructType().add("key", StringType()).add("value", BinaryType())
    given = {**READ, "columns": "key,value", "keyFormat": "string"}
    ask(topic.path, Use.BATCH_READ, given, schema)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"includeHeaders": "true", "columns": "key, value"},
            "'includeHeaders' .* no effect with 'columns' = 'key, value'",
        ),
        (
            {"isolationLevel": "read_uncommitted", "kafka.isolation.level": "read_committed"},
            "'isolationLevel' = 'read_uncommitted' .* = 'read_committed' differ",
        ),
        (
            {"startingOffsets": '{"t": {"0": 2}}', "endingOffsets": '{"t": {"0": 1}}'},
            "'startingOffsets': the start of t-0 is 2, after the end 1 of 'endingOffsets'",
        ),
        (
            {"startingTimestamp": "1000", "endingTimestamp": "10"},
            "'startingTimestamp': the start is 1000, after the end 10 of 'endingTimestamp'",
        ),
        (
            {"startingTimestamp": "9", "endingOffsetsByTimestamp": '{"t": {"0": 9, "1": 8}}'},
            "'startingTimestamp': the start of t-1 is 9, after the end 8",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "endingTimestamp": "4"},
            "'startingOffsetsByTimestamp': the start of t-0 is 5, after the end 4",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Options.parse({"path": "/data", **READ, **given})


@pytest.mark.parametrize(
    "given",
    [
        {"includeHeaders": "true", "columns": "value,headers"},
        {"includeHeaders": "false", "columns": "value"},
        {"isolationLevel": "READ_COMMITTED", "kafka.isolation.level": "read_committed"},
        {"startingOffsets": '{"t": {"0": 1}}', "endingOffsets": '{"t": {"0": 1}}'},
        {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": -1}}'},
        {"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": '{"t": {"0": 0}}'},
        {"startingOffsets": '{"t": {"0": 5}}', "endingTimestamp": "1"},
        {"startingTimestamp": "7", "endingTimestamp": "7"},
    ],
)
def test_empty_ranges_and_equal_options_are_accepted(given):
    Options.parse({"path": "/data", **READ, **given})


@pytest.mark.parametrize("name", ["txnAppId", "txnVersion", "txnReplay", "TXNREPLAY"])
def test_write_once_refuses_an_option_that_it_sets(name):
    with pytest.raises(ConfigError, match=f"write_once: options '{name}' are set from the query"):
        write_once("/data", "t", app_id="a", **{name: "1"})


def test_write_once_refuses_an_option_of_a_read_before_the_query():
    with pytest.raises(ConfigError, match="'startingOffsets' = 'earliest' has no effect"):
        write_once("/data", "t", app_id="a", startingOffsets="earliest")
    write_once("/data", "t", app_id="a", compression="zstd")
