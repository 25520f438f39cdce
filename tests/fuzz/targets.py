"""The fuzz targets: every parser of bytes or words from another program.

A target takes any bytes. It may raise errors of eoslog and no others, and must not read past the end.
If there is a second implementation, accepted input must mean the same to both.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator

from eoslog import _core
from eoslog.admin.inspect import inspect
from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.coordinator.groups import records as group_records
from eoslog.coordinator.positions import records as position_records
from eoslog.coordinator.transactions import prepared_records, staged_records
from eoslog.coordinator.transactions import records as transaction_records
from eoslog.errors import EoslogError
from eoslog.storage.format import checkpoints
from eoslog.storage.metadata import records as metadata_records
from eoslog.storage.segment import segment as segments
from eoslog.storage.segment import segment_files
from tests.fuzz.exact import exact
from tests.reference import codec

_CRC_AT, _COVERED_FROM = 17, 21
_MAX = 1 << 16
_where = tempfile.TemporaryDirectory(
    prefix="eoslog-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
)


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Errors of eoslog are an answer; any other exception is a finding."""
    with contextlib.suppress(EoslogError):
        yield


def _file(name: str, data: bytes) -> str:
    path = os.path.join(_where.name, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def sealed(data: bytes, **header: int) -> bytes:
    """Bytes as a batch whose length and CRC fit, so that parsing continues."""
    batch = bytearray(data.ljust(codec.HEADER_SIZE, b"\0"))
    struct.pack_into(">qi", batch, 0, header.get("base_offset", 0), len(batch) - 12)
    batch[16] = 2
    for name, (form, at) in _FIELDS.items():
        if name in header:
            struct.pack_into(form, batch, at, header[name])
    struct.pack_into(">I", batch, _CRC_AT, _core.crc32c(bytes(batch[_COVERED_FROM:])))
    return bytes(batch)


_FIELDS = {"attributes": (">h", 21), "last_offset_delta": (">i", 23), "count": (">i", 57)}


def _compare(data: bytes) -> None:
    """Whatever the core accepts, the plain decoder reads the same way."""
    view = exact(data)
    with typed():
        for batch in _core.iter_batches(view, strict=False):
            raw = batch.tobytes()
            if not batch.valid:
                continue
            found = batch.records()
            if not found and batch.compression != "none":
                continue  # nothing was unpacked
            expected = codec.decode_batch(raw)
            assert [
                (r.offset, r.timestamp, r.key, r.value, r.headers) for r in expected.records
            ] == [(o, t, k, v, list(h)) for o, t, k, v, h in found]
            assert (expected.producer_id, expected.producer_epoch, expected.base_sequence) == (
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
            )


def batch(data: bytes) -> None:
    """Batches as they come."""
    _compare(data)


def record(data: bytes) -> None:
    """Records of a batch whose header fits: byte 0 counts them, byte 1 is the codec."""
    if len(data) < 2:
        return
    count = data[0]
    header = bytes(codec.HEADER_SIZE)
    _compare(
        sealed(
            header + data[2:], count=count, last_offset_delta=max(count - 1, 0),
            attributes=data[1] & 15,
        )
    )  # fmt: skip


def varint(data: bytes) -> None:
    """The varints of one record, whose own length fits."""
    body = b"\0" + data
    size = codec.encode_varint(len(body))
    _compare(sealed(bytes(codec.HEADER_SIZE) + size + body, count=1, last_offset_delta=0))


def control(data: bytes) -> None:
    """Control batches: marker types and versions of any kind, and their fold."""
    raw = sealed(data, attributes=0x30 | (data[0] & 8 if data else 0))
    view = exact(raw)
    with typed():
        for found in _core.iter_batches(view, strict=False):
            found.control_type  # noqa: B018
            found.coordinator_epoch  # noqa: B018
            found.records()
    fold = _core.TransactionFold({5: 0})
    with typed():
        fold.feed(view)


def columns(data: bytes) -> None:
    """Arrow columns and the record decoder agree with the row decoder."""
    if not data:
        return
    raw = sealed(data[1:], last_offset_delta=max(0, data[0] % 8 - 1), count=data[0] % 8)
    decoder = _core.ColumnDecoder(
        ("offset", "timestamp", "timestamp_type", "key", "value", "headers"),
        view=bool(data[0] & 8),
        flat=bool(data[0] & 16),
        max_rows=64,
    )
    view = exact(raw)
    with typed():
        decoder.feed(view, 0, 0, 1 << 62)
        decoder.take()
    with typed():
        _core.decode_records("t", 0, view, 0, 1 << 62)
    with typed():
        _core.batches_end(view)
        _core.walk_batches(view, 0, 0, 1 << 62, 1 << 20)
    del decoder


def index(data: bytes) -> None:
    """Offset index: the greatest entry at or below a target, as in a plain search."""
    if len(data) < 8:
        return
    target, entries = struct.unpack_from(">q", data)[0], data[8:]
    found = _core.find_in_index(exact(entries), 0, target)
    pairs = list(struct.iter_unpack(">ii", entries[: len(entries) // 8 * 8]))
    if pairs == sorted(set(pairs)) and all(
        a[0] < b[0] for a, b in zip(pairs, pairs[1:], strict=False)
    ):
        expected = max((p for o, p in pairs if o <= target), default=0, key=lambda p: p)
        if all(p >= 0 for _, p in pairs) and pairs == sorted(pairs, key=lambda e: e[1]):
            assert found == expected
    with typed():
        segment_files.read_offset_index(_file("0.index", entries), 0)


def time_index(data: bytes) -> None:
    """Time index."""
    if len(data) < 8:
        return
    target, entries = struct.unpack_from(">q", data)[0], data[8:]
    _core.find_in_time_index(exact(entries), 0, target)
    with typed():
        segment_files.read_time_index(_file("0.timeindex", entries), 0)


def txn_index(data: bytes) -> None:
    """Abort index, and the filter that is made of it."""
    with typed():
        entries = segment_files.read_txn_index(_file("0.txnindex", data))
        aborted = _core.AbortedTransactions(
            [(e.producer_id, e.first_offset, e.last_offset) for e in entries]
        )
        for entry in entries[:8]:
            (entry.producer_id, entry.first_offset) in aborted  # noqa: B015


def _partition() -> _core.Partition:
    memory = os.memfd_create("fuzz")
    os.ftruncate(memory, 1 << 20)
    shared = _core.ControlFile(memory)
    shared.map_chunks(1)
    return _core.Partition(shared, 0, -1, 0, _where.name)


_state = _partition()


def snapshot(data: bytes) -> None:
    """Producer snapshots: accepted ones are written back byte for byte."""
    body = data[: len(data) // 46 * 46]
    framed = struct.pack(">i", len(body) // 46) + body
    whole = struct.pack(">hI", 1, _core.crc32c(framed)) + framed
    for raw in (data, whole):
        path = _file("1.snapshot", raw)
        entries = segments.read_snapshot(path)
        with typed():
            segment_files.read_snapshot(path)
        if entries is not None:
            with typed():
                _state.load(0, entries)
                _, out = _state.export_producers()
                _state.load(0, out)
                assert _state.export_producers()[1] == out
                for producer_id in _state.producer_ids():
                    _state.producer(producer_id)
                _state.open_transactions()


def segment(data: bytes) -> None:
    """Recovery's scan of a segment stops exactly where the plain decoder stops."""
    raw = sealed(data[: len(data) // 2]) + data[len(data) // 2 :] if len(data) % 2 else data
    path = _file("scan.log", raw)
    fd = os.open(path, os.O_RDONLY)
    try:
        _state.load(0, b"")
        _state.use_segment(0, fd)
        with typed():
            valid, end, offsets, times, _, reason, _ = _state.scan_segment(len(raw), True)
            assert 0 <= valid <= len(raw) and (reason is None) == (valid == len(raw))
            assert len(offsets) % 8 == 0 and len(times) % 12 == 0 and end >= 0
    finally:
        _state.use_segment(0, -1)
        os.close(fd)


def staged(data: bytes) -> None:
    """A staged file is accepted only if complete, and stamped as in memory."""
    path = _file("staged.batches", data)
    fd = os.open(path, os.O_RDWR)
    try:
        with typed():
            file = _core.SegmentFile(fd, len(data))
            assert file.count == sum(batch.count for batch in _core.iter_batches(data))
            given = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            file.stamp(**given, transactional=True, base_offset=0, leader_epoch=0)
            twin = bytearray(data)
            _core.stamp_batches(twin, **given, transactional=True)
            found = _core.iter_batches(os.pread(fd, len(data), 0))
            wanted = _core.iter_batches(twin)
            assert [(b.crc, b.base_sequence) for b in found] == [
                (b.crc, b.base_sequence) for b in wanted
            ]
            assert all(batch.valid for batch in found)
    finally:
        os.close(fd)


def log_file(data: bytes) -> None:
    """A complete segment file, also of formats 0 and 1, as `eoslog dump` reads it."""
    path = _file("00000000000000000000.log", data)
    with typed():
        inspect(path)


def checkpoint(data: bytes) -> None:
    """Checkpoint files and what a directory says about itself."""
    with typed():
        checkpoints.read_offsets(_file("recovery-point-offset-checkpoint", data))
    checkpoints.read_offsets(_file("recovery-point-offset-checkpoint", data), lenient=True)
    with typed():
        checkpoints.read_leader_epochs(_file("leader-epoch-checkpoint", data))
    _file("partition.metadata", data)
    with typed():
        checkpoints.read_partition_metadata(_where.name)
    _file("meta.properties", data)
    with typed():
        checkpoints.read_meta_properties(_where.name)


_STAGED = ("topic", "partition", "topic.id", "records")


def coordinator(data: bytes) -> None:
    """Keys and values of the internal topics, and of the metadata log."""
    for decode in (
        transaction_records.decode_key,
        lambda value: transaction_records.decode_value("x", value),
        group_records.decode_key,
        group_records.decode_epoch,
        group_records.decode_topics,
        group_records.decode_member,
        group_records.decode_member_target,
        group_records.decode_member_current,
        group_records.decode_classic_group,
        metadata_records.decode,
        prepared_records.prepared_key,
        lambda value: prepared_records.decode_entry((1, 0), value),
        lambda value: prepared_records.decode_check(value, (1, 0)),
        staged_records.decode_key,
        lambda value: staged_records.decode_owner([("owner", value)]),
        lambda value: staged_records.decode_part(value, [(name, value) for name in _STAGED]),
        position_records.decode_name,
        position_records.decode_value,
    ):
        with typed():
            decode(data)


def config(data: bytes) -> None:
    """Parse configuration as text: `key=value` lines.

    An unknown key starts a slow search for the nearest one: one input in sixteen gets there.
    """
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    for kind, known in _KEYS.items():
        taken = {key: value for key, value in given.items() if key.replace("_", ".") in known}
        with typed():
            kind.of(taken).as_strings()
        for key in taken if len(taken) > 1 else ():
            with typed():
                kind.of({key: taken[key]}).as_strings()
    if len(data) % 16 == 0:
        with typed():
            list(_KEYS)[len(given) % 4].of(given)


_KEYS = {
    kind: {*kind.parsers(), *kind.ALIASES, *kind.DEPRECATED}
    for kind in (ProducerConfig, ConsumerConfig, TopicConfig, LogConfig)
}


TARGETS: dict[str, Callable[[bytes], None]] = {
    f.__name__: f
    for f in (
        batch, record, varint, control, columns, index, time_index, txn_index, snapshot, segment,
        staged, log_file, checkpoint, coordinator, config,
    )
}  # fmt: skip


def run(name: str, data: bytes) -> None:
    """One input; longer ones than the limit are cut."""
    TARGETS[name](data[:_MAX])
