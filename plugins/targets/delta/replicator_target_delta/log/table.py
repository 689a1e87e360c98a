"""Reads a Delta log without Spark: the table's owner and its ledgers.

Implements the public protocol (JSON commits, Parquet checkpoints). Used where Spark is not at hand (`check`, `drop`) and
where a look at two small files is enough. Writing is the LogStore's alone, in Spark's JVM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator_target_delta.storage import Storage

UUID: Final = "replicator.uuid"
TABLE: Final = "replicator.table"
INCARNATION: Final = "replicator.incarnation"
SCHEMA: Final = "replicator.schema"
COLUMNS: Final = "replicator.columns"
STATE: Final = "replicator.state"
LIVE: Final = "live"
DROPPED: Final = "dropped"

_WANTED: Final = ("metaData", "protocol", "txn", "domainMetadata")
_OF_FILES: Final = ("add", "remove", "cdc", "commitInfo", "checkpointMetadata", "sidecar")
# Most lines name data files: they are not parsed.
_SKIPPED: Final = tuple(f'{{"{kind}":'.encode() for kind in _OF_FILES)

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.[0-9a-f-]{36}|\.\d{10}\.(?P<parts>\d{10}))?\.(parquet|json)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLog:
    """The newest version of a table, as far as we need it: all but its data files."""

    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    created: datetime
    protocol: Mapping[str, Any]
    unknown: frozenset[str]
    """Kinds of actions since the last checkpoint that the protocol did not have when this was written."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The `metaData` action of the log."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """The configuration of each metadata domain."""


class DamagedLogError(Exception):
    """A Delta log exists, and cannot be understood. The message says which, and why.

    `version` is that of an unreadable commit, for example one that was written in half.
    """

    def __init__(self, message: str, *, version: int | None = None) -> None:
        super().__init__(message)
        self.version = version

    @classmethod
    def of_commit(cls, folder: str, version: int, error: Exception) -> DamagedLogError:
        """The error for a commit that cannot be read."""
        why = str(error) if isinstance(error, ValueError) else type(error).__name__
        return cls(
            f"Version {version} of the Delta log cannot be read. Its file is {folder}/{version:020}.json: {why}.",
            version=version,
        )


class LostFilesError(Exception):
    """Files that the newest version needs are not there, or are cut off. The message names one, and how many."""


def read_log(storage: Storage, path: str, *, below: int | None = None, is_thorough: bool = False) -> TableLog | None:
    """Read the newest version of the table at `path`, or the newest below another; None if no Delta table is there.

    `is_thorough`: actions that name data files are parsed, too.

    Raises:
        DamagedLogError: There is a log, and it cannot be understood.
        OSError: It cannot be reached.
    """
    folder = f"{path}/_delta_log"
    try:
        return _read_log(storage, folder, below, is_thorough=is_thorough)
    except (ValueError, KeyError) as error:
        raise DamagedLogError(f"The Delta log in {folder} cannot be read: {error}.") from error


def readable_below(storage: Storage, path: str, error: DamagedLogError) -> tuple[TableLog | None, int]:
    """The newest version below the unreadable part of a log, None if there is none; and the lowest unreadable version.

    Raises:
        DamagedLogError: The log has another damage.
    """
    if error.version is None:
        raise error
    try:
        return read_log(storage, path, below=error.version), error.version
    except DamagedLogError as lower:
        return readable_below(storage, path, lower)


def checkpoints_of(names: Iterable[str]) -> Mapping[int, list[str]]:
    """The complete checkpoints among the files of a log: by version, the names of each."""
    parts_of: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := _CHECKPOINT.fullmatch(name):
            parts_of.setdefault((int(match[1]), int(match["parts"] or 1)), []).append(name)
    # One in several parts that lacks some is the remains of an attempt to write it.
    return {version: names for (version, parts), names in parts_of.items() if len(names) >= parts}


def _read_log(storage: Storage, folder: str, below: int | None, *, is_thorough: bool) -> TableLog | None:
    names = [name for name in storage.names(folder) if below is None or name < f"{below:020}"]
    commits = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
    checkpoints = checkpoints_of(names)
    if not commits and not checkpoints:
        return None
    newest = max([*commits, *checkpoints])
    found = _Found()
    # Newest first: the first of each kind that is met is the one that counts.
    for version in range(newest, -1, -1):
        if version in commits:
            found.add(_commit_actions(storage, folder, version, is_thorough=is_thorough))
        elif version not in checkpoints:
            raise ValueError(f"version {version} is missing")
        if version in checkpoints:
            found.add(_checkpoint_actions(storage, folder, checkpoints[version]))
            break
    if found.metadata is None:
        raise ValueError("it has no metadata")
    return TableLog(
        version=newest,
        properties=dict(found.metadata["configuration"]),
        transactions=found.transactions,
        created=datetime.fromtimestamp((found.metadata.get("createdTime") or 0) / 1000, UTC),
        protocol=found.protocol or {},
        unknown=frozenset(found.unknown),
        metadata=found.metadata,
        domains={name: text for name, text in found.domains.items() if text is not None},
    )


@dataclass(slots=True)
class _Found:
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str | None] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def add(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Take the facts from actions of an older version that no newer one has replaced."""
        for action in actions:
            self.metadata = self.metadata or action.get("metaData")
            self.protocol = self.protocol or action.get("protocol")
            if transaction := action.get("txn"):
                self.transactions.setdefault(transaction["appId"], transaction["version"])
            if domain := action.get("domainMetadata"):
                self.domains.setdefault(domain["domain"], None if domain["removed"] else domain["configuration"])
            self.unknown.update(action.keys() - {*_WANTED, *_OF_FILES})


def _commit_actions(storage: Storage, folder: str, version: int, *, is_thorough: bool) -> list[dict[str, Any]]:
    data = storage.read(f"{folder}/{version:020}.json")
    try:
        actions = _json_actions(data, is_thorough=is_thorough)
        _Found().add(actions)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedLogError.of_commit(folder, version, error) from error
    return actions


def _json_actions(data: bytes, *, is_thorough: bool = False) -> list[dict[str, Any]]:
    lines = [line for line in data.splitlines() if line.strip()]
    # Of a file that was written in half, the last line is the one that shows it.
    last = len(lines) - 1
    wanted = [line for n, line in enumerate(lines) if is_thorough or n == last or not line.startswith(_SKIPPED)]
    actions = [json.loads(line) for line in wanted]
    return [action for action in actions if action.keys().isdisjoint(_OF_FILES)]


def _checkpoint_actions(storage: Storage, folder: str, names: list[str]) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = []
    for name in names:
        try:
            actions += _actions_of_part(storage, f"{folder}/{name}")
        except (ValueError, KeyError) as error:
            raise ValueError(f"its checkpoint {name} is damaged: {error}") from error
    return actions


def _actions_of_part(storage: Storage, path: str) -> list[dict[str, Any]]:
    if path.endswith(".json"):
        return _json_actions(storage.read(path))
    actions: list[dict[str, Any]] = []
    with storage.open_input(path) as source:
        file = pq.ParquetFile(source)
        columns = [c for c in file.schema_arrow.names if c not in _OF_FILES]
        for batch in file.iter_batches(columns=columns):
            is_wanted = reduce(pc.or_, (pc.is_valid(column) for column in batch.columns))
            rows = batch.filter(is_wanted).to_pylist(maps_as_pydicts="strict")
            actions += [{kind: value for kind, value in row.items() if value is not None} for row in rows]
    return actions
