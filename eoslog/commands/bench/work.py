"""Measurements of `eoslog bench`: the machine's limits and eoslog, interleaved.

All work is in one new directory. A pass does every piece of work once, and passes repeat until the
time is up. The median of each piece counts, so a slow moment of the disk does not. Written data is
read and compared.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import eoslog
from eoslog.model import EARLIEST

TRIES = 40
"""Latencies taken in a pass."""
_POLLED = 20_000
_PER_TRANSACTION = 1_000


@dataclass
class Figure:
    """One line: a rate or a latency.

    Attributes:
        what: the work.
        limit: it is the machine's, not eoslog's.
        count: records (for a limit: records' worth of bytes) in one sample; 1 for a latency.
        seconds: the samples.
    """

    what: str
    limit: bool
    count: int
    seconds: list[float] = field(default_factory=list)

    @property
    def latency(self) -> bool:
        """It is about one operation rather than about many."""
        return self.count == 1

    @property
    def median(self) -> float:
        """Seconds of the middle sample."""
        return statistics.median(self.seconds)

    @property
    def per_second(self) -> float:
        """Records a second, of the middle sample."""
        return self.count / self.median


class WrongResult(Exception):
    """What was read is not what was written."""


class Bench:
    """The measurements of one directory.

    Args:
        place: an empty directory on the disk in question.
        log: a log in there.
        count: records of a bulk measurement.
        size: bytes of a value.
    """

    def __init__(self, place: Path, log: eoslog.Log, count: int, size: int) -> None:
        """Makes the records: different, in random hexadecimal."""
        self.place, self.log = place, log
        self.count, self.size = count, size
        some = [os.urandom(size // 2 + 1).hex()[:size].encode() for _ in range(min(count, 5_000))]
        self.values = list(itertools.islice(itertools.cycle(some), count))
        self.figures: dict[str, Figure] = {}
        self._sum = self._checksum(self.values)
        self._bytes = np.frombuffer(b"".join(self.values), dtype=np.uint8)
        self._copy = np.ones_like(self._bytes)
        self._numbers = itertools.count()

    @property
    def works(self) -> list[Callable[[], None]]:
        """What a pass does, in order."""
        bulk = [self._memory, self._disk, self._bulk, self._produce, self._transactions]
        return [*bulk, self._one_flush, self._one_record]

    @property
    def has_arrow(self) -> bool:
        """Whether columns can be measured: scanning needs pyarrow."""
        return find_spec("pyarrow") is not None

    # --- the machine ----------------------------------------------------------------------------

    def _memory(self) -> None:
        with self._timed("memory copy of the values", self.count, limit=True):
            np.copyto(self._copy, self._bytes)

    def _disk(self) -> None:
        path = self.place / "raw"
        os.sync()
        with path.open("wb", buffering=0) as file:
            whole = memoryview(self._bytes.data)
            with self._timed("write + fdatasync of the values", self.count, limit=True):
                for at in range(0, len(whole), 1 << 20):
                    file.write(whole[at : at + (1 << 20)])
                os.fdatasync(file.fileno())
        path.unlink()

    def _one_flush(self) -> None:
        path = self.place / "raw"
        with path.open("wb", buffering=0) as file:
            for _ in range(TRIES):
                with self._timed("append of 4 KiB + fdatasync", 1, limit=True):
                    file.write(bytes(4096))
                    os.fdatasync(file.fileno())
        path.unlink()

    # --- eoslog ---------------------------------------------------------------------------------

    def _produce(self) -> None:
        with self._topic() as topic, self.log.producer() as producer:
            os.sync()
            with self._timed("produce() each, flush() at the end", self.count):
                for value in self.values:
                    producer.produce(topic, value)
                producer.flush()
            self._poll(topic)

    def _bulk(self) -> None:
        with self._topic() as topic, self.log.producer() as producer:
            os.sync()
            with self._timed("produce_many(), flush()", self.count):
                producer.produce_many(topic, self.values)
                producer.flush()
            self._consume(topic)
            if self.has_arrow:
                self._scan(topic)

    def _consume(self, topic: str) -> None:
        with self.log.consumer(topic, auto_offset_reset=EARLIEST) as consumer:
            kept: list[bytes] = []
            with self._timed("consume(1000)", self.count):
                while len(kept) < self.count:
                    kept += [record.value for record in consumer.consume(1000, timeout=10)]
        self._compare(kept)

    def _poll(self, topic: str) -> None:
        count = min(self.count, _POLLED)
        with self.log.consumer(topic, auto_offset_reset=EARLIEST) as consumer:
            kept = []
            with self._timed("poll()", count):
                for _ in range(count):
                    record = consumer.poll(10)
                    kept.append(None if record is None else record.value)
        if kept != self.values[:count]:
            raise WrongResult(f"{topic}: poll() did not give the {count} records that were written")

    def _scan(self, topic: str) -> None:
        with self._timed("scan() into columns", self.count):
            batches = list(self.log.scan(topic, columns=["value", "offset"]))
        self._compare(value for batch in batches for value in batch.column("value").to_pylist())

    def _transactions(self) -> None:
        count = min(self.count, 10 * _PER_TRANSACTION)
        with self._topic() as topic, self._transactional() as producer:
            with self._timed(f"transactions of {_PER_TRANSACTION:,}", count):
                for at in range(0, count, _PER_TRANSACTION):
                    with producer.transaction():
                        for value in self.values[at : min(count, at + _PER_TRANSACTION)]:
                            producer.produce(topic, value)
            if self.log.offsets(topic, 0).last_stable < count:
                raise WrongResult(f"{topic}: committed records are not visible")

    def _one_record(self) -> None:
        with self._topic() as topic, self._transactional() as producer:
            for _ in range(TRIES):
                with self._timed("commit of one record", 1), producer.transaction():
                    producer.produce(topic, self.values[0])
        with self._topic() as topic, self.log.producer(linger_ms=0) as plain:
            for _ in range(TRIES):
                with self._timed("produce() and flush() of one record", 1):
                    plain.produce(topic, self.values[0])
                    plain.flush()

    # --- helpers --------------------------------------------------------------------------------

    @contextmanager
    def _timed(self, what: str, count: int, *, limit: bool = False) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        took = time.perf_counter() - begun
        self.figures.setdefault(what, Figure(what, limit, count)).seconds.append(took)

    @contextmanager
    def _topic(self) -> Iterator[str]:
        name = f"bench-{next(self._numbers)}"
        self.log.create_topic(name)
        yield name
        self.log.delete_topic(name)

    @contextmanager
    def _transactional(self) -> Iterator[eoslog.Producer]:
        with self.log.producer(transactional_id=f"bench-{next(self._numbers)}") as producer:
            producer.init_transactions()
            yield producer

    @staticmethod
    def _checksum(values: Iterable[bytes]) -> int:
        return sum(map(zlib.crc32, values))

    def _compare(self, values: Iterable[bytes]) -> None:
        kept = list(values)
        if len(kept) != self.count or self._checksum(kept) != self._sum:
            raise WrongResult(f"{len(kept)} records read are not the {self.count} written")


_LIMITS = {
    "scan() into columns": "memory copy of the values",
    "produce() each, flush() at the end": "write + fdatasync of the values",
    "produce_many(), flush()": "write + fdatasync of the values",
    "transactions of 1,000": "write + fdatasync of the values",
    "commit of one record": "append of 4 KiB + fdatasync",
    "produce() and flush() of one record": "append of 4 KiB + fdatasync",
}
"""What each can be at best; consume and poll are bound by Python's own objects."""


def limit_of(figure: Figure, figures: dict[str, Figure]) -> Figure | None:
    """The machine's limit of a figure, if it has one."""
    return figures.get(_LIMITS.get(figure.what, ""))
