"""The state of a table, by checksums: of each type and value, and while other changes wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plugins.targets.duckdb.tests.test_contract import Harness
from replicator.model.errors import TableError
from replicator.model.schema import Column, TableSchema
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_duckdb.config import DuckDBConfig
from replicator_target_duckdb.target import DuckDBTarget
from replicator_testing.batches import delete, insert
from replicator_testing.defaults import target_context
from replicator_testing.table_states import assert_ranges, assert_state
from replicator_testing.target_harness import ITEMS, UUID, Copy, item, items_schema

VALUES: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "f32": (pa.float32(), [0.1, 1e-45, 3.4028235e38, math.nan, math.inf]),
    "f64": (pa.float64(), [0.1 + 0.2, 5e-324, 1.7976931348623157e308, 1e22, -math.inf, math.nan]),
    "d2": (pa.decimal128(2, 2), [Decimal("0.05"), Decimal("-0.50")]),
    "d38": (pa.decimal128(38, 6), [Decimal("-0.000001"), Decimal("9" * 32)]),
    "d65": (pa.decimal256(65, 30), [Decimal("-" + "9" * 35 + "." + "9" * 30), Decimal("1e-30")]),
    "text": (pa.string(), ["", " ", "a\0b", "\U0001f600", "x" * 257]),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff\x00"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "time": (pa.time64("us"), [time(0), time(23, 59, 59, 999999), time(1, 2, 3, 100000)]),
    "ntz": (pa.timestamp("us"), [datetime.fromisoformat("0001-01-01T00:00:00"), datetime.fromisoformat("9999-12-31T23:59:59.999999")]),
    "tz": (pa.timestamp("us", tz="UTC"), [datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)]),
    "list": (pa.list_(pa.int32()), [[], [1, None, 3]]),
    "times": (pa.list_(pa.time64("us")), [[time(1), None]]),
}  # fmt: skip


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path / "state.duckdb")
    yield harness
    for target in harness.targets:
        target.close()


def copy_of(harness: Harness, folder: Path, schema: TableSchema, **options: Any) -> Copy:
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=TableOptions(**options))
    copy = Copy(harness=harness, folder=folder, schema=schema, table=table, target=harness.target())
    copy.create()
    return copy


def columns_of(schema: TableSchema) -> dict[str, str]:
    return {column.name: column.name for column in schema.columns}


def test_every_value_is_written_as_the_canonical_form_says(harness: Harness, tmp_path: Path) -> None:
    columns = [Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)]
    columns += [Column(name=f"c {name}", type=type_, source_type=name) for name, (type_, _) in VALUES.items()]
    schema = TableSchema(table=ITEMS, columns=tuple(columns), key=("id",))
    count = max(len(values) for _, values in VALUES.values())
    rows = [
        {"id": n, **{f"c {name}": values[n] if n < len(values) else None for name, (_, values) in VALUES.items()}}
        for n in range(count + 1)
    ]
    copy = copy_of(harness, tmp_path, schema)
    copy.apply(*(insert(n + 1, row) for n, row in enumerate(rows)))
    types = pa.schema([(column.name, column.type) for column in columns])
    with copy.target.open_state(copy.table, schema, columns=columns_of(schema), at=copy.ledger) as state:  # type: ignore[attr-defined]
        assert_state(state, pa.RecordBatch.from_pylist(rows, types), schema)
        assert_ranges(state, pa.RecordBatch.from_pylist(rows, types), schema, columns=1)


def test_a_state_stays_what_it_is_while_the_table_is_written(harness: Harness, tmp_path: Path) -> None:
    copy = copy_of(harness, tmp_path, items_schema())
    copy.apply(insert(1, item(1)), insert(2, item(2)))
    with copy.target.open_state(copy.table, copy.schema, columns=columns_of(copy.schema), at=2) as state:  # type: ignore[attr-defined]
        copy.apply(delete(3, item(1)))
        assert sum(one.rows for one in state.checksums(0).values()) == 2
    assert [row.values["id"] for row in copy.stored()] == [2]


def test_a_table_whose_ledger_went_on_has_no_older_state(harness: Harness, tmp_path: Path) -> None:
    copy = copy_of(harness, tmp_path, items_schema())
    copy.apply(insert(1, item(1)), insert(2, item(2)))
    with (
        pytest.raises(TableError, match="Later changes") as raised,
        copy.target.open_state(copy.table, copy.schema, columns=columns_of(copy.schema), at=1),  # type: ignore[attr-defined]
    ):
        pass
    assert raised.value.code == "state_not_readable"


def test_rows_that_are_marked_as_deleted_are_not_there(harness: Harness, tmp_path: Path) -> None:
    copy = copy_of(harness, tmp_path, items_schema(), deletes="soft")
    copy.apply(insert(1, item(1)), insert(2, item(2)))
    copy.apply(delete(3, item(1)))
    with copy.target.open_state(copy.table, copy.schema, columns=columns_of(copy.schema), at=3) as state:  # type: ignore[attr-defined]
        assert sum(one.rows for one in state.checksums(0).values()) == 1


def test_a_column_that_somebody_changed_cannot_be_compared(harness: Harness, tmp_path: Path) -> None:
    copy = copy_of(harness, tmp_path, items_schema())
    copy.apply(insert(1, item(1)))
    with harness.connect() as connection:
        connection.execute("ALTER TABLE shop.items ALTER note TYPE BLOB")
    with (
        pytest.raises(TableError, match="note has another type"),
        copy.target.open_state(copy.table, copy.schema, columns=columns_of(copy.schema), at=1),  # type: ignore[attr-defined]
    ):
        pass


def test_a_folder_that_is_not_there_is_a_finding_and_no_file_is_made(tmp_path: Path) -> None:
    for folder, codes in [(tmp_path / "missing", ["target_not_writable"]), (tmp_path, [])]:
        config = DuckDBConfig(path=str(folder / "x.duckdb"))
        target = DuckDBTarget(config, target_context(replicator="check", uuid=UUID, epoch=1))
        assert [problem.code for problem in target.check([items_schema()])] == codes
        assert not config.file.exists()
        target.close()
