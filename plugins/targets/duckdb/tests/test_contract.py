"""What every target must do, on a real DuckDB file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import duckdb
import pytest

from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.plugins.target import TargetTable
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.sql import quoted
from replicator_target_duckdb.target import DuckDBTarget
from replicator_testing.defaults import target_context
from replicator_testing.target_contract import TargetContract
from replicator_testing.target_harness import UUID, TargetHarness, TargetRow


class Harness(TargetHarness):
    """A file, read by DuckDB alone."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.targets: list[DuckDBTarget] = []

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> DuckDBTarget:
        config = DuckDBConfig(path=str(self.file), adopt=adopt)
        self.targets.append(DuckDBTarget(config, target_context(replicator="contract", uuid=uuid, epoch=epoch)))
        return self.targets[-1]

    def connect(self) -> duckdb.DuckDBPyConnection:
        return duckdb.connect(str(self.file))

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        if not self.exists(table):
            return []
        marks = [SEQUENCE_NUM, IS_DELETED if table.options.deletes == "soft" else "FALSE"]
        columns = [column.name for column in schema.held]
        names = ", ".join([*map(quoted, columns), *marks])
        with self.connect() as connection:
            path = f"{quoted(table.table.namespace)}.{quoted(table.table.name)}"
            found = connection.execute(f"SELECT {names} FROM {path}").to_arrow_table()
        rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
        return [
            TargetRow(values=dict(zip(columns, row[:-2], strict=True)), sequence_num=row[-2], is_deleted=row[-1])
            for row in rows
        ]

    def exists(self, table: TargetTable) -> bool:
        if not self.file.exists():
            return False
        with self.connect() as connection:
            found = connection.execute(
                "SELECT count(*) FROM duckdb_tables() WHERE schema_name = ? AND table_name = ?",
                [table.table.namespace, table.table.name],
            ).fetchone()
        return found is not None and found[0] > 0


@pytest.mark.sampled(2)
class TestDuckDBTarget(TargetContract):
    fuzz_rounds = 1
    alteration_steps = 5

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[TargetHarness]:
        harness = Harness(tmp_path / "contract.duckdb")
        yield harness
        for target in harness.targets:
            target.close()


@pytest.mark.matrix
class TestManyHistories(TestDuckDBTarget):
    fuzz_rounds = 4
    alteration_steps = TargetContract.alteration_steps
