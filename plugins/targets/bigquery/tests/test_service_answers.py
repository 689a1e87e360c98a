"""What only the service does: job ids that run once, lost answers, conflicts, quotas, and Cloud Storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

import pytest

from replicator.model.errors import (
    AccessDeniedError,
    FencedError,
    Severity,
    TableError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.target import BatchResult, TargetTable
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testbed.bigquery.emulator import BUCKET, BigQueryEmulator
from replicator_testing.batches import RowChange, insert, update
from replicator_testing.target_harness import UUID, Copy, as_tuples, item, items_schema

from .service import Fault, Service, job, request

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse


@pytest.fixture
def service(emulator: BigQueryEmulator) -> Iterator[Service]:
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        yield service


@pytest.fixture
def warehouse(new_warehouse: Callable[..., Warehouse], service: Service) -> Warehouse:
    """All requests go through the service, files through Cloud Storage."""
    warehouse = new_warehouse(endpoint=service.endpoint)
    staging = {"bucket": BUCKET, "prefix": warehouse.values["staging"]["prefix"], "endpoint": service.endpoint}
    warehouse.values["staging"] = staging
    return warehouse


@pytest.fixture
def copy(warehouse: Warehouse, tmp_path: Path) -> Copy:
    schema = items_schema()
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    return copy


def attempts(service: Service, what: str) -> list[str]:
    """Attempt numbers of the jobs of a kind that were carried out."""
    return [name.rpartition("_")[2] for name in service.carried_out if f"_{what}_" in name]


def test_a_batch_takes_one_load_job_and_one_script_and_leaves_nothing(
    copy: Copy, service: Service, warehouse: Warehouse
) -> None:
    copy.apply(insert(1, item(1, "a")), update(2, item(1, "b")), files=2)
    assert copy.live() == as_tuples(copy.schema, [item(1, "b")])
    assert (attempts(service, "load"), attempts(service, "merge")) == (["a0"], ["a0"])
    assert warehouse.leftovers() == []


@pytest.mark.matrix
def test_many_small_files_are_one_object(copy: Copy, service: Service, warehouse: Warehouse) -> None:
    changes = [insert(n, item(n, f"n{n}", note="x")) for n in range(1, 121)]
    changes += [update(n + 120, item(n, "again"), absent=["note"]) for n in range(1, 121)]
    assert isinstance(copy.target, BigQueryTarget)
    store = copy.target._store
    put = store.put
    names: list[str] = []

    def recorded(name: str, content: Any) -> None:
        names.append(name)
        put(name, content)

    store.put = recorded  # type: ignore[method-assign]
    copy.apply(*changes, files=120)
    assert len(names) == 1
    assert copy.live() == as_tuples(copy.schema, [item(n, "again", note="x") for n in range(1, 121)])
    assert warehouse.leftovers() == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["merge", "load"])
def test_a13_a_job_whose_answer_was_lost_is_found_and_not_run_again(copy: Copy, service: Service, what: str) -> None:
    """CDAP A13, first half."""
    service.faults.append(Fault("break_after", job(f"_{what}_")))
    copy.apply(insert(1, item(1, "a")))
    assert attempts(service, what) == ["a0"]
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["load", "merge"])
def test_a13_a_job_that_failed_is_followed_by_the_next_attempt(copy: Copy, service: Service, what: str) -> None:
    """CDAP A13, second half: what failed keeps its id."""
    service.faults.append(Fault("fail_job", job(f"_{what}_"), reason="backendError"))
    with pytest.raises(TargetUnavailableError) as failed:
        copy.apply(insert(1, item(1, "a")))
    assert (type(failed.value), failed.value.code) == (ThrottledError, "job_failed")
    assert copy.restart().last_applied == 0
    copy.apply(insert(1, item(1, "a")))
    assert attempts(service, what) == ["a1"]
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


def test_a_request_that_never_arrived_is_told_apart_from_one_that_did(copy: Copy, service: Service) -> None:
    service.faults.append(Fault("break_before", job("_merge_")))
    with pytest.raises(TargetUnavailableError) as failed:
        copy.apply(insert(1, item(1, "a")))
    assert failed.value.code == "target_unreachable"
    assert copy.live() == []
    assert copy.restart().last_applied == 0
    copy.apply(insert(1, item(1, "a")))
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


@pytest.mark.matrix
def test_a_commit_that_cannot_be_looked_up_is_settled_by_the_ledger(copy: Copy, service: Service) -> None:
    service.faults += [
        Fault("break_after", job("_merge_")),
        Fault("refuse", request("GET", "/jobs/.*_merge_"), status=404, reason="notFound", times=1000),
    ]
    result = copy.apply(insert(1, item(1, "a")))
    assert result.was_skipped
    assert copy.restart().last_applied == 1
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


@pytest.mark.matrix
def test_an_earlier_attempt_with_other_bounds_is_continued(copy: Copy, service: Service, warehouse: Warehouse) -> None:
    """The process died after sending; its script ends only after the next process has planned another batch."""
    late = warehouse.target()
    late.claim(copy.table)
    copy.apply(insert(1, item(1, "a")))
    copy.target, copy.ledger = late, 0
    with pytest.raises(TargetUnavailableError) as moved:
        copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
    assert moved.value.code == "ledger_moved"
    assert copy.claim().last_applied == 1
    copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")), skip_to=1)
    assert copy.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b")])


@pytest.mark.matrix
def test_an_earlier_attempt_that_went_further_is_continued(copy: Copy, warehouse: Warehouse) -> None:
    late = warehouse.target()
    late.claim(copy.table)
    copy.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
    copy.target, copy.ledger = late, 0
    with pytest.raises(TargetUnavailableError) as moved:
        copy.apply(insert(1, item(1, "a")))
    assert moved.value.code == "ledger_moved"
    assert copy.claim().last_applied == 2


def test_validate_finds_datasets_whose_tables_expire_or_that_are_elsewhere(copy: Copy, warehouse: Warehouse) -> None:
    names = warehouse.names
    dataset = warehouse.client.get_dataset(names.own_dataset)
    dataset.default_table_expiration_ms = 3_600_000
    warehouse.client.update_dataset(dataset, ["default_table_expiration_ms"])
    assert "dataset_expires" in {p.code for p in warehouse.target().check([copy.schema])}
    found = {p.code for p in warehouse.target(location="US").check([copy.schema])}
    assert "dataset_elsewhere" in found
    found = {p.code for p in warehouse.target(dataset="elsewhere", create_datasets=False).check([copy.schema])}
    assert "dataset_missing" in found


@pytest.mark.matrix
def test_a_worker_of_an_older_epoch_is_fenced_by_the_script_itself(copy: Copy, warehouse: Warehouse) -> None:
    heir = warehouse.target(epoch=2)
    heir.claim(TargetTable(table=copy.table.table, uuid=UUID, incarnation=1, epoch=2))
    for act in (
        lambda: copy.apply(insert(1, item(1, "zombie"))),
        lambda: copy.ddl(DDLOperation.TRUNCATE_TABLE, 2),
        lambda: copy.ddl(DDLOperation.DROP_TABLE, 3),
    ):
        with pytest.raises(FencedError):
            act()
    assert copy.live() == []
    assert warehouse.exists(copy.table)


class Late:
    """A batch whose script is on its way while other things happen; ends with the block."""

    def __init__(self, copy: Copy, service: Service, *changes: RowChange) -> None:
        self.copy, self.changes = copy, changes
        self.outcome: list[BatchResult | FencedError | TargetUnavailableError] = []
        self.fault = Fault("hold", job("_merge_"))
        service.faults.append(self.fault)
        self.thread = Thread(target=self.run)

    def run(self) -> None:
        try:
            self.outcome.append(self.copy.apply(*self.changes))
        except (FencedError, TargetUnavailableError) as error:
            self.outcome.append(error)

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.fault.arrived.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.fault.released.set()
        self.thread.join()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("works_on", [True, False], ids=["after a batch of the heir", "after its claim"])
def test_a_script_that_arrives_after_a_newer_epoch_has_claimed_changes_nothing(
    copy: Copy, service: Service, warehouse: Warehouse, works_on: bool
) -> None:
    heir = replace(copy, table=replace(copy.table, epoch=2), target=warehouse.target(epoch=2))
    with Late(copy, service, insert(1, item(1, "zombie"))) as late:
        assert heir.claim().last_applied == 0
        if works_on:
            heir.apply(insert(1, item(1, "heir")))
    assert isinstance(late.outcome[0], FencedError)
    assert heir.live() == (as_tuples(copy.schema, [item(1, "heir")]) if works_on else [])
    assert heir.restart(epoch=3).last_applied == int(works_on)


@pytest.mark.matrix
def test_a_script_of_our_own_that_arrives_late_counts_once(copy: Copy, service: Service, warehouse: Warehouse) -> None:
    """A process died after sending, its successor of the same epoch claimed before the script ran."""
    heir = replace(copy, target=warehouse.target())
    with Late(copy, service, insert(1, item(1, "a"))) as late:
        assert heir.claim().last_applied == 0
    (result,) = late.outcome
    assert isinstance(result, BatchResult)
    assert not result.was_skipped
    with pytest.raises(TargetUnavailableError) as moved:
        heir.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
    assert moved.value.code == "ledger_moved"
    heir.ledger = heir.claim().last_applied
    heir.apply(insert(1, item(1, "a")), insert(2, item(2, "b")))
    assert heir.live() == as_tuples(copy.schema, [item(1, "a"), item(2, "b")])


def test_a_script_of_our_own_that_arrives_too_late_changes_nothing(
    copy: Copy, service: Service, warehouse: Warehouse
) -> None:
    heir = replace(copy, target=warehouse.target())
    with Late(copy, service, insert(1, item(1, "old"))) as late:
        heir.claim()
        heir.apply(insert(1, item(1, "old")), insert(2, item(1, "new")))
    (refused,) = late.outcome
    assert isinstance(refused, TargetUnavailableError)
    assert (type(refused), refused.code) == (ThrottledError, "ledger_moved")
    assert heir.live() == as_tuples(copy.schema, [item(1, "new")])


@pytest.mark.matrix
def test_json_is_loaded_as_text_and_parsed_in_the_script(warehouse: Warehouse, tmp_path: Path) -> None:
    schema = items_schema()
    columns = (*schema.columns[:3], replace(schema.columns[3], source_type="jsonb"))
    schema = replace(schema, columns=columns)
    warehouse.values["json_as"] = "json"
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    copy.create()
    copy.apply(insert(1, item(1, "a", None, '{"x": [1, 2]}')))
    path = warehouse.names.path(schema.table)
    assert warehouse.query(f"SELECT JSON_VALUE(note, '$.x[1]') AS x FROM `{path}`") == [{"x": "2"}]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("reason", "message", "code"),
    [
        (
            "rateLimitExceeded",
            "Exceeded rate limits: too many table update operations for this table",
            "target_throttled",
        ),
        ("quotaExceeded", "Quota exceeded: Your project exceeded quota for imports per project", "quota_exceeded"),
        (
            "invalidQuery",
            "Transaction is aborted due to concurrent update against table p:d.t. Transaction ID: 1",
            "target_busy",
        ),
        ("jobInternalError", "The job encountered an internal error", "job_failed"),
        (
            "resourcesExceeded",
            "Resources exceeded during query execution: Too many DML statements outstanding against table p:d.t, limit is 20.",
            "target_throttled",
        ),
    ],
)
def test_a10_what_passes_by_itself_is_tried_again_by_the_host(
    copy: Copy, service: Service, reason: str, message: str, code: str
) -> None:
    """CDAP A10: an error like 429 is tried again."""
    service.faults.append(Fault("fail_job", job("_merge_"), reason=reason, message=message))
    with pytest.raises(ThrottledError) as failed:
        copy.apply(insert(1, item(1, "a")))
    assert (failed.value.code, failed.value.table) == (code, "shop.items"), "this table alone waits"
    # A limit passes with time alone; what may be a failure is given up some day.
    assert failed.value.is_limit is (code in {"target_throttled", "quota_exceeded"})
    copy.restart()
    copy.apply(insert(1, item(1, "a")))
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


TOO_DEAR: dict[str, Any] = {
    "reason": "bytesBilledLimitExceeded",
    "message": "Query exceeded limit for bytes billed: 1000.",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("size", "is_append", "may_halve"),
    [("2000", False, False), ("10", False, True), ("2000", True, True)],
    ids=["the table is too large", "the batch is", "a first copy"],
)
def test_a_script_that_is_too_dear_makes_its_table_wait_and_loses_nothing(
    copy: Copy, service: Service, warehouse: Warehouse, size: str, is_append: bool, may_halve: bool
) -> None:
    """A MERGE is billed the whole table: only where the batch is what is large a smaller one helps."""
    copy.target = warehouse.target(budget={"maximum_bytes_billed": "1000B"})
    name, dataset = warehouse.names.table(copy.table.table), warehouse.names.dataset(copy.table.table)
    path = f"/bigquery/v2/projects/{warehouse.names.config.project}/datasets/{dataset}/tables/{name}"
    service.resources[path] = {"numBytes": size}
    service.faults.append(Fault("fail_job", job(r'(?s)(?=.*_merge_)(?=.*"maximumBytesBilled": ?"1000")'), **TOO_DEAR))
    with pytest.raises(ThrottledError) as waits:
        copy.apply(insert(1, item(1, "a"), is_snapshot=True), is_append=is_append)
    error = waits.value
    assert (error.code, error.is_limit, error.may_halve) == ("too_many_bytes_billed", True, may_halve)
    assert error.rest_s >= 60
    assert "Raise the limit" in (error.action or "")
    assert copy.live() == []
    copy.restart()
    copy.apply(insert(1, item(1, "a"), is_snapshot=True), is_append=is_append)
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])
    assert warehouse.leftovers() == []


@pytest.mark.matrix
def test_what_the_status_tells_of_quotas_is_what_was_used(
    copy: Copy, service: Service, new_warehouse: Callable[..., Warehouse], warehouse: Warehouse, tmp_path: Path
) -> None:
    """Two tables of one replicator: what each used, and what both did."""
    service.billed = 1000
    before = len(service.carried_out)
    other = replace(copy, schema=replace(copy.schema, table=TableId("shop", "others")), folder=tmp_path / "others")
    other.table = replace(copy.table, table=other.schema.table)
    other.create()
    first = copy.apply(insert(1, item(1, "a"))).details or {}
    second = other.apply(insert(1, item(1, "a"))).details or {}
    third = copy.apply(insert(2, item(2, "a"))).details or {}
    assert (first["bytes_billed"], first["slot_ms"] > 0) == (1000, True)
    assert [(d["table_load_jobs_24h"], d["load_jobs_24h"]) for d in (first, second, third)] == [(1, 1), (1, 2), (2, 3)]
    assert third["table_slot_ms_24h"] >= first["slot_ms"] + third["slot_ms"]
    assert third["bytes_billed_24h"] == third["table_bytes_billed_24h"] + second["table_bytes_billed_24h"]
    # A claim, the table's making, the batches: each a script that was billed.
    scripts = [name for name in service.carried_out[before:] if "_load_" not in name and "replicator_" in name]
    assert third["bytes_billed_24h"] == 1000 * len([s for s in scripts if "_ledger_" not in s])


def test_a_budget_that_is_used_up_makes_the_table_wait_with_the_reason(
    copy: Copy, service: Service, warehouse: Warehouse
) -> None:
    copy.target = warehouse.target(budget={"load_jobs_per_day": 1})
    copy.apply(insert(1, item(1, "a")))
    with pytest.raises(ThrottledError) as waits:
        copy.apply(insert(2, item(2, "b")))
    assert (waits.value.code, waits.value.is_limit, waits.value.rest_s > 80_000) == ("budget_used_up", True, True)
    assert attempts(service, "load") == ["a0"]
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("reason", "message", "code"),
    [
        ("invalid", "Error while reading data, error message: 'secret value' is out of range", "bigquery_refused"),
        ("resourcesExceeded", "Resources exceeded during query execution: not enough memory", "batch_too_large"),
        ("stopped", "Job execution was cancelled: User requested cancellation", "job_stopped"),
        ("invalidQuery", "Required field id cannot be null", "key_missing"),
    ],
)
def test_a10_what_is_refused_for_good_fails_the_table_with_the_reason(
    copy: Copy, service: Service, reason: str, message: str, code: str
) -> None:
    """CDAP A10: one attempt."""
    service.faults.append(Fault("fail_job", job("_merge_"), reason=reason, message=message))
    with pytest.raises(TableError) as failed:
        copy.apply(insert(1, item(1, "a")))
    assert (failed.value.code, failed.value.table) == (code, "shop.items")
    assert len([s for s in service.sent if "_merge_" in s]) == 1
    assert "secret value" not in str(failed.value)
    has_size = re.search(r"Changes in the batch: 1; its bytes in the journal: \d+\.", failed.value.message) is not None
    assert has_size is (code == "batch_too_large")


def test_a_missing_right_stops_the_replicator(copy: Copy, service: Service) -> None:
    service.faults.append(
        Fault("refuse", job("_load_"), status=403, reason="accessDenied", message="Access Denied: bigquery.jobs.create")
    )
    with pytest.raises(AccessDeniedError) as refused:
        copy.apply(insert(1, item(1, "a")))
    assert refused.value.code == "access_denied"


@pytest.mark.matrix
def test_drop_and_create_do_nothing_permanent_inside_a_transaction(copy: Copy, service: Service) -> None:
    copy.ddl(DDLOperation.DROP_TABLE, 1)
    copy.ddl(DDLOperation.CREATE_TABLE, 2)
    copy.apply(insert(3, item(1, "a")))
    assert copy.live() == as_tuples(copy.schema, [item(1, "a")])


@pytest.mark.matrix
def test_chains_of_keys_are_followed_by_a_temporary_table_inside_the_transaction(copy: Copy, service: Service) -> None:
    copy.apply(insert(1, item(1, "a", "1.00", "note")))
    copy.apply(update(2, item(2, "b"), before=item(1), absent=["note", "amount"]))
    assert copy.live() == as_tuples(copy.schema, [item(2, "b", "1.00", "note")])


def test_validate_names_what_is_missing(copy: Copy, service: Service, warehouse: Warehouse) -> None:
    service.missing_rights.add("storage.objects.delete")
    service.bucket_location = "US-EAST1"
    assert {p.code for p in warehouse.target().check([copy.schema])} == {"bucket_elsewhere", "daily_estimate"}
    service.bucket_location = "EU"
    (found,) = [p for p in warehouse.target().check([copy.schema]) if p.severity is Severity.BLOCKING]
    assert (found.code, "storage.objects.delete" in found.message) == ("rights_missing", True)
    warehouse.values["staging"]["bucket"] = "nowhere"
    assert "bucket_missing" in {p.code for p in warehouse.target().check([copy.schema])}


@pytest.mark.matrix
def test_validate_finds_that_tables_may_not_be_made_or_jobs_not_run(
    copy: Copy, service: Service, warehouse: Warehouse
) -> None:
    refusal: dict[str, Any] = {
        "status": 403,
        "reason": "accessDenied",
        "message": "Access Denied: bigquery.tables.create",
    }
    service.faults.append(Fault("refuse", request("POST", "/tables$"), times=10, **refusal))
    found = warehouse.target().check([copy.schema])
    assert {p.location for p in found if p.code == "rights_missing"} == {"target.dataset"}
    service.faults[:] = [Fault("refuse", job("dryRun"), **refusal)]
    assert {p.code for p in warehouse.target().check([copy.schema])} == {"access_denied"}


def test_validate_finds_what_hinders_merges_into_a_table_of_ours(
    copy: Copy, service: Service, warehouse: Warehouse
) -> None:
    policies = {"rowAccessPolicies": [{"filterPredicate": "TRUE"}]}
    service.faults.append(Fault("answer", request("GET", "rowAccessPolicies"), status=200, body=policies))
    name = warehouse.names.table(copy.table.table)
    dataset = warehouse.names.dataset(copy.table.table)
    path = f"/bigquery/v2/projects/{warehouse.names.config.project}/datasets/{dataset}/tables/{name}"
    fields = [{"name": "id", "type": "INTEGER", "policyTags": {"names": ["projects/p/tags/t"]}}]
    service.resources[path] = {"requirePartitionFilter": True, "schema": {"fields": fields}}
    found = {p.code for p in warehouse.target().check([copy.schema])}
    assert found == {"row_policies", "partition_filter_required", "policy_tags", "daily_estimate"}


def test_an_object_of_another_content_is_not_loaded(
    copy: Copy, warehouse: Warehouse, emulator: BigQueryEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(copy.target, BigQueryTarget)
    store = copy.target._store
    path = tmp_path / "x"
    for content in (b"one", b"one"):
        path.write_bytes(content)
        with path.open("rb") as file:
            store.put("conflict/x", file)
    path.write_bytes(b"two")
    with path.open("rb") as file, pytest.raises(TableError) as refused:
        store.put("conflict/x", file)
    assert refused.value.code == "staging_conflict"
    assert store.names("conflict/") == ["conflict/x"]
    for _ in range(2):
        store.delete("conflict/x")
    assert store.names("conflict/") == []


def test_large_files_are_uploaded_in_pieces(copy: Copy, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 40_000)
    assert isinstance(copy.target, BigQueryTarget)
    store = copy.target._store
    with path.open("rb") as file:
        store.put("large/file", file)
    with path.open("rb") as file:
        store.put("large/file", file)
    store.delete("large/file")
