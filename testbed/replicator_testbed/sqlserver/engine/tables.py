"""CREATE, ALTER, DROP and TRUNCATE, run on PostgreSQL, with what CDC says of captured tables."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from replicator_testbed.sqlserver.capture.instances import PUBLICATION
from replicator_testbed.sqlserver.engine import alias_types, ddl, types
from replicator_testbed.sqlserver.engine.batches import Statement
from replicator_testbed.sqlserver.engine.names import TableFacts, quoted
from replicator_testbed.sqlserver.outcomes import Count, Outcome, SqlError
from replicator_testbed.sqlserver.sqltypes import SPATIAL, TypeName

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.session import Session

_QUALIFIED_MAX: Final = 3
_FIRST_WITH_JSON: Final = 17
_EXACT: Final = frozenset({TypeName.DECIMAL, TypeName.NUMERIC, TypeName.MONEY, TypeName.SMALLMONEY})


def create(session: Session, statement: Statement) -> list[Outcome]:
    """CREATE TABLE, INDEX, TYPE or SCHEMA."""
    words = statement.words(4)
    if words.startswith("CREATE TABLE"):
        return _run(session, *_create_table(session, statement))
    if words.startswith("CREATE SCHEMA"):
        name = ddl.Cursor(statement, 2).name()
        return _run(
            session,
            f"CREATE SCHEMA {quoted(name)}",
            f"INSERT INTO sqlserver.schemas SELECT {_text(name)}, 5 + count(*) FROM sqlserver.schemas",
        )
    if words.startswith("CREATE TYPE"):
        return alias_types.create(session, ddl.Cursor(statement, 2))
    cursor = ddl.Cursor(statement, 1)
    if words.startswith("CREATE PARTITION"):
        return _create_partition(session, cursor)
    if cursor.take("CLUSTERED", "COLUMNSTORE"):
        return _create_columnstore(session, cursor)
    is_unique = cursor.take("UNIQUE")
    _ = cursor.take("NONCLUSTERED") or cursor.take("CLUSTERED")
    if cursor.take("INDEX"):
        name = cursor.name()
        cursor.expect("ON")
        table = _table(session, cursor.qualified())
        columns = ", ".join(quoted(_column(table, column)) for column in cursor.names())
        return _run(
            session, f"CREATE {'UNIQUE ' if is_unique else ''}INDEX {quoted(name)} ON {table.reference} ({columns})"
        )
    raise SqlError(102, f"The model does not run CREATE {words.split()[1]}.", severity=15)


def drop(session: Session, statement: Statement) -> list[Outcome]:
    """DROP TABLE, INDEX, TYPE or SCHEMA."""
    cursor = ddl.Cursor(statement, 2)
    if_exists = cursor.take("IF", "EXISTS")
    match statement.words(2):
        case "DROP TABLE":
            name = cursor.qualified()
            found = session.names().find(*_schema_and_name(session, name))
            if found is None:
                if if_exists:
                    return []
                raise SqlError(
                    3701,
                    f"Cannot drop the table '{name[-1]}', because it does not exist or you do not have permission.",
                )
            gone = [*session.model.cdc.before_drop(found), *session.model.tracking.before_drop(found)]
            return _run(session, *gone, f"DROP TABLE {found.reference}", altering=found)
        case "DROP TYPE":
            return alias_types.drop(session, cursor.qualified(), if_exists=if_exists)
        case "DROP INDEX":
            index = cursor.name()
            cursor.expect("ON")
            table = _table(session, cursor.qualified())
            named = f"object_id = {table.oid} AND lower(name) = lower({_text(index)})"
            if session.execute(f"SELECT 1 FROM sqlserver.columnstores WHERE {named}").fetchall():
                return _run(session, f"DELETE FROM sqlserver.columnstores WHERE {named}")
            return _run(session, f"DROP INDEX {quoted(table.schema)}.{quoted(index)}")
        case "DROP SCHEMA":
            schema = cursor.name()
            return _run(
                session, f"DROP SCHEMA {quoted(schema)}", f"DELETE FROM sqlserver.schemas WHERE name = {_text(schema)}"
            )
        case "DROP PARTITION":
            kind = "schemes" if cursor.take("SCHEME") else "functions"
            if kind == "functions":
                cursor.expect("FUNCTION")
            return _run(
                session, f"DELETE FROM sqlserver.partition_{kind} WHERE lower(name) = lower({_text(cursor.name())})"
            )
        case words:
            raise SqlError(102, f"The model does not run {words}.", severity=15)


def truncate(session: Session, statement: Statement) -> list[Outcome]:
    """TRUNCATE TABLE."""
    table = _table(session, ddl.Cursor(statement, 2).qualified())
    session.model.cdc.check_truncate(table)
    return _run(session, f"TRUNCATE {table.reference}", *session.model.tracking.truncated(table), altering=table)


def alter(session: Session, statement: Statement) -> list[Outcome]:
    """ALTER TABLE or DATABASE."""
    if statement.words(2) == "ALTER DATABASE":
        return _alter_database(session, statement)
    if statement.words(2) != "ALTER TABLE":
        raise SqlError(102, f"The model does not run {statement.words(2)}.", severity=15)
    cursor = ddl.Cursor(statement, 2)
    table = _table(session, cursor.qualified())
    if cursor.take("ADD"):
        return _add(session, statement, table, cursor)
    if cursor.take("DROP", "COLUMN"):
        column = _column(table, cursor.name())
        after = session.model.cdc.altered(table, statement.text, column=column, is_drop=True)
        return _run(session, f"ALTER TABLE {table.reference} DROP COLUMN {quoted(column)}", *after, altering=table)
    if cursor.take("DROP", "CONSTRAINT"):
        name = cursor.name()
        session.model.cdc.check_key(table, name)
        session.model.tracking.check_key(table, name)
        return _run(session, f"ALTER TABLE {table.reference} DROP CONSTRAINT {quoted(name)}", altering=table)
    if cursor.take("ALTER", "COLUMN"):
        return _alter_column(session, statement, table, cursor)
    if cursor.take("SWITCH"):
        session.model.cdc.check_switch(table)
        session.model.tracking.check_switch(table)
        return _switch(session, table, cursor)
    return _track(session, table, cursor)


def _track(session: Session, table: TableFacts, cursor: ddl.Cursor) -> list[Outcome]:
    """ENABLE and DISABLE CHANGE_TRACKING."""
    enables = cursor.take("ENABLE", "CHANGE_TRACKING")
    if not enables and not cursor.take("DISABLE", "CHANGE_TRACKING"):
        raise cursor.wrong()
    if not session.model.permissions.is_owner(session.login):
        raise SqlError(
            1088, f"Cannot find the object '{table.name}' because it does not exist or you do not have permissions."
        )
    return _run(session, *session.model.tracking.alter_table(table, cursor, enables=enables))


def rename(session: Session, old: str, new: str, kind: str) -> list[Outcome]:
    """sp_rename."""
    parts = tuple(part.strip("[]") for part in old.split("."))
    if kind.upper() == "COLUMN":
        table = _table(session, parts[:-1])
        column = _column(table, parts[-1])
        session.model.cdc.check_rename_column(table, column)
        sql = f"ALTER TABLE {table.reference} RENAME COLUMN {quoted(column)} TO {quoted(new)}"
        return _run(session, sql, altering=table)
    table = _table(session, parts)
    return _run(session, f"ALTER TABLE {table.reference} RENAME TO {quoted(new)}", altering=table)


def _create_columnstore(session: Session, cursor: ddl.Cursor) -> list[Outcome]:
    """CREATE CLUSTERED COLUMNSTORE INDEX: a name for the catalogue. Of a captured table it is refused [K]."""
    cursor.expect("INDEX")
    name = cursor.name()
    cursor.expect("ON")
    table = _table(session, cursor.qualified())
    session.model.cdc.check_columnstore(table)
    return _run(session, f"INSERT INTO sqlserver.columnstores VALUES ({table.oid}, {_text(name)})")


def _create_partition(session: Session, cursor: ddl.Cursor) -> list[Outcome]:
    """Partition schemes and functions are names for the catalogue: tables are not spread."""
    cursor.expect("PARTITION")
    kind = "schemes" if cursor.take("SCHEME") else "functions"
    if kind == "functions":
        cursor.expect("FUNCTION")
    return _run(session, f"INSERT INTO sqlserver.partition_{kind} (name) VALUES ({_text(cursor.name())})")


def _switch(session: Session, table: TableFacts, cursor: ddl.Cursor) -> list[Outcome]:
    """SWITCH: rows move to an empty table, and no capture job sees it [DOC: sys.sp_cdc_enable_table; rule 10].

    All rows are taken to be in the partition.
    """
    if cursor.take("PARTITION"):
        cursor.token()
    cursor.expect("TO")
    target = _table(session, cursor.qualified())
    if session.execute(f"SELECT 1 FROM {target.reference} LIMIT 1").fetchall():
        raise SqlError(4905, f"ALTER TABLE SWITCH statement failed. The target table '{target.name}' must be empty.")
    is_captured = session.model.cdc.is_captured(table)
    bare = f"ALTER PUBLICATION {PUBLICATION} {{}} TABLE {table.reference}"
    moved = [f"INSERT INTO {target.reference} SELECT * FROM {table.reference}", f"DELETE FROM {table.reference}"]
    return _run(session, *([bare.format("DROP"), *moved, bare.format("ADD")] if is_captured else moved))


def _create_table(session: Session, statement: Statement) -> list[str]:
    new = ddl.read_table(statement, alias_types.read(session))
    schema, name = _schema_and_name(session, new.name)
    if session.names().find(schema, name) is not None:
        raise SqlError(2714, f"There is already an object named '{name}' in the database.", state=6)
    keys = [*ddl.own_keys(name, new.columns), *new.keys]
    in_key = {column.lower() for key in keys if key.is_primary for column in key.columns}
    for column in new.columns:
        _make_type(session, column)
        if column.name.lower() in in_key and column.type is not None and column.type.name in SPATIAL | {TypeName.JSON}:
            raise SqlError(
                1919,
                f"Column '{column.name}' in table '{name}' is of a type that is invalid for use as a key column in an index.",
            )
    parts = []
    for column in new.columns:
        part = ddl.column_sql(column, session.expression)
        if "{type}" in part:
            part = part.replace("{type}", _computed_type(session, new, column))
        if column.name.lower() in in_key and " NOT NULL" not in part:
            part += " NOT NULL"
        parts.append(part)
    parts += [ddl.key_sql(key) for key in keys]
    reference = f"{quoted(schema)}.{quoted(name)}"
    statements = [f"CREATE TABLE {reference} ({', '.join(parts)})", f"ALTER TABLE {reference} REPLICA IDENTITY FULL"]
    versions = [c.name for c in new.columns if c.type is not None and c.type.name is TypeName.TIMESTAMP]
    statements += [
        f"CREATE TRIGGER rowversion BEFORE UPDATE ON {reference} FOR EACH ROW"
        f" EXECUTE FUNCTION sqlserver.bump_rowversion({_text(version)})"
        for version in versions
    ]
    oid = f"{_text(reference)}::regclass::oid::int"
    statements += [said for column in new.columns for said in _said(reference, column)]
    statements += [made for column in new.columns for made in ddl.counter(schema, name, column)]
    if new.scheme:
        statements.append(
            f"INSERT INTO sqlserver.partitioned SELECT {oid}, data_space_id FROM sqlserver.partition_schemes"
            f" WHERE lower(name) = lower({_text(new.scheme)})"
        )
    return statements


def _make_type(session: Session, column: ddl.NewColumn) -> None:
    """Make sure that PostgreSQL has a column's type, and that the server does: json came with SQL Server 2025 [DOC: json data type]."""
    if column.type is None:
        return
    if column.type.name is TypeName.JSON:
        ((version,),) = session.execute("SELECT version FROM sqlserver.database").fetchall()
        if int(version.split(".")[0]) < _FIRST_WITH_JSON:
            raise SqlError(2715, f"Column, parameter, or variable {column.name}: Cannot find data type json.")
    session.model.make_type(column.type)


def _said(reference: str, column: ddl.NewColumn) -> list[str]:
    """What the catalogue is told of a column beyond what PostgreSQL knows."""
    oid = f"{_text(reference)}::regclass::oid::int"
    facts = [
        f"INSERT INTO sqlserver.column_facts VALUES ({oid}, {_text(column.name)}, '{fact}')" for fact in column.facts
    ]
    if column.identity is not None:
        facts.append(f"INSERT INTO sqlserver.column_facts VALUES ({oid}, {_text(column.name)}, 'identity')")
    return facts + ([] if column.alias is None else alias_types.noted(reference, column.name, column.alias))


def _computed_type(session: Session, table: ddl.NewTable, column: ddl.NewColumn) -> str:
    """The type of a computed column, which PostgreSQL wants to be told: that of its expression over columns of these types."""
    assert column.computed is not None
    columns = ", ".join(
        f"NULL::{types.reference(c.type)} AS {quoted(c.name)}" for c in table.columns if c.type is not None
    )
    expression = session.expression(column.computed)
    with session.transactions.statement(is_change=False):
        row = session.execute(
            f"SELECT pg_typeof(q.x)::text FROM (SELECT 1) AS one LEFT JOIN (SELECT {expression} AS x FROM (SELECT {columns}) AS t)"
            " AS q ON true"
        ).fetchone()
    assert row is not None
    if str(row[0]).startswith("sqlserver."):
        return str(row[0])
    kind = types.of_expression({"integer": "int4", "bigint": "int8", "smallint": "int2"}.get(row[0], row[0]), [])
    if kind.name is TypeName.DECIMAL:
        known = [c.type for c in table.columns if c.type is not None and c.type.name in _EXACT]
        kind = replace(kind, scale=max((one.numeric_precision[1] for one in known), default=0))
    session.model.make_type(kind)
    return types.reference(kind)


def _add(session: Session, statement: Statement, table: TableFacts, cursor: ddl.Cursor) -> list[Outcome]:
    if cursor.word in {"CONSTRAINT", "PRIMARY", "UNIQUE"}:
        key = ddl.read_key(cursor, table.name)
        columns = [f"ALTER COLUMN {quoted(_column(table, c))} SET NOT NULL" for c in key.columns if key.is_primary]
        actions = ", ".join([*columns, f"ADD {ddl.key_sql(key)}"])
        return _run(session, f"ALTER TABLE {table.reference} {actions}", altering=table)
    statements, aliases = [], alias_types.read(session)
    while True:
        column = ddl.read_column(cursor, aliases)
        if column.type is None:
            raise SqlError(40510, "The model adds no computed columns.")
        _make_type(session, column)
        statements.append(f"ALTER TABLE {table.reference} ADD COLUMN {ddl.column_sql(column, session.expression)}")
        statements += _said(table.reference, column)
        if not cursor.take(","):
            break
    after = session.model.cdc.altered(table, statement.text)
    return _run(session, *statements, *after, altering=table)


def _alter_column(session: Session, statement: Statement, table: TableFacts, cursor: ddl.Cursor) -> list[Outcome]:
    column = ddl.read_column(cursor, alias_types.read(session))
    name = _column(table, column.name)
    assert column.type is not None
    _make_type(session, column)
    session.model.cdc.check_alter_key(table, name)
    session.model.tracking.check_key_column(table, name)
    collation = column.collation or (table.columns[name.lower()].type or column.type).collation
    kind = column.type.collated(collation)
    actions = [
        f"ALTER COLUMN {quoted(name)} TYPE {types.column_type(kind)} USING {quoted(name)}::{types.reference(kind)}",
        f"ALTER COLUMN {quoted(name)} {'DROP' if column.is_nullable else 'SET'} NOT NULL",
    ]
    after = [
        alias_types.forgotten(table, name),
        *_said(table.reference, replace(column, name=name)),
        *session.model.cdc.altered(table, statement.text, column=name, to=column.type),
    ]
    return _run(session, f"ALTER TABLE {table.reference} {', '.join(actions)}", *after, altering=table)


def _alter_database(session: Session, statement: Statement) -> list[Outcome]:
    cursor = ddl.Cursor(statement, 2)
    if cursor.name().upper() in {session.database.upper(), "CURRENT"} and cursor.take("SET", "CHANGE_TRACKING"):
        return _run(session, *session.model.tracking.alter_database(statement, cursor))
    words = [token.word or token.text for token in statement.tokens if token.text != "="]
    name, option, value = words[2].strip("[]"), words[4] if len(words) > 4 else "", words[5] if len(words) > 5 else ""
    if name.upper() not in {session.database.upper(), "CURRENT"} or words[3:4] != ["SET"]:
        raise SqlError(102, f"The model does not run {statement.text}.", severity=15)
    match option, value:
        case "ALLOW_SNAPSHOT_ISOLATION", "ON" | "OFF":
            change = f"snapshot_isolation_state = {int(value == 'ON')}"
        case "READ_COMMITTED_SNAPSHOT", "ON" | "OFF":
            change = f"is_read_committed_snapshot_on = {value == 'ON'}"
        case "DELAYED_DURABILITY", "DISABLED" | "ALLOWED" | "FORCED":
            change = f"delayed_durability = {['DISABLED', 'ALLOWED', 'FORCED'].index(value)}"
        case _:
            raise SqlError(102, f"The model has no option {option} {value} of a database.", severity=15)
    outcomes = _run(session, f"UPDATE sqlserver.database SET {change}")
    session.model.changed()
    return outcomes


def _run(session: Session, *statements: str, altering: TableFacts | None = None) -> list[Outcome]:
    """Run statements of PostgreSQL as one statement of T-SQL; the catalogue is another one afterwards.

    `altering`: SNAPSHOT transactions that have begun cannot read this table any more [DOC: 3961].
    """
    try:
        with session.transactions.statement(is_change=True):
            for sql in statements:
                session.execute(sql)
            if altering is not None:
                session.execute(f"INSERT INTO sqlserver.definitions VALUES ({altering.oid})")
    finally:
        session.model.changed()
    return [Count(None)]


def _table(session: Session, name: tuple[str, ...]) -> TableFacts:
    schema, bare = _schema_and_name(session, name)
    found = session.names().find(schema, bare)
    if found is None:
        raise SqlError(
            4902, f'Cannot find the object "{".".join(name)}" because it does not exist or you do not have permissions.'
        )
    return found


def _schema_and_name(session: Session, name: tuple[str, ...]) -> tuple[str, str]:
    padded = ("",) * (_QUALIFIED_MAX - len(name)) + name
    schema = session.names().schema(padded[0], padded[1])
    with contextlib.suppress(StopIteration):
        schema = next(known for known in session.schemas() if known.lower() == schema.lower())
    return schema, padded[2]


def _column(table: TableFacts, name: str) -> str:
    found = table.columns.get(name.lower())
    if found is None:
        raise SqlError(4924, f"ALTER TABLE failed because column '{name}' does not exist in table '{table.name}'.")
    return found.name


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
