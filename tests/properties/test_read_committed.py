"""The read_committed filter of the core equals the model on random interleavings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eoslog import _core
from tests.reference import codec
from tests.reference.model_log import ModelBatch, ModelLog

STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["data", "data", "data", "commit", "abort"]),
        st.integers(1, 4),
    ),
    max_size=40,
)


def build(steps: list[tuple[int, str, int]]) -> tuple[ModelLog, bytes]:
    """The model after `steps` of (producer, action, count), and its log as bytes.

    Producer 0 is plain.
    """
    model, data, epochs, sequences = ModelLog(), b"", [0] * 5, [0] * 5
    for pid, action, count in steps:
        at = model.log_end
        if action == "data":
            records = [(at + i, None, b"%d" % (at + i), ()) for i in range(count)]
            producer = (pid, epochs[pid], sequences[pid]) if pid else (-1, -1, -1)
            batch = ModelBatch(at, count, at, *producer, pid > 0, None, records)
            model.append(batch)
            sequences[pid] += count
            data += codec.encode_batch(
                records, base_offset=at, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence, transactional=batch.transactional,
            )  # fmt: skip
        elif pid:
            epochs[pid] += 1
            sequences[pid] = 0
            model.end(pid, epochs[pid], action == "commit", at)
            data += codec.encode_marker(
                pid, epochs[pid], action == "commit", timestamp=at, base_offset=at
            )
    return model, data


@given(STEPS, st.data())
def test_decode_records_filters_like_the_model(
    steps: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    """R82 of docs/contributing/regressions.md."""
    model, log = build(steps)
    start = data.draw(st.integers(0, model.log_end))
    end = data.draw(st.integers(start, model.log_end))
    limit = data.draw(st.integers(1, 50))
    for isolation in ("read_committed", "read_uncommitted"):
        bound = min(end, model.stable_end) if isolation == "read_committed" else end
        aborted = model.aborted_between(0, model.log_end) if isolation == "read_committed" else None
        got, position = [], start
        while position < bound:
            mask = None if aborted is None else _core.AbortedTransactions(aborted)
            records, after = _core.decode_records("t", 3, log, position, bound, mask, limit)
            assert len(records) <= limit and after > position
            got += [(r.offset, r.value) for r in records]
            assert all(r.topic == "t" and r.partition == 3 for r in records)
            position = after
        assert got == model.visible(isolation, start, bound)
        assert position >= bound or not got
