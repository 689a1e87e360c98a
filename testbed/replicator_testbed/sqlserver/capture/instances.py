"""Capture instances: made, described and dropped by the procedures of CDC, and guarded where a table's definition changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.capture import jobs
from replicator_testbed.sqlserver.engine.names import ColumnFacts, TableFacts, quoted, text
from replicator_testbed.sqlserver.engine.types import column_type, reference
from replicator_testbed.sqlserver.outcomes import Notice, Outcome, Rows, SqlError
from replicator_testbed.sqlserver.sqltypes import SPATIAL, WIDE_TEXTS, SqlType, TypeName

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database
    from replicator_testbed.sqlserver.engine.session import Session

INSTANCES_MAX: Final = 2
_NAME_MAX: Final = 100
PUBLICATION: Final = "sqlserver_cdc"
_ENABLE_SCRIPT: Final = files("replicator_testbed.sqlserver.engine") / "sql" / "04_enable_cdc.sql"
_SCHEMA: Final = "cdc"
_SMALL: Final = frozenset({TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT})
Arguments = Mapping[str, Any]
"""A procedure's values by the names of its parameters, in small letters, with the at sign."""
Procedure = Callable[["Session", Arguments], list[Outcome]]


class Described:
    """A procedure and the names of its parameters, in order."""

    def __init__(self, run: Procedure, *parameters: str) -> None:
        self.run = run
        self.parameters = parameters


class Cdc:
    """CDC of one database."""

    def __init__(self, model: Database) -> None:
        self._model = model
        self.procedures: Mapping[str, Described] = {
            "sp_cdc_enable_db": Described(self._enable_db),
            "sp_cdc_disable_db": Described(self._disable_db),
            "sp_cdc_enable_table": Described(
                self._enable_table,
                *("@source_schema", "@source_name", "@role_name", "@capture_instance", "@supports_net_changes"),
                *("@index_name", "@captured_column_list", "@filegroup_name", "@allow_partition_switch"),
            ),
            "sp_cdc_disable_table": Described(
                self._disable_table, "@source_schema", "@source_name", "@capture_instance"
            ),
            "sp_cdc_cleanup_change_table": Described(
                self._clean_table, "@capture_instance", "@low_water_mark", "@threshold"
            ),
            "sp_cdc_help_change_data_capture": Described(self._help, "@source_schema", "@source_name"),
            **{name: Described(run, *parameters) for name, (run, parameters) in jobs.PROCEDURES.items()},
        }

    # -- guards --------------------------------------------------------------------------------------------------------

    def is_captured(self, table: TableFacts) -> bool:
        """Whether a table has an instance."""
        return bool(self._instances(table))

    def check_truncate(self, table: TableFacts) -> None:
        """TRUNCATE of a captured table is refused [LAB: rule 7]."""
        if self._instances(table):
            raise SqlError(
                4711,
                f"Cannot truncate table '{table.name}' because it is published for replication or enabled for Change Data"
                " Capture.",
            )

    def check_switch(self, table: TableFacts) -> None:
        """SWITCH is refused where an instance of a partitioned table was made with @allow_partition_switch = 0 [DOC: rule 10]."""
        if any(not allowed for _, allowed in self._instances(table)):
            raise SqlError(
                22895, f"The partitions of '{table.name}' cannot be switched: a capture instance does not allow it."
            )

    def check_columnstore(self, table: TableFacts) -> None:
        """A captured table cannot get a clustered columnstore index [K]."""
        if self._instances(table):
            raise _columnstore(table)

    def check_key(self, table: TableFacts, constraint: str) -> None:
        """The key of a captured table cannot be dropped [LAB: rule 7]."""
        if self._instances(table) and self._is_key(table, constraint):
            raise SqlError(
                4929, f"Cannot alter the table '{table.name}' because it is enabled for Change Data Capture."
            )

    def check_alter_key(self, table: TableFacts, column: str) -> None:
        """A key column of a captured table cannot be altered [LAB: rule 7]."""
        keys = self._model.execute(
            "SELECT 1 FROM sqlserver.cdc_keys k JOIN sqlserver.cdc_instances i ON i.object_id = k.object_id"
            " WHERE i.source_object_id = %s AND lower(k.column_name) = lower(%s)",
            [table.oid, column],
        )
        if keys:
            raise SqlError(
                4922, f"ALTER TABLE ALTER COLUMN {column} failed because one or more objects access this column."
            )

    def check_rename_column(self, table: TableFacts, column: str) -> None:
        """A captured column cannot be renamed [LAB: rule 7]."""
        captured = self._model.execute(
            "SELECT 1 FROM sqlserver.cdc_captured c JOIN sqlserver.cdc_instances i ON i.object_id = c.object_id"
            " WHERE i.source_object_id = %s AND lower(c.column_name) = lower(%s)",
            [table.oid, column],
        )
        if captured:
            raise SqlError(4928, f"Cannot alter column '{column}' because it is 'CDC'.")

    def before_drop(self, table: TableFacts) -> list[str]:
        """What goes with a table that is dropped: its instances."""
        return [s for name, _ in self._instances(table) for s in self._drop_statements(name, table, is_last=True)]

    def altered(
        self,
        table: TableFacts,
        command: str,
        *,
        column: str = "",
        to: SqlType | None = None,
        is_drop: bool = False,
    ) -> list[str]:
        """What the capture job will read of a changed definition, where it stands in the log."""
        if not self._instances(table):
            return []
        kind = "alter" if to is not None else "drop" if is_drop else "add"
        values = ", ".join(
            (text(kind), str(table.oid), text(command), text(column), text(str(to)) if to is not None else "NULL")
        )
        columns = "kind, source_object_id, command, column_name, column_type"
        return [f"INSERT INTO sqlserver.cdc_events ({columns}) VALUES ({values})"]

    # -- procedures ----------------------------------------------------------------------------------------------------

    def _owner_only(self, session: Session) -> None:
        if not self._model.permissions.is_owner(session.login):
            raise SqlError(
                22904, "Caller is not authorized to initiate the requested action. DBO privileges are required."
            )

    def _enable_db(self, session: Session, _: Arguments) -> list[Outcome]:
        self._owner_only(session)
        if self._is_enabled():
            return []
        self._run(session, [_ENABLE_SCRIPT.read_text()])
        return []

    def _disable_db(self, session: Session, _: Arguments) -> list[Outcome]:
        self._owner_only(session)
        self._check_enabled()
        names = session.names()
        statements: list[str] = []
        rows = self._model.execute("SELECT capture_instance, source_object_id FROM sqlserver.cdc_instances")
        last = {source: instance for instance, source in rows}
        for instance, source in rows:
            found = names.by_oid(source)
            if found is not None:
                statements += self._drop_statements(instance, found, is_last=last[source] == instance)
        statements += [
            "DROP SCHEMA cdc CASCADE",
            "DELETE FROM sqlserver.schemas WHERE name = 'cdc'",
            "UPDATE sqlserver.database SET is_cdc_enabled = false",
            "DELETE FROM sqlserver.cdc_lsn_time",
            "DELETE FROM sqlserver.cdc_jobs",
        ]
        self._run(session, statements)
        return []

    def _enable_table(self, session: Session, arguments: Arguments) -> list[Outcome]:
        self._owner_only(session)
        self._check_enabled()
        table = self._source(session, arguments)
        if "@role_name" not in arguments:
            raise SqlError(
                201,
                "Procedure or function 'sp_cdc_enable_table' expects parameter '@role_name', which was not supplied.",
            )
        instance = arguments.get("@capture_instance") or f"{table.schema}_{table.name}"
        if self._model.execute("SELECT 1 FROM sqlserver.columnstores WHERE object_id = %s", [table.oid]):
            raise _columnstore(table)
        if len(instance) > _NAME_MAX:
            raise SqlError(
                22927, f"Capture instance name '{instance}' exceeds the length limit of {_NAME_MAX} characters."
            )
        existing = [name for name, _ in self._instances(table)]
        if len(existing) >= INSTANCES_MAX:
            raise SqlError(
                22962,
                f"Two capture instances already exist for source table '{table.schema}.{table.name}'."
                " A table can have at most two capture instances.",
            )
        if self._model.execute(
            "SELECT 1 FROM sqlserver.cdc_instances WHERE lower(capture_instance) = lower(%s)", [instance]
        ):
            raise SqlError(
                22926,
                f"Could not create a capture instance because the capture instance name '{instance}' already exists.",
            )
        captured = self._captured(table, arguments.get("@captured_column_list"))
        keys = self._keys(table)
        net = arguments.get("@supports_net_changes")
        bars_switch = int(arguments.get("@allow_partition_switch", 1)) == 0
        is_partitioned = bool(
            self._model.execute("SELECT 1 FROM sqlserver.partitioned WHERE object_id = %s", [table.oid])
        )
        statements = self._enable_statements(
            table,
            instance,
            captured,
            keys,
            role=arguments["@role_name"],
            net=int(bool(keys) if net is None else net),
            # Of a table that is not partitioned the setting is always 1, and what is said is ignored [DOC: sys.sp_cdc_enable_table].
            switch=int(not (bars_switch and is_partitioned)),
        )
        if not existing:
            statements += [
                f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {table.reference}",
                *_large_value_trigger(table, captured),
            ]
        self._run(session, statements)
        jobs.add_missing(self._model)
        if bars_switch and not is_partitioned:
            return [Notice("The table is not partitioned: @allow_partition_switch is ignored, and is 1.", 22857)]
        return []

    def _disable_table(self, session: Session, arguments: Arguments) -> list[Outcome]:
        self._owner_only(session)
        self._check_enabled()
        table = self._source(session, arguments)
        wanted = (arguments.get("@capture_instance") or "all").lower()
        existing = [name for name, _ in self._instances(table)]
        dropped = [name for name in existing if wanted in {"all", name.lower()}]
        if not dropped:
            raise SqlError(22960, f"Change data capture instance '{wanted}' has not been enabled for the source table.")
        statements: list[str] = []
        for name in dropped:
            is_last = name == dropped[-1] and len(dropped) == len(existing)
            statements += self._drop_statements(name, table, is_last=is_last)
        self._run(session, statements)
        return []

    def _clean_table(self, session: Session, arguments: Arguments) -> list[Outcome]:
        """Cleanup of one instance: its start_lsn rises, then what is below goes [DOC: sys.sp_cdc_cleanup_change_table]."""
        self._owner_only(session)
        self._check_enabled()
        instance, low = arguments.get("@capture_instance"), arguments.get("@low_water_mark")
        found = self._model.execute(
            "SELECT capture_instance FROM sqlserver.cdc_instances WHERE lower(capture_instance) = lower(%s)", [instance]
        )
        if not found:
            raise SqlError(22959, f"Could not find the capture instance '{instance}'.")
        if low is not None:
            self._model.execute(
                "UPDATE sqlserver.cdc_instances SET start_lsn = %s WHERE capture_instance = %s AND start_lsn < %s",
                [low, found[0][0], low],
            )
        self._model.execute(
            f'DELETE FROM cdc.{quoted(found[0][0] + "_CT")} WHERE "__$start_lsn" <'
            " (SELECT start_lsn FROM sqlserver.cdc_instances WHERE capture_instance = %s)",
            [found[0][0]],
        )
        return []

    def _help(self, session: Session, arguments: Arguments) -> list[Outcome]:
        self._check_enabled()
        table = self._source(session, arguments) if arguments.get("@source_name") else None
        rows = session.select(_HELP.format("1 = 1" if table is None else f"ct.source_object_id = {table.oid}"))
        return [Rows(rows.columns, rows.rows)]

    # -- statements ----------------------------------------------------------------------------------------------------

    def _enable_statements(
        self,
        table: TableFacts,
        instance: str,
        captured: Sequence[ColumnFacts],
        keys: Sequence[str],
        *,
        role: str | None,
        net: int,
        switch: int,
    ) -> list[str]:
        change_table = f"cdc.{quoted(f'{instance}_CT')}"
        kept = [replace(column, type=_in_change_table(column)) for column in captured]
        columns = ", ".join(f"{quoted(c.name)} {column_type(c.type)}" for c in kept if c.type is not None)
        oid = f"{text(change_table)}::regclass::oid::int"
        statements = [
            f'CREATE TABLE {change_table} ("__$start_lsn" sqlserver."binary(10)" NOT NULL, "__$end_lsn" sqlserver."binary(10)",'
            ' "__$seqval" sqlserver."binary(10)" NOT NULL, "__$operation" int NOT NULL, "__$update_mask" sqlserver."varbinary(128)",'
            f' {columns}, "__$command_id" int)',
            f'CREATE INDEX ON {change_table} ("__$start_lsn", "__$command_id", "__$seqval", "__$operation")',
            "INSERT INTO sqlserver.cdc_instances VALUES"
            f" ({text(instance)}, {oid}, {table.oid}, NULL, {_optional(role)}, {_optional(_key_name(keys))}, {net}, {switch},"
            " sqlserver.server_time(clock_timestamp() AT TIME ZONE 'UTC'))",
        ]
        for ordinal, column in enumerate(captured, 1):
            statements.append(
                f"INSERT INTO sqlserver.cdc_captured VALUES ({oid}, {text(column.name)}, {column.id}, {text(str(column.type))},"
                f" {ordinal}, {int(column.is_computed)})"
            )
        for ordinal, key in enumerate(keys, 1):
            number = table.columns[key.lower()].id
            statements.append(f"INSERT INTO sqlserver.cdc_keys VALUES ({oid}, {text(key)}, {ordinal}, {number})")
        statements += _functions(instance, change_table, kept)
        statements.append(
            "INSERT INTO sqlserver.cdc_events (kind, capture_instance, source_object_id)"
            f" VALUES ('enable', {text(instance)}, {table.oid})"
        )
        return statements

    def _drop_statements(self, instance: str, table: TableFacts, *, is_last: bool) -> list[str]:
        of_instance = (
            f"object_id = (SELECT object_id FROM sqlserver.cdc_instances WHERE capture_instance = {text(instance)})"
        )
        statements = [
            f"DELETE FROM sqlserver.cdc_captured WHERE {of_instance}",
            f"DELETE FROM sqlserver.cdc_keys WHERE {of_instance}",
            f"DELETE FROM sqlserver.cdc_ddl WHERE {of_instance}",
            f"DELETE FROM sqlserver.cdc_instances WHERE capture_instance = {text(instance)}",
            f"DROP FUNCTION cdc.{_function(instance)}",
            f"DROP TABLE cdc.{quoted(f'{instance}_CT')}",
        ]
        is_published = self._model.execute(
            "SELECT 1 FROM pg_catalog.pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s",
            [PUBLICATION, table.schema, table.name],
        )
        if is_last and is_published:
            statements.append(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table.reference}")
            statements.append(f"DROP TRIGGER IF EXISTS check_large_values ON {table.reference}")
        return list(dict.fromkeys(statements))

    def _run(self, session: Session, statements: Sequence[str]) -> None:
        try:
            with session.transactions.statement(is_change=True):
                for statement in statements:
                    session.execute(statement)
        finally:
            self._model.changed()

    # -- what there is -------------------------------------------------------------------------------------------------

    def _is_enabled(self) -> bool:
        ((enabled,),) = self._model.execute("SELECT is_cdc_enabled FROM sqlserver.database")
        return bool(enabled)

    def _check_enabled(self) -> None:
        if not self._is_enabled():
            raise SqlError(22901, f"The database '{self._model.name}' is not enabled for Change Data Capture.")

    def _source(self, session: Session, arguments: Arguments) -> TableFacts:
        schema, name = arguments.get("@source_schema"), arguments.get("@source_name")
        found = session.names().find(str(schema), str(name))
        if found is None or not found.is_table:
            raise SqlError(22931, f"Source table '{schema}.{name}' does not exist in the current database.")
        return found

    def _instances(self, table: TableFacts) -> list[tuple[str, bool]]:
        rows = self._model.execute(
            "SELECT capture_instance, partition_switch FROM sqlserver.cdc_instances WHERE source_object_id = %s ORDER BY 1",
            [table.oid],
        )
        return [(name, bool(switch)) for name, switch in rows]

    def _captured(self, table: TableFacts, wanted: str | None) -> list[ColumnFacts]:
        if wanted is None:
            return [column for column in table.columns.values() if column.type is not None]
        names = {name.strip().strip("[]").lower() for name in wanted.split(",")}
        if unknown := names - set(table.columns):
            raise SqlError(22933, f"Column '{min(unknown)}' does not exist in table '{table.schema}.{table.name}'.")
        missing = [key for key in self._keys(table) if key.lower() not in names]
        if missing:
            raise SqlError(
                22930, f"The captured columns must have the columns of the key: {', '.join(missing)} is missing."
            )
        return [column for key, column in table.columns.items() if key in names]

    def _keys(self, table: TableFacts) -> list[str]:
        rows = self._model.execute(
            "SELECT a.attname FROM pg_catalog.pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at)"
            " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
            " WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.at",
            [table.oid],
        )
        return [row[0] for row in rows]

    def _is_key(self, table: TableFacts, constraint: str) -> bool:
        return bool(
            self._model.execute(
                "SELECT 1 FROM pg_catalog.pg_constraint WHERE conrelid = %s AND lower(conname) = lower(%s) AND contype = 'p'",
                [table.oid, constraint],
            )
        )


def _columnstore(table: TableFacts) -> SqlError:
    """A table cannot be captured and have a clustered columnstore index [DOC: CREATE COLUMNSTORE INDEX; the number: K]."""
    return SqlError(
        35353, f"Change Data Capture cannot be enabled on a table with a clustered columnstore index: '{table.name}'."
    )


def _key_name(keys: Sequence[str]) -> str | None:
    return "PK" if keys else None


def _in_change_table(column: ColumnFacts) -> SqlType | None:
    """Documented: "Identity columns are defined as either int or bigint" [DOC: cdc.<capture_instance>_CT; K which of them is which]."""
    if column.type is None or not column.is_identity:
        return column.type
    return sqltypes.of(TypeName.INT if column.type.name in _SMALL else TypeName.BIGINT)


def _function(instance: str) -> str:
    return quoted(f"fn_cdc_get_all_changes_{instance}".lower())


def _functions(instance: str, change_table: str, captured: Sequence[ColumnFacts]) -> list[str]:
    """fn_cdc_get_all_changes_<instance>: it checks its range, and has no command_id [rule 4]."""
    columns = ", ".join(
        ('"__$start_lsn" sqlserver."binary(10)"', '"__$seqval" sqlserver."binary(10)"', '"__$operation" int',
         '"__$update_mask" sqlserver."varbinary(128)"', *(f"{quoted(c.name)} {reference(c.type)}" for c in captured if c.type))
    )  # fmt: skip
    wanted = ", ".join(f"ct.{quoted(c.name)}" for c in captured)
    refused = (
        "An insufficient number of arguments were supplied for the procedure or function"
        f" cdc.fn_cdc_get_all_changes_{instance}."
    )
    return [
        f"CREATE FUNCTION cdc.{_function(instance)}(from_lsn bytea, to_lsn bytea, row_filter text) RETURNS TABLE ({columns})"
        f""" STABLE LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        BEGIN
          IF from_lsn < sys.fn_cdc_get_min_lsn({text(instance)}) OR to_lsn > sys.fn_cdc_get_max_lsn() OR from_lsn > to_lsn
            OR from_lsn IS NULL OR to_lsn IS NULL OR sys.fn_cdc_get_max_lsn() IS NULL
            OR row_filter COLLATE "C" NOT IN ('all', 'all update old') THEN
            RAISE EXCEPTION {text(refused)} USING ERRCODE = 'MS000', HINT = '313';
          END IF;
          RETURN QUERY SELECT ct."__$start_lsn", ct."__$seqval", ct."__$operation", ct."__$update_mask", {wanted}
          FROM {change_table} ct WHERE ct."__$start_lsn" BETWEEN from_lsn AND to_lsn
            AND (row_filter COLLATE "C" = 'all update old' OR ct."__$operation" <> 3)
          ORDER BY ct."__$start_lsn", ct."__$command_id", ct."__$seqval", ct."__$operation";
        END $body$"""
    ]


def _large_value_trigger(table: TableFacts, captured: Sequence[ColumnFacts]) -> list[str]:
    # Not of spatial types: the option is of texts, binaries and xml alone [DOC: max text repl size].
    large = [c for c in captured if c.type is not None and c.type.is_large and c.type.name not in SPATIAL]
    if not large:
        return []
    wide = [c.name for c in large if c.type is not None and c.type.name in WIDE_TEXTS | {TypeName.XML}]
    arguments = ", ".join(text(_array(names)) for names in ([c.name for c in large], wide))
    return [
        f"CREATE TRIGGER check_large_values BEFORE INSERT OR UPDATE ON {table.reference} FOR EACH ROW"
        f" EXECUTE FUNCTION sqlserver.check_large_values({arguments})"
    ]


def _array(names: Sequence[str]) -> str:
    return "{" + ",".join(quoted(name) for name in names) + "}"


def _optional(value: str | None) -> str:
    return "NULL" if value is None else text(value)


_HELP: Final = """
SELECT s.name AS source_schema, t.name AS source_table, ct.capture_instance, ct.object_id, ct.source_object_id, ct.start_lsn, ct.end_lsn,
  ct.supports_net_changes, ct.has_drop_pending, ct.role_name, ct.index_name, ct.filegroup_name, ct.create_date,
  (SELECT STRING_AGG(k.column_name, ', ') FROM cdc.index_columns AS k WHERE k.object_id = ct.object_id) AS index_column_list,
  (SELECT STRING_AGG(c.column_name, ', ') FROM cdc.captured_columns AS c WHERE c.object_id = ct.object_id) AS captured_column_list
FROM cdc.change_tables AS ct JOIN sys.tables AS t ON t.object_id = ct.source_object_id JOIN sys.schemas AS s ON s.schema_id = t.schema_id
WHERE {}
"""
