"""`replicator verify`, from real databases to Delta and BigQuery's emulator: while rows change, and of a target that somebody changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.bigquery.emulator import PROJECT
from replicator_testbed.delta import slip_in_a_row
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.demo.sources import shop_of
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.target_tables import TargetTables, query
from replicator_testing.waiting import wait_until
from tests.faults.conftest import SMALL

if TYPE_CHECKING:
    from google.cloud.bigquery import Client
    from pyspark.sql import SparkSession

PAIRS = [
    ("postgresql", "duckdb"),
    *(pytest.param("postgresql", target, marks=pytest.mark.matrix) for target in ("delta", "bigquery")),
    *(
        pytest.param(kind, target, marks=pytest.mark.matrix)
        for kind in ("mariadb", "mysql", "sqlserver", "sqlserver_tracking")
        for target in ("delta", "bigquery")
    ),
]


@dataclass(frozen=True, kw_only=True)
class Somebody:
    """Who changes tables in the target by statements of SQL, in which `{table}` is one."""

    run: Callable[[str], object]
    path: Callable[[str], str]

    def changes(self, table: str, statement: str) -> None:
        """Run a statement."""
        self.run(statement.replace("{table}", self.path(table)))


@pytest.fixture
def somebody(rig: Rig, target: str, request: pytest.FixtureRequest) -> Somebody:
    """Changes the rig's target."""
    namespace = rig.database.namespace
    if target == "delta":
        spark: SparkSession = request.getfixturevalue("spark")
        return Somebody(run=spark.sql, path=lambda table: f"delta.`{rig.lake / namespace / table}`")
    if target == "duckdb":
        return Somebody(
            run=lambda statement: query(rig.duckdb, statement.replace(" EXCEPT (", " EXCLUDE ("), read_only=False),
            path=lambda table: f'"{namespace}"."{table}"',
        )
    client: Client = request.getfixturevalue("client")
    return Somebody(
        run=lambda statement: client.query(statement).result(),
        path=lambda table: f"`{PROJECT}.{rig.database.name}_{namespace}.{table}`",
    )


def verified(rig: Rig, *arguments: str, check: int) -> Any:
    """The document of `verify --json`, by table."""
    done = rig.command("verify", rig.name, *arguments, "--json", check=check)
    document = json.loads(done.stdout)
    assert (document["version"], document["name"]) == (1, rig.name)
    return {table["table"].partition(".")[2]: table for table in document["tables"]}


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "target"), PAIRS)
def test_both_sides_are_equal_while_rows_change(rig: Rig, writer: ShopWriter, kind: str) -> None:
    process = rig.start()
    rig.wait_for_status(is_streaming, process)
    # The snapshot was a moment ago: all rows were changed since then. A customer may get an id that is ten million higher.
    for scope, options in {
        "table": ["--since", "10m"],
        "sample": ["--sample", "90"],
        "keys": ["--keys", '{"id": 7}', "--keys", "10000007"],
    }.items():
        # Of the table without a key, each merge costs seconds of Spark: it is verified where nothing else is to be applied.
        found = verified(rig, rig.full_name("customers"), *options, check=0)
        assert {name: table["result"] for name, table in found.items()} == {"customers": "equal"}, kind
        assert all(table["rows_source"] == table["rows_target"] > 0 for table in found.values())
        assert [table["scope"] for table in found.values()] == [scope]
    before = writer.transactions
    wait_until(lambda: writer.transactions > before, "the writer continues")
    assert rig.stop(process) == 0, rig.output()


@pytest.mark.parametrize(("kind", "target"), PAIRS)
def test_what_somebody_changed_in_the_target_is_found_and_repaired(
    rig: Rig, somebody: Somebody, target_tables: TargetTables, tmp_path: Path, kind: str, target: str
) -> None:
    rig.may_alarm = True
    # Otherwise no worker runs: each command is one until it is done.
    process = rig.start() if target == "duckdb" else None
    if process:
        rig.wait_for_status(is_streaming, process)
        rig.settle(process)
    else:
        rig.catch_up()
    names = rig.database.columns("customers")
    text = next(name for name in names if name != "id" and "name" in name)
    somebody.changes("customers", f"UPDATE {{table}} SET {text} = concat({text}, ' ') WHERE id = 7")
    somebody.changes("customers", "DELETE FROM {table} WHERE id = 8")
    somebody.changes("customers", "INSERT INTO {table} SELECT 999999 AS id, * EXCEPT (id) FROM {table} WHERE id = 9")
    # Change tracking knows no table without a key.
    has_views = "page_views" in rig.tables
    if has_views:
        somebody.changes("page_views", "INSERT INTO {table} SELECT * FROM {table} LIMIT 1")

    report = tmp_path / "report.md"
    found = verified(rig, "--report", str(report), "--show-values", check=3)
    assert found["customers"]["counts"] == {"missing": 1, "extra": 1, "different": 1}
    assert not has_views or found["page_views"]["counts"] == {"missing": 0, "extra": 1, "different": 0}
    told = {(one["key"]["id"], one["kind"], tuple(one["columns"])) for one in found["customers"]["differences"]}
    assert told == {("7", "different", (text,)), ("8", "missing", ()), ("999999", "extra", ())}
    [seven] = [one for one in found["customers"]["differences"] if one["key"]["id"] == "7"]
    assert seven["target"][text] == seven["source"][text] + " "
    assert "different: id=7" in report.read_text()

    # While rows change: those of the customers are read again, the views get a new snapshot in place. Five transactions in a
    # second: each merge of the table without a key costs seconds of Spark.
    busy = shop_of(rig.database, SMALL, pause_s=0.2).writer()
    busy.start()
    try:
        found = verified(rig, "--repair", check=0)
    finally:
        busy.stop()
    assert {name: table["result"] for name, table in found.items()} == dict.fromkeys(rig.tables, "equal")
    repaired = found["customers"]["repaired"]
    # A change of one of these customers brings its whole row.
    assert (repaired["extra"], repaired["missing"] <= 1, repaired["different"] <= 1) == (1, True, True)
    assert not has_views or found["page_views"]["repaired"] == {"missing": 0, "extra": 1, "different": 0}
    # Another judge says so, too.
    process = process or rig.start()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}, kind


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["duckdb"])
def test_what_cannot_be_compared_is_told(rig: Rig, tmp_path: Path) -> None:
    assert "unknown_replicator" in rig.command("verify", "nobody", check=2).stderr
    rig.command("start", str(rig.file))
    assert "unknown_table" in rig.command("verify", rig.name, "none", check=2).stderr
    report = rig.command("verify", rig.name, "--report", str(tmp_path / "report.pdf"), check=2)
    assert "unknown_report" in report.stderr
    rig.command("pause", rig.name)
    paused = rig.command("verify", rig.name, check=1)
    assert f"replicator resume {rig.name}" in paused.stderr


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["duckdb", pytest.param("delta", marks=pytest.mark.matrix)])
def test_the_schedule_finds_what_somebody_changed_and_a_repair_clears_the_alarms(
    rig: Rig, target: str, request: pytest.FixtureRequest
) -> None:
    rig.may_alarm = True
    rig.tables = ("customers",)
    rig.extra += "verify: {every: 2s, rows_per_second: 1000000}\n"
    rig.write_yaml()
    process = rig.start()

    def is_proven(status: ReplicatorStatus) -> bool:
        return status.verify.result == "equal" and status.tables[0].alarms == ()

    def alarms_are(*codes: str) -> Callable[[ReplicatorStatus], bool]:
        return lambda status: {alarm.code for alarm in status.tables[0].alarms} == set(codes)

    rig.wait_for_status(is_proven, process)
    if target == "delta":
        slip_in_a_row(rig.lake / rig.database.namespace / "customers", id_=999_999)
    else:
        somebody: Somebody = request.getfixturevalue("somebody")
        somebody.changes(
            "customers", "INSERT INTO {table} SELECT 999999 AS id, * EXCEPT (id) FROM {table} WHERE id = 9"
        )
    found = rig.wait_for_status(alarms_are("verify_different"), process)
    assert (found.verify.result, found.verify.every_s, found.verify.tables_proven) == ("different", 2, 0)
    [alarm] = found.tables[0].alarms
    assert (alarm.count, alarm.action) == (1, f"Run `replicator verify rig {rig.full_name('customers')} --repair`.")
    if target == "delta":
        # The next batch tells that somebody else has committed.
        rig.database.execute("UPDATE customers SET id = id WHERE id = 7")
        rig.wait_for_status(alarms_are("target_changed", "verify_different"), process)
    verified(rig, "--repair", check=0)
    rig.wait_for_status(is_proven, process)
    assert rig.stop(process) == 0, rig.output()
