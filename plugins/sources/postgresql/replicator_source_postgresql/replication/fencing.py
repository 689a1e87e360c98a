"""Name a replicator's reader of the slot at the server, and end the reader of an earlier epoch."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from replicator.plugins import get_logger
from replicator.plugins.source import SourceContext

VERSION_TERMINATE_WAITS: Final = 140000
"""The first version whose `pg_terminate_backend` can wait until the process has ended."""

_NAME_BYTES_MAX: Final = 63
_WAIT_MS: Final = 5000

_log = get_logger(__name__)


def application_name(context: SourceContext) -> str:
    """Return the name of the replicator's connections in `pg_stat_activity`: `replicator NAME`, as much of it as the server keeps."""
    return _shortened(f"replicator {context.replicator}", _NAME_BYTES_MAX)


def reader_name(context: SourceContext) -> str:
    """Return the name of the connection that reads the slot: as `application_name`, with the replicator's uuid and the lease's epoch."""
    suffix = f" {_identity(context)}/{context.epoch}"
    return _shortened(f"replicator {context.replicator}", _NAME_BYTES_MAX - len(suffix)) + suffix


def end_fenced_reader(connection: psycopg.Connection[Any], pid: int, context: SourceContext) -> bool:
    """End the server process of a reader of the same replicator whose epoch is below ours; return whether there was one.

    A worker that was stopped, or whose host has no power or network, cannot close its connection, and the server keeps the slot for it
    until `wal_sender_timeout`. The holder of a later lease knows that this reader has lost its own. Readers of others are left alone.

    Args:
        connection: A connection of the same role as the reader, which therefore may end it.
        pid: The server process that has the slot.
        context: The replicator's; epoch 0 has no lease and ends nobody.
    """
    row = connection.execute("SELECT application_name FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
    name = row[0] if row is not None else None
    match = re.search(r" (\w+)/(\d+)$", name or "")
    if match is None or not context.uuid or match[1] != _identity(context) or int(match[2]) >= context.epoch:
        return False
    wait = f", {_WAIT_MS}" if connection.info.server_version >= VERSION_TERMINATE_WAITS else ""
    # By name again: the process may have ended, and another one may have its number.
    ended = connection.execute(
        f"SELECT pg_terminate_backend(pid{wait}) FROM pg_stat_activity"  # noqa: S608 our own text
        " WHERE pid = %s AND application_name = %s AND usename = current_user".encode(),
        (pid, name),
    ).fetchone()
    if ended is None:
        return False
    _log.warning("slot_reader_ended", pid=pid, epoch=match[2])
    return True


def _identity(context: SourceContext) -> str:
    return context.uuid.replace("-", "")[:12]


def _shortened(name: str, size: int) -> str:
    return name.encode()[:size].decode(errors="ignore")
