"""The direct writer's state of a table: its newest version, by every action of its log.

The first state is read from the newest classic checkpoint and the JSON commits after it, later ones from the commits
that are new. Spark's own snapshot would do as well, but handing a hundred thousand files over to Python costs more than
reading them, and the columns of a checkpoint that are read here have been in the protocol from its beginning. Any other
form of checkpoint (V2, sidecars) is refused.

Only what this code understands may stand in a log: an action, a field of a file, or a domain that it does not know makes
the state refuse every batch (`LogState.unknown`), until a later state is read from its beginning.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.lane.vectors import Descriptor
from replicator_target_delta.log.files import Checkpoint, Commit, Listing, LogFiles
from replicator_target_delta.log.table import DamagedLogError
from replicator_target_delta.storage import Storage

_DERIVED: Final = ("stats_parsed", "partitionValues_parsed")
_ADD_FIELDS: Final = frozenset(
    {
        "path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags", "deletionVector",
        "clusteringProvider",
    }
)  # fmt: skip
_DOMAIN: Final = "delta.clustering"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of the newest version.

    A table may have a hundred thousand. Rarely used parts are packed: with its statistics an `add` action takes 8 KiB as Python's
    objects, and 1 KiB as compressed JSON.

    Attributes:
        path: The path as the log spells it.
        size: Bytes.
        rows: Number of rows, including those that are deleted.
        vector: Deletion vector.
        tags: Tags in the log.
    """

    path: str
    size: int
    rows: int
    vector: Descriptor | None
    tags: Mapping[str, str] | None
    _packed: bytes
    _bounds: dict[str, tuple[int, int] | None] = field(default_factory=dict, compare=False)

    @property
    def deleted(self) -> int:
        """Return the number of its deleted rows."""
        return 0 if self.vector is None else self.vector.cardinality

    @property
    def add(self) -> Mapping[str, Any]:
        """The file's `add` action."""
        action: Mapping[str, Any] = json.loads(zlib.decompress(self._packed))
        return action

    def bounds(self, name: str) -> tuple[int, int] | None:
        """The lowest and the highest value of a column, by the file's own name of it; None if they are not known, or no whole numbers."""
        if name not in self._bounds:
            stats = json.loads(self.add["stats"])
            lowest, highest = ((stats.get(bound) or {}).get(name) for bound in ("minValues", "maxValues"))
            known = (lowest, highest) if isinstance(lowest, int) and isinstance(highest, int) else None
            self._bounds[sys.intern(name)] = known
        return self._bounds[name]

    @classmethod
    def of(cls, add: Mapping[str, Any]) -> LiveFile:
        """Read an `add` action.

        Raises:
            EngineNeededError: It has a field that this code does not know, or lacks one that it needs.
        """
        given = {name: value for name, value in add.items() if value is not None and name not in _DERIVED}
        if unknown := given.keys() - _ADD_FIELDS:
            raise EngineNeededError(f"the log has files with {min(unknown)}")
        if given.get("partitionValues"):
            raise EngineNeededError("the table is partitioned")
        if ":" in given["path"] or given["path"].startswith("/"):
            raise EngineNeededError("the table has files outside of its folder")
        if not given.get("stats"):
            raise EngineNeededError("a file has no statistics")
        stats = json.loads(given["stats"])
        if not isinstance(stats.get("numRecords"), int):
            raise EngineNeededError("a file has no number of rows")
        vector = given.get("deletionVector")
        if vector is not None:
            given["deletionVector"] = {name: value for name, value in vector.items() if value is not None}
        return cls(
            path=given["path"],
            size=given["size"],
            rows=stats["numRecords"],
            vector=None if vector is None else Descriptor.of(given["deletionVector"]),
            tags=given.get("tags"),
            _packed=zlib.compress(json.dumps(given, separators=(",", ":")).encode(), level=1),
        )


@dataclass(slots=True, kw_only=True)
class LogState:
    """A version of a table. `unknown` is the first thing in its log that this code does not understand."""

    version: int = -1
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, LiveFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    unknown: str | None = None
    digest: bytes = b""
    """Digest of the newest commit's bytes: a log in which it differs was replaced."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    def play(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of one commit, or those of a checkpoint."""
        kinds = [(kind, value) for action in actions for kind, value in action.items()]
        # A file gets another vector by a `remove` and an `add`, in either order.
        for kind, value in sorted(kinds, key=lambda pair: pair[0] == "add"):
            match kind:
                case "add":
                    self._add(value)
                case "remove":
                    self._remove(value)
                case "metaData":
                    self.metadata = value
                case "protocol":
                    self.protocol = value
                case "txn":
                    self.transactions[value["appId"]] = value["version"]
                case "domainMetadata":
                    self._domain(value)
                case "commitInfo":
                    pass
                case _:
                    self._not_understood(f"the log has actions of the kind {kind}")

    def _add(self, add: Mapping[str, Any]) -> None:
        try:
            file = LiveFile.of(add)
        except EngineNeededError as error:
            self._not_understood(str(error))
            return
        known = self.files.get(file.path)
        if known is not None and _id(known.vector) != _id(file.vector):
            self._not_understood("a file has two deletion vectors")
        self.files[file.path] = file

    def _remove(self, remove: Mapping[str, Any]) -> None:
        known = self.files.get(remove["path"])
        vector = remove.get("deletionVector")
        if known is not None and _id(known.vector) == _id(None if vector is None else Descriptor.of(vector)):
            del self.files[remove["path"]]

    def _domain(self, domain: Mapping[str, Any]) -> None:
        if domain["domain"].startswith("delta.") and domain["domain"] != _DOMAIN:
            self._not_understood(f"the log has the domain {domain['domain']}")

    def _not_understood(self, what: str) -> None:
        if self.unknown is None:
            self.unknown = what


class DeltaLakeLogReader:
    """Keeps the state of one table's log up to date.

    Args:
        storage: File system of the target.
        table: The table's path.
    """

    def __init__(self, storage: Storage, table: str) -> None:
        self._files = LogFiles(storage, table)
        self.state = LogState()

    def refresh(self) -> LogState:
        """Read the new commits; everything, if the log is not the one that was read before.

        Raises:
            EngineNeededError: There is no log that this code understands.
            DamagedLogError: A commit is unreadable.
        """
        if self.state.version >= 0 and self._is_same():
            self._follow()
        else:
            try:
                self._begin()
            except EngineNeededError:
                self.state = LogState()
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.state = LogState()
                raise EngineNeededError("the log cannot be read") from error
        return self.state

    def commit(self, version: int) -> Commit | None:
        """A version's commit; None if there is none."""
        return self._files.find(version)

    def accept(self, lines: Iterable[str], written: Commit) -> None:
        """Continue after the next version, which was written with these lines and reads as `written`."""
        self.state.play(json.loads(line) for line in lines)
        self.state.version += 1
        self.state.digest = written.digest

    def _is_same(self) -> bool:
        found = self.commit(self.state.version)
        return found is not None and found.digest == self.state.digest

    def _begin(self) -> None:
        self.state = LogState()
        listing = self._files.listing()
        if not listing.commits:
            raise EngineNeededError("there is no Delta log with JSON commits")
        checkpoint, newest = newest_checkpoint(listing), max(listing.commits)
        if checkpoint.version > newest:
            raise EngineNeededError("the newest version is a checkpoint")
        if checkpoint.version < 0 and 0 not in listing.commits:
            raise EngineNeededError("the log has no checkpoint that can be read")
        # Also kinds that this code does not know: `play` refuses them, if there is one.
        self.state.play(self._files.checkpoint(checkpoint, without=("remove",)))
        self.state.version = checkpoint.version
        self._follow()
        if self.state.version < newest:
            raise EngineNeededError(f"the log lacks version {self.state.version + 1}")
        if not self.state.digest:
            found = self.commit(self.state.version)
            self.state.digest = b"" if found is None else found.digest

    def _follow(self) -> None:
        for found in self._files.since(self.state.version + 1):
            try:
                self.state.play(found.actions())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.state = LogState()
                if isinstance(error, ValueError):
                    raise DamagedLogError.of_commit(self._files.folder, found.version, error) from error
                raise EngineNeededError(f"version {found.version} of the log cannot be read") from error
            self.state.version = found.version
            self.state.digest = found.digest


def newest_checkpoint(listing: Listing) -> Checkpoint:
    """Return the newest checkpoint, of version -1 if there is none.

    Raises:
        EngineNeededError: It has a form that this code does not read.
    """
    version = max(listing.checkpoints, default=-1)
    newest = listing.checkpoints.get(version, Checkpoint(-1, ()))
    if listing.unknown > version or not newest.is_classic:
        raise EngineNeededError("the log has a checkpoint in a form that is not read")
    return newest


def _id(vector: Descriptor | None) -> tuple[str, str, int | None] | None:
    return None if vector is None else vector.id
