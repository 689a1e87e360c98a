"""Facts that decide whether a table can be replicated: permissions, partitions, code pages, columns that hide their values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection

_TABLES: Final = """
SELECT t.object_id, HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(t.name), N'OBJECT', N'SELECT'),
  HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(t.name), N'OBJECT', N'INSERT'),
  HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(t.name), N'OBJECT', N'UPDATE'),
  (SELECT COUNT(*) FROM sys.indexes i JOIN sys.data_spaces d ON d.data_space_id = i.data_space_id
   WHERE i.object_id = t.object_id AND i.index_id IN (0, 1) AND d.type = 'PS'),
  (SELECT COUNT(*) FROM sys.indexes i WHERE i.object_id = t.object_id AND i.type = 5)
FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id
WHERE t.object_id IN ({numbers})
"""

_PARTITIONED: Final = """
SELECT COUNT(*) FROM sys.indexes i JOIN sys.data_spaces d ON d.data_space_id = i.data_space_id
WHERE i.object_id = ? AND i.index_id IN (0, 1) AND d.type = 'PS'
"""

# From SQL Server 2022 on columns can be unmasked one by one; before, the answer about a column is NULL.
_COLUMNS: Final = """
SELECT c.object_id, c.name, CASE WHEN c.is_masked = 1 AND COALESCE(
    HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(t.name), N'OBJECT', N'UNMASK', c.name, N'COLUMN'), 0) = 0 THEN 1 ELSE 0 END,
  c.encryption_type,
  CAST(COLLATIONPROPERTY(c.collation_name, 'CodePage') AS int),
  HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(t.name), N'OBJECT', N'SELECT', c.name, N'COLUMN')
FROM sys.columns c JOIN sys.tables t ON t.object_id = c.object_id JOIN sys.schemas s ON s.schema_id = t.schema_id
WHERE c.object_id IN ({numbers}) ORDER BY c.object_id, c.column_id
"""

# Columns are shown of tables only that the account may read.
_INSTANCES: Final = """
SELECT i.source_object_id, i.capture_instance,
  HAS_PERMS_BY_NAME(N'[cdc].' + QUOTENAME(i.capture_instance + N'_CT'), N'OBJECT', N'SELECT'),
  (SELECT COUNT(*) FROM sys.columns c WHERE c.object_id = i.object_id AND c.name = N'__$command_id')
FROM cdc.change_tables i WHERE i.source_object_id IN ({numbers})
"""

# Filters of row-level security that are in force. An account that may not see their definitions is shown none.
_FILTERS: Final = """
SELECT p.target_object_id FROM sys.security_predicates p JOIN sys.security_policies q ON q.object_id = p.object_id
WHERE p.predicate_type = 0 AND q.is_enabled = 1 AND p.target_object_id IN ({numbers})
"""
_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """A column.

    Attributes:
        is_masked: The column is masked, and our account may not see through its mask.
        code_page: The code page of its collation; None if it is no text.
        is_readable: Our account may SELECT the column.
    """

    is_masked: bool = False
    is_encrypted: bool = False
    code_page: int | None = None
    is_readable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table.

    Attributes:
        denied: The permissions among SELECT, INSERT and UPDATE that our account lacks.
        is_partitioned: The table is partitioned by a partition scheme.
        is_filtered: A security policy may hide rows of it. Not every account is shown that.
        is_columnstore: It has a clustered columnstore index.
        columns: The columns by name.
        unreadable: Capture instances whose change tables our account may not read.
        unordered: Capture instances whose change tables have no `__$command_id`, as servers without the update KB 3030352 make them.
    """

    denied: frozenset[str] = frozenset()
    is_partitioned: bool = False
    is_columnstore: bool = False
    is_filtered: bool = False
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    unordered: frozenset[str] = frozenset()


def is_partitioned(connection: Connection, object_id: int) -> bool:
    """Return whether a table is partitioned; of others change data capture cannot bar `ALTER TABLE … SWITCH`."""
    return bool(connection.rows(_PARTITIONED, [object_id])[0][0])


def read_table_facts(
    connection: Connection, tables: Collection[CatalogTable], *, is_captured: bool
) -> Mapping[int, TableFacts]:
    """Read facts from the catalogue, by `object_id`: four queries for each two hundred tables."""
    numbers = sorted({table.object_id for table in tables})
    found: dict[int, TableFacts] = {}
    for start in range(0, len(numbers), _AT_ONCE):
        found |= _read(connection, ", ".join(map(str, numbers[start : start + _AT_ONCE])), is_captured=is_captured)
    return found


def _read(connection: Connection, listed: str, *, is_captured: bool) -> dict[int, TableFacts]:
    columns = defaultdict[int, dict[str, ColumnFacts]](dict)
    for number, name, is_masked, encryption, code_page, may in connection.rows(_COLUMNS.format(numbers=listed)):
        columns[int(number)][name] = ColumnFacts(
            is_masked=bool(is_masked),
            is_encrypted=encryption is not None,
            code_page=None if code_page is None else int(code_page),
            is_readable=bool(may),
        )
    unreadable, unordered = defaultdict[int, set[str]](set), defaultdict[int, set[str]](set)
    for number, instance, may, commands in connection.rows(_INSTANCES.format(numbers=listed)) if is_captured else ():
        if not may:
            unreadable[int(number)].add(instance)
        elif not commands:
            unordered[int(number)].add(instance)
    filtered = {int(number) for (number,) in connection.rows(_FILTERS.format(numbers=listed))}
    return {
        int(number): TableFacts(
            denied=frozenset(
                what for what, may in zip(("SELECT", "INSERT", "UPDATE"), permissions, strict=True) if not may
            ),
            is_partitioned=bool(partitioned),
            is_columnstore=bool(columnstores),
            is_filtered=int(number) in filtered,
            columns=columns[int(number)],
            unreadable=frozenset(unreadable[int(number)]),
            unordered=frozenset(unordered[int(number)]),
        )
        for number, *permissions, partitioned, columnstores in connection.rows(_TABLES.format(numbers=listed))
    }
