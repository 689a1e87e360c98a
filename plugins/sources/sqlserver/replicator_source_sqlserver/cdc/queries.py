"""Queries of change data capture: how far it has come, which commits there are, and where tables changed their shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from replicator_source_sqlserver.catalogue.tables import CaptureInstance
from replicator_source_sqlserver.cdc.change_table import change_table
from replicator_source_sqlserver.cdc.changes import Image
from replicator_source_sqlserver.cdc.instances import Reading
from replicator_source_sqlserver.cdc.marks import TOKEN
from replicator_source_sqlserver.cdc.pages import Commit
from replicator_source_sqlserver.cdc.position import NEVER, Position
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.lsn import previous_lsn
from replicator_source_sqlserver.names import quoted

_COUNTED_AT_ONCE: Final = 100

# The query inside sys.fn_cdc_get_max_lsn(). As this is asked again and again, the function is not called: it was suspected to be
# recompiled each time, with locks that others wait for (estuary/connectors #3475).
_HEAD: Final = "SELECT TOP (1) m.start_lsn FROM cdc.lsn_time_mapping m ORDER BY m.start_lsn DESC"
_COMMITS: Final = """
SELECT TOP ({limit}) m.start_lsn, m.tran_end_time FROM cdc.lsn_time_mapping m
WHERE m.start_lsn > ? AND m.start_lsn <= ? ORDER BY m.start_lsn
"""
_SETTLED: Final = """
SELECT TOP (1) m.start_lsn FROM cdc.lsn_time_mapping m
WHERE m.tran_end_time < DATEADD(MILLISECOND, ?, GETDATE()) ORDER BY m.start_lsn DESC
"""
_FIRST: Final = "SELECT TOP (1) m.start_lsn FROM cdc.lsn_time_mapping m ORDER BY m.start_lsn"
_NEWEST_START: Final = """
SELECT TOP (1) t.start_lsn FROM cdc.change_tables t WHERE t.start_lsn IS NOT NULL ORDER BY t.start_lsn DESC
"""
_BEGUN: Final = """
SELECT TOP (1) CAST(t.create_date AS datetime2(3)) FROM cdc.change_tables t WHERE t.start_lsn <= ? ORDER BY t.create_date DESC
"""
_STARTS: Final = "SELECT t.object_id, t.source_object_id, t.start_lsn FROM cdc.change_tables t"
# Rows of instances that were disabled stay in the table.
_DEFINITIONS: Final = """
SELECT h.ddl_lsn, h.source_object_id FROM cdc.ddl_history h JOIN cdc.change_tables t ON t.object_id = h.object_id
WHERE h.ddl_lsn > ? AND h.ddl_lsn <= ? ORDER BY h.ddl_lsn
"""
_BETWEEN: Final = "SELECT TOP (1) m.start_lsn FROM cdc.lsn_time_mapping m WHERE m.start_lsn > ? AND m.start_lsn < ?"
_UP_TO: Final = "SELECT TOP (1) m.start_lsn FROM cdc.lsn_time_mapping m WHERE m.start_lsn <= ?"
# Rows may be wide, and commits huge: no more is looked at than a page can have.
_COUNTS: Final = (
    "SELECT {number}, s.[__$start_lsn], COUNT(*) FROM (SELECT TOP ({limit}) [__$start_lsn] FROM {table}"
    " WHERE [__$start_lsn] > ? AND [__$start_lsn] <= ? ORDER BY [__$start_lsn]) AS s GROUP BY s.[__$start_lsn]"
)
# Both are times of the server's clock.
_AGE: Final = "SELECT TOP (1) m.tran_end_time, GETDATE() FROM cdc.lsn_time_mapping m ORDER BY m.start_lsn DESC"
_NEWEST_TOKEN: Final = (
    f"SELECT TOP (1) [__$start_lsn], [__$command_id], {quoted(TOKEN)} FROM {{table}}"
    f" WHERE [__$operation] IN ({Image.INSERTED:d}, {Image.AFTER:d}) ORDER BY [__$start_lsn] DESC, [__$command_id] DESC"
)
_CLOCKS: Final = "SELECT GETDATE(), GETUTCDATE()"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStart:
    """The first commit of which an instance of a table has changes; None until the capture job has met the statement that made it."""

    source: int
    start_lsn: bytes | None


def head(connection: Connection) -> bytes | None:
    """Read the position of the capture job; None if it never ran."""
    found = connection.rows(_HEAD)
    return bytes(found[0][0]) if found and any(found[0][0]) else None


def commits(connection: Connection, after: bytes, upto: bytes, limit: int) -> list[Commit]:
    """Read the first commits after a position, and entries without a transaction, in order."""
    return [
        Commit(lsn=bytes(lsn), moment=moment)
        for lsn, moment in connection.rows(_COMMITS.format(limit=limit), [after, upto])
    ]


def settled(connection: Connection, seconds: float) -> bytes | None:
    """Read the last commit, or entry without one, that is older than `seconds` by the server's clock; None if there is none."""
    rows = connection.rows(_SETTLED, [-round(seconds * 1000)])
    return bytes(rows[0][0]) if rows else None


def age(connection: Connection) -> float | None:
    """Read the age, in seconds by the server's clock, of the last commit that the capture job has met; None if it met none."""
    rows: list[Any] = connection.rows(_AGE)
    return (rows[0][1] - rows[0][0]).total_seconds() if rows else None


def beginning(connection: Connection) -> bytes | None:
    """Read the position before everything that was captured; None if no instance has begun."""
    if rows := connection.rows(_FIRST):
        return previous_lsn(bytes(rows[0][0]))
    rows = connection.rows(_NEWEST_START)
    return bytes(rows[0][0]) if rows else None


def position_at(connection: Connection, lsn: bytes) -> Position:
    """Return the position after a commit, with the instances that have begun by then."""
    rows = connection.rows(_BEGUN, [lsn])
    return Position(lsn=lsn, instances_until=rows[0][0] if rows else NEVER)


def starts(connection: Connection) -> Mapping[int, InstanceStart]:
    """Read the capture instances that there are, by the number of their change tables."""
    return {
        int(number): InstanceStart(source=int(source), start_lsn=None if start is None else bytes(start))
        for number, source, start in connection.rows(_STARTS)
    }


def definitions(connection: Connection, after: bytes, upto: bytes) -> Sequence[tuple[bytes, int]]:
    """Read where tables were altered: positions, and the number of the table, in order."""
    return [(bytes(lsn), int(source)) for lsn, source in connection.rows(_DEFINITIONS, [after, upto])]


def has_none_between(connection: Connection, after: bytes, before: bytes) -> bool:
    """Return whether it is certain that nothing was captured between two positions.

    It is certain as long as there is an entry at or before the first: cleanup deletes entries from the lowest on.
    """
    is_empty = not connection.rows(_BETWEEN, [after, before])
    # Asked afterwards: if it is still there, so was everything after it.
    return is_empty and bool(connection.rows(_UP_TO, [after]))


def counts(connection: Connection, wanted: Sequence[Reading], limit: int) -> Mapping[tuple[int, bytes], int]:
    """Count the rows that each commit has in each reading, by the reading's number and the commit's position.

    Of each reading the first `limit` rows are counted. Where it has as many, the last commit may have more, and others may follow.
    """
    found = {}
    for start in range(0, len(wanted), _COUNTED_AT_ONCE):
        part = list(enumerate(wanted))[start : start + _COUNTED_AT_ONCE]
        query = " UNION ALL ".join(
            _COUNTS.format(number=number, table=change_table(reading.instance.name), limit=limit)
            for number, reading in part
        )
        parameters = [value for _, reading in part for value in (reading.after, reading.upto)]
        for number, lsn, count in connection.rows(query, parameters):
            found[int(number), bytes(lsn)] = int(count)
    return found


def tokens(connection: Connection, reading: Reading) -> Sequence[tuple[bytes, str]]:
    """Read the tokens that were written into the mark table, in the order of commits."""
    query = (
        f"SELECT [__$start_lsn], {quoted(TOKEN)} FROM {change_table(reading.instance.name)}"
        f" WHERE [__$start_lsn] > ? AND [__$start_lsn] <= ? AND [__$operation] IN ({Image.INSERTED:d}, {Image.AFTER:d})"
        f" ORDER BY [__$start_lsn], [__$command_id]"
    )
    rows: list[Any] = connection.rows(query, [reading.after, reading.upto])
    return [(bytes(lsn), token) for lsn, token in rows if token is not None]


def newest_token(connection: Connection, instances: Sequence[CaptureInstance]) -> str | None:
    """Read the last captured token of the mark table; None if no instance has one."""
    found: list[tuple[bytes, int, str | None]] = [
        (bytes(lsn), command, token)
        for instance in instances
        for lsn, command, token in connection.rows(_NEWEST_TOKEN.format(table=change_table(instance.name)))
    ]
    return max(found, key=lambda row: row[:2])[-1] if found else None


def zone(connection: Connection) -> timedelta:
    """Read the offset of the server's clock, in which change data capture has its times, from UTC."""
    local, utc = connection.rows(_CLOCKS)[0]
    return timedelta(minutes=round((local - utc) / timedelta(minutes=1)))
