"""What a state of a table has to answer: every type with its boundary values, and what Python computes of them."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit import canonical
from replicator.plugins.verification import VerifiedState
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testing.batches import insert
from replicator_testing.target_harness import Copy

UTC_US = pa.timestamp("us", tz="UTC")
D65 = pa.decimal256(65, 10)
LONG = "é" * 128

VALUES: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127, 0]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "f32": (pa.float32(), [0.1, -0.0, 1e-45, 3.4028235e38, math.nan, math.inf, -math.inf, 16777216.0]),
    "f64": (
        pa.float64(),
        [
            0.1 + 0.2, -0.0, 5e-324, -2.5e-320, 2.2250738585072014e-308, 1.7976931348623157e308, 1e22, 1e23, 1e15, 1e16, 1e-4, 1e-5,
            1500, -9007199254740993.0, 2.0**-44, 100, math.nan, math.inf, -math.inf,
        ],
    ),
    "d2": (pa.decimal128(2, 2), [Decimal("0.05"), Decimal("-0.50"), Decimal("0.00"), Decimal("0.99")]),
    "d9": (pa.decimal128(9, 4), [Decimal("-99999.9999"), Decimal("0.0001"), Decimal(-1) / 10, Decimal(120)]),
    "d20": (pa.decimal128(20, 0), [Decimal("9" * 20), Decimal(-1), Decimal(0), Decimal(1200)]),
    "d38": (pa.decimal128(38, 9), [Decimal("-" + "9" * 29 + "." + "9" * 9), Decimal("1e-9"), Decimal("1.5")]),
    "d65": (D65, [Decimal("-" + "9" * 55 + "." + "9" * 10), Decimal("1e-10"), Decimal("-1e-10"), Decimal(0)]),
    "label": (
        pa.string(),
        ["", " ", "a ", "a,b", "1:x", "\0", "a\0b", "\U0001f600", LONG, LONG + "x", "x" * 256, "x" * 257, "y" * 300_000],
    ),
    "content": (pa.binary(), [b"", b"\0", b"\xff\x00", b"x" * 1000]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1582, 10, 4)]),
    "hour": (pa.time64("us"), [time(0), time(23, 59, 59, 999999), time(12, 0, 0, 1), time(1, 2, 3, 100000)]),
    "ntz": (
        pa.timestamp("us"),
        [
            datetime.fromisoformat("0001-01-01T00:00:00"),
            datetime.fromisoformat("9999-12-31T23:59:59.999999"),
            datetime.fromisoformat("1969-12-31T23:59:59.999999"),
            datetime.fromisoformat("1582-10-04T00:00:00"),
        ],
    ),
    "tz": (
        UTC_US,
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        ],
    ),
    "ints": (pa.list_(pa.int32()), [[], [1, None, -3], [None]]),
    "names": (pa.list_(pa.string()), [[], ["a,b", None, "", "null", 'q"\\\n\t'], ["[", LONG + "x"], ["\U0001f600"]]),
    "reals": (pa.list_(pa.float64()), [[0.1, -0.0, math.nan, None, 5e-324, 1e23], [], [-math.inf, math.inf, 2.0**-44]]),
    "singles": (pa.list_(pa.float32()), [[0.1, 1e-45, None, 3.4028235e38, -1.1754942e-38], [math.nan, -math.inf, -0.0]]),
    "wides": (pa.list_(D65), [[Decimal("1.5"), None, Decimal("-" + "9" * 55 + "." + "9" * 10)]]),
    "moments": (pa.list_(UTC_US), [[datetime(2024, 2, 29, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]]),
    "locals": (pa.list_(pa.timestamp("us")), [[datetime.fromisoformat("0001-01-01T00:00:00"), None]]),
    "hours": (pa.list_(pa.time64("us")), [[time(1, 2, 3, 4), None]]),
    "blobs": (pa.list_(pa.binary()), [[b"\0", None, b"", b"\x9e\xe9\x65"]]),
    "flags": (pa.list_(pa.bool_()), [[True, False, None]]),
    "days": (pa.list_(pa.date32()), [[date(1, 1, 1), None]]),
}  # fmt: skip
"""By column: its type and its boundary values. Three bytes among the binary ones are `null` in base64."""

BIGNUMERIC: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "d38w": (pa.decimal128(38, 0), [Decimal("-" + "9" * 38), Decimal("9" * 38), Decimal(1200)]),
    "d38s": (pa.decimal128(38, 38), [Decimal("-0." + "9" * 38), Decimal("1e-38"), Decimal(0)]),
    "d50": (pa.decimal256(50, 20), [Decimal("-0.05"), Decimal("9" * 30 + "." + "9" * 20)]),
}
"""The same of a type that the emulator has no columns of."""


def schema_of(
    columns: Mapping[str, pa.DataType], key: Sequence[str] = ("id",), source_types: Mapping[str, str] | None = None
) -> TableSchema:
    """A schema with these columns."""
    return TableSchema(
        table=TableId("shop", "odd"),
        columns=tuple(
            Column(
                name=name,
                type=type_,
                source_type=(source_types or {}).get(name, "?"),
                nullable=name not in key,
                id=number,
            )
            for number, (name, type_) in enumerate(columns.items(), 1)
        ),
        key=tuple(key),
    )


def everything(columns: Mapping[str, tuple[pa.DataType, Sequence[Any]]]) -> TableSchema:
    """A schema with all of them, and an id."""
    return schema_of({"id": pa.int64(), **{name: type_ for name, (type_, _) in columns.items()}})


def boundary_rows(columns: Mapping[str, tuple[pa.DataType, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Rows of `everything` that have each value at least once, and NULL."""
    count = max(len(values) for _, values in columns.values())
    rows = [{"id": n, **{name: v[n % len(v)] for name, (_, v) in columns.items()}} for n in range(count)]
    return [*rows, {"id": count, **dict.fromkeys(columns)}]


def floats(count: int) -> list[float]:
    """Random ones of every size, and all powers of two and ten: those are where shortest digits are hard to find."""
    draw = random.Random(17)
    found = [struct.unpack("<d", struct.pack("<Q", draw.getrandbits(64)))[0] for _ in range(count)]
    found += [draw.uniform(-1, 1) * 10 ** draw.randint(-30, 30) for _ in range(count)]
    found += [draw.randint(-(10**17), 10**17) / 100 for _ in range(count)]
    found += [math.ldexp(draw.random(), draw.randint(-1074, -1020)) for _ in range(count)]
    return found + [math.ldexp(1, n) for n in range(-1074, 1024)] + [float(f"1e{n}") for n in range(-323, 309)]


def batch_of(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows in the schema's columns; what a row lacks is NULL."""
    arrays = [pa.array([row.get(c.name) for row in rows], c.type) for c in schema.columns]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in schema.columns])


def put(copy: Copy, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Apply rows as INSERTs in one batch."""
    names = [column.name for column in copy.schema.columns]
    whole = [{name: row.get(name) for name in names} for row in rows]
    copy.apply(*[insert(copy.ledger + 1 + n, row) for n, row in enumerate(whole)])
    return batch_of(copy.schema, rows)


def state_of(
    copy: Copy, *, at: int | None = None, names: Mapping[str, str] | None = None, schema: TableSchema | None = None
) -> AbstractContextManager[VerifiedState]:
    """A state of the table."""
    assert isinstance(copy.target, BigQueryTarget)
    schema = schema or copy.schema
    columns = names or {column.name: column.name for column in schema.columns}
    return copy.target.open_state(copy.table, schema, columns=columns, at=copy.ledger if at is None else at)


def differing(state: VerifiedState, rows: pa.RecordBatch, schema: TableSchema) -> list[Any]:
    """Values whose canonical form is another one than Python's: column, value, found, expected."""
    by_column = {
        name: canonical.column_texts(rows.column(name), is_key=name in schema.key) for name in rows.schema.names
    }
    ids = [canonical.digest_of(text) for text in canonical.key_texts(rows.select(list(schema.key)))]
    found = state.texts([*ids, "0" * 32])
    assert found.keys() == set(ids)
    return [
        (name, rows.column(name)[number], found[id_][name], texts[number])
        for number, id_ in enumerate(ids)
        for name, texts in by_column.items()
        if found[id_][name] != texts[number]
    ]
