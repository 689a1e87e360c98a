"""What commands print for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from replicator.cli import show
from replicator.model.documents.status import (
    AlarmStatus,
    EngineStatus,
    ErrorStatus,
    FindingStatus,
    MergedStatus,
    ProjectionState,
    ReplicatorStatus,
    TableState,
    TableStatus,
    WaitingStatus,
)
from replicator.model.documents.verdict import Result
from replicator.model.errors import LogGapError, ReplicatorError, with_names
from replicator.model.processes.reports import RunningStep, SnapshotStep
from replicator.plugins.registry import PluginInfo
from replicator.service.status import assemble as status
from replicator.state.records import ErrorRecord
from replicator.state.store import StateStore
from replicator_testbed.statuses import snapshot_status
from replicator_testing.defaults import NEVER_VERIFIED

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
        source_table="public.[bold]new",
        projection=ProjectionState.PENDING,
        table=ODD, state=TableState.FAILED, incarnation=1, snapshot=None, next_snapshot=None, changes_applied=1,
        snapshot_rows_applied=0, last_applied=-1, freshness_s=None, last_batch=None, engine=None,
        waiting=None, upkeep=None, error=error, kept_columns=("[bold]old",), alarms=(),
        freshness_objective_s=None, is_objective_met=None,
        resumes_by_itself=False,
        merged=MergedStatus(matched=0, inserted=0, deleted=0, not_found=0), verify=NEVER_VERIFIED,
    )  # fmt: skip
    yield whole.model_copy(update={"tables": (table,)})
    store.close()


def test_texts_of_others_are_no_markup(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show.status(document)
    show.replicators([document], as_json=False)
    reason = PluginInfo(name="odd", kind="source", distribution="d", version="1", state="broken", reason=ODD)
    show.plugins([reason], as_json=False)
    printed = capsys.readouterr().out
    assert f"{ODD}: [schema_conflict] [errno 28] {ODD}\n    → Do [this]." in printed
    assert f"{ODD}: keeps columns that the source dropped: [bold]old" in printed
    assert "was slow" not in printed
    slow = document.tables[0].model_copy(update={"engine": EngineStatus(rung="L0", reason=ODD)})
    show.status(document.model_copy(update={"tables": (slow,)}))
    assert f"{ODD}: its last batch was slow (L0): {ODD}\n" in capsys.readouterr().out
    assert f"{ODD}: its name in the source is public.[bold]new" in printed
    assert printed.count(ODD) == 9


def test_errors_and_what_to_do_are_whole_lines_in_a_narrow_terminal(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "The column balance changed its type from numeric(12,2) to text, and the target cannot change it in place."
    error = ErrorStatus(code="column_type_changed", message=long, action=f"Run this: {long}", at=NOW)
    alarm = AlarmStatus(code="target_diverged", message=long, action=f"Run that: {long}", at=NOW, count=2)
    waiting = WaitingStatus(retry_in_s=600.0, until=NOW, code="quota_exceeded", message=long)
    changes: dict[str, dict[str, Any]] = {
        "failed": {"error": error},
        "alarmed": {"state": TableState.STREAMING, "error": None, "alarms": (alarm,)},
        "waits": {"state": TableState.STREAMING, "error": None, "waiting": waiting},
    }
    tables = [
        document.tables[0].model_copy(update={"table": f"public.{name}", **changed})
        for name, changed in changes.items()
    ]
    show.status(document.model_copy(update={"tables": tuple(tables)}))
    show.replicators([document], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert f"public.failed: [column_type_changed] {long}" in lines
    assert f"    → Run this: {long}" in lines
    assert f"public.alarmed: alarm [target_diverged] {long}" in lines
    assert f"    → Run that: {long}" in lines
    assert any(line.startswith("public.waits: waits until") and line.endswith(long) for line in lines)
    assert f"shop: [odd] {ODD}" in lines


def test_what_the_schedule_has_verified_and_could_not_verify_is_shown(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show.status(document)
    assert "verified" not in capsys.readouterr().out
    failed = NEVER_VERIFIED.model_copy(
        update={"result": Result.NOT_VERIFIED, "reason": "its definition kept changing", "verified_at": NOW}
    )
    table = document.tables[0].model_copy(update={"table": "public.a", "verify": failed})
    verify = document.verify.model_copy(update={"every_s": 60.0, "tables_proven": 1})
    show.status(document.model_copy(update={"tables": (table, table), "verify": verify}))
    printed = capsys.readouterr().out
    assert "verified 1 of 2 tables" in printed
    assert f"public.a: could not be verified at {show.moment(NOW)}: its definition kept changing" in printed


def test_a_rest_is_part_of_the_freshness_and_the_next_snapshot_of_the_snapshot(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    rest = WaitingStatus(retry_in_s=5.0, until=NOW, code=None, message=None)
    changed = {"error": None, "freshness_s": 2.0, "waiting": rest, "next_snapshot": SnapshotStep.MARKING}
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update=changed),)}))
    printed = capsys.readouterr().out
    assert f" 2.0 s, next batch at {NOW.astimezone():%H:%M:%S}" in printed
    assert " next: waiting for the log " in printed
    short = changed | {"waiting": rest.model_copy(update={"retry_in_s": 4.9})}
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update=short),)}))
    assert "next batch" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (RunningStep.READING, " 7 of about 40 "),
        (RunningStep.DUE, " 7 of about 40, waiting for its turn to be read "),
        (RunningStep.WAITING, " 7 of about 40, waiting to read again "),
        (RunningStep.MARKING, " 7 of about 40, waiting for the log "),
        (RunningStep.WRITING, " 7 of about 40, writing its rows "),
        (RunningStep.COMPLETED, " 7 of about 40 "),
        (RunningStep.FAILED, " 7 of about 40 "),
        (None, " 7 of about 40 "),
    ],
)
def test_a_snapshot_that_runs_says_in_words_what_it_waits_for(
    document: ReplicatorStatus,
    step: RunningStep | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    progress = snapshot_status(7, 0, estimated=40, step=step)
    changed = {"error": None, "state": TableState.SNAPSHOT, "snapshot": progress}
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update=changed),)}))
    assert text in capsys.readouterr().out


def test_rows_of_snapshots_are_no_changes(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    changed = {"error": None, "changes_applied": 1_234, "snapshot_rows_applied": 1_200}
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update=changed),)}))
    assert " 34 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_complete", "text"), [(False, " comparing both sides, 7 rows read again "), (True, " 7 rows read again ")]
)
def test_of_a_table_that_is_compared_the_rows_count_that_were_read_again(
    document: ReplicatorStatus,
    is_complete: bool,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    progress = snapshot_status(7, 7, estimated=40, is_complete=is_complete, is_in_place=True, is_changed_only=True)
    changed = {"error": None, "state": TableState.SNAPSHOT, "snapshot": progress}
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update=changed),)}))
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("state", TableState)
def test_a_table_has_the_state_that_the_document_gives_it(
    document: ReplicatorStatus, state: TableState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show.status(document.model_copy(update={"tables": (document.tables[0].model_copy(update={"state": state}),)}))
    assert f" {state} " in capsys.readouterr().out


def test_an_alarm_is_loud(
    document: ReplicatorStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    alarm = AlarmStatus(code="target_diverged", message=f"Rows of {ODD}.", action="Run this.", at=NOW, count=2)
    changed = {"state": TableState.STREAMING, "error": None, "alarms": (alarm,)}
    alarmed = document.model_copy(update={"tables": (document.tables[0].model_copy(update=changed),)})
    show.status(alarmed)
    printed = capsys.readouterr().out
    assert f"{ODD}: alarm [target_diverged] Rows of {ODD}.\n    → Run this." in printed
    show.replicators([alarmed.model_copy(update={"error": None})], as_json=False)
    assert "1 table with alarms" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("text", "table", "shown"),
    [
        ("Run `replicator snapshot NAME TABLE`.", "public.a", "Run `replicator snapshot shop public.a`."),
        ("Run `replicator snapshot NAME TABLE`.", None, "Run `replicator snapshot shop TABLE`."),
        (
            "Run: replicator snapshot NAME TABLE --recreate.",
            "public.A b",
            "Run: replicator snapshot shop 'public.A b' --recreate.",
        ),
        ("Run `replicator ddl accept NAME TABLE`.", "public.a", "Run `replicator ddl accept shop public.a`."),
        ("Run `replicator snapshot NAME --restart`.", "public.a", "Run `replicator snapshot shop --restart`."),
        ("ALTER TABLE t RENAME TO NAME; TABLE stays.", "public.a", "ALTER TABLE t RENAME TO NAME; TABLE stays."),
    ],
)
def test_a_command_can_be_pasted(text: str, table: str | None, shown: str) -> None:
    assert with_names(text, "shop", table) == shown


def test_a_run_that_ends_says_which_replicator_to_restart(capsys: pytest.CaptureFixture[str]) -> None:
    error = LogGapError("The slot is missing", code="slot_missing", action="Run `replicator snapshot NAME --restart`.")
    show.error(error, "shop")
    assert "Run `replicator snapshot shop --restart`." in capsys.readouterr().err


def test_what_would_refuse_the_next_start_is_shown_with_the_remedy(
    document: ReplicatorStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    found = FindingStatus(code="server_setting", message="sync_binlog is 0", location="sync_binlog", action="SET it.")
    show.status(document.model_copy(update={"source": document.source.model_copy(update={"findings": (found,)})}))
    assert "would refuse the next start: [server_setting] sync_binlog is 0 (sync_binlog)\n    → SET it." in (
        capsys.readouterr().out
    )
