"""What every target must do, on real Delta tables, which are read with delta-rs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest

from replicator.model.events import IS_DELETED, SEQUENCE_NUM
from replicator.model.schema import TableSchema
from replicator.plugins.target import TargetTable
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.log.table import DROPPED, STATE, read_log
from replicator_target_delta.storage import Storage
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.delta import read_delta, rows_of
from replicator_testing.defaults import target_context
from replicator_testing.target_contract import TargetContract
from replicator_testing.target_harness import UUID, TargetHarness, TargetRow

if TYPE_CHECKING:
    from replicator.spark.session import SparkHost


class Lake(TargetHarness):
    """Tables in a folder."""

    def __init__(self, host: SparkHost, folder: Path, engine: Literal["auto", "spark"]) -> None:
        self.host = host
        self.engine = engine
        self.storage = Storage(str(folder))
        self.targets: list[DeltaLakeTarget] = []

    def target(
        self, *, uuid: str = UUID, epoch: int = 1, adopt: Literal["refuse", "replace"] = "refuse"
    ) -> DeltaLakeTarget:
        config = DeltaLakeConfig(path=self.storage.root, adopt=adopt, engine=self.engine)
        context = target_context(replicator="contract", uuid=uuid, epoch=epoch, spark=self.host.session)
        self.targets.append(DeltaLakeTarget(config, context))
        return self.targets[-1]

    def reasons(self) -> Sequence[str]:
        """Why Spark applied the last batch of a table, of those that it did."""
        reports = [report for target in self.targets for report in target._engines.values()]
        return [report.reason or "" for report in reports if report.rung == "L0"]

    def rows(self, table: TargetTable, schema: TableSchema) -> Sequence[TargetRow]:
        if not self.exists(table):
            return []
        names = [column.name for column in schema.held]
        marks = [SEQUENCE_NUM, *([IS_DELETED] if table.options.deletes == "soft" else [])]
        return [
            TargetRow(
                values=dict(zip(names, row[: len(names)], strict=True)),
                sequence_num=row[len(names)],
                is_deleted=bool(row[len(names) + 1 :] and row[-1]),
            )
            for row in self._read(self.storage.table_path(table.table), [*names, *marks])
        ]

    def exists(self, table: TargetTable) -> bool:
        log = read_log(self.storage, self.storage.table_path(table.table))
        return log is not None and log.properties.get(STATE) != DROPPED

    def _read(self, path: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        if "%" not in path:
            return rows_of(read_delta(Path(path), names))
        # delta-rs finds no folder with a percent sign in its name.
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        return (tuple(row) for row in self.host.session().read.format("delta").load(path).select(*quoted).collect())


# Those in which Spark publishes, rewrites or drops: one of each kind stays.
@pytest.mark.matrix_for(
    "test_equal_rows_without_a_key_are_counted",
    "test_a_soft_truncate_marks_every_row",
    "test_readers_see_the_old_incarnation_or_the_new_one_as_a_whole",
    "test_a_dropped_table_does_not_exist_and_can_be_made_again",
    "test_publishing_that_was_killed_anywhere_is_completed",
    "test_a_table_that_is_dropped_while_it_is_built_is_empty",
    "test_an_incarnation_that_is_given_up_leaves_nothing",
    "test_a_new_incarnation_begins_with_an_empty_ledger_and_replaces_the_table",
    "test_an_older_epoch_publishes_nothing",
    "test_an_older_epoch_alters_nothing",
    "test_an_altered_table_can_be_made_again",
    "test_creating_an_altered_table_again_keeps_it",
    "test_a_replayed_alteration_changes_nothing",
    "test_a_table_of_another_replicator_is_replaced_on_demand",
    "test_a_replayed_batch_changes_nothing",
    "test_a_batch_that_begins_below_the_ledger_applies_only_the_rest",
    "test_the_newest_of_equal_rows_goes_first",
    "test_missing_ones_of_equal_rows_are_counted",
    "test_random_histories_without_a_key_equal_a_plain_replay",
    "test_a_snapshot_in_place_ends_with_what_it_read_and_what_came_since[soft]",
    "test_rows_are_filled_with_values_of_every_kind",
    "test_a_column_that_takes_the_name_of_a_dropped_one_has_nothing_of_it",
    "test_a_column_of_another_type_may_take_the_name_of_a_dropped_one",
    "test_a_kept_column_gives_its_name_up_in_the_statement_that_drops_it",
    "test_a_new_column_takes_the_name_of_a_renamed_one",
    "test_tables_with_columns_of_ours_are_altered",
    "test_a_table_without_a_key_is_altered",
    "test_an_alteration_that_was_killed_anywhere_is_completed",
    "test_random_alterations_and_changes_equal_a_plain_replay",
)
class TestDeltaLakeTarget(TargetContract):
    builds_out_of_sight: ClassVar[bool] = True
    fuzz_worlds: ClassVar[int] = 250
    fuzz_rounds: ClassVar[int] = 1

    @pytest.fixture
    def harness(self, spark_host: SparkHost, tmp_path: Path) -> Iterator[Lake]:
        lake = Lake(spark_host, tmp_path / "lake", "auto")
        yield lake
        # Spark applied batches of tables without a key only.
        assert [reason for reason in lake.reasons() if reason != "the table has no key"] == []


# Minutes of Spark: `test_engine` shows that both engines make the same table.
@pytest.mark.matrix_except(
    "test_a_row_that_comes_back_is_no_longer_marked",
    "test_a_claim_alone_fences_the_older_epoch",
)
@pytest.mark.timeout(1800)
class TestDeltaLakeTargetBySpark(TargetContract):
    builds_out_of_sight: ClassVar[bool] = True
    fuzz_worlds: ClassVar[int] = 250
    fuzz_rounds: ClassVar[int] = 1

    @pytest.fixture
    def harness(self, spark_host: SparkHost, tmp_path: Path) -> Lake:
        return Lake(spark_host, tmp_path / "lake", "spark")
