"""The direct writer of one table: applies batches, each as one commit that is written without Spark.

1. **Read** the commits that are new. The content of the table is now known exactly, and the next version is free.
2. **Check** that the table is one that the direct writer knows (`known`), and that this epoch still holds it.
3. **Fold** the batch to one change per key (`plugins.kit.folding`), and write the rows that it leaves into a data file (`parquet`).
4. **Find** the rows that are at its keys now (`index`), and add them to the deletion vectors of their files (`vectors`).
   Where the batch does not have all of a row (`complete`), the rest is read from them first.
5. **Put** the next version, with the ledger in it, if no other writer has (`commits`). If one has, begin again at 1: a
   commit never follows one that it has not read, so there are no rules of conflict to get wrong.

A crash before 5 leaves files that no version names, which VACUUM removes; after it the batch and its ledger stand.
When in doubt it refuses before it has changed anything (`EngineNeededError`): Spark then merges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from replicator.model.crash import crash_point
from replicator.model.errors import ReplicatorError
from replicator.model.events import SEQUENCE_NUM, change_schema
from replicator.model.merged import Merged
from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding.arrow import net_changes
from replicator.plugins.kit.folding.fold import NetChanges, key_form, rows_of
from replicator.plugins.kit.folding.found import FileHits, Read, complete, found_at, merged
from replicator.plugins.kit.folding.keys import KeyForm
from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator.plugins.kit.lake.index import KEYS_TOO_LARGE, Hits, IndexCache, Wanted, read_keys
from replicator.plugins.kit.lake.joining import due
from replicator.plugins.kit.lake.vectors import bitmap, numbers
from replicator.plugins.kit.ledger import not_ours
from replicator.plugins.target import Batch, TargetTable
from replicator_target_delta.config import DIRECT_ROWS, DIRECT_ROWS_MAX
from replicator_target_delta.errors import refuse_columns_of_others
from replicator_target_delta.lane import actions, vectors
from replicator_target_delta.lane.actions import Action
from replicator_target_delta.lane.clear import cleared
from replicator_target_delta.lane.commits import Commits
from replicator_target_delta.lane.hidden import Hidden, hide
from replicator_target_delta.lane.known import TargetColumn, columns_as_found, known_columns
from replicator_target_delta.lane.log import DeltaLakeLogReader, LiveFile, LogState
from replicator_target_delta.lane.losses import check_files
from replicator_target_delta.lane.parquet import read_rows, write_rows
from replicator_target_delta.lane.rewrite import Rewrite, Rewritten, carried, rewrite_files, still_stands
from replicator_target_delta.lane.values import LAYOUT
from replicator_target_delta.ledger import Entry, check_last, claim_lost, exists
from replicator_target_delta.log.table import SCHEMA, UUID, DamagedLogError
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.storage import Storage

_ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The result of applying a batch: `version` is the commit's, `bytes` is the size of its files."""

    counts: Merged
    version: int
    is_append: bool
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sought:
    """The keys of a batch, the files that may have them, and the names of the key columns in these."""

    wanted: Wanted
    files: Sequence[LiveFile]
    columns: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A folded batch: `form` is the form of its keys."""

    table: TargetTable
    batch: Batch
    form: KeyForm
    net: NetChanges


class Lane:
    """See the module.

    Args:
        storage: File system of the target.
        path: Its path.
        commits: Writes its versions.
        indexes: The indexes of this process.
        clock: The time, in seconds since 1970.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        commits: Commits,
        indexes: IndexCache,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._path = path
        self._commits = commits
        self._indexes = indexes
        self._clock = clock
        self._log = DeltaLakeLogReader(storage, path)
        self._vectors: dict[str, tuple[vectors.Descriptor, BitMap]] = {}
        # Files that batches left without a row since a rewrite was planned; None: none is.
        self._emptied: set[str] | None = None

    def apply(self, table: TargetTable, batch: Batch, last: int | None = None) -> Applied | None:
        """Apply a batch after `last`, where that is known; None if the ledger is there already, or a newer epoch's.

        Raises:
            TooLargeError: Nothing was changed; Spark can find and write the rows.
            EngineNeededError: Nothing was changed; Spark must merge the batch.
            ReplicatorError: The table is not as it was left (`not_ours`, `claim_lost`, `check_last`).
        """
        form, began = key_form(batch.schema, LAYOUT), self._clock()
        columns = self.check(self._log.refresh(), table, batch, last)
        if columns is None:
            return None
        # Last: a reason that lies in the table holds for any batch. Rows that lack columns are put together one by one, in Python objects.
        if batch.rows > DIRECT_ROWS_MAX or (batch.has_absent and batch.rows > DIRECT_ROWS):
            raise TooLargeError
        (net,) = net_changes(batch, table.options, LAYOUT, spills=False)
        work = _Work(table=table, batch=batch, form=form, net=net)
        written: Action | None = None
        try:
            for _ in range(_ATTEMPTS_MAX):
                # Before a row is written: each batch of a table whose keys do not fit would write a file in vain.
                sought = self._sought(work, columns)
                if written is None and net.rows.num_rows and net.is_complete:
                    written = self._write(net.rows, columns)
                applied = self._attempt(work, sought, columns, written, began)
                if applied is not None:
                    return applied
                before, columns = columns, self.check(self._log.refresh(), table, batch, last)
                if columns != before:
                    self.remove(written)
                    written = None
                if columns is None:
                    return None
        except (EngineNeededError, ReplicatorError, DamagedLogError):
            # All come before a version is put; after any other error nobody knows whether it names the file.
            self.remove(written)
            raise
        self.remove(written)
        raise EngineNeededError("others commit without a pause")

    def clear(self, table: TargetTable, sequence_num: int, below: int | None, last: int | None = None) -> int | None:
        """Delete all rows, or those numbered below `below`, and record `sequence_num`; return the version, None if it is recorded already.

        Raises:
            EngineNeededError: Nothing was changed; Spark must do it.
            ReplicatorError: See `apply`.
        """
        if table.options.deletes == "soft":
            raise EngineNeededError("rows are to be marked as deleted")
        for _ in range(_ATTEMPTS_MAX):
            state = self._log.refresh()
            if not self._may_follow(state, table, sequence_num, last):
                return None
            columns = columns_as_found(state)
            (name,) = (column.physical for column in columns if column.name == SEQUENCE_NUM)
            read = self._reader(columns)
            output, now_ms, identity = vectors.VectorFile(), int(self._clock() * 1000), str(uuid4())
            hidden = list(cleared(state.files.values(), below, name, read, self.deleted, output))
            deleted = sum(len(one.rows) - len(self.deleted(one.file)) for one in hidden)
            info = actions.clear_info(deleted=deleted, read_version=state.version, identity=identity, now_ms=now_ms)
            ledger = actions.transaction(table.ledger_name, Entry(table.epoch, sequence_num).version, now_ms)
            changes = [info, ledger, *(action for one in hidden for action in one.actions(now_ms))]
            if self.commit(changes, output, identity):
                self.remember(hidden)
                return self._log.state.version
        raise EngineNeededError("others commit without a pause")

    @property
    def state(self) -> LogState:
        """The newest version that was read."""
        return self._log.state

    def refresh(self) -> LogState:
        """Read the commits that are new.

        Raises:
            EngineNeededError: The log is not understood.
        """
        return self._log.refresh()

    def check_files(self) -> None:
        """Raise LostFilesError unless all files of the newest version are there."""
        check_files(self._storage, self._path, self._log.refresh)

    def files(self) -> Collection[LiveFile]:
        """The files of the newest version.

        Raises:
            EngineNeededError: The log, or something in it, is not understood.
        """
        state = self._log.refresh()
        if state.unknown is not None:
            raise EngineNeededError(state.unknown)
        return state.files.values()

    def plan_rewrite(
        self, table: TargetTable, schema: TableSchema, *, small_file_size: int, deleted_share_max: float
    ) -> Rewrite | None:
        """Plan a rewrite of files of the version after the last batch (`rewrite.due`); None if there is nothing to do.

        Raises:
            EngineNeededError: A deletion vector cannot be read.
        """
        state = self._log.state
        files = due(state.files.values(), small_file_size=small_file_size, deleted_share_max=deleted_share_max)
        self._emptied = set() if files else None
        if not files:
            return None
        fields = ddl.new_table(table, schema, clustering=False).fields
        return Rewrite(
            files=files,
            deleted=[self.deleted(file) for file in files],
            fields=fields,
            columns=known_columns(state, fields),
            shape=rows_of(change_schema(schema).empty_table(), schema, table.options, LAYOUT).schema,
            properties=state.properties,
            key=schema.key,
            form=key_form(schema, LAYOUT),
        )

    def rewrite(self, plan: Rewrite) -> Rewritten:
        """Carry out a plan, in any thread.

        Raises:
            EngineNeededError: A file differs from the log.
        """
        done = rewrite_files(plan, self._storage, self._path)
        if done.add is not None:
            self._indexes.put(f"{self._path}/{done.add['path']}", plan.form, done.keys)
        return done

    def commit_rewrite(self, table: TargetTable, done: Rewritten) -> bool:
        """Put the new file in place of the old ones; False: they are no longer all there, and the new one was removed.

        Raises:
            EngineNeededError: Nothing was changed: the log was replaced.
        """
        try:
            for _ in range(_ATTEMPTS_MAX):
                state = self._log.refresh()
                now = [state.files.get(file.path) for file in done.plan.files]
                moved = {f.path for f, at in zip(done.plan.files, now, strict=True) if at is None}
                moved -= self._emptied or set()
                own = Entry.of(state.transactions.get(table.ledger_name))
                if (
                    moved
                    or own is None
                    or own.epoch != table.epoch
                    or not still_stands(done, self._storage, self._path)
                ):
                    break
                if known_columns(state, done.plan.fields) != done.plan.columns:
                    break
                if self._attempt_rewrite(done, now):
                    return True
        except (EngineNeededError, ReplicatorError, DamagedLogError):
            self.remove(done.add)
            raise
        self.remove(done.add)
        return False

    def _attempt_rewrite(self, done: Rewritten, now: Sequence[LiveFile | None]) -> bool:
        state, now_ms, identity = self._log.state, int(self._clock() * 1000), str(uuid4())
        output, add = vectors.VectorFile(), done.add
        since = carried(done, [None if file is None else self.deleted(file) for file in now])
        old = [file for file in now if file is not None]
        if add is not None and since:
            add = None if len(since) == len(done.keys) else actions.hidden(add, output.add(since))
        changes = [actions.rewrite_info(read_version=state.version, identity=identity, now_ms=now_ms)]
        changes += [actions.removal(file, now_ms, changes_data=False) for file in old]
        changes += [{"add": add}] if add is not None else []
        if not self.commit(changes, output, identity):
            return False
        if add is None:
            self.remove(done.add)
        for file in old:
            self._vectors.pop(file.path, None)
            self._indexes.forget(f"{self._path}/{unquote(file.path)}")
        return True

    def check(
        self, state: LogState, table: TargetTable, batch: Batch, last: int | None
    ) -> Sequence[TargetColumn] | None:
        """The table's columns, if the batch may be applied to this version; None if its ledger forbids it."""
        if not self._may_follow(state, table, batch.last, last):
            return None
        if state.properties.get(SCHEMA) != ddl.schema_mark(batch.schema, table.options):
            raise EngineNeededError("the table was created with another schema")
        return known_columns(state, ddl.new_table(table, batch.schema, clustering=False).fields)

    def _may_follow(self, state: LogState, table: TargetTable, sequence_num: int, last: int | None) -> bool:
        """Return whether the next version may record `sequence_num`: not if one at or above it is recorded, or a newer epoch."""
        if state.properties.get(UUID) != table.uuid:
            raise not_ours(table.table, state.properties.get(UUID), "target.path")
        recorded = state.transactions.get(table.ledger_name)
        if recorded is None:
            raise claim_lost(table)
        if recorded >= Entry(table.epoch, sequence_num).version:
            return False
        own = Entry.of(recorded)
        if own is None or own.epoch != table.epoch:
            raise claim_lost(table)
        check_last(table, own, last)
        if not exists(table, state.properties):
            raise EngineNeededError("the table was dropped in the target")
        refuse_columns_of_others(str(table.table), state.metadata)
        return True

    def _write(self, rows: pa.Table, columns: Sequence[TargetColumn]) -> Action:
        written = write_rows(rows, self._storage, self._path, columns, self._log.state.properties)
        crash_point("lane.rows_written")
        return written

    def _attempt(
        self,
        work: _Work,
        sought: _Sought | None,
        columns: Sequence[TargetColumn],
        written: Action | None,
        began: float,
    ) -> Applied | None:
        """Commit the batch, which was begun at that time, as the next version; None if another writer was first."""
        state, net = self._log.state, work.net
        output = vectors.VectorFile()
        counts, hidden, own, keys = Merged(inserted=net.rows.num_rows), list[Hidden](), None, net.row_keys
        if sought is not None:
            hits, read = list(self._find(sought, work.form)), self._reader(columns)
            found = found_at(net, hits, work.table.options, read)
            counts = merged(net, found, expects_rows=work.batch.expects_rows)
            hidden = [hide(one.file, one.rows, self.deleted(one.file), output) for one in hits]
            if not net.is_complete:
                # Of this attempt alone: what the target had may be another row the next time.
                rows, keys = complete(net, found, read)
                own = written = self._write(rows, columns) if rows.num_rows else None
        identity, version = str(uuid4()), Entry(work.table.epoch, work.batch.last).version
        now_ms = int(self._clock() * 1000)
        info = actions.commit_info(
            counts=counts,
            is_append=net.is_append,
            is_counted=work.batch.expects_rows and not net.is_append,
            read_version=state.version,
            identity=identity,
            now_ms=now_ms,
            took_ms=max(0, now_ms - int(began * 1000)),
        )
        changes = [info, actions.transaction(work.table.ledger_name, version, now_ms)]
        changes += [action for one in hidden for action in one.actions(now_ms)]
        changes += [{"add": written}] if written is not None else []
        if not self.commit(changes, output, identity):
            self.remove(own)
            return None
        self.remember(hidden, written, keys, work.form)
        return Applied(
            counts=counts,
            version=self._log.state.version,
            is_append=net.is_append,
            bytes=len(output.data) + (0 if written is None else written["size"]),
        )

    def _sought(self, work: _Work, columns: Sequence[TargetColumn]) -> _Sought | None:
        """The files of the newest version in which to look for the batch's keys; None for an append.

        Raises:
            TooLargeError: The keys there do not fit into memory: each batch would read them again.
        """
        if work.net.is_append:
            return None
        wanted, names = Wanted(work.net.keys), {column.name: column.physical for column in columns}
        physical = [names[name] for name in work.batch.schema.key]
        files = [file for file in self._log.state.files.values() if not _cannot_have(file, physical, wanted)]
        if sum(file.rows for file in files) * work.form.bytes_per_row > self._indexes.bytes_max:
            raise TooLargeError(KEYS_TOO_LARGE, is_of_table=True)
        return _Sought(wanted=wanted, files=files, columns=physical)

    def _find(self, sought: _Sought, form: KeyForm) -> Iterator[FileHits[LiveFile]]:
        """Find the rows at the batch's keys."""
        for file in sought.files:
            positions, rows = _alive(self._hits(file, sought.columns, form, sought.wanted), self.deleted(file))
            if len(rows):
                yield FileHits(file=file, positions=positions, rows=rows)

    def _reader(self, columns: Sequence[TargetColumn]) -> Read[LiveFile]:
        return partial(self._read, {column.name: column.physical for column in columns})

    def _read(
        self, physical: Mapping[str, str], file: LiveFile, rows: npt.NDArray[np.int64], fields: Sequence[pa.Field]
    ) -> pa.Table:
        """Some rows of a data file, by ascending numbers: these columns. `physical`: names of the table's columns in data files."""
        try:
            with self._storage.open_input(f"{self._path}/{unquote(file.path)}") as source:
                return read_rows(source, rows, {physical[field.name]: field for field in fields})
        except FileNotFoundError as error:
            raise EngineNeededError("a data file is missing") from error

    def _hits(self, file: LiveFile, physical: Sequence[str], form: KeyForm, wanted: Wanted) -> Hits:
        path = f"{self._path}/{unquote(file.path)}"

        def keys() -> pa.Array:
            try:
                with self._storage.open_input(path) as source:
                    return read_keys(source, physical, form, file.rows)
            except FileNotFoundError as error:
                raise EngineNeededError("a data file is missing") from error

        index = self._indexes.get(path, form, keys)
        if index.rows != file.rows:
            raise EngineNeededError("a data file's number of rows changed")
        return index.find(wanted)

    def deleted(self, file: LiveFile) -> BitMap:
        """The rows of a file that are deleted."""
        if file.vector is None:
            return BitMap()
        known = self._vectors.get(file.path)
        if known is not None and known[0] == file.vector:
            return known[1]
        rows = vectors.read(file.vector, self._storage, self._path)
        self._vectors[file.path] = (file.vector, rows)
        return rows

    def commit(self, changes: Sequence[Action], output: vectors.VectorFile, identity: str) -> bool:
        """Write the deletion vectors and the next version; False if it is another writer's.

        The content of the log decides, not the writer's answer.
        """
        version, lines = self._log.state.version + 1, [actions.to_line(action) for action in changes]
        if output.data:
            with self._storage.open_output(f"{self._path}/{output.name}") as file:
                file.write(output.data)
            crash_point("lane.vectors_written")
        failure: Exception | None = None
        crash_point("lane.before_put")
        try:
            self._commits.put(version, lines)
            crash_point("lane.after_put")
        except Exception as error:  # noqa: BLE001 - whatever it was, the log knows the outcome
            failure = error
        found = self._log.commit(version)
        if found is None:
            raise failure or OSError(f"Version {version} of {self._path} was written and is not there.")
        if found.identity != identity:
            if output.data:
                self._storage.remove(f"{self._path}/{output.name}")
            return False
        self._log.accept(lines, found)
        return True

    def remember(
        self, hidden: Sequence[Hidden], written: Action | None = None, keys: pa.Array = (), form: KeyForm | None = None
    ) -> None:
        """Remember the changes of the commit, so that nothing of it is read again."""
        for one in hidden:
            if one.vector is None:
                if self._emptied is not None:
                    self._emptied.add(one.file.path)
                self._vectors.pop(one.file.path, None)
                self._indexes.forget(f"{self._path}/{unquote(one.file.path)}")
            else:
                self._vectors[one.file.path] = (one.vector, one.rows)
        if written is not None and form is not None and len(keys):
            self._indexes.put(f"{self._path}/{written['path']}", form, keys)
        files = self._log.state.files
        if len(self._vectors) > len(files):
            self._vectors = {path: known for path, known in self._vectors.items() if path in files}

    def remove(self, written: Action | None) -> None:
        """Remove a data file that no version names."""
        if written is not None:
            self._storage.remove(f"{self._path}/{written['path']}")


def _cannot_have(file: LiveFile, physical: Sequence[str], wanted: Wanted) -> bool:
    """Return whether the file's statistics say that it has none of the keys."""
    if not wanted.is_integer:
        return False
    bounds = file.bounds(physical[0])
    if bounds is None:
        return False
    part = wanted.within(*bounds)
    return bool(part.start >= part.stop)


def _alive(found: Hits, deleted: BitMap) -> Hits:
    """The found rows that are not deleted."""
    if not len(found.rows) or not deleted:
        return found
    dead = bitmap(found.rows) & deleted
    if not dead:
        return found
    mask = ~np.isin(found.rows, numbers(dead))
    return Hits(found.positions[mask], found.rows[mask])
