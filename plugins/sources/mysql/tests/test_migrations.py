"""Statements of migration tools, on real servers: each is understood, and the next rows in the log have what was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import pymysql
import pytest

from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase

from .migrations import MIGRATIONS, Case

Make = Callable[..., MysqlSource]

_LIMITS: Final = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
_STRICT: Final = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_WORDS: Final = {
    DDLOperation.TRUNCATE_TABLE: "truncate",
    DDLOperation.DROP_TABLE: "drop",
    DDLOperation.CREATE_TABLE: "create",
}


def _word(event: DDLEvent) -> str:
    if event.operation is DDLOperation.ALTER_TABLE:
        return "unclear" if event.schema is None else "rows" if event.fill is None else "alter"
    return _WORDS[event.operation]


def _columns(schema: TableSchema) -> list[Any]:
    return [(c.name, c.type, c.nullable, c.source_type, c.comment) for c in schema.columns]


def _in_any_text(columns: list[Any]) -> list[Any]:
    """TEXT that gets another character set may become the next larger type; that depends on the one that it had."""
    return [(*column[:3], column[3].replace("medium", ""), *column[4:]) for column in columns]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tool", MIGRATIONS)
def test_each_statement_is_followed(mysql_database: MysqlDatabase, source_of: Make, tool: str) -> None:
    flavor = mysql_database.server.flavor
    cases = {
        TableId(mysql_database.name, f"t{number}"): case
        for number, case in enumerate(MIGRATIONS[tool])
        if case.only in {"", flavor}
    }
    mysql_database.execute("CREATE TABLE p (id INT PRIMARY KEY)")
    mysql_database.execute(*(case.table.format(t=table.name, p="p") for table, case in cases.items()))
    source = source_of(mysql_database.server, unrepresentable="null")
    schemas = {table: found.schema for table, found in source.describe(list(cases)).items()}
    offset = source.prepare(list(cases), is_first=True)
    problems: list[str] = []
    with closing(mysql_database.connect()) as session, session.cursor() as cursor:
        for table, case in cases.items():
            text = case.text.format(t=table.name, p="p")
            # Its key is then known from the log.
            problems.append(_execute(cursor, f"INSERT INTO {table.name} () VALUES ()", sql_mode=""))
            problems.append(_execute(cursor, f"DELETE FROM {table.name}", sql_mode=""))
            mode = "" if "0000-00-00" in text else _STRICT
            problems.append(_execute(cursor, text, sql_mode=mode))
            if case.events != "drop":
                problems.append(_execute(cursor, f"INSERT INTO {table.name} () VALUES ()", sql_mode=""))
    events, rows = _read(source, offset, schemas)
    catalogue = source.describe(list(cases))
    problems += [
        _problem(table, case, events[table], rows.get(table), schemas[table], catalogue)
        for table, case in cases.items()
    ]
    assert not list(filter(None, problems)), "\n".join(filter(None, problems))


def _execute(cursor: Any, text: str, *, sql_mode: str) -> str:
    """Execute a statement; return what is wrong with it."""
    cursor.execute(f"SET SESSION sql_mode = '{sql_mode}'")
    try:
        cursor.execute(text)
    except pymysql.err.MySQLError as error:
        return f"{text}: {error}"
    return ""


def _read(
    source: MysqlSource, offset: Any, schemas: dict[TableId, TableSchema]
) -> tuple[dict[TableId, list[DDLEvent]], dict[TableId, TableSchema]]:
    """The events of each table, and the shape of its last rows."""
    events: dict[TableId, list[DDLEvent]] = {table: [] for table in schemas}
    rows: dict[TableId, TableSchema] = {}
    mark = source.mark()
    with closing(source.open_log(offset, schemas)) as reader:
        while True:
            batch = reader.pull(_LIMITS)
            assert not batch.table_errors
            for event in batch.ddl:
                events[event.table].append(event)
            rows |= {changes.schema.table: changes.schema for changes in batch.changes}
            if mark in batch.marks:
                return events, rows


def _problem(
    table: TableId,
    case: Case,
    events: list[DDLEvent],
    last: TableSchema | None,
    first: TableSchema,
    catalogue: Any,
) -> str:
    """What is not as it should be; empty if nothing is."""
    told = " ".join(map(_word, events))
    if told != case.events:
        return f"{case.text}: {told or 'nothing'} instead of {case.events or 'nothing'}"
    if "drop" in told or "create" in told:
        return ""
    found = catalogue[table].schema
    said = next((event.schema for event in reversed(events) if event.schema is not None), first)
    assert last is not None
    shown = [_columns(schema) for schema in (said, found, last)]
    if "CONVERT" in case.text:
        shown = list(map(_in_any_text, shown))
    if not shown[0] == shown[1] == shown[2]:
        return f"{case.text}: {Counter(shown[0]) - Counter(shown[1])} {Counter(shown[1]) - Counter(shown[0])}"
    if not said.key == found.key == last.key:
        return f"{case.text}: keys {said.key} {found.key} {last.key}"
    return ""


def test_there_are_many() -> None:
    assert sum(map(len, MIGRATIONS.values())) > 180
