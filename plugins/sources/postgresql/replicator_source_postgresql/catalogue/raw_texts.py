"""Texts of the catalogue in a database without an encoding (`SQL_ASCII`), where names and comments may be any bytes.

The server would refuse to send them as UTF-8, and with them everything that one query asks about all tables. So they come as they
are, with a lone surrogate for each byte that is no text (`surrogateescape`). Such a text goes no further than `discovery`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from psycopg.abc import Buffer
from psycopg.adapt import Loader

from replicator_source_postgresql.types import RAW_SETTING

if TYPE_CHECKING:
    from replicator_source_postgresql.catalogue.discovery import Connection

_TEXT_TYPES: Final = ("name", "text", "varchar", "bpchar", '"char"')


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return _decoded(data)


class _JsonLoader(Loader):
    def load(self, data: Buffer) -> Any:
        return json.loads(_decoded(data))


def is_raw(connection: Connection) -> bool:
    """Return whether the database has no encoding, so that what brings values needs `RAW_SETTING`."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


@contextmanager
def catalogue_texts(connection: Connection) -> Iterator[None]:
    """Open a block in which the catalogue's texts can be read, whatever bytes they are; in a database without an encoding a transaction."""
    # Also in a database in UTF-8: the names of roles come from all databases, and the server sends them unseen.
    for type_ in _TEXT_TYPES:
        connection.adapters.register_loader(type_, _TextLoader)
    connection.adapters.register_loader("json", _JsonLoader)
    if not is_raw(connection):
        yield
        return
    with connection.transaction():
        connection.execute("SET LOCAL {} = '{}'".format(*RAW_SETTING).encode())
        yield


def is_text(text: str | None) -> bool:
    """Return whether every byte belongs to a character."""
    return text is None or text.isascii() or not any("\udc80" <= c <= "\udcff" for c in text)


def shown(text: str) -> str:
    r"""The text for people: a byte that is no text is spelled `\xff`."""
    return text if is_text(text) else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _decoded(data: Buffer) -> str:
    return bytes(data).decode("utf-8", "surrogateescape")
