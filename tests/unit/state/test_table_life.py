"""A table's life: from where each transition may come, and that nobody else assigns a state."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import replicator
from replicator.model.events import SnapshotKind
from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import table_life
from replicator.state.records import (
    AlarmRecord,
    AppliedRecord,
    ErrorRecord,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)

T = TableId("public", "t")
NOW = datetime(2026, 1, 31, tzinfo=UTC)
SCHEMA = TableSchema(table=T, columns=(Column(name="id", type=pa.int64(), source_type="bigint"),), key=("id",))
ERROR = ErrorRecord(code="schema_changed", message="its columns changed.", action=None, at=NOW)
ALARM = AlarmRecord(code="target_changed", message="another wrote", action="Run it again.", at=NOW, count=1)
PROGRESS = SnapshotProgress(rows=3)
COMPARED = SnapshotProgress(kind=SnapshotKind.CHANGED, ranges=(), rows=3)
IDENTITY = TableIdentity(object="1")
HOUSE = Path(replicator.__file__).parent
RECORDS = {"TableRecord", "AppliedRecord"}
STATES = {"stage", "state", "is_recreated", "is_changed_only", "copy", "crashes"}
# Documents have a "state", too.
KEYS = STATES - {"state"}

Transition = Callable[[TableRecord], TableRecord]
TRANSITIONS: dict[str, tuple[Transition, Stage]] = {
    "returned": (table_life.returned, Stage.PENDING),
    "removed": (table_life.removed, Stage.REMOVED),
    "suspended": (table_life.suspended, Stage.PENDING),
    "begun": (lambda r: table_life.begun(r, SCHEMA, IDENTITY, incarnation=2, snapshot=PROGRESS), Stage.SNAPSHOT),
    "begun_without_snapshot": (
        lambda r: table_life.begun_without_snapshot(r, SCHEMA, IDENTITY, incarnation=1),
        Stage.STREAMING,
    ),
    "begun_in_place": (
        lambda r: table_life.begun_in_place(r, IDENTITY, snapshot=PROGRESS, number=7),
        Stage.SNAPSHOT,
    ),
    "begun_comparing": (
        lambda r: table_life.begun_comparing(replace(r, is_changed_only=True), IDENTITY, snapshot=COMPARED, number=7),
        Stage.COMPARING,
    ),
    "completed": (lambda r: table_life.completed(r, NOW), Stage.STREAMING),
    "failed": (lambda r: table_life.failed(r, ERROR), Stage.FAILED),
    "resumed": (lambda r: table_life.resumed(r, NOW), Stage.PENDING),
}
BEGINNINGS = {"removed", "suspended", "begun", "begun_without_snapshot", "begun_in_place", "begun_comparing", "failed"}
ALLOWED = {
    Stage.PENDING: BEGINNINGS,
    Stage.SNAPSHOT: BEGINNINGS | {"completed"},
    Stage.COMPARING: BEGINNINGS | {"completed"},
    Stage.STREAMING: BEGINNINGS,
    Stage.FAILED: BEGINNINGS | {"resumed"},
    Stage.REMOVED: {"removed", "returned"},
}


def record(stage: Stage) -> TableRecord:
    return TableRecord(
        table=T,
        incarnation=1,
        stage=stage,
        schema=SCHEMA,
        identity=TableIdentity(object="9"),
        snapshot=PROGRESS,
        error=ERROR if stage is Stage.FAILED else None,
    )


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("name", TRANSITIONS)
def test_each_state_allows_the_transitions_of_the_diagram(stage: Stage, name: str) -> None:
    transition, after = TRANSITIONS[name]
    if name in ALLOWED[stage]:
        assert transition(record(stage)).stage is after
    else:
        with pytest.raises(AssertionError, match=f"is {stage.value}"):
            transition(record(stage))


@pytest.mark.parametrize("stage", Stage)
def test_only_what_has_failed_has_an_error(stage: Stage) -> None:
    for name in ALLOWED[stage] - {"completed"}:
        made = TRANSITIONS[name][0](record(stage))
        assert (made.error is None) == (made.stage is not Stage.FAILED), name


def test_a_table_is_in_exactly_one_of_waiting_captured_failed_and_removed() -> None:
    for stage in Stage:
        of = record(stage)
        says = [table_life.waits(of), table_life.is_captured(of), table_life.has_failed(of)]
        assert sum(says) + (not table_life.is_replicated(of)) == 1


@pytest.mark.parametrize("stage", Stage)
def test_an_incarnation_has_begun_once_its_shape_is_known_and_returned_ones_begin_again(stage: Stage) -> None:
    assert not table_life.has_begun(table_life.added(T))
    assert not table_life.has_begun(table_life.returned(record(Stage.REMOVED)))
    for name in ALLOWED[stage] & {"suspended", "failed", "removed"}:
        assert table_life.has_begun(TRANSITIONS[name][0](record(stage))), name


def test_a_snapshot_is_complete_once_it_says_when() -> None:
    assert not PROGRESS.is_complete
    completed = table_life.completed(record(Stage.SNAPSHOT), NOW).snapshot
    assert completed is not None
    assert completed.is_complete


def test_a_captured_snapshot_is_to_be_applied_until_the_target_has_all_of_it() -> None:
    captured, applied = record(Stage.STREAMING), AppliedRecord(table=T, incarnation=1, last_applied=5)
    has_left = table_life.has_snapshot_to_apply
    assert has_left(captured, None)
    assert has_left(captured, applied)
    whole = replace(applied, copy=TargetCopy.WHOLE)
    assert not has_left(captured, whole)
    assert has_left(replace(captured, incarnation=2), whole)
    in_place = SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=6)
    assert has_left(replace(captured, snapshot=in_place), whole)
    assert not has_left(replace(captured, snapshot=in_place), replace(whole, last_applied=6))
    assert not has_left(replace(captured, snapshot=None), None)


def test_what_apply_refused_is_still_captured() -> None:
    refused = table_life.refused(AppliedRecord(table=T, incarnation=1), ERROR)
    streaming = record(Stage.STREAMING)
    assert (table_life.has_failed(streaming, refused), table_life.is_captured(streaming)) == (True, True)
    assert not table_life.has_failed(streaming, table_life.taken_up(refused))


def test_a_new_incarnation_in_the_target_knows_nothing_but_its_alarms() -> None:
    before = table_life.refused(AppliedRecord(table=T, incarnation=1, last_applied=8, rows=3), ERROR)
    assert table_life.begun_in_target(before, 2, ()) == AppliedRecord(table=T, incarnation=2, snapshot_rows=0)


def test_the_target_has_had_an_incarnation_as_a_whole_until_a_later_one_is() -> None:
    first = AppliedRecord(table=T, incarnation=1)
    assert (first.whole, table_life.begun_in_target(first, 2, ()).whole) == (0, 0)
    applied = table_life.snapshot_completed_in_target(first, ())
    assert (applied.whole, table_life.snapshot_begun_in_target(applied, ()).whole) == (1, 1)
    second = table_life.begun_in_target(table_life.snapshot_begun_in_target(applied, ()), 2, ())
    third = table_life.begun_in_target(second, 3, ())
    assert (second.whole, third.whole, table_life.found_whole(third, has_snapshot=True).whole) == (1, 1, 3)


def test_what_the_target_holds_changes_with_its_snapshots() -> None:
    applied = AppliedRecord(table=T, incarnation=1, copy=TargetCopy.CHANGES, crashes=2)
    begun = table_life.snapshot_begun_in_target(applied, (ALARM,))
    assert begun == replace(applied, copy=TargetCopy.SNAPSHOT, whole_before=1, alarms=(ALARM,))
    completed = table_life.snapshot_completed_in_target(begun, ())
    assert completed == replace(begun, copy=TargetCopy.WHOLE, alarms=())
    assert table_life.found_whole(begun, has_snapshot=True).copy is TargetCopy.WHOLE
    assert table_life.found_whole(begun, has_snapshot=False).copy is TargetCopy.CHANGES
    assert table_life.nothing_left(applied) == replace(applied, crashes=0)


def test_a_table_whose_changes_were_dropped_needs_the_journal_again_once_a_snapshot_begins() -> None:
    lost = table_life.journal_lost(record(Stage.STREAMING), "dropped", action="Take a snapshot.", at=NOW)
    assert not table_life.needs_journal(lost)
    assert table_life.needs_journal(table_life.suspended(lost))
    assert table_life.needs_journal(record(Stage.FAILED))
    assert not table_life.needs_journal(record(Stage.REMOVED))


def test_nobody_else_assigns_a_state() -> None:
    """Product code makes no record and replaces no state but here, and where the state store reads or migrates what it holds."""
    owners = {HOUSE / "state" / name for name in ("table_life.py", "codec.py", "database/migrations.py")}
    files = set(HOUSE.rglob("*.py")) - owners
    found = [f"{path.relative_to(HOUSE)}:{line}" for path in sorted(files) for line in _assignments(path)]
    assert not found


def _assignments(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in RECORDS:
                yield node.lineno
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ("replace", "_put"):
                if {keyword.arg for keyword in node.keywords} & STATES:
                    yield node.lineno
            case ast.Dict() if {key.value for key in node.keys if isinstance(key, ast.Constant)} & KEYS:
                yield node.lineno
            case ast.Subscript(ctx=ast.Store(), slice=ast.Constant(value=key)) if key in KEYS:
                yield node.lineno


def compared_next(stage: Stage) -> TableRecord:
    """A table of which log was lost, and what became of it at the next turn."""
    return replace(record(stage), is_changed_only=True, snapshot=COMPARED if stage is Stage.COMPARING else PROGRESS)


@pytest.mark.parametrize("name", sorted(BEGINNINGS - {"begun_comparing", "suspended"} | {"completed"}))
def test_what_is_to_be_compared_is_so_until_it_was_or_something_else_reads_it(name: str) -> None:
    assert TRANSITIONS["suspended"][0](compared_next(Stage.COMPARING)).is_changed_only
    assert TRANSITIONS["begun_comparing"][0](compared_next(Stage.PENDING)).is_changed_only
    assert not TRANSITIONS[name][0](compared_next(Stage.COMPARING)).is_changed_only
    assert not table_life.read_next(compared_next(Stage.PENDING)).is_changed_only


def test_only_what_the_target_has_as_a_whole_is_compared_next() -> None:
    assert table_life.compared_next(record(Stage.STREAMING)).is_changed_only
    for stage in (Stage.SNAPSHOT, Stage.FAILED, Stage.REMOVED):
        with pytest.raises(AssertionError):
            table_life.compared_next(record(stage))
    with pytest.raises(AssertionError):
        table_life.begun_comparing(record(Stage.PENDING), IDENTITY, snapshot=COMPARED, number=7)


def test_rows_that_are_read_again_count_where_a_table_is_compared() -> None:
    table = table_life.rereading(compared_next(Stage.COMPARING), [("1",)], NOW)
    read = replace(table, reread=replace(table.reread or COMPARED, keys=(), rows=2))
    done = table_life.rows_reread(read)
    assert (done.reread, done.snapshot, done.stage) == (None, replace(COMPARED, rows=5), Stage.COMPARING)
    of_streaming = table_life.rereading(record(Stage.STREAMING), [("1",)], NOW)
    assert table_life.rows_reread(of_streaming).snapshot == PROGRESS


def test_a_curable_failure_resumes_itself_three_times_a_day() -> None:
    failed = record(Stage.FAILED)
    assert not table_life.resumes_itself(failed, NOW)
    curable = replace(ERROR, is_curable=True)
    for hours in (0, 1, 2):
        failed = replace(failed, stage=Stage.FAILED, error=curable)
        at = NOW + timedelta(hours=hours)
        assert table_life.resumes_itself(failed, at)
        failed = table_life.resumed(failed, at)
        assert not table_life.resumes_itself(failed, at), "it waits for its snapshot"
    failed = table_life.failed(failed, curable)
    assert not table_life.resumes_itself(failed, NOW + timedelta(hours=23))
    assert table_life.resumes_itself(failed, NOW + timedelta(hours=24)), "the first is a day ago"


def test_how_often_a_table_has_resumed_is_kept_when_its_snapshot_begins() -> None:
    resumed = table_life.resumed(record(Stage.FAILED), NOW)
    identity = TableIdentity(object="9")
    for begun in (
        table_life.begun(resumed, SCHEMA, identity, incarnation=2, snapshot=PROGRESS),
        table_life.begun_in_place(resumed, identity, snapshot=PROGRESS, number=7),
        table_life.begun_without_snapshot(resumed, SCHEMA, identity, incarnation=2),
    ):
        assert begun.resumed_at == (NOW,)
