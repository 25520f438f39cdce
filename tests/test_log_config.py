"""Settings of a directory, given to `open`: they take effect, and nobody's are changed silently."""

from __future__ import annotations

import pytest

from eoslog.errors import ConfigError, InvalidTransactionTimeout
from eoslog.log import open as open_log
from eoslog.model import TopicPartition


def test_the_longest_transaction_timeout_is_what_open_was_told(path):
    with open_log(path, {"transaction.max.timeout.ms": 1000}) as log:
        for timeout_ms in (1000, 1001):
            call = lambda t=timeout_ms: log.engine.transactions.init_producer_id("x", t)  # noqa: E731
            if timeout_ms > 1000:
                with pytest.raises(InvalidTransactionTimeout, match="1000"):
                    call()
            else:
                assert call().producer_epoch == 0


def test_idle_transactional_ids_expire_when_open_was_told(path):
    with open_log(path, transactional_id_expiration_ms=1) as log:
        log.engine.transactions.init_producer_id("idle", 1000)
        log.engine.clock = lambda now=log.engine.clock(): now + 10
        log.engine.transactions.expire()
        assert log.transactions(open_only=False) == []


def test_the_cleanup_runs_as_often_as_open_was_told(path):
    with open_log(
        path,
        {
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 77_000,
            "transaction.remove.expired.transaction.cleanup.interval.ms": 88_000,
            "log.flush.offset.checkpoint.interval.ms": 99_000,
        },
    ) as log:
        every = {task.interval_s for task in log.engine._background._tasks}
    assert {77.0, 88.0, 99.0} <= every


def test_counts_of_internal_partitions_are_fixed_at_creation(path):
    counts = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 1}
    with open_log(path, counts) as log:
        log.engine.transactions.init_producer_id("x", 1000)
        assert log.engine.properties.transaction_partitions == 3
        log.create_topic("t")
        log.reset_offsets("g", {TopicPartition("t", 0): 0})
        assert [p.name for p in log.engine.group_partitions()] == ["__consumer_offsets-0"]
    with pytest.raises(ConfigError, match=r"partitions 4 asked.*with 3"):
        open_log(path, {"transaction.state.log.num.partitions": 4})
    open_log(path, {"transaction.state.log.num.partitions": 3}).close()


def test_a_second_handle_may_not_change_the_first_ones_settings(path):
    with open_log(path, {"transaction.max.timeout.ms": 1000}):
        open_log(path).close()
        open_log(path, {"transaction.max.timeout.ms": 1000}).close()
        with pytest.raises(ConfigError, match=r"2000 asked.*open with 1000"):
            open_log(path, {"transaction.max.timeout.ms": 2000})


def test_durability_may_stand_among_the_settings(path):
    with open_log(path, {"durability": "os"}) as log:
        assert log.engine.durability == "os"
    with pytest.raises(ConfigError, match="strict.*os"):
        open_log(path, {"durability": "strict"})


def test_an_unknown_key_is_refused_with_the_nearest(path):
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        open_log(path, {"transaction.max.timout.ms": 1000})


@pytest.mark.slow
def test_the_segments_of_the_internal_topics_are_as_large_as_open_was_told(path):
    """Whoever opens one of their partitions folds what is not compacted: a broker's 100 MiB is too much."""
    with open_log(path) as log:
        sizes = [
            log.engine.partition(topic, 0).settings.segment_bytes
            for topic in ("__transaction_state", "__consumer_offsets")
        ]
    assert sizes == [1 << 18, 1 << 18]
    told = {"transaction.state.log.segment.bytes": 5_000, "offsets.topic.segment.bytes": 7_000}
    with open_log(path, told) as log:
        clog = log.engine.partition("__transaction_state", 0)
        assert log.engine.partition("__consumer_offsets", 0).settings.segment_bytes == 7_000
        names = (str(i) for i in range(10_000))
        ids = [name for name in names if log.engine.transaction_partition(name) is clog][:100]
        for name in ids:
            log.engine.transactions.init_producer_id(name, 1000)
        assert len(clog.reader.bases()) > 2
