"""Row counts and checksums of whole tables, and a PostgreSQL table read by its own driver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Row count and a checksum over all rows as a multiset."""

    rows: int
    checksum: str


def source_rows(dsn: str, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
    """Read the source's table with psycopg."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    with psycopg.connect(dsn) as connection, connection.cursor(name="compare") as cursor:
        cursor.execute(sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(table)))
        yield from cursor


def columns(dsn: str, table: str) -> list[str]:
    """The source's column names, in order."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(sql.Identifier(table)))
        assert cursor.description is not None
        return [column.name for column in cursor.description]


def sum_rows(rows: Iterable[Sequence[Any]]) -> Sum:
    """Order-independent: the sum of the rows' digests, so that equal rows count as often as they stand there."""
    total = count = 0
    for row in rows:
        text = repr(list(map(_plain, row)))
        total = (total + int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())) % (1 << 128)
        count += 1
    return Sum(rows=count, checksum=f"{total:032x}"[:16])


def _plain(value: Any) -> Any:
    """A value in one spelling, where drivers have two: instants by their number, decimals without a point as whole numbers."""
    if isinstance(value, datetime) and value.tzinfo:
        return value.timestamp()
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)  # MySQL's BIGINT UNSIGNED is an int for its driver, and a decimal of 20 digits in the target
    return value
