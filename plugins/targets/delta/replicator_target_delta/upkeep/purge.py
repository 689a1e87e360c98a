"""Rewrites the files in which deletion vectors hide rows.

Delta's own `REORG TABLE … APPLY (PURGE)` cannot be used. On a cluster it fails, because it asks for a Spark session on
the executors; and where the files were all clustered together (one ZCube) it leaves them out and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from replicator_target_delta.scala import Scala
from replicator_target_delta.upkeep import data_files as datafiles

_HIDDEN_SHARE: Final = (
    "coalesce(try_divide(deletionVector.cardinality, get_json_object(stats, '$.numRecords')::bigint), 1)"
)


def purge(session: Any, path: str) -> int:
    """Rewrite a portion of the files that have deletion vectors, those with the largest share of hidden rows first.

    Returns:
        The number of files that were rewritten; 0: none has a deletion vector.
    """
    return datafiles.rewrite(
        session,
        path,
        _hidden,
        at_least=1,
        operation=lambda scala: scala.delta.DeltaOperations.Reorg(scala.seq([]), True),
    )


def _hidden(snapshot: Any, scala: Scala) -> Sequence[Any]:
    by_share = scala.jvm.org.apache.spark.sql.functions.expr(_HIDDEN_SHARE).desc()
    hidden = snapshot.allFiles().filter("deletionVector IS NOT NULL").sort(scala.seq([by_share]))
    return list(hidden.limit(datafiles.FILES_MAX).collectAsList())
