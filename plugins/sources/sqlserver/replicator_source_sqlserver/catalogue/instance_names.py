"""Names of capture instances: at most a hundred characters, and no two of a database alike, whatever their tables are called.

`sys.sp_cdc_enable_table` derives a name from the schema and the table if none is given, and refuses one that is too long or taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from replicator.model.schema import TableId
from replicator_source_sqlserver.connecting.connection import Connection

INSTANCE_NAME_MAX: Final = 100
"""Maximum number of characters of a capture instance's name."""

_ALL: Final = "SELECT t.capture_instance FROM cdc.change_tables t"


def read_instance_names(connection: Connection) -> frozenset[str]:
    """Read the names of all capture instances of the database, in which change data capture is on."""
    return frozenset(name for (name,) in connection.rows(_ALL))


def derived_name(table: TableId) -> str:
    """Return the name that the server gives an instance by default."""
    return f"{table.namespace}_{table.name}"


def free_name(table: TableId, taken: Collection[str]) -> str:
    """Return the name of a further instance: the server's own, if it is short enough and not taken; with a number after it if it is.

    Args:
        table: The table of the instance.
        taken: Names of all instances of the database, and of those that are to be made.
    """
    first = derived_name(table)[:INSTANCE_NAME_MAX]
    folded = {name.lower() for name in taken}
    number, name = 1, first
    while name.lower() in folded:
        number += 1
        name = f"{first[: INSTANCE_NAME_MAX - len(str(number)) - 1]}_{number}"
    return name


def free_names(tables: Iterable[TableId], taken: Collection[str]) -> Mapping[TableId, str]:
    """Return a name for a further instance of each table, no two alike."""
    found: dict[TableId, str] = {}
    for table in tables:
        if table not in found:
            found[table] = free_name(table, [*taken, *found.values()])
    return found
