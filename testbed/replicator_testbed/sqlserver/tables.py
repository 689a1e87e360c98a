"""SQL Server's types with values at their edges, as far as the model has them, and what a table of them holds."""

from __future__ import annotations

import datetime as dt
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.databases import SqlServerDatabase  # with packages of an extra

# The values are expressions of T-SQL.
NUMBERS: Final[Mapping[str, Sequence[str]]] = {
    "bit": ["0", "1"],
    "tinyint": ["0", "1", "255"],
    "smallint": ["-32768", "32767", "0", "-1"],
    "int": ["-2147483648", "2147483647", "0", "100"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "0"],
    "decimal(38,10)": ["-1234567890123456789012345678.0123456789", "0.0000000001", "0", "-0.5"],
    "decimal(38,0)": ["9" * 38, "-" + "9" * 38, "0"],
    "decimal(38,38)": ["0." + "9" * 38, "-0." + "0" * 37 + "1", "0"],
    "decimal(1,0)": ["9", "-9"],
    "numeric(12,2)": ["1.1", "-0.01", "0.00", "9999999999.99", "-1234567890.12"],
    "money": ["-922337203685477.5808", "922337203685477.5807", "0.0001", "0", "1234567.8"],
    "smallmoney": ["-214748.3648", "214748.3647", "-0.5"],
}
FLOATS: Final[Mapping[str, Sequence[str]]] = {
    "float": ["0.1", "-1.7976931348623157E+308", "5E-324", "1E+23", "9007199254740993.0", "1500.0", "0", "2.2250738585072014E-308", "0.3"],
    "real": ["0.1", "3.4028235E+38", "1E-45", "16777217.0", "0", "-0.3"],
}  # fmt: skip
TIMES: Final[Mapping[str, Sequence[str]]] = {
    "date": ["'0001-01-01'", "'9999-12-31'", "'1970-01-01'", "'1969-12-31'", "'2024-02-29'", "'1900-02-28'"],
    **{f"time({n})": ["'00:00:00'", "'23:59:59'", "'12:34:56.654321'"] for n in (0, 3, 6, 7)},
    **{
        f"datetime2({n})": ["'0001-01-01T00:00:00'", "'9999-12-31T23:59:59'", "'1969-12-31T23:59:59.5'", "'2024-02-29T02:30:00.123456'"]
        for n in (0, 3, 6, 7)
    },
    "datetime": ["'1753-01-01T00:00:00.003'", "'1998-01-02T03:04:05.678'", "'9999-12-31T23:59:59.997'", "'1969-12-31T23:59:59.997'"],
    "smalldatetime": ["'1900-01-01T00:00:00'", "'2079-06-06T23:59:00'"],
    "datetimeoffset(6)": [
        "'0001-01-01T00:00:00+00:00'", "'9999-12-31T23:59:59.999999+00:00'", "'2026-01-02T03:04:05.678901+05:30'",
        "'1970-01-01T00:00:00-14:00'",
    ],
}  # fmt: skip
TEXTS: Final[Mapping[str, Sequence[str]]] = {
    "char(5)": ["'Ab 1'", "'ab'", "''", "'abcde'"],
    "nchar(5)": ["N'Ż 1'", "N'żó'", "N''"],
    "varchar(40)": ["'Ab 1'", "N'café €'", "''", "'a  '", "'NULL'", "','"],
    "varchar(8000) COLLATE Latin1_General_BIN2": ["'Ab 1'", "REPLICATE('x', 256)", "REPLICATE('x', 257)", "REPLICATE('x', 8000)"],
    "varchar(max)": ["'Ab 1'", "REPLICATE('x', 5000)", "''", "'a '"],
    "nvarchar(300) COLLATE Latin1_General_CS_AS": [
         "N'Łódź 90'", "REPLICATE(N'🐢', 64)", "CONCAT(REPLICATE(N'🐢', 64), N'a')", "N'A'", "N'a'",
    ],
    "nvarchar(max)": ["N'Łódź 90'", "N''", "N' '", "CONCAT(REPLICATE(N'ż', 3000), N'🐢')", "CONCAT(N'a', NCHAR(0), N'b')"],
    "text": ["'Ab 1'", "'old text'", "REPLICATE('t', 300)", "''"],
    "ntext": ["N'Łódź 90'", "N'żółw 🐢'"],
    "xml": ["N'<A>1</A>'", "N'<a>ż</a>'"],
    "uniqueidentifier": ["'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'6F9619FF-8B86-D011-B42D-00C04FC964FF'"],
    "binary(4)": ["0x0102", "0xffffffff"],
    "varbinary(300)": ["0x00ff", "CONVERT(varbinary(20), '0x', 1)", "0x" + "61" * 300],
    "varbinary(max)": ["CONVERT(varbinary(20), '0x', 1)", "0x6100", "0x" + bytes(range(256)).hex() * 40],
    "image": ["0x0505"],
}  # fmt: skip
SHAPES: Final[Mapping[str, Sequence[str]]] = {
    "geometry": [
        "'POINT (1 2)'",
        "'LINESTRING (0 0 7, 1.5 -1 8)'",
        "'POLYGON EMPTY'",
        "geometry::STGeomFromText('POINT (1 2)', 27700)",
    ],
    "geography": ["'POINT (21.01 52.23 100 NULL)'", "'POLYGON ((0 0, 1 0, 1 1, 0 0))'"],
}
NODES: Final[Mapping[str, Sequence[str]]] = {
    "hierarchyid": ["'/'", "'/1/'", "'/1/10/'", "'/1/2/'", "'/1.1/'", "'/-3/'"]
}
OWN: Final[Mapping[str, Sequence[str]]] = {"sysname": ["N'Łódź 90'", "N'żółw'"], **NODES, **SHAPES}
"""Types of .NET, and an alias. They are in none of the drawn tables."""
OTHER_CODE_PAGES: Final[Mapping[str, Sequence[str]]] = {
    "varchar(40) COLLATE Polish_CI_AS": ["N'Łódź 90'", "N'żółw ąę'"],
    "varchar(900) COLLATE Latin1_General_100_CI_AS_SC_UTF8": [
        "N'Łódź 90'", "N'żółw 🐢'", "CAST(REPLICATE(N'é', 128) AS nvarchar(400))", "CAST(REPLICATE(N'é', 129) AS nvarchar(400))",
    ],
}  # fmt: skip
"""Text in other code pages than the database's: change tables may have it wrong, so these are for snapshots alone."""
KEYS: Final[Mapping[str, Sequence[str]]] = {
    "bit": ["0", "1"],
    "tinyint": ["0", "255", "9", "10"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "0", "9", "10", "-9", "-10"],
    "decimal(20,5)": ["-1.5", "0", "7.00001", "10", "9.5", "-10"],
    "money": ["-1.5", "0", "922337203685477.5807"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "'2024-02-29'"],
    "datetime": ["'1753-01-01T00:00:00.003'", "'1998-01-02T03:04:05.678'", "'1998-01-02T03:04:05.680'", "'9999-12-31T23:59:59.997'"],
    "smalldatetime": ["'1900-01-01T00:00:00'", "'2079-06-06T23:59:00'"],
    "datetime2(6)": ["'0001-01-01T00:00:00'", "'2000-01-01T00:00:00.000001'", "'2000-01-01T00:00:00.000002'", "'1969-12-31T23:59:59.9'"],
    "datetimeoffset(3)": ["'2026-01-02T03:04:05.678+05:30'", "'2026-01-02T03:04:05.678+05:00'", "'1969-12-31T23:00:00-01:00'"],
    "binary(3)": ["0x000000", "0x610000", "0x616263", "0xff0000"],
}  # fmt: skip
"""Types of keys that have ranges when they are verified."""
OTHER_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "time(3)": ["'00:00:00'", "'23:59:59.999'"],
    "varbinary(20)": ["CONVERT(varbinary(20), '0x', 1)", "0x0001", "0xff27", "0x01"],
    "varbinary(4001)": ["0x00", "0xff27"],
    "char(5)": ["'a'", "'B'", "'c d'"],
    "varchar(20) COLLATE Latin1_General_CI_AS": ["N'a'", "N'B'", "N'é'", "'c''d'", "'e,f'", "''", "'x '"],
    "varchar(20) COLLATE Latin1_General_100_BIN2_UTF8": ["N'a'", "N'B'", "N'é🐢'"],
    "nvarchar(450) COLLATE Latin1_General_BIN2": ["N'a'", "N'A'", "CONCAT(N'a', NCHAR(0), N'b')", "N'🐢'", "REPLICATE(N'ż', 400)"],
    "uniqueidentifier": [
        "'00000000-0000-0000-0000-000000000001'", "'6F9619FF-8B86-D011-B42D-00C04FC964FF'", "'ffffffff-0000-0000-0000-000000000000'",
    ],
    "sysname": ["N'a'", "N'B'", "N'żółw'"],
    **NODES,
}  # fmt: skip
ALL: Final[Mapping[str, Sequence[str]]] = {**NUMBERS, **FLOATS, **TIMES, **TEXTS}
WITH_A_KEY_ONLY: Final = ("bit", "(max)", "text", "ntext", "image", "xml", "geometry", "geography")
"""How the names of types end that a table without a key may not have."""

_EPOCH: Final = dt.datetime(1970, 1, 1)
_DAY_ZERO: Final = dt.date(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_REALS: Final = {"real": ">f", "float": ">d"}
_SELECTED: Final = {
    "datetimeoffset": "CAST(SWITCHOFFSET({}, '+00:00') AS datetime2(7))",
    "hierarchyid": "{}.ToString()",
    "geometry": "{}.AsBinaryZM()",
    "geography": "{}.AsBinaryZM()",
}
_COLUMNS: Final = """
SELECT c.name, t.name FROM sys.columns c JOIN sys.types t ON t.user_type_id = c.user_type_id
WHERE c.object_id = OBJECT_ID(N'dbo.{table}') ORDER BY c.column_id
"""


def source_rows(database: SqlServerDatabase, table: str) -> Counter[tuple[Any, ...]]:
    """A table's own rows as the driver gives them, in the forms of `postgresql.rows.plain_value`; a time is a text."""
    columns = database.execute(_COLUMNS.format(table=table))
    selected = ", ".join(_SELECTED.get(kind, "{}").format(f"[{name}]") for name, kind in columns)
    with closing(database.connect()) as connection:
        rows = connection.execute(f"SELECT {selected} FROM dbo.[{table}]").fetchall()
    return Counter(
        tuple(plain_value(value, kind) for value, (_, kind) in zip(row, columns, strict=True)) for row in rows
    )


def plain_value(value: Any, kind: str) -> str | None:  # noqa: PLR0911 - one for each type
    """A value of Python as `source_rows` has it; `kind`: the name of its type."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            return struct.pack(_REALS[kind], value).hex()
        case bytes():
            return value.hex()
        case Decimal():
            return format(value, "f")
        case dt.datetime():
            return str((value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND)
        case dt.date():
            return str((value - _DAY_ZERO).days)
        case dt.time():
            return value.isoformat("microseconds")
    return str(value).lower() if kind == "uniqueidentifier" else str(value)
