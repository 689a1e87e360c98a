"""What tables will take in BigQuery: sizes by its documented rules, and what merges are billed."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.model.figures import Basis, Figure, unknown
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.planning import SupportsTargetPlanning, TableLoad
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.planning import MINIMUM_BYTES, PRICE
from replicator_testbed.bigquery.emulator import BigQueryEmulator
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

SCHEMA = TableSchema(
    table=TableId("public", "t"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="name", type=pa.string(), source_type="text"),
        Column(name="price", type=pa.decimal128(12, 2), source_type="numeric(12,2)"),
        Column(name="day", type=pa.date32(), source_type="date"),
        Column(name="is_new", type=pa.bool_(), source_type="boolean"),
    ),
    key=("id",),
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"id": 1, "name": "abc", "price": Decimal("1.50"), "day": date(2026, 1, 1), "is_new": True},
        {"id": 2, "name": "ü", "price": None, "day": None, "is_new": None},
    ],
    schema=pa.schema(list(SCHEMA.row_type)),
)
FIRST = 8 + (2 + 3) + 16 + 8 + 1
SECOND = 8 + (2 + 2)
ROW = (FIRST + SECOND) / 2 + 8


def config(**changes: Any) -> BigQueryConfig:
    return BigQueryConfig.model_validate({"project": "p", "location": "EU", "staging": {"bucket": "bucket"}, **changes})


def load(rows: float, merges: float, sample: pa.RecordBatch | None = ROWS) -> TableLoad:
    def known(value: float) -> Figure:
        return Figure(value, Basis.COUNTED, "given")

    return TableLoad(
        schema=SCHEMA,
        sample=sample,
        rows=known(rows),
        row_bytes=known(20),
        changes_per_day=known(500),
        merges_per_day=known(merges),
    )


def test_settings_can_tell() -> None:
    assert isinstance(config(), SupportsTargetPlanning)
    assert config().price() == PRICE


def test_a_row_has_the_size_that_bigquery_documents_and_null_has_none() -> None:
    cost = config().table_cost(load(1000, 10))
    assert cost.bytes.value == pytest.approx(1000 * ROW)
    assert cost.written_per_day.value == pytest.approx(500 * ROW)


def test_a_merge_is_billed_the_table_and_its_key_and_a_small_one_the_minimum() -> None:
    rows = 1e9
    large = present(config().table_cost(load(rows, 24)).billed_per_day)
    assert large.value == pytest.approx(24 * (rows * (ROW + 8) + MINIMUM_BYTES))
    small = present(config().table_cost(load(10, 288)).billed_per_day)
    assert small.value == pytest.approx(288 * 2 * MINIMUM_BYTES)


def test_without_a_sample_nothing_is_known() -> None:
    cost = config().table_cost(load(1000, 10, sample=None))
    assert (cost.bytes, cost.billed_per_day) == (unknown("given"), unknown("given"))


def test_budgets_that_will_be_used_up_are_found() -> None:
    tight = config(budget={"bytes_per_day": "1GiB", "load_jobs_per_day": 100})
    billed, merges = Figure(float(2 << 30), Basis.ESTIMATED, ""), Figure(101.0, Basis.ESTIMATED, "")
    found = tight.planned_problems(billed, merges)
    assert [(one.code, one.location) for one in found] == [
        ("plan_budget", "target.budget.bytes_per_day"),
        ("plan_budget", "target.budget.load_jobs_per_day"),
    ]
    assert config().planned_problems(billed, merges) == []


def test_what_batches_cost_is_told_with_the_price_and_its_date(
    emulator: BigQueryEmulator,
    warehouse: Warehouse,
    database: ScratchDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    monkeypatch.setenv("SOURCE_PASSWORD", database.server.password or "none")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t SELECT i, i FROM generate_series(1, 50) i"
    )
    staging = {**warehouse.values["staging"], "folder": str(warehouse.values["staging"]["folder"])}
    document = {
        "name": "shop",
        "source": {**database.source, "password": "${env:SOURCE_PASSWORD}"},
        "target": {"type": "bigquery", **warehouse.values, "staging": staging},
    }
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    options = ["plan", str(file), "--count-seconds", "0.1", "--sample-seconds", "60"]
    answer = CliRunner().invoke(main, options)
    assert answer.exit_code == 0, answer.output
    assert "as of August 2025" in answer.stdout
    assert "billed/day" in answer.stdout
    totals = json.loads(CliRunner().invoke(main, [*options, "--json", "--usd-per-tib", "5"]).stdout)["totals"]
    assert totals["usd_per_day"]["value"] == pytest.approx(totals["billed_bytes_per_day"]["value"] / (1 << 40) * 5)
    assert totals["usd_per_day"]["how"] == "USD 5 per TiB, as given"
