"""The watermark: a transaction of ours after whose commit everything is visible that stood in the log before it.

Without GTIDs MySQL does not say which transactions of its log are visible. With `binlog_order_commits` they become
visible in the order in which they stand there. So once a transaction of ours has committed, everything is visible that
stood in the log before it did; and what comes after the end of the log as it is then is not visible to any read yet. The
transaction inserts a row and deletes it again: nothing stays in the table, which the user makes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pymysql

from replicator.model.errors import FatalError, Problem, SourceUnavailableError
from replicator.model.schema import TableId
from replicator_source_mysql.connecting.connection import Connection, Row, literal, quoted, quoted_table, rows_of
from replicator_source_mysql.connecting.errors import facts_of, number_of
from replicator_source_mysql.coordinates.lineage import NO_EVENT
from replicator_source_mysql.positions.file_position import WRAP, FilePosition
from replicator_source_mysql.positions.marks import log_status_statement

_READ_ONLY: Final = 1290
# No such database, table or column; and what we may not do.
_UNUSABLE: Final = frozenset({1044, 1049, 1054, 1142, 1143, 1146, 1364})
# Whatever completion_type says: nothing stays open after it.
_COMMIT: Final = "COMMIT AND NO CHAIN NO RELEASE"
_EVENTS_MAX: Final = 2_000
_BEGINS: Final = frozenset({"Anonymous_Gtid", "Gtid", "Gtid_tagged"})
_WITHIN: Final = (
    "Query",
    "Table_map",
    "Rows_query",
    "Write_rows",
    "Update_rows",
    "Delete_rows",
    "Transaction_payload",
    "Xid",
)


def creation(table: TableId) -> str:
    """The statements that make the table."""
    return (
        f"CREATE DATABASE IF NOT EXISTS {quoted(table.namespace)};"
        f" CREATE TABLE {quoted_table(table)} (mark CHAR(32) CHARACTER SET ascii NOT NULL PRIMARY KEY) ENGINE = InnoDB;"
    )


def grant(table: TableId, account: str) -> str:
    """The statement that lets an account use it."""
    return f"GRANT SELECT, INSERT, DELETE ON {quoted_table(table)} TO {account};"


def end_of_log(connection: Connection) -> FilePosition:
    """The end of the log as the server states it: nothing that lies after it is visible to anybody."""
    file, pos, *_ = rows_of(connection, log_status_statement(connection))[0]
    return FilePosition(file, int(pos))


def ordered_end_of_log(connection: Connection) -> FilePosition:
    """The same as `end_of_log`; verifies that positions in the log say what is visible.

    Raises:
        SourceUnavailableError: `binlog_order_commits` is off.
    """
    end = end_of_log(connection)
    # Behind the end: that it is switched off meanwhile is noticed.
    ((is_ordered,),) = rows_of(connection, "SELECT @@GLOBAL.binlog_order_commits")
    if not is_ordered:
        raise SourceUnavailableError(
            "binlog_order_commits is OFF: the order of the log does not show what a read sees.",
            code="commits_unordered",
            action="SET GLOBAL binlog_order_commits = ON; -- and in the server's option file; or switch GTIDs on.",
        )
    return end


def write_watermark(connection: Connection, table: TableId, *, commit: str = _COMMIT) -> FilePosition:
    """Commit one. Everything up to the returned position is visible to every read from now on.

    Args:
        connection: Without an open transaction; a consistent snapshot on it ends.
        table: `source.watermark_table`.
        commit: The statement that commits it, and may do more after that.

    Raises:
        SourceUnavailableError: `binlog_order_commits` is off.
        FatalError: The table is not there, or may not be written.
    """
    before = ordered_end_of_log(connection)
    mark = literal(secrets.token_hex(16))
    try:
        with connection.cursor() as cursor:
            # The session's default may be READ ONLY.
            cursor.execute("START TRANSACTION READ WRITE")
            cursor.execute(f"INSERT INTO {quoted_table(table)} (mark) VALUES ({mark})")  # noqa: S608 - quoted
            cursor.execute(f"DELETE FROM {quoted_table(table)} WHERE mark = {mark}")  # noqa: S608 - quoted
            cursor.execute(commit)
    except pymysql.MySQLError as error:
        if number_of(error) not in _UNUSABLE:
            raise
        raise FatalError(
            f"Without GTIDs a watermark is written into {table}, which does not exist or cannot be written: {facts_of(error)}.",
            code="watermark_table",
            action=f"{creation(table)} {grant(table, 'our account')}",
        ) from error
    return before


def verify_round_trip(connection: Connection, table: TableId) -> None:
    """Write a watermark and see that the log has grown by it.

    Raises:
        FatalError: It has not, or as `write_watermark`.
    """
    before = write_watermark(connection, table)
    if end_of_log(connection).position <= before.position:
        raise FatalError(
            f"A watermark was written into {table}, but it is not in the log.",
            code="watermark_table",
            action="Take its database out of binlog_ignore_db, or into binlog_do_db, or name another table under source.watermark_table.",
        )


def assess(connection: Connection, table: TableId, account: str) -> list[Problem]:
    """Problems that would keep a watermark from being written. Changes nothing."""
    kinds = rows_of(
        connection,
        "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        [table.namespace, table.name],
    )
    if kinds and kinds[0] != ("BASE TABLE", "InnoDB"):
        return [_problem(f"{table} is not an InnoDB table.", "Name another one under source.watermark_table.")]
    name = quoted_table(table)
    for statement in (f"INSERT INTO {name} (mark) VALUES ('')", f"DELETE FROM {name} WHERE mark = ''"):  # noqa: S608 - quoted
        try:
            rows_of(connection, f"EXPLAIN {statement}")
        except pymysql.MySQLError as error:
            number = number_of(error)
            if number == _READ_ONLY:
                return []  # a finding of its own
            if number not in _UNUSABLE:
                raise
            return [
                _problem(
                    f"Without GTIDs a watermark is written into {table}, which does not exist or cannot be written (error {number}).",
                    None,
                    creation(table),
                    grant(table, account),
                )
            ]
    return []


def _problem(message: str, action: str | None, *sql: str) -> Problem:
    return Problem(code="watermark_table", message=message, location="source.watermark_table", action=action, sql=sql)


# -- what lies between two ends ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """A transaction, as SHOW BINLOG EVENTS shows it. `is_opaque`: it may have changed any table."""

    begin: int
    tables: list[str] = field(default_factory=list)
    is_opaque: bool = False

    def may_touch(self, table: TableId) -> bool:
        return self.is_opaque or any(f"({table.namespace}.{table.name})" in text for text in self.tables)


def seen_but_for_others(
    connection: Connection, table: TableId, *, watermark: TableId, before: FilePosition, after: FilePosition
) -> FilePosition | None:
    """The position up to which everything is visible if nothing uncertain touched this table; None if something may have.

    A watermark was written after `before`, then a snapshot was opened, and then the log ended at `after`. All that
    the log has before the watermark is visible in the snapshot; what it has between that and `after` is uncertain.
    """
    if before.file != after.file:
        return None
    try:
        rows = rows_of(
            connection, f"SHOW BINLOG EVENTS IN {literal(before.file)} FROM {before.pos} LIMIT {_EVENTS_MAX}"
        )
    except pymysql.err.OperationalError as error:
        if number_of(error) != NO_EVENT:
            raise
        # It met an event after the end that is being written: what it had found is lost with the error.
        return None
    rows = [row for row in rows if int(row[1]) < after.pos]
    # All of it must be there, up to the end, which the server shows with 32 bits.
    is_whole = any((int(row[4]) - after.pos) % WRAP == 0 for row in rows)
    groups = _groups(rows) if is_whole else []
    if not groups:
        return None
    # The first of several is as good: what precedes it precedes ours.
    ours = 0 if len(groups) == 1 else next((i for i, g in enumerate(groups) if _is_of(g, watermark)), None)
    if ours is None or any(group.may_touch(table) for group in groups[ours + 1 :]):
        return None
    return FilePosition(after.file, groups[ours + 1].begin if ours + 1 < len(groups) else after.pos)


def _is_of(group: _Group, watermark: TableId) -> bool:
    return any(f"({watermark.namespace}.{watermark.name})" in text for text in group.tables)


def _groups(rows: Sequence[Row]) -> list[_Group]:
    """The transactions; empty if an event is unknown: it may be the beginning of one."""
    groups: list[_Group] = []
    for _, pos, kind, _, _, info in rows:
        if kind in _BEGINS:
            groups.append(_Group(int(pos)))
        elif not groups or not kind.startswith(_WITHIN):
            return []
        elif kind == "Table_map":
            groups[-1].tables.append(info)
        elif (kind == "Query" and info != "BEGIN") or kind == "Transaction_payload":
            groups[-1].is_opaque = True
    return groups
