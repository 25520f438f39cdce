"""Every key of every configuration has an effect that a test shows, or is listed as ignored."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from eoslog.config import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.config_parsing import Settings

HERE = Path(__file__).parent
EFFECTS = "test_config_effects.py::test_"
ROWS_B = "rows/test_b_producer.py::test_"
LOG = "test_log_config.py::test_"
EXPIRY = "storage/test_producer_expiry.py::test_"
PARTITION = "storage/test_partition_log.py::test_"
COMPACTION = "storage/test_compaction.py::test_"
PRODUCER = "client/test_producer.py::test_"
COMMITS = "client/consumer/test_commits.py::test_"
PROCESSES = "client/test_consumer_processes.py::test_"

SHOWN: dict[type[Settings], dict[str, str]] = {
    LogConfig: {
        "durability": LOG + "durability_may_stand_among_the_settings",
        "transaction.state.log.num.partitions": LOG + "counts_of_internal_partitions_are_fixed_at_creation",
        "offsets.topic.num.partitions": LOG + "counts_of_internal_partitions_are_fixed_at_creation",
        "transaction.state.log.segment.bytes": LOG
        + "the_segments_of_the_internal_topics_are_as_large_as_open_was_told",
        "offsets.topic.segment.bytes": LOG
        + "the_segments_of_the_internal_topics_are_as_large_as_open_was_told",
        "transaction.max.timeout.ms": LOG + "the_longest_transaction_timeout_is_what_open_was_told",
        "transactional.id.expiration.ms": LOG + "idle_transactional_ids_expire_when_open_was_told",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": LOG
        + "the_cleanup_runs_as_often_as_open_was_told",
        "transaction.remove.expired.transaction.cleanup.interval.ms": LOG
        + "the_cleanup_runs_as_often_as_open_was_told",
        "log.flush.offset.checkpoint.interval.ms": LOG + "the_cleanup_runs_as_often_as_open_was_told",
        "producer.id.expiration.ms": EXPIRY + "an_open_directory_forgets_who_has_not_written",
        "producer.id.expiration.check.interval.ms": EXPIRY
        + "an_open_directory_forgets_who_has_not_written",
        "offsets.retention.minutes": EFFECTS + "committed_offsets_live_as_long_as_open_was_told",
        "offset.metadata.max.bytes": EFFECTS + "the_longest_offset_metadata_is_what_open_was_told",
        "group.min.session.timeout.ms": EFFECTS + "session_timeouts_lie_within_the_directorys_bounds",
        "group.max.session.timeout.ms": EFFECTS + "session_timeouts_lie_within_the_directorys_bounds",
        "group.max.size": EFFECTS + "a_group_takes_no_more_members_than_it_may_have",
        "log.retention.check.interval.ms": EFFECTS
        + "retention_runs_every_log_retention_check_interval_ms_and_compaction_every_round",
        "log.cleaner.backoff.ms": EFFECTS
        + "retention_runs_every_log_retention_check_interval_ms_and_compaction_every_round",
    },
    ProducerConfig: {
        "log.create": EFFECTS + "a_client_makes_no_log_where_it_was_told_not_to",
        "log.dir": PRODUCER + "a_books_configuration_works_offline",
        "client.id": EFFECTS + "the_producers_thread_bears_its_client_id",
        "acks": "faults/test_producer.py::test_A01_acks_0_loses_and_never_repeats",
        "enable.idempotence": "rows/test_c_idempotence.py::test_A16_a_lost_acknowledgement_makes_a_copy_only_without_idempotence",
        "retries": ROWS_B + "B09_retries_are_bounded_by_time_and_not_by_number",
        # Checked only: the batches of a partition go one after the other.
        "max.in.flight.requests.per.connection": ROWS_B + "B10_what_idempotence_needs",
        "delivery.timeout.ms": "rows/test_c_idempotence.py::test_B09_a_fault_that_stays_ends_at_the_delivery_timeout",
        "request.timeout.ms": "client/test_producer_waits.py::test_a_locked_partition_is_tried_for_request_timeout_ms",
        "linger.ms": PRODUCER + "linger_is_kept_without_anybody_polling",
        "batch.size": "rows/test_e_states.py::test_E34_many_batches_in_many_partitions_are_one_transaction",
        "buffer.memory": PRODUCER + "a_full_buffer_blocks_then_raises",
        "max.block.ms": PRODUCER + "a_full_buffer_blocks_then_raises",
        "max.request.size": PRODUCER + "too_large_a_record_raises_at_the_call",
        "retry.backoff.ms": "rows/test_c_idempotence.py::test_C06_a_retry_keeps_its_sequence",
        "compression.type": EFFECTS + "a_codecs_level_is_what_the_producer_was_told",
        "compression.level": EFFECTS + "a_codecs_level_is_what_the_producer_was_told",
        "compression.gzip.level": EFFECTS + "a_codecs_level_is_what_the_producer_was_told",
        "compression.lz4.level": EFFECTS + "a_codecs_level_is_what_the_producer_was_told",
        "compression.zstd.level": EFFECTS + "a_codecs_level_is_what_the_producer_was_told",
        "transactional.id": EFFECTS + "a_transaction_with_a_record_out_of_bounds_is_aborted",
        "transaction.timeout.ms": "regressions/test_a_coordinator.py::test_R13_after_its_timeout_a_producer_can_neither_write_nor_commit",
        "partitioner.class": EFFECTS + "who_chooses_the_partition",
        "partitioner.ignore.keys": EFFECTS + "who_chooses_the_partition",
        "key.serializer": PRODUCER + "a_books_configuration_works_offline",
        "value.serializer": PRODUCER + "a_books_configuration_works_offline",
        "strict.duplicates": "client/test_producer_idempotence.py::test_strict_duplicates_are_told_as_errors",
        "eoslog.test.lose.acks": "client/test_producer_idempotence.py::test_many_lost_acknowledgements_store_each_record_once_in_order",
    },
    ConsumerConfig: {
        "log.create": EFFECTS + "a_client_makes_no_log_where_it_was_told_not_to",
        "log.dir": "rows/test_h_consumer.py::test_H03_exactly_once_demands_a_bound_producer",
        "client.id": EFFECTS + "a_members_client_id_is_shown",
        "group.id": EFFECTS + "a_members_client_id_is_shown",
        "group.instance.id": PROCESSES + "a_static_member_restarts_into_its_place",
        "isolation.level": "rows/test_a_semantics.py::test_A13_who_sees_what",
        "auto.offset.reset": EFFECTS + "partitions_take_turns_after_a_fetch_of_so_many_bytes",
        "enable.auto.commit": PROCESSES + "A15_a_stopped_member_is_replaced_and_its_late_commit_refused",
        "auto.commit.interval.ms": COMMITS + "H01_auto_commit_waits_for_its_interval",
        "auto.commit.when": EFFECTS + "auto_commit_before_or_after_records_are_handed_out",
        "processing.guarantee": "rows/test_h_consumer.py::test_H01_at_most_once_commits_before_it_hands_out",
        "check.crcs": EFFECTS + "checksums_are_compared_unless_the_consumer_was_told_not_to",
        "fetch.max.bytes": EFFECTS + "partitions_take_turns_after_a_fetch_of_so_many_bytes",
        "max.partition.fetch.bytes": EFFECTS + "partitions_take_turns_after_a_fetch_of_so_many_bytes",
        "max.poll.records": "client/consumer/test_reading.py::test_max_poll_records_hands_out_what_was_fetched_in_pieces",
        "max.poll.interval.ms": PROCESSES + "A15_a_member_that_polls_too_rarely_is_out_by_its_own_process",
        "session.timeout.ms": PROCESSES + "A15_a_stopped_member_is_replaced_and_its_late_commit_refused",
        "heartbeat.interval.ms": EFFECTS + "a_member_takes_its_next_step_within_heartbeat_interval_ms",
        "partition.assignment.strategy": PROCESSES + "every_strategy_balances_two_processes",
        "default.api.timeout.ms": EFFECTS
        + "undecided_offsets_are_waited_for_as_long_as_default_api_timeout_ms",
        "key.deserializer": ROWS_B + "B04_java_class_names_of_serializers",
        "value.deserializer": ROWS_B + "B04_java_class_names_of_serializers",
    },
    TopicConfig: {
        "cleanup.policy": "test_cleaning.py::test_records_of_a_topic_that_is_only_compacted_are_not_deleted",
        "compression.type": EFFECTS + "a_topics_codec_is_what_is_stored_and_read",
        "delete.retention.ms": COMPACTION + "a_tombstone_goes_after_its_horizon_only",
        "flush.messages": EFFECTS + "flush_messages_flushes_before_flush_ms_is_over",
        "flush.ms": EFFECTS + "flush_messages_flushes_before_flush_ms_is_over",
        "index.interval.bytes": PARTITION + "index_entries_follow_kafka_s_rule",
        "max.compaction.lag.ms": "test_cleaning.py::test_max_compaction_lag_seals_and_cleans_what_is_old",
        "max.message.bytes": PARTITION + "damaged_and_oversized_batches_are_refused_with_both_values",
        "message.timestamp.after.max.ms": EFFECTS
        + "a_topics_bounds_of_time_reach_the_producer_and_leave_it_usable",
        "message.timestamp.before.max.ms": EFFECTS
        + "a_transaction_with_a_record_out_of_bounds_is_aborted",
        "message.timestamp.type": PRODUCER + "log_append_time_is_told",
        "min.cleanable.dirty.ratio": COMPACTION + "lag_and_ratio_say_when",
        "min.compaction.lag.ms": COMPACTION + "lag_and_ratio_say_when",
        "retention.bytes": PARTITION + "retention_by_size_keeps_at_least_the_limit",
        "retention.ms": PARTITION + "retention_by_time_drops_expired_segments_even_the_active_one",
        "segment.bytes": LOG + "the_segments_of_the_internal_topics_are_as_large_as_open_was_told",
        "segment.index.bytes": EFFECTS + "an_index_that_is_full_ends_its_segment",
        "segment.jitter.ms": "storage/test_incoming.py::test_segments_roll_up_to_segment_jitter_ms_early",
        "segment.ms": PARTITION + "segments_roll_by_message_time",
    },
}  # fmt: skip


@pytest.mark.parametrize("cls", SHOWN)
def test_every_key_has_an_effect_that_a_test_shows(cls):
    """A key that nothing reads is not a field: it stands in `IGNORED`."""
    assert set(SHOWN[cls]) == set(cls.parsers())
    assert not cls.IGNORED & set(cls.parsers())
    for key, test in SHOWN[cls].items():
        path, name = test.split("::")
        source = (HERE / path).read_text()
        found = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert name in found, f"{key}: there is no {test}"
        assert key in source or key.replace(".", "_") in source, f"{key} does not stand in {path}"


def test_what_is_ignored_stands_in_the_documentation():
    text = (HERE.parent / "docs" / "limits.md").read_text()
    network = ProducerConfig.IGNORED
    ignored = ConsumerConfig.IGNORED - network
    for key in ignored | {"file.delete.delay.ms", "preallocate"}:
        assert f"`{key}`" in text, key
