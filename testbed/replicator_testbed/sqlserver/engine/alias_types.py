"""Alias types: CREATE TYPE … FROM and DROP TYPE. A column that has one is stored as the type behind it [DOC: CREATE TYPE]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from replicator_testbed.sqlserver.engine import ddl
from replicator_testbed.sqlserver.engine.names import TableFacts, text
from replicator_testbed.sqlserver.engine.types import from_domain
from replicator_testbed.sqlserver.outcomes import Count, Outcome, SqlError
from replicator_testbed.sqlserver.sqltypes import DOCUMENTS, SPATIAL, TypeName

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.session import Session

_NO_BASES: Final = DOCUMENTS | SPATIAL | {TypeName.HIERARCHYID, TypeName.TIMESTAMP, TypeName.SYSNAME}
"""Types that no alias is made from [DOC: CREATE TYPE, base_type; json data type]."""
_USED: Final = """
SELECT c.relname FROM sqlserver.alias_columns u
JOIN pg_catalog.pg_attribute a ON a.attrelid::int = u.object_id AND a.attnum = u.column_id AND NOT a.attisdropped
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid WHERE u.user_type_id = $1 ORDER BY 1 LIMIT 1
"""


def read(session: Session) -> ddl.Aliases:
    """The alias types of the database, as the session sees them."""
    rows = session.execute("SELECT user_type_id, schema_name, name, base, is_nullable FROM sqlserver.aliases")
    return {
        (schema.lower(), name.lower()): ddl.Alias(id=number, type=from_domain(base), is_nullable=is_nullable)
        for number, schema, name, base, is_nullable in rows.fetchall()
    }


def create(session: Session, cursor: ddl.Cursor) -> list[Outcome]:
    """CREATE TYPE … FROM …; without a word about NULL the type is nullable."""
    name = cursor.qualified()
    cursor.expect("FROM")
    kind = ddl.sql_type(cursor.type_text())
    is_nullable = not cursor.take("NOT", "NULL")
    cursor.take("NULL")
    if cursor.word:
        raise cursor.wrong()
    schema, bare = _parts(session, name)
    if (schema.lower(), bare.lower()) in read(session):
        raise SqlError(219, f"The type '{schema}.{bare}' already exists, or you do not have permission to create it.")
    if kind.name in _NO_BASES:
        raise SqlError(222, f'The base type "{kind}" is not a valid base type for the alias data type.')
    session.model.make_type(kind)
    return _run(
        session,
        "INSERT INTO sqlserver.aliases (schema_name, name, base, is_nullable)"
        f" VALUES ({text(schema)}, {text(bare)}, {text(str(kind))}, {is_nullable})",
    )


def drop(session: Session, name: tuple[str, ...], *, if_exists: bool) -> list[Outcome]:
    """DROP TYPE: not while a column has it [DOC: DROP TYPE]."""
    schema, bare = _parts(session, name)
    found = read(session).get((schema.lower(), bare.lower()))
    if found is None:
        if if_exists:
            return []
        raise SqlError(3701, f"Cannot drop the type '{bare}', because it does not exist or you do not have permission.")
    used = session.execute(_USED, [found.id]).fetchall()
    if used:
        raise SqlError(
            3732,
            f"Cannot drop type '{schema}.{bare}' because it is being referenced by object '{used[0][0]}'."
            " There may be other objects that reference this type.",
        )
    return _run(session, f"DELETE FROM sqlserver.aliases WHERE user_type_id = {found.id}")


def noted(reference: str, column: str, alias: ddl.Alias) -> list[str]:
    """The statements that note that a column has an alias type."""
    return [
        f"INSERT INTO sqlserver.alias_columns SELECT attrelid::int, attnum, {alias.id} FROM pg_catalog.pg_attribute"
        f" WHERE attrelid = {text(reference)}::regclass AND attname = {text(column)}"
    ]


def forgotten(table: TableFacts, column: str) -> str:
    """The statement that notes that a column has none any more."""
    number = table.columns[column.lower()].id
    return f"DELETE FROM sqlserver.alias_columns WHERE object_id = {table.oid} AND column_id = {number}"


def _parts(session: Session, name: tuple[str, ...]) -> tuple[str, str]:
    schema = name[-2] if len(name) > 1 else "dbo"
    found = {known.lower(): known for known in session.schemas()}.get(schema.lower())
    if found is None:
        raise SqlError(
            2760, f"The specified schema name '{schema}' either does not exist or you do not have permission."
        )
    return found, name[-1]


def _run(session: Session, sql: str) -> list[Outcome]:
    try:
        with session.transactions.statement(is_change=True):
            session.execute(sql)
    finally:
        session.model.changed()
    return [Count(None)]
