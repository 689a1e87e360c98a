"""Policy for a table's repeated errors, and the order in which errors of several threads end the loop. Pure."""

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
    """Return whether the target's engine crashed so often while it worked on the table alone that the table fails."""
    return applied.crashes > _CRASHES_ALONE_MAX


def crashed_too_often(error: TargetCrashedError, table: TableId) -> TableError:
    """Return the error of a table at which the target's engine crashed repeatedly."""
    return TableError(
        f"The target's engine crashed {_CRASHES_ALONE_MAX} times while it applied this table alone, also with smaller batches. "
        f"The last error: {error.message}",
        code="engine_crashed",
        table=str(table),
        action="Read the engine's log (for Spark, NAME.spark.log). Often it has too little memory for the table's values. "
        "To retry: replicator pause NAME, then replicator resume NAME.",
    )


def waited_too_long(error: TargetUnavailableError, name: str) -> TableError:
    """Return the error that fails a table once an attempt was repeated for as long as the retry budget allows."""
    return TableError(
        f"gave up after retry.give_up_after: {error.message}",
        code=error.code,
        table=error.table,
        action=f"Nothing is lost. To retry: replicator pause {name}, then replicator resume {name}.",
    )


def urgency(error: BaseException) -> int:
    """Rank an error when several threads failed, lowest first: a lost lease comes first, a transient error last."""
    if isinstance(error, FencedError):
        return 0
    if isinstance(error, FatalError):
        return 1
    return 3 if isinstance(error, TransientError) else 2
