"""The newest version of a table without its data files: its owner and its ledgers, read without Spark.

Used where Spark is not at hand (`check`, `drop`) and where a look at two small files is enough. Writing is the LogStore's alone,
in Spark's JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from replicator_target_delta.log.files import OF_FILES, Action, LogFiles, commit_name
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
            f"Version {version} of the Delta log cannot be read. Its file is {folder}/{commit_name(version)}: {why}.",
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
    files = LogFiles(storage, path)
    try:
        return _read_log(files, below, is_thorough=is_thorough)
    except (ValueError, KeyError) as error:
        raise DamagedLogError(f"The Delta log in {files.folder} cannot be read: {error}.") from error


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


def _read_log(files: LogFiles, below: int | None, *, is_thorough: bool) -> TableLog | None:
    listing = files.listing(below=below)
    found = _Found()
    # Newest first: the first of each kind that is met is the one that counts.
    for version in range(listing.newest, -1, -1):
        if version in listing.commits:
            found.add(_facts(files, version, is_thorough=is_thorough))
        elif version not in listing.checkpoints:
            raise ValueError(f"version {version} is missing")
        if version in listing.checkpoints:
            found.add(files.checkpoint(listing.checkpoints[version], without=OF_FILES))
            break
    else:
        if listing.newest < 0:
            return None
    if found.metadata is None:
        raise ValueError("it has no metadata")
    return TableLog(
        version=listing.newest,
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
            self.unknown.update(action.keys() - {*_WANTED, *OF_FILES})


def _facts(files: LogFiles, version: int, *, is_thorough: bool) -> Sequence[Action]:
    commit = files.read(version)
    try:
        actions = commit.facts(is_thorough=is_thorough)
        _Found().add(actions)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedLogError.of_commit(files.folder, version, error) from error
    return actions
