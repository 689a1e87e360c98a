"""Types of .NET, aliases and the other types of a SQL Server, from a snapshot and from its log into Delta."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator_testbed.delta import plain_rows
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.sqlserver.databases import SqlServers, enable
from replicator_testbed.sqlserver.tables import ALL, OWN, source_rows


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_row_of_all_types_is_in_delta_as_in_the_source(tmp_path: Path, sqlserver: SqlServers) -> None:
    types = {**ALL, **OWN, "dbo.code": ["N'a  '", "N'🐢'"]}
    columns = {f"c{number}": kind for number, kind in enumerate(types)}
    defined = ", ".join(f"{column} {kind} NULL" for column, kind in columns.items())
    count = max(map(len, types.values()))
    with sqlserver.database() as database:
        database.execute(
            "CREATE TYPE dbo.code FROM nvarchar(20) NOT NULL",
            f"CREATE TABLE dbo.everything (id int NOT NULL PRIMARY KEY, {defined}, n int NULL)",
            enable("everything"),
        )

        def insert(first: int) -> None:
            for row in range(count):
                given = {c: types[kind][row] for c, kind in columns.items() if row < len(types[kind])}
                names, values = ", ".join(["id", *given]), ", ".join([str(first + row), *given.values()])
                database.execute(f"INSERT INTO dbo.everything ({names}) VALUES ({values})")

        insert(0)
        rig = Rig(folder=tmp_path, database=database, tables=["everything"])
        worker = rig.start()
        try:
            rig.wait_for_status(is_streaming, worker, timeout_s=900)
            insert(1000)
            database.execute(
                "UPDATE dbo.everything SET n = id WHERE id % 2 = 1",
                "UPDATE dbo.everything SET id = id + 5000 WHERE id IN (0, 1001)",
                "DELETE FROM dbo.everything WHERE id = 1000",
            )
            rig.settle(worker)
            assert plain_rows(rig.lake / "dbo" / "everything", ["id", *columns, "n"]) == source_rows(
                database, "everything"
            )
            assert rig.stop(worker) == 0, rig.output()
        finally:
            rig.kill()
