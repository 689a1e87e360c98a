"""What every target must do, on real Delta tables, which are read with delta-rs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest

from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.plugins.target import TargetTable
from replicator.testing.defaults import target_context
from replicator.testing.target_contract import TargetContract
from replicator.testing.target_harness import UUID, TargetHarness, TargetRow
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.storage import Storage
from replicator_target_delta.tablelog import DROPPED, STATE, read_log
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.delta import read_delta, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lake(TargetHarness):
    """Tables in a folder."""

    def __init__(self, session: SparkSession, folder: Path, engine: Literal["auto", "spark"]) -> None:
        self.session = session
        self.engine = engine
        self.storage = Storage(str(folder))
        self.targets: list[DeltaLakeTarget] = []

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> DeltaLakeTarget:
        config = DeltaLakeConfig(path=self.storage.root, adopt=adopt, engine=self.engine)
        context = target_context(replicator="contract", uuid=uuid, epoch=epoch, spark=lambda: self.session)
        self.targets.append(DeltaLakeTarget(config, context))
        return self.targets[-1]

    def reasons(self) -> Sequence[str]:
        """Why Spark applied the last batch of a table, of those that it did."""
        reports = [report for target in self.targets for report in target._engines.values()]
        return [report.reason or "" for report in reports if report.rung == "L0"]

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        if not self.exists(table):
            return []
        names = [column.name for column in schema.held]
        marks = [SEQUENCE_NUM, *([IS_DELETED] if table.options.deletes == "soft" else [])]
        return [
            TargetRow(
                values=dict(zip(names, row[: len(names)], strict=True)),
                sequence_num=row[len(names)],
                is_deleted=bool(row[len(names) + 1 :] and row[-1]),
            )
            for row in self._read(self.storage.table_path(table.table), [*names, *marks])
        ]

    def exists(self, table: TargetTable) -> bool:
        log = read_log(self.storage, self.storage.table_path(table.table))
        return log is not None and log.properties.get(STATE) != DROPPED

    def _read(self, path: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        if "%" not in path:
            return rows_of(read_delta(Path(path), names))
        # delta-rs finds no folder with a percent sign in its name.
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        return (tuple(row) for row in self.session.read.format("delta").load(path).select(*quoted).collect())


class TestDeltaLakeTarget(TargetContract):
    builds_out_of_sight: ClassVar[bool] = True
    fuzz_worlds: ClassVar[int] = 250
    fuzz_rounds: ClassVar[int] = 1

    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
        lake = Lake(spark, tmp_path / "lake", "auto")
        yield lake
        # Spark applied batches of tables without a key only.
        assert [reason for reason in lake.reasons() if reason != "the table has no key"] == []


@pytest.mark.matrix  # minutes of Spark; the other files here show the same in parts
@pytest.mark.timeout(1800)
class TestDeltaLakeTargetBySpark(TargetContract):
    builds_out_of_sight: ClassVar[bool] = True
    fuzz_worlds: ClassVar[int] = 250
    fuzz_rounds: ClassVar[int] = 1

    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> Lake:
        return Lake(spark, tmp_path / "lake", "spark")
