"""The files of a table's log, and the only code that reads them: commits as JSON lines, checkpoints as Parquet.

What their actions mean is told by the readers' own modules: the owner and the ledgers (`log/table.py`), what others changed
(`log/history.py`), the data files of the newest version (`lane/log.py`) or of an older one (`verification/version.py`).

Source: Delta's PROTOCOL.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator_target_delta.storage import Storage

Action = Mapping[str, Any]

OF_FILES: Final = ("add", "remove", "cdc", "commitInfo", "checkpointMetadata", "sidecar")
"""Kinds of actions that say nothing about the table itself."""
# Most lines name data files: they are not parsed where nobody asks for them.
_SKIPPED: Final = tuple(f'{{"{kind}":'.encode() for kind in OF_FILES)
_CHANGES: Final = (b'{"add"', b'{"remove"', b'{"cdc"')
_INFO: Final = b'{"commitInfo"'

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CLASSIC: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(?P<parts>\d{10}))?\.parquet")
_V2: Final = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:parquet|json)")
_ANY: Final = re.compile(r"(\d{20})\.checkpoint\..*")
_HINT: Final = "_last_checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: the names of its files. `is_classic`: every action is in them, each kind in a column."""

    version: int
    names: Sequence[str]
    is_classic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a log, by version. `unknown`: the newest version of a checkpoint in a form that is not read; -1 if there is none."""

    commits: frozenset[int]
    checkpoints: Mapping[int, Checkpoint]
    unknown: int

    @property
    def newest(self) -> int:
        """The newest version, -1 if there is none."""
        return max([-1, *self.commits, *self.checkpoints])


@dataclass(frozen=True, slots=True)
class Commit:
    """One version's commit. What cannot be parsed raises ValueError."""

    version: int
    data: bytes

    def actions(self) -> list[Action]:
        """Return all actions."""
        return [json.loads(line) for line in self._lines()]

    def facts(self, *, is_thorough: bool = False) -> list[Action]:
        """Return the actions about the table itself. `is_thorough`: the others are parsed, too."""
        lines = self._lines()
        # Of a file that was written in half, the last line is the one that shows it.
        last = len(lines) - 1
        wanted = [line for n, line in enumerate(lines) if is_thorough or n == last or not line.startswith(_SKIPPED)]
        actions: list[Action] = [json.loads(line) for line in wanted]
        return [action for action in actions if action.keys().isdisjoint(OF_FILES)]

    def changes_data(self) -> bool:
        """Return whether one of its files changes data."""
        lines = (line for line in self._lines() if line.startswith(_CHANGES))
        return any(change.get("dataChange", True) for line in lines for change in json.loads(line).values())

    def info(self) -> Mapping[str, Any]:
        """Return its `commitInfo`; empty if it has none."""
        for line in self._lines():
            if line.startswith(_INFO):
                info: Mapping[str, Any] = json.loads(line)["commitInfo"]
                return info
        return {}

    @property
    def identity(self) -> str | None:
        """The id of the transaction that made it; None if it has none."""
        return self.info().get("txnId")

    @property
    def digest(self) -> bytes:
        """A digest of its bytes."""
        return hashlib.blake2b(self.data, digest_size=16).digest()

    def _lines(self) -> list[bytes]:
        return [line for line in self.data.splitlines() if line.strip()]


class LogFiles:
    """The log of the table at a path.

    Args:
        storage: File system of the target.
        table: The table's path.
    """

    def __init__(self, storage: Storage, table: str) -> None:
        self.folder = f"{table}/_delta_log"
        self._storage = storage

    def listing(self, *, below: int | None = None) -> Listing:
        """Return the versions that the log has, or those of them below another."""
        names = [name for name in self._storage.names(self.folder) if below is None or name < f"{below:020}"]
        parts_of: dict[tuple[int, int], list[str]] = {}
        found: dict[int, Checkpoint] = {}
        unknown = -1
        for name in names:
            if match := _CLASSIC.fullmatch(name):
                parts_of.setdefault((int(match[1]), int(match["parts"] or 1)), []).append(name)
            elif match := _V2.fullmatch(name):
                found[int(match[1])] = Checkpoint(int(match[1]), [name], is_classic=False)
            elif match := _ANY.fullmatch(name):
                unknown = max(unknown, int(match[1]))
        for (version, parts), some in sorted(parts_of.items()):
            # One in several parts that lacks some is the remains of an attempt to write it.
            if len(some) == parts:
                found[version] = Checkpoint(version, sorted(some))
        commits = frozenset(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))
        return Listing(commits=commits, checkpoints=found, unknown=unknown)

    def read(self, version: int) -> Commit:
        """Read a version's commit. Raises FileNotFoundError if there is none."""
        return Commit(version, self._storage.read(f"{self.folder}/{commit_name(version)}"))

    def find(self, version: int) -> Commit | None:
        """Return a version's commit; None if there is none."""
        try:
            return self.read(version) if version >= 0 else None
        except FileNotFoundError:
            return None

    def since(self, version: int) -> Iterator[Commit]:
        """Yield the commits from a version on, up to the newest."""
        while (commit := self.find(version)) is not None:
            yield commit
            version += 1

    def checkpoint(
        self, checkpoint: Checkpoint, *, wanted: Sequence[str] | None = None, without: Sequence[str] = ()
    ) -> Iterator[Action]:
        """Yield the actions of a checkpoint.

        Args:
            checkpoint: One of the log's.
            wanted: Kinds of actions, or fields of them (`add.path`); None: all kinds.
            without: Kinds of actions that are left out.

        Raises:
            ValueError: It is damaged.
        """
        for name in checkpoint.names:
            try:
                if name.endswith(".json"):
                    yield from Commit(checkpoint.version, self._storage.read(f"{self.folder}/{name}")).facts()
                else:
                    yield from self._rows(name, wanted, without)
            except (ValueError, KeyError) as error:
                raise ValueError(f"its checkpoint {name} is damaged: {error}") from error

    def _rows(self, name: str, wanted: Sequence[str] | None, without: Sequence[str]) -> Iterator[Action]:
        with self._storage.open_input(f"{self.folder}/{name}") as source:
            file = pq.ParquetFile(source)
            columns = wanted or [kind for kind in file.schema_arrow.names if kind not in without]
            for batch in file.iter_batches(columns=columns):
                # Every action has a column; all others are null.
                is_wanted = reduce(pc.or_, (pc.is_valid(column) for column in batch.columns))
                for row in batch.filter(is_wanted).to_pylist(maps_as_pydicts="strict"):
                    yield {kind: value for kind, value in row.items() if value is not None}

    def hint(self) -> int | None:
        """Return the version of the checkpoint that readers are told to begin with; None if there is no such hint."""
        try:
            hint = json.loads(self._storage.read(self.hint_path))
        except (FileNotFoundError, ValueError):
            return None  # readers do without
        version = hint.get("version") if isinstance(hint, dict) else None
        return version if isinstance(version, int) else None

    @property
    def hint_path(self) -> str:
        """The file of that hint."""
        return f"{self.folder}/{_HINT}"


def commit_name(version: int) -> str:
    """Return the name of a version's commit."""
    return f"{version:020}.json"
