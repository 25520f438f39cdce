"""A million open transactions: memory per transaction and cost of the stable end.

The last stable offset does not get slower. By default a tenth of a million is opened;
`EOSLOG_SCALE=10` takes all of it. No seconds are asserted, only how the work grows.
"""

from __future__ import annotations

import os
import struct
import time
import tracemalloc

from eoslog._core import build_batch, build_marker, transaction_value
from eoslog.coordinator.transactions.log_fold import TransactionLogFold
from eoslog.coordinator.transactions.records import encode_key
from eoslog.coordinator.transactions.state import TransactionMetadata
from eoslog.model import AppendOrigin, TopicPartition
from tests.storage.helpers import opened

COUNT = 100_000 * int(os.environ.get("EOSLOG_SCALE", "1"))
_ENTRY = struct.Struct(
    ">qhiqiqiq"
)  # producer snapshot: id, epoch, sequence, offset, delta, time, coordinator, open since


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def open_transactions(log, count: int) -> int:
    """Enter transactions of one producer each through the core's state, by offset.

    Returns the bytes that they take.
    """
    log.append(build_batch([(0, None, b"", ())] * 2))
    log.fold()
    entries = b"".join(_ENTRY.pack(pid, 0, 0, 0, 0, 0, 0, 0) for pid in range(count))
    before = resident()
    log.core.load(log.log_end, entries)
    grown = resident() - before
    log.writer_files.enter(0)
    return grown


def end_some(log, first: int, ends: int) -> float:
    """Abort `ends` transactions from `first` on and return the processor seconds.

    The stable end is read after each abort.
    """
    began = time.process_time()
    for pid in range(first, first + ends):
        log.append(
            build_marker(pid, 1, False, timestamp=1, coordinator_epoch=0),
            origin=AppendOrigin.COORDINATOR,
        )
        assert log.stable_end == 0  # producer 0 is open still
    return time.process_time() - began


def test_an_open_transaction_uses_at_most_a_kibibyte_in_the_core(tmp_path) -> None:
    with opened(str(tmp_path)) as log:
        assert open_transactions(log, COUNT) <= 1024 * COUNT
        assert len(log.core.open_transactions()) == COUNT


def test_an_open_transaction_uses_at_most_a_kibibyte_in_the_coordinator() -> None:
    fold = TransactionLogFold()
    names = [f"transactional-id-{i}" for i in range(COUNT // 50)]
    rows = []
    for i, name in enumerate(names):
        begun = TransactionMetadata(name, i, 0, 60_000, owner=(1, 2)).ongoing(
            {TopicPartition("orders", i % 8)}, (1, 2), 5
        )
        rows.append((encode_key(name), transaction_value(begun)))
    tracemalloc.start()
    for offset, (key, value) in enumerate(rows):
        fold.apply(offset, key, value)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(fold.table) == len(names)
    assert taken <= 1024 * len(names), f"{taken / len(names):.0f} bytes each"


def test_the_stable_end_is_as_fast_with_a_hundred_times_the_transactions(tmp_path) -> None:
    seconds = {}
    for count in (COUNT // 100, COUNT):
        path = tmp_path / str(count)
        path.mkdir()
        with opened(str(path)) as log:
            open_transactions(log, count)
            end_some(log, count // 2, 80)  # warm
            seconds[count] = min(end_some(log, count // 10 * i, 80) for i in range(1, 5))
    small, large = seconds.values()
    assert large < 10 * small, "linear work would be a hundred times as much"
