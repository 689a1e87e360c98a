"""The demo's targets: what stands in the YAML, and the sum of a table as that target holds it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from replicator_testbed.target_tables import TargetTables

_SPARK: Final = """\
# Fewer, larger merges: two cores have a source, a writer and this to run.
apply: {{tables_parallel: 2, max_wait: 10s}}
# Java's options for a Spark that lives for two minutes.
spark: {{settings: {settings}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTarget:
    """A target that the demo can copy to.

    Attributes:
        block: The `target:` block of the YAML, indented.
        more: Further blocks of the YAML, as whole lines.
        target_tables: What it holds.
    """

    title: str
    block: str
    more: str
    target_tables: TargetTables


def demo_target(name: str, folder: Path) -> AbstractContextManager[DemoTarget]:
    """Make an empty storage for the target tables, and remove it afterwards.

    Args:
        name: One of `TARGETS`.
        folder: A scratch folder, which the caller removes.
    """
    return TARGETS[name](folder)


@contextmanager
def _delta(folder: Path) -> Iterator[DemoTarget]:
    from replicator_testbed.spark.java import short_lived_options
    from replicator_testbed.target_tables import DeltaLakeTables  # with packages that a choice of targets does not need

    lake = folder / "lake"
    settings = json.dumps(short_lived_options())
    yield DemoTarget(
        title="Delta",
        block=f"  type: delta\n  path: {lake}",
        more=_SPARK.format(settings=settings),
        target_tables=DeltaLakeTables(lake),
    )


@contextmanager
def _bigquery(folder: Path) -> Iterator[DemoTarget]:
    # The emulator is a package of the tests: only here.
    from replicator_testbed.bigquery.emulator import BigQueryEmulator
    from replicator_testbed.target_tables import BigQueryTables

    with BigQueryEmulator(folder / "emulator.log") as emulator, closing(emulator.client()) as client:
        yield DemoTarget(
            title="BigQuery (emulator)",
            block=emulator.block(),
            more="apply: {max_wait: 1s}\n",
            target_tables=BigQueryTables(client),
        )


@contextmanager
def _duckdb(folder: Path) -> Iterator[DemoTarget]:
    from replicator_testbed.target_tables import DuckDBTables

    file = folder / "shop.duckdb"
    yield DemoTarget(
        title="DuckDB",
        block=f"  type: duckdb\n  path: {file}",
        # Batches of a few rows, one after the other, would keep a core busy.
        more="journal: {seal_every: 1s}\n",
        target_tables=DuckDBTables(file),
    )


TARGETS: Final[Mapping[str, Callable[[Path], AbstractContextManager[DemoTarget]]]] = {
    "delta": _delta,
    "bigquery": _bigquery,
    "duckdb": _duckdb,
}
"""Plugin → its storage, in a scratch folder."""
