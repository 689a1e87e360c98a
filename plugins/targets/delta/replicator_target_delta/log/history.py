"""Commits of a table's log: the counts of our merges, and changes of the data by others.

A commit is ours if it records one of our ledgers. Delta writes a merge's counts into its own commit (`operationMetrics`); further
counts are stored with them (`userMetadata`), so a crash after the commit loses neither. A commit of others counts if one of its files
changes data: OPTIMIZE, VACUUM and REORG do not. So does one that leaves other columns than those that we made (`mapping`). RESTORE
changes the data and keeps our ledgers, so it is never ours.

Commits are looked at once: `position` is the last version seen and the identity of its commit. Delta removes old commits from the log;
versions that it removed before they were seen are named, because their authors are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from replicator.model.merged import Merged
from replicator.plugins.target import Audit, TargetTable
from replicator_target_delta.log.files import Commit, LogFiles
from replicator_target_delta.log.mapping import conflict
from replicator_target_delta.log.table import DamagedLogError
from replicator_target_delta.storage import Storage

_FOREIGN: Final = frozenset({"RESTORE", "CLONE"})
_OURS: Final = "replicator"
_SWAPPED: Final = "swapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """The last version seen, -1 before there is a table; the identity of its commit, where the log still told; the counts up to it.

    `is_building`: it is one of the building's log (`building`).
    """

    version: int
    commit: str | None
    merged: Merged
    is_building: bool = False

    @classmethod
    def of(cls, text: str) -> _Position:
        found = json.loads(text)
        return cls(
            version=found["version"],
            commit=found["commit"],
            merged=Merged(**found["merged"]),
            is_building=found.get("is_building", False),
        )

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """One version: `ledgers` are the names of the ledgers that it records."""

    version: int
    info: Mapping[str, Any]
    ledgers: Sequence[str]
    changes_data: bool
    metadata: Mapping[str, Any] | None

    @property
    def id(self) -> str | None:
        return self.info.get("txnId")

    @property
    def changes_columns(self) -> bool:
        """Return whether it leaves columns that are not those which Replicator made."""
        return self.metadata is not None and conflict(self.metadata) is not None

    @property
    def swapped(self) -> int | None:
        """The incarnation that it lets readers see; None if it does something else."""
        number: int | None = self._noted.get(_SWAPPED)
        return number

    @property
    def _noted(self) -> Mapping[str, Any]:
        try:
            noted: Mapping[str, Any] = json.loads(self.info.get("userMetadata") or "{}").get(_OURS, {})
        except (ValueError, AttributeError):
            return {}  # somebody else's
        return noted

    def is_of(self, uuid: str) -> bool:
        """Return whether a replicator made it."""
        ours = any(name.startswith(f"{uuid}/") for name in self.ledgers)
        return ours and self.info.get("operation") not in _FOREIGN

    def counts(self) -> Merged:
        """The counts of a batch of ours."""
        metrics, own = self.info.get("operationMetrics") or {}, self._noted
        match self.info.get("operation"):
            case "MERGE":
                deleted = int(metrics.get("numTargetRowsDeleted", 0))
                return Merged(
                    matched=int(metrics.get("numTargetRowsUpdated", 0)),
                    inserted=int(metrics.get("numTargetRowsInserted", 0)),
                    deleted=deleted,
                    not_found=own.get("not_found", 0) + max(0, own.get("removals", deleted) - deleted),
                )
            case "WRITE":
                return Merged(inserted=int(metrics.get("numOutputRows", 0)))
            case _:
                return Merged()


def note(*, not_found: int = 0, removals: int | None = None) -> str:
    """The `userMetadata` of a merge's commit: counts in addition to Delta's.

    Args:
        not_found: Rows that were expected and are not there.
        removals: Rows that were to be removed from a table without a key.
    """
    return json.dumps({_OURS: {"not_found": not_found} | ({} if removals is None else {"removals": removals})})


def swap_note(incarnation: int) -> str:
    """The `userMetadata` of the commit that lets readers see an incarnation."""
    return json.dumps({_OURS: {_SWAPPED: incarnation}})


def audit(storage: Storage, path: str, table: TargetTable, since: str | None, *, is_building: bool = False) -> Audit:
    """See `DeltaTarget.audit`. Costs a read of the last commit seen and of each one since.

    Args:
        storage: File system of the target.
        path: The table's path, or that of its building.
        table: The table.
        since: The last position.
        is_building: Readers do not see the incarnation yet.

    Raises:
        DamagedLogError: A commit cannot be understood.
    """
    files = LogFiles(storage, path)
    if since is None:
        return _audit(replace(_begin(files), is_building=is_building), [])
    position = _Position.of(since)
    if position.is_building != is_building:
        position = _elsewhere(files, table, position)
    last = _read(files, position.version)
    if last is None:
        newest = files.listing().newest
        if newest < position.version:
            what = (
                f"its log was set back from version {position.version} to {newest}"
                if newest >= 0
                else "its log was removed"
            )
            begun = _begin(files)
            return _audit(replace(begun, merged=position.merged, is_building=is_building), [what])
    others = []
    if last is not None and position.commit not in {None, last.id}:
        others.append(f"version {position.version} was replaced")
    unseen = None
    first = position.version + 1 if last is not None else _oldest_after(files, position.version)
    if first > position.version + 1:
        unseen = _named(position.version + 1, first - 1)
        position = replace(position, version=first - 1, commit=None)
    for commit in (_commit(files, found) for found in files.since(first)):
        if commit.is_of(table.uuid):
            counted = commit.counts() if table.ledger_name in commit.ledgers else Merged()
            position = replace(position, version=commit.version, commit=commit.id, merged=position.merged + counted)
            continue
        if commit.changes_data or commit.changes_columns:
            others.append(f"version {commit.version}: {commit.info.get('operation', 'unknown operation')}")
        position = replace(position, version=commit.version, commit=commit.id)
    return _audit(position, others, unseen)


def _audit(position: _Position, others: Sequence[str], unseen: str | None = None) -> Audit:
    return Audit(position=position.to_text(), merged=position.merged, changed_by_others=others, unseen=unseen)


def _begin(files: LogFiles) -> _Position:
    newest = files.listing().newest
    commit = _read(files, newest)
    return _Position(version=newest, commit=None if commit is None else commit.id, merged=Merged())


def _elsewhere(files: LogFiles, table: TargetTable, position: _Position) -> _Position:
    """The position to continue from in another log: the version that let readers see the incarnation, or the newest if none tells."""
    version = files.listing().newest
    while position.is_building and (commit := _read(files, version)) is not None:
        if commit.swapped == table.incarnation:
            return _Position(version=version, commit=commit.id, merged=position.merged)
        version -= 1
    return replace(_begin(files), merged=position.merged, is_building=not position.is_building)


def _oldest_after(files: LogFiles, version: int) -> int:
    """The oldest version after another whose commit the log still has; the next future one if it has none."""
    listing = files.listing()
    return min((v for v in listing.commits if v > version), default=max(version, listing.newest) + 1)


def _named(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _read(files: LogFiles, version: int) -> _Commit | None:
    found = files.find(version)
    return None if found is None else _commit(files, found)


def _commit(files: LogFiles, found: Commit) -> _Commit:
    try:
        facts = found.facts()
        return _Commit(
            version=found.version,
            info=found.info(),
            ledgers=[action["txn"]["appId"] for action in facts if "txn" in action],
            changes_data=found.changes_data(),
            metadata=next((action["metaData"] for action in facts if "metaData" in action), None),
        )
    except (ValueError, KeyError) as error:
        raise DamagedLogError.of_commit(files.folder, found.version, error) from error
