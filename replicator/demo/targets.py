"""The demo's targets: what stands in the YAML, and the sums of a table on both sides as that target holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from replicator.spark.session import SparkHost, SparkSettings
from replicator.testing import compare

if TYPE_CHECKING:
    from replicator.testing.bigquery import BigQueryEmulator

NAMES: Final = ("delta", "bigquery")
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class DemoTarget(Protocol):
    """A target that the demo can copy to."""

    title: str
    block: str
    """The `target:` block of the YAML, indented."""

    def sums(self, dsn: str, table: str, columns: Sequence[str]) -> tuple[compare.Sum, compare.Sum]:
        """Row count and checksum of a table at the source and in the target."""

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
        options = {"spark.driver.extraJavaOptions": JAVA_OPTIONS}
        settings = SparkSettings(log_file=folder / "compare.log", settings=options)
        self._host = SparkHost(settings, cores=os.cpu_count() or 1)
        self.block = f"  type: delta\n  path: {self._lake}"

    def sums(self, dsn: str, table: str, columns: Sequence[str]) -> tuple[compare.Sum, compare.Sum]:
        """Read the Delta table with Spark."""
        target = compare.target_sum(self._host.session(), str(self._lake / "public" / table), columns)
        return compare.source_sum(dsn, table, columns), target

    def close(self) -> None:
        """End Spark."""
        self._host.stop()


class _BigQuery:
    title = "BigQuery (emulator)"

    def __init__(self, emulator: BigQueryEmulator) -> None:
        self._client = emulator.client()
        self.block = emulator.block(batch_every="1s")

    def sums(self, dsn: str, table: str, columns: Sequence[str]) -> tuple[compare.Sum, compare.Sum]:
        """Read the table with Google's own client."""
        from replicator.testing import bigquery

        path = f"{bigquery.PROJECT}.public.{table}"
        return bigquery.source_sum(dsn, table, columns), bigquery.target_sum(self._client, path, columns)

    def close(self) -> None:
        """Close the client."""
        self._client.close()
