"""What a client asks: a batch, a remote procedure call, or a transaction."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from replicator_testbed.sqlserver.tds.packets import ProtocolError, Reader, wide
from replicator_testbed.sqlserver.tds.values import read_parameter

PARAMETERS_MAX: Final = 2100
"""Of a call [DOC: maximum capacity specifications]."""

PROCEDURES: Final[Mapping[int, str]] = {
    1: "sp_cursor",
    2: "sp_cursoropen",
    3: "sp_cursorprepare",
    4: "sp_cursorexecute",
    5: "sp_cursorprepexec",
    6: "sp_cursorunprepare",
    7: "sp_cursorfetch",
    8: "sp_cursoroption",
    9: "sp_cursorclose",
    10: "sp_executesql",
    11: "sp_prepare",
    12: "sp_execute",
    13: "sp_prepexec",
    14: "sp_prepexecrpc",
    15: "sp_unprepare",
}
"""Procedures that a client may call by number."""
_BY_NUMBER: Final = 0xFFFF


class TransactionRequest(IntEnum):
    """What a transaction manager request asks."""

    BEGIN = 5
    COMMIT = 7
    ROLLBACK = 8
    SAVE = 9


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a call."""

    name: str
    value: Any
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A remote procedure call."""

    procedure: str
    parameters: tuple[Parameter, ...]

    @property
    def values(self) -> list[Any]:
        """The parameters' values."""
        return [parameter.value for parameter in self.parameters]


@dataclass(frozen=True, slots=True)
class TransactionCall:
    """A transaction manager request; `name` is a savepoint's. `isolation` is 0 where none is asked for."""

    request: TransactionRequest
    name: str = ""
    isolation: int = 0
    begins_another: bool = False


def read_batch(content: bytes) -> str:
    """The statements of a SQL batch."""
    return wide(_without_headers(content))


def read_call(content: bytes) -> Call:
    """A remote procedure call.

    Raises:
        ProtocolError: It cannot be read, or has a parameter of a type that the model does not have.
    """
    reader = Reader(_without_headers(content))
    length = reader.number("H")
    if length == _BY_NUMBER:
        number = reader.number("H")
        procedure = PROCEDURES.get(number, f"procedure {number}")
    else:
        procedure = reader.text(length)
    reader.take(2)
    parameters: list[Parameter] = []
    while not reader.is_at_end:
        if len(parameters) == PARAMETERS_MAX:
            raise ProtocolError(f"a call has more than {PARAMETERS_MAX} parameters")
        name = reader.text(reader.number("B"))
        flags = reader.number("B")
        parameters.append(Parameter(name, read_parameter(reader), is_output=bool(flags & 1)))
    return Call(procedure, tuple(parameters))


def read_transaction(content: bytes) -> TransactionCall:
    """A transaction manager request.

    Raises:
        ProtocolError: The model does not know it: distributed transactions are not among its features.
    """
    reader = Reader(_without_headers(content))
    number = reader.number("H")
    try:
        request = TransactionRequest(number)
    except ValueError:
        raise ProtocolError(f"the model knows no transaction manager request {number}") from None
    if request is TransactionRequest.BEGIN:
        return TransactionCall(request, isolation=reader.number("B"))
    name = reader.take(reader.number("B"))
    if request is TransactionRequest.SAVE:
        return TransactionCall(request, name=wide(name))
    return TransactionCall(request, name=wide(name), begins_another=bool(reader.number("B") & 1))


def _without_headers(content: bytes) -> bytes:
    if len(content) < 4:
        raise ProtocolError("a request has no headers")
    (length,) = struct.unpack_from("<I", content)
    if not 4 <= length <= len(content):
        raise ProtocolError(f"the headers of a request claim to have {length} bytes")
    return content[length:]
