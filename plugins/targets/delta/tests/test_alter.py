"""ALTER_TABLE: one version of the log, read by every reader and continued by every rung."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.schema import Column, TableId, TableSchema
from replicator_testbed.delta import read_delta, rows_of

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake


def schema_of(
    columns: Mapping[str, tuple[int, pa.DataType]], key: Sequence[str] = ("id",), kept: Sequence[Column] = ()
) -> TableSchema:
    """A version of the table: by name, each column's number and type."""
    return TableSchema(
        table=TableId("public", "people"),
        columns=tuple(
            Column(name=name, type=type_, source_type="?", nullable=name not in key, id=number)
            for name, (number, type_) in columns.items()
        ),
        key=tuple(key),
        kept=tuple(kept),
    )


PEOPLE = schema_of({"id": (1, pa.int64()), "name": (2, pa.string()), "note": (3, pa.string())})


def alter(lake: Lake, wanted: TableSchema, fill: Mapping[str, Any] | None = None) -> int:
    """Apply ALTER_TABLE; its number. From then on the lake's batches have the new shape."""
    row = no_fill()
    if fill is not None:
        row = pa.RecordBatch.from_pylist([dict(fill)], pa.schema([(n, wanted.column(n).type) for n in fill]))
    event = DDLEvent(
        operation=DDLOperation.ALTER_TABLE, table=wanted.table, schema=wanted, before=lake.schema, fill=row
    )
    number = lake.event(event)
    lake.schema = wanted
    return number


def read(lake: Lake, *names: str) -> set[tuple[Any, ...]]:
    """The table, as Spark, delta-rs and DuckDB read it alike."""
    names = names or tuple(column.name for column in lake.schema.held)
    quoted = [f"`{name}`" for name in names]
    by_spark = [tuple(row) for row in lake.spark.read.format("delta").load(str(lake.path)).select(*quoted).collect()]
    found = {"delta-rs": list(rows_of(read_delta(lake.path, names)))}
    if importlib.util.find_spec("duckdb_extension_delta") is not None:
        import duckdb
        from duckdb_extensions import import_extension

        with duckdb.connect() as connection:
            import_extension("delta", con=connection)
            connection.execute("LOAD delta")
            listed = ", ".join(f'"{name}"' for name in names)
            found["DuckDB"] = connection.execute(f"SELECT {listed} FROM delta_scan('{lake.path}')").fetchall()
    for reader, rows in found.items():
        assert (reader, len(rows), set(rows) ^ set(by_spark)) == (reader, len(by_spark), set())
    return set(by_spark)


def test_columns_come_go_and_get_other_names(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.rung = "L1"
    lake.apply(*[lake.insert(id=i, name=f"n{i}", note="old") for i in range(6)])
    lake.apply(lake.delete(id=0))
    alter(
        lake,
        schema_of(
            {"called": (2, pa.string()), "id": (1, pa.int64()), "age": (4, pa.int32()), "at": (5, pa.timestamp("us"))}
        ),
    )
    assert read(lake) == {(f"n{i}", i, None, None) for i in range(1, 6)}
    lake.apply(
        lake.update(called="x", id=1, age=7),
        lake.update(called=None, id=2, age=1, absent=["called", "at"]),
        lake.insert(id=9),
    )
    assert read(lake, "id", "called", "age") == {
        (1, "x", 7),
        (2, "n2", 1),
        (3, "n3", None),
        (4, "n4", None),
        (5, "n5", None),
        (9, None, None),
    }
    # A column of the name of one that was dropped has nothing of its values.
    alter(lake, schema_of({"id": (1, pa.int64()), "note": (6, pa.string())}))
    assert read(lake) == {(i, None) for i in (1, 2, 3, 4, 5, 9)}
    lake.apply(lake.update(id=3, note="new"), lake.delete(id=9))
    for statement in ("OPTIMIZE {}", "REORG TABLE {} APPLY (PURGE)", "VACUUM {} RETAIN 0 HOURS"):
        lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        lake.spark.sql(statement.format(f"delta.`{lake.path}`"))
        assert read(lake) == {(1, None), (2, None), (3, "new"), (4, None), (5, None)}
        lake.apply(lake.update(id=3, note="new"))


def test_fill(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(PEOPLE, engine="auto")
    lake.apply(*[lake.insert(id=i, name=f"n{i}", note="old") for i in range(6)])
    lake.apply(lake.delete(id=0))
    begin = lake.target.audit(lake.table, None).position
    wanted = schema_of({"id": (1, pa.int64()), "name": (2, pa.string()), "age": (4, pa.int32())})
    alter(lake, wanted, {"age": 5})
    assert read(lake) == {(i, f"n{i}", 5) for i in range(1, 6)}
    lake.rung = "L1"
    lake.apply(lake.update(id=1, name="x", age=None), lake.delete(id=2))
    assert read(lake) == {(1, "x", None), *((i, f"n{i}", 5) for i in range(3, 6))}
    assert not lake.target.audit(lake.table, begin).changed_by_others
