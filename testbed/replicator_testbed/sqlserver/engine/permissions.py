"""Who may do what: owners may do everything; others what was granted to them. A denial counts more than either."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from replicator_testbed.sqlserver.engine.names import TableFacts
from replicator_testbed.sqlserver.outcomes import SqlError

EVERYWHERE: Final = 0
"""The number that permissions of the server and of the database have in place of an object_id."""
_DATABASE_STATE: Final = ("VIEW DATABASE STATE", "VIEW DATABASE PERFORMANCE STATE")
_STATE: Final = {
    ("sys", "dm_server_services"): (
        ("VIEW SERVER STATE", "VIEW SERVER SECURITY STATE"),
        300,
        "on object 'server', database 'master'",
    ),
    ("sys", "dm_cdc_errors"): (_DATABASE_STATE, 262, "in database"),
    ("sys", "dm_cdc_log_scan_sessions"): (_DATABASE_STATE, 262, "in database"),
}
"""Views that need one of two permissions, the first of which has the second as its part, with the number of the error.

DOC for the permissions: the second ones came with SQL Server 2022. K for the numbers.
"""
_OPEN_SCHEMAS: Final = frozenset({"sys", "cdc"})
"""Whose views everybody may read, except change tables [DOC; LAB for those of cdc]."""


class Permissions:
    """The permissions of one database. Thread-safe."""

    def __init__(self, execute: Callable[[str, Iterable[Any]], Any], database: str) -> None:
        """Begin with nobody; `execute` runs a statement of PostgreSQL."""
        self._execute = execute
        self._database = database
        self._lock = threading.Lock()
        self._owners: set[str] = set()
        self._entries: dict[tuple[str, str, int], bool] = {}

    def set_owner(self, login: str, *, is_owner: bool) -> None:
        """Put a user into db_owner, or take it out."""
        with self._lock:
            (self._owners.add if is_owner else self._owners.discard)(login)
            self._execute("DELETE FROM sqlserver.owners WHERE login = %s", [login])
            if is_owner:
                self._execute("INSERT INTO sqlserver.owners VALUES (%s)", [login])

    def change(self, login: str, permissions: Collection[str], number: int, *, to: bool | None) -> None:
        """Grant (True), deny (False) or revoke (None): each takes back what was said before of the same [DOC: GRANT]."""
        with self._lock:
            for permission in permissions:
                entry = (login, permission, number)
                self._entries.pop(entry, None)
                self._execute(
                    "DELETE FROM sqlserver.permissions WHERE login = %s AND permission = %s AND object_id = %s", entry
                )
                if to is not None:
                    self._entries[entry] = to
                    self._execute("INSERT INTO sqlserver.permissions VALUES (%s, %s, %s, %s)", [*entry, not to])

    def is_owner(self, login: str) -> bool:
        """Whether a user is in db_owner."""
        with self._lock:
            return login in self._owners

    def may(self, login: str, permission: str, numbers: Collection[int]) -> bool:
        """Whether a user has a permission on an object (its number and that of its schema), or everywhere."""
        with self._lock:
            said = [self._entries.get((login, permission, number)) for number in numbers]
            return False not in said and (login in self._owners or True in said)

    def _is_azure(self) -> bool:
        """Whether it is Azure SQL Database, where statements reach no other database [DOC: T-SQL differences of Azure SQL Database]."""
        return bool(self._execute("SELECT 1 FROM sqlserver.database WHERE sqlserver.engine() = 5", []))

    def check(self, login: str, permission: str, table: TableFacts) -> None:
        """Refuse what a statement may not do with a table.

        Raises:
            SqlError: 229, or what a view of the server's state answers.
        """
        if table.schema == "msdb" and self._is_azure():
            raise SqlError(
                40515,
                f"Reference to database and/or server name in 'msdb.dbo.{table.name}' is not supported.",
                severity=15,
            )
        needed = _STATE.get((table.schema, table.name))
        if needed is not None:
            wanted, number, where = needed
            if not any(self.may(login, one, [EVERYWHERE]) for one in wanted):
                named = f" '{self._database}'" if where == "in database" else ""
                raise SqlError(number, f"{wanted[0]} permission was denied {where}{named}.", severity=14)
            return
        if table.schema in _OPEN_SCHEMAS and not table.is_table:
            return
        if not self.may(login, permission, [table.oid, -table.schema_id]):
            raise SqlError(
                229,
                f"The {permission} permission was denied on the object '{table.name}',"
                f" database '{self._database}', schema '{table.schema}'.",
                state=5,
                severity=14,
            )
