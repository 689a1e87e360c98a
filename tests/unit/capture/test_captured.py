"""The kit that runs captures in tests tells a test what went wrong, instead of letting it wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import Chunk, ChunkRequest, DeltaSource
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured
from replicator_testing.memory import MemoryDatabase, MemorySource, MemorySourceConfig

TABLE = TableId("shop", "items")


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_table_that_fails_by_an_unexpected_error_fails_the_test(tmp_path: Path, is_waited_for: bool) -> None:
    database = MemoryDatabase.open(str(tmp_path))
    columns = (Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),)
    database.create_table(TableSchema(table=TABLE, columns=columns, key=("id",)))
    captured = Captured(
        folder=tmp_path,
        name="items",
        make_source=lambda context: MemorySource(MemorySourceConfig(database=str(tmp_path)), context),
        tables=[TABLE],
    )

    def broken(request: ChunkRequest) -> Chunk:
        raise AssertionError("what a test expected inside a read")

    def alter(source: DeltaSource[Any]) -> None:
        source.read_chunk = broken  # type: ignore[method-assign]

    def run() -> None:
        with captured.running(alter) as running:
            captured.may_crash = not is_waited_for
            if is_waited_for:
                captured.wait_for_streaming(running)
            running.wait_until(lambda: captured.stage(TABLE) is Stage.FAILED, "it failed")
            captured.may_crash = False

    with pytest.raises(AssertionError, match="unexpected errors"):
        run()
    captured.close()
