"""Random transactions, and what the log says of them: replayed in its order it is the table.

Statements are those whose order in a change table is hard: many rows at once, keys that change, one by one and shifted over each other,
large values that an update leaves alone, and rows that are deleted and inserted again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyodbc
import pytest

from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers
from replicator_testbed.sqlserver.world import world_of
from replicator_testing.source_harness import Delivered

TABLES = tuple(TableId("dbo", name) for name in ("a", "b"))
KEYS = 12


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[SqlServerDatabase]:
    with SqlServers(postgres=postgres).database() as database:
        database.execute(
            *(
                f"CREATE TABLE {table} (id int NOT NULL PRIMARY KEY, n int NULL, name nvarchar(20) NULL, note nvarchar(max) NULL)"
                for table in TABLES
            )
        )
        database.capture(*(table.name for table in TABLES))
        yield database


def statement(draw: random.Random) -> str:
    table = draw.choice(TABLES)
    key, other = draw.randint(1, KEYS), draw.randint(1, KEYS)
    low, high = sorted((key, other))
    text = f"N'{draw.choice('abc') * draw.randint(1, 5)}'"
    return draw.choice(
        (
            f"DELETE FROM {table} WHERE id = {key}",
            f"DELETE FROM {table} WHERE id BETWEEN {low} AND {high}",
            (
                f"IF NOT EXISTS (SELECT 1 FROM {table} WHERE id = {key})"
                f" INSERT INTO {table} (id, n, name, note) VALUES ({key}, {other}, {text}, {text})"
            ),
            (
                f"INSERT INTO {table} (id, n, name) SELECT {KEYS} + s.id, s.n, s.name FROM {table} s"
                f" WHERE s.id <= {KEYS} AND NOT EXISTS (SELECT 1 FROM {table} x WHERE x.id = {KEYS} + s.id)"
            ),
            f"UPDATE {table} SET n = {other} WHERE id BETWEEN {low} AND {high}",
            f"UPDATE {table} SET name = {text} WHERE id = {key}",
            f"UPDATE {table} SET note = {draw.choice((text, 'NULL'))} WHERE id BETWEEN {low} AND {high}",
            f"UPDATE {table} SET id = id + 1000 WHERE id = {key}",
            (
                f"UPDATE {table} SET id = id - 1000, n = {other} WHERE id > 1000 AND id - 1000 = {key}"
                f" AND NOT EXISTS (SELECT 1 FROM {table} x WHERE x.id = {key})"
            ),
            f"UPDATE {table} SET id = -id",
        )
    )


def write(connection: pyodbc.Connection, draw: random.Random) -> None:
    """One transaction; one that breaks a key is rolled back."""
    try:
        for _ in range(draw.randint(1, 6)):
            connection.execute(statement(draw))
    except pyodbc.IntegrityError:
        connection.rollback()
        return
    (connection.commit if draw.random() < 0.9 else connection.rollback)()


class Replay:
    """The tables, as the log says."""

    def __init__(self) -> None:
        self.rows: dict[TableId, dict[int, dict[str, Any]]] = {table: {} for table in TABLES}

    def take(self, delivered: Delivered) -> None:
        for change in delivered.changes:
            rows = self.rows[change.table]
            before = change.before["id"] if change.before is not None else None
            if change.operation == "INSERT":
                assert change.row is not None
                assert change.row["id"] not in rows, "an INSERT of a row that is there"
                rows[change.row["id"]] = dict(change.row)
                continue
            assert before is not None
            old = rows.pop(before)
            if change.row is not None:
                new = {name: old[name] if name in change.absent else value for name, value in change.row.items()}
                assert new["id"] not in rows
                rows[new["id"]] = new


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 150), *(pytest.param(seed, 1000, marks=pytest.mark.matrix) for seed in (2, 3))]
)
def test_the_log_replayed_in_its_order_is_the_table(
    database: SqlServerDatabase, monkeypatch: pytest.MonkeyPatch, seed: int, count: int
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_ROWS", 20)
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log.PAGE_BYTES", 1)
    monkeypatch.setattr("replicator_source_sqlserver.snapshot.blocks.FIRST_LOB_ROWS", 3)
    database.execute(*(f"DELETE FROM {table}" for table in TABLES))
    database.server.capture.scan_all()
    replay, writer = Replay(), database.connect(autocommit=False)
    with world_of(database.server, tables=TABLES) as world:
        reader = world.open(world.position())
        for number in range(count):
            write(writer, draw)
            if number % 25 == 24:
                database.server.capture.scan_all()
                delivered = Delivered()
                while True:
                    batch = reader.pull(
                        PullLimits(rows=draw.randint(1, 40), bytes=draw.choice((100, 1_000, 64 << 20)), wait_s=0.0)
                    )
                    assert not batch.table_errors
                    delivered.add(batch)
                    if not batch.events and batch.offset is None and batch.open_transaction is None:
                        break
                replay.take(delivered)
                for table in TABLES:
                    columns = ("id", "n", "name", "note")
                    found = {row[0]: dict(zip(columns, row, strict=True)) for row in database.rows(table.name, columns)}
                    assert replay.rows[table] == found, f"after {number + 1} transactions"
        reader.close()
    writer.close()
