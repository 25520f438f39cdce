"""What the compiled core offers to the floors above it. One section for each chapter."""

from collections.abc import Buffer, Callable, Iterable, Mapping
from typing import Any, final

# -- record batches and records (record_batch.pxi, aborted.pxi, records.pxi) --

@final
class Batch:
    position: int
    size: int
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def valid(self) -> bool: ...
    @property
    def compression(self) -> str: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def control(self) -> bool: ...
    @property
    def delete_horizon_ms(self) -> int | None: ...
    @property
    def count(self) -> int: ...
    @property
    def control_type(self) -> int | None: ...
    @property
    def coordinator_epoch(self) -> int | None: ...
    def records(
        self,
    ) -> list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]: ...
    def tobytes(self) -> bytes: ...

def iter_batches(
    data: Buffer, position: int = 0, end: int | None = None, *, base_position: int = 0
) -> list[Batch]: ...
@final
class AbortedTransactions:
    def __init__(self, transactions: Iterable[tuple[int, int, int]] = ()) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, item: tuple[int, int]) -> bool: ...

@final
class TransactionFold:
    aborted: list[tuple[int, int, int]]
    open: dict[int, int]
    next_offset: int
    def __init__(self, open: Mapping[int, int] | None = None) -> None: ...
    @property
    def last_stable_offset(self) -> int: ...
    def feed(self, data: Buffer, *, base_position: int = 0) -> int: ...

@final
class Record:
    topic: str
    partition: int
    leader_epoch: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        timestamp_type: int = 0,
        key: Any = None,
        value: Any = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def decode_records(
    topic: str,
    partition: int,
    data: Buffer,
    start: int,
    end: int,
    aborted: AbortedTransactions | None = None,
    limit: int | None = None,
    key_deserializer: Callable[[bytes], Any] | None = None,
    value_deserializer: Callable[[bytes], Any] | None = None,
    check_crc: bool = True,
) -> tuple[list[Record], int]: ...
