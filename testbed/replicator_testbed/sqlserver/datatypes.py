"""What `sp_datatype_info` says of the types: both drivers ask it when they connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.outcomes import Rows
from replicator_testbed.sqlserver.sqltypes import TypeName
from replicator_testbed.sqlserver.tds.tokens import Column


def datatype_info(odbc_type: int) -> Rows:
    """What `sp_datatype_info_100` says of the types, of all or of one ODBC type."""
    columns = [Column(name, kind) for name, kind in _DATATYPE_COLUMNS]
    rows = [
        (
            *(name, odbc, size, prefix, suffix, params, 1, int(name in _CASED), 3, unsigned),
            *(int(name in {"money", "smallmoney"}), 0, name, None, None, odbc, None, radix, None, None),
        )
        for name, odbc, size, prefix, suffix, params, unsigned, radix in _DATATYPES
        if odbc_type in {0, odbc}
    ]
    return Rows(columns, rows)


_SMALLINT: Final = sqltypes.of(TypeName.SMALLINT)
_VARCHAR_32: Final = sqltypes.of(TypeName.VARCHAR, 32)
_DATATYPE_COLUMNS: Final = (
    ("TYPE_NAME", sqltypes.SYSNAME),
    ("DATA_TYPE", _SMALLINT),
    ("PRECISION", sqltypes.INT),
    ("LITERAL_PREFIX", _VARCHAR_32),
    ("LITERAL_SUFFIX", _VARCHAR_32),
    ("CREATE_PARAMS", _VARCHAR_32),
    ("NULLABLE", _SMALLINT),
    ("CASE_SENSITIVE", _SMALLINT),
    ("SEARCHABLE", _SMALLINT),
    ("UNSIGNED_ATTRIBUTE", _SMALLINT),
    ("MONEY", _SMALLINT),
    ("AUTO_INCREMENT", _SMALLINT),
    ("LOCAL_TYPE_NAME", sqltypes.SYSNAME),
    ("MINIMUM_SCALE", _SMALLINT),
    ("MAXIMUM_SCALE", _SMALLINT),
    ("SQL_DATA_TYPE", _SMALLINT),
    ("SQL_DATETIME_SUB", _SMALLINT),
    ("NUM_PREC_RADIX", sqltypes.INT),
    ("INTERVAL_PRECISION", _SMALLINT),
    ("USERTYPE", _SMALLINT),
)
_CASED: Final = frozenset({"char", "varchar", "text", "nchar", "nvarchar", "ntext", "sysname"})
_DATATYPES: Final[Sequence[tuple[str, int, int, str | None, str | None, str | None, int | None, int | None]]] = (
    ("datetimeoffset", -155, 34, "'", "'", "scale", None, None),
    ("time", -154, 16, "'", "'", "scale", None, None),
    ("xml", -152, 0, "N'", "'", None, None, None),
    ("uniqueidentifier", -11, 36, "'", "'", None, None, None),
    ("ntext", -10, 1073741823, "N'", "'", None, None, None),
    ("nvarchar", -9, 4000, "N'", "'", "max length", None, None),
    ("nchar", -8, 4000, "N'", "'", "length", None, None),
    ("bit", -7, 1, None, None, None, None, None),
    ("tinyint", -6, 3, None, None, None, 1, 10),
    ("bigint", -5, 19, None, None, None, 0, 10),
    ("image", -4, 2147483647, "0x", None, None, None, None),
    ("varbinary", -3, 8000, "0x", None, "max length", None, None),
    ("binary", -2, 8000, "0x", None, "length", None, None),
    ("timestamp", -2, 8, "0x", None, None, None, None),
    ("text", -1, 2147483647, "'", "'", None, None, None),
    ("char", 1, 8000, "'", "'", "length", None, None),
    ("numeric", 2, 38, None, None, "precision,scale", 0, 10),
    ("decimal", 3, 38, None, None, "precision,scale", 0, 10),
    ("money", 3, 19, "$", None, None, 0, 10),
    ("smallmoney", 3, 10, "$", None, None, 0, 10),
    ("int", 4, 10, None, None, None, 0, 10),
    ("smallint", 5, 5, None, None, None, 0, 10),
    ("float", 6, 53, None, None, None, 0, 2),
    ("real", 7, 24, None, None, None, 0, 2),
    ("varchar", 12, 8000, "'", "'", "max length", None, None),
    ("date", 91, 10, "'", "'", None, None, None),
    ("datetime2", 93, 27, "'", "'", "scale", None, None),
    ("datetime", 93, 23, "'", "'", None, None, None),
    ("smalldatetime", 93, 16, "'", "'", None, None, None),
)
"""Names, codes of ODBC, sizes, literals, parameters, signs and radices [DOC: sp_datatype_info]."""
