"""Rewrites the files in which deletion vectors hide rows, in a commit that changes no row.

Delta's own `REORG TABLE … APPLY (PURGE)` cannot be used. On a cluster it fails, because it asks for a Spark session on
the executors; and where the files were all clustered together (one ZCube) it leaves them out and does nothing. This does
the same by the same means (`OptimisticTransaction.writeFiles`) to files that it chooses itself.

A crash before the commit leaves files that no version names; VACUUM removes them. If somebody else changed one of the
files meanwhile, the commit fails and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from replicator_target_delta.scala import Scala

# One portion: what a merge cuts short is lost, and a merge may have to wait for all of it.
_FILES_MAX: Final = 1_000
_BYTES_MAX: Final = 8 << 30
_FILE_SIZE: Final = "spark.databricks.delta.optimize.maxFileSize"
_FILE_BYTES: Final = 1 << 30
_HIDDEN_SHARE: Final = (
    "coalesce(try_divide(deletionVector.cardinality, get_json_object(stats, '$.numRecords')::bigint), 1)"
)


def purge(session: Any, path: str) -> int:
    """Rewrite a portion of the files that have deletion vectors, those with the largest share of hidden rows first.

    Args:
        session: A SparkSession; its jobs run in this thread.
        path: The table's path.

    Returns:
        How many files were rewritten; 0: none has a deletion vector.
    """
    scala = Scala(session)
    delta, java_session = scala.delta, session._jsparkSession  # noqa: SLF001 - no public API rewrites chosen files
    log = delta.DeltaLog.forTable(java_session, path)
    transaction = log.startTransaction()
    snapshot = transaction.snapshot()
    files = _portion(snapshot, scala)
    if not files:
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
    transaction.commit(scala.seq(actions), delta.DeltaOperations.Reorg(nothing, True), tags)
    return len(files)


def _portion(snapshot: Any, scala: Scala) -> Sequence[Any]:
    """The files to take now: as many as fit, but at least one."""
    by_share = scala.jvm.org.apache.spark.sql.functions.expr(_HIDDEN_SHARE).desc()
    hidden = snapshot.allFiles().filter("deletionVector IS NOT NULL").sort(scala.seq([by_share]))
    found = list(hidden.limit(_FILES_MAX).collectAsList())
    taken, size = 0, 0
    for file in found:
        size += file.size()
        if taken and size > _BYTES_MAX:
            break
        taken += 1
    return found[:taken]
