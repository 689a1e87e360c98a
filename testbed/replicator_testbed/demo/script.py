"""The demo's script: a live shop, a replicator, a `kill -9`, and the proof."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from replicator.cli.entry import main
from replicator.model.documents.status import ReplicatorStatus
from replicator.model.schema import TableId
from replicator.runtime.caught_up import CatchUp
from replicator.service.status import assemble as status
from replicator.state.store import StateStore
from replicator_testbed.compare import Sum
from replicator_testbed.databases import source_block
from replicator_testbed.demo import shop
from replicator_testbed.demo.run import DemoFailedError
from replicator_testbed.demo.sources import DemoSource
from replicator_testbed.demo.targets import DemoTarget
from replicator_testbed.demo.waiting import STILL_S, reasons, wait_while_it_moves
from replicator_testbed.rig import is_fresh

NAME: Final = "demo"

_YAML: Final = """\
name: demo
source:
{source}
target:
{target}
tables:
  include: [{namespace}.*]
  exclude: [{swapped}]
snapshot: {{chunk_rows: 5000}}
{more}"""


class Demo:
    """One demo, from an empty shop to equal sides."""

    def __init__(self, console: Console, folder: Path, source: DemoSource, target: DemoTarget) -> None:
        self._console, self._folder, self._source, self._target = console, folder, source, target
        self._file = folder / "demo.yaml"
        self._file.write_text(
            _YAML.format(
                source=source_block(source.database, password="DEMO_PASSWORD"),  # noqa: S106 - a variable's name
                namespace=source.database.namespace,
                swapped=", ".join(f'"{pattern}"' for pattern in shop.SWAPPED),
                target=target.block,
                more=target.more,
            ),
            encoding="utf-8",
        )
        self._settings = {
            "REPLICATOR_HOME": str(folder / "home"),
            "DEMO_PASSWORD": source.database.server.password or "unused",
        }
        self._state = folder / "home" / "state.db"
        self._store: StateStore | None = None
        self._began = time.monotonic()
        # By table, in seconds: when it was last asked under the writer's changes.
        self._freshness: dict[str, float] = {}
        self._log_begins = 0

    def run(self) -> int:
        self._say(f"{self._source.title} runs; filling the shop database …")
        self._source.shop.fill()
        writer = self._source.shop.writer()
        writer.start()
        process: subprocess.Popen[bytes] | None = None
        verification: subprocess.Popen[str] | None = None
        try:
            lines = len(self._file.read_text().splitlines())
            self._say(f"{lines} lines of YAML; a writer changes the shop all the time. Starting the replicator …")
            process = self._start()
            self._wait_for(process, f"rows of the snapshot in {self._target.title}", lambda s: _applied(s) > 0)
            self._show("before the crash")
            self._migrate(process, writer)
            process.send_signal(signal.SIGKILL)
            process.wait()
            applied = _applied(self._status())
            self._say("[bold red]kill -9[/bold red] of the replicator, half-way. Starting it again …")
            process = self._start()
            self._wait_for(
                process,
                "the snapshot of every table, and changes after it",
                lambda s: is_fresh(s) and _applied(s) > applied,
            )
            self._show("all tables are streaming")
            target = writer.transactions + 40
            self._wait_for(
                process,
                "40 more transactions at the source",
                lambda _: writer.transactions >= target,
                lambda: writer.transactions,
                self._note_freshness,
            )
            writer.stop()
            self._say(f"The writer stops after {writer.transactions:,} transactions. Catching up …")
            catch_up = self._catch_up()
            self._wait_for(process, "everything to be applied", lambda _: catch_up.check() is not None)
            verification = self._begin_to_verify()
            self._show("caught up")
            sources = {name: self._source_sum(name) for name in shop.TABLES}
            self._show_verification(verification)
        finally:
            writer.stop()
            for ended in (verification, process):
                if ended is not None:
                    ended.send_signal(signal.SIGINT)
                    ended.wait()
        return self._compare(sources)

    def _migrate(self, process: subprocess.Popen[bytes], writer: shop.ShopWriter) -> None:
        for number, change in enumerate(self._source.shop.migration, start=1):
            self._say(f"Meanwhile, in the shop: {change.title}.")
            writer.change_schema(change)
            self._wait_for(
                process,
                f"a change of the shop's tables: {change.title}",
                lambda _, number=number: writer.schema_changes == number,  # type: ignore[misc]
                lambda: writer.transactions,
            )

    def _compare(self, sources: Mapping[str, Sum]) -> int:
        title = self._target.title
        sums = ("checksum at source", f"checksum in {title}", "")
        table = Table("table", "freshness", "rows at source", f"rows in {title}", *sums)
        is_equal = True
        for name in shop.TABLES:
            source, target = sources[name], self._target_sum(name)
            is_equal &= source == target
            table.add_row(
                name,
                self._freshness_of(name),
                f"{source.rows:,}",
                f"{target.rows:,}",
                source.checksum[:8],
                target.checksum[:8],
                "[green]equal[/green]" if source == target else "[red]DIFFERENT[/red]",
            )
        self._console.print(table)
        self._say("[bold green]source == target[/bold green]" if is_equal else "[bold red]source != target[/bold red]")
        return 0 if is_equal else 1

    def _note_freshness(self, found: ReplicatorStatus) -> None:
        for table in found.tables:
            if table.freshness_s is not None:
                self._freshness[TableId.parse(table.table).name] = table.freshness_s

    def _freshness_of(self, table: str) -> str:
        return f"{self._freshness[table]:.1f} s" if table in self._freshness else "?"

    def _source_sum(self, table: str) -> Sum:
        database = self._source.database
        return self._target.target_tables.wanted(database.rows(table, database.columns(table)))

    def _target_sum(self, table: str) -> Sum:
        database = self._source.database
        return self._target.target_tables.found(database.namespace, table, database.columns(table))

    def _catch_up(self) -> CatchUp:
        assert self._store is not None, "the status was seen"
        return CatchUp(store=self._store, name=NAME)

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "run.log").open("ab") as log:
            self._log_begins = log.tell()
            command = [sys.executable, "-P", "-m", "replicator.cli", "run", str(self._file)]
            return subprocess.Popen(
                command, env={**os.environ, **self._settings}, stdout=log, stderr=log, start_new_session=True
            )

    def _status(self) -> ReplicatorStatus | None:
        """As `replicator status --json` says; None while nothing is stored yet.

        Asked in this process: a command for each look would take the CPU from the work.
        """
        if self._store is None:
            if not self._state.exists():
                return None
            self._store = StateStore(f"sqlite:///{self._state}")
        record = self._store.replicator(NAME)
        return status.status(self._store, record) if record else None

    def _wait_for(
        self,
        process: subprocess.Popen[bytes],
        what: str,
        is_there: Callable[[ReplicatorStatus], bool],
        counted: Callable[[], object] = lambda: None,
        seen: Callable[[ReplicatorStatus], None] = lambda _: None,
    ) -> None:
        def look() -> ReplicatorStatus | None:
            found = self._status()
            if found is not None:
                seen(found)
            if process.poll() is not None:
                raise DemoFailedError(
                    f"the replicator ended with status {process.returncode}. {reasons(found)}\n{self._tail()}"
                )
            return found

        if not wait_while_it_moves(look, is_there, counted=lambda: (self._milestones(), counted())):
            raise DemoFailedError(
                f"Timed out waiting for {what}: no progress for {STILL_S:.0f} s. {reasons(self._status())}"
            )

    def _show(self, title: str) -> None:
        # In this process: an interpreter that imports everything once more would take the CPU from the work.
        answer = CliRunner().invoke(main, ["status", NAME], env={**self._settings, "COLUMNS": "140"})
        if answer.exit_code:
            raise DemoFailedError(f"replicator status ended with status {answer.exit_code}. {answer.output}")
        self._say(f"[bold]replicator status[/bold] {NAME}  ({title})")
        self._console.print(answer.output, markup=False, highlight=False)

    def _begin_to_verify(self) -> subprocess.Popen[str]:
        """The product's own comparison. What follows it at the end is another one, which knows nothing of the product."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "replicator.cli", "verify", NAME],
            env={**os.environ, **self._settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _show_verification(self, verification: subprocess.Popen[str]) -> None:
        found, errors = verification.communicate()
        self._say(f"[bold]replicator verify[/bold] {NAME}  (while it runs)")
        self._console.print(found, markup=False, highlight=False)
        if verification.returncode:
            raise DemoFailedError(f"replicator verify ended with status {verification.returncode}. {errors}")

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/dim]  {text}", markup=True, highlight=False)

    def _milestones(self) -> frozenset[str]:
        """What `run` has said in words since it was started. Said again, by a worker that was started again, it is no progress."""
        text = (self._folder / "run.log").read_bytes()[self._log_begins :].decode(errors="replace")
        return frozenset(line for line in text.splitlines() if line.startswith(f"{NAME}: "))

    def _tail(self) -> str:
        log = self._folder / "run.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else "no log"


def _applied(found: ReplicatorStatus | None) -> int:
    return sum(table.changes_applied for table in found.tables) if found else 0
