"""What a MERGE reads has each key once: the service refuses two rows of one key, the emulator takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_bigquery import statements
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testing.histories import random_batches
from replicator_testing.target_harness import UUID, Copy, items_schema

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse


@pytest.mark.parametrize("deletes", ["hard", pytest.param("soft", marks=pytest.mark.matrix)])
@pytest.mark.parametrize(
    "lacks", [pytest.param(True, marks=pytest.mark.matrix, id="partial"), pytest.param(False, id="whole")]
)
def test_a_merge_reads_each_key_once(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: str, lacks: bool
) -> None:
    sources = []
    batch_statements = statements.batch_statements

    def recorded(*arguments: Any) -> Sequence[str]:
        body = batch_statements(*arguments)
        (folded,) = [
            statement
            for statement in body
            if statement.startswith("CREATE TEMP TABLE IF NOT EXISTS replicator_folded_")
        ]
        sources.append(folded.partition(" AS\n")[2])
        return body

    monkeypatch.setattr(statements, "batch_statements", recorded)
    # What was merged is read once more.
    monkeypatch.setattr(BigQueryTarget, "_tidy", lambda *_: None)
    schema = items_schema(with_world=True)
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=TableOptions(deletes=deletes))
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    for batch in random_batches(3, worlds=25, length=12, batches=2):
        changes = batch if lacks else [change for change in batch if not change.absent]
        copy.apply(*changes)
        (counts,) = warehouse.query(
            f"SELECT COUNT(*) AS n, COUNT(DISTINCT CONCAT(k0, ':', k1)) AS keys FROM ({sources[-1]})"
        )
        assert counts["n"] == counts["keys"] > 25
    assert len(sources) == 2
