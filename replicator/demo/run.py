"""The demo's script: a live shop, a replicator, a `kill -9`, and the proof."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from rich.console import Console
from rich.table import Table

from replicator.demo import shop
from replicator.service import status
from replicator.spark.session import SparkHost, SparkSettings
from replicator.state.store import StateStore
from replicator.testing import compare
from replicator.testing.servers import PostgresServer, ServerProgramsNotFoundError

NAME: Final = "demo"
_WAIT_S: Final = 150.0

_YAML: Final = """\
name: demo
source:
  type: {type}
  host: 127.0.0.1
  port: {port}
  user: {user}
  password: ${{env:DEMO_PASSWORD}}{more}
target:
  type: delta
  path: {path}
tables:
  include: [{namespace}.*]
snapshot: {{chunk_rows: 20000}}
"""


class DemoFailedError(Exception):
    """Something did not happen that must."""


class _Writer(Protocol):
    """Writes to the shop until stopped."""

    transactions: int

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shop:
    """A shop on a server that runs: what differs between databases.

    `settings`: type, port, user and namespace, and further lines, for the YAML.
    """

    title: str
    settings: Mapping[str, Any]
    password: str
    tables: Sequence[str]
    fill: Callable[[], None]
    writer: Callable[[], _Writer]
    columns: Callable[[str], list[str]]
    sum: Callable[[str, Sequence[str]], compare.Sum]


@contextmanager
def _postgresql() -> Iterator[_Shop]:
    size = shop.Size()
    with PostgresServer.embedded() as server, server.database("shop") as database:
        yield _Shop(
            title="An embedded PostgreSQL",
            settings={
                "type": "postgresql",
                "port": server.port,
                "user": server.user,
                "namespace": "public",
                "more": "\n  database: shop",
            },
            password="unused",  # noqa: S106 - the server trusts this machine
            tables=shop.TABLES,
            fill=lambda: shop.fill(database.dsn, size),
            writer=lambda: shop.Writer(database.dsn, size),
            columns=lambda table: compare.columns(database.dsn, table),
            sum=lambda table, columns: compare.source_sum(database.dsn, table, columns),
        )


@contextmanager
def _mysql() -> Iterator[_Shop]:
    from replicator.demo import mysql_shop  # with a driver that the other demo does without
    from replicator.testing.mysql_servers import MysqlServer, has_mysql, server_version

    with MysqlServer("mysql" if has_mysql() else "mariadb") as server:
        name = "MySQL" if server.flavor == "mysql" else "MariaDB"
        yield _Shop(
            title=f"{name} {server_version(server)}",
            settings={
                "type": "mysql",
                "port": server.port,
                "user": server.user,
                "namespace": mysql_shop.DATABASE,
                "more": "",
            },
            password=server.password,
            tables=mysql_shop.TABLES,
            fill=lambda: mysql_shop.fill(server),
            writer=lambda: mysql_shop.Writer(server),
            columns=lambda table: mysql_shop.columns(server, table),
            sum=lambda table, columns: mysql_shop.source_sum(server, table, columns),
        )


def run_demo(*, keep: bool = False, source: Literal["postgresql", "mysql"] = "postgresql") -> int:
    """Run the demo; return the exit code: 0 when source and target are equal."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="replicator-demo-"))
    try:
        with _mysql() if source == "mysql" else _postgresql() as the_shop:
            return _Demo(console, folder, the_shop).run()
    except ServerProgramsNotFoundError as error:
        console.print(f"[red]The demo needs a server:[/red] {error}", markup=True)
        return 1
    except DemoFailedError as error:
        console.print(f"[red]The demo failed:[/red] {error}", markup=True)
        return 1
    finally:
        if keep:
            console.print(f"Left in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, console: Console, folder: Path, the_shop: _Shop) -> None:
        self._console, self._folder, self._shop = console, folder, the_shop
        self._lake = folder / "lake"
        self._file = folder / "demo.yaml"
        self._file.write_text(_YAML.format(path=self._lake, **the_shop.settings), encoding="utf-8")
        self._environ = {
            **os.environ,
            "REPLICATOR_HOME": str(folder / "home"),
            "DEMO_PASSWORD": the_shop.password,
        }
        self._state = folder / "home" / "state.db"
        self._store: StateStore | None = None
        self._began = time.monotonic()

    def run(self) -> int:
        self._say(f"{self._shop.title} runs; the shop is being filled …")
        self._shop.fill()
        writer = self._shop.writer()
        writer.start()
        process: subprocess.Popen[bytes] | None = None
        try:
            lines = len(self._file.read_text().splitlines())
            self._say(f"{lines} lines of YAML; a writer changes the shop all the time. Starting the replicator …")
            process = self._start()
            self._wait_for(process, "rows of the snapshot arrive in Delta", lambda s: _applied(s) > 0)
            self._show("before the crash")
            process.send_signal(signal.SIGKILL)
            process.wait()
            self._say("[bold red]kill -9[/bold red] of the replicator, in the middle. Starting it again …")
            process = self._start()
            self._wait_for(process, "every table has its snapshot, and changes follow", _is_streaming)
            self._show("all tables follow")
            target = writer.transactions + 300
            self._wait_for(process, "300 more transactions at the source", lambda _: writer.transactions >= target)
        finally:
            writer.stop()
            if process is not None:
                process.send_signal(signal.SIGINT)
                process.wait()
        self._say(f"The writer rests after {writer.transactions:,} transactions. Catching up …")
        last = self._start("--until-caught-up")
        if last.wait() != 0:
            raise DemoFailedError(f"catching up ended with status {last.returncode}: {self._tail()}")
        self._show("caught up")
        return self._compare()

    def _compare(self) -> int:
        host = SparkHost(SparkSettings(log_file=self._folder / "compare.log"), cores=os.cpu_count() or 1)
        table = Table("table", "rows at source", "rows in Delta", "checksum at source", "checksum in Delta", "")
        is_equal = True
        for name in self._shop.tables:
            columns = self._shop.columns(name)
            source = self._shop.sum(name, columns)
            folder = self._lake / self._shop.settings["namespace"] / name
            target = compare.target_sum(host.session(), str(folder), columns)
            is_equal &= source == target
            table.add_row(
                name,
                f"{source.rows:,}",
                f"{target.rows:,}",
                source.checksum,
                target.checksum,
                "[green]equal[/green]" if source == target else "[red]DIFFERENT[/red]",
            )
        host.stop()
        self._console.print(table)
        self._say("[bold green]source == target[/bold green]" if is_equal else "[bold red]source != target[/bold red]")
        return 0 if is_equal else 1

    def _start(self, *flags: str) -> subprocess.Popen[bytes]:
        with (self._folder / "run.log").open("ab") as log:
            command = [sys.executable, "-m", "replicator.cli", "run", str(self._file), *flags]
            return subprocess.Popen(command, env=self._environ, stdout=log, stderr=log, start_new_session=True)

    def _status(self) -> Mapping[str, Any] | None:
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
        self, process: subprocess.Popen[bytes], what: str, is_there: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise DemoFailedError(f"the replicator ended with status {process.returncode}: {self._tail()}")
            if (now := self._status()) and is_there(now):
                return
            time.sleep(0.5)
        raise DemoFailedError(f"waited {_WAIT_S:.0f} s in vain until {what}: {self._tail()}")

    def _show(self, title: str) -> None:
        command = [sys.executable, "-m", "replicator.cli", "status", NAME]
        answer = subprocess.run(
            command, env={**self._environ, "COLUMNS": "140"}, capture_output=True, text=True, check=True
        )
        self._say(f"[bold]replicator status[/bold] {NAME}  ({title})")
        self._console.print(answer.stdout, markup=False, highlight=False)

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/dim]  {text}", markup=True, highlight=False)

    def _tail(self) -> str:
        log = self._folder / "run.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else "no log"


def _applied(document: Mapping[str, Any]) -> int:
    return sum(int(t["changes_applied"]) for t in document["tables"])


def _is_streaming(document: Mapping[str, Any]) -> bool:
    tables = document["tables"]
    return bool(tables) and all(t["state"] == "streaming" and t["freshness_s"] is not None for t in tables)
