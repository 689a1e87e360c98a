"""A real Spark standalone cluster on loopback for tests: a master and workers as processes of their own.

The programs are those of the installed pyspark. Nothing is left behind: leaving the context manager kills master,
workers and executors and removes their folder, and a guardian process does the same when this process dies, however it
dies.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from replicator_testbed.processes import name_of
from replicator_testbed.scratch_servers import HOST, free_port
from replicator_testbed.spark.java import short_lived_java
from replicator_testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    import psutil

COMMAND_TIMEOUT_SECONDS: Final = 60

# Every process of the cluster is in the guardian's process group. The guardian waits on a pipe whose other end this
# process holds; then a helper outside the group kills the group, waits for its end and removes the folder.
_GUARDIAN: Final = 'read -r _; exec setsid --fork sh -c "$0" "$$" "$1"'
_CLEAN_UP: Final = (
    'kill -9 "-$0"; n=0; while kill -0 "-$0" && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done; rm -rf "$1"'
)
# What Hadoop's local file system calls.
_TOOLS: Final = ("bash", "chmod", "id", "ls", "readlink", "setsid", "sh", "stat")
_HIDE: Final = 'mount -t tmpfs tmpfs "$0" && exec "$@"'


class SparkCluster:
    """A standalone master with workers, from start to the removal of their folder.

    A context manager that gives the running cluster. The master keeps its port when it is stopped and started again.
    Not thread-safe.

    Args:
        workers: How many are started with the master.
        cores: Of each worker.
        memory: That each worker offers to executors, such as `1g`.
    """

    def __init__(self, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self._first_workers = workers
        self._cores = cores
        self._memory = memory
        self._folder = Path(tempfile.mkdtemp(prefix="replicator-spark-"))
        self._programs = self._folder / "bin"
        self._programs.mkdir()
        for tool in _TOOLS:
            if found := shutil.which(tool):
                (self._programs / tool).symlink_to(found)
        self._guardian: subprocess.Popen[bytes] | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._count = 0
        self.port = 0
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start master and workers; remove everything if that fails."""
        try:
            self.start_master()
            for _ in range(self._first_workers):
                self.start_worker()
            self.wait_for_workers(self._first_workers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill everything and remove the folder."""
        self.close()

    # -- life --------------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """Start the master, on the port that it had before if it had one, and return when it listens."""
        self.port = self.port or free_port()
        log = self._log("master")
        self._master = self._start(
            log,
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", str(self.port), "--webui-port", "0"),
        )
        self._wait_for(self._master, log, r"I have been elected leader")

    def stop_master(self) -> None:
        """Kill the master; workers and executors stay and look for it."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()
        self._master = None

    def start_worker(self, *, host: str = HOST, without: Path | None = None) -> subprocess.Popen[bytes]:
        """Start one more worker; it registers by itself as soon as it finds the master.

        Args:
            host: Its address, another loopback address for a worker that is to pass for another host.
            without: A folder that it sees as an empty one of its own, as a worker on another host would.
        """
        self._count += 1
        name = f"worker-{self._count}"
        worker = self._start(
            self._log(name),
            "org.apache.spark.deploy.worker.Worker",
            *("--host", host, "--webui-port", "0", "--cores", str(self._cores), "--memory", self._memory),
            *("--work-dir", str(self._folder / name), self.url),
            without=without,
        )
        self.workers.append(worker)
        return worker

    def stop_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker with `kill -9`; its executors end by themselves."""
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers have registered with the master that runs now."""
        text = self._log("master")
        wait_until(
            lambda: len(re.findall(r"Registering worker", text.read_text(errors="replace"))) >= count,
            lambda: f"{count} workers register\n{self.log}",
        )

    def close(self) -> None:
        """Kill everything and remove the folder; doing it twice changes nothing."""
        processes = [*([self._master] if self._master else []), *self.workers]
        for executor in self.executors():
            executor.kill()
        for process in processes:
            process.kill()
            process.wait()
        self._master, self.workers = None, []
        if self._guardian is not None:
            guardian, self._guardian = self._guardian, None
            guardian.communicate(timeout=COMMAND_TIMEOUT_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where logs and scratch files are."""
        return self._folder

    @property
    def url(self) -> str:
        """`spark.master`."""
        return f"spark://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        """The ends of all logs, those of executors included."""
        files = [*self._folder.glob("*.log"), *self._folder.glob("worker-*/app-*/*/stderr")]
        return "\n".join(f"== {f.relative_to(self._folder)}\n{f.read_text(errors='replace')[-3000:]}" for f in files)

    def executors(self) -> list[psutil.Process]:
        """The executors that run now, on whichever worker."""
        import psutil

        found = []
        for worker in self.workers:
            try:
                children = psutil.Process(worker.pid).children()
            except psutil.NoSuchProcess:
                continue
            found += [child for child in children if name_of(child) is not None]
        return found

    def kill_executor(self) -> int:
        """Kill one executor with `kill -9`; its process id."""
        executor = wait_until(lambda: next(iter(self.executors()), None), lambda: f"an executor runs\n{self.log}")
        executor.send_signal(signal.SIGKILL)
        return int(executor.pid)

    def settings(self, **more: str) -> Mapping[str, str]:
        """`spark.settings` of a driver whose executors fit the workers, one on each.

        Their hosts are otherwise than the driver's: another time zone, no UTF-8, no Python.
        """
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.cores": str(self._cores),
            "spark.executor.memory": "640m",
            "spark.executor.extraJavaOptions": short_lived_java("-Duser.timezone=Asia/Kolkata"),
            "spark.executorEnv.LC_ALL": "C",
            "spark.executorEnv.PATH": str(self._programs),
            # Two cores: the defaults are for clusters of another size.
            "spark.sql.shuffle.partitions": str(2 * self._cores),
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            **more,
        }

    # -- processes ---------------------------------------------------------------------------------------------------

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _start(self, log: Path, program: str, *arguments: str, without: Path | None = None) -> subprocess.Popen[bytes]:
        # The package is found, not imported: no more of it is needed than its folder.
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        group, home = self._guard(), Path(found.origin).parent
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        environment |= {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": short_lived_java(),
        }
        command = [str(home / "bin" / "spark-class"), program, *arguments]
        if without is not None:
            namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
            command = [*namespace, "/bin/sh", "-c", _HIDE, str(without), *command]
        with log.open("wb") as output:  # a log begins with its process
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self._folder,
                process_group=group,
            )

    def _guard(self) -> int:
        """The process group of everything, led by the guardian."""
        if self._guardian is None:
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN, _CLEAN_UP, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Out of reach of Ctrl-C, which ends the process that it watches.
                process_group=0,
            )
        return self._guardian.pid

    def _wait_for(self, process: subprocess.Popen[bytes], log: Path, pattern: str) -> None:
        def look() -> bool:
            assert process.poll() is None, f"ended with {process.returncode}\n{self.log}"
            return re.search(pattern, log.read_text(errors="replace")) is not None

        wait_until(look, lambda: f"{pattern} in {log.name}\n{self.log}")
