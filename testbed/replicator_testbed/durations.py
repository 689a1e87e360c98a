"""A pytest plugin that records what each test costs: `REPLICATOR_TEST_DURATIONS=FOLDER` gets a file of JSON lines per process.

The cost is processor time, which hardly depends on what else runs: of the test's own process, of those it started, and of
servers and JVMs that fixtures started for it and for others. These have a variable of the environment, so that a server that
left its parent is found, too. What a session's fixture costs, a server's start for example, is told by itself.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

VARIABLE: Final = "REPLICATOR_TEST_DURATIONS"
MARK: Final = "REPLICATOR_TEST_PROCESS"
TICKS: Final = os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Record where tests run: in the processes of xdist, or here if there are none."""
    folder = os.environ.get(VARIABLE)
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if folder and runs_tests:
        config.pluginmanager.register(_Recorder(Path(folder)), "replicator-durations")


class Processes:
    """The processes that this one started, those included that have another parent now."""

    def __init__(self) -> None:
        os.environ[MARK] = str(os.getpid())
        self._sought = f"{MARK}={os.getpid()}".encode()
        self._ours: dict[tuple[int, str], bool] = {}

    def seconds(self) -> float:
        """Processor time of them all until now, with that of their children that ended."""
        ticks = 0
        alive: dict[tuple[int, str], bool] = {}
        ours = {os.getpid()}
        # Parents before children, as a rule: numbers grow.
        for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            entry = Path("/proc", str(pid))
            try:
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                key = (pid, fields[19])
                if key not in self._ours:
                    is_marked = self._sought in (entry / "environ").read_bytes().split(b"\0")
                    self._ours[key] = is_marked or pid in ours or int(fields[1]) in ours
            except OSError:  # it ended meanwhile, or belongs to somebody else
                continue
            alive[key] = self._ours[key]
            if alive[key]:
                ours.add(pid)
                ticks += sum(int(field) for field in fields[11:15])
        self._ours = alive
        return ticks / TICKS


class _Recorder:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8")
        self._processes = Processes()
        self._node = ""
        self._shared = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._node, self._shared = item.nodeid, 0.0
        began, used = time.monotonic(), self._processes.seconds()
        result = yield
        cost = max(0.0, self._processes.seconds() - used - self._shared)
        self._tell({"test": item.nodeid, "cpu": round(cost, 2), "wall": round(time.monotonic() - began, 2)})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope != "session":
            return (yield)
        used, shared = self._processes.seconds(), self._shared
        result = yield
        # Without what other such fixtures cost that it asked for.
        cost = self._processes.seconds() - used - (self._shared - shared)
        self._shared += cost
        self._tell({"test": self._node, "fixture": fixturedef.argname, "cpu": round(cost, 2)})
        return result

    def _tell(self, cost: dict[str, Any]) -> None:
        self._file.write(json.dumps(cost) + "\n")
        self._file.flush()
