"""The commands, a real PostgreSQL and a target: what one table causes stops that table, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator.model.documents.status import ErrorStatus, TableState
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import DuckDBTables

BAD, GOOD = "bad", "good"


@pytest.fixture
def reader(database: ScratchDatabase, tmp_path: Path) -> Iterator[Rig]:
    """Two tables, read by a role that is no superuser, and copied where no Spark has to start."""
    role = f"reader_{database.name}"
    for table in (BAD, GOOD):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 100) AS i",
        )
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
        "CREATE PUBLICATION p FOR TABLE bad, good WITH (publish_via_partition_root = true)",
    )
    rig = Rig(folder=tmp_path, database=database, tables=(BAD, GOOD))
    rig.write_to("duckdb")
    rig.write_yaml(source={"user": role, "publication": "p"})
    yield rig
    rig.kill()
    rig.command("delete", rig.name, "--yes", check=None)
    database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def failure(rig: Rig) -> ErrorStatus | None:
    """Why the one table has failed; the other has not."""
    good = rig.table("good")
    assert (good.state, good.error) == (TableState.STREAMING, None)
    return rig.table("bad").error


@pytest.mark.matrix  # four runs of the command; its parts are tested with capture and with the pumps
def test_a_revoked_grant_stops_one_table_of_two_and_its_return_brings_it_back(reader: Rig) -> None:
    rig, database, target_tables = reader, reader.database, DuckDBTables(reader.duckdb)
    rig.catch_up()
    assert rig.differences(target_tables) == {}

    role = f"reader_{database.name}"
    database.execute(f"REVOKE SELECT ON bad FROM {role}")
    for table in (BAD, GOOD):
        database.execute(f"INSERT INTO {table} VALUES (101, 'later')")
    rig.command("validate", str(rig.file), check=2)
    rig.catch_up(check=1)
    error = failure(rig)
    assert error is not None
    assert error.code == "select_missing"
    assert "GRANT SELECT" in present(error.action)
    assert rig.differences(target_tables, but=BAD) == {}

    database.execute(f"GRANT SELECT ON bad TO {role}")
    rig.catch_up()
    assert (failure(rig), rig.differences(target_tables)) == (None, {})
