"""The direct writer's state of a table: its newest version, by every action of its log.

The first state is read from the newest classic checkpoint and the JSON commits after it, later ones from the commits
that are new. Spark's own snapshot would do as well, but handing a hundred thousand files over to Python costs more than
reading them, and the columns of a checkpoint that are read here have been in the protocol from its beginning. Any other
form of checkpoint (V2, sidecars) is refused.

Only what this code understands may stand in a log: an action, a field of a file, or a domain that it does not know makes
the state refuse every batch (`LogState.unknown`), until a later state is read from its beginning.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.parquet as pq

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.lane.vectors import Descriptor
from replicator_target_delta.log.table import DamagedLogError
from replicator_target_delta.storage import Storage

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(?P<parts>\d{10}))?\.parquet")
_OTHER_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*")
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
        self._storage = storage
        self._folder = f"{table}/_delta_log"
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

    def commit(self, version: int) -> bytes | None:
        """The bytes of a version's commit; None if there is none."""
        try:
            return self._storage.read(f"{self._folder}/{version:020}.json")
        except FileNotFoundError:
            return None

    def accept(self, lines: Iterable[str], data: bytes) -> None:
        """Continue after the next version, which was written with these lines and reads as `data`."""
        self.state.play(json.loads(line) for line in lines)
        self.state.version += 1
        self.state.digest = _digest(data)

    def _is_same(self) -> bool:
        data = self.commit(self.state.version)
        return data is not None and _digest(data) == self.state.digest

    def _begin(self) -> None:
        self.state = LogState()
        names = self._storage.names(self._folder)
        commits = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
        if not commits:
            raise EngineNeededError("there is no Delta log with JSON commits")
        start, files = newest_checkpoint(names)
        if start > max(commits):
            raise EngineNeededError("the newest version is a checkpoint")
        if start < 0 and 0 not in commits:
            raise EngineNeededError("the log has no checkpoint that can be read")
        self.state.play(checkpoint_actions(self._storage, [f"{self._folder}/{name}" for name in files]))
        self.state.version = start
        self._follow()
        if self.state.version < max(commits):
            raise EngineNeededError(f"the log lacks version {self.state.version + 1}")
        if not self.state.digest:
            self.state.digest = _digest(self.commit(self.state.version) or b"")

    def _follow(self) -> None:
        while (data := self.commit(self.state.version + 1)) is not None:
            try:
                self.state.play([json.loads(line) for line in data.splitlines() if line.strip()])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                version = self.state.version + 1
                self.state = LogState()
                if isinstance(error, ValueError):
                    raise DamagedLogError.of_commit(self._folder, version, error) from error
                raise EngineNeededError(f"version {version} of the log cannot be read") from error
            self.state.version += 1
            self.state.digest = _digest(data)


def newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The version of the newest complete checkpoint and its files; -1 if there is none.

    Raises:
        EngineNeededError: A newer one has a form that this code does not read.
    """
    parts: dict[tuple[int, int], list[str]] = {}
    newest_other = -1
    for name in names:
        if match := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(match[1]), int(match["parts"] or 1)), []).append(name)
        elif match := _OTHER_CHECKPOINT.fullmatch(name):
            newest_other = max(newest_other, int(match[1]))
    complete = {key: found for key, found in parts.items() if len(found) == key[1]}
    version, count = max(complete, default=(-1, 0))
    if newest_other > version:
        raise EngineNeededError("the log has a checkpoint in a form that is not read")
    return version, sorted(complete.get((version, count), []))


def checkpoint_actions(
    storage: Storage, paths: Iterable[str], wanted: Sequence[str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """The actions of a checkpoint, with these kinds of them or fields of these; without `wanted` everything but removed files."""
    for path in paths:
        with storage.open_input(path) as source:
            file = pq.ParquetFile(source)
            # Also kinds that this code does not know: `play` refuses them, if there is one.
            columns = wanted or [name for name in file.schema_arrow.names if name != "remove"]
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    # Every action has a column; all others are null.
                    yield {kind: value for kind, value in row.items() if value is not None}


def _id(vector: Descriptor | None) -> tuple[str, str, int | None] | None:
    return None if vector is None else vector.id


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
