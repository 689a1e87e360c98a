"""Statistics of the server about tables and the log, for `replicator plan`. Only read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Final

import pymysql

from replicator.model.figures import Basis, Figure, unknown
from replicator.model.schema import TableId
from replicator.plugins.planning import SourceStatistics, TableStatistics
from replicator_source_mysql.assessment.server import retention
from replicator_source_mysql.connecting.connection import Connection, Row, rows_of
from replicator_source_mysql.connecting.errors import facts_of
from replicator_source_mysql.coordinates.lineage import file_sizes
from replicator_source_mysql.server import ServerFacts

_TABLES: Final = """
SELECT table_schema, table_name, table_rows, data_length FROM information_schema.tables WHERE (table_schema, table_name) IN ({names})
"""
_INSTRUMENT: Final = "SELECT enabled FROM performance_schema.setup_instruments WHERE name = 'wait/io/table/sql/handler'"
_IO_NAME: Final = "performance_schema.table_io_waits_summary_by_table"
_IO: Final = f"""
SELECT object_schema, object_name, count_insert + count_update + count_delete
FROM {_IO_NAME} WHERE object_type = 'TABLE' AND (object_schema, object_name) IN ({{names}})
"""  # noqa: S608 - our own names
_USER_NAME: Final = "information_schema.table_statistics"
_USER: Final = f"""
SELECT table_schema, table_name, rows_changed FROM {_USER_NAME} WHERE (table_schema, table_name) IN ({{names}})
"""  # noqa: S608 - our own names


def read_statistics(connection: Connection, facts: ServerFacts, tables: Sequence[TableId]) -> SourceStatistics:
    """Read them. Changes of rows are counted from the server's start on, if at all."""
    ((now,),) = rows_of(connection, "SELECT UTC_TIMESTAMP(6)")
    ((_, uptime),) = rows_of(connection, "SHOW GLOBAL STATUS LIKE 'Uptime'")
    at = now.replace(tzinfo=UTC)
    changes = _changes(connection, tables)
    size = int(facts.variables.get("max_binlog_total_size") or 0)
    kept = retention(facts)
    return SourceStatistics(
        at=at,
        tables={
            TableId(*row[:2]): TableStatistics(
                rows=_estimate(row[2], "table_rows"), bytes=_estimate(row[3], "data_length"), changes=changes(row)
            )
            for row in _of_tables(connection, _TABLES, tables)
        },
        changes_since=at - timedelta(seconds=int(uptime)),
        log_bytes=_log_bytes(connection),
        log_kept_bytes=size or None,
        log_kept_for=kept,
        log_kept_how=_kept(facts, size, kept),
    )


def _estimate(value: int | None, column: str) -> Figure:
    name = f"information_schema.tables.{column}"
    # InnoDB counts them from a few pages.
    return unknown(f"{name} is NULL") if value is None else Figure(float(value), Basis.ESTIMATED, name)


def _changes(connection: Connection, tables: Sequence[TableId]) -> Callable[[Row], Figure]:
    """Return a function that counts the changes of the table whose name begins a row."""
    names = "'performance_schema', 'userstat'"
    rows = rows_of(connection, f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})")
    is_on = {name.lower() for name, value in rows if value.upper() in {"ON", "1"}}
    try:
        if "performance_schema" in is_on:
            if rows_of(connection, _INSTRUMENT) != [("YES",)]:
                return lambda _: unknown("performance_schema does not count reads and writes of tables")
            return _counter(_of_tables(connection, _IO, tables), _IO_NAME)
        if "userstat" in is_on:
            return _counter(_of_tables(connection, _USER, tables), _USER_NAME)
    except pymysql.MySQLError as error:
        why = f"the server does not let this account read its counters: {facts_of(error)}"
        return lambda _: unknown(why)
    return lambda _: unknown("the server counts no changes of tables: performance_schema is OFF")


def _counter(rows: Sequence[Row], name: str) -> Callable[[Row], Figure]:
    counts: Mapping[TableId, int] = {TableId(*row[:2]): int(row[2]) for row in rows}
    # A table that nobody has used since the start is not among them.
    return lambda row: Figure(float(counts.get(TableId(*row[:2]), 0)), Basis.COUNTED, name)


def _of_tables(connection: Connection, query: str, tables: Sequence[TableId]) -> list[Row]:
    if not tables:
        return []
    names = ", ".join(["(%s, %s)"] * len(tables))
    rows = rows_of(connection, query.format(names=names), [part for t in tables for part in (t.namespace, t.name)])
    # Names are compared without case by the catalogue, and with it by us.
    return [row for row in rows if TableId(*row[:2]) in set(tables)]


def _log_bytes(connection: Connection) -> Figure:
    try:
        return Figure(float(sum(file_sizes(connection).values())), Basis.COUNTED, "SHOW BINARY LOGS")
    except pymysql.MySQLError as error:
        return unknown(f"the server does not show its log: {facts_of(error)}")


def _kept(facts: ServerFacts, size: int, kept: timedelta | None) -> str:
    if size:
        return f"max_binlog_total_size is {size}"
    if kept is None:
        return "the server does not remove its log by itself"
    names = ("binlog_expire_logs_seconds", "expire_logs_days")
    name = next(name for name in names if float(facts.variables.get(name) or 0))
    return f"{name} is {facts.variables[name]}"
