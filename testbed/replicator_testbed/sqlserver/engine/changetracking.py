"""Change Tracking of the model: switched on and off, asked by CHANGETABLE, guarded where a table's definition changes, and cleaned up."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Final

from replicator_testbed.sqlserver.engine.batches import Statement
from replicator_testbed.sqlserver.engine.ddl import Cursor
from replicator_testbed.sqlserver.engine.names import Names, TableFacts, quoted, text, unbracketed
from replicator_testbed.sqlserver.engine.types import reference
from replicator_testbed.sqlserver.outcomes import SqlError

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database

VIEW: Final = "VIEW CHANGE TRACKING"
"""The permission that CHANGETABLE needs of its table, besides SELECT [DOC: CHANGETABLE; rule 24]."""
_NAME: Final = r"(?:\[(?:[^\]]|\]\])*\]|\w+)"
_CHANGES: Final = re.compile(
    rf"\bCHANGETABLE\s*\(\s*CHANGES\s+(?P<table>{_NAME}(?:\s*\.\s*{_NAME})*)\s*,\s*(?P<since>-?\d+|@\w+)\s*\)",
    re.IGNORECASE,
)
_PART: Final = re.compile(_NAME)
_UNITS: Final = ("MINUTES", "HOURS", "DAYS")
_RETENTION: Final = (2, "DAYS")
"""The default [DOC: ALTER DATABASE SET options]."""


class ChangeTracking:
    """Change Tracking of one database."""

    def __init__(self, model: Database) -> None:
        self._model = model

    # -- statements ----------------------------------------------------------------------------------------------------

    def alter_database(self, statement: Statement, cursor: Cursor) -> list[str]:
        """What stands behind ALTER DATABASE … SET CHANGE_TRACKING, as statements of PostgreSQL."""
        is_on = bool(self._model.execute("SELECT 1 FROM sqlserver.ct_database"))
        wanted = is_on
        if cursor.take("="):
            wanted = cursor.take("ON")
            if not wanted:
                cursor.expect("OFF")
            if wanted and is_on:
                raise SqlError(5088, f"Change tracking is already enabled for database '{self._model.name}'.")
        if not wanted:
            if self._model.execute("SELECT 1 FROM sqlserver.ct_tables LIMIT 1"):
                raise SqlError(
                    22115, f"Change tracking is enabled for one or more tables in database '{self._model.name}'."
                )
            return ["DELETE FROM sqlserver.ct_database"]
        settings = self._settings(cursor)
        if cursor.word:
            raise SqlError(102, f"The model does not run {statement.text}.", severity=15)
        made = (
            []
            if is_on
            else [f"INSERT INTO sqlserver.ct_database VALUES (true, {_RETENTION[0]}, {text(_RETENTION[1])})"]
        )
        return [*made, *(f"UPDATE sqlserver.ct_database SET {setting}" for setting in settings)]

    def _settings(self, cursor: Cursor) -> list[str]:
        found: list[str] = []
        if not cursor.take("("):
            return found
        while not cursor.take(")"):
            if cursor.take("CHANGE_RETENTION", "="):
                number, unit = int(cursor.token().text), cursor.token().word
                unit = unit if unit.endswith("S") else f"{unit}S"
                if unit not in _UNITS:
                    raise cursor.wrong()
                found.append(f"retention_period = {number}, retention_units = {text(unit)}")
            else:
                cursor.expect("AUTO_CLEANUP", "=")
                found.append(f"is_auto_cleanup_on = {cursor.token().word == 'ON'}")
            cursor.take(",")
        return found

    def alter_table(self, table: TableFacts, cursor: Cursor, *, enables: bool) -> list[str]:
        """ALTER TABLE … ENABLE or DISABLE CHANGE_TRACKING, as statements of PostgreSQL."""
        is_tracked = self.is_tracked(table)
        if not enables:
            if not is_tracked:
                raise SqlError(4998, f"Change tracking is not enabled on table '{table.name}'.")
            return self.before_drop(table)
        if not self._model.execute("SELECT 1 FROM sqlserver.ct_database"):
            raise SqlError(4995, f"Change tracking is not enabled for the database '{self._model.name}'.")
        if is_tracked:
            raise SqlError(4996, f"Change tracking is already enabled for table '{table.name}'.")
        keys = self._keys(table)
        if not keys:
            raise SqlError(
                4997,
                f"Cannot enable change tracking on table '{table.name}'. Change tracking requires a primary key on the table.",
            )
        tracks_columns = cursor.take("WITH", "(", "TRACK_COLUMNS_UPDATED", "=") and cursor.token().word == "ON"
        now = "sqlserver.change_tracking_current_version()"
        return [
            f"INSERT INTO sqlserver.ct_tables VALUES ({table.oid}, {tracks_columns}, {now}, 0, {now})",
            *self._side_table(table, keys),
        ]

    def _side_table(self, table: TableFacts, keys: list[str]) -> list[str]:
        side, function = f"sqlserver.change_tracking_{table.oid}", _function(table.oid)
        names = ", ".join(quoted(key) for key in keys)
        old, new = (", ".join(f"(${number}).{quoted(key)}" for key in keys) for number in (1, 2))
        columns = ", ".join(f"{quoted(k)} {reference(kind)}" for k in keys if (kind := table.columns[k.lower()].type))
        return [
            f"CREATE TABLE {side} AS SELECT NULL::xid8 AS xid, 0::bigint AS serial, ''::text AS operation, {names}"
            f" FROM {table.reference} WITH NO DATA",
            f"CREATE TRIGGER change_tracking AFTER INSERT OR UPDATE OR DELETE ON {table.reference} FOR EACH ROW"
            f" EXECUTE FUNCTION sqlserver.ct_note({text(old)}, {text(new)})",
            f"""CREATE FUNCTION {function}(since bigint) RETURNS TABLE ("SYS_CHANGE_VERSION" bigint,
              "SYS_CHANGE_CREATION_VERSION" bigint, "SYS_CHANGE_OPERATION" sqlserver."nchar(1)",
              "SYS_CHANGE_COLUMNS" sqlserver."varbinary(128)", "SYS_CHANGE_CONTEXT" sqlserver."varbinary(128)", {columns})
            STABLE LANGUAGE sql AS $body$
              SELECT max(m.version), max(m.version) FILTER (WHERE s.operation = 'I'),
                CASE WHEN (array_agg(s.operation ORDER BY s.serial DESC))[1] = 'D' THEN 'D'
                  WHEN bool_or(s.operation = 'I') THEN 'I' ELSE 'U' END, NULL::bytea, NULL::bytea, {names}
              FROM {side} s JOIN sqlserver.ct_commits m ON m.xid = s.xid WHERE m.version > since GROUP BY {names}
              HAVING NOT ((SELECT hides_passing FROM sqlserver.ct_doubts) AND (array_agg(s.operation ORDER BY s.serial))[1] = 'I'
                AND (array_agg(s.operation ORDER BY s.serial DESC))[1] = 'D')
            $body$""",
        ]

    def hide_passing_rows(self) -> None:
        """A row that came and went since the version that is asked for is not told: what is, is relative to that version [rule 21, K]."""
        self._model.execute("UPDATE sqlserver.ct_doubts SET hides_passing = true")

    def rewritten(self, query: str, names: Names, login: str) -> str:
        """A query with each CHANGETABLE(CHANGES …) as the function of PostgreSQL that answers it.

        Raises:
            SqlError: 22105, the table is not tracked; 229, the account may not see its changes.
        """

        def function(found: re.Match[str]) -> str:
            parts = [unbracketed(part) for part in _PART.findall(found["table"])]
            catalog, schema, name = ("", "", *parts)[-3:]
            table = names.table(names.schema(catalog, schema), name)
            if not self.is_tracked(table):
                raise SqlError(22105, f"Change tracking is not enabled on table '{table.schema}.{table.name}'.")
            for permission in ("SELECT", VIEW):
                self._model.permissions.check(login, permission, table)
            return f"{_function(table.oid)}({found['since']})"

        return _CHANGES.sub(function, query) if "changetable" in query.lower() else query

    # -- guards --------------------------------------------------------------------------------------------------------

    def is_tracked(self, table: TableFacts) -> bool:
        """Whether its changes are tracked."""
        return bool(self._model.execute("SELECT 1 FROM sqlserver.ct_tables WHERE object_id = %s", [table.oid]))

    def check_key(self, table: TableFacts, constraint: str) -> None:
        """The key of a tracked table cannot be dropped [DOC: rule 23; the number: K]."""
        is_key = self._model.execute(
            "SELECT 1 FROM pg_catalog.pg_constraint WHERE conrelid = %s AND lower(conname) = lower(%s) AND contype = 'p'",
            [table.oid, constraint],
        )
        if is_key and self.is_tracked(table):
            raise SqlError(4929, f"Cannot alter the table '{table.name}' because it is enabled for change tracking.")

    def check_key_column(self, table: TableFacts, column: str) -> None:
        """A key column of a tracked table cannot be altered [DOC: rule 23; the number: K]."""
        if self.is_tracked(table) and column.lower() in {key.lower() for key in self._keys(table)}:
            raise SqlError(
                4922, f"ALTER TABLE ALTER COLUMN {column} failed because one or more objects access this column."
            )

    def check_switch(self, table: TableFacts) -> None:
        """SWITCH is refused [DOC: rule 23; the number: K]."""
        if self.is_tracked(table):
            raise SqlError(
                4900,
                f"The ALTER TABLE SWITCH statement failed for table '{table.name}': change tracking is enabled on it.",
            )

    def before_drop(self, table: TableFacts) -> list[str]:
        """What goes with a table that is dropped, or tracked no longer."""
        if not self.is_tracked(table):
            return []
        return [
            f"DELETE FROM sqlserver.ct_tables WHERE object_id = {table.oid}",
            f"DROP TRIGGER change_tracking ON {table.reference}",
            f"DROP FUNCTION {_function(table.oid)}",
            f"DROP TABLE sqlserver.change_tracking_{table.oid}",
        ]

    def truncated(self, table: TableFacts) -> list[str]:
        """TRUNCATE is not tracked: what is known of the table is reset "as if change tracking has just been enabled" [DOC: rule 22].

        So it has no version of its own. That the server keeps its table of the changes nobody says; it is the harder case [K].
        """
        if not self.is_tracked(table):
            return []
        now = "sqlserver.change_tracking_current_version()"
        return [
            f"DELETE FROM sqlserver.change_tracking_{table.oid}",
            f"UPDATE sqlserver.ct_tables SET begin_version = {now}, min_valid_version = {now} WHERE object_id = {table.oid}",
        ]

    def _keys(self, table: TableFacts) -> list[str]:
        rows = self._model.execute(
            "SELECT a.attname FROM pg_catalog.pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at)"
            " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
            " WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.at",
            [table.oid],
        )
        return [row[0] for row in rows]

    # -- cleanup -------------------------------------------------------------------------------------------------------

    def raise_min_valid(self, version: int, table: str | None = None) -> None:
        """The first half of cleanup: the lowest valid version of every table of dbo, or of one, rises [DOC: rule 22]."""
        self._model.execute(
            "UPDATE sqlserver.ct_tables SET min_valid_version = %s, cleanup_version = %s WHERE min_valid_version < %s"
            " AND (%s::text IS NULL OR object_id = sqlserver.object_id(%s::text))",
            [version, version, version, table, table],
        )

    def delete_below(self) -> None:
        """The second half: changes that no valid version asks for are deleted."""
        for number, version in self._model.execute("SELECT object_id, min_valid_version FROM sqlserver.ct_tables"):
            self._model.execute(
                f"DELETE FROM sqlserver.change_tracking_{number} s USING sqlserver.ct_commits m WHERE m.xid = s.xid AND m.version <= %s",
                [version],
            )

    def clean_up(self, now: dt.datetime) -> None:
        """What AUTO_CLEANUP does at some time after the retention: everything that is older goes [DOC: rule 22].

        Args:
            now: In UTC, without a zone.
        """
        rows = self._model.execute(
            "SELECT retention_period, retention_units FROM sqlserver.ct_database WHERE is_auto_cleanup_on"
        )
        for number, unit in rows:
            oldest = now - dt.timedelta(**{unit.lower(): number})
            ((version,),) = self._model.execute(
                "SELECT coalesce(max(version), 0) FROM sqlserver.ct_commits WHERE commit_time < %s", [oldest]
            )
            self.raise_min_valid(version)
            self.delete_below()


def _function(number: int) -> str:
    return f"sqlserver.changes_{number}"
