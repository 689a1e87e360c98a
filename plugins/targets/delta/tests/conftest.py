"""A lake of its own for each test, with the Spark that all tests share, which the first starts that needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.model.events import DDLEvent, DDLOperation, change_schema, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import (
    EMPTY_LEDGER,
    Batch,
    BatchFile,
    BatchResult,
    TableOptions,
    TargetTable,
)
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.lane import lane
from replicator_target_delta.target import DeltaLakeTarget
from replicator_target_delta.upkeep import turns as upkeep
from replicator_target_delta.upkeep.due import Turns, UpkeepKind
from replicator_testbed.delta import read_delta, rows_of
from replicator_testbed.spark.session import spark, spark_host  # noqa: F401 - fixtures
from replicator_testing.defaults import target_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from replicator.spark.session import SparkHost

PEOPLE = TableSchema(
    table=TableId("public", "people"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="name", type=pa.string(), source_type="text"),
        Column(name="note", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)


class Lake:
    """Writes small batches into one table of a Delta target, and reads the table back."""

    def __init__(self, host: SparkHost, folder: Path, schema: TableSchema = PEOPLE, **config: Any) -> None:
        self._host = host
        self.folder = folder
        self.schema = schema
        self.config: dict[str, Any] = config
        self.rung: str | None = None
        self.next = 0
        self.files = 0
        self.target = self.process()
        self.table = self.owned()

    @property
    def spark(self) -> SparkSession:
        """The shared session; it is started with the first use."""
        session: SparkSession = self._host.session()
        return session

    def process(self, uuid: str = "u-1") -> DeltaLakeTarget:
        """A target as a new process would make it."""
        config = DeltaLakeConfig(path=str(self.folder / "lake"), **self.config)
        return DeltaLakeTarget(config, target_context(replicator="test", uuid=uuid, epoch=1, spark=lambda: self.spark))

    def owned(self, **changes: Any) -> TargetTable:
        """The table, of epoch 1 and incarnation 0 unless told otherwise."""
        defaults: dict[str, Any] = {"uuid": "u-1", "incarnation": 0, "epoch": 1}
        return TargetTable(table=self.schema.table, **{**defaults, **changes})

    @property
    def path(self) -> Path:
        """The table's folder."""
        return Path(self.target._storage.table_path(self.schema.table))

    def create(
        self, target: DeltaLakeTarget | None = None, table: TargetTable | None = None, schema: TableSchema | None = None
    ) -> int:
        """Apply CREATE_TABLE; its number."""
        event = DDLEvent(operation=DDLOperation.CREATE_TABLE, table=self.schema.table, schema=schema or self.schema)
        return self.event(event, target, table)

    def event(self, event: DDLEvent, target: DeltaLakeTarget | None = None, table: TargetTable | None = None) -> int:
        """Apply an event; its number."""
        number = self.number()
        (target or self.target).apply_ddl(table or self.table, event, number)
        return number

    def alter(self, wanted: TableSchema, fill: Mapping[str, Any] | None = None) -> int:
        """Apply ALTER_TABLE; its number. From then on batches have the new shape."""
        row = no_fill()
        if fill is not None:
            row = pa.RecordBatch.from_pylist([dict(fill)], pa.schema([(n, wanted.column(n).type) for n in fill]))
        event = DDLEvent(
            operation=DDLOperation.ALTER_TABLE, table=wanted.table, schema=wanted, before=self.schema, fill=row
        )
        number = self.event(event)
        self.schema = wanted
        return number

    def number(self) -> int:
        """The next sequence number."""
        self.next += 1
        return self.next - 1

    def insert(self, **row: Any) -> dict[str, Any]:
        return self.change("INSERT", row=row)

    def update(
        self, *, before: Mapping[str, Any] | None = None, absent: Sequence[str] = (), **row: Any
    ) -> dict[str, Any]:
        return self.change("UPDATE", row=row, before=before, absent=absent)

    def delete(self, **before: Any) -> dict[str, Any]:
        return self.change("DELETE", before=before)

    def change(self, operation: str, **parts: Any) -> dict[str, Any]:
        """A numbered change in the journal's layout."""
        return {
            "_sequence_num": self.number(),
            "_operation": operation,
            "_is_snapshot": parts.get("is_snapshot", False),
            "_absent": list(parts.get("absent", ())) or None,
            "before": parts.get("before"),
            "row": parts.get("row"),
        }

    def batch(self, changes: Sequence[Mapping[str, Any]], schema: TableSchema | None = None, **parts: Any) -> Batch:
        """Changes as a sealed journal file."""
        shape = schema or self.schema
        return self.batch_of(pa.Table.from_pylist(list(changes), schema=change_schema(shape)), shape, **parts)

    def batch_of(self, rows: pa.Table, schema: TableSchema | None = None, **parts: Any) -> Batch:
        """A table in the journal's layout as a sealed journal file."""
        self.files += 1
        path = self.folder / f"journal-{self.files}.parquet"
        pq.write_table(rows, path)
        numbers = rows["_sequence_num"].to_pylist()
        file = BatchFile(
            uri=path.as_uri(), rows=rows.num_rows, bytes=path.stat().st_size, first=numbers[0], last=numbers[-1]
        )
        defaults: dict[str, Any] = {
            "schema": schema or self.schema,
            "files": [file],
            "last": numbers[-1],
            "skip_to": -1,
            "rows": rows.num_rows,
        }
        return Batch(**{**defaults, **parts})

    def apply(self, *changes: Mapping[str, Any], **parts: Any) -> BatchResult:
        """Apply changes as one batch."""
        return self.apply_batch(self.batch(changes, **parts))

    def apply_batch(self, batch: Batch) -> BatchResult:
        """Apply a batch, and check that the rung did it that was asked for."""
        result = self.target.apply_batch(self.table, batch)
        used = self.target.engine(self.table.table)
        assert self.rung is None or used is None or used.rung == self.rung, used
        return result

    def maintain(self, turns: Turns, kind: UpkeepKind, now: datetime) -> str:
        """Carry out upkeep of the table."""
        config = self.target.config.maintenance
        return upkeep.run(self.spark.newSession(), self.target._storage, str(self.path), turns, kind, config, now)

    def rows(self, *columns: str) -> set[tuple[Any, ...]]:
        """The table's rows; without columns, those of the source."""
        names = columns or tuple(c.name for c in self.schema.columns)
        rows = list(rows_of(read_delta(self.path, names)))
        assert len(set(rows)) == len(rows)
        return set(rows)

    def version(self) -> int:
        """Commits of the table so far."""
        return len(list((self.path / "_delta_log").glob("*.json"))) - 1


@pytest.fixture
def lake(spark_host: SparkHost, tmp_path: Path) -> Lake:  # noqa: F811
    """A lake with the table `public.people` in it."""
    lake = Lake(spark_host, tmp_path)
    assert lake.target.claim(lake.table).last_applied == EMPTY_LEDGER
    lake.create()
    return lake


@pytest.fixture
def new_lake(spark_host: SparkHost, tmp_path: Path) -> Callable[..., Lake]:  # noqa: F811
    """Makes a lake for a table of any shape, claimed and created."""

    def make(
        schema: TableSchema = PEOPLE,
        options: TableOptions = TableOptions(),  # noqa: B008
        folder: str = ".",
        **config: Any,
    ) -> Lake:
        (tmp_path / folder).mkdir(exist_ok=True)
        lake = Lake(spark_host, tmp_path / folder, schema, **config)
        lake.table = lake.owned(options=options)
        lake.target.claim(lake.table)
        lake.create()
        return lake

    return make


@pytest.fixture
def lake_by(new_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lake]:
    """Makes a lake as `new_lake` does, all of whose batches are applied by one rung: L0, L1 or L2."""

    def make(rung: str, *arguments: Any, **parts: Any) -> Lake:
        monkeypatch.undo()
        if rung == "L2":
            monkeypatch.setattr(lane, "DIRECT_ROWS_MAX", 0)
        lake = new_lake(*arguments, engine="spark" if rung == "L0" else "auto", **parts)
        lake.rung = rung
        return lake

    return make
