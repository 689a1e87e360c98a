"""What commands print of findings, and the script that fixes them."""

from __future__ import annotations

from dataclasses import replace

import click
import pyarrow as pa
import pytest

from replicator.cli import findings
from replicator.model.errors import Problem, Severity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.service.configuring import fixing
from replicator.service.configuring.assess import Assessment


def unreadable(table: str) -> Problem:
    return Problem(
        code="select_missing", message="the role may not read it", table=table, sql=(f"GRANT SELECT ON {table};",)
    )


ROLE = Problem(
    code="role_lacks_replication",
    message="it may not replicate",
    location="source.user",
    sql=("ALTER ROLE r REPLICATION;",),
)
HIDDEN = [
    Problem(
        code="schema_usage_missing",
        message="the role may not use its schema",
        table=t,
        sql=("GRANT USAGE ON SCHEMA s;",),
    )
    for t in ("s.a", "s.b", "s.c", "s.d")
]
BY_HAND = Problem(
    code="server_is_standby", message="the server is a standby", location="source.host", action="Name the primary."
)
WARNING = Problem(code="privilege_excess", message="too much", location="source.user", severity=Severity.WARNING)
OPTIONAL = Problem(
    code="ddl_trigger_missing",
    message="a trigger helps",
    location="source",
    sql=("CREATE EVENT TRIGGER t;",),
    severity=Severity.NOTICE,
)
FOUND = [ROLE, *HIDDEN, unreadable("s.a"), unreadable("s.b"), BY_HAND, WARNING, OPTIONAL]


def test_findings_that_say_the_same_are_one_with_all_its_locations() -> None:
    assert [click.unstyle(line) for line in findings.lines(FOUND)] == [
        "notice [ddl_trigger_missing] source: a trigger helps",
        "    → CREATE EVENT TRIGGER t;",
        "warning [privilege_excess] source.user: too much",
        "blocking [role_lacks_replication] source.user: it may not replicate",
        "    → ALTER ROLE r REPLICATION;",
        "blocking [schema_usage_missing] s.a, s.b, s.c, s.d: the role may not use its schema",
        "    → GRANT USAGE ON SCHEMA s;",
        "blocking [select_missing] s.a, s.b: the role may not read it",
        "    → For the statements: replicator validate FILE --sql",
        "blocking [server_is_standby] source.host: the server is a standby",
        "    → Name the primary.",
    ]


def test_a_program_of_many_lines_is_left_to_the_script() -> None:
    long = Problem(code="odd", message="it lacks a function", location="source", sql=("CREATE FUNCTION f()\nAS …;",))
    assert findings.lines([long])[1:] == ["    → For the statements: replicator validate FILE --sql"]


def test_of_many_locations_some_are_named() -> None:
    (line, _) = findings.lines([unreadable(f"s.t{number}") for number in range(30)])
    assert (
        click.unstyle(line)
        == "blocking [select_missing] s.t0, s.t1, s.t2, s.t3, s.t4, … (30): the role may not read it"
    )


def test_the_script_has_each_statement_once_in_order_and_what_is_optional_last() -> None:
    assert fixing.script("shop", [OPTIONAL, *FOUND]).splitlines() == [
        "-- shop: run this in the source as a superuser, connected to the database that is replicated.",
        "-- role_lacks_replication: source.user",
        "ALTER ROLE r REPLICATION;",
        "-- schema_usage_missing: s.a; schema_usage_missing: s.b; schema_usage_missing: s.c; schema_usage_missing: s.d",
        "GRANT USAGE ON SCHEMA s;",
        "-- select_missing: s.a",
        "GRANT SELECT ON s.a;",
        "-- select_missing: s.b",
        "GRANT SELECT ON s.b;",
        "",
        "-- Optional.",
        "-- ddl_trigger_missing: source",
        "CREATE EVENT TRIGGER t;",
    ]


def test_a_script_without_statements_says_so() -> None:
    assert fixing.script("shop", [BY_HAND]) == "-- shop: nothing that was found can be fixed by SQL.\n"


def test_what_is_blocking_ends_in_one_line_that_names_the_script() -> None:
    refused = findings.refusal(FOUND, "my shop.yaml")
    assert str(refused) == (
        "my shop.yaml cannot be replicated as configured: 8 blocking problems and 1 warning."
        " SQL fixes 7 of them: replicator validate 'my shop.yaml' --sql"
    )
    assert (
        str(findings.refusal([BY_HAND], "shop.yaml"))
        == "shop.yaml cannot be replicated as configured: 1 blocking problem."
    )


@pytest.mark.parametrize(
    ("severities", "rows", "text"),
    [
        ([], 48_200, "No problems found: 1 table, 48,200 rows estimated."),
        ([Severity.NOTICE], None, "No problems found: 1 table."),
        ([Severity.WARNING], 0, "No blocking problems found: 1 table, 0 rows estimated, 1 warning."),
        ([Severity.BLOCKING], 1, ""),
    ],
)
def test_validate_ends_with_what_it_found(
    severities: list[Severity], rows: int | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    column = Column(name="id", type=pa.int64(), source_type="bigint")
    schema = TableSchema(table=TableId("public", "t"), columns=(column,), key=("id",))
    problems = [Problem(code="odd", message="Odd.", severity=severity) for severity in severities]
    found = Assessment(tables=[schema], left_out=(), problems=problems, identity=None, estimated_rows=rows)
    findings.assessment(found, "shop.yaml")
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["public.t: 1 column, key id", *([text] if text else [])]


def test_what_host_and_target_both_find_is_one_problem() -> None:
    """As for the columns `Name` and `name`."""
    clash = Problem(code="column_names_clash", message="they differ only in case", table="s.a", action="Rename one.")
    other = replace(clash, table="s.b", location="s.b")
    found = Assessment(tables=(), left_out=(), problems=[clash, WARNING, other, replace(clash), WARNING], identity=None)
    assert found.problems == [clash, WARNING, other]
    assert "2 blocking problems and 1 warning" in findings.refusal(found.problems, "x.yaml").message
