"""One emulator for all tests; each test has datasets of its own in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.target import TargetContext, TargetTable
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testbed.bigquery.emulator import BUCKET, LOCATION, PROJECT, BigQueryEmulator
from replicator_testing.target_harness import UUID, TargetHarness, TargetRow

_NUMBERS = itertools.count(1)


class Warehouse(TargetHarness):
    """Datasets of one test, and a way to look at them with Google's own client."""

    def __init__(self, emulator: BigQueryEmulator, endpoint: str | None = None, **config: Any) -> None:
        prefix = f"w{next(_NUMBERS)}"
        self.max_wait_s = 0.0
        self.emulator = emulator
        self.values: dict[str, Any] = {
            "project": PROJECT,
            "location": LOCATION,
            "dataset": prefix + "_{namespace}",
            "own_dataset": f"_{prefix}",
            "endpoint": endpoint or emulator.endpoint,
            "staging": {"bucket": BUCKET, "prefix": prefix, "folder": emulator.storage},
            **config,
        }
        self.client = bigquery.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": emulator.endpoint},
            location=LOCATION,
        )
        self._targets: list[BigQueryTarget] = []

    def config(self, **changes: Any) -> BigQueryConfig:
        return BigQueryConfig.model_validate({**self.values, **changes})

    @property
    def names(self) -> Names:
        return Names(self.config())

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse", **changes: Any
    ) -> BigQueryTarget:
        context = TargetContext(replicator="contract", uuid=uuid, epoch=epoch, max_wait_s=self.max_wait_s)
        target = BigQueryTarget(self.config(adopt=adopt, **changes), context)
        self._targets.append(target)
        return target

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        try:
            found = self.query(f"SELECT * FROM `{self.names.path(table.table)}`")
        except NotFound:
            return []
        columns = self.names.columns(schema)
        return [
            TargetRow(
                values={c.name: _tidied(row[columns[c.name]], c.type) for c in schema.held},
                sequence_num=row[SEQUENCE_NUM],
                is_deleted=row.get(IS_DELETED, False),
            )
            for row in found
        ]

    def exists(self, table: TargetTable) -> bool:
        try:
            self.query(f"SELECT * FROM `{self.names.path(table.table)}` LIMIT 0")
        except NotFound:
            return False
        return True

    def query(self, sql: str) -> list[Mapping[str, Any]]:
        # Google's types lack that None means no retry.
        job = self.client.query(sql, retry=None, job_retry=None)  # type: ignore[arg-type]
        return [dict(row) for row in job.result(retry=None)]

    def ledger(self, table: TableId) -> Mapping[str, Any]:
        (row,) = self.query(f"SELECT * FROM `{self.names.ledger(table)}`")
        return row

    def leftovers(self) -> list[str]:
        """Staging tables and staged files that are there."""
        tables = [t.table_id for t in self.client.list_tables(self.names.own_dataset)]
        folder = self.emulator.storage / BUCKET / self.values["staging"]["prefix"]
        files = [p.name for p in folder.rglob("*") if p.is_file()]
        return [t for t in tables if t.startswith("staging_")] + files

    def close(self) -> None:
        for target in self._targets:
            target.close()
        # The emulator slows down with every table that it holds.
        prefix = self.values["own_dataset"].removeprefix("_")
        for dataset in list(self.client.list_datasets()):
            if dataset.dataset_id == f"_{prefix}" or dataset.dataset_id.startswith(f"{prefix}_"):
                self.client.delete_dataset(dataset.reference, delete_contents=True, not_found_ok=True)
        self.client.close()


def _tidied(value: Any, type_: pa.DataType) -> Any:
    """Decimals with as many digits as the source has: lists of rows are ordered by their text."""
    if isinstance(value, Decimal) and pa.types.is_decimal(type_):
        return value.quantize(Decimal(1).scaleb(-type_.scale), context=Context(prec=100))
    return value


@pytest.fixture(scope="session")
def emulator() -> Iterator[BigQueryEmulator]:
    with BigQueryEmulator() as emulator:
        yield emulator


@pytest.fixture
def warehouse(emulator: BigQueryEmulator) -> Iterator[Warehouse]:
    warehouse = Warehouse(emulator)
    yield warehouse
    warehouse.close()


@pytest.fixture
def new_warehouse(emulator: BigQueryEmulator) -> Iterator[Callable[..., Warehouse]]:
    """Makes warehouses with settings of their own."""
    made: list[Warehouse] = []

    def make(**config: Any) -> Warehouse:
        made.append(Warehouse(emulator, **config))
        return made[-1]

    yield make
    for warehouse in made:
        warehouse.close()
