"""Settings have the effect that Kafka documents; seen where a user sees it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

import eoslog
from eoslog.config.keys import ConsumerConfig, TopicConfig
from eoslog.engine import engine as engine_module
from eoslog.errors import CorruptRecord, ErrorCode, KafkaError, StorageError
from eoslog.log import Log
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.format import codecs
from eoslog.storage.log.published_end import PublishedEnd

T0 = TopicPartition("t", 0)


@pytest.fixture
def log(path):
    with eoslog.open(path) as opened:
        yield opened


def filled(log: Log, count: int, **topic: object) -> None:
    """A topic `t` of batches of one record."""
    log.create_topic("t", config=topic)
    with log.producer() as producer:
        for i in range(count):
            producer.produce("t", b"v" * 100, b"%d" % i)
            producer.flush()


def read(log: Log) -> list[Any]:
    """Every committed record of `t`."""
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        return consumer.consume(10_000, timeout=60)


# --- what a directory takes ---------------------------------------------------------------------


def test_offset_metadata_max_bytes_limits_the_metadata_of_offsets(path):
    with eoslog.open(path, {"offset.metadata.max.bytes": 3}) as log:
        log.create_topic("t")
        log.reset_offsets("g", {T0: OffsetAndMetadata(0, -1, "abc")})
        with pytest.raises(
            KafkaError, match=r"3 characters \(offset\.metadata\.max\.bytes\)"
        ) as caught:
            log._engine.groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(0, -1, "abcd")})
        assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_metadata_too_large_for_a_record_is_rejected_at_any_limit(path):
    with eoslog.open(path, {"offset.metadata.max.bytes": 100_000}) as log:
        log.create_topic("t")
        commit = log._engine.groups.commit_offsets
        commit("g", "", -1, {T0: OffsetAndMetadata(0, -1, "x" * 32_767)})
        with pytest.raises(KafkaError) as caught:
            commit("g", "", -1, {T0: OffsetAndMetadata(0, -1, "ü" * 16_384)})
        assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize(("timeout_ms", "fits"), [(999, 0), (1000, 1), (2000, 1), (2001, 0)])
def test_session_timeouts_must_be_within_the_bounds_of_the_directory(path, timeout_ms, fits):
    bounds = {"group.min.session.timeout.ms": 1000, "group.max.session.timeout.ms": 2000}
    with eoslog.open(path, bounds) as log:
        log.create_topic("t")
        join = log._engine.groups.join
        if fits:
            join("g", subscription=["t"], session_timeout_ms=timeout_ms)
        else:
            with pytest.raises(KafkaError, match=str(timeout_ms)) as caught:
                join("g", subscription=["t"], session_timeout_ms=timeout_ms)
            assert caught.value.code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_group_max_size_limits_the_members_of_a_group(path):
    with eoslog.open(path, {"group.max.size": 2}) as log:
        log.create_topic("t", 4)
        groups = log._engine.groups
        first = groups.join("g", subscription=["t"])
        groups.join("g", subscription=["t"], instance_id="static")
        with pytest.raises(KafkaError, match="has 2 members, and group.max.size is 2") as caught:
            groups.join("g", subscription=["t"])
        assert caught.value.code == ErrorCode.GROUP_MAX_SIZE_REACHED
        # Members stay members: after a changed subscription, and after a takeover of a static
        # name.
        groups.join("g", first, subscription=["t", "u"])
        groups.join("g", subscription=["t"], instance_id="static")
        groups.leave("g", first)
        groups.join("g", subscription=["t"])
        assert len(groups.describe_group("g").members) == 2


def test_retention_runs_at_its_interval_and_compaction_every_round(path):
    settings = {"log.retention.check.interval.ms": 77_000, "log.cleaner.backoff.ms": 55_000}
    with eoslog.open(path, settings) as log:
        filled(log, 5, **{"segment.bytes": 200, "retention.bytes": 0})
        calls: list[float] = []
        cleaning = log._engine.cleaning
        real = cleaning.round
        cleaning.round = lambda *args: calls.append(args[1])  # type: ignore[method-assign]
        tasks = log._engine._background._timers
        next(task for task in tasks if task.interval_s == 55).run()
        log._engine._background.tasks.join()
        assert calls == [77.0]

        assert real(0.0, 3600.0)  # the first round of a process looks at everything
        start = log._engine.partition("t", 0).log_start
        assert start > 0
        with log.producer() as producer:
            for _ in range(5):
                producer.produce("t", b"v" * 100)
                producer.flush()
        assert not real(0.0, 3600.0)  # nothing is due
        assert log._engine.partition("t", 0).log_start == start
        log._engine.topics.alter("t", {"cleanup.policy": "compact,delete"})
        assert real(0.0, 3600.0)  # the cleaner deletes from compacted topics itself, as in Kafka
        assert log._engine.partition("t", 0).log_start > start


def test_offsets_retention_minutes_bounds_the_age_of_offsets(path):
    with eoslog.open(path, {"offsets.retention.minutes": 1}) as log:
        log.create_topic("t")
        log.reset_offsets("g", {T0: 0})
        engine = log._engine
        task = next(
            t for t in engine._background._timers if t.interval_s == engine_module._OFFSETS_CHECK_S
        )
        for later, groups in ((30, ["g"]), (61, [])):
            engine.clock = lambda until=time.time() + later: until
            task.run()
            engine._background.tasks.join()
            assert log.groups() == groups


# --- topics -------------------------------------------------------------------------------------


def test_flush_messages_flushes_before_flush_ms_has_passed(log):
    log.create_topic("t", config={"flush.ms": 3_600_000, "flush.messages": 3})
    partition = log._engine.partition("t", 0)
    with log.producer(acks=1) as producer:
        for _ in range(2):
            producer.send("t", b"v").result(60)
        assert partition.durable_end == 0
        producer.send("t", b"v").result(60)
        assert partition.wait(2, 60, of=PublishedEnd.DURABLE_END)


def test_timestamp_bounds_of_a_topic_reject_records_but_not_the_producer(log):
    log.create_topic("t", config={"message.timestamp.after.max.ms": 3_600_000})
    far = int(time.time() * 1000) + 7_200_000
    with log.producer() as producer:
        with pytest.raises(KafkaError, match=r"message\.timestamp\.after\.max\.ms") as caught:
            producer.send("t", b"ahead", timestamp=far).result(60)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert not caught.value.retriable
        producer.send("t", b"now").result(60)
    assert [r.value for r in read(log)] == [b"now"]


def test_a_transaction_with_a_record_out_of_bounds_is_aborted(log):
    log.create_topic("t", config={"message.timestamp.before.max.ms": 3_600_000})
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with pytest.raises(KafkaError), producer.transaction():
            producer.produce("t", b"now")
            producer.flush()
            producer.produce("t", b"old", timestamp=1000)
        with producer.transaction():
            producer.produce("t", b"again")
    assert [r.value for r in read(log)] == [b"again"]


def test_the_codec_of_a_topic_is_stored_and_read(log):
    log.create_topic("t", config={"compression.type": "gzip"})
    with log.producer(transactional_id="x", compression_type="zstd") as producer:
        producer.init_transactions()
        with producer.transaction():
            for i in range(100):
                producer.produce("t", b"v%d" % i)
    stored = log._engine.partition("t", 0).batches(0, 100)
    assert {batch.compression for batch in stored} == {"gzip"}
    assert [r.value for r in read(log)] == [b"v%d" % i for i in range(100)]


def test_a_full_index_ends_its_segment(log):
    filled(log, 9, **{"segment.index.bytes": 24, "index.interval.bytes": 0})
    assert len(log._engine.partition("t", 0).segments.bases()) > 2


# --- clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "level", "key"),
    [
        ("gzip", 1, "compression.gzip.level"),
        ("lz4", 12, "compression.lz4.level"),
        ("zstd", 19, "compression.zstd.level"),
        ("zstd", 19, "compression.level"),
    ],
)
def test_the_compression_level_of_a_codec_reaches_the_encoder(log, codec, level, key):
    log.create_topic("t")
    with log.producer({"compression.type": codec, key: level}, linger_ms=1000) as producer:
        for i in range(300):
            producer.produce("t", b"%d some words that are written again, %d times" % (i, i * 7))
    batch = next(log._engine.partition("t", 0).batches(0, 300))
    payload = batch.tobytes()[61:]
    plain = codecs.decompress(codec, payload)
    assert payload == codecs.compress(codec, plain, level)
    assert payload != codecs.compress(codec, plain)


@pytest.mark.parametrize("key", ["fetch_max_bytes", "max_partition_fetch_bytes"])
@pytest.mark.parametrize("batches", [1, 3])
def test_partitions_alternate_after_max_partition_fetch_bytes(log, key, batches):
    log.create_topic("t", 2)
    with log.producer() as producer:
        for i in range(12):
            producer.produce("t", b"v" * 100, partition=i % 2)
            producer.flush()
    size = len(log._engine.partition("t", 0).read(0, 1)[0].data)
    limit = batches * size if batches > 1 else 0  # one batch is had in any case
    with log.consumer("t", auto_offset_reset="earliest", **{key: limit}) as consumer:
        turns = [consumer.poll(60).partition for _ in range(12)]
    assert turns == ([0] * batches + [1] * batches) * (6 // batches)


@pytest.mark.parametrize("client", [eoslog.Producer, eoslog.Consumer])
@pytest.mark.parametrize("keys", [{"log.create": "false"}, {"create": False}])
def test_a_client_creates_no_log_if_configured_not_to(tmp_path, client, keys):
    place = tmp_path / "missing"
    with pytest.raises(StorageError, match=f"no log to open; .*{place}"):
        client({"log.dir": place, **keys})
    assert not place.exists()
    client({"log.dir": place}).close()
    client({"log.dir": place, **keys}).close()


def test_the_producer_thread_is_named_after_its_client_id(log):
    log.create_topic("t")
    with log.producer(client_id="ingest", linger_ms=0) as producer:
        producer.produce("t", b"v")
        producer.flush()
        producer._sender.wake()
        assert "eoslog-sender ingest" in {thread.name for thread in threading.enumerate()}


def partitions_of(log: Log, count: int, **options: object) -> list[int]:
    with log.producer(**options) as producer:
        sent = [producer.send("t", b"v", b"one key") for _ in range(count)]
        return [one.result(60).partition for one in sent]


def test_the_partitioner_settings_choose_the_partition(log):
    log.create_topic("t", 4)
    assert len(set(partitions_of(log, 8))) == 1
    assert sorted(partitions_of(log, 8, partitioner_class="round_robin")) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert partitions_of(log, 2, partitioner_class=lambda topic, key, count: count - 1) == [3, 3]
    # By chance for each batch: 64 times the same one has odds of 4 ** -63.
    assert len(set(partitions_of(log, 64, partitioner_ignore_keys=True, batch_size=0))) > 1


@pytest.mark.parametrize(("when", "committed"), [("before", {T0: 1}), ("after", {})])
def test_auto_commit_when_commits_before_or_after_records_are_returned(log, when, committed):
    filled(log, 3)
    options = {"auto_commit_interval_ms": 0, "auto_offset_reset": "earliest"}
    with log.consumer("t", group_id="g", auto_commit_when=when, **options) as consumer:
        assert consumer.poll(60).offset == 0
        found = log._engine.groups.fetch_offsets("g")
        assert {p: o.offset for p, o in found.items()} == committed


@pytest.mark.parametrize("check", [True, False])
def test_checksums_are_verified_unless_check_crcs_is_off(log, check):
    filled(log, 1)
    name = f"{log.path}/t-0/00000000000000000000.log"
    with open(name, "r+b") as file:
        file.seek(-2, 2)
        file.write(b"!")
    with log.consumer("t", auto_offset_reset="earliest", check_crcs=check) as consumer:
        if check:
            with pytest.raises(CorruptRecord):
                consumer.poll(60)
        else:
            assert consumer.poll(60).value.endswith(b"v!")


def test_undecided_offsets_are_awaited_for_default_api_timeout_ms(log):
    filled(log, 1)
    with (
        log.producer(transactional_id="x") as producer,
        log.consumer(
            "t", group_id="g", default_api_timeout_ms=7, enable_auto_commit=False
        ) as consumer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: OffsetAndMetadata(1)}, "other")
        producer.send_offsets_to_transaction({T0: OffsetAndMetadata(1)}, "g")
        with pytest.raises(KafkaError, match=r"after 0\.007 s"):
            consumer.committed(T0)
        producer.abort_transaction()


def test_a_member_takes_its_next_step_within_heartbeat_interval_ms(log):
    filled(log, 1)
    for interval_ms in (1, 50):
        with log.consumer("t", group_id="g", heartbeat_interval_ms=interval_ms) as consumer:
            begun = time.monotonic()
            consumer.poll(0)
            due = consumer._membership.next_step
            assert begun < due - interval_ms / 1000 <= time.monotonic()


def test_the_client_id_of_a_member_is_shown(log):
    filled(log, 1)
    with log.consumer("t", group_id="g", client_id="reader-7") as consumer:
        consumer.poll(0)
        (member,) = log._engine.groups.describe_group("g").members
        assert member.client_id == "reader-7"


# --- what is accepted and has no effect ----------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "key"),
    [
        (ConsumerConfig, "fetch.min.bytes"),
        (ConsumerConfig, "fetch.max.wait.ms"),
        (ConsumerConfig, "fetch.wait.max.ms"),  # librdkafka's name of it
        (ConsumerConfig, "request.timeout.ms"),
        (ConsumerConfig, "retry.backoff.ms"),
        (ConsumerConfig, "exclude.internal.topics"),
        (TopicConfig, "file.delete.delay.ms"),
    ],
)
def test_keys_without_meaning_in_a_library_are_accepted_and_logged(cls, key, caplog):
    caplog.set_level(logging.DEBUG, logger="eoslog.config")
    assert cls.of({key: "1"}).given == frozenset()
    assert cls._name(key) in caplog.text
