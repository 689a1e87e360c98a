"""Joins the small files of a clustered table, and leaves the others as they are.

Delta's `OPTIMIZE` does something else there: it clusters again all files that are in no ZCube of at least 100 GB. So a few small
files make it rewrite the whole of most tables. And where all files are in one ZCube it does nothing, however small they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicator_target_delta.scala import Scala
from replicator_target_delta.upkeep import data_files as datafiles


def join_small_files(session: Any, path: str, small_file_size: int) -> int:
    """Join a portion of the files below `small_file_size`, the smallest first.

    Returns:
        The number of files that were joined; 0: there are not two of them.
    """

    def small(snapshot: Any, scala: Scala) -> Sequence[Any]:
        by_size = scala.jvm.org.apache.spark.sql.functions.expr("size")
        files = snapshot.allFiles().filter(f"size < {small_file_size}").sort(scala.seq([by_size]))
        return list(files.limit(datafiles.FILES_MAX).collectAsList())

    def operation(scala: Scala) -> Any:
        nothing = scala.seq([])
        return scala.delta.DeltaOperations.Optimize(nothing, nothing, False, scala.none(), False)

    return datafiles.rewrite(session, path, small, at_least=2, operation=operation)
