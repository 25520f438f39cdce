"""Every configuration key has an effect that a test shows, or is ignored.

The ignored keys are listed.
"""

from __future__ import annotations

import ast

import pytest

from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.config.parsing import Settings
from tests.paths import ROOT, TESTS

EFFECTS = "config/test_effects.py::test_"
ROWS_B = "rows/test_b_producer.py::test_"
LOG = "engine/test_log_config.py::test_"
DOCUMENTED = "config/test_documented_keys.py::test_field_C11_"
EXPIRY = "storage/log/test_producer_expiry.py::test_"
PARTITION = "storage/log/test_partition_log.py::test_"
DURABILITY = "coordinator/transactions/test_prepared_durability.py::test_"
COMPACTION = "storage/compaction/test_compactor.py::test_"
PRODUCER = "client/producer/test_producer.py::test_"
COMMITS = "client/consumer/test_commits.py::test_"
PROCESSES = "client/consumer/test_processes.py::test_"
NAMED = "client/producer/named/test_publishing_ids.py::test_"

SHOWN: dict[type[Settings], dict[str, str]] = {
    LogConfig: {
        "durability": LOG + "durability_is_accepted_among_the_settings",
        "transaction.state.log.num.partitions": LOG + "numbers_of_internal_partitions_are_fixed_at_creation",
        "offsets.topic.num.partitions": LOG + "numbers_of_internal_partitions_are_fixed_at_creation",
        "transaction.state.log.segment.bytes": LOG
        + "segment_bytes_of_internal_topics_follow_the_settings_of_open",
        "offsets.topic.segment.bytes": LOG
        + "segment_bytes_of_internal_topics_follow_the_settings_of_open",
        "transaction.max.timeout.ms": LOG + "transaction_max_timeout_ms_limits_transaction_timeouts",
        "outcome.retention.ms": DURABILITY + "an_outcome_is_forgotten_after_its_retention",
        "pending.max.count": DURABILITY
        + "the_limits_on_pending_transactions_refuse_the_next_one_only",
        "pending.max.bytes": DURABILITY
        + "the_limits_on_pending_transactions_refuse_the_next_one_only",
        "prepared.inline.max.ms": "client/prepared/test_inline_limit.py::test_"
        "the_background_moves_a_transaction_after_prepared_inline_max_ms",
        "transactional.id.expiration.ms": LOG + "transactional_id_expiration_ms_expires_idle_ids",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": LOG
        + "cleanup_intervals_set_the_timers_of_the_background",
        "transaction.remove.expired.transaction.cleanup.interval.ms": LOG
        + "cleanup_intervals_set_the_timers_of_the_background",
        "log.flush.offset.checkpoint.interval.ms": LOG + "cleanup_intervals_set_the_timers_of_the_background",
        "producer.id.expiration.ms": EXPIRY + "an_open_directory_expires_idle_producers_in_the_background",
        "producer.id.expiration.check.interval.ms": EXPIRY
        + "an_open_directory_expires_idle_producers_in_the_background",
        "publishing.id.expiration.ms": NAMED
        + "publishing_id_expiration_ms_forgets_ids_in_the_background",
        "offsets.retention.minutes": EFFECTS + "offsets_retention_minutes_bounds_the_age_of_offsets",
        "offset.metadata.max.bytes": EFFECTS + "offset_metadata_max_bytes_limits_the_metadata_of_offsets",
        "group.min.session.timeout.ms": EFFECTS + "session_timeouts_must_be_within_the_bounds_of_the_directory",
        "group.max.session.timeout.ms": EFFECTS + "session_timeouts_must_be_within_the_bounds_of_the_directory",
        "group.max.size": EFFECTS + "group_max_size_limits_the_members_of_a_group",
        "log.retention.check.interval.ms": EFFECTS
        + "retention_runs_at_its_interval_and_compaction_every_round",
        "log.cleaner.backoff.ms": EFFECTS
        + "retention_runs_at_its_interval_and_compaction_every_round",
    },
    ProducerConfig: {
        "name": NAMED + "ids_of_names_and_partitions_are_independent",
        "strict.ids": NAMED + "strict_ids_raise_and_keep_the_producer_usable",
        "log.create": EFFECTS + "a_client_creates_no_log_if_configured_not_to",
        "log.dir": PRODUCER + "a_java_style_configuration_works_without_a_broker",
        "client.id": EFFECTS + "the_producer_thread_is_named_after_its_client_id",
        "acks": "faults/test_producer.py::test_A01_acks_0_loses_records_and_never_repeats",
        "enable.idempotence": "rows/test_c_idempotence.py::test_A16_a_lost_acknowledgement_duplicates_only_without_idempotence",
        "retries": ROWS_B + "B09_retries_are_bounded_by_time_and_not_by_number",
        # Checked only: the batches of a partition go one after the other.
        "max.in.flight.requests.per.connection": ROWS_B + "B10_idempotence_rejects_settings_that_it_cannot_work_with",
        "delivery.timeout.ms": "rows/test_c_idempotence.py::test_B09_a_permanent_fault_ends_at_the_delivery_timeout",
        "request.timeout.ms": "client/producer/test_waits.py::test_a_locked_partition_is_tried_for_request_timeout_ms",
        "linger.ms": PRODUCER + "linger_ms_is_kept_without_calls_to_poll",
        "batch.size": "rows/test_e_states.py::test_E34_many_batches_in_many_partitions_form_one_transaction",
        "buffer.memory": PRODUCER + "a_full_buffer_blocks_and_then_raises",
        "max.block.ms": PRODUCER + "a_full_buffer_blocks_and_then_raises",
        "max.request.size": PRODUCER + "a_record_that_is_too_large_raises_in_produce",
        "retry.backoff.ms": "rows/test_c_idempotence.py::test_C06_a_retry_keeps_its_sequence",
        "compression.type": EFFECTS + "the_compression_level_of_a_codec_reaches_the_encoder",
        "compression.level": EFFECTS + "the_compression_level_of_a_codec_reaches_the_encoder",
        "compression.gzip.level": EFFECTS + "the_compression_level_of_a_codec_reaches_the_encoder",
        "compression.lz4.level": EFFECTS + "the_compression_level_of_a_codec_reaches_the_encoder",
        "compression.zstd.level": EFFECTS + "the_compression_level_of_a_codec_reaches_the_encoder",
        "transactional.id": EFFECTS + "a_transaction_with_a_record_out_of_bounds_is_aborted",
        "transaction.timeout.ms": "regressions/test_a_coordinator.py::test_R13_a_producer_cannot_write_or_commit_after_its_timeout",
        "partitioner.class": EFFECTS + "the_partitioner_settings_choose_the_partition",
        "partitioner.ignore.keys": EFFECTS + "the_partitioner_settings_choose_the_partition",
        "key.serializer": PRODUCER + "a_java_style_configuration_works_without_a_broker",
        "value.serializer": PRODUCER + "a_java_style_configuration_works_without_a_broker",
        "strict.duplicates": "client/producer/test_idempotence.py::test_strict_duplicates_are_reported_as_errors",
        "eoslog.test.lose.acks": "client/producer/test_idempotence.py::test_many_lost_acknowledgements_store_each_record_once_in_order",
    },
    ConsumerConfig: {
        "log.create": EFFECTS + "a_client_creates_no_log_if_configured_not_to",
        "log.dir": "rows/test_h_consumer.py::test_H03_exactly_once_requires_a_bound_producer",
        "client.id": EFFECTS + "the_client_id_of_a_member_is_shown",
        "group.id": EFFECTS + "the_client_id_of_a_member_is_shown",
        "group.instance.id": PROCESSES + "a_static_member_keeps_its_partitions_across_a_restart",
        "isolation.level": "rows/test_a_semantics.py::test_A13_each_isolation_level_shows_its_records",
        "auto.offset.reset": EFFECTS + "partitions_alternate_after_max_partition_fetch_bytes",
        "enable.auto.commit": PROCESSES + "A15_a_suspended_member_is_replaced_and_its_late_commit_rejected",
        "auto.commit.interval.ms": COMMITS + "H01_auto_commit_waits_for_its_interval",
        "auto.commit.when": EFFECTS + "auto_commit_when_commits_before_or_after_records_are_returned",
        "processing.guarantee": "rows/test_h_consumer.py::test_H01_at_most_once_commits_before_it_returns_records",
        "check.crcs": EFFECTS + "checksums_are_verified_unless_check_crcs_is_off",
        "fetch.max.bytes": EFFECTS + "partitions_alternate_after_max_partition_fetch_bytes",
        "max.partition.fetch.bytes": EFFECTS + "partitions_alternate_after_max_partition_fetch_bytes",
        "max.poll.records": "client/consumer/test_reading.py::test_consume_returns_at_most_max_poll_records",
        "max.poll.interval.ms": PROCESSES + "A15_a_member_that_polls_too_rarely_is_removed_by_its_own_process",
        "session.timeout.ms": PROCESSES + "A15_a_suspended_member_is_replaced_and_its_late_commit_rejected",
        "heartbeat.interval.ms": EFFECTS + "a_member_takes_its_next_step_within_heartbeat_interval_ms",
        "partition.assignment.strategy": PROCESSES + "every_assignment_strategy_balances_two_processes",
        "default.api.timeout.ms": EFFECTS
        + "undecided_offsets_are_awaited_for_default_api_timeout_ms",
        "key.deserializer": ROWS_B + "B04_java_class_names_of_serializers_are_accepted",
        "value.deserializer": ROWS_B + "B04_java_class_names_of_serializers_are_accepted",
    },
    TopicConfig: {
        "cleanup.policy": "engine/test_cleaning.py::test_delete_records_is_rejected_for_a_topic_that_is_only_compacted",
        "compression.type": EFFECTS + "the_codec_of_a_topic_is_stored_and_read",
        "compression.gzip.level": DOCUMENTED + "a_topic_keeps_the_level_it_was_stored_with",
        "compression.lz4.level": DOCUMENTED + "a_topic_keeps_the_level_it_was_stored_with",
        "compression.zstd.level": DOCUMENTED + "a_topic_keeps_the_level_it_was_stored_with",
        "delete.retention.ms": COMPACTION + "a_tombstone_is_deleted_only_after_its_horizon",
        "flush.messages": EFFECTS + "flush_messages_flushes_before_flush_ms_has_passed",
        "flush.ms": EFFECTS + "flush_messages_flushes_before_flush_ms_has_passed",
        "index.interval.bytes": PARTITION + "index_entries_follow_kafkas_rule",
        "max.compaction.lag.ms": "engine/test_cleaning.py::test_max_compaction_lag_seals_and_cleans_old_segments",
        "max.message.bytes": PARTITION + "damaged_and_oversized_batches_are_rejected_with_both_values",
        "message.timestamp.after.max.ms": EFFECTS
        + "timestamp_bounds_of_a_topic_reject_records_but_not_the_producer",
        "message.timestamp.before.max.ms": EFFECTS
        + "a_transaction_with_a_record_out_of_bounds_is_aborted",
        "message.timestamp.type": PRODUCER + "metadata_contains_the_log_append_time",
        "min.cleanable.dirty.ratio": COMPACTION + "lag_and_dirty_ratio_decide_when_cleaning_starts",
        "min.compaction.lag.ms": COMPACTION + "lag_and_dirty_ratio_decide_when_cleaning_starts",
        "preallocate": "protocol/test_preallocation.py::test_appends_keep_the_size_of_a_preallocated_file",
        "retention.bytes": PARTITION + "retention_by_size_keeps_at_least_the_limit",
        "retention.ms": PARTITION + "retention_by_time_deletes_expired_segments_and_the_active_one",
        "segment.bytes": LOG + "segment_bytes_of_internal_topics_follow_the_settings_of_open",
        "segment.index.bytes": EFFECTS + "a_full_index_ends_its_segment",
        "segment.jitter.ms": "storage/log/test_validator.py::test_segments_roll_at_most_segment_jitter_ms_early",
        "segment.ms": PARTITION + "segments_roll_by_message_time",
    },
}  # fmt: skip


@pytest.mark.parametrize("cls", SHOWN)
def test_every_key_has_an_effect_that_a_test_shows(cls):
    """A key that nothing reads is not a field; it is in `IGNORED`."""
    assert set(SHOWN[cls]) == set(cls.parsers())
    assert not cls.IGNORED & set(cls.parsers())
    for key, test in SHOWN[cls].items():
        path, name = test.split("::")
        source = (TESTS / path).read_text()
        found = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert name in found, f"{key}: there is no {test}"
        assert key in source or key.replace(".", "_") in source, f"{key} does not stand in {path}"


def test_ignored_keys_are_listed_in_the_documentation():
    text = (ROOT / "docs" / "reference" / "ignored-settings.md").read_text()
    network = ProducerConfig.IGNORED
    ignored = ConsumerConfig.IGNORED - network
    for key in ignored | {"file.delete.delay.ms"}:
        assert f"`{key}`" in text, key
