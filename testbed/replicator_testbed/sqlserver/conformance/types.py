"""The types that the conformance script asks about, each with values at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TYPES: Final[Sequence[tuple[str, str, str]]] = (
    ("bit", "1", "0"),
    ("tinyint", "255", "0"),
    ("smallint", "-32768", "32767"),
    ("int", "-2147483648", "2147483647"),
    ("bigint", "-9223372036854775808", "9223372036854775807"),
    ("decimal(38,10)", "1234567890123456789012345678.0123456789", "-0.0000000001"),
    ("numeric(5,2)", "-999.99", "0.01"),
    ("money", "-922337203685477.5808", "0.0001"),
    ("smallmoney", "214748.3647", "-0.0001"),
    ("float", "1.5e300", "-0.1"),
    ("real", "1.5e30", "0.25"),
    ("char(5)", "'ab'", "''"),
    ("varchar(10)", "N'é'", "'ab '"),
    ("varchar(max)", "REPLICATE('x', 3000)", "'short'"),
    ("nchar(5)", "N'ab'", "N''"),
    ("nvarchar(10)", "N'żółw'", "N'🐢'"),
    ("nvarchar(max)", "REPLICATE(N'ż', 3000)", "N'short'"),
    ("text", "'text'", "'other'"),
    ("ntext", "N'żółw'", "N'other'"),
    ("binary(4)", "0x0102", "CAST('' AS varbinary(4))"),
    ("varbinary(10)", "0x0102", "CAST('' AS varbinary(10))"),
    ("varbinary(max)", "0x0102", "0x03"),
    ("image", "0x0102", "0x03"),
    ("uniqueidentifier", "'6F9619FF-8B86-D011-B42D-00C04FC964FF'", "'00000000-0000-0000-0000-000000000001'"),
    ("date", "'0001-01-01'", "'9999-12-31'"),
    ("time(7)", "'23:59:59.9999999'", "'00:00:00'"),
    ("datetime", "'1753-01-01T00:00:00.003'", "'9999-12-31T23:59:59.997'"),
    ("smalldatetime", "'1900-01-01T00:00:31.000'", "'2079-06-06T23:59:00.000'"),
    ("datetime2(7)", "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.9999999'"),
    ("datetime2(0)", "'2024-05-06 07:08:09.5'", "'2024-05-06 07:08:09.4'"),
    ("datetimeoffset(7)", "'2024-05-06 07:08:09.1234567 +02:00'", "'2024-05-06 07:08:09 -14:00'"),
    ("xml", "N'<a>ż</a>'", "N'<b/>'"),
    ("hierarchyid", "'/1/2/'", "'/'"),
    ("geometry", "'POINT (1 2)'", "'POINT EMPTY'"),
    ("geography", "'POINT (1 2)'", "'POINT EMPTY'"),
    ("sql_variant", "1", "N'a'"),
)
"""A type, a first value, and a second one; both are expressions of T-SQL.

A datetime has a T in front of its time: without it the server reads the date in the order of its language (error 242).
"""

IDENTITIES: Final = ("tinyint", "smallint", "int", "bigint", "numeric(9,0)", "numeric(18,0)")
"""Types of IDENTITY columns: change tables have them as an int or a bigint, according to the documentation."""
