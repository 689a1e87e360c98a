"""What the model's catalogue says of tables and log, and samples of rows: read, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from plugins.sources.sqlserver.tests.verifying import schema_of
from replicator.model.figures import Basis
from replicator.model.schema import TableId
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable

TABLE = TableId("dbo", "t")


@pytest.mark.matrix
def test_rows_and_size_are_estimated_by_the_catalogue(database: SqlServerDatabase, source: SqlServerSource) -> None:
    database.execute("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, a varchar(100), b nvarchar(max))")
    rows = ", ".join(f"({n}, '{'x' * 100}', N'{n}')" for n in range(400))
    database.execute(f"INSERT INTO dbo.t VALUES {rows}")
    database.server.database.execute("ANALYZE dbo.t")
    found = source.statistics([TABLE, TableId("dbo", "missing")])
    assert list(found.tables) == [TABLE]
    table = found.tables[TABLE]
    assert (table.rows.value, table.rows.basis, table.rows.how) == (400, Basis.ESTIMATED, "sys.partitions.rows")
    assert 40_000 < (table.bytes.value or 0) < 400_000
    assert (table.changes.value, table.changes.how) == (None, "SQL Server counts no changes of rows")
    assert (found.log_kept_for, found.log_kept_bytes) == (timedelta(days=3), None)
    assert "cleanup job" in found.log_kept_how


@pytest.mark.matrix
def test_a_sample_is_some_rows_in_the_order_of_the_key(database: SqlServerDatabase, source: SqlServerSource) -> None:
    database.execute(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(20))",
        enable("t"),
        "INSERT INTO dbo.t VALUES (3, N'c'), (1, N'a'), (2, NULL)",
    )
    schema = schema_of(source)
    some, every = source.sample(schema, 2), source.sample(schema, 10)
    assert [row["id"] for row in some.rows.rename_columns(["id", "note"]).to_pylist()] == [1, 2]
    assert (some.is_whole, every.is_whole, every.rows.num_rows) == (False, True, 3)


@pytest.mark.matrix
def test_a_sample_of_a_table_without_a_key_is_any_rows(database: SqlServerDatabase, source: SqlServerSource) -> None:
    database.execute("CREATE TABLE dbo.t (n int NOT NULL)", enable("t"), "INSERT INTO dbo.t VALUES (1), (1), (2)")
    schema = schema_of(source)
    assert source.sample(schema, 2).rows.num_rows == 2
    assert source.sample(schema, 4).is_whole
