"""Every goal and minimum, one entry per row.

The test of each contest documents what it does.
"""

from __future__ import annotations

from bench.row import Row

_BUILDER, _BROKER = "aiokafka builder", "confluent-kafka"
_RAW, _CEILING = "write+fdatasync", "the same in C"
_BULK = "test_produce:test_produce_in_bulk"

ROWS = (
    # --- columns ---
    Row("scan / memcpy of the values", "test_scan:test_scan", ("memcpy",), least=0.6, floor=0.25),
    Row("scan, batches of 16 KiB / memcpy", "test_scan:test_scan_of_16_kib_batches", ("memcpy",)),
    Row("scan, two threads / one memcpy", "test_scan:test_scan_in_two_threads", ("memcpy",), least=1.0),
    Row("scan, 1 KiB values / memcpy", "test_scan:test_scan_of_1_kib_values", ("memcpy",), least=1.2),
    Row("scan into plain binary / memcpy", "test_scan:test_scan_into_plain_binary", ("memcpy",), least=0.4),
    Row("CRC-32C in cache / memcpy", "test_scan:test_crc_in_cache", ("memcpy",), least=2.0),
    Row("scan of lz4 / lz4 alone", "test_scan:test_scan_compressed[lz4]", ("lz4",), least=0.85),
    Row("scan of zstd / zstd alone", "test_scan:test_scan_compressed[zstd]", ("zstd",), least=0.85),
    Row(
        "committed / uncommitted, 10 % aborted", "test_scan:test_scan_with_10_percent_aborted",
        ("read_uncommitted",), least=0.98,
    ),
    Row(
        "committed / uncommitted, 1 % aborted", "test_scan:test_scan_with_1_percent_aborted",
        ("read_uncommitted",), least=0.98, floor=0.95,
    ),
    # --- records one by one ---
    Row("consume(1000) / confluent-kafka", "test_consume:test_consume", (_BROKER,), least=3.0),
    Row("consume(1000) / lmdb cursor", "test_consume:test_consume", ("lmdb cursor",), least=1.0),
    Row("poll() / confluent-kafka", "test_consume:test_poll", (_BROKER,), least=4.0),
    Row("produce() to durable / confluent-kafka", "test_produce:test_produce", (_BROKER,), least=5.0),
    Row(
        "produce() to durable / slower of builder and raw", "test_produce:test_produce", (_BUILDER, _RAW),
        least=0.8,
    ),
    Row(
        "produce() to the page cache / aiokafka builder", "test_produce:test_produce_to_the_page_cache",
        (_BUILDER,), floor=0.5,
    ),
    # --- in bulk ---
    Row("produce_many to durable / raw", f"{_BULK}[produce_many-strict]", (_RAW,), least=0.9),
    Row("produce_arrow to durable / raw", f"{_BULK}[produce_arrow-strict]", (_RAW,), least=0.9),
    Row("produce_many in os / pwrite", f"{_BULK}[produce_many-os]", ("pwrite",), least=0.6),
    Row("produce_arrow in os / pwrite", f"{_BULK}[produce_arrow-os]", ("pwrite",), least=0.6),
    Row(
        "produce_many / produce()", "test_produce:test_produce_many_against_produce", ("produce()",),
        floor=2.0,
    ),
    Row(
        "durable batches of 1 MiB / raw, synced alike", "test_produce:test_append_of_1_mib_batches", (_RAW,),
        floor=0.7,
    ),
    # --- transactions ---
    Row(
        "transactions of 1,000 : flush every 1,000", "test_transactions:test_transactions_of_1000[strict]",
        ("flushes",), most=2.2,
    ),
    Row(
        "transactions of 1,000 in os : flush", "test_transactions:test_transactions_of_1000[os]",
        ("flushes",), most=1.25,
    ),
    Row(
        "transaction of 100,000 : none", "test_transactions:test_transaction_of_100000[strict]",
        ("flushes",), most=1.03,
    ),
    Row(
        "transaction of 100,000 in os : none", "test_transactions:test_transaction_of_100000[os]",
        ("flushes",), most=1.03,
    ),
    Row(
        "commit of one record : 4 KiB append+fdatasync", "test_transactions:test_commit_of_one_record",
        ("4 KiB append+fdatasync",), most=1.3,
    ),
    Row(
        "commit on two partitions / SQLite", "test_transactions:test_commit_on_two_partitions",
        ("sqlite",), least=0.75,
    ),
    Row(
        "commit over ten partitions : ten parallel appends", "test_transactions:test_commit_over_ten_partitions",
        ("10 parallel appends",), most=1.0,
    ),
    Row(
        "commit of one record in os", "test_transactions:test_commit_of_one_record_to_the_page_cache",
        limit=60e-6,
    ),
    Row(
        "consume-transform-produce of 100 / confluent-kafka", "test_pipeline:test_consume_transform_produce",
        (_BROKER,), least=8.0,
    ),
    # --- across systems ---
    *(
        Row(
            f"atomic with SQLite ({mode}) / SQLite alone+fdatasync",
            f"test_across_systems:test_atomic_with_sqlite[{mode}]", ("sqlite+fdatasync",),
        )
        for mode in ("wal", "delete")
    ),
    Row(
        "half messages / commits of one record", "test_across_systems:test_half_messages[strict]",
        ("commit",),
    ),
    Row(
        "half messages in os / commits of one record", "test_across_systems:test_half_messages[os]",
        ("commit",),
    ),
    Row(
        "rows out of an outbox / confluent-kafka", "test_across_systems:test_outbox_relay",
        ("confluent-kafka",), least=1.0,
    ),
    Row(
        "open with a pending transaction", "test_across_systems:test_open_with_pending", limit=100e-6,
    ),
    Row(
        "memory of a pending transaction", "test_across_systems:test_memory_of_pending",
        limit=2 << 10, in_bytes=True,
    ),
    # --- many writers ---
    Row(
        "durable produce to a blocked consumer : fdatasync", "test_latency:test_to_a_blocked_consumer[strict]",
        ("fdatasync",), most=1.0, plus_us=120,
    ),
    Row(
        "8 writers / append+fdatasync of one", "test_group_commit:test_8_writers",
        ("append+fdatasync",), least=4.0, instead=(_CEILING, 0.7),
    ),
    Row(
        "16 writers / append+fdatasync of one", "test_group_commit:test_16_writers",
        ("append+fdatasync",), least=6.0, instead=(_CEILING, 0.7),
    ),
    Row("64 writers / one writer", "test_group_commit:test_64_writers", ("1 writers, strict",)),
    # The goal is the smaller of 15 times one writer and half of `os`: that is the half by far.
    Row("64 writers / the same in os", "test_group_commit:test_64_writers", ("64 writers, os",), least=0.5),
    Row("64 threads / the same in os", "test_group_commit:test_64_threads", ("64 threads, os",), least=0.5),
    # --- what must not grow ---
    Row(
        "LSO moves, 1,000,000 open : 1 open", "test_scale:test_lso_with_open_transactions", ("1 open",),
        most=1.25,
    ),
    Row("open a partition, cold", "test_scale:test_open_of_many_partitions", limit=1e-3),
    Row(
        "open lazily, cold : all", "test_scale:test_open_of_many_partitions", ("",),
        ours="lazily, cold", most=0.99,
    ),
    Row("unclean restart in os / CRC", "test_scale:test_restart_in_os", ("crc32c",), least=0.6),
    Row(
        "unclean restart / CRC from the disk", "test_scale:test_restart_in_strict",
        ("crc32c from the disk",), least=0.6,
    ),
    Row("anonymous memory of a scan", "test_scale:test_memory_of_a_scan", limit=64 << 20, in_bytes=True),
    Row(
        "memory of a transactional id", "test_scale:test_memory_of_transactional_ids", limit=1 << 10,
        in_bytes=True,
    ),
    # --- applications ---
    Row(
        "JSON through an application / a loop by hand", "test_apps:test_json_in_and_out",
        ("loop by hand",), least=0.7,
    ),
    Row(
        "JSON through an application / Quix Streams", "test_apps:test_json_with_a_broker",
        ("Quix Streams",), least=1.0,
    ),
    Row("restore a key of a table", "test_apps:test_a_table_is_restored", limit=2e-6),
    Row(
        "open an SQLite table after a crash, 20x the rows : 1x",
        "test_apps:test_a_store_is_opened_after_a_crash", ("1x",), most=1.25, plus_us=2000,
    ),
    # --- tests of other programs ---
    Row("a log of a pytest fixture", "test_testing:test_a_fixtures_log", limit=20e-3),
    Row(
        "a run of pytest with the plugin : without it", "test_testing:test_loading_the_plugin",
        ("without it",), most=1.0, plus_us=5000,
    ),
    *(
        Row(
            f"{work}, 100x the {of} : 1x", f"test_growth:test_growth[{work}-{of}]", ("1x",),
            most=1.5 if work == "seek" else 1.25,
        )
        for work in ("append", "scan", "commit", "seek")
        for of in ("data", "partitions")
    ),
)  # fmt: skip
