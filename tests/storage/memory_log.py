"""A partition log in memory with the calls that folds use, without files."""

from __future__ import annotations

from eoslog.model import AppendOrigin, AppendResult
from tests.reference import codec


class MemoryBatch:
    """One batch as the core shows it, decoded by the reference codec."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.data = data
        ref = codec.decode_batch(data)
        self.control = bool(ref.attributes & codec.CONTROL)
        self.base_offset = base_offset
        self.last_offset = base_offset + ref.last_offset_delta
        self._records = ref.records

    def records(self):
        """(offset, timestamp, key, value, headers) of each record."""
        return [
            (self.base_offset + i, r.timestamp, r.key, r.value, r.headers)
            for i, r in enumerate(self._records)
        ]


class MemoryLog:
    """Appends, flushes and reads; `race` runs once before the next append."""

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.stored: list[MemoryBatch] = []
        self.log_start = 0
        self.log_end = 0
        self.durable_end = 0
        self.flushes = 0
        self.race = None

    @property
    def high_watermark(self):
        """The durable end, or the log's where it is not strict."""
        return self.durable_end if self.strict else self.log_end

    def append(self, batch, *, expect=(), origin=AppendOrigin.CLIENT):
        """Append one batch, or None if a log in `expect` has moved."""
        if self.race is not None:
            rival, self.race = self.race, None
            rival()
        if any(log.log_end != end for log, end in expect):
            return None
        added = MemoryBatch(bytes(batch), self.log_end)
        self.stored.append(added)
        self.log_end = added.last_offset + 1
        return AppendResult(added.base_offset, added.last_offset)

    def flush(self, up_to=None):
        """Everything is durable, if the log is strict."""
        self.flushes += 1
        if self.strict:
            self.sync()

    def sync(self):
        """Everything is durable."""
        self.durable_end = self.log_end

    def batches(self, start, end):
        """Batches that overlap [start, end)."""
        return iter([b for b in self.stored if b.last_offset >= start and b.base_offset < end])

    def lose_what_is_not_durable(self):
        """What a power cut does."""
        self.stored = [b for b in self.stored if b.last_offset < self.durable_end]
        self.log_end = self.durable_end
