"""Nothing that a terminal would act on reaches one, no matter who wrote it."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.table import Table
from rich.text import Text

from replicator.cli import findings, show, verified
from replicator.cli.entry import Commands, main
from replicator.cli.output import CleanStream, clean_output
from replicator.model.deletion import Deletion
from replicator.model.documents.status import ErrorStatus
from replicator.model.errors import ConfigError, Problem
from replicator.model.schema import Column, TableId, TableSchema
from replicator.observability import configure_logging, get_logger, register_secret
from replicator.service.configuring.assess import Assessment
from replicator.service.status.objectives import Breach, BreachKind
from replicator.service.verify.check import document
from replicator.verify import Counts, Difference, Kind, Result, Verdict
from replicator_testbed.statuses import NOW, replicator_status, table_status

EVIL = "t\x1b]0;title\x07\x1b[31m\x9b2J\u202e\r\x08x"
SHOWN = "t?]0;title??[31m?2J???x"


def test_what_is_echoed_keeps_our_labels_only() -> None:
    raw = io.StringIO()
    stream = CleanStream(raw)
    label = click.style("error", fg="red")
    stream.write(f"{label} [x] {EVIL}\n{label} {label}")
    assert raw.getvalue() == f"{label} [x] {SHOWN}\n{label} ?[31merror?[0m"


@pytest.mark.parametrize("code", [1, 5, 7, 8, 30, 40, 90])
@pytest.mark.parametrize("word", ["error", "all"])
def test_others_hide_or_colour_no_word_at_the_beginning_of_a_line(code: int, word: str) -> None:
    raw = io.StringIO()
    CleanStream(raw).write(f"a\n\x1b[{code}m{word}\x1b[0m\n\x1b[31mall\x1b[0m\u061c\u2028\u2029")
    assert raw.getvalue() == f"a\n?[{code}m{word}?[0m\n?[31mall?[0m???"


def test_tables_and_texts_of_rich_are_cleaned_before_they_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.StringIO()
    console = show.terminal()
    console.file = raw
    console._force_terminal = True
    table = Table("name", box=None)
    table.add_row(EVIL)
    console.print(table, Text(EVIL, style="red"), soft_wrap=True)
    # rich itself takes out some of them.
    for left in ("\x1b]", "\x1b[31m\x9b", "\x07", "\x9b", "\u202e", "\r", "\x08"):
        assert left not in raw.getvalue()


def test_events_on_a_console_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    with clean_output():
        configure_logging("console")
        get_logger("x").warning(f"event {EVIL}", table=EVIL, **{f"name{EVIL}": 1})
    said = capsys.readouterr().err
    assert SHOWN in said
    for left in ("\x1b]", "\x07", "\x9b", "\u202e", "\r", "\x08"):
        assert left not in said


def test_the_errors_of_commands_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    with clean_output():
        show.error(ConfigError(EVIL, code="x", action=EVIL))
    assert "\x1b" not in capsys.readouterr().err


def test_a_terminal_is_told_nothing_by_a_name(replicator_home: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "replicator.cli", "validate", EVIL]
    done = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 1 << 16):
            said += data
    except OSError:
        pass  # how a terminal says that nobody has it open any more
    os.close(ours)
    assert done.wait() == 2
    assert SHOWN.encode() in said
    label = rb"\x1b\[31m[a-z]+\x1b\[0m"
    assert re.search(label, said)
    assert b"\x1b" not in re.sub(label, b"", said)


def test_the_traceback_of_a_bug_has_no_secret_and_nothing_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"{EVIL} canary-of-a-bug")

    register_secret("canary-of-a-bug")
    monkeypatch.setattr(Commands, "invoke", fail)
    with pytest.raises(SystemExit) as ended:
        main(["list"])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" in said
    assert f"RuntimeError: {SHOWN} ***" in said


@pytest.mark.usefixtures("replicator_home")
def test_metrics_are_printed() -> None:
    done = CliRunner().invoke(main, ["metrics"])
    assert done.exit_code == 0, done.output
    assert "# TYPE replicator_retries_total counter" in done.output


FORGED = "error [forged] all is well"
"""A line that nothing of ours prints: the second one of a table's name."""


def test_a_name_with_a_line_break_makes_no_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever tables are listed, and in findings, errors, logs and reports."""
    monkeypatch.setenv("COLUMNS", "300")
    name = f"t\n{FORGED}\tx"
    table = TableId("public", name)
    schema = TableSchema(table=table, columns=(Column(name=name, type=pa.int64(), source_type="int"),), key=(name,))
    odd = f"{table} is odd"
    problem = Problem(code="x", message=odd, table=str(table), location=f"{table}.{name}", action=f"DROP {name};\nGO")
    told = ErrorStatus(code="x", message=odd, action=f"replicator snapshot x {name}", at=NOW)
    failed = table_status(str(table), alarmed=True, error=told, kept_columns=(name,))
    status = replicator_status("r", tables=(failed,), error=told)
    verdict = Verdict(
        table=table, result=Result.DIFFERENT, position=5, rows_source=3, rows_target=2, counts=Counts(different=1),
        differences=(Difference(key={name: name}, kind=Kind.DIFFERENT, columns=(name,), source={name: name}, target={name: name}),),
        reason=odd, action=f"replicator snapshot x {name}", not_compared=(name,),
    )  # fmt: skip
    with clean_output():
        show.status(status)
        show.replicators([status], as_json=False)
        show.error(ConfigError(odd, code="x", table=str(table), action=f"replicator snapshot x {name}"))
        show.breaches([Breach(replicator="r", kind=BreachKind.STALE, message=f"{table} is late", table=str(table))])
        show.deletion("r", Deletion(removed=(f"table {table}",), kept=(str(table),), notes=(str(table),)))
        findings.assessment(Assessment(tables=[schema], left_out=[], problems=[problem], identity=None), "x.yaml")
        verified.table(verdict, document("r", [verdict], with_values=True).tables[0])
        click.echo(verified.markdown(document("r", [verdict], with_values=True)))
        configure_logging("console")
        get_logger("x").warning("event", table=str(table))
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert len([line for line in lines if "forged" in line]) > 15
    assert [line for line in lines if line.startswith(FORGED)] == []
