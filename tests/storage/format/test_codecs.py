"""Codecs: Kafka's framing out, everything legal in, bounded output."""

from __future__ import annotations

import gzip
import random
import struct
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, RecordTooLarge
from eoslog.storage.format import codecs
from tests.reference import codec as reference

TEXT = b"".join(b'{"order":%d,"amount":"%d.00"}' % (i, i * 7) for i in range(5000))
NOISE = random.Random(3).randbytes(70_000)
NAMES = ("gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("name", codecs.CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "one", "text", "noise"])
def test_decompression_returns_the_compressed_data_for_every_codec(name: str, data: bytes) -> None:
    assert codecs.decompress(name, memoryview(codecs.compress(name, data))) == data


def test_an_lz4_frame_starts_with_kafkas_header() -> None:
    assert codecs.compress("lz4", TEXT)[:7].hex() == "04224d18604082"


def test_snappy_is_written_in_blocks_of_32_kib_after_the_xerial_header() -> None:
    out = codecs.compress("snappy", NOISE)
    assert out[:16].hex() == "82534e4150505900" + "00000001" * 2
    (size,) = struct.unpack_from(">i", out, 16)
    assert (
        codecs.decompress("snappy", out[20 : 20 + size]) == NOISE[: 32 << 10]
    )  # and raw snappy is read


def test_several_gzip_members_and_zstd_frames_form_one_payload() -> None:
    assert codecs.decompress("gzip", gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"
    assert (
        codecs.decompress("zstd", codecs.compress("zstd", TEXT) + codecs.compress("zstd", b"b"))
        == TEXT + b"b"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_decompression_bomb_raises_corrupt_record(name: str) -> None:
    packed = codecs.compress(name, bytes(10 << 20))
    with pytest.raises(CorruptRecord, match="more than 1048576 bytes"):
        codecs.decompress(name, packed, 1 << 20)
    assert len(codecs.decompress(name, packed, 10 << 20)) == 10 << 20


@pytest.mark.parametrize("name", NAMES)
def test_data_that_decompression_would_reject_is_not_compressed(name: str) -> None:
    with pytest.raises(RecordTooLarge, match=str(codecs.MAX_DECOMPRESSED)):
        codecs.compress(name, bytes(codecs.MAX_DECOMPRESSED + 1))


def test_a_snappy_block_that_claims_gigabytes_raises_corrupt_record() -> None:
    with pytest.raises(CorruptRecord):
        codecs.decompress("snappy", b"\xff\xff\xff\xff\x0f" + b"abc")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [0, 1, 5, 17, 19, -1])
def test_a_truncated_payload_raises_corrupt_record(name: str, keep: int) -> None:
    with pytest.raises(CorruptRecord):
        assert (
            codecs.decompress(name, codecs.compress(name, NOISE)[:keep]) != NOISE
        )  # raw snappy needs a size


@pytest.mark.parametrize("name", NAMES)
def test_damaged_payloads_raise_only_corrupt_record(name: str) -> None:
    packed = codecs.compress(name, TEXT[:4000])
    for at in range(0, len(packed), 7):
        damaged = bytearray(packed)
        damaged[at] ^= 0x41
        try:
            codecs.decompress(name, damaged, 1 << 20)
        except CorruptRecord:
            pass


@pytest.mark.parametrize(("name", "level"), [("gzip", 10), ("gzip", 0), ("lz4", 0), ("zstd", 23)])
def test_a_compression_level_out_of_range_is_rejected(name: str, level: int) -> None:
    with pytest.raises(ConfigError):
        codecs.compress(name, b"", level)


@pytest.mark.parametrize(
    ("name", "level"), [("gzip", 1), ("lz4", 3), ("lz4", 9), ("zstd", -5), ("zstd", 19)]
)
def test_compression_levels_change_the_bytes_and_not_the_content(name: str, level: int) -> None:
    assert codecs.decompress(name, codecs.compress(name, TEXT, level)) == TEXT


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(ConfigError, match="brotli"):
        codecs.compress("brotli", b"")
    with pytest.raises(ConfigError, match="brotli"):
        codecs.decompress("brotli", b"")


@pytest.mark.parametrize(
    ("name", "package"), [("snappy", "cramjam"), ("lz4", "lz4.frame"), ("zstd", "zstandard")]
)
def test_an_error_about_a_missing_library_names_the_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(codecs, "_local", type("Fresh", (), {})())
    with pytest.raises(ConfigError, match=r"pip install .*\[codecs\]"):
        codecs.compress(name, b"x")


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_codec_reads_a_compressed_batch(name: str) -> None:
    records = [(1000 + i, b"k%d" % i, TEXT[: i * 10], [("h", None)]) for i in range(100)]
    batch = _core.build_batch(
        records, compression=name, producer_id=7, producer_epoch=0, base_sequence=0
    )
    decoded = reference.decode_batch(batch)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decoded.records] == records
    assert zlib.crc32(batch) and decoded.producer_id == 7


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_payloads_that_grow_far_beyond_their_size_decompress_completely(
    name: str, size: int
) -> None:
    """More than is allowed for in one go, and in each block of a frame."""
    for plain in (bytes(size), TEXT * (size // len(TEXT)), bytes(size) + TEXT):
        packed = codecs.compress(name, plain)
        assert codecs.decompress(name, packed) == plain
        assert codecs.decompress(name, packed, len(plain)) == plain
        if plain:
            with pytest.raises(CorruptRecord):
                codecs.decompress(name, packed, len(plain) - 1)
            with pytest.raises(CorruptRecord):
                codecs.decompress(name, packed[:-5])


@pytest.mark.slow
def test_zstd_frames_are_read_without_a_size_and_rejected_with_a_wrong_one() -> None:
    import zstandard

    plain = TEXT * 1000
    without = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    assert codecs.decompress("zstd", without) == plain
    packed = bytearray(codecs.compress("zstd", plain))
    assert packed[4] >> 5 == 4, "a window byte, then a content size of four"
    packed[6] ^= 1
    with pytest.raises(CorruptRecord):
        codecs.decompress("zstd", bytes(packed))


# --- straight into memory that is there -------------------------------------------------------------


def outcome(name: str, data: bytes, limit: int, room: object = None) -> object:
    try:
        return bytes(codecs.decompress(name, data, limit, room))  # type: ignore[arg-type]
    except CorruptRecord:
        return CorruptRecord


def frames(name: str, plain: bytes, kind: str) -> bytes:
    """One payload as eoslog writes it, or as others may."""
    if name == "lz4" and kind != "usual":
        import lz4.frame

        return bytes(
            lz4.frame.compress(plain, block_linked=kind == "linked", content_checksum=True)
        )
    if name == "zstd" and kind != "usual":
        import zstandard

        return zstandard.ZstdCompressor(
            write_checksum=True, write_content_size=kind == "linked"
        ).compress(plain)
    return codecs.compress(name, plain)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["lz4", "zstd"]),
    st.sampled_from(["usual", "linked", "checked"]),
    st.sampled_from([TEXT, NOISE, bytes(200_000), TEXT[:300] + NOISE, b"x", b""]),
    st.sampled_from(["whole", "flip", "cut", "longer", "twice"]),
    st.integers(0, 1 << 20),
    st.sampled_from([codecs.MAX_DECOMPRESSED, 131072, 65536, 300, 1]),
)
def test_decompression_into_given_memory_gives_the_same_results(
    name: str, kind: str, plain: bytes, damage: str, at: int, limit: int
) -> None:
    """The same bytes, and the same refusals, as the library's own frame reader gives."""
    packed = bytearray(frames(name, plain, kind))
    if damage == "flip":
        packed[at % len(packed)] ^= 1 << at % 8
    elif damage == "cut":
        del packed[at % len(packed) :]
    elif damage == "longer":
        packed += bytes(at % 7 + 1)
    elif damage == "twice":
        packed *= 2
    data = bytes(packed)
    assert outcome(name, data, limit, bytearray) == outcome(name, data, limit)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_usual_frame_decompresses_into_given_memory_without_stale_bytes(name: str) -> None:
    given_out: list[bytearray] = []

    def room(size: int) -> bytearray:
        given_out.append(bytearray(b"\xee" * size))
        return given_out[-1]

    found = codecs.decompress(name, codecs.compress(name, TEXT), room=room)
    assert found == TEXT and found.readonly
    assert bytes(given_out[0][: len(TEXT)]) == TEXT
    small = codecs.decompress("lz4", codecs.compress("lz4", b"few"), room=room)
    assert small == b"few" and isinstance(small, bytes), "64 KiB are not held for three bytes"


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_every_changed_byte_gives_the_same_result_with_and_without_memory(name: str) -> None:
    packed = codecs.compress(name, TEXT[:600] + NOISE[:200])
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= 0x41
        data = bytes(damaged)
        assert outcome(name, data, 1 << 20, bytearray) == outcome(name, data, 1 << 20)


def test_lz4_is_read_without_the_block_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    codecs._lz4_block_reader.cache_clear()
    try:
        found = codecs.decompress("lz4", codecs.compress("lz4", TEXT), room=bytearray)
    finally:
        codecs._lz4_block_reader.cache_clear()
    assert found == TEXT
