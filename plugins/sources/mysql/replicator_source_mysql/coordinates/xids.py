"""Names of XA transactions, and those that the server says are prepared."""

from __future__ import annotations

import re
from typing import Final

import pymysql

from replicator_source_mysql.connecting.connection import Connection, flavor_of, rows_of
from replicator_source_mysql.events import xid_text

# Of MariaDB `X'61',X'62',1` or `'a','b',1`, of MySQL `0x6162`.
_NAME_PART: Final = re.compile(r"X'([0-9A-Fa-f]+)'|'([^']*)'|0x([0-9A-Fa-f]+)")
# MySQL without XA_RECOVER_ADMIN.
_NOT_ALLOWED: Final = 1401


def prepared_xids(connection: Connection) -> frozenset[str]:
    """Names that XA RECOVER lists, as `xid_text` writes them; on MariaDB transactions being committed are among them.

    Raises:
        pymysql.MySQLError: Also where our account may not ask.
    """
    return frozenset(
        xid_of_sql(int(format_id), int(gtrid_size), text)
        for format_id, gtrid_size, _, text in rows_of(connection, flavor_of(connection).recover_statement)
    )


def prepared_xids_if_allowed(connection: Connection) -> frozenset[str]:
    """The same as `prepared_xids`; empty where our account may not ask."""
    try:
        return prepared_xids(connection)
    except pymysql.err.OperationalError as error:
        if error.args[0] != _NOT_ALLOWED:
            raise
        return frozenset()


def xid_of_sql(format_id: int, gtrid_size: int, text: str) -> str:
    """One spelling of a name that the server writes as one or two strings, plain or in hexadecimal digits."""
    raw = b"".join(
        bytes.fromhex(digits or plain_digits) if digits or plain_digits else plain.encode()
        for digits, plain, plain_digits in _NAME_PART.findall(text)
    )
    return xid_text(raw[:gtrid_size], raw[gtrid_size:], format_id)
