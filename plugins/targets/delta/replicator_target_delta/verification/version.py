"""An older version of a table, for readers: its data files, and their deleted rows. Without Spark.

A reader of Delta needs to know less than a writer: features that are not among the table's reader features do not concern it.

Source: Delta's PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import TargetTable
from replicator_target_delta.errors import not_readable
from replicator_target_delta.lane.known import WIDENING
from replicator_target_delta.lane.log import newest_checkpoint
from replicator_target_delta.lane.vectors import Descriptor
from replicator_target_delta.ledger import Entry
from replicator_target_delta.log.files import Commit, LogFiles
from replicator_target_delta.log.mapping import MAPPING_MODE, PHYSICAL, fields_of
from replicator_target_delta.log.table import read_log
from replicator_target_delta.storage import Storage

_READER_VERSION: Final = 3
_FEATURES: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", WIDENING, f"{WIDENING}-preview", "vacuumProtocolCheck"}
)
_WANTED: Final = ("add.path", "add.partitionValues", "add.deletionVector", "metaData", "protocol")


@dataclass(slots=True, kw_only=True)
class Version:
    """A version of a table.

    Attributes:
        files: Data files, by path and deletion vector, as the log identifies them.
    """

    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: dict[tuple[str, Any], Descriptor | None] = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """The table's columns, as the log has them."""
        return fields_of(self.metadata)

    @property
    def physical(self) -> Mapping[str, str]:
        """Name of each column in data files."""
        is_mapped = self.properties.get(MAPPING_MODE, "none") != "none"
        return {f["name"]: f["metadata"][PHYSICAL] if is_mapped else f["name"] for f in self.fields}

    def vectors(self) -> Mapping[str, Descriptor | None]:
        """Deletion vector of each file, by its path below the table's.

        Raises:
            EngineNeededError: The table has something that only Spark understands.
        """
        self._check()
        found = {unquote(path): vector for (path, _), vector in self.files.items()}
        if len(found) < len(self.files):
            raise EngineNeededError("a file has two deletion vectors")
        if outside := [path for path in found if ":" in path or path.startswith("/")]:
            raise EngineNeededError(f"its file {outside[0]} stands outside of its folder")
        return found

    def play(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of one commit, or those of a checkpoint."""
        kinds = [(kind, value) for action in actions for kind, value in action.items()]
        # A file gets another vector by a `remove` and an `add`, in either order.
        for kind, value in sorted(kinds, key=lambda pair: pair[0] == "add"):
            if kind in ("add", "remove"):
                given = value.get("deletionVector")
                vector = None if given is None else Descriptor.of(given)
                key = (value["path"], None if vector is None else vector.id)
                if kind == "remove":
                    self.files.pop(key, None)
                else:
                    self.files[key] = vector
            elif kind == "metaData":
                self.metadata = value
            elif kind == "protocol":
                self.protocol = value

    def _check(self) -> None:
        if self.protocol["minReaderVersion"] > _READER_VERSION:
            raise EngineNeededError(f"the table has the reader version {self.protocol['minReaderVersion']}")
        if unknown := set(self.protocol.get("readerFeatures") or ()) - _FEATURES:
            raise EngineNeededError(f"the table has the feature {min(unknown)}")
        if self.metadata.get("partitionColumns"):
            raise EngineNeededError("the table is partitioned")


def number_at(storage: Storage, path: str, table: TargetTable, at: int) -> int:
    """The newest version whose ledger is at `at` or below: each change of ours has its ledger in the same commit.

    Raises:
        TableError: `state_not_readable`.
    """
    log, files = read_log(storage, path), LogFiles(storage, path)
    own = None if log is None else Entry.of(log.transactions.get(table.ledger_name))
    if log is None or own is None:
        raise not_readable(table, "The target has no ledger of this table")
    if own.last <= at:
        return log.version
    beyond = log.version + 1
    for number in range(log.version, -1, -1):
        try:
            last = _recorded(files.read(number), table.ledger_name)
        except FileNotFoundError as error:
            raise not_readable(table, "Its version is no longer in the table's log") from error
        if last is not None:
            if last <= at:
                return beyond - 1
            beyond = number
    raise not_readable(table, "The table did not exist then")


def read_version(storage: Storage, path: str, number: int) -> Version:
    """Read a version of the table at `path`.

    Raises:
        EngineNeededError: The log does not have it any more, or it has a form that is not read here.
    """
    files, version = LogFiles(storage, path), Version()
    start = newest_checkpoint(files.listing(below=number + 1))
    try:
        version.play(files.checkpoint(start, wanted=_WANTED))
        for later in range(start.version + 1, number + 1):
            version.play(files.read(later).actions())
    except FileNotFoundError as error:
        raise EngineNeededError(f"the log does not have version {number} any more") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineNeededError("the log cannot be read") from error
    return version


def _recorded(commit: Commit, ledger: str) -> int | None:
    """The number in a commit's ledger entry; None if the ledger did not move."""
    for transaction in (action["txn"] for action in commit.facts() if "txn" in action):
        if transaction["appId"] == ledger:
            entry = Entry.of(transaction["version"])
            return None if entry is None else entry.last
    return None
