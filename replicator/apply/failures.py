"""What becomes of a table's errors once they have come too often, and which of several errors ends the loop. Pure."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    FatalError,
    FencedError,
    TableError,
    TargetCrashedError,
    TargetUnavailableError,
    TransientError,
)
from replicator.model.schema import TableId
from replicator.state.records import AppliedRecord

_CRASHES_ALONE_MAX: Final = 4


def is_exhausted(applied: AppliedRecord) -> bool:
    """Whether the target's engine crashed so often while it worked on the table alone that it is the table's failure."""
    return applied.crashes > _CRASHES_ALONE_MAX


def crashed_too_often(error: TargetCrashedError, table: TableId) -> TableError:
    """What a table is shown with at which the target's engine crashed again and again."""
    return TableError(
        f"The target's engine crashed {_CRASHES_ALONE_MAX} times while it applied this table alone, also with smaller batches. "
        f"The last error: {error.message}",
        code="engine_crashed",
        table=str(table),
        action="Read the engine's log (for Spark, NAME.spark.log). Often it has too little memory for the table's values. "
        "To retry: replicator pause NAME, then replicator resume NAME.",
    )


def waited_too_long(error: TargetUnavailableError, name: str) -> TableError:
    """What becomes of an error of one table once it has been tried for as long as the retry budget allows."""
    return TableError(
        f"gave up after retry.give_up_after: {error.message}",
        code=error.code,
        table=error.table,
        action=f"Nothing is lost. To retry: replicator pause {name}, then replicator resume {name}.",
    )


def urgency(error: BaseException) -> int:
    """What is raised when several threads failed, lowest first: who lost the lease comes first, what passes by itself last."""
    if isinstance(error, FencedError):
        return 0
    if isinstance(error, FatalError):
        return 1
    return 3 if isinstance(error, TransientError) else 2
