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
    data: Buffer,
    position: int = 0,
    end: int | None = None,
    *,
    base_position: int = 0,
    strict: bool = True,
    limit: int | None = None,
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

# -- accumulator.pxi, sealed_batch.pxi --

@final
class SealedBatch:
    topic: str
    partition: int
    count: int
    base_timestamp: int
    max_timestamp: int
    created_ns: int
    reserved: int
    callbacks: list[tuple[int, int, Callable[..., Any]]] | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    stamped: bool
    attempts: int
    doubtful: bool
    retry_at_ns: int
    @property
    def data(self) -> SealedBatch: ...
    def stamp(
        self, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class RecordAccumulator:
    used: int
    buffered: int
    produced: int
    gate: int
    sleeping_until: int
    exhausted: bool
    def __init__(
        self,
        *,
        batch_size: int = 16384,
        linger_ms: float = 5,
        buffer_memory: int = 33554432,
        max_request_size: int = 1048576,
        compression: str = "none",
        level: int | None = None,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        partitioner: str | Callable[[str, bytes | None, int], int] | None = None,
        ignore_keys: bool = False,
    ) -> None: ...
    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> None: ...
    def produce_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
    ) -> int: ...
    def _describe_topic(self, topic: str) -> tuple[int, int]: ...
    def _wake(self) -> None: ...
    def _wait_for_space(self, size: int) -> None: ...
    def _refuse(self) -> None: ...
    def _drain(self, now_ns: int, force: bool) -> list[SealedBatch]: ...
    def _next_due_ns(self) -> int | None: ...
    def _release(self, batch: SealedBatch) -> None: ...
    def _refresh_topics(self) -> None: ...
    def __len__(self) -> int: ...

# -- hashes.pxi, codec.pxi, batch_builder.pxi --

crc32c_backend: str

def crc32c(data: Buffer, value: int = 0) -> int: ...
def crc32c_software(data: Buffer, value: int = 0) -> int: ...
def murmur2(data: Buffer) -> int: ...
def java_hash(text: str) -> int: ...
def partition_for_key(key: Buffer, n: int) -> int: ...
def set_codecs(
    compress: Callable[[str, bytes, int | None], bytes], decompress: Callable[[str, Any], bytes]
) -> None: ...
def build_batch(
    records: Iterable[
        tuple[int, bytes | None, bytes | None, Iterable[tuple[str, bytes | None]]]
    ],
    *,
    base_offset: int = 0,
    compression: str = "none",
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
    timestamp_type: int = 0,
    max_timestamp: int | None = None,
    offset_deltas: list[int] | None = None,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes: ...
def build_marker(
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    *,
    coordinator_epoch: int = 0,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytes: ...
def stamp_batch(
    batch: Buffer,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool,
) -> bytearray: ...

def batches_end(data: Buffer, position: int = 0, end: int | None = None) -> int: ...

# -- columns (columns.pxi) --

@final
class ColumnDecoder:
    rows: int
    full: bool
    max_rows: int
    max_bytes: int
    def __init__(
        self,
        columns: Iterable[str] = ("offset", "value"),
        *,
        view: bool = True,
        check_crc: bool = True,
        max_rows: int = 65536,
        max_bytes: int = 1 << 26,
    ) -> None: ...
    def feed(
        self,
        data: Buffer,
        position: int,
        start: int,
        end: int,
        aborted: AbortedTransactions | None = None,
    ) -> tuple[int, int]: ...
    def take(self) -> dict[str, Any]: ...
