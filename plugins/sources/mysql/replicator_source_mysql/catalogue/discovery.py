"""Queries of the catalogue."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pymysql

from replicator.model.schema import TableId
from replicator.plugins.source import TableSummary
from replicator_source_mysql.binlog import declared_spec
from replicator_source_mysql.catalogue.tables import CatalogColumn, CatalogTable, ForeignKey, UniqueKey, shadow_of
from replicator_source_mysql.connecting.connection import Connection, Row, flavor_of, quoted_table, rows_of
from replicator_source_mysql.flavors import Flavor, version_of

_READS_MAX: Final = 5
_TABLES_AT_ONCE: Final = 200
_NO_SUCH_TABLE: Final = 1146
_KINDS: Final = {"VIEW": "view", "SYSTEM VIEW": "view", "SEQUENCE": "sequence", "TEMPORARY": "temporary table"}

Storage = tuple[int | str, ...]

_LIST: Final = """
SELECT table_schema, table_name, table_type FROM information_schema.tables
WHERE LOWER(table_schema) NOT IN ('information_schema', 'performance_schema', 'mysql', 'sys', 'ndbinfo')
"""

_TABLES: Final = """
SELECT table_schema, table_name, table_type, engine, create_time, table_rows, table_comment
FROM information_schema.tables WHERE (table_schema, table_name) IN ({names})
"""

_COLUMNS: Final = """
SELECT table_schema, table_name, column_name, column_type, character_set_name, is_nullable, extra, column_comment, privileges,
  generation_expression
FROM information_schema.columns WHERE (table_schema, table_name) IN ({names}) ORDER BY 1, 2, ordinal_position
"""

_KEYS: Final = """
SELECT table_schema, table_name, index_name, column_name, sub_part, index_type
FROM information_schema.statistics WHERE non_unique = 0 AND (table_schema, table_name) IN ({names})
ORDER BY 1, 2, 3, seq_in_index
"""

_CASCADES: Final = """
SELECT constraint_schema, table_name, constraint_name, unique_constraint_schema, referenced_table_name,
  delete_rule, update_rule
FROM information_schema.referential_constraints WHERE (constraint_schema, table_name) IN ({names})
  AND (delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
ORDER BY 1, 2, 3
"""


def list_tables(connection: Connection, *, watermark: TableId) -> list[TableSummary]:
    """List every table of a user's database, with the reason if it is left out; `watermark` is `source.watermark_table`."""
    rows = rows_of(connection, _LIST)
    names: dict[str, set[str]] = defaultdict(set)
    for schema, name, _ in rows:
        names[schema].add(name)
    return sorted(
        (_summary(TableId(schema, name), kind, frozenset(names[schema]), watermark) for schema, name, kind in rows),
        key=lambda s: s.table,
    )


def _summary(table: TableId, kind: str, names: frozenset[str], watermark: TableId) -> TableSummary:
    left_out: str | None = None
    if kind in _KINDS:
        left_out = f"a {_KINDS[kind]} has no rows of its own in the log"
    elif table == watermark:
        left_out = "the table of our watermarks"
    elif table.name.startswith("#sql"):
        left_out = "a table that the server created for itself"
    elif base := shadow_of(table.name, names):
        left_out = f"a schema-change tool's helper for {base}"
    return TableSummary(table=table, left_out=left_out)


def read_tables(
    connection: Connection, tables: Collection[TableId], *, may_see_storage: bool = True
) -> dict[TableId, CatalogTable]:
    """Read these tables from the catalogue; one that does not exist, or is no table, is missing from the answer.

    Args:
        connection: Connection of an account that may see them.
        tables: Names to look up.
        may_see_storage: The account has PROCESS; without it `CatalogTable.storage` stays empty.
    """
    found: dict[TableId, CatalogTable] = {}
    ordered = list(tables)
    storage = _storage(connection, ordered) if may_see_storage else {}
    for start in range(0, len(ordered), _TABLES_AT_ONCE):
        some = ordered[start : start + _TABLES_AT_ONCE]
        for _ in range(_READS_MAX):
            found |= _read_some(connection, some, storage)
            # The catalogue is no snapshot: a table may get its name between two queries.
            some = [table for table in some if table in found and not found[table].columns]
            if not some:
                break
        for table in some:
            del found[table]
    return found


def hidden_tables(connection: Connection, missing: Collection[TableId]) -> list[TableId]:
    """Return those of the tables that the catalogue does not show to this account, but InnoDB has: a privilege on them is missing.

    InnoDB's names tell it with PROCESS, and for sure in ASCII only. Both are asked again, as a table may be dropped or made meanwhile.
    """
    found = [table for table in missing if f"{table}".isascii()]
    for _ in range(2):
        storage = _storage(connection, found) if found else {}
        found = [table for table in found if storage.get(table)]
        shown = read_tables(connection, found, may_see_storage=False)
        found = [table for table in found if table not in shown]
    return found


def _read_some(
    connection: Connection, tables: Sequence[TableId], storage: Mapping[TableId, Storage]
) -> dict[TableId, CatalogTable]:
    flavor = flavor_of(connection)
    # Names are compared without case by the catalogue, and with it by us.
    wanted = set(tables)
    columns = _grouped(_query(connection, _COLUMNS, tables))
    keys = _grouped(_query(connection, _KEYS, tables))
    cascades = _grouped(_query(connection, _CASCADES, tables))
    found: dict[TableId, CatalogTable] = {}
    for schema, name, kind, engine, created, rows, comment in _query(connection, _TABLES, tables):
        table = TableId(schema, name)
        if table not in wanted or kind in _KINDS:
            continue
        found[table] = CatalogTable(
            table=table,
            kind=kind,
            engine=engine or "",
            created=None if created is None else str(created),
            storage=storage.get(table, ()),
            columns=tuple(_column(row, flavor) for row in columns[table]),
            unique_keys=_in_order(connection, table, _unique_keys(keys[table])),
            cascades=tuple(_foreign_key(row) for row in cascades[table]),
            estimated_rows=rows,
            comment=comment or None,
        )
    return found


def _column(row: Row, flavor: Flavor) -> CatalogColumn:
    _, _, name, column_type, charset, is_nullable, extra, comment, privileges, expression = row
    return CatalogColumn(
        name=name,
        column_type=column_type,
        spec=declared_spec(column_type, charset, flavor),
        is_nullable=is_nullable == "YES",
        expression=(expression or "") if "VIRTUAL" in extra.upper() else None,
        is_readable="select" in privileges.lower().split(","),
        comment=comment or None,
    )


def _unique_keys(rows: Iterable[Row]) -> tuple[UniqueKey, ...]:
    parts: dict[str, list[tuple[str | None, int | None, str]]] = defaultdict(list)
    for _, _, index, column, prefix, kind in rows:
        parts[index].append((column, prefix, kind))
    return tuple(
        UniqueKey(
            name=index,
            columns=tuple(column for column, *_ in found if column is not None),
            # MariaDB holds a key that is too long for an index by its hash.
            is_whole=all(column is not None and prefix is None and kind != "HASH" for column, prefix, kind in found),
        )
        for index, found in parts.items()
    )


def _in_order(connection: Connection, table: TableId, keys: tuple[UniqueKey, ...]) -> tuple[UniqueKey, ...]:
    """Unique keys in the order of the server, which decides what rows are clustered by; asked for only where it decides."""
    if len(keys) < 2 or any(key.name == "PRIMARY" for key in keys):  # noqa: PLR2004
        return keys
    try:
        rows = rows_of(connection, f"SHOW KEYS FROM {quoted_table(table)}")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != _NO_SUCH_TABLE:
            raise
        return keys  # dropped since: the next check finds nothing
    order = {name: index for index, name in enumerate(dict.fromkeys(row[2] for row in rows))}
    return tuple(sorted(keys, key=lambda key: order.get(key.name, len(order))))


def _foreign_key(row: Row) -> ForeignKey:
    _, _, name, parent_schema, parent, on_delete, on_update = row
    rules = [f"ON {what} {rule}" for what, rule in (("DELETE", on_delete), ("UPDATE", on_update)) if _acts(rule)]
    return ForeignKey(name=name, parent=TableId(parent_schema, parent), rules=" ".join(rules))


def _acts(rule: str) -> bool:
    return rule in {"CASCADE", "SET NULL", "SET DEFAULT"}


def _grouped(rows: Iterable[Row]) -> dict[TableId, list[Row]]:
    groups: dict[TableId, list[Row]] = defaultdict(list)
    for row in rows:
        groups[TableId(row[0], row[1])].append(row)
    return groups


def _query(connection: Connection, query: str, tables: Sequence[TableId]) -> list[Row]:
    if not tables:
        return []
    names = ", ".join(["(%s, %s)"] * len(tables))
    parameters = [part for t in tables for part in (t.namespace, t.name)]
    return rows_of(connection, query.format(names=names), parameters)


# -- InnoDB's own numbers ------------------------------------------------------------------------------------------------


def _storage(connection: Connection, tables: Sequence[TableId]) -> dict[TableId, Storage]:
    """InnoDB's number of each table, or of each of its partitions; nothing for a table of another engine.

    A `+n` after it: columns were added or dropped n times since without a rebuild, which leaves the number as it is.
    """
    if not tables:
        return {}
    flavor = flavor_of(connection)
    versions = flavor.row_versions(version_of(connection.get_server_info()))
    query = f"SELECT table_id, name, {versions} FROM information_schema.{flavor.innodb_prefix}tables WHERE "  # noqa: S608 - our own names
    patterns = {table: name_pattern(table) for table in tables}
    if len(tables) == 1:
        rows = rows_of(connection, query + "name RLIKE %s", [patterns[tables[0]]])
        return {tables[0]: _numbers((number, count) for number, _, count in rows)}
    rows = rows_of(connection, query + "TRUE")
    by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, name, count in rows:
        by_name[_without_partition(name)].append((number, count))
    return {table: _numbers(_matching(pattern, by_name)) for table, pattern in patterns.items()}


def _numbers(found: Iterable[tuple[int, int]]) -> Storage:
    return tuple(f"{number}+{count}" if count else number for number, count in sorted(found))


def _matching(pattern: str, by_name: Mapping[str, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    plain = pattern[1 : -len(_PARTITION)]
    if (exact := by_name.get(plain.replace("\\", ""))) is not None:
        return exact
    if "@" not in plain:
        return []
    compiled = re.compile(pattern)
    return [number for name, numbers in by_name.items() if compiled.search(name) for number in numbers]


_PARTITION: Final = "(#[pP]#.*)?$"


def _without_partition(name: str) -> str:
    return re.sub(r"#[pP]#.*$", "", name)


def name_pattern(table: TableId) -> str:
    """A regular expression for the name that InnoDB gives a table.

    It is that of a file: a character that is no letter, digit or underscore of ASCII becomes `@` and four hexadecimal digits, or `@`
    and two characters for some letters, whose table is the server's own. For those the pattern may match a neighbour too:
    then a change of either is taken for one of this table.
    """
    return f"^{_encoded(table.namespace)}/{_encoded(table.name)}{_PARTITION}"


def _encoded(name: str) -> str:
    parts: list[Any] = []
    for char in name:
        if char.isascii():
            parts.append(char if char.isalnum() or char == "_" else f"@{ord(char):04x}")
        else:
            parts.append("(@[0-9a-z]{4}|@[0-9a-zA-Z]{2})" * (2 if ord(char) > 0xFFFF else 1))  # noqa: PLR2004
    return "".join(parts)
