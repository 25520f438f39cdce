"""Settings given to `open` take effect and never change those of another handle."""

from __future__ import annotations

import pytest

import eoslog
from eoslog.errors import ConfigError, InvalidTransactionTimeout
from eoslog.model import TopicPartition
from eoslog.opening import open as open_log


def test_transaction_max_timeout_ms_limits_transaction_timeouts(path):
    with open_log(path, {"transaction.max.timeout.ms": 1000}) as log:
        for timeout_ms in (1000, 1001):
            call = lambda t=timeout_ms: log._engine.transactions.init_producer_id("x", t)  # noqa: E731
            if timeout_ms > 1000:
                with pytest.raises(InvalidTransactionTimeout, match="1000"):
                    call()
            else:
                assert call().producer_epoch == 0


def test_transaction_max_timeout_ms_allows_longer_transactions(path):
    hour = 3_600_000
    with open_log(path, {"transaction.max.timeout.ms": hour}) as log:
        log.create_topic("t")
        with pytest.raises(InvalidTransactionTimeout, match="3600001.*transaction.max.timeout.ms"):
            log.producer(transactional_id="x", transaction_timeout_ms=hour + 1)
        with log.producer(transactional_id="x", transaction_timeout_ms=hour) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"1")
            producer.flush()
            log._engine.clock = lambda now=log._engine.clock(): now + 1800
            log._engine.transactions.abort_timed_out()  # it would abort one of 900,000 ms
            producer.commit_transaction()
        assert [record.value for record in log.read("t")] == [b"1"]


def test_a_producer_that_the_log_refuses_keeps_no_directory_open(path):
    open_log(path).close()
    with pytest.raises(InvalidTransactionTimeout):
        eoslog.Producer(log_dir=path, transactional_id="x", transaction_timeout_ms=900_001)
    with open_log(path, {"transaction.max.timeout.ms": 1_000_000}):  # no handle has other settings
        eoslog.Producer(log_dir=path, transactional_id="x", transaction_timeout_ms=900_001).close()


def test_transactional_id_expiration_ms_expires_idle_ids(path):
    with open_log(path, transactional_id_expiration_ms=1) as log:
        log._engine.transactions.init_producer_id("idle", 1000)
        log._engine.clock = lambda now=log._engine.clock(): now + 10
        log._engine.transactions.expire()
        assert log.transactions(open_only=False) == []


def test_cleanup_intervals_set_the_timers_of_the_background(path):
    with open_log(
        path,
        {
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 77_000,
            "transaction.remove.expired.transaction.cleanup.interval.ms": 88_000,
            "log.flush.offset.checkpoint.interval.ms": 99_000,
        },
    ) as log:
        every = {task.interval_s for task in log._engine._background._timers}
    assert {77.0, 88.0, 99.0} <= every


def test_numbers_of_internal_partitions_are_fixed_at_creation(path):
    counts = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 1}
    with open_log(path, counts) as log:
        log._engine.transactions.init_producer_id("x", 1000)
        assert log._engine.properties.transaction_partitions == 3
        log.create_topic("t")
        log.reset_offsets("g", {TopicPartition("t", 0): 0})
        assert [p.name for p in log._engine.group_partitions()] == ["__consumer_offsets-0"]
    with pytest.raises(ConfigError, match=r"partitions is 3 .*got 4"):
        open_log(path, {"transaction.state.log.num.partitions": 4})
    open_log(path, {"transaction.state.log.num.partitions": 3}).close()


def test_a_second_handle_cannot_change_the_settings_of_the_first(path):
    with open_log(path, {"transaction.max.timeout.ms": 1000}):
        open_log(path).close()
        open_log(path, {"transaction.max.timeout.ms": 1000}).close()
        with pytest.raises(ConfigError, match=r"expected 1000, .*got 2000"):
            open_log(path, {"transaction.max.timeout.ms": 2000})


def test_durability_is_accepted_among_the_settings(path):
    with open_log(path, {"durability": "os"}) as log:
        assert log._engine.durability == "os"
    with pytest.raises(ConfigError, match="os.*strict"):
        open_log(path, {"durability": "strict"})


def test_an_unknown_key_is_rejected_with_the_nearest_key(path):
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        open_log(path, {"transaction.max.timout.ms": 1000})


@pytest.mark.slow
def test_segment_bytes_of_internal_topics_follow_the_settings_of_open(path):
    """Opening a partition folds what is not compacted, so segments are small."""
    with open_log(path) as log:
        sizes = [
            log._engine.partition(topic, 0).settings.segment_bytes
            for topic in ("__transaction_state", "__consumer_offsets")
        ]
    assert sizes == [1 << 20, 1 << 18]
    told = {"transaction.state.log.segment.bytes": 5_000, "offsets.topic.segment.bytes": 7_000}
    with open_log(path, told) as log:
        clog = log._engine.partition("__transaction_state", 0)
        assert log._engine.partition("__consumer_offsets", 0).settings.segment_bytes == 7_000
        names = (str(i) for i in range(10_000))
        ids = [name for name in names if log._engine.transaction_partition(name) is clog][:100]
        for name in ids:
            log._engine.transactions.init_producer_id(name, 1000)
        assert len(clog.segments.bases()) > 2
