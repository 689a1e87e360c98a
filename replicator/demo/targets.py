"""The demo's targets: what stands in the YAML, and the sum of a table as that target holds it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from replicator.spark.session import SparkHost, SparkSettings
from replicator.testing import compare
from replicator.testing.java import short_lived_options

if TYPE_CHECKING:
    from replicator.testing.bigquery import BigQueryEmulator

NAMES: Final = ("delta", "bigquery")
_SPARK: Final = """\
# Fewer, larger merges: two cores have a source, a writer and this to run.
apply: {{max_wait: 10s}}
# Java's options for a Spark that lives for two minutes.
spark: {{settings: {settings}}}
"""


class DemoTarget(Protocol):
    """A target that the demo can copy to."""

    title: str
    block: str
    """The `target:` block of the YAML, indented."""
    more: str
    """Further blocks of the YAML, as whole lines."""

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """Row count and checksum of a source's rows as this target must hold them."""

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Row count and checksum of the copy, read by the target's own client."""

    def close(self) -> None:
        """Let go of what was needed to compare."""


@contextmanager
def demo_target(name: str, folder: Path) -> Iterator[DemoTarget]:
    """Make a place for the copies, and remove it afterwards."""
    if name == "delta":
        yield _Delta(folder)
        return
    # The emulator is a package of the tests: only here.
    from replicator.testing.bigquery import BigQueryEmulator

    with BigQueryEmulator(folder / "emulator.log") as emulator:
        yield _BigQuery(emulator)


class _Delta:
    title = "Delta"

    def __init__(self, folder: Path) -> None:
        self._lake = folder / "lake"
        options = short_lived_options()
        settings = SparkSettings(log_file=folder / "compare.log", settings=options)
        self._host = SparkHost(settings, cores=os.cpu_count() or 1)
        self.block, self.more = f"  type: delta\n  path: {self._lake}", _SPARK.format(settings=json.dumps(options))

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """Delta has a type for each of theirs."""
        return compare.sum_rows(rows)

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Read the Delta table with Spark."""
        return compare.target_sum(self._host.session(), str(self._lake / namespace / table), columns)

    def close(self) -> None:
        """End Spark."""
        self._host.stop()


class _BigQuery:
    title = "BigQuery (emulator)"

    def __init__(self, emulator: BigQueryEmulator) -> None:
        self._client = emulator.client()
        self.block, self.more = emulator.block(), "apply: {max_wait: 1s}\n"

    def wanted(self, rows: Iterable[Sequence[Any]]) -> compare.Sum:
        """BigQuery holds some as text."""
        from replicator.testing import bigquery

        return bigquery.canonical_sum(rows)

    def found(self, namespace: str, table: str, columns: Sequence[str]) -> compare.Sum:
        """Read the table with Google's own client."""
        from replicator.testing import bigquery

        return bigquery.target_sum(self._client, f"{bigquery.PROJECT}.{namespace}.{table}", columns)

    def close(self) -> None:
        """Close the client."""
        self._client.close()
