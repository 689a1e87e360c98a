"""The matrix of types: whatever is inserted, updated and deleted, the log folded row by row is what a snapshot reads, bit by bit.

Each group of types has a table with a key, one without, and one table per type whose key has it. `slow` runs more of the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from replicator.model.events import BEFORE, OPERATION, ROW
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import ChunkRequest, PullLimits
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.mysql.types import GROUPS, Values, can_be_key, group_of, held


class Writer:
    """Random statements, each alone; those that the server refuses are no statements."""

    def __init__(self, database: MysqlDatabase, seed: int) -> None:
        self.chance = random.Random(seed)
        self.connection = database.connect()
        self.cursor = self.connection.cursor()
        # What the columns do not hold is cut to what they do, and invalid days are taken.
        self.cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        self.cursor.execute("SET time_zone = '+00:00'")
        self.taken = self.refused = 0

    def run(self, statement: str) -> None:
        try:
            self.cursor.execute(statement)
            self.taken += 1
        except pymysql.Error as error:
            if error.args[0] in {1064, 1054, 1146}:
                raise
            self.refused += 1

    def value(self, values: Values, nulls: float) -> str:
        return "NULL" if self.chance.random() < nulls else values(self.chance)

    def write(self, table: str, columns: dict[str, Values], count: int, *, where: str, nulls: float = 0.1) -> None:
        """Inserts, of which some are of several rows, updates of some columns, and deletes."""
        names = list(columns)
        for number in range(count):
            rows = [
                f"({number * 10 + i}, {', '.join(self.value(columns[n], nulls) for n in names)})"
                for i in range(self.chance.choice([1, 1, 5]))
            ]
            self.run(f"INSERT INTO {table} (id, {', '.join(names)}) VALUES {', '.join(rows)}")
            some = self.chance.sample(names, self.chance.randint(1, len(names)))
            condition = where.format(self.chance.randrange(number * 10 + 10))
            self.run(
                f"UPDATE {table} SET {', '.join(f'{n} = {self.value(columns[n], nulls)}' for n in some)} WHERE {condition}"
            )
            if self.chance.random() < 0.3:
                self.run(f"DELETE FROM {table} WHERE {where.format(self.chance.randrange(number * 10 + 10))}")


def canonical(rows: pa.Array) -> list[tuple[Any, ...]]:
    """Rows as comparable values, bit by bit: no date or moment becomes Python's, and a NULL row has only None."""
    columns = []
    for position in range(rows.type.num_fields):
        column = rows.field(position)
        if pa.types.is_floating(column.type):
            column = column.view(pa.int32() if column.type == pa.float32() else pa.int64())
        elif pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def changes(source: MysqlSource, reader: Any) -> Iterator[tuple[TableId, str, Any, Any]]:
    """What the log has since it was opened: table, operation, before and row."""
    mark = source.mark()
    while True:
        batch = reader.pull(PullLimits(rows=100_000, bytes=256 << 20, wait_s=1.0))
        assert batch.table_errors == {}
        for change in batch.changes:
            before, row = change.rows.column(BEFORE), change.rows.column(ROW)
            no_before = before.is_null().to_pylist()
            for operation, old, new, is_absent in zip(
                change.rows.column(OPERATION).to_pylist(), canonical(before), canonical(row), no_before, strict=True
            ):
                yield change.schema.table, operation, None if is_absent else old, new
        if mark in batch.marks:
            return


class Fold:
    """Tables as the log says."""

    def __init__(self, schemas: dict[TableId, TableSchema]) -> None:
        self._keys = {t: [[c.name for c in s.columns].index(k) for k in s.key] for t, s in schemas.items()}
        self.keyed: dict[TableId, dict[tuple[Any, ...], tuple[Any, ...]]] = {t: {} for t in schemas}
        self.bags: dict[TableId, Counter[tuple[Any, ...]]] = {t: Counter() for t in schemas}

    def take(self, table: TableId, operation: str, before: Any, row: Any) -> None:
        positions = self._keys[table]
        if not positions:
            bag = self.bags[table]
            if operation != "INSERT":
                assert bag[before] > 0, (table, operation, before)
                bag[before] -= 1
            if operation != "DELETE":
                bag[row] += 1
            return
        rows = self.keyed[table]
        key = tuple(row[p] for p in positions)
        if operation == "INSERT":
            assert key not in rows, (table, key)
        else:
            del rows[before if before is not None else key]
        if operation != "DELETE":
            rows[key] = row

    def rows(self, table: TableId) -> Counter[tuple[Any, ...]]:
        return +self.bags[table] if not self._keys[table] else Counter(self.keyed[table].values())


def snapshot(source: MysqlSource, schema: TableSchema) -> Counter[tuple[Any, ...]]:
    batches = []
    if not schema.key:
        with source.read_whole(schema) as read:
            batches = list(read.batches)
    else:
        after = None
        while True:
            chunk = source.read_chunk(ChunkRequest(schema=schema, after=after, limit=7))
            batches.append(chunk.rows)
            if chunk.rows.num_rows < 7:
                break
            assert chunk.cursor != after
            after = chunk.cursor
    return Counter(
        row for b in batches for row in canonical(pa.StructArray.from_arrays(b.columns, fields=list(schema.row_type)))
    )


def run_matrix(database: MysqlDatabase, source: MysqlSource, group: str, seed: int, count: int) -> None:
    types = group_of(group, database)
    columns = {f"c{n}": values for n, values in enumerate(types.values())}
    made = ", ".join(f"c{n} {type_} NULL" for n, type_ in enumerate(types))
    keys = {n: type_ for n, type_ in enumerate(types) if can_be_key(type_)}
    database.execute(
        f"CREATE TABLE keyed (id int PRIMARY KEY, {made}, plus bigint AS (id + 1) VIRTUAL, twice bigint AS (id * 2) STORED)"
        " ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4",
        f"CREATE TABLE bag (id int, {made}) ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4",
        # Which rows a key holds for one, its collation says: 'a' and 'A' are two keys only if it takes them for two.
        *(
            f"CREATE TABLE k{n} (id int, c{n} {t} NOT NULL, PRIMARY KEY (c{n})) CHARACTER SET utf8mb4"
            for n, t in keys.items()
        ),
    )
    tables = [TableId(database.name, name) for name in ("keyed", "bag", *(f"k{n}" for n in keys))]
    schemas = {table: d.schema for table, d in source.describe(tables).items()}
    assert all(schemas[t].key == (t.name.replace("k", "c"),) for t in tables[2:])
    reader = source.open_log(source.prepare(tables, is_first=True), schemas)
    fold = Fold(schemas)
    try:
        writer = Writer(database, seed)
        with closing(writer.connection):
            writer.write("keyed", columns, count, where="id = {}")
            # Without a key, also rows that are equal.
            writer.write("bag", columns, count, where="id BETWEEN {0} AND {0} + 3")
            writer.run("INSERT INTO bag SELECT * FROM bag LIMIT 20")
            writer.run("DELETE FROM bag LIMIT 5")
            for n, type_ in keys.items():
                writer.write(
                    f"k{n}",
                    {f"c{n}": held(type_, columns[f"c{n}"])},
                    max(10, count // 2),
                    nulls=0,
                    where="id BETWEEN {0} AND {0} + 3",
                )
        assert writer.taken > writer.refused / 3
        for change in changes(source, reader):
            fold.take(*change)
    finally:
        reader.close()
    for table in tables:
        logged, read = fold.rows(table), snapshot(source, schemas[table])
        names = [c.name for c in schemas[table].columns]
        assert logged == read, (
            f"{table.name} ({keys.get(int(table.name[1:]) if table.name[1:].isdigit() else -1, group)}), {names}:"
            f" only in the log {list((logged - read).items())[:2]!r:.2000}, only read {list((read - logged).items())[:2]!r:.2000}"
        )


@pytest.fixture
def source(each_mysql_database: MysqlDatabase, source_of: Callable[..., MysqlSource]) -> MysqlSource:
    return source_of(each_mysql_database.server, unrepresentable="null")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("group", [*GROUPS, "own"])
@pytest.mark.condition("D07", "D10", "D12", "M33")
def test_log_and_snapshot_agree(each_mysql_database: MysqlDatabase, source: MysqlSource, group: str) -> None:
    run_matrix(each_mysql_database, source, group, seed=1, count=25)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("group", [*GROUPS, "own"])
def test_log_and_snapshot_agree_for_longer(
    each_mysql_database: MysqlDatabase, source: MysqlSource, group: str, seed: int
) -> None:
    run_matrix(each_mysql_database, source, group, seed=seed, count=300)
