"""Whether what a cluster's executors write at a path of this host arrives on this host."""

from __future__ import annotations

import threading
from typing import Any, Final
from uuid import uuid4

from replicator.model.errors import FatalError
from replicator.spark.master import is_cluster
from replicator_target_delta.storage import Storage

# More tasks than cores, so that every executor has its share.
_TASKS_PER_CORE: Final = 4


class SharingCheck:
    """Asked before the first write of each Spark application; thread-safe.

    Executors on other hosts would write data files to their own disks, and the commit would name files that nobody else has.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._application = ""

    def run(self, session: Any, storage: Storage) -> None:
        """Let executors write small files below the target's path, and look for them.

        Raises:
            FatalError: `path_not_shared`.
        """
        context = session.sparkContext
        with self._lock:
            if not is_cluster(context.master) or "://" in storage.root or self._application == context.applicationId:
                return
            folder = storage.own_path("sharing", uuid4().hex)
            tasks = max(2, context.defaultParallelism) * _TASKS_PER_CORE
            try:
                session.range(0, tasks, 1, tasks).write.parquet(folder)
                found = sum(name.endswith(".parquet") for name in storage.names(folder))
            finally:
                storage.remove(folder)
            if found < tasks:
                raise FatalError(
                    f"Spark's executors wrote {tasks} files below {storage.root}, and {found} of them arrived on this host.",
                    code="path_not_shared",
                    action="Let all hosts of the cluster mount one file system at target.path, or choose a path that all can reach.",
                )
            self._application = context.applicationId
