"""Errors of tables and change tables that our account may no longer read: only these tables fail, and continue once it may.

The catalogue has only what an account may see. A captured table that is missing there has not been dropped: its instances would be, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from replicator.model.errors import THEN_BY_ITSELF, CurableError, SourceUnavailableError, TableError
from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue.tables import CaptureInstance
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.names import quoted, quoted_table
from replicator_source_sqlserver.remedies import change_table

CODE: Final = "select_missing"
_UNREADABLE: Final = """
SELECT t.object_id FROM cdc.change_tables t
WHERE COALESCE(HAS_PERMS_BY_NAME(N'[cdc].' + QUOTENAME(t.capture_instance + N'_CT'), N'OBJECT', N'SELECT'), 0) = 0
"""
_IS_CAPTURED: Final = "SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()"
_CAPTURED: Final = "SELECT DISTINCT t.source_object_id FROM cdc.change_tables t"


def read_unreadable(connection: Connection) -> frozenset[int]:
    """Read the numbers of the change tables that our account may not read."""
    return frozenset(int(number) for (number,) in connection.rows(_UNREADABLE))


def denied(table: TableId, instances: Sequence[CaptureInstance], user: str) -> TableError:
    """The error of a table whose changes our account, `user`, may not read."""
    names = [change_table(instance.name) for instance in instances]
    grants = " ".join(f"GRANT SELECT ON {name} TO {quoted(user)};" for name in names)
    return CurableError(
        f"its change table {', '.join(names)} may not be read.",
        code=CODE,
        table=str(table),
        action=f"{grants} {THEN_BY_ITSELF}",
    )


def read_captured(connection: Connection) -> frozenset[int]:
    """Read the numbers of the tables that are captured, also of those that our account may not see."""
    if not connection.rows(_IS_CAPTURED)[0][0]:
        return frozenset()
    return frozenset(int(number) for (number,) in connection.rows(_CAPTURED))


def hidden(table: TableId, user: str) -> TableError:
    """The error of a table that our account, `user`, may not even see: to it the catalogue looks as if the table had been dropped."""
    return CurableError(
        "it is captured, but the account may not see it.",
        code=CODE,
        table=str(table),
        action=f"GRANT SELECT ON {quoted_table(table)} TO {quoted(user)}; {THEN_BY_ITSELF}",
    )


def verify_some_readable(errors: Mapping[TableId, TableError], tables: Collection[TableId]) -> None:
    """Verify that not all of several tables are denied: that is one cause, which is often granted again, and fails none of them.

    Raises:
        SourceUnavailableError: All are denied.
    """
    is_denied = all(error.code == CODE for error in errors.values())
    if len(tables) > 1 and is_denied and errors.keys() == set(tables):
        raise SourceUnavailableError(
            f"Replicator may no longer read any of the {len(tables)} tables, or of their change tables.",
            code=CODE,
            action="GRANT SELECT on them, as `replicator validate` prints it.",
        )
