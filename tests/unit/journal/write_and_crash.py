"""Run by `test_writer`: appends 20 rows to table `public.a` in several segments and commits, or is killed on the way."""

from __future__ import annotations

import sys

import pyarrow as pa

from replicator.journal import JournalWriter
from replicator.model.events import change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import StateStore
from replicator_testing.defaults import writer_limits

url, folder, epoch = sys.argv[1:]
schema = TableSchema(
    table=TableId("public", "a"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint"),
        Column(name="text of", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)
limits = writer_limits(segment_rows=7, row_group_rows=2)
writer = JournalWriter(StateStore(url), name="shop", epoch=int(epoch), uri=folder, limits=limits)
for _ in range(4):
    first = writer.take(5)
    rows = [
        {"_sequence_num": n, "_operation": "INSERT", "_is_snapshot": False, "row": {"id": n, "c2": "x"}}
        for n in range(first, first + 5)
    ]
    writer.append(schema, 1, pa.RecordBatch.from_pylist(rows, schema=change_schema(schema)))
writer.commit(offset=None, source_time=None)
