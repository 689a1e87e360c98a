"""The demo's targets: what stands in the YAML, and the sum of a table as that target holds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from replicator.testing.copies import BigQueryCopies, Copies, DeltaCopies
from replicator.testing.java import short_lived_options

if TYPE_CHECKING:
    from replicator.testing.bigquery import BigQueryEmulator

NAMES: Final = ("delta", "bigquery")
_SPARK: Final = """\
# Fewer, larger merges: two cores have a source, a writer and this to run.
apply: {{tables_parallel: 2, max_wait: 10s}}
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
    copies: Copies

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
        lake = folder / "lake"
        self.block = f"  type: delta\n  path: {lake}"
        self.more = _SPARK.format(settings=json.dumps(short_lived_options()))
        self.copies: Copies = DeltaCopies(lake)

    def close(self) -> None:
        """Nothing is held."""


class _BigQuery:
    title = "BigQuery (emulator)"

    def __init__(self, emulator: BigQueryEmulator) -> None:
        self._client = emulator.client()
        self.block, self.more = emulator.block(), "apply: {max_wait: 1s}\n"
        self.copies: Copies = BigQueryCopies(self._client)

    def close(self) -> None:
        """Close the client."""
        self._client.close()
