"""Asks a server how its change data capture behaves, and writes the answers in a form that two servers can be compared by.

We have no SQL Server. What we know of one stands in a model that our tests run on (`testbed/replicator_testbed/sqlserver`). This asks the
model and a real server the same questions (`probes`); where they answer differently, the model is wrong.

It works in a schema of its own and removes it. Positions in the log become numbers: 1 is the lowest of an answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pyodbc

from replicator_source_sqlserver.connecting.errors import number_of
from replicator_source_sqlserver.names import literal, quoted

SCHEMA: Final = "replicator_conformance"
FORMAT: Final = 1
"""Of the answers; a later one asks other questions."""
_POLL_S: Final = 0.2
_SERVER: Final = """
SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), CAST(SERVERPROPERTY('Edition') AS nvarchar(128)),
  CAST(SERVERPROPERTY('EngineEdition') AS int), d.collation_name, d.is_read_committed_snapshot_on, d.snapshot_isolation_state
FROM sys.databases d WHERE d.name = DB_NAME()
"""
_CHANGES: Final = (
    "SELECT [__$start_lsn], [__$command_id], [__$seqval], [__$operation], [__$update_mask]{columns} FROM cdc.{table}"
    " ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
)

Answer = Any
"""What JSON holds; a row is a list."""
Connect = Callable[[], pyodbc.Connection]
Say = Callable[[str], object]


class ConformanceError(Exception):
    """The questions cannot be asked, or the server gives no answer."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A question. `rule`: that of the model's README which the answer is about."""

    name: str
    rule: int
    ask: Callable[[Scratch], Mapping[str, Answer]]


class Scratch:
    """A schema on the server in which a probe makes what it needs, with two connections."""

    def __init__(self, first: pyodbc.Connection, second: pyodbc.Connection, *, timeout: timedelta) -> None:
        """Begin; `timeout` is how long the capture job may take."""
        self.first = first
        self.second = second
        self._timeout_s = timeout.total_seconds()

    def run(self, *statements: str, on: pyodbc.Connection | None = None) -> None:
        """Run statements; `{s}` in them is the schema."""
        for statement in statements:
            self.rows(statement, on=on)

    def rows(self, query: str, *parameters: Any, on: pyodbc.Connection | None = None) -> list[list[Any]]:
        """The rows of the last result of a statement."""
        rows: list[list[Any]] = []
        cursor = (on or self.first).cursor()
        try:
            cursor.execute(query.replace("{s}", SCHEMA), *parameters)
            while True:
                if cursor.description:
                    rows = [list(row) for row in cursor.fetchall()]
                if not cursor.nextset():
                    return rows
        finally:
            cursor.close()

    def value(self, query: str, *parameters: Any) -> Any:
        """The one value of a query."""
        return self.rows(query, *parameters)[0][0]

    def outcome(self, statement: str) -> str:
        """`done`, or the number of the error."""
        try:
            self.run(statement)
        except pyodbc.Error as error:
            number = number_of(error)
            if number is None:
                raise
            return f"error {number}"
        return "done"

    def table(self, name: str, columns: str, *, captured: str | None = "", behind: str = "") -> None:
        """Make a table and capture it; `captured`: further arguments of the procedure, None for no instance."""
        self.run(f"CREATE TABLE {{s}}.{quoted(name)} ({columns}){behind}")
        if captured is not None:
            self.run(self.enabling(name, captured))

    def enabling(self, name: str, more: str = "") -> str:
        """The statement that captures a table."""
        return (
            f"EXEC sys.sp_cdc_enable_table @source_schema = N'{{s}}', @source_name = {literal(name)}, @role_name = NULL,"
            f" @supports_net_changes = 0{more}"
        )

    def wait_for_capture(self) -> None:
        """Wait until everything that was committed before is in the change tables.

        Raises:
            ConformanceError: The capture job does not run.
        """
        self.run("INSERT INTO {s}.mark (n) VALUES (0)")
        wanted = self.value("SELECT MAX(id) FROM {s}.mark")
        until = time.monotonic() + self._timeout_s
        while not self.value("SELECT COUNT(*) FROM cdc.{s}_mark_CT WHERE id = ?", wanted):
            if time.monotonic() > until:
                raise ConformanceError(
                    f"the capture job has not captured a row for {self._timeout_s:.0f} s: SQL Server Agent must run, and the job"
                )
            time.sleep(_POLL_S)

    def changes(self, instance: str, *columns: str) -> list[list[Answer]]:
        """The rows of a change table in the order of the log.

        Each: number of its commit, of its command there, of its `__$seqval` there, operation, mask, and the values of the columns.
        """
        listed = "".join(f", {column}" for column in columns)
        rows = self.rows(_CHANGES.format(columns=listed, table=quoted(f"{instance.replace('{s}', SCHEMA)}_CT")))
        commits = _numbers(row[0] for row in rows)
        found = []
        for row in rows:
            same = [other for other in rows if other[0] == row[0]]
            commands, seqvals = _numbers(other[1] for other in same), _numbers(other[2] for other in same)
            found.append(
                [commits[row[0]], commands[row[1]], seqvals[row[2]], row[3], shown(row[4]), *map(shown, row[5:])]
            )
        return found

    @contextmanager
    def transaction(self, on: pyodbc.Connection | None = None) -> Iterator[None]:
        """A transaction that is committed at the end."""
        self.run("BEGIN TRANSACTION", on=on)
        yield
        self.run("COMMIT TRANSACTION", on=on)


def shown(value: Any) -> Answer:
    """A value of SQL Server in JSON: numbers that JSON may round, and everything else, become texts."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return "0x" + bytes(value).hex().upper()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def ask(
    connect: Connect, probes: Sequence[Probe], *, timeout: timedelta, say: Say = lambda _: None
) -> Mapping[str, Answer]:
    """Ask all questions, in a schema that is made and removed.

    Args:
        connect: Opens a connection in autocommit mode, as a member of db_owner (sysadmin if CDC is off for the database).
        probes: The questions.
        timeout: How long the capture job may take each time.
        say: Is told what is done.

    Raises:
        ConformanceError: The schema is there already, or the capture job does not run.
        pyodbc.Error: The server refuses what every server accepts.
    """
    first, second = connect(), connect()
    try:
        scratch = Scratch(first, second, timeout=timeout)
        if scratch.rows("SELECT 1 FROM sys.schemas WHERE name = N'{s}'"):
            raise ConformanceError(f"the schema {SCHEMA} exists: remove what an earlier run left with --remove")
        version, edition, engine, collation, versions, snapshot = scratch.rows(_SERVER)[0]
        enables = not scratch.value("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()")
        answers: dict[str, Answer] = {}
        try:
            if enables:
                scratch.run("EXEC sys.sp_cdc_enable_db")
            scratch.run("CREATE SCHEMA {s}")
            scratch.table("mark", "id int IDENTITY(1,1) NOT NULL PRIMARY KEY, n int")
            for probe in probes:
                say(probe.name)
                answers[probe.name] = _in_json({"rule": probe.rule, **probe.ask(scratch)})
        finally:
            _end_transactions(first, second)
            remove(scratch)
            if enables:
                scratch.run("EXEC sys.sp_cdc_disable_db")
    finally:
        first.close()
        second.close()
    return {
        "format": FORMAT,
        "server": {
            "version": version,
            "edition": edition,
            "engine": int(engine),
            "collation": collation,
            "reads_versions": bool(versions),
            "allows_snapshot": int(snapshot) == 1,
        },
        "answers": answers,
    }


def _end_transactions(*connections: pyodbc.Connection) -> None:
    for connection in connections:
        # One that was lost has none.
        with suppress(pyodbc.Error):
            connection.execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")


def remove(scratch: Scratch) -> None:
    """Remove the schema with everything in it; what is not there is no error."""
    tables = [row[0] for row in scratch.rows(
        "SELECT t.name FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id WHERE s.name = N'{s}' ORDER BY t.name"
    )]  # fmt: skip
    captured = set()
    if scratch.value("SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()"):
        captured = {row[0] for row in scratch.rows(
            "SELECT t.name FROM cdc.change_tables i JOIN sys.tables t ON t.object_id = i.source_object_id"
            " JOIN sys.schemas s ON s.schema_id = t.schema_id WHERE s.name = N'{s}'"
        )}  # fmt: skip
    for table in tables:
        if table in captured:
            scratch.run(
                f"EXEC sys.sp_cdc_disable_table @source_schema = N'{{s}}', @source_name = {literal(table)}, @capture_instance = N'all'"
            )
        scratch.run(f"DROP TABLE {{s}}.{quoted(table)}")
    for kind, view in (("SCHEME", "sys.partition_schemes"), ("FUNCTION", "sys.partition_functions")):
        if scratch.rows(f"SELECT 1 FROM {view} WHERE name = N'{{s}}'"):
            scratch.run(f"DROP PARTITION {kind} {{s}}")
    if scratch.rows("SELECT 1 FROM sys.schemas WHERE name = N'{s}'"):
        scratch.run("DROP SCHEMA {s}")


def _in_json(value: Any) -> Answer:
    if isinstance(value, Mapping):
        return {key: _in_json(one) for key, one in value.items()}
    return [_in_json(one) for one in value] if isinstance(value, list) else shown(value)


def to_json(document: Mapping[str, Answer]) -> str:
    """Text that can be compared line by line: a row is a line."""
    return _lines(document, "") + "\n"


def _lines(value: Answer, indent: str) -> str:
    deeper = indent + "  "
    if isinstance(value, Mapping):
        parts = [f"{deeper}{json.dumps(key)}: {_lines(one, deeper)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}" if parts else "{}"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + ",\n".join(deeper + json.dumps(row, ensure_ascii=False) for row in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _numbers(values: Iterator[Any]) -> dict[Any, int]:
    """Dense numbers from 1 by value."""
    ordered = sorted(set(values), key=lambda value: (value is not None, value))
    return {value: number for number, value in enumerate(ordered, start=1)}
