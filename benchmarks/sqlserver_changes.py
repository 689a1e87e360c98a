"""Changes of a SQL Server into Arrow columns, through each ODBC driver, compared with a bare cursor over the same rows of the change table.

The server is the model, in a process of its own, so only the processor time of the client counts; how long it takes says nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from benchmarks.measure import Clock, Side, Work, in_turns, say
from benchmarks.report import Line, Report, spell
from benchmarks.scale import Scale
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits
from replicator_source_sqlserver.cdc.position import Position
from replicator_testbed.sqlserver.drivers import Address, Driver, connect
from replicator_testbed.sqlserver.foreign import address_of
from replicator_testbed.sqlserver.world import connector_of, position_of, reader_of
from replicator_testing.waiting import wait_until

GOAL: Final = 0.5
SHARE: Final = 50
"""A row of the table of the other benchmarks for so many: the model captures slowly."""
TRANSACTION_ROWS: Final = 500
ORDERS: Final = TableId("dbo", "orders")
LIMITS: Final = PullLimits(rows=50_000, bytes=64 << 20, wait_s=0.0)
TABLE: Final = """CREATE TABLE dbo.orders (id bigint NOT NULL PRIMARY KEY, customer int NOT NULL, product int NOT NULL, quantity int,
    price decimal(12,2), name nvarchar(64), created datetime2(6), note nvarchar(200), weight float, is_paid bit, status nvarchar(16))"""
VALUES: Final = (
    "({id}, {customer}, {product}, 3, {id}.25, N'customer name {customer}', '2024-01-01 00:00:00.123456',"
    " N'a note of some length about order {id}', 0.5, 1, N'shipped')"
)
_BARE: Final = (
    "SELECT [__$start_lsn], [__$command_id], [__$seqval], [__$operation], [__$update_mask], id, customer, product, quantity, price, name,"
    " created, note, weight, is_paid, status FROM cdc.dbo_orders_CT"
    " ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
)


def run(scale: Scale) -> Report:
    """Fill a change table once, and read it in turns."""
    rows = max(1000, scale.rows // SHARE)
    lines, raw = [], {}
    with served() as address:
        begin = _filled(address, rows)
        for driver in Driver:
            say(f"sqlserver_changes: {driver}")
            sides = {
                "changes": _changes(address, driver, begin, 2 * rows),
                "cursor": bare(address, driver, _BARE, 3 * rows),
            }
            taken = raw[str(driver)] = in_turns(sides, scale.repetitions)
            # An UPDATE is one change, and two rows.
            ratio = taken["changes"].per_cpu_second * 3 / 2 / taken["cursor"].per_cpu_second
            lines.append(
                Line(
                    what=f"{2 * rows:,} changes through {driver}",
                    figure=spell(taken["changes"]),
                    against=f"a bare cursor over its {3 * rows:,} rows: {spell(taken['cursor'])}",
                    ratio=ratio,
                    goal=f"≥ {GOAL:.2f}x",
                    is_met=ratio >= GOAL,
                )
            )
    return Report(name="sqlserver_changes", lines=lines, raw={"rates": raw})


@contextmanager
def served() -> Iterator[Address]:
    command = [sys.executable, "-m", "replicator_testbed.sqlserver.served"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        yield address_of(program.stdout.readline().strip())
        program.stdin.close()


def _filled(address: Address, rows: int) -> Position:
    """As many inserts and updates; where they begin."""
    with closing(connect(Driver.FREETDS, address)) as sql, closing(connector_of(address)) as connector:
        for statement in (
            "EXEC sys.sp_cdc_enable_db",
            TABLE,
            "EXEC sys.sp_cdc_enable_table N'dbo', N'orders', NULL",
            "CREATE TABLE dbo.mark (id int NOT NULL PRIMARY KEY)",
            "EXEC sys.sp_cdc_enable_table N'dbo', N'mark', NULL",
            "INSERT INTO dbo.mark VALUES (0)",
        ):
            sql.execute(statement)
        _wait_for_mark(address, 0)
        begin = position_of(connector)
        for first in range(0, rows, TRANSACTION_ROWS):
            ids = range(first, min(rows, first + TRANSACTION_ROWS))
            values = ", ".join(VALUES.format(id=n, customer=n % 9973, product=n % 317) for n in ids)
            sql.execute(f"INSERT INTO dbo.orders VALUES {values}")
            sql.execute(f"UPDATE dbo.orders SET quantity = 4 WHERE id >= {ids[0]} AND id <= {ids[-1]}")
        sql.execute("INSERT INTO dbo.mark VALUES (1)")
        _wait_for_mark(address, 1)
    return begin


def _wait_for_mark(address: Address, number: int) -> None:
    with closing(connect(Driver.FREETDS, address)) as sql:
        query = f"SELECT COUNT(*) FROM cdc.dbo_mark_CT WHERE id = {number}"
        wait_until(lambda: sql.execute(query).fetchall()[0][0] == 1, "everything is captured", timeout_s=600)


def _changes(address: Address, driver: Driver, begin: Position, expected: int) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        with closing(connector_of(address, driver)) as connector:
            reader = reader_of(connector, begin, [ORDERS])

            def work(clock: Clock) -> int:
                clock.begin()
                count = 0
                while count < expected:
                    count += reader.pull(LIMITS).events
                assert count == expected
                return count

            yield work
            reader.close()

    return side


def bare(address: Address, driver: Driver, query: str, expected: int) -> Side:
    """A bare cursor over the rows of a query."""

    @contextmanager
    def side() -> Iterator[Work]:
        with closing(connect(driver, address)) as sql:

            def work(clock: Clock) -> int:
                clock.begin()
                cursor = sql.execute(query)
                count = 0
                while rows := cursor.fetchmany(10_000):
                    count += len(rows)
                assert count == expected, f"{count} rows, not {expected}"
                return count

            yield work

    return side
