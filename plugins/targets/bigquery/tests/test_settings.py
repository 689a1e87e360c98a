"""What is decided without any service: settings, names, pauses, resources of tables, who acts on an error."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from pydantic import ValidationError
from requests import exceptions as http

from replicator.model.errors import (
    AccessDeniedError,
    BatchTooLargeError,
    FatalError,
    ReplicatorError,
    SchemaConflictError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_bigquery.calls.governor import DAY_S, Governor, Usage, steady_clock, stretched
from replicator_target_bigquery.config import BigQueryConfig, BudgetConfig
from replicator_target_bigquery.errors import FENCED, FencedAnswer, translate
from replicator_target_bigquery.names import Names, column_problems, table_problems
from replicator_target_bigquery.shape import shape_of
from replicator_target_bigquery.tables import TableClient
from replicator_target_bigquery.target import BigQueryTarget
from replicator_target_bigquery.types import layout_problems, type_problems
from replicator_testing.defaults import target_context

MINIMAL = {"project": "p", "location": "EU", "staging": {"bucket": "bucket"}}
ORDERS = TableSchema(
    table=TableId("public", "orders"),
    columns=(
        Column(name="id", type=pa.string(), source_type="text", nullable=False, comment="number"),
        Column(name="made on", type=pa.date32(), source_type="date"),
        Column(name="price", type=pa.float64(), source_type="double precision"),
    ),
    key=("id",),
    comment="Orders",
)


def config(**changes: Any) -> BigQueryConfig:
    return BigQueryConfig.model_validate({**MINIMAL, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": "http://bigquery.example.com"},
        {"endpoint": "bigquery.example.com"},
        {"staging": {"bucket": "bucket", "folder": "/tmp/x"}},
        {"staging": {"bucket": "bucket", "endpoint": "http://storage.example.com"}},
        {"staging": {"bucket": "Bucket"}},
        {"labels": {"replicator_uuid": "x"}},
        {"unknown": 1},
        {"time_travel": "1h"},
        {"project": "p`"},
        {"own_dataset": "a-b"},
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**changes)


def test_only_an_emulator_on_this_machine_gets_no_credentials() -> None:
    assert config(endpoint="http://127.0.0.1:9050").is_emulator
    assert not config(endpoint="https://bigquery.europe-west3.rep.googleapis.com").is_emulator
    assert not config().is_emulator


def test_settings_of_tables_are_joined_in_order() -> None:
    found = config(
        json_as="json",
        tables={"public.*": {"cluster_by": ["a"], "partition_by": "d"}, "public.orders": {"cluster_by": ["b"]}},
    )
    assert found.table(TableId("public", "orders")).cluster_by == ("b",)
    assert found.table(TableId("public", "orders")).partition_by == "d"
    assert found.table(TableId("other", "orders")).json_as == "json"


def test_the_identity_is_where_tables_are() -> None:
    target = BigQueryTarget(config(), target_context(replicator="r", max_wait_s=0.0))
    assert target.identity() == {
        "project": "p", "location": "eu", "dataset": "{namespace}", "own_dataset": "_replicator",
    }  # fmt: skip


def test_a_dataset_follows_the_rule() -> None:
    names = Names(config(dataset="shop_{namespace}"))
    assert names.path(TableId("my db", "T-1")) == "p.shop_my_db.T_1"
    assert names.ledger(TableId("a", "t")) != names.ledger(TableId("a", "T"))
    assert Names(config(names="unicode")).column("größe in €") == "größe_in_"


@pytest.mark.parametrize("name", ["_PARTITIONTIME", "_table_x", "__ROOT__a", "_CHANGE_TYPE", "_Row_Timestamp"])
def test_names_that_bigquery_reserves_are_changed(name: str) -> None:
    assert Names(config()).column(name) == f"c{name}"


def test_tables_and_columns_that_would_be_one_are_refused() -> None:
    names = Names(config())
    tables = [TableId("a", "x-y"), TableId("a", "x_Y"), TableId("b", "x_y")]
    (problem,) = table_problems(names, tables)
    assert (problem.code, problem.message) == ("table_names_clash", "a.x-y and a.x_Y would both be p.a.x_y.")
    columns = [Column(name=n, type=pa.int64(), source_type="int") for n in ("a b", "A-B", "_sequence-num")]
    schema = TableSchema(table=TableId("a", "t"), columns=tuple(columns))
    assert {p.code for p in column_problems(names, schema)} == {"column_names_clash", "column_name_reserved"}


def test_what_is_changed_or_impossible_is_told() -> None:
    assert [p.code for p in type_problems(replace(ORDERS, key=("price",)), "string", "stop")] == [
        "key_type_unsupported"
    ]
    assert [p.code for p in type_problems(ORDERS, "string", "null")] == ["type_changed"]
    assert layout_problems(ORDERS, "made on", "day", ["id"], "string") == []
    assert len(layout_problems(ORDERS, "made on", "hour", ["price", "missing"], "string")) == 3


def test_a_table_is_described_in_full() -> None:
    settings = config(
        kms_key="projects/p/locations/eu/keyRings/r/cryptoKeys/k",
        labels={"team": "shop"},
        tables={"public.orders": {"partition_by": "made on", "partition_unit": "month"}},
    )
    names = Names(settings)
    options = TableOptions(deletes="soft", source_timestamp=True)
    table = TargetTable(table=ORDERS.table, uuid="u-1", incarnation=3, epoch=5, options=options)
    shape = shape_of(ORDERS, options, names, "string")
    resource = TableClient(None, settings, names).resource(
        "p.public.orders", table, ORDERS, shape, settings.table(ORDERS.table)
    )
    assert resource == {
        "tableReference": {"projectId": "p", "datasetId": "public", "tableId": "orders"},
        "schema": {
            "fields": [
                {"name": "id", "type": "STRING", "mode": "REQUIRED", "description": "number", "collation": ""},
                {"name": "made_on", "type": "DATE", "mode": "NULLABLE"},
                {"name": "price", "type": "FLOAT64", "mode": "NULLABLE"},
                {
                    "name": "_sequence_num",
                    "type": "INT64",
                    "mode": "REQUIRED",
                    "description": "Number of the last change of the row",
                },
                {
                    "name": "_is_deleted",
                    "type": "BOOL",
                    "mode": "REQUIRED",
                    "description": "Whether the row was deleted in the source",
                },
                {
                    "name": "_source_timestamp",
                    "type": "TIMESTAMP",
                    "mode": "NULLABLE",
                    "description": "Commit time of the last change in the source",
                },
            ]
        },
        "defaultCollation": "",
        "labels": {
            "team": "shop",
            "replicator_uuid": "u-1",
            "replicator_incarnation": "3",
            "replicator_shape": shape.mark,
        },
        "description": "Orders",
        "clustering": {"fields": ["id"]},
        "timePartitioning": {"type": "MONTH", "field": "made_on"},
        "tableConstraints": {"primaryKey": {"columns": ["id"]}},
        "encryptionConfiguration": {"kmsKeyName": "projects/p/locations/eu/keyRings/r/cryptoKeys/k"},
    }


def test_the_shape_changes_with_what_the_table_looks_like() -> None:
    names = Names(config())
    marks = {
        shape_of(schema, options, names, "string").mark
        for schema, options in (
            (ORDERS, TableOptions()),
            (ORDERS, TableOptions(deletes="soft")),
            (ORDERS, TableOptions(source_timestamp=True)),
            (replace(ORDERS, key=()), TableOptions()),
            (replace(ORDERS, columns=ORDERS.columns[:2]), TableOptions()),
        )
    }
    assert len(marks) == 5
    assert shape_of(replace(ORDERS, comment=None), TableOptions(), names, "string").mark in marks


# -- pauses


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_table_rests_after_its_batches() -> None:
    clock = Clock()
    governor = Governor(BudgetConfig(), 300.0, clock)
    orders, others = TableId("a", "orders"), TableId("a", "others")
    assert governor.rest_s(orders) == 0
    governor.used(orders, load_jobs=1, bytes_billed=10, is_batch=True)
    clock.now += 100
    assert (governor.rest_s(orders), governor.rest_s(others)) == (200.0, 0.0)
    assert governor.rest_s(orders, is_behind=True) == 0
    clock.now += 201
    assert governor.rest_s(orders) == 0


def test_pauses_grow_so_that_a_budget_lasts_for_a_day() -> None:
    clock = Clock()
    governor = Governor(BudgetConfig(bytes_per_day=1000), 60.0, clock)
    table = TableId("a", "t")
    pauses = []
    for _ in range(9):
        governor.used(table, load_jobs=1, bytes_billed=100, is_batch=True)
        pauses.append(governor.pause_s())
        clock.now += 10
    assert pauses[:4] == [60.0] * 4
    assert governor.rest_s(table, is_behind=True) > 80_000
    assert pauses[4:] == pytest.approx([DAY_S / left for left in (5, 4, 3, 2, 1)])
    governor.used(table, load_jobs=1, bytes_billed=500, is_batch=True)
    assert governor.pause_s() > 80_000, "nothing is left: until the oldest use is a day old"
    assert governor.usage().bytes_billed == 1400
    clock.now += DAY_S
    assert (governor.pause_s(), governor.usage().load_jobs) == (60.0, 0)


def test_the_next_process_continues_from_what_the_ledger_remembers() -> None:
    clock = Clock()
    budget = BudgetConfig(bytes_per_day=1000)
    before = Governor(budget, 300.0, clock)
    orders, others = TableId("a", "orders"), TableId("a", "others")
    before.used(others, bytes_billed=50, is_batch=True)
    for _ in range(3):
        before.used(orders, load_jobs=1)
        before.used(orders, bytes_billed=200, slot_ms=7, is_batch=True)
        clock.now += 3000
    memory = before.memory(orders)
    assert json.loads(memory) == [[1000.0, 1, 1, 200, 7], [7000.0, 2, 2, 400, 14], [10000.0, 1, 0, 200, 0]]
    assert before.usage(orders) == Usage(batches=3, load_jobs=3, bytes_billed=600, slot_ms=21)

    after = Governor(budget, 300.0, clock)
    after.recall(orders, memory, 7000.0)
    after.recall(others, None, None)
    assert after.usage() == Usage(batches=4, load_jobs=3, bytes_billed=800, slot_ms=21), (
        "the one being committed counts"
    )
    assert after.rest_s(orders) > 80_000, "one batch is left for a day"
    assert after.rest_s(others) == 0
    after.recall(orders, memory, 7000.0)
    assert after.usage().load_jobs == 3, "what is known is not counted twice"
    clock.now = 7000.0 + DAY_S
    assert after.usage() == Usage(batches=1, bytes_billed=200)

    ahead = Governor(budget, 300.0, lambda: 5000.0)
    ahead.recall(orders, None, 7000.0)
    assert ahead.rest_s(orders) == 300.0, "another host's clock went ahead"


def test_a_rest_ends_though_the_hosts_clock_was_ahead_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    table, real = TableId("a", "t"), time.time
    governor = Governor(BudgetConfig(), 300.0, steady_clock())
    monkeypatch.setattr(time, "time", lambda: real() + DAY_S)
    governor.used(table, is_batch=True)
    monkeypatch.setattr(time, "time", real)
    assert 0 < governor.rest_s(table) <= 300.0


def test_two_batches_do_not_take_the_same_room() -> None:
    clock = Clock()
    governor = Governor(BudgetConfig(bytes_per_day=1000, load_jobs_per_day=100), 0.0, clock)
    tables = [TableId("a", name) for name in "abcd"]
    for table in tables:
        governor.used(table, bytes_billed=100, is_batch=True)
        clock.now += 60
    governor.used(tables[0], bytes_billed=300)
    assert [governor.begin(table) for table in tables] == [0, 0, 0, DAY_S - 240]
    assert governor.rest_s(tables[3], is_behind=True) >= DAY_S - 240
    assert governor.begin(tables[2]) == 0, "its own room is not taken twice"
    governor.ended(tables[1])
    assert governor.begin(tables[3]) == 0
    governor.used(tables[0], load_jobs=97)
    governor.ended(tables[3])
    assert governor.begin(tables[3]) == 0, "two are under way, and three are left"
    governor.used(tables[3], load_jobs=1)
    governor.ended(tables[3])
    assert governor.begin(tables[3]) == DAY_S, "two are under way, and two are left"


def test_a_batch_that_takes_more_than_a_day_allows_comes_once_a_day() -> None:
    clock = Clock()
    governor = Governor(BudgetConfig(bytes_per_day=1000), 0.0, clock)
    large, small = TableId("a", "large"), TableId("a", "small")
    governor.used(large, bytes_billed=5000, is_batch=True)
    clock.now += 100
    governor.used(small, bytes_billed=10)
    assert governor.begin(large) == DAY_S - 100
    clock.now += DAY_S - 100
    assert governor.begin(small) == 0
    assert governor.begin(large) == 1, "alone"
    governor.ended(small)
    assert governor.begin(large) == 0


def test_a_batch_whose_answer_was_lost_counts_as_the_one_before() -> None:
    governor = Governor(BudgetConfig(), 0.0, Clock())
    table = TableId("a", "t")
    governor.used(table, bytes_billed=None, is_batch=True)
    governor.used(table, bytes_billed=70, is_batch=True)
    governor.used(table, bytes_billed=None, is_batch=True)
    assert governor.usage(table) == Usage(batches=3, bytes_billed=140)


def test_tables_that_run_side_by_side_are_all_counted() -> None:
    governor = Governor(BudgetConfig(), 0.0, Clock())
    tables = [TableId("a", str(n)) for n in range(8)]

    def work(table: TableId) -> None:
        for _ in range(50):
            governor.used(table, load_jobs=1)
            governor.used(table, bytes_billed=3, slot_ms=2, is_batch=True)
            governor.memory(table) if governor.usage(table).batches % 10 == 0 else None

    with ThreadPoolExecutor(len(tables)) as threads:
        list(threads.map(work, tables))
    assert governor.usage() == Usage(batches=400, load_jobs=400, bytes_billed=1200, slot_ms=800)
    assert governor.usage(tables[3]) == Usage(batches=50, load_jobs=50, bytes_billed=150, slot_ms=100)


def test_tables_share_what_is_left() -> None:
    assert stretched(499, 1000, 1, 10, until_oldest_s=50) == 0
    assert stretched(500, 1000, 1, 10, until_oldest_s=50) == 10 * DAY_S / 500
    assert stretched(995, 1000, 1, 10, until_oldest_s=50) == 50
    assert stretched(995, 1000, 0, 10, until_oldest_s=50) == 0


# -- errors


def refusal(status: int, reason: str, message: str = "no") -> api.GoogleAPICallError:
    return api.from_http_status(status, message, errors=[{"reason": reason, "message": message}])


def from_metadata() -> auth.RefreshError:
    """As `google.auth.compute_engine` raises it."""
    error = auth.RefreshError(auth.TransportError("no answer"))
    error.__cause__ = error.args[0]
    return error


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (refusal(403, "rateLimitExceeded"), ThrottledError, "target_throttled"),
        (refusal(403, "quotaExceeded"), ThrottledError, "quota_exceeded"),
        (refusal(403, "accessDenied"), AccessDeniedError, "access_denied"),
        (refusal(403, "billingNotEnabled"), FatalError, "billing_not_enabled"),
        (refusal(429, ""), ThrottledError, "target_throttled"),
        (refusal(503, "backendError"), TargetUnavailableError, "target_unreachable"),
        (
            refusal(400, "invalidQuery", "UPDATE/MERGE must match at most one source row"),
            FatalError,
            "merge_not_unique",
        ),
        (
            refusal(400, "resourcesExceeded", "Resources exceeded during query execution."),
            BatchTooLargeError,
            "batch_too_large",
        ),
        (refusal(400, "invalid"), SchemaConflictError, "bigquery_refused"),
        (refusal(404, "notFound"), SchemaConflictError, "bigquery_refused"),
        (auth.RefreshError("invalid_grant: Token has been expired"), AccessDeniedError, "credentials_refused"),
        (refusal(401, "authError", "Request had invalid credentials."), AccessDeniedError, "credentials_refused"),
        (refusal(401, ""), AccessDeniedError, "credentials_refused"),
        (auth.DefaultCredentialsError("none"), AccessDeniedError, "credentials_refused"),
        (auth.TransportError("no route"), TargetUnavailableError, "target_unreachable"),
        (auth.RefreshError("internal_failure", retryable=True), TargetUnavailableError, "target_unreachable"),
        (from_metadata(), TargetUnavailableError, "target_unreachable"),
        (
            auth.RefreshError("Unable to acquire", '{"error": {"code": 503}}'),
            TargetUnavailableError,
            "target_unreachable",
        ),
        (auth.RefreshError("Unable to acquire", '{"error": {"code": 403}}'), AccessDeniedError, "credentials_refused"),
        (http.ConnectionError("reset"), TargetUnavailableError, "target_unreachable"),
        (http.ReadTimeout("late"), TargetUnavailableError, "target_unreachable"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_reason_decides_who_acts(error: Exception, kind: type[ReplicatorError], code: str) -> None:
    found = translate(error, "public.orders")
    assert isinstance(found, kind)
    assert found.code == code


def test_a_failed_guard_is_an_answer() -> None:
    assert isinstance(translate(refusal(400, "invalidQuery", f"{FENCED} at [2:8]")), FencedAnswer)


def test_missing_credentials_are_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    target = BigQueryTarget(config(), target_context(replicator="r", max_wait_s=0.0))
    assert [p.code for p in target.check([])] == ["credentials_refused"]
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    target = BigQueryTarget(
        config(credentials={"file": str(tmp_path / "missing.json")}), target_context(replicator="r", max_wait_s=0.0)
    )
    assert [p.code for p in target.check([])] == ["credentials_refused"]
