"""Messages between supervisor and workers: lines of text down the worker's stdin, lines of JSON up its stdout."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from typing import Any, Final

from replicator.model import errors
from replicator.model.errors import ReplicatorError, in_full
from replicator.model.isolation import is_exhausted
from replicator.runtime.exhausted import machine_exhausted

STOP: Final = "stop"
SEALED: Final = "sealed"
PROGRESS: Final = "progress"
ERROR: Final = "error"
FINISHED: Final = "finished"

_ERROR_CLASSES: Final = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, ReplicatorError)
}


def stamp(epoch: int) -> tuple[int, float]:
    """`Report.stamp` of a report made now."""
    return epoch, time.monotonic()


def encode(event: str, fields: Mapping[str, Any]) -> str:
    """Return one line for the supervisor."""
    return json.dumps({"event": event, **fields}, default=str)


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return the fields of an `error` line. Of an unknown exception only class and traceback are sent: its text may hold values."""
    if is_exhausted(error):
        error = machine_exhausted(error)
    if isinstance(error, ReplicatorError):
        kind, error = type(error).__name__, in_full(error)
        return {
            "kind": kind,
            "message": error.message,
            "code": error.code,
            "table": error.table,
            "action": error.action,
        }
    frames = "".join(traceback.format_tb(error.__traceback__)[-6:])
    return {
        "kind": "ReplicatorError",
        "message": f"Unexpected {type(error).__name__}: this is a bug. {_last_line(error)}",
        "code": "internal_error",
        "table": None,
        "action": "Please report it with the log.",
        "traceback": frames,
    }


def decode_error(fields: Mapping[str, Any]) -> ReplicatorError:
    """The error that a worker reported."""
    kind = _ERROR_CLASSES.get(str(fields.get("kind")), ReplicatorError)
    return kind(
        str(fields.get("message")), code=str(fields.get("code")), table=fields.get("table"), action=fields.get("action")
    )


def as_ours(error: BaseException) -> ReplicatorError:
    """Return the error itself if it is one of ours, else an `internal_error` instead."""
    return error if isinstance(error, ReplicatorError) else decode_error(encode_error(error))


def _last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"(at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
