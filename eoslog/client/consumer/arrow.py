"""Records of a consumer as Arrow batches.

Keys and values can point into the log's files.

A batch has records of one partition. Batches come from the partitions in round-robin order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.client.arrow import schema as arrow
from eoslog.client.consumer.fetcher import Fetcher
from eoslog.client.consumer.partition_state import TopicPartitionState
from eoslog.errors import CorruptRecord, EoslogError

if TYPE_CHECKING:
    import pyarrow as pa


def empty_batch(*, view: bool) -> pa.RecordBatch:
    """An empty batch with the columns of `Log.scan`."""
    pa = arrow.require_pyarrow()
    schema = arrow.schema_of(arrow.COLUMNS, view=view)
    # `from_pylist` would import pandas if it is installed, which takes half a second.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def next_batch(
    fetcher: Fetcher, limit: int, *, check_crc: bool, view: bool
) -> pa.RecordBatch | None:
    """Return the next batch of at most `limit` records, and move the position.

    Raises:
        CorruptRecord: if the batch at a position is damaged; records before it were returned first.
            The partition raises it again when its turn comes.
    """
    for turn, state in fetcher.in_turn():
        try:
            batch = _batch_of(fetcher, state, limit, check_crc, view)
        except EoslogError:
            fetcher.pass_turn(turn)
            raise
        if batch is not None:
            fetcher.pass_turn(turn)
            return batch
    return None


def _batch_of(
    fetcher: Fetcher, state: TopicPartitionState, limit: int, check_crc: bool, view: bool
) -> pa.RecordBatch | None:
    # Records that were fetched and not returned are read again, as columns.
    state.drop_fetched()
    while (found := fetcher.readable(state)) is not None:
        offset = state.position
        assert offset is not None
        decoder = _core.ColumnDecoder(
            arrow.decoded_columns(arrow.COLUMNS), view=view, check_crc=check_crc, max_rows=limit
        )
        for part in found.slices:
            try:
                offset, _ = decoder.feed(part.data, 0, offset, found.bound, found.aborted)
            except CorruptRecord as error:
                if not decoder.rows:
                    state.position = offset
                    raise error.located(part.path, part.position, str(state.partition)) from error
                break
            if decoder.full:
                break
        if decoder.rows:
            return _taken(state, decoder, offset, limit, view)
        position, state.position = state.position, offset
        if fetcher.ends_without_records(state, position):
            return None
    return None


def _taken(
    state: TopicPartitionState, decoder: _core.ColumnDecoder, offset: int, limit: int, view: bool
) -> pa.RecordBatch:
    partition = state.partition
    fields = arrow.fields_of(arrow.COLUMNS, view=view)
    batch = arrow.record_batch(
        arrow.columns_of(decoder.take(), fields, [partition.topic], 0, partition.partition)
    )
    # Record batches are decoded completely, so there may be more rows than `limit`.
    cut = batch.num_rows > limit
    batch = batch.slice(0, limit) if cut else batch
    last: int = batch.column("offset")[-1].as_py()
    state.last_returned = last
    state.position = last + 1 if cut else max(offset, last + 1)
    return batch
