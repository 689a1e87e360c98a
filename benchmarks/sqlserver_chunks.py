"""Rows of a SQL Server's table into Arrow columns, through each ODBC driver, compared with a bare cursor that fetches the same rows.

The server is the model, in a process of its own, so only the processor time of the client counts; how long it takes says nothing.
arrow-odbc, which makes no Python object for a value, and which the source does not use, is measured next to them if it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from benchmarks.measure import Clock, Side, Work, in_turns, say
from benchmarks.report import Line, Report, spell
from benchmarks.scale import Scale
from benchmarks.sqlserver_changes import ORDERS, SHARE, TABLE, TRANSACTION_ROWS, VALUES, bare, served
from replicator.config import Secret
from replicator.plugins.source import ChunkRequest, SourceContext
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.sqlserver.drivers import Address, Driver, connect, connection_string, library

GOAL: Final = 0.5
CHUNK_ROWS: Final = 10_000
_BARE: Final = "SELECT * FROM dbo.orders ORDER BY id"


def run(scale: Scale) -> Report:
    """Fill a table once, and read it in turns."""
    rows = max(1000, scale.rows // SHARE)
    lines, raw = [], {}
    with served() as address:
        _fill(address, rows)
        for driver in Driver:
            say(f"sqlserver_chunks: {driver}")
            sides = {"chunks": _chunks(address, driver, rows), "cursor": bare(address, driver, _BARE, rows)}
            if importlib.util.find_spec("arrow_odbc") is not None:
                sides["arrow-odbc"] = _arrow(address, driver, rows)
            taken = raw[str(driver)] = in_turns(sides, scale.repetitions)
            ratio = taken["chunks"].per_cpu_second / taken["cursor"].per_cpu_second
            third = f"; arrow-odbc: {spell(taken['arrow-odbc'])}" if "arrow-odbc" in taken else ""
            lines.append(
                Line(
                    what=f"{rows:,} rows in chunks of {CHUNK_ROWS:,} through {driver}",
                    figure=spell(taken["chunks"]),
                    against=f"a bare cursor: {spell(taken['cursor'])}{third}",
                    ratio=ratio,
                    goal=f"≥ {GOAL:.2f}x",
                    is_met=ratio >= GOAL,
                )
            )
    return Report(name="sqlserver_chunks", lines=lines, raw={"rates": raw})


def _fill(address: Address, rows: int) -> None:
    with closing(connect(Driver.FREETDS, address)) as sql:
        for statement in ("EXEC sys.sp_cdc_enable_db", TABLE, "EXEC sys.sp_cdc_enable_table N'dbo', N'orders', NULL"):
            sql.execute(statement)
        for first in range(0, rows, TRANSACTION_ROWS):
            ids = range(first, min(rows, first + TRANSACTION_ROWS))
            values = ", ".join(VALUES.format(id=n, customer=n % 9973, product=n % 317) for n in ids)
            sql.execute(f"INSERT INTO dbo.orders VALUES {values}")


def _chunks(address: Address, driver: Driver, expected: int) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        config = SqlServerConfig(
            host=address.host, port=address.port, user=address.user, password=Secret(address.password),
            database=address.database, driver=str(library(driver)), tls="disable",
        )  # fmt: skip
        source = SqlServerSource(config, SourceContext(replicator="bench", uuid="bench", epoch=1))
        schema = source.describe([ORDERS])[ORDERS].schema
        # Connections are opened, and the catalogue is read, outside the clock, as for the cursor.
        source.read_chunk(ChunkRequest(schema=schema, limit=1))

        def work(clock: Clock) -> int:
            clock.begin()
            count, after = 0, None
            while count < expected:
                chunk = source.read_chunk(ChunkRequest(schema=schema, limit=CHUNK_ROWS, after=after))
                count, after = count + chunk.rows.num_rows, chunk.cursor
            assert count == expected
            return count

        yield work
        source.close()

    return side


def _arrow(address: Address, driver: Driver, expected: int) -> Side:
    arrow_odbc: Any = importlib.import_module("arrow_odbc")

    @contextmanager
    def side() -> Iterator[Work]:
        def work(clock: Clock) -> int:
            clock.begin()
            reader = arrow_odbc.read_arrow_batches_from_odbc(
                query=_BARE, connection_string=connection_string(driver, address), batch_size=CHUNK_ROWS
            )
            count = sum(batch.num_rows for batch in reader)
            assert count == expected, f"{count} rows, not {expected}"
            return count

        yield work

    return side
