"""Queries of the catalogue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from replicator.model.schema import TableId
from replicator.plugins.source import TableSummary
from replicator_source_sqlserver.catalogue.tables import CaptureInstance, CatalogColumn, CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.types import DeclaredType

_AT_ONCE: Final = 200
_KINDS: Final = (
    ("is_memory_optimized", "memory-optimized table"),
    ("is_external", "external table"),
    ("is_filetable", "FileTable"),
    ("is_node", "graph table"),
    ("is_edge", "graph table"),
)

_LIST: Final = """
SELECT s.name, t.name, t.temporal_type, t.is_memory_optimized, t.is_external, t.is_filetable, t.is_node, t.is_edge
FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id
WHERE t.is_ms_shipped = 0 AND s.name <> N'cdc'
"""

_VIEWS: Final = """
SELECT s.name, o.name FROM sys.objects o JOIN sys.schemas s ON s.schema_id = o.schema_id
WHERE o.type = 'V' AND o.is_ms_shipped = 0 AND s.name NOT IN (N'cdc', N'sys')
"""

_NAMES: Final = """
SELECT t.object_id, s.name, t.name FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id
WHERE t.object_id IN ({numbers})
"""

_NUMBERS: Final = """
SELECT t.object_id, s.name, t.name FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id
WHERE t.is_ms_shipped = 0 AND ({names})
"""

# A user-defined type has the name of its system type; those of .NET share one number, and have their own name.
_COLUMNS: Final = """
SELECT c.object_id, c.column_id, c.name, CASE WHEN c.system_type_id = 240 THEN u.name ELSE b.name END,
  c.max_length, c.precision, c.scale, c.collation_name, c.is_nullable, c.is_computed, c.is_column_set
FROM sys.columns c
LEFT JOIN sys.types u ON u.user_type_id = c.user_type_id
LEFT JOIN sys.types b ON b.user_type_id = c.system_type_id
WHERE c.object_id IN ({numbers}) ORDER BY c.object_id, c.column_id
"""

_DESCRIPTIONS: Final = """
SELECT p.major_id, p.minor_id, CAST(p.value AS nvarchar(4000)) FROM sys.extended_properties p
WHERE p.class = 1 AND p.name = N'MS_Description' AND p.major_id IN ({numbers})
"""

_KEYS: Final = """
SELECT i.object_id, c.name
FROM sys.indexes i
JOIN sys.index_columns k ON k.object_id = i.object_id AND k.index_id = i.index_id AND k.key_ordinal > 0
JOIN sys.columns c ON c.object_id = k.object_id AND c.column_id = k.column_id
WHERE i.is_primary_key = 1 AND i.object_id IN ({numbers}) ORDER BY i.object_id, k.key_ordinal
"""

_ROWS: Final = """
SELECT p.object_id, SUM(p.rows) FROM sys.partitions p
WHERE p.index_id IN (0, 1) AND p.object_id IN ({numbers}) GROUP BY p.object_id
"""

_IS_CAPTURED: Final = "SELECT is_cdc_enabled FROM sys.databases WHERE name = DB_NAME()"

_INSTANCES: Final = """
SELECT t.source_object_id, t.capture_instance, t.object_id, t.start_lsn, CAST(t.create_date AS datetime2(3)), t.partition_switch
FROM cdc.change_tables t WHERE t.source_object_id IN ({numbers})
ORDER BY t.source_object_id, t.create_date, t.object_id
"""

_CAPTURED: Final = """
SELECT c.object_id, c.column_name, c.column_ordinal, c.column_id FROM cdc.captured_columns c
WHERE c.object_id IN (SELECT t.object_id FROM cdc.change_tables t WHERE t.source_object_id IN ({numbers}))
"""


def list_tables(connection: Connection) -> Sequence[TableSummary]:
    """See `SourceCatalogue.list_tables`."""
    found = [TableSummary(table=TableId(row[0], row[1]), left_out=_left_out(row)) for row in connection.rows(_LIST)]
    found += [TableSummary(table=TableId(row[0], row[1]), left_out="view") for row in connection.rows(_VIEWS)]
    return sorted(found, key=lambda summary: summary.table)


def read_tables(
    connection: Connection, tables: Collection[TableId], *, is_captured: bool | None = None
) -> dict[TableId, CatalogTable]:
    """Read from the catalogue those of the tables that exist, under exactly these names.

    Args:
        connection: Any.
        tables: The names.
        is_captured: True if their capture instances are read; None: if the database has any.
    """
    wanted, found = sorted(tables), dict[TableId, CatalogTable]()
    if is_captured is None:
        is_captured = bool(connection.rows(_IS_CAPTURED)[0][0])
    for start in range(0, len(wanted), _AT_ONCE):
        found |= _read(connection, wanted[start : start + _AT_ONCE], is_captured=is_captured)
    return found


def read_change_columns(connection: Connection, object_ids: Collection[int]) -> dict[int, dict[str, DeclaredType]]:
    """Read the types of the columns of change tables, which are those of the table at the end of what was captured."""
    wanted, found = sorted(object_ids), dict[int, dict[str, DeclaredType]]()
    for start in range(0, len(wanted), _AT_ONCE):
        listed = ", ".join(map(str, wanted[start : start + _AT_ONCE]))
        for number, columns in _by_first(connection.rows(_COLUMNS.format(numbers=listed))).items():
            found[number] = {column.name: column.declared for column in map(_column, columns)}
    return found


def read_objects(
    connection: Connection, tables: Mapping[int, TableId], *, is_captured: bool = True
) -> dict[TableId, CatalogTable]:
    """Read tables from the catalogue by their numbers, whatever they are called now; those that do not exist are left out."""
    wanted, found = sorted(tables), dict[TableId, CatalogTable]()
    for start in range(0, len(wanted), _AT_ONCE):
        numbers = {number: tables[number] for number in wanted[start : start + _AT_ONCE]}
        found |= _described(connection, numbers, is_captured=is_captured)
    return found


def read_names(connection: Connection, numbers: Collection[int]) -> dict[int, TableId]:
    """Read the present names of tables; those that do not exist are left out."""
    wanted, found = sorted(numbers), dict[int, TableId]()
    for start in range(0, len(wanted), _AT_ONCE):
        listed = ", ".join(map(str, wanted[start : start + _AT_ONCE]))
        found |= {int(n): TableId(schema, name) for n, schema, name in connection.rows(_NAMES.format(numbers=listed))}
    return found


def _read(connection: Connection, tables: Sequence[TableId], *, is_captured: bool) -> dict[TableId, CatalogTable]:
    names = " OR ".join(["(s.name = ? AND t.name = ?)"] * len(tables))
    parameters = [part for table in tables for part in (table.namespace, table.name)]
    numbers = {
        int(row[0]): TableId(row[1], row[2]) for row in connection.rows(_NUMBERS.format(names=names), parameters)
    }
    # The server's collation may take another name for the one that was asked for.
    numbers = {number: table for number, table in numbers.items() if table in tables}
    return _described(connection, numbers, is_captured=is_captured) if numbers else {}


def _described(
    connection: Connection, numbers: Mapping[int, TableId], *, is_captured: bool
) -> dict[TableId, CatalogTable]:
    listed = ", ".join(map(str, numbers))
    columns = _by_first(connection.rows(_COLUMNS.format(numbers=listed)))
    texts = _by_first(connection.rows(_DESCRIPTIONS.format(numbers=listed)))
    keys = _by_first(connection.rows(_KEYS.format(numbers=listed)))
    rows = {int(number): int(count) for number, count in connection.rows(_ROWS.format(numbers=listed))}
    instances = _instances(connection, listed) if is_captured else {}
    # Asked last: a table that was dropped meanwhile would look as if it had no instance, or no key.
    there = {int(row[0]) for row in connection.rows(_NAMES.format(numbers=listed))}
    return {
        table: CatalogTable(
            table=table,
            object_id=number,
            columns=tuple(map(_column, columns[number])),
            descriptions={int(column): text for _, column, text in texts[number] if text},
            primary_key=tuple(name for _, name in keys[number]),
            instances=tuple(instances.get(number, ())),
            estimated_rows=rows.get(number),
        )
        for number, table in numbers.items()
        if number in there
    }


def _instances(connection: Connection, listed: str) -> Mapping[int, Sequence[CaptureInstance]]:
    ordinals, ids = defaultdict[int, dict[str, int]](dict), defaultdict[int, dict[str, int]](dict)
    for number, name, ordinal, column in connection.rows(_CAPTURED.format(numbers=listed)):
        ordinals[int(number)][name] = int(ordinal)
        ids[int(number)][name] = int(column)
    found = defaultdict[int, list[CaptureInstance]](list)
    for source, name, number, start, created_at, is_switch_allowed in connection.rows(
        _INSTANCES.format(numbers=listed)
    ):
        found[int(source)].append(
            CaptureInstance(
                name=name,
                object_id=int(number),
                start_lsn=None if start is None else bytes(start),
                created_at=created_at,
                ordinals=ordinals[int(number)],
                ids=ids[int(number)],
                is_switch_allowed=bool(is_switch_allowed),
            )
        )
    return found


def _column(row: Row) -> CatalogColumn:
    _, number, name, type_, max_length, precision, scale, collation, is_nullable, is_computed, is_set = row
    return CatalogColumn(
        id=int(number),
        name=name,
        declared=DeclaredType(
            name=type_ or "",
            max_length=int(max_length),
            precision=int(precision),
            scale=int(scale),
            collation=collation,
        ),
        is_nullable=bool(is_nullable),
        is_computed=bool(is_computed),
        is_column_set=bool(is_set),
    )


def _left_out(row: Row) -> str | None:
    _, _, temporal, *flags = row
    if int(temporal or 0) == 1:
        return "history of a temporal table"
    return next((kind for flag, (_, kind) in zip(flags, _KINDS, strict=True) if flag), None)


def _by_first(rows: Iterable[Row]) -> Mapping[int, list[Any]]:
    found = defaultdict[int, list[Any]](list)
    for row in rows:
        found[int(row[0])].append(row)
    return found
