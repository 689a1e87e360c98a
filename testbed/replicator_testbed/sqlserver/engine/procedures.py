"""EXEC: system procedures, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from replicator_testbed.sqlserver.capture.instances import Arguments, Described
from replicator_testbed.sqlserver.datatypes import datatype_info
from replicator_testbed.sqlserver.engine import extended_properties, tables
from replicator_testbed.sqlserver.engine.batches import Statement, compiled
from replicator_testbed.sqlserver.engine.ddl import Cursor
from replicator_testbed.sqlserver.engine.names import unbracketed
from replicator_testbed.sqlserver.outcomes import Outcome, SqlError, Status

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.session import Session


def execute(session: Session, statement: Statement) -> list[Outcome]:
    """EXEC.

    Raises:
        SqlError: 2812, the model has no such procedure; or what the procedure raises.
    """
    cursor = Cursor(statement, 1)
    if cursor.take("("):
        return _run_text(session, cursor)
    name = cursor.qualified()[-1].lower()
    described = PROCEDURES.get(name) or session.model.cdc.procedures.get(name)
    if described is None:
        raise SqlError(2812, f"Could not find stored procedure '{name}'.", state=62)
    arguments = _arguments(session, cursor, name, described.parameters)
    return [*described.run(session, arguments), Status()]


def _run_text(session: Session, cursor: Cursor) -> list[Outcome]:
    """EXEC (N'…'): a batch of its own, which is compiled when it is run [DOC: EXECUTE]."""
    text = str(_value(session, cursor))
    cursor.expect(")")
    if cursor.word:
        raise cursor.wrong()
    return [outcome for inner in compiled(text) for outcome in session.statement(inner)]


def _arguments(session: Session, cursor: Cursor, procedure: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    position = 0
    while cursor.word:
        first = cursor.token()
        if first.text.startswith("@") and cursor.take("="):
            name = first.text.lower()
        else:
            cursor.index -= 1
            name = parameters[position] if position < len(parameters) else f"@{position}"
        if name not in parameters:
            raise SqlError(8145, f"{name} is not a parameter for procedure {procedure}.", state=2)
        values[name] = _value(session, cursor)
        position += 1
        if not cursor.take(","):
            break
    if cursor.word:
        raise cursor.wrong()
    return values


def _value(session: Session, cursor: Cursor) -> Any:
    token = cursor.token()
    if token.text.startswith("@"):
        bound = session.variables.get(token.text.lower())
        if bound is None:
            raise SqlError(137, f'Must declare the scalar variable "{token.text}".', state=2, severity=15)
        return bound.value
    if token.kind == "string":
        return token.text.removeprefix("N").removeprefix("n")[1:-1].replace("''", "'")
    if token.kind == "hex":
        return bytes.fromhex(token.text[2:])
    if token.text == "-":
        return -int(cursor.token().text)
    if token.kind == "number":
        return int(token.text) if token.text.isdigit() else float(token.text)
    return None if token.word in {"NULL", "DEFAULT"} else unbracketed(token.text)


def _rename(session: Session, arguments: Arguments) -> list[Outcome]:
    tables.rename(session, arguments["@objname"], arguments["@newname"], arguments.get("@objtype") or "OBJECT")
    return []


_CONFIGURED: Final = {
    "max text repl size (B)": "max_text_repl_size_configured",
    "user options": "user_options_configured",
}


def _configure(session: Session, arguments: Arguments) -> list[Outcome]:
    option, value = arguments.get("@configname"), arguments.get("@configvalue")
    if option == "show advanced options":
        return []
    # A beginning of the name is enough [DOC: sp_configure].
    noted = next((column for name, column in _CONFIGURED.items() if name.startswith(str(option))), None)
    if noted is None:
        raise SqlError(15123, f"The configuration option '{option}' does not exist, or the model does not have it.")
    session.model.execute(f"UPDATE sqlserver.database SET {noted} = %s", [value])
    return []


def _datatype_info(_: Session, arguments: Arguments) -> list[Outcome]:
    return [datatype_info(arguments.get("@data_type") or 0)]


PROCEDURES: Final[Mapping[str, Described]] = {
    "sp_datatype_info": Described(_datatype_info, "@data_type", "@odbcver"),
    "sp_datatype_info_100": Described(_datatype_info, "@data_type", "@odbcver"),
    "sp_rename": Described(_rename, "@objname", "@newname", "@objtype"),
    "sp_configure": Described(_configure, "@configname", "@configvalue"),
    **extended_properties.PROCEDURES,
}
