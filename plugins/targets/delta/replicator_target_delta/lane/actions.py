"""The actions of a commit, as Delta 4.4 writes those of a MERGE. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from replicator.model.merged import Merged
from replicator_target_delta.lane.log import LiveFile
from replicator_target_delta.lane.stats import loosened
from replicator_target_delta.lane.vectors import Descriptor
from replicator_target_delta.log import history

_ENGINE: Final = "Replicator"

Action = Mapping[str, Any]


def commit_info(
    *, counts: Merged, is_append: bool, is_counted: bool, read_version: int, identity: str, now_ms: int, took_ms: int
) -> Action:
    """The `commitInfo` of a batch.

    Args:
        counts: Counts of changed rows.
        is_append: It only added rows, and looked at none.
        is_counted: Report the rows that it expected and did not find.
        read_version: The version that the commit was prepared on.
        identity: Unique: by it a writer finds out whether the commit is its own.
        now_ms: The time.
        took_ms: Duration of the batch until now.
    """
    written = counts.matched + counts.inserted
    if is_append:
        metrics = {"numFiles": 1, "numOutputRows": written, "executionTimeMs": took_ms}
        parameters = {"mode": "Append", "partitionBy": "[]"}
    else:
        metrics = {
            "numTargetRowsInserted": counts.inserted,
            "numTargetRowsUpdated": counts.matched,
            "numTargetRowsDeleted": counts.deleted,
            "numOutputRows": written,
            "executionTimeMs": took_ms,
        }
        parameters = {"predicate": "[]", "matchedPredicates": "[]", "notMatchedPredicates": "[]"}
    note = {"userMetadata": history.note(not_found=counts.not_found)} if is_counted else {}
    return {
        "commitInfo": {
            "timestamp": now_ms,
            **note,
            "operation": "WRITE" if is_append else "MERGE",
            "operationParameters": parameters,
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            "isBlindAppend": is_append,
            "operationMetrics": {name: str(value) for name, value in metrics.items()},
            "engineInfo": _ENGINE,
            "txnId": identity,
        }
    }


def clear_info(*, deleted: int, read_version: int, identity: str, now_ms: int) -> Action:
    """The `commitInfo` of rows that were deleted, as that of a DELETE."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "DELETE",
            "operationParameters": {"predicate": "[]"},
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "operationMetrics": {"numDeletedRows": str(deleted)},
            "engineInfo": _ENGINE,
            "txnId": identity,
        }
    }


def rewrite_info(*, read_version: int, identity: str, now_ms: int) -> Action:
    """The `commitInfo` of files that were rewritten without changing a row."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]", "auto": "false"},
            "readVersion": read_version,
            "isolationLevel": "SnapshotIsolation",
            "isBlindAppend": False,
            "operationMetrics": {},
            "engineInfo": _ENGINE,
            "txnId": identity,
        }
    }


def transaction(ledger: str, version: int, now_ms: int) -> Action:
    """The ledger's new entry."""
    return {"txn": {"appId": ledger, "version": version, "lastUpdated": now_ms}}


def removal(file: LiveFile, now_ms: int, *, changes_data: bool = True) -> Action:
    """The `remove` of a file, with the deletion vector that it had."""
    vector = {} if file.vector is None else {"deletionVector": file.vector.to_json()}
    tags = {"tags": file.tags} if file.tags else {}
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": now_ms,
            "dataChange": changes_data,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
            **tags,
            **vector,
        }
    }


def with_vector(file: LiveFile, vector: Descriptor) -> Action:
    """The `add` of the same file, with fewer rows."""
    add = file.add
    return {
        "add": {
            **add,
            "dataChange": True,
            "stats": loosened(add["stats"]),
            "deletionVector": vector.to_json(),
        }
    }


def hidden(add: Action, vector: Descriptor) -> Action:
    """A new file's `add`, some of whose rows were deleted before it was committed."""
    return {**add, "stats": loosened(add["stats"]), "deletionVector": vector.to_json()}


def to_line(action: Action) -> str:
    """An action as a line of a commit."""
    return json.dumps(action, separators=(",", ":"), ensure_ascii=False)
