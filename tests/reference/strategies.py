"""Hypothesis strategies for records and batches, shared by the property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .codec import MAX_SEQUENCE, Plain

TIMESTAMPS = st.integers(0, 2**45)
BLOBS = st.none() | st.binary(max_size=40)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
HEADERS = st.lists(st.tuples(NAMES, BLOBS), max_size=3)
RECORDS: st.SearchStrategy[Plain] = st.tuples(TIMESTAMPS, BLOBS, BLOBS, HEADERS)
CODECS = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])


@st.composite
def batch_options(draw: st.DrawFn) -> dict[str, Any]:
    """Legal keyword arguments of `build_batch` and the reference's `encode_batch`."""
    options: dict[str, Any] = {
        "base_offset": draw(st.integers(0, 2**62)),
        "leader_epoch": draw(st.integers(-1, 2**31 - 1)),
    }
    if draw(st.booleans()):
        options["producer_id"] = draw(st.integers(0, 2**63 - 1))
        options["producer_epoch"] = draw(st.integers(0, 2**15 - 1))
        options["base_sequence"] = draw(st.integers(0, MAX_SEQUENCE) | st.just(MAX_SEQUENCE - 1))
        options["transactional"] = draw(st.booleans())
    if draw(st.booleans()):
        options["timestamp_type"] = 1
        options["max_timestamp"] = draw(TIMESTAMPS)
    return options
