"""A shop, a replicator of it and its target tables, for the scripts in `examples/promises`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from replicator_testbed.demo.shop import TABLES, Size
from replicator_testbed.demo.sources import Shop, shop_of
from replicator_testbed.demo.targets import TARGETS, demo_target
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables

_SIZE = Size(customers=3_000, products=200, orders=6_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """What a script plays with.

    Attributes:
        database: The source, on an embedded PostgreSQL.
        shop: The shop in it; its tables are there already.
        rig: The replicator of all tables, not started yet.
        target_tables: What its target holds.
    """

    database: ScratchDatabase
    shop: Shop
    rig: Rig
    target_tables: TargetTables

    def say(self, text: str) -> None:
        """Print a line."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def fail(self, text: str) -> NoReturn:
        """End the script: the promise is broken."""
        sys.exit(f"BROKEN: {text}")

    def compare(self, *, but: str = "") -> None:
        """Compare the shop's tables, except one, row by row; end the script if one differs."""
        self.rig.tables = TABLES
        if different := self.rig.differences(self.target_tables, but=but):
            self.fail(f"source and target differ: {different}")
        for table in sorted({*TABLES} - {but}):
            [(count,)] = self.database.execute(f"SELECT count(*) FROM {table}")
            self.say(f"  {table}: {count:,} rows, equal")


@contextmanager
def playground(promise: str) -> Iterator[Playground]:
    """Start a server and fill a shop; remove everything afterwards.

    Args:
        promise: What the script shows; printed first. The command line's `--target` chooses the target.
    """
    parser = argparse.ArgumentParser(description=promise)
    parser.add_argument("--target", choices=TARGETS, default="delta", help="the target (default: delta)")
    target = parser.parse_args().target
    sys.stdout.write(f"{promise.splitlines()[0]}\n")
    with (
        tempfile.TemporaryDirectory(prefix="replicator-promise-") as scratch,
        PostgresServer.embedded() as server,
        server.database("shop") as database,
        demo_target(target, Path(scratch)) as side,
    ):
        shop = shop_of(database, _SIZE)
        shop.fill()
        rig = Rig(
            folder=Path(scratch),
            database=database,
            extra=f"snapshot: {{chunk_rows: 1000}}\n{side.more}",
            target=side.block,
        )
        try:
            yield Playground(database=database, shop=shop, rig=rig, target_tables=side.target_tables)
        finally:
            rig.kill()
