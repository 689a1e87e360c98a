"""Applies a batch that is too large for this process: Spark finds the rows at its keys and writes the new ones.

The commit is the direct writer's own, with the same checks: only the data files are read and written by Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from replicator.model.crash import crash_point
from replicator.model.errors import ReplicatorError
from replicator.model.merged import Merged
from replicator.plugins.kit.folding.fold import key_form
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import Batch, TargetTable
from replicator_target_delta.lane import actions, vectors
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.hidden import Hidden, hide
from replicator_target_delta.lane.lane import Applied, Lane
from replicator_target_delta.lane.log import LiveFile
from replicator_target_delta.lane.values import LAYOUT
from replicator_target_delta.ledger import Entry

_ATTEMPTS_MAX: Final = 3
"""Attempts to commit a batch, each of which reads the table's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkHits:
    """The rows at a batch's keys, one entry per row.

    Attributes:
        file: Number of the row's file among those that were asked about; -1: another one.
        row: Its number there.
        is_removed: The batch leaves no row at the key; never so where deleted rows are kept.
        key: A hash of the key. Two rows with one hash may have one key.
        expects: The batch's first change of the key expected a row there, and it is one that is not marked as deleted.
    """

    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    is_removed: npt.NDArray[np.bool_]
    expects: npt.NDArray[np.bool_]
    key: npt.NDArray[np.int64]


class Bulk(Protocol):
    """A batch that is folded somewhere else."""

    @property
    def is_complete(self) -> bool:
        """The rows that it leaves do not depend on what stands in the table."""

    def write(self, version: int) -> Sequence[Action]:
        """Write the rows that the batch leaves in a version of the table into new data files: their `add` actions.

        Raises:
            EngineNeededError: The table's columns are not those of the batch.
        """

    def find(self, version: int, names: Mapping[str, int]) -> BulkHits:
        """Find the rows in a version of the table at the keys of the batch.

        Args:
            version: The version.
            names: Base names of its files → their numbers.
        """

    def expected(self) -> int:
        """Number of keys that expect a row in the target."""


def apply_bulk(lane: Lane, table: TargetTable, batch: Batch, bulk: Bulk, last: int | None) -> Applied | None:
    """Apply a batch after `last`, where that is known; None if the ledger is there already, or a newer epoch's.

    Raises:
        EngineNeededError: Nothing was changed; Spark must merge the batch.
        ReplicatorError: The table is not as it was left (`Lane.apply`).
    """
    began = time.time()
    key_form(batch.schema, LAYOUT)  # refuses what the direct writer cannot compare
    columns = lane.check(lane.refresh(), table, batch, last)
    if columns is None:
        return None
    written: Sequence[Action] = ()
    if bulk.is_complete:
        written = bulk.write(lane.state.version)
        crash_point("lane.rows_written")
    try:
        expected = bulk.expected() if batch.expects_rows and not batch.is_append else None
        for _ in range(_ATTEMPTS_MAX):
            # Others may have committed since: what is found in an older version is found in vain.
            before, columns = columns, lane.check(lane.refresh(), table, batch, last)
            if columns != before:
                break
            applied = _attempt(lane, table, batch, bulk, written, expected, began)
            if applied is not None:
                return applied
    except (EngineNeededError, ReplicatorError):
        # Both come before a version is put; after any other error nobody knows whether it names the files.
        _remove(lane, written)
        raise
    _remove(lane, written)
    if columns is None:
        return None
    raise EngineNeededError("others change the table at the same time")


def _attempt(
    lane: Lane,
    table: TargetTable,
    batch: Batch,
    bulk: Bulk,
    written: Sequence[Action],
    expected: int | None,
    began: float,
) -> Applied | None:
    """Commit the batch as the next version; None if another writer was first."""
    state, output, own = lane.state, vectors.VectorFile(), list[Action]()
    try:
        hidden, hits = list[Hidden](), None
        if not batch.is_append:
            files = list(state.files.values())
            hits = bulk.find(state.version, _names(files))
            hidden = _hidden(lane, files, hits, output)
        if not bulk.is_complete:
            own += bulk.write(state.version)
            crash_point("lane.rows_written")
        new = [LiveFile.of(add) for add in own or written]
        counts = _counts(sum(file.rows for file in new), hits, expected)
        identity, now_ms = str(uuid4()), int(time.time() * 1000)
        info = actions.commit_info(
            counts=counts,
            is_append=batch.is_append,
            is_counted=batch.expects_rows and not batch.is_append,
            read_version=state.version,
            identity=identity,
            now_ms=now_ms,
            took_ms=max(0, now_ms - int(began * 1000)),
        )
        changes = [info, actions.transaction(table.ledger_name, Entry(table.epoch, batch.last).version, now_ms)]
        changes += [action for one in hidden for action in one.actions(now_ms)]
        changes += [{"add": file.add} for file in new]
        if not lane.commit(changes, output, identity):
            _remove(lane, own)
            return None
    except (EngineNeededError, ReplicatorError):
        _remove(lane, own)  # as in `apply_bulk`
        raise
    lane.remember(hidden)
    size = len(output.data) + sum(file.size for file in new)
    return Applied(counts=counts, version=lane.state.version, is_append=batch.is_append, bytes=size)


def _counts(rows: int, hits: BulkHits | None, expected: int | None) -> Merged:
    if hits is None:
        return Merged(inserted=rows)
    matched, deleted = int((~hits.is_removed).sum()), int(hits.is_removed.sum())
    missing = 0 if expected is None else expected - int(hits.expects.sum())
    return Merged(matched=matched, inserted=rows - matched, deleted=deleted, not_found=missing)


def _names(files: Sequence[LiveFile]) -> Mapping[str, int]:
    names = {file.path.rsplit("/", 1)[-1]: number for number, file in enumerate(files)}
    if len(names) != len(files) or any("%" in name for name in names):
        raise EngineNeededError("file names of the table repeat or contain %")
    return names


def _hidden(lane: Lane, files: Sequence[LiveFile], hits: BulkHits, output: vectors.VectorFile) -> list[Hidden]:
    if bool((hits.file < 0).any()):
        raise EngineNeededError("Spark found rows in files that the log does not name")
    if len(np.unique(hits.key)) != len(hits.key):
        raise EngineNeededError("a key stands in the table twice")
    hidden = []
    for number in np.unique(hits.file):
        file = files[number]
        hidden.append(hide(file, hits.row[hits.file == number], lane.deleted(file), output))
    return hidden


def _remove(lane: Lane, written: Sequence[Action]) -> None:
    for add in written:
        lane.remove(add)
