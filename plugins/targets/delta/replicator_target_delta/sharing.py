"""Check that files that a cluster's executors write at a path of this host arrive on this host."""

from __future__ import annotations

import io
import threading
from typing import Any, Final
from uuid import uuid4

import pyarrow.parquet as pq

from replicator.model.errors import FatalError
from replicator.spark.master import is_cluster
from replicator_target_delta.storage import Storage

# More tasks than cores, so that every executor has its share.
_TASKS_PER_CORE: Final = 4
# The address by which the cluster knows the executor that runs a task; empty where executors are started otherwise.
_HOST: Final = (
    r"regexp_extract(reflect('java.lang.System', 'getProperty', 'sun.java.command'), r'--hostname (\S+)', 1) AS host"
)


class SharingCheck:
    """Check before each write, repeated until every host with executors has shown that it shares the path; thread-safe.

    Executors on other hosts would write data files to their own disks, and the commit would name files that no other host has.
    A host that joins while a batch is written is seen before the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._application = ""
        self._hosts: set[str] = set()
        """Hosts that have written a file that arrived."""

    def run(self, session: Any, storage: Storage) -> None:
        """Let executors write small files below the target's path, and look for them.

        Raises:
            FatalError: `path_not_shared`.
        """
        context = session.sparkContext
        if not is_cluster(context.master) or "://" in storage.root:
            return
        with self._lock:
            hosts = _hosts(context)
            if self._application == context.applicationId and hosts <= self._hosts:
                return
            folder = storage.own_path("sharing", uuid4().hex)
            tasks = max(2, context.defaultParallelism) * _TASKS_PER_CORE
            try:
                session.range(0, tasks, 1, tasks).selectExpr(_HOST).write.parquet(folder)
                names = [name for name in storage.names(folder) if name.endswith(".parquet")]
                wrote = {_host_in(storage.read(f"{folder}/{name}")) for name in names}
            finally:
                storage.remove(folder)
            if len(names) < tasks:
                raise FatalError(
                    f"Spark's executors wrote {tasks} files below {storage.root}, and {len(names)} of them arrived on this host.",
                    code="path_not_shared",
                    action="Let all hosts of the cluster mount one file system at target.path, or choose a path that all can reach.",
                )
            self._application = context.applicationId
            self._hosts |= hosts if "" in wrote else wrote


def _hosts(context: Any) -> set[str]:
    """Hosts with executors."""
    java = context._jsc.sc()  # noqa: SLF001 - PySpark has no such call
    addresses: str = java.getExecutorMemoryStatus().keySet().mkString(" ")
    driver: str = java.env().blockManager().blockManagerId().hostPort()
    return {address.rpartition(":")[0] for address in addresses.split() if address != driver}


def _host_in(data: bytes) -> str:
    host: str | None = pq.read_table(io.BytesIO(data))["host"][0].as_py()
    return host or ""
