"""The one type mapping: a column's MySQL or MariaDB type → canonical Arrow type, for log, chunks and discovery alike.

| Column type | Arrow | canonical value |
|---|---|---|
| TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT | int8, int16, int32, int32, int64 | TINYINT(1) is an int8: the log does not tell it |
| the same UNSIGNED | int16, int32, int32, int64, decimal128(20,0) | |
| DECIMAL(p,s) | decimal128(p,s), decimal256(p,s) from p 39 | exact |
| FLOAT, DOUBLE | float, double | the stored bits: a chunk reads `col + 0e0` and narrows FLOAT |
| BIT(1), BIT(2..63), BIT(64) | bool, int64, decimal128(20,0) | the number |
| YEAR | int16 | 0 is 0 |
| DATE | date32 | zero and partial dates: setting `unrepresentable` |
| DATETIME | timestamp[us] | likewise |
| TIMESTAMP | timestamp[us, UTC] | likewise; sessions run in UTC |
| TIME(f) | string | what SELECT writes: `-838:59:59.000000`, always f digits. No time of day: negative, and up to 838 hours |
| CHAR, VARCHAR, TEXT | string | as stored, converted to UTF-8 as the server does; CHAR without trailing spaces |
| ENUM | string | the label; the invalid value is '' |
| SET | string | labels in the order of definition, joined by commas |
| BINARY(n) | binary | n bytes: trailing zeros are restored |
| VARBINARY, BLOB | binary | |
| JSON (MySQL) | string | what SELECT writes: `{"a": 1, "b": [true, null]}` |
| JSON (MariaDB) | string | the text itself |
| UUID, INET6, INET4 (MariaDB) | string | what SELECT writes |
| GEOMETRY and its kinds | binary | SRID (4 bytes, little-endian) and WKB, as SELECT gives |
| VECTOR | binary | float32, little-endian, as SELECT gives |
| … COMPRESSED (MariaDB) | as without | uncompressed |

Columns added by MySQL's `sql_generate_invisible_primary_key`, invisible and generated columns are columns like others wherever the row image has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import pyarrow as pa

from replicator_source_mysql.binlog.events import Flavor
from replicator_source_mysql.binlog.tablemap import MapColumn

Unrepresentable = Literal["fail", "null"]


class Kind(StrEnum):
    """What a value is, whatever its width."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    BIT = "bit"
    YEAR = "year"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TEXT = "text"
    BYTES = "bytes"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"
    GEOMETRY = "geometry"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """What of a column's type bears on its values.

    `arrow` follows from the others. `width`: bytes of an integer, bits of BIT, bytes of BINARY (`is_fixed`), else 0. `charset` is the
    server's name of the character set of TEXT, ENUM and SET. `scale` is DECIMAL's scale or a time's number of digits.
    """

    kind: Kind
    width: int = 0
    precision: int = 0
    scale: int = 0
    is_unsigned: bool = False
    is_fixed: bool = False
    charset: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """The canonical type."""
        raise NotImplementedError


def declared_spec(column_type: str, charset: str | None, flavor: Flavor) -> ColumnSpec | None:
    """The spec of a column from the catalogue.

    Args:
        column_type: `information_schema.columns.column_type`: `int(10) unsigned`, `enum('a','b')`, `varchar(20)`.
        charset: `character_set_name` of the same row.
        flavor: Whose catalogue.

    Returns:
        None if the type is not known: discovery then refuses the table with `UnsupportedTypeError`.
    """
    raise NotImplementedError


def logged_spec(column: MapColumn, declared: ColumnSpec | None, flavor: Flavor) -> ColumnSpec:
    """The spec of a column from the log, with what the log does not tell (UUID, INET, MariaDB's JSON) from the schema history.

    Raises:
        UnsupportedTypeError: `unsupported_type`: no such type is known. Holds no table: the caller knows it.
        SchemaConflictError: `schema_mismatch`: log and `declared` cannot be the same column.
    """
    raise NotImplementedError
