"""What a comparison of both sides costs: `replicator verify` of a PostgreSQL table and its Delta table, and what other tools cost.

reladiff and data-diff compare the table with a second one in another database of the same server. They are installed in environments of
their own, below the cache folder. Each side reads the server through a proxy that counts what the server answers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import psutil

from benchmarks import data
from benchmarks.measure import peak_rss_mib, say
from benchmarks.report import Line, Report, at_least, at_most
from benchmarks.scale import Scale
from replicator_testbed.delta import slip_in_a_row
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.rig import Rig, is_streaming

GOAL_ROWS_PER_S: Final = 500_000
GOAL_BYTES: Final = 0.01
TABLE: Final = "narrow"
_COLUMNS: Final = """
    id bigint PRIMARY KEY, customer int NOT NULL, quantity int, total bigint NOT NULL, amount numeric(12,2) NOT NULL, day date NOT NULL,
    changed_at timestamp NOT NULL, is_active boolean NOT NULL, code varchar(12) NOT NULL, town text NOT NULL
"""
_VALUES: Final = """
    i, (i * 7919 % 100003)::int, CASE WHEN i % 10 = 0 THEN NULL ELSE i % 97 END, i * 31, ((i * 31) % 1000000) / 100.0,
    date '2024-01-01' + (i % 700)::int, timestamp '2024-01-01' + i * interval '1.000001 second', i % 3 = 0, 'c' || i % 100000, md5(i::text)
"""
OTHERS: Final[Mapping[str, Sequence[str]]] = {
    "reladiff": ("reladiff==0.6.0", "psycopg2-binary"),
    "data-diff": ("data-diff==0.11.2", "dbt-core<1.8", "pydantic<2", "psycopg2-binary"),
}
"""Other tools, and what to install for each."""
_OURS: Final = "replicator verify"
_EQUAL: Final = "equal"
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one command.

    Attributes:
        cpu_s: Processor time of the command's process.
        worker_cpu_s: Of the replicator's worker meanwhile: supervisor, capture, apply, and Spark's JVM.
        server_cpu_s: Of the server meanwhile, the sessions of the worker included.
        answered_bytes: What the server sent to the command, and to the worker meanwhile.
        peak_mib: The most memory that the command's process has had resident.
    """

    wall_s: float
    cpu_s: float
    worker_cpu_s: float
    server_cpu_s: float
    answered_bytes: int
    peak_mib: float
    output: str
    code: int


def run(scale: Scale) -> Report:
    """Equal tables, and tables of which one has a row more."""
    costs: dict[str, dict[str, list[Cost]]] = {}
    with data.server() as server, ExitStack() as stack:
        first, second = (stack.enter_context(server.database(name)) for name in ("bench", "bench_other"))
        for database in (first, second):
            say(f"verify: loading {scale.rows:,} rows")
            _fill(database, scale.rows)
        [(table_bytes,)] = first.execute(f"SELECT pg_table_size('{TABLE}')")
        proxy = stack.enter_context(FaultProxy("127.0.0.1", server.port))
        rig, worker, folder = stack.enter_context(_replicated(first, proxy, scale))
        tools = {name: installed(name) for name in OTHERS}
        bench = _Bench(server=server, proxy=proxy, rig=rig, worker=worker, second=second, tools=tools)
        costs[_EQUAL] = bench.measured(scale.repetitions, is_equal=True)
        slip_in_a_row(folder, id_=scale.rows + 1)
        second.execute(
            f"INSERT INTO {TABLE} SELECT {_VALUES} FROM generate_series({scale.rows + 1}::bigint, {scale.rows + 1}) AS i"
        )
        costs["a row more"] = bench.measured(1, is_equal=False)
    return Report(
        name="verify",
        lines=list(_lines(costs, scale.rows, table_bytes)),
        raw={
            case: {name: [asdict(cost) for cost in taken] for name, taken in by.items()} for case, by in costs.items()
        },
    )


def installed(name: str) -> Path:
    """The program of another tool; installed where it is not yet."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "replicator" / "benchmarks" / name
    program = folder / "bin" / name
    if not program.exists():
        say(f"verify: installing {name}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *OTHERS[name]], check=True)
    return program


def _fill(database: ScratchDatabase, rows: int) -> None:
    database.execute(
        f"CREATE TABLE {TABLE} ({_COLUMNS})",
        f"INSERT INTO {TABLE} SELECT {_VALUES} FROM generate_series(1::bigint, {rows}) AS i",
    )
    database.execute(f"VACUUM (FREEZE, ANALYZE) {TABLE}")


@contextmanager
def _replicated(
    database: ScratchDatabase, proxy: FaultProxy, scale: Scale
) -> Iterator[tuple[Rig, psutil.Process, Path]]:
    """A worker that runs, with the table in its lake; and the table's folder."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        rig = Rig(folder=Path(folder), database=database, tables=[TABLE], name="bench", may_alarm=True)
        rig.write_yaml(source={"host": proxy.host, "port": proxy.port})
        process = rig.start()
        try:
            rig.wait_for_status(is_streaming, process, timeout_s=60 + scale.rows / 10_000)
            yield rig, psutil.Process(process.pid), rig.lake / "public" / TABLE
        finally:
            if process.poll() is None:
                rig.stop(process)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    server: PostgresServer
    proxy: FaultProxy
    rig: Rig
    worker: psutil.Process
    second: ScratchDatabase
    tools: Mapping[str, Path]

    def measured(self, repetitions: int, *, is_equal: bool) -> dict[str, list[Cost]]:
        """Each side so many times, in turns."""
        sides = [_OURS, *self.tools]
        costs: dict[str, list[Cost]] = {name: [] for name in sides}
        for number in range(repetitions):
            for name in sides if number % 2 == 0 else reversed(sides):
                cost = self._ours() if name == _OURS else self._of(self._arguments(name), dict(os.environ))
                say(
                    f"  {name}: {cost.wall_s:.1f} s; {cost.cpu_s:.1f} s of its own processor time, {cost.server_cpu_s:.1f} s of the"
                    f" server's, {cost.worker_cpu_s:.1f} s of the worker's; {cost.answered_bytes:,} bytes; {cost.peak_mib:.0f} MiB"
                )
                assert _found(name, cost) == (not is_equal), f"{name}: {cost.output}"
                costs[name].append(cost)
        return costs

    def _ours(self) -> Cost:
        arguments = [sys.executable, "-m", "replicator.cli", "verify", self.rig.name, "--json"]
        return self._of(arguments, {**os.environ, "REPLICATOR_HOME": str(self.rig.home), "RIG_PASSWORD": "unused"})

    def _arguments(self, name: str) -> Sequence[str]:
        """Both compare all columns, by ranges of the key."""
        urls = [
            f"postgresql://{self.server.user}:unused@{self.proxy.host}:{self.proxy.port}/{database}"
            for database in (self.rig.database.name, self.second.name)
        ]
        return [str(self.tools[name]), urls[0], TABLE, urls[1], TABLE, "-k", "id", "-c", "%", "--threads", "2"]

    def _of(self, arguments: Sequence[str], environ: Mapping[str, str]) -> Cost:
        server, worker, answered = self._server_cpu_s(), _cpu_s(self.worker), self.proxy.upstream_bytes
        began = time.perf_counter()
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(arguments, env=environ, stdout=printed, stderr=subprocess.STDOUT)
            ended, peak_mib = 0, 0.0
            while not ended:
                # Not `ru_maxrss`, which is never less than what this process has.
                peak_mib = peak_rss_mib(process.pid) or peak_mib
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                time.sleep(0 if ended else _LOOK_S)
            wall_s = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            printed.seek(0)
            output = printed.read().decode(errors="replace")
        return Cost(
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            worker_cpu_s=_cpu_s(self.worker) - worker,
            server_cpu_s=self._server_cpu_s() - server,
            answered_bytes=self.proxy.upstream_bytes - answered,
            peak_mib=peak_mib,
            output=output[-2000:],
            code=process.returncode,
        )

    def _server_cpu_s(self) -> float:
        assert self.server.pid is not None, "it runs"
        return _cpu_s(psutil.Process(self.server.pid))


def _cpu_s(process: psutil.Process) -> float:
    """Processor time of a process and its children, of those that have ended, too."""
    while True:
        before = process.cpu_times()
        with suppress(psutil.NoSuchProcess):
            total = float(sum(before[:4])) + sum(_cpu_s(child) for child in process.children())
            # What a child has used becomes the parent's when it ends; one that ends between two looks would be missing.
            if process.cpu_times()[2:4] == before[2:4]:
                return total


def _found(name: str, cost: Cost) -> bool:
    """Whether a difference was found."""
    if name != _OURS:
        assert cost.code == 0, cost.output
        return any(line.startswith(("+ ", "- ")) for line in cost.output.splitlines())
    assert cost.code in {0, 3}, cost.output
    [table] = json.loads(cost.output)["tables"]
    assert table["result"] in {"equal", "different"}, cost.output
    return bool(table["result"] == "different")


def _lines(costs: Mapping[str, Mapping[str, Sequence[Cost]]], rows: int, table_bytes: int) -> Iterator[Line]:
    for case, by_name in costs.items():
        for name, taken in by_name.items():
            middle: dict[str, float] = {
                one.name: statistics.median(getattr(cost, one.name) for cost in taken)
                for one in fields(Cost)
                if one.type in {"int", "float"}
            }
            yield Line(
                what=f"{name}, {rows:,} rows, {case}",
                figure=f"{middle['wall_s']:.1f} s; {rows / middle['cpu_s'] / 1000:,.0f}k rows per CPU-second of its own,"
                f" {rows / middle['server_cpu_s'] / 1000:,.0f}k of the server's; {middle['answered_bytes']:,.0f} bytes answered;"
                f" {middle['peak_mib']:,.0f} MiB",
            )
            if name == _OURS and case == _EQUAL:
                yield Line(what="the worker's processor time meanwhile", figure=f"{middle['worker_cpu_s']:.1f} s")
                yield at_least("rows compared per second", rows / middle["wall_s"], GOAL_ROWS_PER_S, "rows/s")
                share = middle["answered_bytes"] / table_bytes * 100
                yield at_most("bytes answered, of the table's size", share, GOAL_BYTES * 100, "%")
