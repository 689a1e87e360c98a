"""Reads a Delta log without Spark: whose the table is, and its ledgers.

Follows the public protocol (JSON commits, Parquet checkpoints). Used where Spark is not at hand (`check`, `drop`) and
where a look at two small files is enough. Writing is Spark's alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.parquet as pq

from replicator_target_delta.storage import Storage

UUID: Final = "replicator.uuid"
TABLE: Final = "replicator.table"
INCARNATION: Final = "replicator.incarnation"
SCHEMA: Final = "replicator.schema"
STATE: Final = "replicator.state"
LIVE: Final = "live"
DROPPED: Final = "dropped"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.[0-9a-f-]{36}|\.\d{10}\.(?P<parts>\d{10}))?\.(parquet|json)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLog:
    """The newest version of a table, as far as we need it: its properties, and its transaction identifiers."""

    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    created: datetime


class DamagedLogError(Exception):
    """There is a Delta log, and it cannot be understood. The message says which, and why."""


def read_log(storage: Storage, path: str) -> TableLog | None:
    """Read the newest version of the table at `path`; None if no Delta table is there.

    Raises:
        DamagedLogError: There is a log, and it cannot be understood.
        OSError: It cannot be reached.
    """
    folder = f"{path}/_delta_log"
    try:
        return _read_log(storage, folder)
    except (ValueError, KeyError) as error:
        raise DamagedLogError(f"The Delta log in {folder} cannot be read: {error}.") from error


def _read_log(storage: Storage, folder: str) -> TableLog | None:
    commits: dict[int, str] = {}
    found: dict[tuple[int, int], list[str]] = {}
    for name in storage.names(folder):
        if match := _COMMIT.fullmatch(name):
            commits[int(match[1])] = name
        elif match := _CHECKPOINT.fullmatch(name):
            found.setdefault((int(match[1]), int(match["parts"] or 1)), []).append(name)
    # One in several parts that lacks some is the remains of an attempt to write it.
    checkpoints = {version: names for (version, parts), names in found.items() if len(names) >= parts}
    if not commits and not checkpoints:
        return None
    newest = max([*commits, *checkpoints])
    metadata: Mapping[str, Any] | None = None
    transactions: dict[str, int] = {}
    # Newest first: the first of each kind that is met is the one that counts.
    for version in range(newest, -1, -1):
        from_checkpoint = version not in commits
        if from_checkpoint and version not in checkpoints:
            raise ValueError(f"version {version} is missing")
        actions = (
            _checkpoint_actions(storage, folder, checkpoints[version])
            if from_checkpoint
            else _json_actions(storage.read(f"{folder}/{commits[version]}"))
        )
        metadata = _gather(actions, metadata, transactions)
        if not from_checkpoint and version in checkpoints:
            metadata = _gather(_checkpoint_actions(storage, folder, checkpoints[version]), metadata, transactions)
        if version in checkpoints:
            break
    if metadata is None:
        raise ValueError("it has no metadata")
    created = datetime.fromtimestamp((metadata.get("createdTime") or 0) / 1000, UTC)
    return TableLog(
        version=newest, properties=dict(metadata["configuration"]), transactions=transactions, created=created
    )


def _gather(
    actions: list[dict[str, Any]], metadata: Mapping[str, Any] | None, transactions: dict[str, int]
) -> Mapping[str, Any] | None:
    for action in actions:
        metadata = metadata or action.get("metaData")
        if transaction := action.get("txn"):
            transactions.setdefault(transaction["appId"], transaction["version"])
    return metadata


def _json_actions(data: bytes) -> list[dict[str, Any]]:
    # Most lines name data files and are of no interest here.
    wanted = (b'{"metaData"', b'{"txn"')
    return [json.loads(line) for line in data.splitlines() if line.startswith(wanted)]


def _checkpoint_actions(storage: Storage, folder: str, names: list[str]) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = []
    for name in names:
        if name.endswith(".json"):
            actions += _json_actions(storage.read(f"{folder}/{name}"))
            continue
        with storage.open_input(f"{folder}/{name}") as source:
            file = pq.ParquetFile(source)
            columns = [c for c in ("metaData", "txn") if c in file.schema_arrow.names]
            for batch in file.iter_batches(columns=columns):
                actions += [row for row in batch.to_pylist(maps_as_pydicts="strict") if any(row.values())]
    return actions
