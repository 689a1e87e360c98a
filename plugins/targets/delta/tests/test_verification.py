"""States of tables, by checksums: of each type and value, as every rung has written them, and as the log had them."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicator.model.errors import TableError
from replicator.model.events import change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit import canonical
from replicator.plugins.target import TableOptions
from replicator.plugins.verification import ROWS_SCHEMA, VerifiedState, order_of
from replicator_target_delta.engine import SparkCommits
from replicator_target_delta.storage import Storage
from replicator_target_delta.upkeep.due import Turns, UpkeepKind
from replicator_target_delta.verification.version import read_version
from replicator_testing.table_states import assert_state

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

D65 = pa.decimal256(65, 30)
LONG = "é" * 128

VALUES: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127, 0]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "f32": (pa.float32(), [0.1, -0.0, 1e-45, 3.4028235e38, math.nan, math.inf, -math.inf, 16777216.0]),
    "f64": (
        pa.float64(),
        [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 1e15, 1e16, 1e-4, 1e-5, 1500, math.nan, math.inf, -math.inf],
    ),
    "d2": (pa.decimal128(2, 2), [Decimal("0.05"), Decimal("-0.50"), Decimal("0.00"), Decimal("0.99")]),
    "d9": (pa.decimal128(9, 4), [Decimal("-99999.9999"), Decimal("0.0001"), Decimal(-1) / 10]),
    "d18": (pa.decimal128(18, 0), [Decimal("9" * 18), Decimal(-1), Decimal(0)]),
    "d38": (pa.decimal128(38, 0), [Decimal("-" + "9" * 38), Decimal("9" * 38)]),
    "d38s": (pa.decimal128(38, 38), [Decimal("-0." + "9" * 38), Decimal("1e-38"), Decimal(0)]),
    "d38m": (pa.decimal128(38, 6), [Decimal("-0.000001"), Decimal("1.5")]),
    "d65": (D65, [Decimal("-" + "9" * 35 + "." + "9" * 30), Decimal("1e-30"), Decimal("-1e-30"), Decimal(0)]),
    "text": (
        pa.string(),
        ["", " ", "a ", "a,b", "1:x", "\0", "a\0b", "\U0001f600", LONG, LONG + "x", "x" * 256, "x" * 257, "y" * 3_000_000],
    ),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff\x00", b"x" * 1000]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1582, 10, 4)]),
    "time": (pa.time64("us"), [time(0), time(23, 59, 59, 999999), time(12, 0, 0, 1), time(1, 2, 3, 100000)]),
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
        pa.timestamp("us", tz="UTC"),
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(1582, 10, 4, tzinfo=UTC),
            datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        ],
    ),
    "ints": (pa.list_(pa.int32()), [[], [1, None, -3], [None]]),
    "names": (pa.list_(pa.string()), [[], ["a,b", None, ""], ["[", LONG + "x"]]),
    "reals": (pa.list_(pa.float64()), [[0.1, -0.0, math.nan, None], []]),
    "d65s": (pa.list_(D65), [[Decimal("1.5"), None]]),
    "moments": (pa.list_(pa.timestamp("us", tz="UTC")), [[datetime(2024, 2, 29, tzinfo=UTC), None]]),
    "locals": (pa.list_(pa.timestamp("us")), [[datetime.fromisoformat("0001-01-01T00:00:00"), None]]),
    "times": (pa.list_(pa.time64("us")), [[time(1, 2, 3, 4), None]]),
    "blobs": (pa.list_(pa.binary()), [[b"\0", None, b""]]),
    "bools": (pa.list_(pa.bool_()), [[True, False, None]]),
    "days": (pa.list_(pa.date32()), [[date(1, 1, 1), None]]),
}  # fmt: skip
"""By column: its type and its boundary values."""

RUNGS = ("L1", pytest.param("L0", marks=pytest.mark.matrix), pytest.param("L2", marks=pytest.mark.matrix))


def schema_of(columns: Mapping[str, pa.DataType], key: Sequence[str] = ("id",)) -> TableSchema:
    return TableSchema(
        table=TableId("public", "Odd 'na[m]e*"),
        columns=tuple(
            Column(name=name, type=type_, source_type="?", nullable=name not in key, id=number)
            for number, (name, type_) in enumerate(columns.items(), 1)
        ),
        key=tuple(key),
    )


def state_of(
    lake: Lake, *, at: int | None = None, names: Mapping[str, str] | None = None
) -> AbstractContextManager[VerifiedState]:
    columns = names or {column.name: column.name for column in lake.schema.columns}
    return lake.target.open_state(lake.table, lake.schema, columns=columns, at=lake.next - 1 if at is None else at)


def batch_of(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    arrays = [pa.array([row.get(c.name) for row in rows], c.type) for c in schema.columns]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in schema.columns])


def differing(state: VerifiedState, rows: pa.RecordBatch, schema: TableSchema) -> list[Any]:
    """Values whose canonical form is another one than Python's."""
    by_column = {
        name: canonical.column_texts(rows.column(name), is_key=name in schema.key) for name in rows.schema.names
    }
    ids = [canonical.digest_of(text) for text in canonical.key_texts(rows.select(list(schema.key)))]
    found = state.texts(ids)
    assert found.keys() == set(ids)
    return [
        (name, rows.column(name)[number], found[id_][name], texts[number])
        for number, id_ in enumerate(ids)
        for name, texts in by_column.items()
        if found[id_][name] != texts[number]
    ]


def boundary_rows() -> list[dict[str, Any]]:
    count = max(len(values) for _, values in VALUES.values())
    rows = [{"id": n, **{name: v[n % len(v)] for name, (_, v) in VALUES.items()}} for n in range(count)]
    return [*rows, {"id": count}]


def inserted(lake: Lake, rows: pa.RecordBatch, **parts: Any) -> Any:
    """Rows as a batch of INSERTs. By position: the journal's files call odd names otherwise."""
    count, shape = rows.num_rows, change_schema(lake.schema)
    first, lake.next = lake.next, lake.next + count
    columns = {
        "_sequence_num": pa.array(range(first, first + count), pa.int64()),
        "_operation": pa.array(["INSERT"] * count),
        "_is_snapshot": pa.array([bool(parts.get("is_append"))] * count),
        "row": pa.StructArray.from_arrays(rows.columns, fields=list(shape.field("row").type)),
    }
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in shape]
    return lake.batch_of(pa.Table.from_arrays(arrays, schema=shape), **parts)


@pytest.mark.parametrize("rung", RUNGS)
def test_every_type_and_boundary_value(lake_by: Callable[..., Lake], rung: str) -> None:
    schema = schema_of({"id": pa.int64(), **{name: type_ for name, (type_, _) in VALUES.items()}})
    lake = lake_by(rung, schema)
    rows = batch_of(schema, boundary_rows())
    lake.apply_batch(inserted(lake, rows))
    with state_of(lake) as state:
        assert differing(state, rows, schema) == []
        assert_state(state, rows, schema)


@pytest.mark.parametrize(
    "name",
    [
        # Spark has to find rows of such keys.
        pytest.param(name, marks=pytest.mark.matrix) if name in {"f32", "f64", "text"} else name
        for name in sorted(name for name in VALUES if not pa.types.is_list(VALUES[name][0]))
    ],
)
def test_a_key_of_each_type(lake_by: Callable[..., Lake], name: str) -> None:
    type_, values = VALUES[name]
    schema = schema_of({"v": pa.string(), "n": pa.int32(), "k,'1\"": type_}, key=("k,'1\"", "n"))
    texts = canonical.column_texts(pa.array(values, type_), is_key=True)
    unique = dict(zip(texts, values, strict=True))
    rows = batch_of(schema, [{"k,'1\"": v, "n": n, "v": "x"} for v in unique.values() for n in (1, 2)])
    lake = lake_by("L0" if pa.types.is_floating(type_) else "L1", schema)
    lake.apply_batch(inserted(lake, rows))
    with state_of(lake) as state:
        assert_state(state, rows, schema)
        assert differing(state, rows, schema) == []


@pytest.mark.matrix
def test_a_hundred_thousand_floats(lake_by: Callable[..., Lake]) -> None:
    draw = random.Random(17)
    doubles = [struct.unpack("<d", struct.pack("<Q", draw.getrandbits(64)))[0] for _ in range(60_000)]
    doubles += [draw.uniform(-1, 1) * 10 ** draw.randint(-30, 30) for _ in range(20_000)]
    doubles += [draw.randint(-(10**17), 10**17) / 100 for _ in range(10_000)]
    doubles += [float(draw.randint(-(2**60), 2**60)) for _ in range(10_000)]
    doubles += [math.ldexp(1, n) for n in range(-1074, 1024)] + [float(f"1e{n}") for n in range(-323, 309)]
    count = len(doubles)
    singles = [struct.unpack("<f", struct.pack("<I", draw.getrandbits(32)))[0] for _ in range(count)]
    long = [Decimal(draw.randint(-(10**38) + 1, 10**38 - 1)).scaleb(-20, Context(100)) for _ in range(count)]
    short = [Decimal(draw.randint(-(10**9), 10**9)).scaleb(-12) for _ in range(count)]
    columns = {
        "id": pa.array(range(count), pa.int64()),
        "f64": pa.array(doubles, pa.float64()),
        "f32": pa.array(singles, pa.float32()),
        "long": pa.array(long, pa.decimal128(38, 20)),
        "short": pa.array(short, pa.decimal128(12, 12)),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    schema = schema_of({name: array.type for name, array in columns.items()})
    lake = lake_by("L1", schema)
    lake.apply_batch(inserted(lake, rows, is_append=True, has_absent=False, has_key_changes=False))
    with state_of(lake) as state:
        assert_state(state, rows, schema)


PLAIN = schema_of({"id": pa.int64(), "name": pa.string(), "amount": pa.decimal128(9, 2)})


def plain(*rows: tuple[int, str | None, str | None]) -> pa.RecordBatch:
    amounts = [(id_, name, None if amount is None else Decimal(amount)) for id_, name, amount in rows]
    return batch_of(PLAIN, [dict(zip(("id", "name", "amount"), row, strict=True)) for row in amounts])


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rows_that_are_deleted_are_not_there(lake_by: Callable[..., Lake], rung: str, deletes: str) -> None:
    lake = lake_by(rung, PLAIN, TableOptions(deletes=deletes))
    lake.apply_batch(inserted(lake, plain(*[(n, f"n{n}", "1.5") for n in range(500)])))
    changes = [lake.delete(id=n) for n in range(0, 500, 7)]
    changes += [lake.update(id=n, name=None, amount=Decimal("-0.01")) for n in range(1, 500, 7)]
    lake.apply(*changes)
    left = [(n, None, "-0.01") if n % 7 == 1 else (n, f"n{n}", "1.5") for n in range(500) if n % 7]
    assert rung == "L0" or any(read_version(lake.target._storage, str(lake.path), lake.version()).vectors().values())
    with state_of(lake) as state:
        assert_state(state, plain(*left), PLAIN)


@pytest.mark.matrix
def test_each_state_between_two_movements_of_the_ledger(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    created = lake.next - 1
    lake.apply(lake.insert(id=1, name="a"))
    lake.next += 5
    second = lake.next
    lake.apply(lake.insert(id=2, name="b"))
    other = lake.process()
    other.claim(lake.owned(epoch=2))
    other.close()
    lake.table, lake.target = lake.owned(epoch=3), lake.process()
    lake.target.claim(lake.table)
    lake.maintain(Turns(), UpkeepKind.COMPACT, datetime.now(UTC))
    third = lake.next
    lake.apply(lake.delete(id=1))
    one, two = plain((1, "a", None)), plain((1, "a", None), (2, "b", None))
    for at, rows in {
        created: plain(),
        created + 1: one,
        second - 1: one,
        second: two,
        third: plain((2, "b", None)),
        third + 100: plain((2, "b", None)),
    }.items():
        with state_of(lake, at=at) as state:
            assert_state(state, rows, PLAIN)
    with state_of(lake, at=second) as state:
        lake.apply(lake.insert(id=3))
        assert_state(state, two, PLAIN)
    with pytest.raises(TableError, match="did not exist then"), state_of(lake, at=created - 1):
        pass


@pytest.mark.matrix
def test_what_others_changed_behind_the_barrier_is_in_the_state(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    lake.apply(lake.insert(id=1, name="a"), lake.insert(id=2, name="b"))
    at = lake.next - 1
    lake.spark.sql(f"UPDATE delta.`{lake.path}` SET name = 'z' WHERE id = 2")
    with state_of(lake, at=at) as state:
        assert_state(state, plain((1, "a", None), (2, "z", None)), PLAIN)


@pytest.mark.matrix
def test_a_decimal_in_text_that_is_none_is_equal_to_nothing(lake_by: Callable[..., Lake]) -> None:
    """Also an empty one: NULL has no text."""
    schema = schema_of({"id": pa.int64(), "wide": D65, "whole": pa.decimal256(60, 0)})
    lake = lake_by("L1", schema)
    lake.apply(*[lake.insert(id=n, wide=None, whole=None) for n in range(4)])
    wrong = ["", "1.5", "1,0000000000"]
    for n, text in enumerate(wrong):
        lake.spark.sql(f"UPDATE delta.`{lake.path}` SET wide = '{text}', whole = '{text}' WHERE id = {n}")
    with state_of(lake) as state:
        found = state.texts([canonical.digest_of(f"{n},") for n in range(4)])
    for n, text in enumerate(wrong):
        assert found[canonical.digest_of(f"{n},")] == {"id": str(n), "wide": f"?{text}", "whole": f"?{text}"}
    assert found[canonical.digest_of("3,")] == {"id": "3", "wide": None, "whole": None}


@pytest.mark.matrix
def test_a_checkpoint_is_read(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    for n in range(12):
        lake.apply(lake.insert(id=n, name="x" * n))
        if n == 8:
            checkpointed(lake)
    wanted = plain(*[(n, "x" * n, None) for n in range(12)])
    with state_of(lake) as state:
        assert_state(state, wanted, PLAIN)
    with state_of(lake, at=lake.next - 2) as state:
        assert_state(state, wanted.slice(0, 11), PLAIN)


def checkpointed(lake: Lake) -> None:
    SparkCommits(lake.spark, str(lake.path)).checkpoint()
    assert list((lake.path / "_delta_log").glob("*.checkpoint.parquet"))


def test_what_is_gone_cannot_be_read(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    lake.apply(lake.insert(id=1, name="a"))
    lake.apply(lake.insert(id=2, name="b"))
    at = lake.next - 2
    with state_of(lake) as state:
        for file in lake.path.glob("*.parquet"):
            file.unlink()
        with pytest.raises(TableError) as caught:
            state.checksums(3)
    assert caught.value.code == "state_not_readable"
    with pytest.raises(TableError, match="is missing") as caught, state_of(lake):
        pass
    assert caught.value.code == "target_file_unreadable"
    checkpointed(lake)
    (lake.path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(TableError, match="no longer in the table's log") as caught, state_of(lake, at=at):
        pass
    assert caught.value.code == "state_not_readable"


def test_text_that_is_none_is_told_without_it(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    lake.apply(lake.insert(id=1, name="a"))
    [file] = lake.path.glob("*.parquet")
    rows = pq.read_table(file)
    at = next(n for n, field in enumerate(rows.schema) if field.type == pa.string())
    raw = pa.array([b"\xff\xfesecret"])
    text = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    pq.write_table(rows.set_column(at, rows.schema.field(at), text), file)
    with state_of(lake) as state, pytest.raises(TableError) as caught:
        state.checksums(3)
    assert caught.value.code == "state_not_readable"
    assert "secret" not in str(caught.value)
    assert "--recreate" in str(caught.value.action)


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", tz="UTC")], ids=["local", "utc"])
def test_the_moments_at_both_ends_of_64_bits(lake_by: Callable[..., Lake], type_: pa.DataType) -> None:
    schema = schema_of({"id": type_, "v": type_, "l": pa.list_(type_)})
    ends = pa.array([sign * (2**63 - n) for sign in (1, -1) for n in (1, 2)] + [-(2**63)], pa.int64()).cast(type_)
    lists = pa.ListArray.from_arrays(pa.array(range(len(ends) + 1), pa.int32()), ends)
    rows = pa.RecordBatch.from_arrays([ends, ends, lists], names=["id", "v", "l"])
    lake = lake_by("L1", schema)
    lake.apply_batch(inserted(lake, rows))
    with state_of(lake) as state:
        assert differing(state, rows, schema) == []


def test_other_tables_than_this_are_not_read(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    columns = {"id": "id"}
    for table in (lake.owned(incarnation=1), lake.owned(uuid="u-2")):
        with pytest.raises(TableError, match="no ledger"), lake.target.open_state(table, PLAIN, columns=columns, at=9):
            pass
    with pytest.raises(TableError, match="no column other"), state_of(lake, names={"id": "id", "name": "other"}):
        pass
    wider = replace(PLAIN, columns=(*PLAIN.columns[:2], replace(PLAIN.columns[2], type=pa.decimal128(12, 2))))
    with (
        pytest.raises(TableError, match="another type"),
        lake.target.open_state(lake.table, wider, columns={"id": "id", "amount": "amount"}, at=9),
    ):
        pass


def test_an_empty_table(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    with state_of(lake) as state:
        assert state.checksums(0) == {}
        assert state.rows(["0", "1"]).num_rows == 0
        assert state.rows([]).schema == ROWS_SCHEMA
        assert state.texts([]) == {}


@pytest.mark.matrix
def test_a_table_without_a_key_is_a_multiset(lake_by: Callable[..., Lake]) -> None:
    schema = replace(PLAIN, key=(), columns=tuple(replace(column, nullable=True) for column in PLAIN.columns))
    lake = lake_by("L0", schema)
    rows = plain((1, "a", None), (1, "a", None), (2, "b", "0.5"), (1, "a", None))
    lake.apply_batch(inserted(lake, rows))
    lake.apply(lake.change("DELETE", before={"id": 1, "name": "a", "amount": None}))
    wanted = rows.slice(1)
    with state_of(lake) as state:
        assert_state(state, wanted, schema)
        ids = [canonical.digest_of(text) for text in canonical.row_texts(wanted)]
        assert state.texts([*ids, "0" * 32]) == {
            ids[0]: {"id": "1", "name": "1:a", "amount": None},
            ids[1]: {"id": "2", "name": "1:b", "amount": "0.50"},
        }


@pytest.mark.matrix
def test_a_hundred_and_twenty_columns(lake_by: Callable[..., Lake]) -> None:
    schema = schema_of({"id": pa.int64(), **{f"c {n}": pa.string() if n % 2 else pa.float64() for n in range(120)}})
    lake = lake_by("L1", schema)
    rows = batch_of(schema, [{"id": n, **{f"c {m}": "x" if m % 2 else m / 7 for m in range(n)}} for n in range(120)])
    lake.apply_batch(inserted(lake, rows))
    with state_of(lake) as state:
        assert_state(state, rows, schema)
        assert differing(state, rows, schema) == []


WIDER: Mapping[str, tuple[pa.DataType, pa.DataType, Any, Any]] = {
    "i8_i32": (pa.int8(), pa.int32(), -128, 2**31 - 1),
    "i32_i64": (pa.int32(), pa.int64(), -(2**31), 2**63 - 1),
    "i16_f64": (pa.int16(), pa.float64(), -(2**15), 1e300),
    "i32_d12": (pa.int32(), pa.decimal128(12, 2), -(2**31), Decimal("9999999999.99")),
    "i64_d38": (pa.int64(), pa.decimal128(38, 18), 2**63 - 1, Decimal("9" * 20 + "." + "9" * 18)),
    "f32_f64": (pa.float32(), pa.float64(), 0.1, 1e300),
    "d5_d8": (pa.decimal128(5, 2), pa.decimal128(8, 4), Decimal("999.99"), Decimal("-9999.9999")),
    "d9_d38": (pa.decimal128(9, 4), pa.decimal128(38, 6), Decimal("-99999.9999"), Decimal("9" * 32 + ".999999")),
    "day_ntz": (pa.date32(), pa.timestamp("us"), date(1, 2, 28), datetime.fromisoformat("1969-12-31T23:59:59.999999")),
}
"""By column: its type and the wider one, a value of each."""


def test_columns_that_got_wider(lake_by: Callable[..., Lake]) -> None:
    """Older files have the narrow type."""
    narrow = schema_of({"id": pa.int64(), **{name: pair[0] for name, pair in WIDER.items()}})
    wide = schema_of({"id": pa.int64(), **{name: pair[1] for name, pair in WIDER.items()}})
    lake = lake_by("L1", narrow)
    small = batch_of(narrow, [{"id": n, **{name: pair[2] for name, pair in WIDER.items()}} for n in (1, 2)])
    lake.apply_batch(inserted(lake, small))
    lake.alter(wide)
    large = batch_of(wide, [{"id": 4, **{name: pair[3] for name, pair in WIDER.items()}}, {"id": 5}])
    lake.apply_batch(inserted(lake, large))
    lake.apply(lake.delete(id=2))
    old = [value.cast(field.type) for value, field in zip(small.slice(0, 1).columns, large.schema, strict=True)]
    rows = pa.Table.from_batches([pa.RecordBatch.from_arrays(old, schema=large.schema), large]).combine_chunks()
    (batch,) = rows.to_batches()
    with state_of(lake) as state:
        assert differing(state, batch, wide) == []
        assert_state(state, batch, wide)


def test_renamed_new_and_kept_columns(lake_by: Callable[..., Lake]) -> None:
    people = schema_of({"id": pa.int64(), "name": pa.string(), "note": pa.string()})
    lake = lake_by("L1", people)
    lake.apply(lake.insert(id=1, name="a", note="x"), lake.insert(id=2, name="b", note="y"))
    before = lake.next - 1
    id_, name, note = people.columns
    age = Column(name="age", type=pa.int32(), source_type="?", id=4)
    lake.alter(replace(people, columns=(id_, replace(name, name="called"), age), kept=(note,)))
    lake.apply(lake.insert(id=3, called="c", age=-1), lake.update(id=2, called="bb", age=7))
    rows = batch_of(lake.schema, [
        {"id": 1, "called": "a"}, {"id": 2, "called": "bb", "age": 7}, {"id": 3, "called": "c", "age": -1}
    ])  # fmt: skip
    with state_of(lake) as state:
        assert_state(state, rows, lake.schema)
    # The source calls it otherwise than the target.
    other = replace(
        lake.schema, columns=tuple(replace(c, name=c.name.upper()) for c in lake.schema.columns), key=("ID",)
    )
    names = {"AGE": "age", "ID": "id"}
    with lake.target.open_state(lake.table, other, columns=names, at=lake.next) as state:
        # Neither the table's other columns nor their order in the mapping count.
        found = state.texts([canonical.digest_of("3,")])
        assert found == {canonical.digest_of("3,"): {"ID": "3", "AGE": "-1"}}
        assert list(next(iter(found.values()))) == order_of(list(names), other)
    old = [{"id": 1, "name": "a", "note": "x"}, {"id": 2, "name": "b", "note": "y"}]
    columns = {c.name: c.name for c in people.columns}
    with lake.target.open_state(lake.table, people, columns=columns, at=before) as state:
        assert_state(state, batch_of(people, old), people)


@pytest.mark.matrix
def test_a_table_that_others_have_given_more_features(lake_by: Callable[..., Lake]) -> None:
    """The lane cannot write it; a reader need not know them."""
    lake = lake_by("L1", PLAIN)
    lake.apply(lake.insert(id=1, name="a"))
    lake.spark.sql(
        f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES"
        " ('delta.enableChangeDataFeed' = 'true', 'delta.enableRowTracking' = 'true')"
    )
    lake.rung = None
    lake.apply(lake.insert(id=2, name="b"), lake.update(id=1, name="c", amount=None))
    with state_of(lake) as state:
        assert_state(state, plain((1, "c", None), (2, "b", None)), PLAIN)


def test_files_that_are_not_on_this_host(lake_by: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read through pyarrow, as everywhere."""
    lake = lake_by("L1", PLAIN)
    lake.apply_batch(inserted(lake, plain(*[(n, f"n{n}", None) for n in range(100)])))
    lake.apply(*[lake.delete(id=n) for n in range(50)])
    monkeypatch.setattr(Storage, "is_local", False)
    with state_of(lake) as state:
        assert_state(state, plain(*[(n, f"n{n}", None) for n in range(50, 100)]), PLAIN)


@pytest.mark.matrix
def test_large_values_in_little_memory(lake_by: Callable[..., Lake]) -> None:
    lake = lake_by("L1", PLAIN)
    texts = [chr(ord("a") + n) * 8_000_000 for n in range(20)]
    for n, text in enumerate(texts):
        lake.apply(lake.insert(id=n, name=text))
    with state_of(lake) as state:
        assert_state(state, plain(*[(n, text, None) for n, text in enumerate(texts)]), PLAIN)
