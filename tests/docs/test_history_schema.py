"""The schemas of `docs/` describe what `history --json`, `plan --json` (of starts and of statements) and `verify --json` print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from replicator.cli.entry import main
from replicator.service.history import document as history_document
from replicator.service.history.document import HISTORY_VERSION
from replicator.service.plan import ddl_document as plan_document
from replicator.service.plan import start_document as start_plan_document
from replicator.service.plan.ddl_document import PLAN_VERSION
from replicator.service.plan.start_document import START_PLAN_VERSION
from replicator.service.schemas import schema_text
from replicator.service.verify import document as verify_document
from replicator.service.verify.document import VERSION
from replicator.state.records import Decision
from replicator.state.store import StateStore

FILE = Path(__file__).parents[2] / "docs" / "history.schema.json"
PLAN = FILE.with_name("plan.schema.json")
START_PLAN = FILE.with_name("start-plan.schema.json")
VERIFY = FILE.with_name("verify.schema.json")
SCHEMA = json.loads(FILE.read_text(encoding="utf-8"))
MODELS = [
    model
    for module in (history_document, plan_document, start_plan_document, verify_document)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__
]


def test_the_schema_is_what_the_models_say() -> None:
    assert FILE.read_text(encoding="utf-8") == schema_text("history"), "run `make docs`"
    assert SCHEMA["properties"]["version"]["const"] == HISTORY_VERSION == 1
    assert SCHEMA["$id"] == "urn:replicator:history:1"


def test_the_schema_of_plans_is_what_the_models_say() -> None:
    assert PLAN.read_text(encoding="utf-8") == schema_text("plan"), "run `make docs`"
    schema = json.loads(PLAN.read_text(encoding="utf-8"))
    assert schema["properties"]["version"]["const"] == PLAN_VERSION == 1
    assert schema["$id"] == "urn:replicator:plan:1"


def test_the_schema_of_plans_of_starts_is_what_the_models_say() -> None:
    assert START_PLAN.read_text(encoding="utf-8") == schema_text("start-plan"), "run `make docs`"
    schema = json.loads(START_PLAN.read_text(encoding="utf-8"))
    assert schema["properties"]["version"]["const"] == START_PLAN_VERSION == 1
    assert schema["$id"] == "urn:replicator:start-plan:1"
    assert schema["$defs"]["Basis"]["enum"] == ["configured", "measured", "counted", "estimated", "unknown"]


def test_the_schema_of_verifications_is_what_the_models_say() -> None:
    """Names and results are fixed: others read them."""
    assert VERIFY.read_text(encoding="utf-8") == schema_text("verify"), "run `make docs`"
    schema = json.loads(VERIFY.read_text(encoding="utf-8"))
    assert schema["properties"]["version"]["const"] == VERSION == 1
    table = schema["$defs"]["VerifiedTableDocument"]["properties"]
    assert table["result"]["enum"] == ["equal", "equal_in_part", "different", "nothing_compared", "not_verified"]
    assert {
        "table",
        "result",
        "reason",
        "position",
        "rows_source",
        "rows_target",
        "counts",
        "differences",
        "truncated",
    } <= set(table)


def test_version_1_has_these_decisions_and_outcomes() -> None:
    """Fixed: others read them."""
    assert SCHEMA["$defs"]["Outcome"]["enum"] == ["applied", "waiting", "failed", "nothing"]
    decisions = ["apply", "keep", "ignore", "stop", "record", "snapshot", "rebuild"]
    assert SCHEMA["$defs"]["Decision"]["enum"] == decisions == [decision.value for decision in Decision]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_documents_are_frozen_closed_and_described(model: type[BaseModel]) -> None:
    assert (model.model_config["frozen"], model.model_config["extra"]) == (True, "forbid")
    assert [name for name, field in model.model_fields.items() if not field.description] == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop", "/j")
    store.close()
    return tmp_path


def test_a_replicator_without_any_is_an_empty_document(home: Path) -> None:
    answer = CliRunner().invoke(main, ["history", "shop", "--json"])
    found: dict[str, Any] = json.loads(answer.stdout)
    assert (answer.exit_code, found["name"], found["events"]) == (0, "shop", [])
    assert set(found) == set(SCHEMA["required"])
    assert "No schema change is known." in CliRunner().invoke(main, ["history", "shop"]).stderr


@pytest.mark.parametrize("command", [["history", "shp"], ["history", "shop", "public.t"]])
def test_what_is_not_known_is_wrong_usage(home: Path, command: list[str]) -> None:
    answer = CliRunner().invoke(main, command)
    assert answer.exit_code == 2
    assert "unknown_" in answer.stderr
