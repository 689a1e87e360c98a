"""The contract on the real service; has never been run.

It is switched on by the environment, with application default credentials that have the roles of
`docs/targets/bigquery.md` on the project:

    export REPLICATOR_BIGQUERY_PROJECT=my-project REPLICATOR_BIGQUERY_BUCKET=my-bucket REPLICATOR_BIGQUERY_LOCATION=EU
    pytest plugins/targets/bigquery/tests/test_service.py --timeout=0

Datasets are made whose names begin with `replicator_test_`, and removed; it costs a few thousand small jobs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

import pyarrow as pa
import pytest
from google.api_core.exceptions import NotFound
from google.cloud import bigquery

from replicator.model.errors import FencedError, TargetUnavailableError
from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.plugins.target import TargetTable
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testing.alterations import numbered, text_column
from replicator_testing.batches import delete, insert
from replicator_testing.defaults import target_context
from replicator_testing.table_states import assert_state
from replicator_testing.target_contract import TargetContract
from replicator_testing.target_harness import UUID, Copy, TargetHarness, TargetRow, item, items_schema

from .states import BIGNUMERIC, VALUES, boundary_rows, differing, everything, floats, put, state_of

PROJECT = os.environ.get("REPLICATOR_BIGQUERY_PROJECT", "")
BUCKET = os.environ.get("REPLICATOR_BIGQUERY_BUCKET", "")
LOCATION = os.environ.get("REPLICATOR_BIGQUERY_LOCATION", "EU")

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(
        not (PROJECT and BUCKET), reason="REPLICATOR_BIGQUERY_PROJECT and _BUCKET name no project and bucket"
    ),
]


class RealWarehouse(TargetHarness):
    """Datasets of one test in a real project."""

    def __init__(self) -> None:
        prefix = f"replicator_test_{uuid4().hex[:12]}"
        self.values: dict[str, Any] = {
            "project": PROJECT,
            "location": LOCATION,
            "dataset": prefix + "_{namespace}",
            "own_dataset": f"{prefix}_own",
            "staging": {"bucket": BUCKET, "prefix": prefix},
        }
        self.prefix = prefix
        self.client = bigquery.Client(project=PROJECT, location=LOCATION)
        self.targets: list[BigQueryTarget] = []

    @property
    def names(self) -> Names:
        return Names(BigQueryConfig.model_validate(self.values))

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> BigQueryTarget:
        config = BigQueryConfig.model_validate({**self.values, "adopt": adopt})
        self.targets.append(
            BigQueryTarget(config, target_context(replicator="contract", uuid=uuid, epoch=epoch, max_wait_s=0.0))
        )
        return self.targets[-1]

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        try:
            found = self.query(f"SELECT * FROM `{self.names.path(table.table)}`")
        except NotFound:
            return []
        columns = self.names.columns(schema)
        return [
            TargetRow(
                values={name: row[bearer] for name, bearer in columns.items()},
                sequence_num=row[SEQUENCE_NUM],
                is_deleted=row.get(IS_DELETED, False),
            )
            for row in found
        ]

    def exists(self, table: TargetTable) -> bool:
        try:
            self.client.get_table(self.names.path(table.table))
        except NotFound:
            return False
        return True

    def query(self, sql: str) -> list[Mapping[str, Any]]:
        return [dict(row) for row in self.client.query(sql).result()]

    def close(self) -> None:
        for target in self.targets:
            target.close()
        for dataset in list(self.client.list_datasets()):
            if dataset.dataset_id.startswith(self.prefix):
                self.client.delete_dataset(dataset.reference, delete_contents=True, not_found_ok=True)
        self.client.close()


@pytest.fixture
def harness() -> Iterator[RealWarehouse]:
    warehouse = RealWarehouse()
    yield warehouse
    warehouse.close()


@pytest.mark.timeout(7200)
class TestOnTheService(TargetContract):
    fuzz_worlds: ClassVar[int] = 50
    fuzz_rounds: ClassVar[int] = 1
    renames_keys: ClassVar[bool] = False

    @pytest.fixture
    def harness(self) -> Iterator[TargetHarness]:
        warehouse = RealWarehouse()
        yield warehouse
        warehouse.close()


@pytest.mark.timeout(3600)
def test_a_claim_and_a_batch_at_the_same_moment_leave_one_winner(harness: TargetHarness, tmp_path: Path) -> None:
    """What the emulator cannot show: a transaction and an UPDATE of the same ledger side by side."""
    schema = items_schema()
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    zombie = Copy(harness=harness, folder=tmp_path, schema=schema, table=table, target=harness.target())
    zombie.create()
    for epoch in range(2, 8):
        outcome: list[BaseException | None] = []

        def write(copy: Copy = zombie, number: int = epoch, found: list[BaseException | None] = outcome) -> None:
            try:
                copy.apply(insert(number, item(number, "a")))
            except (FencedError, TargetUnavailableError) as error:
                found.append(error)
            else:
                found.append(None)

        thread = threading.Thread(target=write)
        thread.start()
        heir = replace(zombie, table=replace(table, epoch=epoch), target=harness.target(epoch=epoch))
        claim = heir.claim()
        thread.join()
        has_row = any(row.values["id"] == epoch for row in heir.stored())
        assert (claim.last_applied == epoch) is has_row
        assert (outcome == [None]) is has_row
        heir.ledger = claim.last_applied
        zombie = heir


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("key", ["id", "name"])
def test_a_table_is_widened_and_then_replaced(harness: RealWarehouse, tmp_path: Path, key: str) -> None:
    """Two statements that the emulator has in part only: SET DATA TYPE, and CREATE OR REPLACE TABLE … COPY."""
    schema = numbered(items_schema())
    schema = replace(
        schema, columns=(*schema.columns, replace(text_column("size", 5, pa.int32()), comment="How large"))
    )
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=harness, folder=tmp_path, schema=schema, table=table, target=harness.target())
    copy.create()
    copy.apply(insert(1, item(1, "a", size=7)))
    columns = [replace(c, type=pa.float64()) if c.name == "size" else c for c in schema.columns]
    copy.alter(replace(schema, columns=tuple(columns)))
    assert copy.live() == [(1, "a", None, None, 7.0)]
    copy.table = replace(table, incarnation=2)
    copy.schema = replace(
        copy.schema, key=(key,), columns=tuple(replace(c, nullable=c.name != key) for c in copy.schema.columns)
    )
    copy.create(10)
    copy.apply(insert(11, item(2, "b", size=0.5)))
    assert copy.live() == [(1, "a", None, None, 7.0)]
    copy.target.publish(copy.table, 12)
    assert copy.live() == [(2, "b", None, None, 0.5)]
    made = harness.client.get_table(harness.names.path(schema.table))
    assert made.clustering_fields == [key]
    constraints = made.table_constraints
    assert constraints is not None
    assert constraints.primary_key is not None
    assert constraints.primary_key.columns == [key]
    assert made.labels["replicator_incarnation"] == "2"
    assert [field.description for field in made.schema if field.name == "size"] == ["How large"]
    assert copy.restart(epoch=2).last_applied == 12
    copy.apply(insert(13, item(3, "c", size=1.5)))
    assert len(copy.live()) == 2


@pytest.mark.timeout(3600)
def test_a_state_has_every_value_in_its_canonical_form_and_stays(harness: RealWarehouse, tmp_path: Path) -> None:
    """Real BIGNUMERIC columns, FORMAT and CAST of the service, and its time travel."""
    columns = {**VALUES, **BIGNUMERIC}
    schema = everything(columns)
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=harness, folder=tmp_path, schema=schema, table=table, target=harness.target())
    copy.create()
    numbers = [{"id": 1000 + n, "f64": number} for n, number in enumerate(floats(1000))]
    rows = put(copy, [*boundary_rows(columns), *numbers])
    with state_of(copy) as state:
        known = rows.slice(0, len(rows) - len(numbers))
        assert differing(state, known, schema) == []
        copy.apply(delete(copy.ledger + 1, {"id": 1}))
        assert_state(state, rows, schema)
    with state_of(copy) as state:
        assert sum(c.rows for c in state.checksums(0).values()) == len(rows) - 1
