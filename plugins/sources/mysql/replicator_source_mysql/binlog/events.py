"""Numbers and framing of binlog events that carry rows.

A *body* stands between an event's common header (19 bytes) and its checksum (4 bytes where the format description
says so).
Sources: MySQL `libs/mysql/binlog/event/`, MariaDB `sql/log_event.h`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from replicator.model.errors import CorruptStreamError, FatalError

QUERY: Final = 2
TABLE_MAP: Final = 19
TRANSACTION_PAYLOAD: Final = 40


class RowsEvent(IntEnum):
    """Type codes of the rows events that a decoder takes. V2 differs from V1 by extra data after the flags."""

    WRITE_V1 = 23
    UPDATE_V1 = 24
    DELETE_V1 = 25
    WRITE_V2 = 30
    UPDATE_V2 = 31
    DELETE_V2 = 32


PARTIAL_UPDATE: Final = 39

MARIADB_COMPRESSED: Final = {
    166: RowsEvent.WRITE_V1,
    167: RowsEvent.UPDATE_V1,
    168: RowsEvent.DELETE_V1,
    169: RowsEvent.WRITE_V2,
    170: RowsEvent.UPDATE_V2,
    171: RowsEvent.DELETE_V2,
}
"""MariaDB's compressed rows events → the type that `compressed.uncompressed_body` makes of them."""

MARIADB_QUERY_COMPRESSED: Final = 165

TOO_LARGE: Final = "transaction_too_large"
"""Code of the error that `too_large` makes."""

_TABLE_ID_BYTES: Final = 6


def table_id(body: bytes | memoryview) -> int:
    """The table number that joins a TABLE_MAP (or its rows events) together; CorruptStreamError if the body is too short."""
    if len(body) < _TABLE_ID_BYTES:
        raise corrupt("A TABLE_MAP or rows event is shorter than its table number.")
    return int.from_bytes(body[:_TABLE_ID_BYTES], "little")


def corrupt(message: str, *, table: str | None = None) -> CorruptStreamError:
    """The error for bytes that are invalid. `message` holds no values."""
    return CorruptStreamError(
        message,
        code="corrupt_binlog_event",
        table=table,
        action="Check the source's binlog with mysqlbinlog --verify-binlog-checksum; if it is sound, report this as a bug.",
    )


def too_large(what: str, size: int, size_max: int) -> FatalError:
    """The error for an event that is larger than `source.transaction_bytes_max` once it is uncompressed."""
    return FatalError(
        f"{what} would become {size} bytes, more than source.transaction_bytes_max ({size_max}).",
        code=TOO_LARGE,
        action="Raise source.transaction_bytes_max.",
    )
