"""`plan --ddl` on real servers: what it says of a statement, before anybody executes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from replicator.cli.entry import main
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.postgresql.servers import ScratchDatabase

TABLE = "CREATE TABLE t (id int PRIMARY KEY, a varchar(20), n int)"


def plan(
    database: ScratchDatabase | MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> Result:
    """Run the command with a file of the database."""
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    monkeypatch.setenv("SOURCE_PASSWORD", database.server.password or "none")
    document = {
        "name": "shop",
        "source": {**database.source, "password": "${env:SOURCE_PASSWORD}"},
        "target": {"type": "delta", "path": str(tmp_path / "lake")},
        "tables": {"include": [f"{database.namespace}.t"]},
    }
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return CliRunner().invoke(main, ["plan", str(file), *options])


@pytest.fixture
def mysql_or_mariadb(request: pytest.FixtureRequest) -> MysqlServer:
    server: MysqlServer = request.getfixturevalue(request.param)
    return server


def check(database: ScratchDatabase | MysqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask about one statement, and see that it was not executed."""
    database.execute(TABLE)
    before = database.columns("t")
    statement = f"ALTER TABLE {database.namespace}.t ADD b varchar(9) DEFAULT 'x', DROP a"
    answer = plan(database, tmp_path, monkeypatch, "--json", "--ddl", statement)
    assert answer.exit_code == 0, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    (table,) = found["tables"]
    assert (table["table"], table["is_replicated"]) == (f"{database.namespace}.t", True)
    assert [(one["change"], one["policy"]) for one in table["policies"]] == [
        ("add_column", "apply"),
        ("drop_column", "keep"),
    ]
    assert "add column b (string); rows that are there get 'x'" in table["effects"]
    assert "keep column a with its values; rows that come later have NULL there" in table["effects"]
    assert [column["name"] for column in table["before"]["columns"]] == before
    assert [column["name"] for column in table["after"]["kept"]] == ["a"]
    assert database.columns("t") == before, "nothing was executed"
    refused = plan(database, tmp_path, monkeypatch, "--ddl", f"FROBNICATE {database.namespace}.t")
    assert (refused.exit_code, "ddl_not_understood" in refused.stderr) == (2, True)


def test_a_statement_is_rehearsed_on_postgresql(
    database: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(database, tmp_path, monkeypatch)
    typed = f"ALTER TABLE {database.namespace}.t ALTER n TYPE text"
    lines = plan(database, tmp_path, monkeypatch, "--ddl", typed).stdout.splitlines()
    assert "    policy: change_type: stop (default)" in lines
    assert lines[-1] == "Nothing was executed."
    missing = plan(database, tmp_path, monkeypatch, "--ddl", "ALTER TABLE nowhere ADD b int")
    assert missing.exit_code == 2
    assert "there is no such table" in missing.stderr
    assert "the table fails" not in missing.stderr, "the server refuses it"
    default = plan(database, tmp_path, monkeypatch, "--ddl", "ALTER TABLE t ALTER n SET DEFAULT 1")
    assert "    policy: change_default: apply (default)" in default.stdout.splitlines()
    assert "    target: nothing changes" in default.stdout.splitlines()


@pytest.mark.parametrize(
    "mysql_or_mariadb", ["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)], indirect=True
)
def test_a_statement_is_rehearsed_on_mysql(
    mysql_or_mariadb: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mysql_or_mariadb.database() as database:
        check(database, tmp_path, monkeypatch)
