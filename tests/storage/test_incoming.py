"""What a topic demands of the batches that come in: times within bounds, one codec."""

from __future__ import annotations

import time

import pytest

from eoslog import _core
from eoslog.errors import CorruptRecord, ErrorCode, KafkaError
from eoslog.storage import codecs
from eoslog.storage.log_settings import LogSettings
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
def test_a_record_out_of_the_topics_time_is_refused_with_its_batch(
    tmp_path, settings, ages, compression
):
    with opened(str(tmp_path), **settings) as log:
        with pytest.raises(KafkaError, match=r"t-0.*message\.timestamp\.\w+\.max\.ms") as caught:
            log.append(records(*ages, compression=compression))
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert log.log_end == 0
        log.append(records(HOUR // 2, -HOUR // 2, compression=compression))
        assert log.log_end == 2


def test_a_record_without_a_time_and_a_topic_of_append_times_know_no_bounds(tmp_path):
    with opened(str(tmp_path), **BEFORE, **AFTER) as log:
        log.append(records(None))
        log.configure(LogSettings(**BEFORE, log_append_time=True))
        log.append(records(10 * HOUR))
        assert log.log_end == 2


def test_what_is_stored_already_is_answered_and_not_judged_anew(tmp_path):
    """A retry that comes late must not fail: its sender would send the records once more."""
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
def test_batches_are_stored_in_the_topics_codec(tmp_path, codec, sent):
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


def test_a_damaged_batch_is_refused_and_not_mended_by_another_codec(tmp_path):
    data = bytearray(batch(3))
    data[-2] ^= 1
    with opened(str(tmp_path), compression_type="gzip") as log:
        with pytest.raises(CorruptRecord, match="CRC"):
            log.append(data)
        assert log.log_end == 0


def test_the_producers_codec_is_kept_where_the_topic_says_so(tmp_path):
    data = records(0, compression="lz4")
    with opened(str(tmp_path), compression_type="producer") as log:
        log.append(data)
        (stored,) = log.batches(0, 1)
        plain = codecs.decompress("lz4", data[61:])
        assert (stored.compression, stored.tobytes()[61:]) == ("lz4", data[61:])
        assert codecs.decompress("lz4", stored.tobytes()[61:]) == plain


@pytest.mark.parametrize(("jitter", "least", "most"), [(0, 0, 0), (2, 1, 29), (1000, 25, 30)])
def test_segments_roll_up_to_segment_jitter_ms_early(tmp_path, jitter, least, most):
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
