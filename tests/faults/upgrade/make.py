"""Makes a fixture of `test_upgrade.py`: what an earlier version leaves on disk when it is stopped. See `README.md` next to this file.

Run it with the checkout of that version: `.venv/bin/python tests/faults/upgrade/make.py CHECKOUT NAME.tar.gz`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

NAME: Final = "shop"
CONFIGURATION: Final = """\
name: shop
source: {{type: sqlite, path: {root}/source.db}}
target: {{type: delta, path: {root}/lake}}
snapshot: {{chunk_rows: 50}}
spark:
  master: local[1]
  settings: {{spark.driver.memory: 1g}}
"""
BEFORE: Final = (
    "PRAGMA journal_mode = WAL",
    "CREATE TABLE customers (id INTEGER NOT NULL PRIMARY KEY, name TEXT, balance INTEGER)",
    "CREATE TABLE visits (page TEXT, seconds INTEGER)",
    *(f"INSERT INTO customers VALUES ({i}, 'customer {i}', {i * 10})" for i in range(1, 121)),
    *(f"INSERT INTO visits VALUES ('page {i % 4}', {i % 3})" for i in range(1, 41)),
)
APPLIED: Final = (
    "UPDATE customers SET balance = balance + 1 WHERE id <= 30",
    "DELETE FROM customers WHERE id BETWEEN 31 AND 35",
    "INSERT INTO customers VALUES (1001, 'new', 0)",
)
"""Changes that are in the target."""
SEALED: Final = (
    "UPDATE customers SET balance = -balance WHERE id <= 60",
    "UPDATE customers SET id = id + 5000 WHERE id BETWEEN 61 AND 70",
    "DELETE FROM customers WHERE id = 1001",
    "INSERT INTO customers VALUES (31, 'again', 7), (1002, 'sealed', 8)",
    "INSERT INTO visits VALUES ('page 1', 1), ('page 9', 9)",
    "DELETE FROM visits WHERE rowid IN (SELECT rowid FROM visits WHERE page = 'page 2' LIMIT 3)",
)
"""Changes that are in the journal, and not in the target."""
WRITTEN: Final = (
    "UPDATE customers SET name = 'late' WHERE id BETWEEN 10 AND 12",
    "INSERT INTO customers VALUES (1003, 'late', 9)",
    "DELETE FROM customers WHERE id = 5061",
    "INSERT INTO visits VALUES ('page 9', 9)",
)
"""Changes of which the version that was stopped knows nothing."""


def main(checkout: Path, archive: Path) -> None:
    """Run the earlier version, stop it amid its work, and pack what it left."""
    with tempfile.TemporaryDirectory(prefix="replicator-upgrade-") as folder:
        root = Path(folder) / "made"
        root.mkdir()
        write(root, *BEFORE)
        (root / "shop.yaml").write_text(CONFIGURATION.format(root=root), encoding="utf-8")
        old = Earlier(checkout, root, Path(folder) / "packages")
        old.run("run", str(root / "shop.yaml"), "--until-caught-up")
        write(root, *APPLIED)
        old.run("run", str(root / "shop.yaml"), "--until-caught-up")
        old.run("pause", NAME, "--apply")
        write(root, *SEALED)
        old.run_until_sealed()
        write(root, *WRITTEN)
        for database in (root / "source.db", root / "home" / "state.db"):
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        facts = {
            "commit": old.commit(),
            "root": str(root),
            "format": one(root, "SELECT format_version FROM store"),
            "sealed": one(root, "SELECT max(last_num) FROM segment_files"),
        }
        (root / "facts.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for path in (root / "home" / "logs", root / "home" / "scratch"):
            subprocess.run(["rm", "-rf", str(path)], check=True)
        with tarfile.open(archive, "w:gz", compresslevel=9) as packed:
            packed.add(root, arcname=".", filter=anonymous)
        print(archive, archive.stat().st_size, "bytes", facts)  # noqa: T201 - for the person who makes it


class Earlier:
    """The commands of an earlier version, with the dependencies of this environment.

    They are run in its checkout: Python looks there first.
    """

    def __init__(self, checkout: Path, root: Path, packages: Path) -> None:
        self._checkout = checkout
        self._root = root
        metadata = packages / "replicator_source_sqlite-0.1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: replicator-source-sqlite\nVersion: 0.1.0\n")
        (metadata / "entry_points.txt").write_text("[replicator]\nsource-sqlite = replicator_source_sqlite.hooks\n")
        folders = [
            packages,
            checkout,
            *checkout.glob("plugins/*/*"),
            checkout / "examples" / "plugins" / "sqlite-source",
        ]
        self._environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "REPLICATOR_HOME": str(root / "home"),
        }
        self._environ.pop("REPLICATOR_STATE_URL", None)

    def run(self, *arguments: str) -> None:
        """Run a command to its end."""
        subprocess.run(self._command(*arguments), env=self._environ, cwd=self._checkout, check=True, timeout=600)

    def run_until_sealed(self) -> None:
        """Run the worker, whose apply is paused, until the last change is in the journal; then stop it as an operator does."""
        log = f"_replicator_{NAME}"
        with closing(sqlite3.connect(self._root / "source.db")) as connection:
            (wanted,) = connection.execute(f"SELECT count(*) FROM {log} WHERE table_name IS NOT NULL").fetchone()
        assert wanted, "the changes wait in the source's log"
        worker = subprocess.Popen(self._command("serve"), env=self._environ, cwd=self._checkout)
        deadline = time.monotonic() + 300
        while self._waiting(log) and time.monotonic() < deadline:
            threading.Event().wait(0.5)
        worker.send_signal(signal.SIGINT)
        worker.wait(120)
        assert not self._waiting(log), "capture has acknowledged what it sealed"

    def commit(self) -> str:
        """The commit of the checkout."""
        done = subprocess.run(
            ["git", "-C", str(self._checkout), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def _waiting(self, log: str) -> int:
        """How many changes the source keeps because they are not acknowledged."""
        with closing(sqlite3.connect(self._root / "source.db")) as connection:
            (count,) = connection.execute(f"SELECT count(*) FROM {log} WHERE table_name IS NOT NULL").fetchone()
        return int(count)

    def _command(self, *arguments: str) -> Sequence[str]:
        return [sys.executable, "-m", "replicator.cli", *arguments]


def write(root: Path, *statements: str) -> None:
    """Execute statements in the source, each in a transaction of its own."""
    with closing(sqlite3.connect(root / "source.db", isolation_level=None, timeout=60)) as connection:
        for statement in statements:
            connection.execute(statement)


def one(root: Path, query: str) -> Any:
    """A value of the state store."""
    with closing(sqlite3.connect(root / "home" / "state.db")) as connection:
        (value,) = connection.execute(query).fetchone()
    return value


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of who made it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
