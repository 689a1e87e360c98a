"""Extended properties of tables and columns, such as `MS_Description` [DOC: sp_addextendedproperty, sys.extended_properties]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from replicator_testbed.sqlserver.capture.instances import Arguments, Described
from replicator_testbed.sqlserver.engine.names import text
from replicator_testbed.sqlserver.outcomes import Outcome, SqlError

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.session import Session

_LEVELS: Final = tuple(f"@level{n}{part}" for n in range(3) for part in ("type", "name"))


def _add(session: Session, arguments: Arguments) -> list[Outcome]:
    where, named = _of(session, arguments)
    if session.execute(f"SELECT 1 FROM sqlserver.extended_properties WHERE {where}").fetchall():
        raise SqlError(
            15233, f"Property cannot be added. Property '{arguments['@name']}' already exists for '{named}'."
        )
    numbers = _numbers(session, arguments)
    values = ", ".join((*map(str, numbers), text(arguments["@name"]), text(str(arguments["@value"]))))
    return _run(session, f"INSERT INTO sqlserver.extended_properties VALUES ({values})")


def _update(session: Session, arguments: Arguments) -> list[Outcome]:
    where = _existing(session, arguments)
    return _run(
        session, f"UPDATE sqlserver.extended_properties SET value = {text(str(arguments['@value']))} WHERE {where}"
    )


def _drop(session: Session, arguments: Arguments) -> list[Outcome]:
    return _run(session, f"DELETE FROM sqlserver.extended_properties WHERE {_existing(session, arguments)}")


def _existing(session: Session, arguments: Arguments) -> str:
    where, named = _of(session, arguments)
    if not session.execute(f"SELECT 1 FROM sqlserver.extended_properties WHERE {where}").fetchall():
        raise SqlError(
            15217,
            f"Property cannot be updated or deleted. Property '{arguments['@name']}' does not exist for '{named}'.",
        )
    return where


def _of(session: Session, arguments: Arguments) -> tuple[str, str]:
    """The condition that finds the property, and what it belongs to."""
    major, minor = _numbers(session, arguments)
    named = ".".join(str(arguments[name]) for name in _LEVELS[1::2] if arguments.get(name))
    return f"major_id = {major} AND minor_id = {minor} AND name = {text(arguments['@name'])}", named


def _numbers(session: Session, arguments: Arguments) -> tuple[int, int]:
    """The numbers of the table, and of the column or 0.

    Raises:
        SqlError: 15135, there is no such table or column; or it is of something else, of which the model keeps none.
    """
    kinds = [str(arguments.get(name) or "").upper() for name in _LEVELS[::2]]
    schema, table, column = (arguments.get(name) for name in _LEVELS[1::2])
    found = session.names().find(str(schema), str(table)) if kinds[:2] == ["SCHEMA", "TABLE"] else None
    known = None if found is None or column is None else found.columns.get(str(column).lower())
    if found is None or kinds[2] not in {"", "COLUMN"} or (column is not None and known is None):
        raise SqlError(15135, "Object is invalid. Extended properties are not permitted on it, or it does not exist.")
    return found.oid, 0 if known is None else known.id


def _run(session: Session, sql: str) -> list[Outcome]:
    with session.transactions.statement(is_change=True):
        session.execute(sql)
    return []


PROCEDURES: Final = {
    "sp_addextendedproperty": Described(_add, "@name", "@value", *_LEVELS),
    "sp_updateextendedproperty": Described(_update, "@name", "@value", *_LEVELS),
    "sp_dropextendedproperty": Described(_drop, "@name", *_LEVELS),
}
