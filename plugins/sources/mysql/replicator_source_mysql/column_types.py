"""Type codes of columns in TABLE_MAP events.

Sources: MySQL `include/field_types.h`, MariaDB `sql/field.h` (codes from 128: `MYSQL_TYPE_…_COMPRESSED`).
"""

from __future__ import annotations

from typing import Final

DECIMAL: Final = 0
TINY: Final = 1
SHORT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
TIMESTAMP: Final = 7
LONGLONG: Final = 8
INT24: Final = 9
DATE: Final = 10
TIME: Final = 11
DATETIME: Final = 12
YEAR: Final = 13
NEWDATE: Final = 14
VARCHAR: Final = 15
BIT: Final = 16
TIMESTAMP2: Final = 17
DATETIME2: Final = 18
TIME2: Final = 19
BLOB_COMPRESSED: Final = 140
VARCHAR_COMPRESSED: Final = 141
VECTOR: Final = 242
JSON: Final = 245
NEWDECIMAL: Final = 246
ENUM: Final = 247
SET: Final = 248
BLOB: Final = 252
VAR_STRING: Final = 253
STRING: Final = 254
GEOMETRY: Final = 255

OLD_TIMES: Final = frozenset({TIME, DATETIME, TIMESTAMP})
"""Times of tables from before MySQL 5.6, or of MariaDB without `mysql56_temporal_format`. MariaDB's may have fractions, and then
another length, of which the log says nothing (measured)."""

METADATA_SIZES: Final = {
    **dict.fromkeys((TINY, SHORT, LONG, LONGLONG, INT24, TIMESTAMP, DATE, TIME, DATETIME, YEAR, NEWDATE), 0),
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED, VECTOR, JSON, BLOB, GEOMETRY), 1),
    **dict.fromkeys((VARCHAR, VARCHAR_COMPRESSED, BIT, NEWDECIMAL, ENUM, SET, VAR_STRING, STRING), 2),
}
"""Bytes of metadata per type code; a code that is missing here is unknown."""

BIG_ENDIAN_METADATA: Final = frozenset({NEWDECIMAL, ENUM, SET, VAR_STRING, STRING})

NUMERIC: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR})
"""Types with a bit in the signedness of the optional metadata (measured on both servers: YEAR too)."""

CHARACTER: Final = frozenset({VARCHAR, VAR_STRING, STRING, BLOB})
"""Types that have a collation on every server."""
