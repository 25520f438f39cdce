"""Scans into columns, CRC checked and read_committed, compared with copying.

The CRC and the decompression are also timed alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import eoslog
from bench import data
from bench.contest import Contender, Contest
from bench.peers import limits, stores
from eoslog import _core
from eoslog.model import AppendOrigin

MEMORY = 100_000_000
"""Bytes of values: what memcpy copies."""
COUNT = MEMORY // 100
_TIME_MS = 1_700_000_000_000


def rows(log: eoslog.Log, **options: Any) -> int:
    return sum(
        batch.num_rows for batch in log.scan(data.TOPIC, columns=["value", "offset"], **options)
    )


def scan(
    log: eoslog.Log, count: int, size: int = 100, *, name: str = "scan", **options: Any
) -> Contender:
    """Read everything with the checksum and the CRC check of this scan kind."""

    def check(_state: Any, seen: int) -> None:
        assert seen == count
        assert data.scanned(log, **options) == data.expected(count, size)
        data.assert_checks_crc(log, lambda: rows(log, **options))

    return Contender(name, lambda _: rows(log, **options), check=check)


@pytest.fixture
def filled(place: Path) -> Iterator[Callable[..., eoslog.Log]]:
    """Gives logs that hold the records."""
    with contextlib.ExitStack() as stack:

        def make(
            count: int, size: int = 100, *, per_batch: int | None = None, **config: Any
        ) -> eoslog.Log:
            log = stack.enter_context(data.fresh_log(place, "os"))
            data.fill(log, count, size, per_batch=per_batch, **config)
            return log

        yield make


def test_scan(contest: Contest, filled: Callable[..., eoslog.Log]) -> None:
    contest(scan(filled(COUNT), COUNT), limits.memcpy(MEMORY), units=COUNT)


def test_scan_of_16_kib_batches(contest: Contest, filled: Callable[..., eoslog.Log]) -> None:
    log = filled(COUNT, per_batch=125)
    contest(scan(log, COUNT), limits.memcpy(MEMORY), units=COUNT)


def test_scan_in_two_threads(contest: Contest, place: Path) -> None:
    with data.fresh_log(place, "os", partitions=2) as log, ThreadPoolExecutor(2) as threads:
        half = COUNT // 2
        with log.producer() as producer:
            for number in range(2):
                some = slice(number * half, (number + 1) * half)
                producer.produce_many(
                    data.TOPIC, data.values(COUNT)[some], data.keys(COUNT)[some], partition=number
                )

        def run(_state: Any) -> int:
            return sum(threads.map(lambda number: rows(log, partitions=[number]), range(2)))

        def check(_state: Any, seen: int) -> None:
            assert seen == COUNT
            assert data.scanned(log) == data.expected(COUNT)
            data.assert_checks_crc(log, lambda: run(None))

        contest(
            Contender("scan, two threads", run, check=check), limits.memcpy(MEMORY), units=COUNT
        )


def test_scan_of_1_kib_values(contest: Contest, filled: Callable[..., eoslog.Log]) -> None:
    count = MEMORY // 1024
    contest(scan(filled(count, 1024), count, 1024), limits.memcpy(count * 1024), units=count)


def test_scan_into_plain_binary(contest: Contest, filled: Callable[..., eoslog.Log]) -> None:
    ours = scan(filled(COUNT), COUNT, name="scan, binary", binary="copy")
    contest(ours, limits.memcpy(MEMORY), units=COUNT)


def test_scan_against_stores(
    contest: Contest, filled: Callable[..., eoslog.Log], place: Path
) -> None:
    count = 200_000
    with contextlib.ExitStack() as stack:
        contest(
            scan(filled(count), count),
            ("Arrow IPC", lambda: stores.file_reader("Arrow IPC", place, count, stack)),
            ("Parquet", lambda: stores.file_reader("Parquet", place, count, stack)),
            ("lmdb cursor, bare", lambda: stores.lmdb_bare_cursor(place, count, stack)),
            ("rocksdict", lambda: stores.rocksdb_reader(place, count, stack)),
            ("sqlite", lambda: stores.sqlite_reader(place, count, stack)),
            units=count,
        )


# --- compressed -----------------------------------------------------------------------------------


def decompress(codec: str, log: eoslog.Log) -> Contender:
    """The library alone on the same compressed bytes, by its fastest call.

    lz4 decompresses block by block into warm memory. zstd gets the decompressed size.
    """
    payloads = []
    for path in data.log_files(log):
        content = path.read_bytes()
        payloads += [
            content[batch.position + 61 : batch.position + batch.size]
            for batch in _core.iter_batches(content)
            if batch.compression == codec
        ]
    if codec == "lz4":
        import lz4.frame
        from cramjam import lz4 as blockwise

        wanted = sum(len(lz4.frame.decompress(payload)) for payload in payloads)
        pieces = [block for payload in payloads for block in lz4_blocks(payload)]
        target = bytearray(LZ4_BLOCK)

        def one(block: bytes) -> int:
            return int(blockwise.decompress_block_into(block, target, LZ4_BLOCK))
    else:
        import zstandard

        unpacker = zstandard.ZstdDecompressor()
        sizes = [len(unpacker.decompressobj().decompress(payload)) for payload in payloads]
        wanted, most, pieces = sum(sizes), max(sizes), payloads

        def one(block: bytes) -> int:
            return len(unpacker.decompress(block, max_output_size=most))

    def run(_state: Any) -> int:
        return sum(map(one, pieces))

    def check(_state: Any, unfolded: int) -> None:
        assert unfolded == wanted

    return Contender(codec, run, check=check)


def lz4_blocks(frame: bytes) -> Iterator[bytes]:
    """The compressed blocks of a frame with a header of seven bytes.

    Kafka's clients write such frames.
    """
    at = 7
    while size := int.from_bytes(frame[at : at + 4], "little"):
        assert not size >> 31, "a block that was left as it is"
        yield frame[at + 4 : at + 4 + size]
        at += 4 + size


LZ4_BLOCK = 64 << 10


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_scan_compressed(contest: Contest, filled: Callable[..., eoslog.Log], codec: str) -> None:
    count = 400_000
    log = filled(count, compression_type=codec)
    contest(scan(log, count), decompress(codec, log), units=count)


# --- aborted --------------------------------------------------------------------------------------


def interleave(
    log: eoslog.Log, transactions: int, producers: int, aborted_of: int, per_batch: int
) -> int:
    """Append transactions of two batches each, many of them open at any time.

    `producers` of them are open at a time, and one in `aborted_of` is aborted. Batches and
    markers are appended as the sender and the coordinator do it. Returns the committed records.
    """
    partition, other = (log._engine.partition(data.TOPIC, number) for number in range(2))
    known = [(other, 0)]  # represents the coordinator's record that lists the partition
    plain = _core.build_batch([(_TIME_MS, b"key", value, ()) for value in data.values(per_batch)])
    committed = 0
    for begin in range(0, transactions, producers):
        epoch = begin // producers
        some = range(min(producers, transactions - begin))
        for sequence in (0, per_batch):
            for producer in some:
                batch = bytearray(plain)
                _core.stamp_batches(
                    batch, producer_id=1000 + producer, producer_epoch=epoch,
                    base_sequence=sequence, transactional=True,
                )  # fmt: skip
                assert partition.append(batch, expect=known) is not None
        for producer in some:
            commit = (begin + producer) % aborted_of != 0
            committed += 2 * per_batch * commit
            marker = _core.build_marker(1000 + producer, epoch + 1, commit, timestamp=_TIME_MS + 1)
            assert partition.append(marker, origin=AppendOrigin.COORDINATOR) is not None
    return committed


def committed_and_not(contest: Contest, log: eoslog.Log, committed: int, everything: int) -> None:
    def reader(isolation: str, count: int) -> Contender:
        def check(_state: Any, seen: int) -> None:
            assert seen == count
            data.assert_checks_crc(log, lambda: rows(log, isolation=isolation))

        return Contender(isolation, lambda _: rows(log, isolation=isolation), check=check)

    size = data.log_bytes(log) / 1e6
    contest(
        reader("read_committed", committed), reader("read_uncommitted", everything),
        units=size, unit="MB",
    )  # fmt: skip


def test_scan_with_10_percent_aborted(contest: Contest, place: Path) -> None:
    with data.fresh_log(place, "os", partitions=2) as log:
        committed = interleave(log, 10_000, 64, 10, 40)
        committed_and_not(contest, log, committed, 800_000)


def test_scan_with_1_percent_aborted(contest: Contest, place: Path) -> None:
    with data.fresh_log(place, "os", partitions=2) as log:
        committed = interleave(log, 2_000, 10, 100, 140)
        committed_and_not(contest, log, committed, 560_000)


# --- CRC-32C --------------------------------------------------------------------------------------

IN_CACHE = 64 << 10


def test_crc_in_cache(contest: Contest) -> None:
    piece, times = data.values(1, IN_CACHE)[0], MEMORY // IN_CACHE

    def run(_state: Any) -> int:
        for _ in range(times):
            found = _core.crc32c(piece)
        return found

    def check(_state: Any, found: int) -> None:
        assert found == _core.crc32c_software(piece)

    memcpy = limits.memcpy(MEMORY)
    contest(Contender("crc32c", run, check=check), memcpy, units=times * IN_CACHE / 1e6, unit="MB")
