"""Every canonical type through a journal file into a Delta table, judged by delta-rs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from replicator.model.events import change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions
from replicator_target_delta.journal_files import as_text
from replicator_testbed.delta import read_delta

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

WIDE = Decimal("12345678901234567890123456789012345678901234567890.0000000001")
LATE = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)

# type, value, value in the table
CASES = {
    "a_bool": (pa.bool_(), True, True),
    "an_int8": (pa.int8(), -128, -128),
    "an_int16": (pa.int16(), 32767, 32767),
    "an_int32": (pa.int32(), -(2**31), -(2**31)),
    "an_int64": (pa.int64(), 2**63 - 1, 2**63 - 1),
    "a_float": (pa.float32(), 1.5, 1.5),
    "a_double": (pa.float64(), -0.1, -0.1),
    "a decimal": (pa.decimal128(38, 10), Decimal("1.5000000000"), Decimal("1.5000000000")),
    "a;wide decimal": (pa.decimal256(60, 10), WIDE, str(WIDE)),
    "a_tiny_decimal": (pa.decimal256(60, 10), Decimal("0.0000000001"), "0.0000000001"),
    "Text.": (pa.string(), "Grüße ", "Grüße "),
    "a_binary": (pa.binary(), b"\x00\xff", b"\x00\xff"),
    "a_date": (pa.date32(), date(1, 1, 1), date(1, 1, 1)),
    "a_time": (pa.time64("us"), time(1, 2, 3, 4), "01:02:03.000004"),
    "a_timestamp": (
        pa.timestamp("us"),
        datetime(1500, 2, 28, 23, 59, 59, 999999),  # noqa: DTZ001 - it has none
        datetime(1500, 2, 28, 23, 59, 59, 999999),  # noqa: DTZ001 - it has none
    ),
    "an_instant": (
        pa.timestamp("us", tz="UTC"),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    ),
    "an_early_instant": (pa.timestamp("us", tz="UTC"), datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
    "a_late_instant": (pa.timestamp("us", tz="UTC"), LATE, LATE),
    "a_list_of_instants": (pa.list_(pa.timestamp("us", tz="UTC")), [LATE, None], [LATE, None]),
    "a_list": (pa.list_(pa.int32()), [1, None], [1, None]),
    "a_list_of_times": (pa.list_(pa.time64("us")), [time(1), None], ["01:00:00.000000", None]),
    "a_list_of_wide": (pa.list_(pa.decimal256(60, 1)), [Decimal("1.5"), None], ["1.5", None]),
}
SCHEMA = TableSchema(
    table=TableId("public", "every_type"),
    columns=(
        Column(name="key", type=pa.string(), source_type="text", nullable=False),
        *(
            Column(name=name, type=type_, source_type=str(type_), comment="it's")
            for name, (type_, _, _) in CASES.items()
        ),
    ),
    key=("key",),
    comment="a \\ and a '",
)


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "absent"])
@pytest.mark.parametrize("rung", ["L1", *(pytest.param(rung, marks=pytest.mark.matrix) for rung in ("L0", "L2"))])
def test_every_type_arrives_as_it_left(lake_by: Callable[..., Lake], rung: str, partial: bool) -> None:
    lake = lake_by(rung, SCHEMA, TableOptions(source_timestamp=True))
    values = {SCHEMA.fields[name]: value for name, (_, value, _) in CASES.items()}
    nulls = dict.fromkeys(values)
    lake.apply(lake.insert(key="full", **values), lake.insert(key="null", **nulls), has_absent=partial)
    rows = sorted(read_delta(lake.path, ["key", *CASES]).to_pylist(), key=itemgetter("key"))
    assert {name: rows[0][name] for name in CASES} == {name: expected for name, (_, _, expected) in CASES.items()}
    assert {name: rows[1][name] for name in CASES} == dict.fromkeys(CASES)
    assert not list((lake.folder / "lake" / "_replicator.tmp").glob("staging/*"))


def test_small_numbers_have_no_exponent() -> None:
    assert as_text(pa.array([Decimal("0.0000001"), None], pa.decimal256(60, 7))).to_pylist() == ["0.0000001", None]


@pytest.mark.parametrize("is_append", [False, True], ids=["merged", "appended"])
@pytest.mark.parametrize(
    "rung", ["L1", pytest.param("L0", marks=pytest.mark.matrix), pytest.param("L2", marks=pytest.mark.matrix)]
)
def test_days_and_moments_before_year_1_and_after_9999_arrive_as_they_left(
    lake_by: Callable[..., Lake], rung: str, is_append: bool
) -> None:
    days = pa.array(
        [-1_000_000, -719_529, 3_000_000, 40_000_000], pa.int32()
    )  # as PostgreSQL counts them: 769 BC to 111,486
    moments = pc.multiply(days.cast(pa.int64()), 86_400_000_000)
    far = TableSchema(
        table=TableId("public", "far"),
        columns=(
            Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
            Column(name="day", type=pa.date32(), source_type="date"),
            Column(name="moment", type=pa.timestamp("us"), source_type="timestamp"),
            Column(name="instant", type=pa.timestamp("us", tz="UTC"), source_type="timestamptz"),
        ),
        key=("id",),
    )
    lake, shape = lake_by(rung, far), change_schema(far)
    values = (pa.array(range(4), pa.int64()), days, moments, moments)
    fields = list(shape.field("row").type)
    row = pa.StructArray.from_arrays(
        [value.cast(field.type) for value, field in zip(values, fields, strict=True)], fields=fields
    )
    given = {
        "_sequence_num": pa.array([lake.number() for _ in range(4)], pa.int64()),
        "_operation": pa.array(["INSERT"] * 4).cast(shape.field("_operation").type),
        "_is_snapshot": pa.array([True] * 4),
        "row": row,
    }
    changes = pa.table([given.get(f.name, pa.nulls(4, f.type)) for f in shape], schema=shape)
    lake.apply_batch(lake.batch_of(changes, is_append=is_append, has_absent=False))
    found = read_delta(lake.path, ["id", "day", "moment", "instant"]).sort_by("id")
    assert found["day"].cast(pa.int32()).to_pylist() == days.to_pylist()
    assert found["moment"].cast(pa.int64()).to_pylist() == moments.to_pylist()
    assert found["instant"].cast(pa.int64()).to_pylist() == moments.to_pylist()
