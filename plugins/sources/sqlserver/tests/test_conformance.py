"""The conformance script on the model: its answers are those of the file that real servers are compared with.

After a change of the model that is meant: `python -m replicator_testbed.sqlserver.conformance.model` writes
`tests/conformance_of_the_model.json`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.conformance import __main__ as command
from replicator_testbed.sqlserver.conformance.asking import SCHEMA, ConformanceError, Probe, Scratch, ask, to_json
from replicator_testbed.sqlserver.conformance.model import answering_model
from replicator_testbed.sqlserver.conformance.probes import PROBES
from replicator_testbed.sqlserver.conformance.types import TYPES
from replicator_testbed.sqlserver.conformance.verifying import MORE
from replicator_testbed.sqlserver.drivers import Driver, connect, connection_string
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.waiting import PATIENCE

KNOWN = Path(__file__).with_name("conformance_of_the_model.json")
TIMEOUT = timedelta(seconds=120)


@pytest.fixture(scope="module")
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with answering_model(postgres) as model:
        yield model


def dsn(model: SqlServerModel) -> str:
    return connection_string(Driver.FREETDS, model.address)


def few(*names: str) -> Sequence[Probe]:
    return [probe for probe in PROBES if probe.name in names]


def left(model: SqlServerModel) -> list[Any]:
    """What is left of the script: its schema, and that CDC is on."""
    connection = connect(Driver.FREETDS, model.address)
    try:
        found = connection.execute(
            f"SELECT name FROM sys.schemas WHERE name IN ('{SCHEMA}', 'cdc') UNION ALL SELECT name FROM sys.partition_schemes"
            " UNION ALL SELECT name FROM sys.partition_functions"
        ).fetchall()
        return [row[0] for row in found]
    finally:
        connection.close()


@pytest.mark.matrix
@pytest.mark.parametrize("driver", Driver)
def test_the_model_answers_as_the_file_says(model: SqlServerModel, driver: Driver) -> None:
    answers = ask(lambda: connect(driver, model.address), PROBES, timeout=TIMEOUT)
    assert to_json(answers).splitlines() == KNOWN.read_text(encoding="utf-8").splitlines()
    assert left(model) == []


@pytest.mark.matrix
def test_a_model_that_was_just_served_differs_where_the_manual_says(postgres: PostgresServer) -> None:
    with SqlServerModel(postgres) as model:
        model.capture.start()
        asked = ask(lambda: connect(Driver.FREETDS, model.address), PROBES, timeout=TIMEOUT)
    answers, known = json.loads(to_json(asked))["answers"], json.loads(KNOWN.read_text(encoding="utf-8"))["answers"]
    differing = [name for name in known if answers[name] != known[name]]
    assert differing == ["large values", "special columns", "snapshots", "tracking: snapshots"]
    manual = Path(__file__).parents[4] / "docs" / "sources" / "sqlserver.md"
    named = ", ".join(f"`{name}`" for name in differing[:-1])
    assert f"differs in {named} and `{differing[-1]}`" in manual.read_text(encoding="utf-8")


def test_every_rule_of_capture_is_asked_about() -> None:
    assert {probe.rule for probe in PROBES} == {1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 18, 20, 21, 22, 23, 26, 27}


@pytest.mark.matrix
def test_another_answer_is_shown_and_the_exit_code_is_1(
    model: SqlServerModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PROBES", few("commits", "without a key"))
    mine = tmp_path / "mine.json"
    assert command.main([dsn(model), "--output", str(mine)]) == 0
    document = json.loads(mine.read_text())
    document["server"]["version"] = "13.0"
    mine.write_text(to_json(document))
    assert command.main([dsn(model), "--compare", str(mine)]) == 0
    document["answers"]["commits"]["one position in both tables"] = 0
    mine.write_text(to_json(document))
    capsys.readouterr()
    assert command.main([dsn(model), "--compare", str(mine)]) == 1
    shown = capsys.readouterr()
    assert '+      "one position in both tables": 1,' in shown.err
    assert json.loads(shown.out)["answers"]["commits"]["one position in both tables"] == 1


@pytest.mark.matrix
def test_a_schema_that_is_there_is_left_alone_until_it_is_to_be_removed(
    model: SqlServerModel, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(Driver.FREETDS, model.address)
    connection.execute(f"CREATE SCHEMA {SCHEMA}")
    connection.execute(f"CREATE TABLE {SCHEMA}.kept (id int)")
    assert command.main([dsn(model)]) == 2
    assert "--remove" in capsys.readouterr().err
    assert connection.execute(f"SELECT COUNT(*) FROM {SCHEMA}.kept").fetchval() == 0
    connection.close()
    assert command.main([dsn(model), "--remove"]) == 0
    assert left(model) == []


@pytest.mark.matrix
def test_what_was_made_is_removed_after_a_failure(model: SqlServerModel) -> None:
    def fail(s: Scratch) -> dict[str, Any]:
        s.table("t", "id int NOT NULL PRIMARY KEY")
        s.run("BEGIN TRANSACTION", "INSERT INTO {s}.t VALUES (1)", on=s.second)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(lambda: connect(Driver.FREETDS, model.address), [Probe("p", 1, fail)], timeout=TIMEOUT)
    assert left(model) == []


@pytest.mark.matrix
def test_a_database_that_is_captured_stays_so(model: SqlServerModel) -> None:
    connection = connect(Driver.FREETDS, model.address)
    connection.execute("EXEC sys.sp_cdc_enable_db")
    ask(lambda: connect(Driver.FREETDS, model.address), few("commits"), timeout=TIMEOUT)
    assert left(model) == ["cdc"]
    connection.execute("EXEC sys.sp_cdc_disable_db")
    connection.close()


@pytest.mark.matrix
def test_a_capture_job_that_does_not_run_ends_the_script(postgres: PostgresServer) -> None:
    with SqlServerModel(postgres) as model:
        with pytest.raises(ConformanceError, match="SQL Server Agent"):
            ask(lambda: connect(Driver.FREETDS, model.address), few("commits"), timeout=timedelta(seconds=0))
        assert left(model) == []


@pytest.mark.matrix
def test_a_server_that_refuses_is_no_traceback(model: SqlServerModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([dsn(model).replace("UID=app", "UID=nobody")]) == 2
    assert "18456" in capsys.readouterr().err


def test_the_help_says_that_no_real_server_was_used() -> None:
    program = [sys.executable, "-m", command.__name__, "--help"]
    text = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60 * PATIENCE).stdout
    assert "never ran this on a real SQL Server" in text


@pytest.mark.matrix
def test_an_error_without_a_number_is_no_answer(model: SqlServerModel) -> None:
    connection = connect(Driver.FREETDS, model.address)
    scratch = Scratch(connection, connection, timeout=TIMEOUT)
    connection.close()
    with pytest.raises(pyodbc.Error):
        scratch.outcome("SELECT 1")


def test_texts_of_datetime_are_read_whatever_the_language() -> None:
    """'2024-02-29 01:02' is read in the order of the session's language: error 242 with a German login [DOC: datetime]."""
    texts = [text for kind, *both in (*TYPES, *MORE) if kind in {"datetime", "smalldatetime"} for text in both]
    assert len(texts) == 6
    assert [text for text in texts if not re.fullmatch(r"'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}'", text)] == []
