"""Events within events: MySQL's TRANSACTION_PAYLOAD and MariaDB's compressed events, with a cap on what they may become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InnerEvent:
    """An event out of a TRANSACTION_PAYLOAD: header fields and body (no checksum inside).

    `timestamp` is in seconds; `log_pos` is the outer event's own affair and not here.
    """

    timestamp: int
    type_code: int
    server_id: int
    flags: int
    body: memoryview


def transaction_payload(body: bytes | memoryview, *, size_max: int) -> Iterator[InnerEvent]:
    """The events of a TRANSACTION_PAYLOAD event's body, in order, uncompressed piece by piece.

    Args:
        body: The event's body.
        size_max: Bytes that the whole may become.

    Raises:
        CorruptStreamError: `corrupt_binlog_event`, also if it would become larger than `size_max` or than it says itself.
    """
    raise NotImplementedError


def uncompressed_body(type_code: int, body: bytes | memoryview, *, size_max: int) -> tuple[int, bytes]:
    """The plain type code and body of one of MariaDB's compressed events (165 to 171).

    A QUERY_COMPRESSED becomes a QUERY (2), a rows event what `MARIADB_COMPRESSED` says.

    Raises:
        CorruptStreamError: `corrupt_binlog_event`, also if it would become larger than `size_max`.
    """
    raise NotImplementedError
