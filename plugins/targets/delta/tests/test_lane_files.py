"""Statistics never say that a row is not there which is, and data files hold what they were given."""

from __future__ import annotations

import json
import tracemalloc
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.lake.joining import due
from replicator_target_delta.lane.known import TargetColumn
from replicator_target_delta.lane.log import LiveFile, LogState
from replicator_target_delta.lane.parquet import write_rows
from replicator_target_delta.lane.stats import Statistics, columns_with_statistics, loosened
from replicator_target_delta.lane.values import as_stored
from replicator_target_delta.lane.vectors import Descriptor
from replicator_target_delta.storage import Storage

DAY = 24 * 60 * 60 * 1_000_000
COLUMNS = [TargetColumn(name="a`b", physical="col-1", id=1, nullable=True)]


def stats_of(values: list[Any], type_: pa.DataType) -> dict[str, Any]:
    rows, half = pa.table({"a`b": pa.array(values, type_)}), len(values) // 2
    whole, parts = Statistics(COLUMNS), Statistics(COLUMNS)
    whole.add(rows)
    for part in (rows[:half], rows[half:]):
        parts.add(part)
    assert parts.text() == whole.text()
    return json.loads(whole.text(), parse_float=Decimal)


def bounds(values: list[Any], type_: pa.DataType) -> tuple[Any, Any]:
    found = stats_of(values, type_)
    return found["minValues"].get("col-1"), found["maxValues"].get("col-1")


@pytest.mark.parametrize(
    ("type_", "values", "lowest", "highest"),
    [
        (pa.int64(), [5, -(2**63), None, 2**63 - 1], -(2**63), 2**63 - 1),
        (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal(-3)], Decimal("-3.0000000000"), Decimal("0.0000000001")),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], "0001-01-01", "9999-12-31"),
        (
            pa.timestamp("us"),
            [datetime(1999, 1, 1, 0, 0, 0, 1), datetime(2024, 2, 29, 1, 2, 3, 4001)],  # noqa: DTZ001 - local
            "1999-01-01T00:00:00.000",
            "2024-02-29T01:02:03.005",
        ),
        (pa.timestamp("us", tz="UTC"), [0], "1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"),
        (pa.float64(), [1.5, -0.25], Decimal("-0.25"), Decimal("1.5")),
        (pa.float64(), [1.5, float("nan")], None, None),
        (pa.float32(), [float("inf")], None, None),
        # Compared by number only: delta-rs puts -0.0 below 0.0 when it compares with a bound.
        (pa.float64(), [0.0], "-0.0", "0.0"),
        (pa.float32(), [-0.0, None], "-0.0", "0.0"),
        (pa.string(), ["b", "a\0", None], "a\0", "b"),
        (pa.string(), ["x" * 40], "x" * 32, "x" * 32 + "\U0010ffff"),
        (pa.string(), ["x" * 32 + "\U0010ffffz"], None, None),
        (pa.binary(), [b"x"], None, None),
        (pa.bool_(), [True], None, None),
        (pa.list_(pa.string()), [["x"]], None, None),
        (pa.int16(), [None, None], None, None),
    ],
)
def test_bounds(type_: pa.DataType, values: list[Any], lowest: Any, highest: Any) -> None:
    given_ = bounds(values, type_)
    assert given_ == (lowest, highest) or tuple(map(str, given_)) == (lowest, highest)
    found = stats_of(values, type_)
    assert (found["numRecords"], found["nullCount"]) == (len(values), {"col-1": values.count(None)})


def test_days_that_python_does_not_have_get_no_bounds() -> None:
    assert bounds([pa.scalar(3_000_000, pa.int32()).cast(pa.date32()), None], pa.date32()) == (None, None)
    assert bounds([pa.scalar(2**62, pa.int64()).cast(pa.timestamp("us"))], pa.timestamp("us")) == (None, None)


@given(st.lists(st.text(max_size=50), min_size=1))
def test_text_lies_within_its_bounds(values: list[str]) -> None:
    lowest, highest = bounds(values, pa.string())
    if lowest is not None:
        assert lowest.encode() <= min(v.encode() for v in values)
        assert highest.encode() >= max(v.encode() for v in values)


def test_statistics_are_loosened_without_touching_a_digit() -> None:
    stats = '{"numRecords":2,"minValues":{"x":0.1000000000000000000001},"tightBounds":true}'
    assert loosened(stats) == '{"numRecords":2,"minValues":{"x":0.1000000000000000000001},"tightBounds":false}'
    assert loosened('{"numRecords":2}') == '{"numRecords":2,"tightBounds":false}'
    assert loosened(loosened(stats)) == loosened(stats)
    with pytest.raises(EngineNeededError):
        loosened('{"tightBounds":true,"numRecords":2}')


def test_the_columns_that_the_table_names_have_statistics() -> None:
    columns = [TargetColumn(name=n, physical=n, id=i, nullable=True) for i, n in enumerate(["a,b", "c`d", "e", "f"])]
    columns += [TargetColumn(name=f"x{i}", physical="", id=i, nullable=True) for i in range(40)]
    assert len(columns_with_statistics(columns, {})) == 32
    named = {"delta.dataSkippingStatsColumns": "`a,b`,`c``d`, e"}
    assert [c.name for c in columns_with_statistics(columns, named)] == ["a,b", "c`d", "e"]


def test_a_data_file_has_physical_names_and_field_numbers(tmp_path: Path) -> None:
    columns = [
        TargetColumn(name="id", physical="col-1", id=7, nullable=False),
        TargetColumn(name="many", physical="col-2", id=8, nullable=True),
        TargetColumn(name="price", physical="col-3", id=9, nullable=True),
    ]
    rows = pa.table(
        {
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
            "id": pa.array([1, 2], pa.int64()),
            "many": pa.array([["x", None], []], pa.list_(pa.string())),
        }
    )
    add = write_rows(rows, Storage(str(tmp_path)), f"{tmp_path}/t", columns, {})
    file = pq.ParquetFile(tmp_path / "t" / add["path"])
    assert add["size"] == (tmp_path / "t" / add["path"]).stat().st_size
    fields = [file.schema_arrow.field(i) for i in range(3)]
    assert [(f.name, f.metadata[b"PARQUET:field_id"], f.nullable) for f in fields] == [
        ("col-1", b"7", False), ("col-2", b"8", True), ("col-3", b"9", True),
    ]  # fmt: skip
    assert [c.to_pylist() for c in file.read().columns] == [rows[n].to_pylist() for n in ("id", "many", "price")]
    assert "ARROW:schema" not in str(file.metadata.metadata)
    with pytest.raises(EngineNeededError, match="null"):
        write_rows(rows.set_column(1, "id", pa.array([1, None])), Storage(str(tmp_path)), f"{tmp_path}/t", columns, {})


def test_readers_leave_out_no_row_by_what_a_data_file_says_of_itself(tmp_path: Path) -> None:
    columns = [TargetColumn(name=n, physical=n, id=i, nullable=True) for i, n in enumerate(["a", "b", "c"])]
    rows = pa.table({"a": [1.5, float("nan")], "b": [1.5, None], "c": pa.array([date(1400, 1, 1), None])})
    add = write_rows(rows, Storage(str(tmp_path)), f"{tmp_path}/t", columns, {})
    metadata = pq.read_metadata(tmp_path / "t" / add["path"])
    # Parquet's bounds do not count a NaN, which Spark takes for the greatest number.
    assert [metadata.row_group(0).column(i).is_stats_set for i in range(3)] == [False, True, True]
    # Without it Spark 3 reads no date before 1582, and a setting may move such dates.
    assert metadata.metadata[b"org.apache.spark.version"] >= b"3.0.0"


@pytest.mark.parametrize(
    ("type_", "numbers", "texts"),
    [
        (pa.time64("us"), [0, 86_399_999_999, None, DAY], ["00:00:00.000000", "23:59:59.999999", None, "00:00:00.000000"]),
        (pa.list_(pa.time64("us")), [[0, None], None, []], [["00:00:00.000000", None], None, []]),
        (pa.decimal256(60, 3), [Decimal("1.5"), None], ["1.500", None]),
        (pa.list_(pa.decimal256(60, 3)), [[Decimal("-1E-3")]], [["-0.001"]]),
    ],
)  # fmt: skip
def test_what_delta_has_no_type_for_is_text(type_: pa.DataType, numbers: list[Any], texts: list[Any]) -> None:
    given_ = pa.array(numbers, pa.int64()).cast(type_) if pa.types.is_time(type_) else pa.array(numbers, type_)
    assert as_stored(given_).to_pylist() == texts
    assert as_stored(given_[1:]).to_pylist() == texts[1:]


def added(number: int) -> dict[str, Any]:
    """A file as the log has it, with statistics of thirteen columns, one of whole numbers."""
    columns = [f"col-{i:08}-4b5a-4f0e-9d6c-{i:012}" for i in range(13)]
    lowest = dict.fromkeys(columns, f"{number}-abcdefghijklmnop") | {columns[0]: number}
    stats = {"numRecords": 10, "minValues": lowest, "maxValues": lowest, "nullCount": dict.fromkeys(columns, 0)}
    return {
        "path": f"part-00000-{number:08}-4b5a-4f0e-9d6c-c000.zstd.parquet",
        "partitionValues": {},
        "size": 1000 + number,
        "modificationTime": 1_700_000_000_000 + number,
        "dataChange": True,
        "stats": json.dumps(stats),
        "tags": None,
        "deletionVector": {
            "storageType": "u",
            "pathOrInlineDv": f"{number:020}",
            "offset": 1,
            "sizeInBytes": 40,
            "cardinality": 3,
        },
    }


def test_a_file_of_the_log_is_held_whole() -> None:
    add = added(7)
    file = LiveFile.of(add)
    assert file.add == {name: value for name, value in add.items() if value is not None}
    assert (file.path, file.size, file.rows, file.tags) == (add["path"], 1007, 10, None)
    names = list(json.loads(add["stats"])["minValues"])
    assert [file.bounds(name) for name in (names[0], names[1], "other", names[0])] == [(7, 7), None, None, (7, 7)]


def test_a_file_of_the_log_takes_a_kibibyte_or_two() -> None:
    lines = [json.dumps({"add": added(number)}) for number in range(500)]
    tracemalloc.start()
    try:
        state = LogState()
        before = tracemalloc.get_traced_memory()[0]
        for line in lines:
            state.play([json.loads(line)])
        for file in state.files.values():
            file.bounds("col-00000000-4b5a-4f0e-9d6c-000000000000")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(state.files) == 500
    assert taken < 500 * 2048


def test_the_files_with_the_largest_share_of_deleted_rows_are_rewritten_first() -> None:
    deleted = {"a": 1, "b": 9, "c": 0, "d": 5}
    files = [
        LiveFile(
            path=path, size=30 << 20, rows=10, tags=None, _packed=b"",
            vector=Descriptor(storage="u", location="", offset=1, size=1, cardinality=count) if count else None,
        )
        for path, count in deleted.items()
    ]  # fmt: skip
    chosen = due(files, small_file_size=1, deleted_share_max=0.1)
    assert [file.path for file in chosen] == ["b", "d"], "64 MiB at once"
    assert due(files, small_file_size=1, deleted_share_max=0.375) == ()
