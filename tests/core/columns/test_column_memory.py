"""Memory of columns and blocks is reused only after its last reference is gone."""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core
from eoslog.client.arrow import schema as arrow
from eoslog.storage.format import codecs

pa = pytest.importorskip("pyarrow")

COUNT, SIZE = 1200, 100
COLUMNS = ["offset", "value"]
EVER = (1 << 63) - 1

assert codecs.CODECS


def values(seed: int) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(20) * (SIZE // 20) for _ in range(COUNT)]


def packed(seed: int, codec: str) -> bytes:
    """Two batches of 120 KB each: larger than what the allocator keeps for itself."""
    half = COUNT // 2
    found = values(seed)
    return b"".join(
        bytes(
            _core.build_batch(
                [(0, None, value, ()) for value in found[at : at + half]],
                compression=codec,
                base_offset=at,
            )
        )
        for at in (0, half)
    )


DATA = [
    (values(seed), packed(seed, codec))
    for seed in range(3)
    for codec in ("lz4", "zstd", "gzip", "none")
]


def decoded(data: bytes, *, view: bool = True) -> Any:
    decoder = _core.ColumnDecoder(COLUMNS, view=view)
    decoder.feed(data, 0, 0, EVER)
    fields = arrow.fields_of(COLUMNS, view=view)
    return arrow.record_batch(arrow.columns_of(decoder.take(), fields, ["t"], 0, 0))


def seen(kind: str, batch: Any) -> tuple[Any, Any]:
    """Something that looks at a batch's memory, and what tells its content."""
    column = batch.column(1)
    if kind == "slice":
        return column.slice(COUNT // 2), lambda array: array.to_pylist()
    if kind == "numpy":
        return np.frombuffer(batch.column(0).buffers()[1], np.int64), bytes
    blocks = column.buffers()[2:]
    if kind == "memoryview":
        return [memoryview(block) for block in blocks], lambda views: [bytes(v) for v in views]
    return batch, lambda whole: whole.to_pydict()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(DATA) - 1),
            st.booleans(),
            st.sampled_from(["batch", "slice", "numpy", "memoryview"]),
            st.integers(0, 5),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_column_memory_never_changes_while_it_is_referenced(
    steps: list[tuple[int, bool, str, int, bool]],
) -> None:
    held: list[tuple[Any, Any, Any]] = []
    for number, view, kind, drop, elsewhere in steps:
        wanted, data = DATA[number]
        batch = decoded(data, view=view)
        assert batch.column(1).to_pylist() == wanted
        thing, tell = seen(kind, batch)
        held.append((thing, tell, tell(thing)))
        del batch, thing
        if drop < len(held):
            taken = [held.pop(drop)]
            if elsewhere:  # the last reference may go in any thread
                thread = threading.Thread(target=taken.clear)
                thread.start()
                thread.join()
            del taken
        for thing, tell, content in held:
            assert tell(thing) == content


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_dropped_block_is_reused_and_a_held_one_is_not(codec: str) -> None:
    data = packed(7, codec)

    def places(batch: Any) -> set[int]:
        return {block.address for block in batch.column(1).buffers()[2:]}

    gc.collect()
    gc.disable()  # a collection in between would return memory of other tests
    try:
        first = decoded(data)
        held = places(first)
        second = decoded(data)
        assert not places(second) & held
        dropped = places(second)
        del second
        third = decoded(data)
    finally:
        gc.enable()
    assert places(third) == dropped
    assert first.column(1).to_pylist() == values(7)


def test_the_next_scan_starts_with_the_memory_of_the_previous_one() -> None:
    """Another decoder, that has seen nothing yet."""
    data = bytes(_core.build_batch([(0, None, b"%0100d" % i, ()) for i in range(10_000)]))

    def places(batch: Any) -> list[int]:
        return [array.buffers()[1].address for array in batch.columns]

    gc.collect()
    gc.disable()  # a collection in between would return memory of other tests
    try:
        first = places(decoded(data))
        kept = decoded(data)
    finally:
        gc.enable()
    assert places(kept) == first
    assert not set(places(decoded(data))) & set(first)
    assert kept.column(1)[9_999].as_py() == b"%0100d" % 9_999


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_columns_and_blocks_are_read_only(codec: str) -> None:
    batch = decoded(packed(1, codec))
    for array in batch.columns:
        for buffer in array.buffers():
            assert buffer is None or not buffer.is_mutable


def test_threads_share_column_memory_without_wrong_values() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        held = []
        for i in range(40):
            wanted, data = DATA[(number + i) % len(DATA)]
            held.append((wanted, decoded(data)))
            del held[: i % 4]
            if any(batch.column(1).to_pylist() != expected for expected, batch in held):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
