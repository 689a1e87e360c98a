"""State store, journal and lake of an earlier version are taken over by this one: nothing is lost and nothing is doubled."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicator.state.migrations import FORMAT_VERSION
from replicator.testing.waiting import PATIENCE
from replicator_testbed.delta import read_delta
from replicator_testbed.java import short_lived_options

UPGRADE = Path(__file__).parent / "upgrade"
SQLITE = Path(__file__).parents[2] / "examples" / "plugins" / "sqlite-source"
COLUMNS = {"customers": ("id", "name", "balance"), "visits": ("page", "seconds")}


class Taken:
    """What an earlier version left, unpacked, and the commands of this version."""

    def __init__(self, archive: Path, root: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(root, filter="data")
        self.root = root
        self.facts: Mapping[str, Any] = json.loads((root / "facts.json").read_text(encoding="utf-8"))
        # It lay in another folder there, and its JVM was one that runs for long.
        file = root / "shop.yaml"
        described = yaml.safe_load(file.read_text(encoding="utf-8").replace(self.facts["root"], str(root)))
        described["spark"]["settings"].update(short_lived_options())
        file.write_text(yaml.safe_dump(described), encoding="utf-8")
        _replace(root / "home" / "state.db", self.facts["root"], str(root))
        packages = root.parent / "packages"
        metadata = packages / "replicator_source_sqlite-0.1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: replicator-source-sqlite\nVersion: 0.1.0\n")
        (metadata / "entry_points.txt").write_text("[replicator]\nsource-sqlite = replicator_source_sqlite.hooks\n")
        path = os.pathsep.join(filter(None, [str(packages), str(SQLITE), os.environ.get("PYTHONPATH")]))
        self._environ = {**os.environ, "PYTHONPATH": path, "REPLICATOR_HOME": str(root / "home")}
        self._environ.pop("REPLICATOR_STATE_URL", None)

    def run(self, *arguments: str) -> str:
        """Run a command to its end; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "replicator.cli", *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=400 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, (
            f"{arguments}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        )
        return done.stdout

    def ask(self, query: str) -> Any:
        """A value of the state store."""
        with closing(sqlite3.connect(self.root / "home" / "state.db")) as connection:
            (value,) = connection.execute(query).fetchone()
        return value

    def of_source(self, table: str) -> Counter[tuple[Any, ...]]:
        """The rows of a table in the source."""
        with closing(sqlite3.connect(self.root / "source.db")) as connection:
            return Counter(connection.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table}").fetchall())

    def of_target(self, table: str) -> Counter[tuple[Any, ...]]:
        """The same in the target."""
        rows = read_delta(self.root / "lake" / "main" / table, COLUMNS[table]).to_pylist()
        return Counter(tuple(row.values()) for row in rows)

    def numbers(self, table: str) -> list[int]:
        """The sequence numbers of a target table."""
        return sorted(read_delta(self.root / "lake" / "main" / table, ["_sequence_num"]).column(0).to_pylist())


def _replace(database: Path, old: str, new: str) -> None:
    """Replace a text wherever it stands."""
    with closing(sqlite3.connect(database)) as connection, connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in tables:
            for column in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]:
                connection.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE typeof({column}) = 'text'", [old, new]
                )


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("archive", sorted(UPGRADE.glob("*.tar.gz")), ids=lambda path: path.name.partition(".")[0])
def test_a_stopped_replicator_of_an_earlier_version_continues_with_this_one(archive: Path, tmp_path: Path) -> None:
    taken = Taken(archive, tmp_path / "here")
    assert taken.facts["format"] == taken.ask("SELECT format_version FROM store") < FORMAT_VERSION
    before = {table: taken.of_target(table) for table in COLUMNS}
    assert all(before[table] != taken.of_source(table) for table in COLUMNS), "the journal and the source have more"
    applied = max(max(taken.numbers(table)) for table in COLUMNS)
    assert applied < taken.facts["sealed"] == taken.ask("SELECT max(last_num) FROM segment_files"), (
        "the journal has more"
    )

    # The first command of this version brings the state store to its format, and changes nothing else.
    status = json.loads(taken.run("status", "shop", "--json"))
    assert status["desired"] == "apply_paused"
    assert taken.ask("SELECT format_version FROM store") == FORMAT_VERSION
    assert {table: taken.of_target(table) for table in COLUMNS} == before

    taken.run("resume", "shop")
    taken.run("run", str(taken.root / "shop.yaml"), "--until-caught-up")
    assert {table: taken.of_target(table) for table in COLUMNS} == {table: taken.of_source(table) for table in COLUMNS}
    found = json.loads(taken.run("status", "shop", "--json"))
    assert [(one["table"], one["state"], one["alarms"]) for one in found["tables"]] == [
        ("main.customers", "streaming", []),
        ("main.visits", "streaming", []),
    ]

    # Numbers continue behind those of the earlier version, and no row has one twice.
    for table in COLUMNS:
        numbers = taken.numbers(table)
        assert len(numbers) == len(set(numbers))
        assert numbers[-1] > taken.facts["sealed"]
