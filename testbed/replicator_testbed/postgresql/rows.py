"""What an odd PostgreSQL table holds, as the server itself spells it.

Compared value by value: floats by their bits, times by their microseconds, everything else by its output function. Nothing of the source
plugin has a part in that.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.tables import OddTable, connection_to, quoted


def source_rows(database: ScratchDatabase, table: OddTable, *, has_times: bool = True) -> Counter[tuple[Any, ...]]:
    """The table's own rows as the server spells them, in the forms of `plain_value`.

    `has_times`: the target has a type for a time of day; else it is a text there.
    """
    spelling = _SPELLED if has_times else {**_SPELLED, _TIME: "to_char({0}, 'HH24:MI:SS.US')"}
    with connection_to(database) as connection:
        columns = connection.execute(
            "SELECT a.attname, a.atttypid::int8, e.oid::int8 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
            " LEFT JOIN pg_type b ON b.oid = t.typbasetype LEFT JOIN pg_type e ON e.typarray = coalesce(b.oid, t.oid)"
            " WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum",
            (table.sql_name,),
        ).fetchall()
        spelled = ", ".join(_spelled(quoted(name), type_, element, spelling) for name, type_, element in columns)
        only = "" if table.name == "parts" else "ONLY "
        rows = connection.execute(f"SELECT {spelled} FROM {only}{table.sql_name}".encode()).fetchall()
        return Counter(tuple(_tuple(value) for value in row) for row in rows)


# Type's oid → how its values are asked for; the rest by their output functions.
_TIME: Final = 1083
_MICROSECONDS: Final = "(extract(epoch FROM {0})::numeric * 1000000)::int8::text"
_SPELLED: Final[Mapping[int, str]] = {
    16: "{0}::text",
    17: "encode({0}, 'hex')",
    700: "encode(float4send({0}), 'hex')",
    701: "encode(float8send({0}), 'hex')",
    1082: "({0} - date '1970-01-01')::text",
    _TIME: _MICROSECONDS,
    1114: _MICROSECONDS,
    1184: _MICROSECONDS,
}
_BY_OUTPUT: Final = "CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {0}) END"


def _spelled(column: str, type_: int, element: int | None, spelling: Mapping[int, str]) -> str:
    if element is None:
        return spelling.get(type_, _BY_OUTPUT).format(column)
    each = spelling.get(element, _BY_OUTPUT).format("e")
    # Not unnest, which makes the fields of composites columns of their own.
    elements = f"(SELECT ({column})[n] AS e, n FROM generate_subscripts({column}, 1) AS n) AS u"
    array = f"ARRAY(SELECT {each} FROM {elements} ORDER BY n)"
    return f"CASE WHEN {column} IS NOT NULL THEN {array} END"


def plain_array(array: pa.Array) -> pa.Array:
    """Values that Python's calendar cannot hold as the numbers that they are, at any depth."""
    kind = array.type
    if pa.types.is_struct(kind):
        children = [plain_array(array.field(n)) for n in range(kind.num_fields)]
        fields = [pa.field(kind.field(n).name, child.type) for n, child in enumerate(children)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null()) if fields else array
    if pa.types.is_list(kind):
        array = array.take(pa.array(range(len(array)), pa.int64()))  # a slice has offsets that begin elsewhere
        return pa.ListArray.from_arrays(array.offsets, plain_array(array.values), mask=array.is_null())
    if pa.types.is_date32(kind):
        return array.view(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.view(pa.int64())
    if pa.types.is_float32(kind):
        return array.view(pa.int32())
    return array.view(pa.int64()) if pa.types.is_float64(kind) else array


def plain_value(value: Any, kind: pa.DataType) -> Any:
    """A value of `plain_array` as `source_rows` has it: a text, a tuple of texts, or None."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return tuple(plain_value(element, kind.value_type) for element in value)
    if pa.types.is_floating(kind):
        return _bits(value, 4 if pa.types.is_float32(kind) else 8)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _bits(value: int, size: int) -> str:
    """Every NaN is one."""
    raw = value.to_bytes(size, "big", signed=True)
    if math.isnan(struct.unpack(">f" if size == 4 else ">d", raw)[0]):
        return "7fc00000" if size == 4 else "7ff8000000000000"
    return raw.hex()


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
