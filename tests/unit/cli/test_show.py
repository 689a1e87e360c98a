"""What commands print for people."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.cli import show
from replicator.model.errors import Problem, ReplicatorError, Severity, StateUnavailableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.model.status import AlarmStatus, ErrorStatus, MergedStatus, ReplicatorStatus, TableState, TableStatus
from replicator.plugins.registry import PluginInfo
from replicator.service import status
from replicator.service.assess import Assessment
from replicator.state.records import ErrorRecord
from replicator.state.store import StateStore

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ODD = "public.[x]y[/z] :smile: [red]"


@pytest.fixture
def document(tmp_path: Path) -> Iterator[ReplicatorStatus]:
    """The status of a replicator with one table, whose every text looks like markup."""
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    record = store.create_replicator("shop", "config", "/j")
    store.set_error("shop", ErrorRecord(code="odd", message=ODD, action=None, at=store.now()))
    found = store.replicator("shop")
    assert found is not None
    assert found.uuid == record.uuid
    whole = status.status(store, found)
    error = ErrorStatus(code="schema_conflict", message=f"[errno 28] {ODD}", action="Do [this].", at=NOW)
    table = TableStatus(
        table=ODD, state=TableState.FAILED, incarnation=1, snapshot=None, next_snapshot=None, changes_applied=1, last_applied=-1,
        freshness_s=None, last_batch=None, waiting=None, upkeep=None, error=error, alarms=(),
        merged=MergedStatus(matched=0, inserted=0, deleted=0, not_found=0),
    )  # fmt: skip
    yield whole.model_copy(update={"tables": (table,)})
    store.close()


def test_texts_of_others_are_no_markup(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show.status(document)
    show.replicators([document], as_json=False)
    reason = PluginInfo(name="odd", kind="source", distribution="d", version="1", state="broken", reason=ODD)
    show.plugins([reason], as_json=False)
    printed = capsys.readouterr().out
    assert f"[schema_conflict] [errno 28] {ODD} Do [this]." in printed
    assert printed.count(ODD) == 5


@pytest.mark.parametrize("state", TableState)
def test_a_table_has_the_state_that_the_document_gives_it(
    document: ReplicatorStatus, state: TableState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update={"state": state}),)}))
    assert f" {state} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("severities", "rows", "text"),
    [
        ([], 48_200, "No problems found: 1 table, 48,200 rows estimated."),
        ([Severity.NOTICE], None, "No problems found: 1 table."),
        ([Severity.WARNING], 0, "No blocking problems found: 1 table, 0 rows estimated."),
        ([Severity.BLOCKING], 1, ""),
    ],
)
def test_validate_ends_with_what_it_found(
    severities: list[Severity], rows: int | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    column = Column(name="id", type=pa.int64(), source_type="bigint")
    schema = TableSchema(table=TableId("public", "t"), columns=(column,), key=("id",))
    problems = [Problem(code="odd", message="Odd.", severity=severity) for severity in severities]
    show.assessment(Assessment(tables=[schema], left_out=(), problems=problems, identity=None, estimated_rows=rows))
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["public.t: 1 column, key id", *([text] if text else [])]


def test_an_alarm_is_loud(document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    alarm = AlarmStatus(code="target_diverged", message=f"Rows of {ODD}.", action="Run this.", at=NOW, count=2)
    changed = {"state": TableState.STREAMING, "error": None, "alarms": (alarm,)}
    alarmed = document.model_copy(update={"tables": (document.tables[0].model_copy(update=changed),)})
    show.status(alarmed)
    printed = capsys.readouterr().out
    assert "alarm: target_diverged" in printed
    assert f"{ODD}: [target_diverged] Rows of {ODD}. Run this." in printed
    show.replicators([alarmed.model_copy(update={"error": None})], as_json=False)
    assert "1 table with alarms" in capsys.readouterr().out


def test_the_picture_stands_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    looks = threading.Semaphore(0)

    def away(name: str) -> None:
        looks.release()
        raise StateUnavailableError("locked", code="state_locked")

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(store, "replicator", away)
    with show.Progress(store, "shop"):
        assert all(looks.acquire(timeout=30) for _ in range(2))
    store.close()


@pytest.mark.parametrize(
    ("message", "action", "text"),
    [
        ("It is away", "Wait.", "It is away. Wait."),
        ("It is away.", "Wait.", "It is away. Wait."),
        ("It is away", None, "It is away"),
    ],
)
def test_message_and_remedy_are_two_sentences(message: str, action: str | None, text: str) -> None:
    assert str(ReplicatorError(message, code="away", action=action)) == text
