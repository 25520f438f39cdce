"""A topic requires timestamps within bounds and one codec of its batches."""

from __future__ import annotations

import time

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import CorruptRecord, ErrorCode, KafkaError
from eoslog.storage.format import codecs
from eoslog.storage.log.settings import LogSettings
from tests.storage.helpers import batch, opened, payloads

HOUR = 3_600_000
BEFORE = {"message_timestamp_before_max_ms": HOUR}
AFTER = {"message_timestamp_after_max_ms": HOUR}


def records(*ages_ms: int, compression: str = "none", **producer: int) -> bytes:
    now = int(time.time() * 1000)
    times = [-1 if age is None else now - age for age in ages_ms]
    return _core.build_batch(
        [(at, b"k", b"value " * 20, ()) for at in times], compression=compression, **producer
    )


@pytest.mark.parametrize(
    ("settings", "ages"),
    [
        (BEFORE, [2 * HOUR]),
        (BEFORE, [0, 2 * HOUR, 0]),  # one in the middle: the header doesn't show it
        (AFTER, [-2 * HOUR]),
        (AFTER, [0, -2 * HOUR, 0]),
    ],
)
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_timestamp_outside_the_topics_bounds_rejects_the_batch(
    tmp_path, settings, ages, compression
):
    with opened(str(tmp_path), **settings) as log:
        with pytest.raises(KafkaError, match=r"t-0.*message\.timestamp\.\w+\.max\.ms") as caught:
            log.append(records(*ages, compression=compression))
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert log.log_end == 0
        log.append(records(HOUR // 2, -HOUR // 2, compression=compression))
        assert log.log_end == 2


def test_time_bounds_ignore_records_without_a_time_and_log_append_time(tmp_path):
    with opened(str(tmp_path), **BEFORE, **AFTER) as log:
        log.append(records(None))
        log.configure(LogSettings(**BEFORE, log_append_time=True))
        log.append(records(10 * HOUR))
        assert log.log_end == 2


def test_a_retry_of_a_stored_batch_is_answered_despite_new_time_bounds(tmp_path):
    """A late retry must not fail: its sender would send the records again."""
    producer = {"producer_id": 7, "producer_epoch": 0}
    old = [records(10 * HOUR, base_sequence=i, **producer) for i in range(3)]
    with opened(str(tmp_path)) as log:
        for data in old[:2]:
            log.append(data)
        log.configure(LogSettings(**BEFORE))
        for offset, data in enumerate(old[:2]):
            again = log.append(data)
            assert (again.base_offset, again.duplicate) == (offset, True)
        for fresh in (old[2], old[1] + old[2]):
            with pytest.raises(KafkaError) as caught:
                log.append(fresh)
            assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert log.log_end == 2


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", ["none", "zstd"])
def test_batches_are_stored_in_the_codec_of_the_topic(tmp_path, codec, sent):
    producer = {"producer_id": 7, "producer_epoch": 0}
    first = records(0, 1, 2, compression=sent, base_sequence=0, **producer)
    second = records(3, compression=sent, base_sequence=3, **producer)
    with opened(str(tmp_path), compression_type=codec) as log:
        log.append(first + second)
        stored = list(log.batches(0, 4))
        assert {b.compression for b in stored} == {codec.replace("uncompressed", "none")}
        assert all(b.valid for b in stored)
        assert [b.base_sequence for b in stored] == [0, 3]
        sent_records = [r[1:] for b in _core.iter_batches(first + second) for r in b.records()]
        assert [r[1:] for b in stored for r in b.records()] == sent_records
        assert log.append(first).duplicate
    with opened(str(tmp_path), compression_type=codec) as log:
        assert len(payloads(log)) == 4


def test_a_damaged_batch_is_rejected_and_not_recompressed(tmp_path):
    data = bytearray(batch(3))
    data[-2] ^= 1
    with opened(str(tmp_path), compression_type="gzip") as log:
        with pytest.raises(CorruptRecord, match="CRC"):
            log.append(data)
        assert log.log_end == 0


def test_the_codec_of_the_producer_is_kept_if_the_topic_says_so(tmp_path):
    data = records(0, compression="lz4")
    with opened(str(tmp_path), compression_type="producer") as log:
        log.append(data)
        (stored,) = log.batches(0, 1)
        plain = codecs.decompress("lz4", data[61:])
        assert (stored.compression, stored.tobytes()[61:]) == ("lz4", data[61:])
        assert codecs.decompress("lz4", stored.tobytes()[61:]) == plain


@pytest.mark.parametrize(("jitter", "least", "most"), [(0, 0, 0), (2, 1, 29), (1000, 25, 30)])
def test_segments_roll_at_most_segment_jitter_ms_early(tmp_path, jitter, least, most):
    """Drawn at each opening: with 2, half of the segments end after 999 ms."""
    early = 0
    with opened(str(tmp_path), segment_ms=1000) as log:
        for _ in range(30):
            log.configure(LogSettings(segment_ms=1000, segment_jitter_ms=jitter))
            log.roll()
            base = log.append(batch(1, timestamp=5000)).base_offset
            log.append(batch(1, timestamp=6000))
            early += log.core.active_base > base
    assert least <= early <= most


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_field_D1_an_error_about_a_timestamp_names_the_limit_and_the_key(
    tmp_path, side, compression
):
    ages = {"after": [0, -3 * HOUR, 0], "before": [0, 3 * HOUR, 0]}[side]
    with opened(str(tmp_path), **(AFTER if side == "after" else BEFORE)) as log:
        data = records(*ages, compression=compression)
        [batch_] = _core.iter_batches(data)
        stamp = batch_.records()[1][1]
        with pytest.raises(KafkaError) as caught:
            log.append(data)
    text = str(caught.value)
    assert f"t-0: timestamp {stamp} in a batch of 3 records is 10" in text
    assert f"ms {side} now (" in text
    assert f"the topic's message.timestamp.{side}.max.ms is {HOUR}; send another timestamp" in text


def test_field_D1_timestamps_are_unbounded_unless_a_topic_sets_bounds(tmp_path):
    """This default differs from Kafka's hour; kafka-compatibility.md says why."""
    ahead, back = int(time.time() * 1000) + 24 * 365 * HOUR, 1
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        log.create_topic("as_kafka", config={"message.timestamp.after.max.ms": HOUR})
        with log.producer() as producer:
            for stamp in (ahead, back):
                producer.send("t", b"v", timestamp=stamp).result(60)
            with pytest.raises(KafkaError, match=rf"timestamp {ahead} .*after\.max\.ms is {HOUR}"):
                producer.send("as_kafka", b"v", timestamp=ahead).result(60)
            producer.send("as_kafka", b"v", timestamp=back).result(60)
        assert [record.timestamp for record in log.read("t")] == [ahead, back]
