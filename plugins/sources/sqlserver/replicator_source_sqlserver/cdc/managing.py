"""Capture instances that we make, if `manage_capture` allows it. Others are never touched, not even those of another replicator."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue.facts import is_partitioned
from replicator_source_sqlserver.catalogue.instance_names import read_instance_names
from replicator_source_sqlserver.catalogue.tables import OUR_INSTANCES, CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.names import literal
from replicator_source_sqlserver.remedies import INSTANCES_MAX, disable_instance

_ALL: Final = """
SELECT s.name, t.name, c.capture_instance FROM cdc.change_tables c
JOIN sys.tables t ON t.object_id = c.source_object_id JOIN sys.schemas s ON s.schema_id = t.schema_id
ORDER BY c.capture_instance
"""


@dataclass(frozen=True, slots=True)
class ManagedInstances:
    """The instances of one replicator.

    Attributes:
        owner: The UUID of the replicator, which is in their names.
        bars_switch: True if those of partitioned tables keep partitions from being switched.
    """

    owner: str
    bars_switch: bool = True

    @property
    def prefix(self) -> str:
        """The prefix of their names."""
        return f"{OUR_INSTANCES}{self.owner.replace('-', '')[:12]}_"

    def capture(self, connection: Connection, tables: Collection[CatalogTable]) -> None:
        """Make an instance of each table that has none, and a second one of each whose only one lacks a column."""
        for table in tables:
            if not table.instances or (table.uncaptured and len(table.instances) < INSTANCES_MAX):
                self.renew(connection, table)

    def renew(self, connection: Connection, table: CatalogTable) -> bool:
        """Try to make an instance that has all columns of the table as it is now.

        Where there are two already the older one is dropped first, if it is ours: nothing may need it any more.

        Returns:
            True if it was made.
        """
        instances = table.instances
        if len(instances) >= INSTANCES_MAX:
            if not instances[0].name.startswith(self.prefix):
                return False
            connection.execute(disable_instance(table.table, instances[0].name))
        taken = {name.lower() for name in read_instance_names(connection)}
        names = (f"{self.prefix}{table.object_id}_{number}" for number in itertools.count(1))
        name = next(name for name in names if name not in taken)
        bars_switch = self.bars_switch and is_partitioned(connection, table.object_id)
        connection.execute(
            f"EXEC sys.sp_cdc_enable_table @source_schema = {literal(table.table.namespace)}, "
            f"@source_name = {literal(table.table.name)}, @role_name = NULL, @capture_instance = {literal(name)}, "
            f"@supports_net_changes = 0, @allow_partition_switch = {0 if bars_switch else 1}"
        )
        return True

    def drop(self, connection: Connection) -> list[str]:
        """Drop the instances; return their names."""
        found = [(TableId(s, t), name) for s, t, name in connection.rows(_ALL) if name.startswith(self.prefix)]
        for table, name in found:
            connection.execute(disable_instance(table, name))
        return [name for _, name in found]
