"""Runs the real `replicator` command against real servers, and compares both sides row by row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replicator.model.documents.status import ErrorStatus, ReplicatorState, ReplicatorStatus, TableState, TableStatus
from replicator.model.errors import StateUnavailableError
from replicator.service.status import assemble as status
from replicator.state.store import StateStore
from replicator_testbed.compare import Sum
from replicator_testbed.databases import Database, source_block
from replicator_testbed.processes import kill_all
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import PATIENCE, wait_until


@dataclass(slots=True, kw_only=True)
class Rig:
    """One replicator from a scratch database to a scratch lake, driven by its command line.

    `may_alarm`: the test makes source and target differ. Otherwise no table may have had an alarm when the test ends, whatever was killed.
    `tables` are those of the database that are replicated; none given: all there are. `target` is the text of
    another target block than that of Delta, indented, from `type:` on.
    """

    folder: Path
    database: Database
    tables: Sequence[str] = ()
    name: str = "rig"
    extra: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    store: StateStore | None = None
    source: str = ""
    target: str = ""
    may_alarm: bool = False
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write_yaml()

    @property
    def file(self) -> Path:
        """The YAML."""
        return self.folder / f"{self.name}.yaml"

    @property
    def lake(self) -> Path:
        """The target's path."""
        return self.folder / "lake"

    @property
    def home(self) -> Path:
        """REPLICATOR_HOME."""
        return self.folder / "home"

    @property
    def duckdb(self) -> Path:
        """The target's file, where the target is DuckDB."""
        return self.folder / "target.duckdb"

    def full_name(self, table: str) -> str:
        """As configuration and commands name a table."""
        return f"{self.database.namespace}.{table}"

    def write_yaml(
        self, *, source: Mapping[str, Any] | None = None, settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Write the configuration; `source` replaces keys of the source block, `settings` are those of tables."""
        block = source_block(self.database, password="RIG_PASSWORD", changed=source)  # noqa: S106 - a variable's name
        lines = [f"name: {self.name}", "source:", block]
        lines += ["target:", self.target or f"  type: delta\n  path: {self.lake}"]
        tables: dict[str, Any] = {"include": [self.full_name(table) for table in self.tables]} if self.tables else {}
        if tables := tables | ({"settings": settings} if settings else {}):
            lines.append(f"tables: {json.dumps(tables)}")
        lines.append(self.extra)
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def write_to(self, target: str, *settings: str) -> None:
        """Write the configuration with another target of its own folder.

        Args:
            target: delta; spark, which is Delta with `engine: spark`; or duckdb.
            settings: Further lines of the block.
        """
        own = {
            "delta": ("type: delta", f"path: {self.lake}"),
            "spark": ("type: delta", f"path: {self.lake}", "engine: spark"),
            "duckdb": ("type: duckdb", f"path: {self.duckdb}"),
        }[target]
        self.target = "\n".join(f"  {line}" for line in (*own, *settings))
        self.write_yaml()

    def command(self, *arguments: str, check: int | None = 0, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; fails unless it exits with `check` (None: whatever)."""
        done = subprocess.run(
            [sys.executable, "-m", "replicator.cli", *arguments],
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=timeout * PATIENCE,
            check=False,
        )
        assert check is None or done.returncode == check, (
            f"{arguments}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        )
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in the background (by default `run`)."""
        with (self.folder / "output.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "replicator.cli", *(arguments or ("run", str(self.file)))],
                env=self._environ(), stdout=log, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def kill(self) -> None:
        """Kill whatever was started and still runs; what a test that failed has left must not slow down the next one.

        Then see that nothing was found where it should not be, or missing where it should.
        """
        for process in self.started:
            if process.poll() is None:
                kill_all(process)
        found = self.status()
        alarms = {table.table: table.alarms for table in found.tables if table.alarms} if found else {}
        assert self.may_alarm or alarms == {}, alarms

    def stop(self, process: subprocess.Popen[str]) -> int:
        """End a foreground worker as Ctrl-C does, once it works.

        While it starts it does not listen yet: it would end with an error, or, started by a shell in the background,
        which has its children ignore the signal, never learn of it.
        """
        self.wait_for_status(lambda status: is_worker(status, process), process)
        process.send_signal(signal.SIGINT)
        return process.wait(timeout=200 * PATIENCE)

    def status(self) -> ReplicatorStatus | None:
        """The document of `status --json`, asked in this process; None while the replicator is not stored, or a test holds the store."""
        state = self.home / "state.db"
        if self.store is None:
            if not state.exists():
                return None
            self.store = StateStore(f"sqlite:///{state}")
        try:
            record = self.store.replicator(self.name)
            return status.status(self.store, record) if record else None
        except StateUnavailableError:
            return None

    def table(self, name: str) -> TableStatus:
        """The status of a table, named without its schema."""
        found = self.status()
        assert found is not None, "the replicator is stored"
        (table,) = (table for table in found.tables if table.table == self.full_name(name))
        return table

    def error(self) -> ErrorStatus:
        """Why the replicator stopped."""
        found = self.status()
        assert found is not None, "the replicator is stored"
        assert found.error is not None, "it stopped"
        return found.error

    def wait_for_status(
        self,
        predicate: Callable[[ReplicatorStatus], object],
        process: subprocess.Popen[str] | None = None,
        timeout_s: float = 240,
    ) -> ReplicatorStatus:
        """Poll the status until `predicate(status)`; fails when `process` ends before."""

        def look() -> ReplicatorStatus | None:
            if process is not None and process.poll() is not None:
                raise AssertionError(f"the worker ended with {process.returncode}\n{self.output()}")
            found = self.status()
            return found if found is not None and predicate(found) else None

        return wait_until(
            look,
            lambda: f"the status satisfies the test; now {self.status()}\ncrashes: {crashes(self)}\n{self.output()}",
            timeout_s=timeout_s,
        )

    def verify(self) -> None:
        """`verify`: all tables were compared, and are equal."""
        self.command("verify", self.name, timeout=900)

    def catch_up(self, check: int = 0) -> None:
        """`run --until-caught-up`."""
        self.command("run", str(self.file), "--until-caught-up", check=check)

    def settle(self, process: subprocess.Popen[str]) -> None:
        """Let a worker apply whatever is committed by now, as its own figure of freshness says."""
        now = time.time() + 1.0  # the source's clock is this one; commits may get their times a little out of order

        def has_all(status: ReplicatorStatus) -> bool:
            ages = [t.freshness_s if t.state is TableState.STREAMING else None for t in status.tables]
            return bool(ages) and all(age is not None and time.time() - age > now for age in ages)

        self.wait_for_status(has_all, process)

    def catch_up_at_its_pace(self, still_s: float = 240, check: int = 0) -> None:
        """The same with much to apply: it may take as long as it gets on, and fails when nothing happens for `still_s`."""
        process = self.start("run", str(self.file), "--until-caught-up")
        before: Any = None
        while process.poll() is None:

            def look(before: Any = before) -> bool:
                return process.poll() is not None or self._positions() != before

            wait_until(look, lambda: f"it gets on; now {self.status()}\n{self.output()}", timeout_s=still_s)
            before = self._positions()
        assert process.returncode == check, self.output()

    def output(self) -> str:
        """The end of what background commands printed."""
        log = self.folder / "output.log"
        return log.read_text(errors="replace")[-6000:] if log.exists() else ""

    def differences(self, target_tables: TargetTables, *, but: str = "") -> dict[str, tuple[Sum, Sum]]:
        """Tables (`but` left out) whose rows are not the same on both sides."""
        found = {}
        for table in set(self.tables) - {but}:
            names = self.database.columns(table)
            source = target_tables.wanted(self.database.rows(table, names))
            target = target_tables.found(self.database.namespace, table, names)
            if source != target:
                found[table] = (source, target)
        return found

    def _positions(self) -> Any:
        status = self.status()
        return status and (
            status.worker,
            status.journal.last_sequence_num,
            [(t.table, t.state, t.incarnation, t.last_applied) for t in status.tables],
        )

    def _environ(self) -> dict[str, str]:
        # Where Python may keep no bytecode, each process of a worker compiles everything: most of what a start costs.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {
            **inherited,
            "REPLICATOR_HOME": str(self.home),
            "RIG_PASSWORD": self.database.server.password or "unused",
            "COLUMNS": "200",
            **self.environ,
        }


def is_streaming(status: ReplicatorStatus) -> bool:
    """Whether there are tables, and all of them stream."""
    return bool(status.tables) and all(table.state is TableState.STREAMING for table in status.tables)


def has_snapshots(status: ReplicatorStatus) -> bool:
    """Whether there are tables, and capture has the snapshots of all of them; the target may lack some."""
    return bool(status.tables) and all(is_captured(table) for table in status.tables)


def is_captured(table: TableStatus) -> bool:
    """Whether capture has the table's snapshot, and reads its changes; the target may lack some of it."""
    is_whole = table.snapshot is not None and table.snapshot.is_complete
    return table.state is TableState.STREAMING or (table.state is TableState.SNAPSHOT and is_whole)


def is_fresh(status: ReplicatorStatus) -> bool:
    """Whether all tables stream, and it is known how far each is."""
    return is_streaming(status) and all(table.freshness_s is not None for table in status.tables)


def is_running(status: ReplicatorStatus) -> bool:
    """Whether a worker runs the replicator, and does not wait to retry."""
    return status.state is ReplicatorState.RUNNING


def is_worker(status: ReplicatorStatus | None, process: subprocess.Popen[str]) -> bool:
    """Whether a process holds the lease; it listens to signals by then."""
    return status is not None and status.worker is not None and status.worker.holder.split(":")[1] == str(process.pid)


def crashes(rig: Rig) -> list[str]:
    """The crash points that were reached, in order."""
    record = rig.folder / "crashes"
    return record.read_text().splitlines() if record.exists() else []


def with_crashes(rig: Rig, points: Sequence[str]) -> None:
    """Make the rig's processes die at each of these crash points, once."""
    rig.environ |= {"REPLICATOR_CRASH_AT": ",".join(points), "REPLICATOR_CRASH_RECORD": str(rig.folder / "crashes")}
