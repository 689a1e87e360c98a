"""What every target must do, on a real DuckDB file."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import duckdb
import pytest

from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding import needed
from replicator.plugins.target import TargetTable
from replicator_target_duckdb import merge
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.sql import quoted
from replicator_target_duckdb.target import DuckDBTarget
from replicator_testing.batches import delete, insert, update
from replicator_testing.defaults import target_context
from replicator_testing.oracle import Oracle
from replicator_testing.target_contract import TargetContract
from replicator_testing.target_harness import UUID, TargetHarness, TargetRow, as_outcome, item, items_schema


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

    @pytest.mark.parametrize("key", [("id",), ()])
    def test_a_batch_that_does_not_fit_into_memory_is_merged_in_parts(
        self, harness: TargetHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
    ) -> None:
        rng, numbers = random.Random(7), itertools.count(1)
        copy, parts = self.copy(harness, tmp_path, items_schema(key=key)), list[Merged]()
        copy.create()
        oracle, insert_rows = Oracle(copy.schema), merge._insert
        monkeypatch.setattr(merge, "_insert", lambda *a: (parts.append(Merged()), insert_rows(*a)))
        monkeypatch.setattr(needed, "BYTES_MAX", 20_000)
        for _ in range(2):
            changes = [update(next(numbers), item(rng.randrange(50), "a")) for _ in range(300 if key else 0)]
            changes += [insert(next(numbers), item(rng.randrange(50 if key else 5), "a")) for _ in range(300)]
            changes += [delete(next(numbers), item(rng.randrange(50 if key else 5), "a")) for _ in range(100)]
            counts = copy.audit()
            copy.apply(*changes, files=3, expects_rows=True)
            counts += oracle.apply(changes, expects_rows=True)
            assert copy.outcome() == as_outcome(copy.schema, oracle.rows)
            assert copy.audit() == counts
        assert len(parts) > 4


@pytest.mark.matrix
class TestManyHistories(TestDuckDBTarget):
    fuzz_rounds = 4
    alteration_steps = TargetContract.alteration_steps
