"""`plan FILE` on real servers: what it says of a start, how it knows it, and that it only reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from replicator.cli.entry import main
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase

ROWS = 3000
SMALL = 7
Database = ScratchDatabase | MysqlDatabase
Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Runs the command with a file of a database; `target` and `more` are blocks of the file."""
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)

    def run(
        database: Database,
        *options: str,
        target: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Result:
        monkeypatch.setenv("SOURCE_PASSWORD", database.server.password or "none")
        document = {
            "name": "shop",
            "source": {**database.source, "password": "${env:SOURCE_PASSWORD}", **(source or {})},
            "target": target or {"type": "delta", "path": str(tmp_path / "lake")},
            "tables": {"include": [f"{database.namespace}.*"]},
            **more,
        }
        file = tmp_path / "shop.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        return CliRunner().invoke(
            main, ["plan", str(file), "--sample-seconds", "60", "--count-seconds", "0.2", *options]
        )

    return run


@pytest.fixture(
    params=[
        "postgres",
        "mariadb",
        *(
            pytest.param(other, marks=pytest.mark.matrix)
            for other in ("embedded_postgres", "mysql", "mysql_without_gtids")
        ),
    ]
)
def filled(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database with a large table, a small one, an empty one and one without a key, on each kind of server."""
    server: PostgresServer | MysqlServer = request.getfixturevalue(request.param)
    with server.database() as database:
        database.execute(
            "CREATE TABLE large (id int PRIMARY KEY, a varchar(64), n numeric(12, 2))",
            "CREATE TABLE small (id int PRIMARY KEY, a varchar(64))",
            "CREATE TABLE none (id int PRIMARY KEY, a varchar(64))",
            "CREATE TABLE bare (a varchar(64))",
        )
        for table, rows in (("large", ROWS), ("small", SMALL)):
            more = ", 1.5" if table == "large" else ""
            values = ", ".join(f"({i}, 'text {i}'{more})" for i in range(rows))
            database.execute(f"INSERT INTO {table} VALUES {values}")
        database.execute("INSERT INTO bare VALUES " + ", ".join(f"('{i}')" for i in range(ROWS)))
        if isinstance(database, ScratchDatabase):
            database.execute("ALTER TABLE bare REPLICA IDENTITY FULL")
        # What the catalogue estimates is as of the last one.
        analyze = "ANALYZE" if isinstance(database, ScratchDatabase) else "ANALYZE TABLE large, small, none, bare"
        database.execute(analyze)
        yield database


def contents(database: Database) -> Mapping[str, Any]:
    """What a read must leave as it was: rows, and what lies in the server's log for others."""
    if isinstance(database, ScratchDatabase):
        return {
            "slots": database.execute("SELECT count(*) FROM pg_replication_slots"),
            "publications": database.execute("SELECT count(*) FROM pg_publication"),
        }
    return {"log": database.execute("SHOW BINARY LOGS")}


def test_what_a_start_takes_is_told_and_nothing_is_written(filled: Database, plan: Plan) -> None:
    before = contents(filled)
    answer = plan(filled, "--json", "--sample-rows", "100")
    assert answer.exit_code == 0, answer.output
    assert contents(filled) == before
    found = json.loads(answer.stdout)
    tables = {one["table"].split(".")[1]: one for one in found["tables"]}
    assert set(tables) == {"large", "small", "none", "bare"}
    assert {name: one["sampled_rows"] for name, one in tables.items()} == {
        "large": 100,
        "small": SMALL,
        "none": 0,
        "bare": 100,
    }
    # A table that the sample reads to its end is known exactly, a larger one by the catalogue.
    assert (tables["small"]["rows"]["value"], tables["small"]["rows"]["basis"]) == (SMALL, "measured")
    assert tables["large"]["rows"]["basis"] == "estimated"
    assert ROWS / 2 < tables["large"]["rows"]["value"] < ROWS * 2
    assert tables["none"]["rows"]["value"] == 0
    large, small = (tables[name] for name in ("large", "small"))
    assert large["snapshot_s"]["value"] > 0
    assert large["snapshot_s"]["basis"] == "estimated"
    assert "the first 100 rows" in large["snapshot_s"]["how"]
    assert small["snapshot_s"]["basis"] == "measured"
    assert large["journal_snapshot_bytes"]["value"] > small["journal_snapshot_bytes"]["value"] > 0
    assert large["target_bytes"]["value"] == large["journal_snapshot_bytes"]["value"]
    assert large["billed_bytes_per_day"] is None
    totals = found["totals"]
    assert totals["usd_per_day"] is None
    assert totals["log_bytes_per_day"]["value"] is not None
    assert found["sample"]["rows"] == 200 + SMALL


def test_the_terminal_has_a_table_the_sources_of_figures_and_one_line_of_verdict(
    database: ScratchDatabase, plan: Plan
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 50)", "ANALYZE")
    answer = plan(database)
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    assert any(line.startswith("public.t") for line in lines)
    assert "  rows: measured: the sample read the whole table" in lines
    assert any(line.startswith("Changes: ") for line in lines)
    assert any(line.startswith("Read from the source: 50 rows of 1 table") for line in lines)
    assert lines[-1].startswith("shop can start")


def test_what_refuses_a_start_refuses_the_plan_and_its_figures_are_shown(database: ScratchDatabase, plan: Plan) -> None:
    database.execute("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
    answer = plan(database)
    assert answer.exit_code == 2, answer.output
    assert "assessment_failed" in answer.stderr
    assert "blocking [" in answer.stderr
    assert "In all: 1 table" in answer.stdout
    assert "can start" not in answer.stdout
    found = json.loads(plan(database, "--json").stdout)
    assert found["is_blocked"]
    assert any(one["severity"] == "blocking" for one in found["findings"])


def test_a_server_that_cannot_be_reached_is_a_finding(database: ScratchDatabase, plan: Plan) -> None:
    answer = plan(database, "--json", source={"port": 1})
    assert answer.exit_code == 2
    found = json.loads(answer.stdout)
    assert (found["totals"], found["tables"], found["sample"]) == (None, [], None)


@pytest.mark.matrix
def test_a_limit_of_the_log_is_compared_with_its_growth(plan: Plan) -> None:
    settings = {"max_slot_wal_keep_size": "64MB"}
    with PostgresServer.distribution(settings=settings) as server, server.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        answer = plan(database, "--json")
    found = json.loads(answer.stdout)
    assert "max_slot_wal_keep_size is 64MB" in found["totals"]["log_pause_s"]["how"]


def test_an_option_of_one_kind_of_plan_is_refused_with_the_other(database: ScratchDatabase, plan: Plan) -> None:
    answer = plan(database, "--ddl", "DROP TABLE t", "--sample-rows", "5")
    assert answer.exit_code == 2
    assert "does not go together" in answer.stderr
