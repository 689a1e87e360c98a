"""SQL Server with change tracking keeps the contract of sources that promise net changes, as far as the model is like one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from plugins.sources.sqlserver.tests.test_contract import SqlServerHarness
from replicator.model.schema import TableId
from replicator_source_sqlserver.names import quoted_table
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.net_changes_contract import NetChangesContract
from replicator_testing.source_harness import SourceHarness, TableKind


class TrackingHarness(SqlServerHarness):
    def __init__(self, model: SqlServerModel, **settings: Any) -> None:
        super().__init__(model, **{"capture": "change_tracking", "mark_table": None, **settings})

    @override
    def _set_up(self) -> None:
        self.sql.execute(
            "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON)"
        )
        self.sql.execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")

    @override
    def _enable(self, table: TableId, kind: TableKind | None) -> None:
        if kind is not TableKind.KEYLESS:
            self.sql.execute(f"ALTER TABLE {quoted_table(table)} ENABLE CHANGE_TRACKING")


@pytest.mark.matrix_for(
    "test_a_chunk_of_given_keys_has_just_their_rows",
    "test_a_chunk_stays_within_its_bounds",
    "test_a_mark_comes_after_everything_that_a_read_before_it_saw",
    "test_a_pull_may_stop_inside_a_transaction_and_says_so",
    "test_a_table_added_later_is_in_the_log_from_then_on",
    "test_a_table_made_again_is_another_object",
    "test_a_transaction_cut_short_is_sent_again_whole",
    "test_a_transaction_stays_open_until_its_end_whatever_a_pull_brings",
    "test_check_refuses_a_table_without_a_key",
    "test_chunks_joined_are_the_whole_table",
    "test_everything_committed_before_the_source_time_has_been_delivered",
    "test_it_says_that_it_promises_net_changes",
    "test_keep_alive_may_be_called_while_the_log_is_read",
    "test_preparing_again_loses_nothing",
    "test_removing_can_be_repeated",
    "test_resuming_behind_an_acknowledged_offset_gives_the_rest",
    "test_resuming_behind_any_offset_gives_the_rest_and_no_more",
    "test_the_log_and_a_chunk_give_the_same_values",
    "test_transactions_are_never_interleaved",
    "test_truncating_tables_is_an_event_for_each_at_its_position",
    "test_what_an_unfinished_first_prepare_left_is_made_again",
    "test_what_is_committed_while_a_transaction_is_read_comes_behind_it",
)
@pytest.mark.sampled(2)
class TestSqlServerTracking(NetChangesContract):
    @pytest.fixture
    def harness(self, postgres: PostgresServer) -> Iterator[SourceHarness]:
        with SqlServerModel(postgres) as model, TrackingHarness(model) as harness:
            yield harness
