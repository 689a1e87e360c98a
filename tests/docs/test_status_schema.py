"""`docs/status.schema.json` describes what `status --json` and `list --json` print.

The few keywords that the schema uses are judged here, so that no package is needed for them; an unknown one fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from replicator.capture.snapshots.starting import Step
from replicator.cli.entry import main
from replicator.model.documents.status import (
    VERSION,
    DesiredState,
    EngineStatus,
    ReplicatorState,
    ReplicatorStatus,
    StatusModel,
    TableState,
    TableStatus,
    WaitingStatus,
)
from replicator.model.documents.verdict import Result
from replicator.model.events import SnapshotKind
from replicator.model.guarantee import Guarantee
from replicator.model.offset import Offset
from replicator.model.processes.reports import (
    AppliedTable,
    ApplyReport,
    CapturedTable,
    CaptureReport,
    EngineReport,
    FindingReport,
    OpenTransactionReport,
    ReportModel,
    RetryReport,
    RunningStep,
    SnapshotStep,
    UpkeepReport,
    WaitingReport,
)
from replicator.model.schema import Column, TableId, TableSchema
from replicator.service.schemas import schema_text
from replicator.service.status.assemble import status
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    ApplyState,
    Desired,
    ErrorRecord,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator.state.verification.records import VerificationOutcome
from replicator_testbed.present import present


def subclasses(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from subclasses(model)


FILE = Path(__file__).parents[2] / "docs" / "status.schema.json"
SCHEMA = json.loads(FILE.read_text(encoding="utf-8"))
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ERROR = ErrorRecord(
    code="schema_changed", message="its columns changed", action="Run `replicator snapshot NAME TABLE`.", at=NOW
)
MISSING = ErrorRecord(code="table_missing", message="it does not exist", action="Exclude it.", at=NOW)
FINDING = FindingReport(
    code="server_setting", message="sync_binlog is 0", location="sync_binlog", action="SET GLOBAL sync_binlog = 1;"
)
UPKEEP = UpkeepReport(failures=2, code="internal_error", message="no", action=None, failed_s=60.0, retry_in_s=120.0)
RETRY = RetryReport(role="apply", retry_in_s=1.5, code="spark_lost", message="Spark's JVM has died.")
MODELS = [*subclasses(StatusModel), *subclasses(ReportModel)]
NO_ACTION = ErrorRecord(code="source_error", message="no", action=None, at=NOW)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}


def faults(value: Any, schema: Mapping[str, Any], path: str = "$") -> Iterator[str]:
    """What keeps a value from fitting a schema."""
    for keyword, wanted in schema.items():
        match keyword:
            case "$ref":
                yield from faults(
                    value, SCHEMA if wanted == "#" else SCHEMA["$defs"][wanted.removeprefix("#/$defs/")], path
                )
            case "type":
                names = wanted if isinstance(wanted, list) else [wanted]
                if not any(
                    isinstance(value, _TYPES[n]) and (n == "boolean" or not isinstance(value, bool)) for n in names
                ):
                    yield f"{path}: {value!r} is no {names}"
            case "const" if value != wanted:
                yield f"{path}: {value!r} is not {wanted!r}"
            case "enum" if value not in wanted:
                yield f"{path}: {value!r} is none of {wanted}"
            case "required" if isinstance(value, dict):
                yield from (f"{path}: lacks {key}" for key in wanted if key not in value)
            case "properties" if isinstance(value, dict):
                # The schema lets readers meet keys of later releases; what we print must all be described.
                for key, inner in value.items():
                    if key in wanted:
                        yield from faults(inner, wanted[key], f"{path}.{key}")
                    else:
                        yield f"{path}: has {key}"
            case "items" if isinstance(value, list):
                for number, inner in enumerate(value):
                    yield from faults(inner, wanted, f"{path}[{number}]")
            case "anyOf":
                branches = [list(faults(value, branch, path)) for branch in wanted]
                if all(branches):
                    yield from max(branches, key=len)
            case "minimum" if value is not None and value < wanted:
                yield f"{path}: {value} is below {wanted}"
            case "exclusiveMinimum" if value is not None and value <= wanted:
                yield f"{path}: {value} is not above {wanted}"
            case "pattern" if isinstance(value, str) and not re.search(wanted, value):
                yield f"{path}: {value!r} does not match {wanted}"
            case "format":
                assert wanted == "date-time"
                if isinstance(value, str) and datetime.fromisoformat(value).tzinfo is None:
                    yield f"{path}: {value!r} has no time zone"
            case "additionalProperties":
                assert wanted is True
            case "const" | "enum" | "required" | "properties" | "items" | "minimum" | "exclusiveMinimum" | "pattern":
                pass
            case _:
                assert keyword in _ANNOTATIONS, f"{keyword} is not judged here"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}", clock=clock)
    yield store
    store.close()


def document(store: StateStore, name: str = "shop") -> ReplicatorStatus:
    record = store.replicator(name)
    assert record is not None
    found = status(store, record)
    assert list(faults(found.model_dump(mode="json"), SCHEMA)) == []
    return found


def table_of(found: ReplicatorStatus, name: str) -> TableStatus:
    (table,) = (t for t in found.tables if t.table == f"public.{name}")
    return table


def table(name: str, stage: Stage, **values: Any) -> TableRecord:
    schema = TableSchema(
        table=TableId("public", name), columns=(Column(name="id", type=pa.int64(), source_type="bigint"),), key=("id",)
    )
    return TableRecord(table=schema.table, incarnation=1, stage=stage, schema=schema, **values)


def fill(store: StateStore) -> None:
    """A replicator at work, with a table in every stage."""
    lease = store.leases.acquire("shop", holder_id(), 10.0)
    assert lease is not None
    done = SnapshotProgress(
        kind=SnapshotKind.IN_PLACE, start_number=3, rows=10, estimated_rows=9, started_at=NOW, completed_at=NOW
    )
    tables = [
        table("pending", Stage.PENDING),
        table("snapshot", Stage.SNAPSHOT, snapshot=SnapshotProgress(rows=7)),
        table("streaming", Stage.STREAMING, snapshot=done),
        table("failed", Stage.FAILED, error=ERROR),
        table("failed_in_target", Stage.STREAMING, snapshot=done),
        table("dropped", Stage.FAILED, error=MISSING),
        table("removed", Stage.REMOVED),
    ]
    streaming = TableId("public", "streaming")
    file = SegmentFile(
        table=streaming, incarnation=1, schema_fingerprint="0" * 16, uri="file:///j/a.parquet", rows=10, bytes=100, sha256="ab" * 32,
        first=0, last=9, snapshot_rows=0, has_absent=False, has_key_changes=False,
    )  # fmt: skip
    segment = Segment(
        id=1,
        first=0,
        last=9,
        epoch=lease.epoch,
        offset=Offset.of({"lsn": 1}),
        source_time=NOW - timedelta(seconds=2),
        ring=(),
        files=(file,),
        events=(),
        sealed_at=NOW,
    )
    store.seal("shop", lease.epoch, [segment], schemas=[t.schema for t in tables if t.schema], tables=tables)
    applied = [
        AppliedRecord(
            table=streaming,
            incarnation=1,
            last_applied=9,
            rows=10,
            copy=TargetCopy.WHOLE,
        ),
        AppliedRecord(
            table=TableId("public", "failed_in_target"), incarnation=1, state=ApplyState.FAILED, error=NO_ACTION
        ),
    ]
    store.put_applied("shop", lease.epoch, applied)
    compared = VerificationOutcome(
        table=streaming, incarnation=1, result=Result.EQUAL, is_whole=True, begun_at=NOW, position=9, rows=10
    )
    store.verifications.note("shop", compared)
    store.verifications.note(
        "shop", replace(compared, result=Result.DIFFERENT, message="1 row differs.", action="Repair it.", differ=1)
    )
    store.put_report(
        "shop",
        CaptureReport(
            position="{}",
            retained_bytes=4096,
            clock_ahead_s=0.5,
            waiting_for=("pid 7",),
            keeps_log_s=3600.0,
            silent_s=29.0,
            heartbeat_s=10.0,
            guarantee=Guarantee.BOUNDED_WAIT,
            tables={
                "public.pending": CapturedTable(step=SnapshotStep.SETTLING),
                "public.snapshot": CapturedTable(snapshot_step=RunningStep.READING),
            },
            oldest_open=OpenTransactionReport(name="XA a", since=NOW - timedelta(seconds=60)),
            findings=(FINDING,),
        ),
    )
    waiting = WaitingReport(retry_in_s=600.0, code="quota_exceeded", message="A quota is used up.")
    applied_table = AppliedTable(
        last_batch={"way": "merge"},
        engine=EngineReport(rung="L0", reason="the table has no key"),
        waiting=waiting,
        upkeep=UPKEEP,
    )
    store.put_report("shop", ApplyReport(tables={"public.streaming": applied_table}))


def test_kept_columns_and_what_a_stopped_table_waits_for_are_shown(store: StateStore) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 10.0))
    kept = (Column(name="old", type=pa.string(), source_type="text"),)
    stopped = table(
        "stopped",
        Stage.FAILED,
        error=ErrorRecord(
            code="ddl_stop", message="It stops.", action="Run `replicator ddl accept NAME TABLE`.", at=NOW
        ),
    )
    stopped = replace(stopped, schema=replace(present(stopped.schema), kept=kept))
    store.put_tables("shop", lease.epoch, [stopped, table("pending", Stage.PENDING)])
    found = document(store)
    assert table_of(found, "stopped").kept_columns == ("old",)
    assert table_of(found, "pending").kept_columns == ()
    assert present(table_of(found, "stopped").error).action == "Run `replicator ddl accept shop public.stopped`."


def test_a_replicator_that_was_only_stored(store: StateStore) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    found = document(store)
    assert (found.state, found.worker, found.tables) == (ReplicatorState.NO_WORKER, None, ())


def test_a_replicator_at_work_with_tables_in_every_stage(store: StateStore) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    found = document(store)
    assert found.state is ReplicatorState.RUNNING
    assert found.source.model_dump() == {
        "retained_bytes": 4096,
        "position": "{}",
        "waiting_for": ("pid 7",),
        "oldest_open": {"name": "XA a", "age_s": 60.5},
        # From the PREPARE on: behind it the log must be read again.
        "time_left_s": 3539.5,
        "lag_s": 2.5,
        "is_alive": True,
        "guarantee": "bounded_wait",
        "headroom": {"seconds": 3539.5, "bytes": None, "share": 0.9832},
        "findings": (FINDING.model_dump(),),
    }
    assert (found.journal.bytes, found.journal.last_sequence_num) == (100, 9)
    assert {t.table.removeprefix("public."): t.state for t in found.tables} == {
        "pending": TableState.PENDING,
        "snapshot": TableState.SNAPSHOT,
        "streaming": TableState.STREAMING,
        "failed": TableState.FAILED,
        "failed_in_target": TableState.FAILED,
        "dropped": TableState.DROPPED,
    }
    assert {t.table: t.error.code for t in found.tables if t.error} == {
        "public.failed": "schema_changed",
        "public.failed_in_target": "source_error",
        "public.dropped": "table_missing",
    }
    assert present(table_of(found, "failed").error).action == "Run `replicator snapshot shop public.failed`."
    steps = {t.table.removeprefix("public."): t.next_snapshot for t in found.tables if t.next_snapshot}
    assert steps == {"pending": SnapshotStep.SETTLING}
    running = {t.table.removeprefix("public."): t.snapshot.step for t in found.tables if t.snapshot and t.snapshot.step}
    assert running == {"snapshot": RunningStep.READING}
    streaming = table_of(found, "streaming")
    assert streaming.last_batch == {"way": "merge"}
    assert streaming.engine == EngineStatus(rung="L0", reason="the table has no key")
    assert streaming.upkeep is not None
    assert streaming.upkeep.failures == 2
    assert streaming.upkeep.last_error.code == "internal_error"
    assert streaming.upkeep.retry_at - streaming.upkeep.last_error.at == timedelta(seconds=180)
    assert streaming.freshness_s == 2.5
    assert streaming.waiting == WaitingStatus(
        retry_in_s=600.0, until=NOW + timedelta(minutes=10), code="quota_exceeded", message="A quota is used up."
    )


@pytest.mark.parametrize(
    ("applied", "state"),
    [
        ({"last_applied": 9, "copy": TargetCopy.WHOLE}, TableState.STREAMING),
        ({"last_applied": 9, "copy": TargetCopy.SNAPSHOT}, TableState.SNAPSHOT),
        ({"last_applied": 2, "copy": TargetCopy.WHOLE}, TableState.SNAPSHOT),
        ({"last_applied": 9, "copy": TargetCopy.WHOLE, "incarnation": 0}, TableState.SNAPSHOT),
    ],
)
def test_a_table_streams_once_the_target_has_its_whole_snapshot(
    store: StateStore, applied: dict[str, Any], state: TableState
) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    lease = store.leases.current("shop")
    assert lease is not None
    record = AppliedRecord(**{"table": TableId("public", "streaming"), "incarnation": 1, **applied})
    store.put_applied("shop", lease.epoch, [record])
    assert table_of(document(store), "streaming").state is state


def test_every_wish_and_state(store: StateStore, clock: Clock) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    found = document(store)
    seen, wishes = {found.state}, {found.desired}
    store.put_report("shop", RETRY)
    retrying = document(store)
    assert retrying.retry is not None
    assert retrying.retry.role == "apply"
    seen.add(retrying.state)
    store.set_desired("shop", Desired.RUNNING, apply_paused=True)
    wishes.add(document(store).desired)
    store.set_desired("shop", Desired.PAUSED)
    seen.add(document(store).state)
    wishes.add(document(store).desired)
    clock.now += timedelta(hours=1)
    store.set_desired("shop", Desired.RUNNING)
    seen.add(document(store).state)
    assert store.leases.acquire("shop", holder_id(), 10.0)
    seen.add(document(store).state)
    store.set_error("shop", ERROR)
    seen.add(document(store).state)
    store.set_desired("shop", Desired.DELETED)
    seen.add(document(store).state)
    wishes.add(document(store).desired)
    assert (seen, wishes) == (set(ReplicatorState), set(DesiredState))


def test_a_table_that_failed_in_capture_has_no_freshness(store: StateStore) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    assert table_of(document(store), "failed").freshness_s is None


def test_the_sources_clock_is_remembered_while_capture_is_down(store: StateStore, clock: Clock) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    clock.now += timedelta(hours=1)
    # The journal says two seconds before; the source's clock is half a second ahead.
    assert table_of(document(store), "streaming").freshness_s == 3602.5


def test_a_worker_that_reports_again_is_not_retried_any_more_though_the_clock_was_set_back(
    store: StateStore, clock: Clock
) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    store.put_report("shop", RETRY.model_copy(update={"stamp": (2, 100.0)}))
    assert document(store).state is ReplicatorState.RETRYING
    clock.now -= timedelta(hours=1)
    for stamp, state in (
        ((2, 99.0), ReplicatorState.RETRYING),
        ((1, 500.0), ReplicatorState.RETRYING),
        ((2, 101.0), ReplicatorState.RUNNING),
        ((3, 1.0), ReplicatorState.RUNNING),
    ):
        store.put_report("shop", ApplyReport(stamp=stamp))
        assert document(store).state is state


def test_a_time_ahead_of_the_sources_clock_is_no_freshness(store: StateStore, clock: Clock) -> None:
    """It was set back: how far the target is behind cannot be told by what it said before."""
    store.create_replicator("shop", "name: shop", "/j")
    fill(store)
    clock.now -= timedelta(hours=1)
    assert table_of(document(store), "streaming").freshness_s is None
    lease = present(store.leases.current("shop"))
    told = Segment(
        id=2, first=10, last=9, epoch=lease.epoch, offset=None, source_time=clock.now, ring=(), files=(), events=(), sealed_at=NOW
    )  # fmt: skip
    store.seal("shop", lease.epoch, [told])
    assert table_of(document(store), "streaming").freshness_s == 0.5


def test_the_schema_is_what_the_models_say() -> None:
    assert FILE.read_text(encoding="utf-8") == schema_text("status"), "run `make docs`"


def test_version_2_has_these_states() -> None:
    """Fixed: others read them."""
    states = {name: SCHEMA["$defs"][name]["enum"] for name in ("TableState", "ReplicatorState", "DesiredState")}
    assert states == {
        "TableState": ["pending", "snapshot", "streaming", "failed", "dropped"],
        "ReplicatorState": ["starting", "running", "retrying", "paused", "failed", "no_worker", "deleting"],
        "DesiredState": ["running", "paused", "apply_paused", "deleted"],
    }
    assert SCHEMA["properties"]["version"]["const"] == VERSION == 2
    assert SCHEMA["$id"] == "urn:replicator:status:2"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_reports_and_statuses_are_frozen_closed_and_described(model: type[BaseModel]) -> None:
    assert (model.model_config["frozen"], model.model_config["extra"]) == (True, "forbid")
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_a_wrong_document_is_refused(store: StateStore) -> None:
    store.create_replicator("shop", "name: shop", "/j")
    found = document(store).model_dump(mode="json")
    assert list(faults(found | {"state": "odd"}, SCHEMA))
    assert list(faults(found | {"extra": 1}, SCHEMA))
    assert list(faults(found | {"freshness_s": -1}, SCHEMA))
    assert list(faults({k: v for k, v in found.items() if k != "uuid"}, SCHEMA))


def test_the_commands_print_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    for name in ("shop", "till"):
        store.create_replicator(name, f"name: {name}", "/j")
    store.close()
    one = CliRunner().invoke(main, ["status", "shop", "--json"])
    assert list(faults(json.loads(one.stdout), SCHEMA)) == []
    for command in (["list", "--json"], ["status", "--json"]):
        several = json.loads(CliRunner().invoke(main, command).stdout)
        assert [d["name"] for d in several] == ["shop", "till"]
        assert list(faults(several, SCHEMA["$defs"]["list"])) == []


def test_every_step_before_a_snapshot_is_in_the_schema() -> None:
    assert SCHEMA["$defs"]["SnapshotStep"]["enum"] == [step.value for step in Step if step is not Step.READY]
