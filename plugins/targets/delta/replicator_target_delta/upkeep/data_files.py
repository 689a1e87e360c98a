"""Rewrites chosen data files of a table, by one commit that changes no row.

It is done by the calls that Delta's own `OPTIMIZE` makes (`OptimisticTransaction.writeFiles`). In a clustered table the
new files are one ZCube of their own.

A crash before the commit leaves files that no version names; VACUUM removes them. If another writer changed one of the
files meanwhile, the commit fails and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from replicator_target_delta.scala import Scala

# One portion: what a merge cuts short is lost, and a merge may have to wait for all of it.
FILES_MAX: Final = 1_000
_BYTES_MAX: Final = 8 << 30
_FILE_SIZE: Final = "spark.databricks.delta.optimize.maxFileSize"
_FILE_BYTES: Final = 1 << 30

Choose = Callable[[Any, Scala], Sequence[Any]]
"""Gives the files of a snapshot to be rewritten, the most urgent first."""


def rewrite(session: Any, path: str, choose: Choose, *, at_least: int, operation: Callable[[Scala], Any]) -> int:
    """Rewrite a portion of the files that `choose` gives.

    Args:
        session: A SparkSession; its jobs run in this thread.
        path: The table's path.
        choose: Gives the files.
        at_least: Smallest number of files to rewrite; of fewer nothing is done.
        operation: The operation that the table's history shows.

    Returns:
        The number of files that were rewritten.
    """
    scala = Scala(session)
    delta, java_session = scala.delta, session._jsparkSession  # noqa: SLF001 - no public API rewrites chosen files
    log = delta.DeltaLog.forTable(java_session, path)
    transaction = log.startTransaction()
    snapshot = transaction.snapshot()
    files = _portion(choose(snapshot, scala), at_least)
    if len(files) < at_least:
        return 0
    chosen, nothing = scala.seq(files), scala.seq([])
    transaction.trackFilesRead(chosen)
    transaction.trackReadPredicates(nothing, False, False)
    tracking = scala.object(delta, "RowTracking")
    rows = log.createDataFrame(snapshot, chosen, False, scala.some("Optimize"))
    rows = tracking.preserveRowTrackingColumns(rows, snapshot)
    none = scala.none()
    context = delta.commands.DeltaOptimizeContext(none, none, none, none, False)
    strategy = scala.object(delta.commands, "OptimizeTableStrategy").apply(java_session, snapshot, context, nothing)
    columns = scala.object(delta.skipping.clustering, "ClusteringColumnInfo").extractLogicalNames(snapshot)
    size = sum(file.size() for file in files)
    count = max(1, round(size / int(session.conf.get(_FILE_SIZE, str(_FILE_BYTES)))))
    if columns.isEmpty():
        rows = rows.coalesce(count)
    else:
        rows = scala.object(delta.skipping, "MultiDimClustering").cluster(rows, count, columns, strategy.curve())
    written = scala.list(transaction.writeFiles(rows, none, True, nothing))
    bin_info, now = strategy.initNewBin(), scala.jvm.System.currentTimeMillis()
    actions = [strategy.tagAddFile(file, bin_info) for file in written]
    actions += [file.removeWithTimestamp(now, False) for file in files]
    tags = tracking.addPreservedRowTrackingTagIfNotSet(snapshot, scala.immutable_map({}))
    transaction.commit(scala.seq(actions), operation(scala), tags)
    return len(files)


def _portion(files: Sequence[Any], at_least: int) -> Sequence[Any]:
    """The files to take now: as many as fit, but at least `at_least`."""
    taken, size = 0, 0
    for file in files:
        size += file.size()
        if taken >= at_least and size > _BYTES_MAX:
            break
        taken += 1
    return files[:taken]
