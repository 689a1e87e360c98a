"""What `plan` prints; of starts, where the source cannot say how much there is."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from replicator.cli.entry import main
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.service.plan.ddl_document import PLAN_VERSION
from replicator.service.plan.start_document import START_PLAN_VERSION
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget

SHAPE = TableSchema(
    table=TableId("public", "t"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of a replicator between databases in memory, which the command finds among its plugins."""
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    registry = Registry.of(sources=[MemorySource], targets=[MemoryTarget])
    monkeypatch.setattr(Registry, "discover", staticmethod(lambda: registry))
    database = MemoryDatabase.open(str(tmp_path))
    database.create_table(SHAPE)
    with database.begin() as changes:
        changes.insert(SHAPE.table, *({"id": i, "a": "x"} for i in range(1200)))
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{type: memory, database: {tmp_path}}}\ntarget: {{type: memory, database: none}}\n"
        "ddl: {drop_column: stop}\n",
        encoding="utf-8",
    )
    return file


def plan(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["plan", str(file), *options])


def test_a_statement_is_told_in_plain_words(file: Path) -> None:
    answer = plan(file, "--ddl", "ALTER TABLE public.t ADD COLUMN b text DEFAULT x")
    assert answer.exit_code == 0
    assert answer.stdout.splitlines() == [
        "public.t  alter_table",
        "    + b text",
        "    policy: add_column: apply (default)",
        "    decision: apply",
        "    target: add column b (string); rows that are there get 'x'",
        "    cost: no row is read from the source, about 1,200 rows written again in the target",
        "Nothing was executed.",
    ]


def test_a_table_that_would_stop_is_told_with_its_next_step(file: Path) -> None:
    lines = plan(file, "--ddl", "ALTER TABLE public.t DROP COLUMN a").stdout.splitlines()
    assert "    policy: drop_column: stop (ddl.drop_column)" in lines
    assert "    decision: stop, the table fails" in lines
    assert any(line.startswith("    error: [ddl_stop] ") for line in lines)
    assert any(line.startswith("    → Run `replicator ") and "NAME" not in line for line in lines)


def test_no_replicated_table_is_concerned(file: Path) -> None:
    with MemoryDatabase.open(str(file.parent)).changed:
        MemoryDatabase.open(str(file.parent)).create_table(
            TableSchema(table=TableId("public", "left_out"), columns=SHAPE.columns, key=SHAPE.key)
        )
    file.write_text(file.read_text(encoding="utf-8") + "tables: {exclude: [public.left_out]}\n", encoding="utf-8")
    answer = plan(file, "--ddl", "DROP TABLE public.left_out")
    assert answer.exit_code == 0
    assert answer.stdout.splitlines() == [
        "public.left_out  drop_table",
        "    not replicated",
        "The statement changes nothing that is replicated.",
        "Nothing was executed.",
    ]


def test_json_is_versioned(file: Path) -> None:
    found = json.loads(plan(file, "--json", "--ddl", "TRUNCATE TABLE public.t").stdout)
    assert (found["version"], found["name"]) == (PLAN_VERSION, "shop")
    (table,) = found["tables"]
    assert (table["decision"], table["is_replicated"], table["estimated_rows"]) == ("apply", True, 1200)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ddl", "TRUNCATE TABLE public.t", "--usd-per-tib", "5"], "--usd-per-tib does not go together with --ddl"),
        (["--ddl", "SELECT 1"], "ddl_not_understood"),
    ],
)
def test_what_cannot_be_planned_is_wrong_usage(file: Path, options: list[str], said: str) -> None:
    answer = plan(file, *options)
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_a_wrong_file_is_wrong_usage(file: Path) -> None:
    file.write_text("name: shop\n", encoding="utf-8")
    assert plan(file, "--ddl", "TRUNCATE TABLE public.t").exit_code == 2


def test_a_source_that_cannot_tell_how_much_there_is_leaves_what_validate_finds(file: Path) -> None:
    answer = plan(file)
    assert answer.exit_code == 0, answer.output
    assert "[planning_not_supported]" in answer.stderr
    assert answer.stdout == f"shop can start. Next: replicator run {file}\n"
    found = json.loads(plan(file, "--json").stdout)
    assert (found["version"], found["totals"], found["is_blocked"]) == (START_PLAN_VERSION, None, False)
    assert "planning_not_supported" in [one["code"] for one in found["findings"]]
