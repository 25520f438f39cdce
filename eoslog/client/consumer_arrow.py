"""What a consumer reads, as Arrow batches: keys and values point into the log where they can.

A batch holds records of one partition; the partitions take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.client import arrow
from eoslog.client.fetcher import Fetcher
from eoslog.client.subscription import PartitionState
from eoslog.errors import CorruptRecord, EoslogError

if TYPE_CHECKING:
    import pyarrow as pa


def empty_batch() -> pa.RecordBatch:
    """No records, in the columns of `Log.scan`."""
    pa = arrow.require_pyarrow()
    schema = arrow.schema_of(arrow.COLUMNS, view=True)
    # `from_pylist` would import pandas where it is installed: half a second.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def next_batch(fetcher: Fetcher, limit: int, *, check_crc: bool) -> pa.RecordBatch | None:
    """The next batch of at most `limit` records that are there now, and the position behind it.

    Raises:
        CorruptRecord: at this position; records before it were handed out first. It comes again in
            the partition's next turn.
    """
    for turn, state in fetcher.in_turn():
        try:
            batch = _batch_of(fetcher, state, limit, check_crc)
        except EoslogError:
            fetcher.pass_turn(turn)
            raise
        if batch is not None:
            fetcher.pass_turn(turn)
            return batch
    return None


def _batch_of(
    fetcher: Fetcher, state: PartitionState, limit: int, check_crc: bool
) -> pa.RecordBatch | None:
    # What was fetched as records and not handed out is read again as columns.
    state.drop_fetched()
    while (found := fetcher.readable(state)) is not None:
        slices, aborted, bound = found
        offset = state.position
        assert offset is not None
        decoder = _core.ColumnDecoder(
            arrow.decoded_columns(arrow.COLUMNS), view=True, check_crc=check_crc, max_rows=limit
        )
        for part in slices:
            try:
                offset, _ = decoder.feed(part.data, 0, offset, bound, aborted)
            except CorruptRecord as error:
                if not decoder.rows:
                    state.position = offset
                    raise error.located(part.path, part.position, str(state.partition)) from error
                break
            if decoder.full:
                break
        if decoder.rows:
            return _taken(state, decoder, offset, limit)
        state.position = offset
    return None


def _taken(
    state: PartitionState, decoder: _core.ColumnDecoder, offset: int, limit: int
) -> pa.RecordBatch:
    partition = state.partition
    fields = arrow.fields_of(arrow.COLUMNS, view=True)
    batch = arrow.record_batch(
        arrow.columns_of(decoder.take(), fields, [partition.topic], 0, partition.partition)
    )
    # Whole record batches are decoded: the last one may hold more than was asked for.
    cut = batch.num_rows > limit
    batch = batch.slice(0, limit) if cut else batch
    last: int = batch.column("offset")[-1].as_py()
    state.last_returned = last
    state.position = last + 1 if cut else max(offset, last + 1)
    return batch
