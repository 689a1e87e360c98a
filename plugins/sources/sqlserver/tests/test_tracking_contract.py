"""SQL Server with change tracking keeps the contract of sources that promise net changes, as far as the model is like one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from plugins.sources.sqlserver.tests.test_contract import SqlServerHarness
from replicator.model.schema import TableId
from replicator.testing.net_changes_contract import NetChangesContract
from replicator.testing.source_harness import SourceHarness, TableKind
from replicator_source_sqlserver.names import quoted_table
from replicator_testbed.servers import PostgresServer
from replicator_testbed.sqlserver.model import SqlServerModel


class TrackingHarness(SqlServerHarness):
    def __init__(self, model: SqlServerModel, **settings: Any) -> None:
        super().__init__(model, **{"capture": "change_tracking", "signal_table": None, **settings})

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


@pytest.mark.sampled(2)
class TestSqlServerTracking(NetChangesContract):
    @pytest.fixture
    def harness(self, postgres: PostgresServer) -> Iterator[SourceHarness]:
        with SqlServerModel(postgres) as model, TrackingHarness(model) as harness:
            yield harness
