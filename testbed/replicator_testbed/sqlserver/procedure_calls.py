"""The system procedures that drivers call by RPC: statements with parameters, prepared statements, and what types there are."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.datatypes import datatype_info
from replicator_testbed.sqlserver.outcomes import Bound, Outcome, SqlError, Status
from replicator_testbed.sqlserver.sqltypes import SqlType
from replicator_testbed.sqlserver.tds.requests import Call, Parameter

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.connection import Session

_DECLARATION: Final = re.compile(
    r"\s*(@[\w$#@]+)\s+(?:as\s+)?([^,(]+(?:\([^)]*\))?)\s*(?:output|out)?\s*(?:,|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that a driver prepared."""

    declaration: str
    statement: str


def run(
    session: Session, call: Call, prepared: MutableMapping[int, Prepared], *, prepared_max: int
) -> tuple[list[Outcome], int | None]:
    """Run a call; the second value is the handle of a statement that was prepared.

    Raises:
        SqlError: There is no such procedure, or no such handle.
    """
    values = call.values
    match call.procedure.lower().replace("[", "").replace("]", "").removeprefix("sys."):
        case "sp_executesql" if values:
            declaration = _text(values[1]) if len(values) > 1 else ""
            return session.run(_text(values[0]), bind(declaration, call.parameters[2:])), None
        case "sp_prepare" if len(values) > 2:
            return [], _prepare(prepared, Prepared(_text(values[1]), _text(values[2])), prepared_max)
        case "sp_prepexec" if len(values) > 2:
            statement = Prepared(_text(values[1]), _text(values[2]))
            handle = _prepare(prepared, statement, prepared_max)
            return session.run(statement.statement, bind(statement.declaration, call.parameters[3:])), handle
        case "sp_execute" if values:
            statement = _prepared(prepared, values[0])
            return session.run(statement.statement, bind(statement.declaration, call.parameters[1:])), None
        case "sp_unprepare" if values:
            _prepared(prepared, values[0])
            del prepared[values[0]]
            return [Status()], None
        case "sp_describe_undeclared_parameters" if values:
            return [session.undeclared(_text(values[0])), Status()], None
        case "sp_datatype_info_100" | "sp_datatype_info":
            return [datatype_info(values[0] if values else 0), Status()], None
        case name if name.startswith("sp_cursor"):
            raise SqlError(16938, f"{name}: the model has no server cursors.")
        case _:
            arguments = ", ".join(f"{p.name} = @p{i}" if p.name else f"@p{i}" for i, p in enumerate(call.parameters))
            bound = [Bound(f"@p{i}", None, p.value) for i, p in enumerate(call.parameters)]
            return session.run(f"EXEC {call.procedure} {arguments}", bound), None


def bind(declaration: str, parameters: Sequence[Parameter]) -> list[Bound]:
    """Give each value its declared name and type: by its own name where it has one, else by its position.

    Raises:
        SqlError: 8178, a parameter has no value; or 8144, there are more values than parameters.
    """
    declared = declarations(declaration)
    if len(parameters) > len(declared):
        raise SqlError(8144, "Procedure or function  has too many arguments specified.", state=2)
    names = {name.lower(): index for index, (name, _) in enumerate(declared)}
    values: dict[int, Any] = {}
    for position, parameter in enumerate(parameters):
        values[names.get(parameter.name.lower(), position)] = parameter.value
    for index, (name, _) in enumerate(declared):
        if index not in values:
            raise SqlError(8178, f"The parameterized query expects the parameter '{name}', which was not supplied.")
    return [Bound(name, kind, values[index]) for index, (name, kind) in enumerate(declared)]


def declarations(text: str) -> list[tuple[str, SqlType]]:
    """The parameters that a text such as `@P1 int, @P2 nvarchar(40)` declares.

    Raises:
        SqlError: It cannot be read, or names a type that the model does not have.
    """
    found: list[tuple[str, SqlType]] = []
    offset = 0
    while offset < len(text.rstrip()):
        one = _DECLARATION.match(text, offset)
        if one is None:
            raise SqlError(102, f"Incorrect syntax near '{text[offset : offset + 20]}'.", severity=15)
        try:
            found.append((one[1], sqltypes.parse(one[2], in_cast=True)))
        except sqltypes.UnknownTypeError as unknown:
            raise SqlError(2715, str(unknown)) from unknown
        offset = one.end()
    return found


def _prepare(prepared: MutableMapping[int, Prepared], statement: Prepared, prepared_max: int) -> int:
    if len(prepared) >= prepared_max:
        raise SqlError(701, f"A connection of the model holds at most {prepared_max} prepared statements.", severity=17)
    handle = max(prepared, default=0) + 1
    prepared[handle] = statement
    return handle


def _prepared(prepared: MutableMapping[int, Prepared], handle: Any) -> Prepared:
    if handle not in prepared:
        raise SqlError(8179, f"Could not find prepared statement with handle {handle}.")
    return prepared[handle]


def _text(value: Any) -> str:
    return "" if value is None else str(value)
