"""Makes journal files readable for Spark: decimals of more than 38 digits become text, and files that it cannot reach are copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from replicator.model.events import BEFORE, ROW
from replicator.model.schema import TableSchema
from replicator.plugins.kit.opening import open_seekable
from replicator.spark.limits import is_readable
from replicator_target_delta.storage import Storage

_BATCH_ROWS = 50_000
_PIECE = 8 << 20


@contextmanager
def readable_files(uris: Sequence[str], schema: TableSchema, storage: Storage) -> Iterator[Sequence[str]]:
    """Files with the same changes that Spark can read; for nearly every table the same files.

    Rewritten files are in the target's own folder during the block. A crash leaves them for the next clean-up of
    that folder. So are copies of those that Spark may have no connector for.
    """
    needs_text = not all(is_readable(column.type) for column in schema.columns)
    known = [spark_uri(uri, storage.root) for uri in uris]
    reachable = [uri for uri in known if uri is not None]
    if not needs_text and len(reachable) == len(known):
        yield reachable
        return
    folder = storage.own_path("staging", uuid4().hex)
    transfer = _rewrite if needs_text else _transfer
    try:
        rewritten = []
        for number, uri in enumerate(uris):
            rewritten.append(f"{folder}/{number}.parquet")
            transfer(uri, rewritten[-1], storage)
        yield rewritten
    finally:
        storage.remove(folder)


def spark_uri(uri: str, root: str) -> str | None:
    """The URI by which Spark reads a journal file; None if it may have no connector for it.

    It has one for an object store if the target is in a store of the same protocol.

    Args:
        uri: The file's URI for pyarrow.
        root: The target's path.
    """
    scheme, mark, rest = uri.partition("://")
    target = root.partition("://")[0] if "://" in root else "file"
    if not mark or scheme in {"file", "hdfs", "viewfs", target}:
        return uri
    return f"{target}://{rest}" if scheme == "s3" and target in {"s3a", "s3n"} else None


def as_text(column: pa.Array) -> pa.Array:
    """Decimals as plain digits, with as many after the point as their scale; lists of them alike; other columns as they are."""
    if is_readable(column.type):
        return column
    if pa.types.is_list(column.type):
        # Lists of such numbers are too rare to deserve better than one at a time.
        element = as_text(pa.nulls(0, column.type.value_type)).type
        values = [
            None if item is None else as_text(pa.array(item, column.type.value_type)).to_pylist()
            for item in column.to_pylist()
        ]
        return pa.array(values, pa.list_(element))
    spelled = pc.cast(column, pa.string())
    # Arrow writes very small numbers with an exponent.
    odd = pc.fill_null(pc.match_substring(spelled, "E"), False)
    if not pc.any(odd).as_py():
        return spelled
    plain = [format(Decimal(value), f".{column.type.scale}f") for value in spelled.filter(odd).to_pylist()]
    return pc.replace_with_mask(spelled, odd, pa.array(plain, pa.string()))


def _transfer(uri: str, path: str, storage: Storage) -> None:
    source_fs, source_path = pafs.FileSystem.from_uri(uri)
    with source_fs.open_input_stream(source_path, compression=None) as source, storage.open_output(path) as output:
        while piece := source.read(_PIECE):
            output.write(piece)


def _rewrite(uri: str, path: str, storage: Storage) -> None:
    source_fs, source_path = pafs.FileSystem.from_uri(uri)
    with open_seekable(source_fs, source_path) as source, storage.open_output(path) as output:
        file = pq.ParquetFile(source)
        writer: pq.ParquetWriter | None = None
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            columns = [
                _struct_as_text(column) if name in {BEFORE, ROW} else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            rewritten = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
            writer = writer or pq.ParquetWriter(output, rewritten.schema)
            writer.write_batch(rewritten)
        if writer is not None:
            writer.close()


def _struct_as_text(column: pa.StructArray) -> pa.StructArray:
    fields = [as_text(field) for field in column.flatten()]
    names = [column.type.field(i).name for i in range(column.type.num_fields)]
    return pa.StructArray.from_arrays(fields, names=names, mask=column.is_null())
