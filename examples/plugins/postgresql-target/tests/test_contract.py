"""What every target must do, on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import pytest

from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.plugins import TargetTable
from replicator_target_postgresql.config import PostgresConfig
from replicator_target_postgresql.sql import path_of, quoted
from replicator_target_postgresql.target import PostgresTarget
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.defaults import target_context
from replicator_testing.target_contract import TargetContract
from replicator_testing.target_harness import UUID, TargetHarness, TargetRow


class Harness(TargetHarness):
    """A database, and a way to look at it that does not go through the target."""

    def __init__(self, database: ScratchDatabase) -> None:
        self.database = database
        self.targets: list[PostgresTarget] = []

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> PostgresTarget:
        server = self.database.server
        config = PostgresConfig(
            host=server.host,
            port=server.port,
            user=server.user,
            database=self.database.name,
            sslmode="disable",
            adopt=adopt,
        )
        self.targets.append(PostgresTarget(config, target_context(replicator="contract", uuid=uuid, epoch=epoch)))
        return self.targets[-1]

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        if not self.exists(table):
            return []
        marks = [SEQUENCE_NUM, IS_DELETED if table.options.deletes == "soft" else "FALSE"]
        columns = [column.name for column in schema.held]
        names = ", ".join([*map(quoted, columns), *marks])
        with self.database.connect() as connection:
            found = connection.execute(f"SELECT {names} FROM {path_of(table.table)}".encode()).fetchall()
        return [
            TargetRow(values=dict(zip(columns, row[:-2], strict=True)), sequence_num=row[-2], is_deleted=row[-1])
            for row in found
        ]

    def exists(self, table: TargetTable) -> bool:
        with self.database.connect() as connection:
            return connection.execute("SELECT to_regclass(%s)", [path_of(table.table)]).fetchone() != (None,)


# What DuckDB and the memory target prove of the suite itself is left to the matrix.
@pytest.mark.matrix_except(
    "test_identity_is_the_same_for_every_object",
    "test_a_table_claimed_for_the_first_time_is_empty",
    "test_check_finds_nothing_wrong_with_tables_of_our_own_and_leaves_nothing",
    "test_close_may_be_called_twice",
    "test_a_replayed_batch_changes_nothing",
    "test_a_writer_of_an_older_epoch_changes_nothing",
    "test_a_claim_alone_fences_the_older_epoch",
    "test_a_table_of_another_replicator_is_refused",
    "test_every_way_to_cut_a_history_into_batches_gives_the_same_rows[absent_then_reused]",
    "test_random_histories_equal_a_plain_replay[hard]",
    "test_random_histories_without_a_key_equal_a_plain_replay",
    "test_a_snapshot_in_place_ends_with_what_it_read_and_what_came_since[soft]",
)
class TestPostgresTarget(TargetContract):
    fuzz_worlds = 40

    @pytest.fixture
    def harness(self, database: ScratchDatabase) -> Iterator[TargetHarness]:
        harness = Harness(database)
        yield harness
        for target in harness.targets:
            target.close()
