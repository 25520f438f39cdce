"""A Parquet file that is there completely, or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from eoslog._util.arguments import as_path
from eoslog._util.extras import package
from eoslog.errors import StorageError
from eoslog.storage.fs import files

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write"]


def write(batches: pa.RecordBatchReader, path: str | os.PathLike[str]) -> int:
    """Write record batches to a file, and return the number of rows.

    Raises:
        ConfigError: if pyarrow is not installed.
        StorageError: if the file cannot be written; what was there before stays.

    Durability:
        The file is durable on return.
    """
    target = os.path.abspath(as_path(path))
    folder, name = os.path.split(target)
    partial = os.path.join(folder, f".{name}.{os.getpid()}.part")
    parquet = package("pyarrow.parquet", "to_parquet", "arrow")
    rows = 0
    try:
        with files.naming(target):
            with parquet.ParquetWriter(partial, batches.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            files.sync(partial)
            files.rename(partial, target)
        files.fsync_dir(folder)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(partial)
        raise
    return rows
