"""Dry run of a statement: the events that it would bring. The catalogue is read, and nothing is executed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from replicator.model.errors import ConfigError, TableError
from replicator.model.events import DDLEvent
from replicator.model.schema import TableId, TableSchema
from replicator_source_mysql.catalogue import discovery
from replicator_source_mysql.connecting.connection import Connection, rows_of
from replicator_source_mysql.ddl.alterations import Alteration, alteration
from replicator_source_mysql.ddl.statements import Effect, TableEffect, effects
from replicator_source_mysql.events import Query
from replicator_source_mysql.log.statements import event_of, refusal
from replicator_source_mysql.server import ServerFacts
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader, shown

_DEFINING: Final = frozenset({"ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE"})
# Bits of the SQL mode that the log has with each statement, by the names of the server's variable.
_MODES: Final = {
    name: 1 << bit
    for bit, name in {
        0: "REAL_AS_FLOAT", 1: "PIPES_AS_CONCAT", 2: "ANSI_QUOTES", 3: "IGNORE_SPACE", 4: "IGNORE_BAD_TABLE_OPTIONS",
        5: "ONLY_FULL_GROUP_BY", 6: "NO_UNSIGNED_SUBTRACTION", 7: "NO_DIR_IN_CREATE", 8: "POSTGRESQL", 9: "ORACLE", 10: "MSSQL",
        11: "DB2", 12: "MAXDB", 13: "NO_KEY_OPTIONS", 14: "NO_TABLE_OPTIONS", 15: "NO_FIELD_OPTIONS", 16: "MYSQL323", 17: "MYSQL40",
        18: "ANSI", 19: "NO_AUTO_VALUE_ON_ZERO", 20: "NO_BACKSLASH_ESCAPES", 21: "STRICT_TRANS_TABLES", 22: "STRICT_ALL_TABLES",
        23: "NO_ZERO_IN_DATE", 24: "NO_ZERO_DATE", 25: "ALLOW_INVALID_DATES", 26: "ERROR_FOR_DIVISION_BY_ZERO", 27: "TRADITIONAL",
        28: "NO_AUTO_CREATE_USER", 29: "HIGH_NOT_PRECEDENCE", 30: "NO_ENGINE_SUBSTITUTION", 31: "PAD_CHAR_TO_FULL_LENGTH",
        33: "SIMULTANEOUS_ASSIGNMENT", 34: "TIME_ROUND_FRACTIONAL",
    }.items()
} | {"EMPTY_STRING_IS_NULL": 1 << 32, "TIME_TRUNCATE_FRACTIONAL": 1 << 32}  # fmt: skip
# A mode that has no name here: types may have other names in it.
_UNKNOWN_MODE: Final = 1 << 40


def rehearse(connection: Connection, facts: ServerFacts, statement: str) -> Sequence[DDLEvent]:
    """The events that the log would bring if a session with the server's own SQL mode executed a statement now.

    A table that is named without a database is the one of this name, if only one database has it.

    Raises:
        ConfigError: `ddl_not_understood`: it defines no table, or two tables may be meant.
        TableError: `ddl_not_understood`: it would fail this table.
    """
    is_lower_case = facts.lower_case_table_names != 0
    sql_mode = _sql_mode(connection)
    tables = {s.table for s in discovery.list_tables(connection, watermark=TableId("", "")) if s.left_out is None}
    query = Query("", statement, sql_mode)
    if not _defines(query, facts):
        raise ConfigError(f"It defines no table: {shown(query, facts.flavor)}", code="ddl_not_understood")
    query = Query(_database(query, tables, facts), statement, sql_mode)
    found = effects(query, tables, flavor=facts.flavor, is_lower_case=is_lower_case)
    described = discovery.read_tables(connection, [effect.table for effect in found], may_see_storage=False)
    events = []
    for effect in found:
        catalogue = described.get(effect.table)
        altered = None
        if effect.effect is Effect.ALTER:
            altered = _altered(effect, catalogue.schema if catalogue is not None else None, facts)
        event = event_of(effect, altered, statement)
        if event is None or (effect.effect is Effect.ALTER and altered is None):
            raise _not_understood(effect, query, facts)
        events.append(event)
    return events


def _sql_mode(connection: Connection) -> int:
    ((names,),) = rows_of(connection, "SELECT @@GLOBAL.sql_mode")
    return sum(_MODES.get(name, _UNKNOWN_MODE) for name in names.split(",") if name)


def _defines(query: Query, facts: ServerFacts) -> bool:
    reader = Reader(query, facts.flavor, is_lower_case=False)
    try:
        while reader.peek().word == "SET":  # SET STATEMENT … FOR
            while not reader.is_at_end and not reader.skip("FOR"):
                reader.take()
        return reader.take().word in _DEFINING
    except NotUnderstoodError:
        return False


def _database(query: Query, tables: Collection[TableId], facts: ServerFacts) -> str:
    """The database of the tables that the statement names without one; empty if there are none."""
    bare = {TableId("", table.name) for table in tables}
    found = effects(query, bare, flavor=facts.flavor, is_lower_case=facts.lower_case_table_names != 0)
    named = {effect.table.name for effect in found if effect.effect is not Effect.UNCLEAR}
    choices = [{table.namespace for table in tables if table.name == name} for name in named]
    databases = set.intersection(*choices) if choices else set()
    if choices and len(databases) != 1:
        raise ConfigError(
            f"It names {', '.join(sorted(named))} without a database, and {len(databases) or 'no'} databases have all of them:"
            f" {shown(query, facts.flavor)}",
            code="ddl_not_understood",
            action="Write DATABASE.TABLE.",
        )
    return databases.pop() if databases else ""


def _altered(effect: TableEffect, schema: TableSchema | None, facts: ServerFacts) -> Alteration | None:
    if effect.columns is None or schema is None:
        return None
    return alteration(schema, effect.columns, after=0, flavor=facts.flavor)


def _not_understood(effect: TableEffect, query: Query, facts: ServerFacts) -> TableError:
    text = shown(query, facts.flavor)
    if effect.effect is Effect.STATEMENT:
        return refusal(effect, text)
    return TableError(
        f"This statement would not be understood, and the table would fail: {text}",
        code="ddl_not_understood",
        table=str(effect.table),
        action="Write it in other words, or in several statements; or plan for `replicator ddl accept NAME TABLE` after it.",
    )
