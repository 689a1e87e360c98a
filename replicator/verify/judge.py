"""Compares one table at a time: the source's rows as one read sees them, the target's rows as its ledger was at a barrier.

A round:

1. Capture ends a commit at a mark that it has written into the source's log: a barrier in the journal, at number S. Apply ends
   a batch there, so one state of the target holds everything up to S and nothing beyond.
2. The source is read as of now. It has what was committed before the mark, and perhaps a little more.
3. Both sides' checksums are compared, then the rows of groups that differ.
4. If some rows differ, the journal tells which of them the read may have seen in a newer state than S (`moving.py`). What else differs is
   different. Those are compared again, alone, in the next round.

Of a scope (`scope.py`) other than the whole table, both sides checksum only its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from replicator.journal.reader import JournalReader
from replicator.model.errors import SchemaConflictError, TableError, TransientError
from replicator.model.schema import TableId, TableSchema
from replicator.model.verdict import Result
from replicator.plugins.kit.canonical import values
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import Cursor, DeltaSource, Seen, Visibility
from replicator.plugins.target import DeltaTarget, TableOptions, TargetTable
from replicator.plugins.verification import (
    IDS_MAX,
    Among,
    Checksum,
    Ids,
    SourceState,
    SupportsSourceVerification,
    SupportsTargetVerification,
    TableState,
    order_of,
)
from replicator.state import table_life
from replicator.state.records import AppliedRecord, TableRecord, TargetCopy
from replicator.state.store import StateStore
from replicator.verify.barriers import Barrier, Barriers, NotVerifiedError
from replicator.verify.comparing import Found, compare_rows, differing
from replicator.verify.moving import Moving, TableChangedError
from replicator.verify.scope import Chosen, OfIds, Scope, TableJournal, Whole
from replicator.verify.verdicts import DIFFERENCES_MAX, Counts, Difference, Kind, Verdict, shown

_DIGITS: Final = 3
"""Of an id, for groups: a row that differs costs the rows of one group in so many."""
_DIGITS_OF_IDS: Final = 4
_ROUNDS_MAX: Final = 20


class _AgainError(Exception):
    """The round is void: something changed during it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """What a table is compared as. `columns`: names in the target, by the source's names."""

    record: TableRecord
    schema: TableSchema
    columns: Mapping[str, str]
    not_compared: tuple[str, ...]

    @property
    def names(self) -> Sequence[str]:
        """The source's names, in the order of the row text."""
        return order_of(list(self.columns), self.schema)

    def is_as(self, other: _Compared) -> bool:
        """Whether the table had the same definition then."""
        ours, theirs = ((c.schema, c.columns, c.record.incarnation) for c in (self, other))
        return ours == theirs


@dataclass(slots=True, kw_only=True)
class _Round:
    """What one round found. `moved`: rows that differ, and that the source's read may have seen newer than the target's state is."""

    position: int
    rows_target: int
    counts: Counts = field(default_factory=Counts)
    described: list[Difference] = field(default_factory=list)
    row_keys: dict[str, Cursor] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Judge:
    """Verifies tables of one replicator, while its worker continues. Used from one thread.

    Attributes:
        uuid: Of the replicator.
        options: A table's settings, as apply has them.
        barriers: Finds barriers in the journal.
        with_values: Whether differences are described with values.
        keys_max: Of how many rows that differ the keys are collected (`Verdict.row_keys`).
    """

    source: DeltaSource[Any]
    target: DeltaTarget[Any]
    store: StateStore
    reader: JournalReader
    name: str
    uuid: str
    options: Callable[[TableId], TableOptions]
    barriers: Barriers
    with_values: bool = False
    keys_max: int = 0

    def verify(self, table: TableId, scope: Scope | Collection[str] | None = None) -> Verdict:
        """Compare a table, or some rows of it.

        Args:
            table: Its name.
            scope: Which rows; also their ids. None: all.

        Raises:
            ReplicatorError: Source, target or state store cannot be asked.
        """
        if not isinstance(scope, Scope):
            scope = Whole() if scope is None else OfIds(frozenset(scope))
        try:
            return self._verify(table, scope)
        except NotVerifiedError as error:
            reason, action = error.reason, error.action
        except TableError as error:
            reason, action = error.message, error.action
        return Verdict(table=table, result=Result.NOT_VERIFIED, scope=scope.extent, reason=reason, action=action)

    def _verify(self, table: TableId, scope: Scope) -> Verdict:
        first: _Round | None = None
        compared: _Compared | None = None
        found, again, chosen = list[_Round](), None, Chosen()
        reason = "its definition kept changing"
        for _ in range(_ROUNDS_MAX):
            before, compared = compared, self._compared(table)
            if before is not None and not compared.is_as(before):
                # Ids may be others now.
                first, found, again = None, [], None
            try:
                if again is None:
                    chosen = scope.choose(self._journal_of(compared))
                one = self._round(compared, chosen.among if again is None else Ids(again))
            except (_AgainError, TableChangedError, SchemaConflictError, TransientError) as error:
                reason = str(error) or reason
                first, found, again = None, [], None
                self.barriers.check()
                self.barriers.wait()
                continue
            first = first or one
            found.append(one)
            again = frozenset(one.moved)
            if not again:
                return _verdict(table, chosen, first, found, compared.not_compared)
            reason = f"{len(again)} of its rows were changed again whenever they were read"
        raise NotVerifiedError(reason, "Verify it again when fewer of its rows change.")

    def _compared(self, table: TableId) -> _Compared:
        """The table as it stands, if it can be compared at all."""
        record = self.store.table(self.name, table)
        applied = self.store.applied(self.name).get(table)
        if record is None or not table_life.is_replicated(record):
            raise NotVerifiedError("it is not replicated")
        if table_life.has_failed(record, applied):
            raise NotVerifiedError("the table has failed", f"To see why: replicator status {self.name}")
        if record.schema is None or not table_life.is_complete(record) or not _is_whole(record, applied):
            raise NotVerifiedError(
                "its snapshot is not complete", f"To see how far it is: replicator status {self.name}"
            )
        ignored = {entry.column: entry for entry in record.ignored}
        columns, left_out = dict[str, str](), list[str]()
        changed = self.target.not_compared(record.schema) if isinstance(self.target, SupportsTargetVerification) else ()
        for column in record.schema.columns:
            other = ignored.get(column.name)
            if column.name in changed or (other is not None and (other.name is None or other.type is not None)):
                left_out.append(column.name)
            else:
                columns[column.name] = column.name if other is None or other.name is None else other.name
        left_out += [column.name for column in record.schema.kept]
        schema = replace(record.schema, table=record.source_table or record.table)
        return _Compared(record=record, schema=schema, columns=columns, not_compared=tuple(left_out))

    def _journal_of(self, compared: _Compared) -> TableJournal:
        return TableJournal(
            record=compared.record,
            columns=frozenset(compared.columns),
            store=self.store,
            reader=self.reader,
            barriers=self.barriers,
            name=self.name,
        )

    def _round(self, compared: _Compared, among: Among | None) -> _Round:
        with self.barriers.held() as barrier, self._source_state(compared) as ours:
            self._check_seen(barrier, ours.visibility)
            with _Worker() as worker:
                theirs = worker.enter(lambda: self._target_state(compared, barrier))
                ids = among.ids if isinstance(among, Ids) else None
                asked = None if ids is not None and len(ids) > IDS_MAX else among
                digits = _DIGITS if ids is None else _DIGITS_OF_IDS
                their_sums = worker.submit(lambda: _checksums(theirs(), digits, asked))
                our_sums = _checksums(ours, digits, asked)
                sums = their_sums()
                if ids is not None and asked is None:
                    groups = {id_[:digits] for id_ in ids}
                    our_sums = {group: one for group, one in our_sums.items() if group in groups}
                    sums = {group: one for group, one in sums.items() if group in groups}
                one = _Round(
                    position=barrier.position,
                    rows_target=sum(s.rows for s in sums.values()),
                )
                moving: frozenset[str] | None = None
                for groups_at_once in differing(our_sums, sums):
                    wanted = _within(asked, groups_at_once)
                    their_rows = worker.submit(lambda at=wanted: theirs().rows(at))  # type: ignore[misc]
                    our_rows = ours.rows(wanted)
                    rows = compare_rows(our_rows, their_rows(), only=among)
                    if rows and moving is None:
                        moving = self._moving(compared, barrier, ours.visibility)
                    self._note(
                        one,
                        rows,
                        moving or frozenset(),
                        compared,
                        ours,
                        lambda ids: worker.submit(lambda: theirs().texts(ids))(),
                    )
                if ours.identity() != compared.record.identity:
                    raise _AgainError("the source's table was altered meanwhile")
        if not self._compared(compared.record.table).is_as(compared):
            raise _AgainError("its definition changed meanwhile")
        return one

    def _source_state(self, compared: _Compared) -> Any:
        if not isinstance(self.source, SupportsSourceVerification):
            raise NotVerifiedError(f"sources of the type {self.source.type_name} cannot be verified")
        return self.source.open_state(compared.schema, compared.names)

    @contextmanager
    def _target_state(self, compared: _Compared, barrier: Barrier) -> Iterator[TableState]:
        if not isinstance(self.target, SupportsTargetVerification):
            raise NotVerifiedError(f"targets of the type {self.target.type_name} cannot be verified")
        record = compared.record
        self.barriers.reach(record.table, barrier.position)
        table = TargetTable(
            table=record.table,
            uuid=self.uuid,
            incarnation=record.incarnation,
            epoch=0,
            options=self.options(record.table),
        )
        assert record.schema is not None, "only tables with a shape are compared"
        with self.target.open_state(table, record.schema, columns=compared.columns, at=barrier.position) as state:
            self.barriers.lift(barrier)  # the state stays what it is
            yield state

    def _check_seen(self, barrier: Barrier, visibility: Visibility) -> None:
        """What was delivered up to the barrier must have been seen."""
        if barrier.ring:
            seen = visibility.classify(pa.array(barrier.ring, pa.string())).to_numpy(zero_copy_only=False)
            if np.any(seen != int(Seen.SEEN)):
                raise _AgainError("a transaction was in the log before other sessions could see it")

    def _moving(self, compared: _Compared, barrier: Barrier, visibility: Visibility) -> frozenset[str]:
        """Ids of rows that the source's read may have seen newer than they were at the barrier."""
        schema = compared.record.schema
        assert schema is not None, "only tables with a shape are compared"
        with self.barriers.held() as later:
            moving = Moving(reader=self.reader, schema=schema, columns=frozenset(compared.columns))
            found = moving.ids(barrier.position, later.position, visibility)
        if self.reader.is_lost(schema.table, compared.record.incarnation, barrier.position):
            raise _AgainError("the journal does not keep changes as long as the comparison takes")
        return found

    def _note(
        self,
        one: _Round,
        rows: Sequence[Found],
        moving: frozenset[str],
        compared: _Compared,
        ours: SourceState,
        their_texts: Callable[[Collection[str]], Mapping[str, Mapping[str, str | None]]],
    ) -> None:
        """Take what differs into the round, with a description as long as there is room for it."""
        one.moved.update(found.id for found in rows if found.id in moving)
        found = [entry for entry in rows if entry.id not in moving]
        one.counts += Counts(**{kind.value: sum(f.rows for f in found if f.kind is kind) for kind in Kind})
        to_collect = self.keys_max - len(one.row_keys) if compared.schema.key else 0
        wanted = found[: max(DIFFERENCES_MAX - len(one.described), to_collect)]
        for start in range(0, len(wanted), DIFFERENCES_MAX):
            entries = wanted[start : start + DIFFERENCES_MAX]
            ids = {entry.id for entry in entries}
            source, target = ours.texts(ids), their_texts(ids)
            described = entries[: DIFFERENCES_MAX - len(one.described)]
            one.described += [self._describe(entry, compared, source, target) for entry in described]
            if to_collect > 0:
                texts = {id_: source.get(id_) or target[id_] for id_ in ids}
                one.row_keys.update(zip(texts, _cursors(compared.schema, list(texts.values())), strict=True))

    def _describe(
        self,
        found: Found,
        compared: _Compared,
        source: Mapping[str, Mapping[str, str | None]],
        target: Mapping[str, Mapping[str, str | None]],
    ) -> Difference:
        ours, theirs = source.get(found.id, {}), target.get(found.id, {})
        types = {column.name: column.type for column in compared.schema.columns}

        def values(side: Mapping[str, str | None], names: Sequence[str]) -> Mapping[str, str | None]:
            return {name: shown(side.get(name), types[name]) for name in names if name in side}

        key = compared.schema.key or compared.names
        columns: tuple[str, ...] = ()
        if found.kind is Kind.DIFFERENT:
            columns = tuple(name for name in compared.names if ours.get(name) != theirs.get(name))
        with_values = (columns or compared.names) if self.with_values else ()
        return Difference(
            key=values(ours or theirs, key),
            kind=found.kind,
            columns=columns,
            source=values(ours, with_values),
            target=values(theirs, with_values),
        )


class _Worker:
    """A thread of its own for the target's state."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verify-target")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.submit(self._stack.close).result()
        self._pool.shutdown()

    def enter(self, make: Callable[[], Any]) -> Callable[[], TableState]:
        """Open a context in the thread; what it gives is asked for by a call, in that thread."""
        future = self._pool.submit(lambda: self._stack.enter_context(make()))
        return future.result

    def submit(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Do something in the thread; the answer is waited for by a call."""
        return self._pool.submit(call).result


def _cursors(schema: TableSchema, rows: Sequence[Mapping[str, str | None]]) -> Sequence[Cursor]:
    """The cursors of rows that are in their canonical forms."""
    return cursors([values([row[name] for row in rows], schema.column(name).type) for name in schema.key])


def _checksums(state: TableState, digits: int, among: Among | None) -> Mapping[str, Checksum]:
    """Of no rows, nothing is read."""
    return {} if isinstance(among, Ids) and not among.ids else state.checksums(digits, among)


def _within(among: Among | None, groups: Sequence[str]) -> Sequence[str]:
    """What is asked of rows in these groups: by their ids, if these are known."""
    if not isinstance(among, Ids):
        return tuple(groups)
    digits, wanted = len(groups[0]), set(groups)
    return tuple(sorted(id_ for id_ in among.ids if id_[:digits] in wanted))


def _is_whole(record: TableRecord, applied: AppliedRecord | None) -> bool:
    return (
        applied is not None
        and applied.incarnation == record.incarnation
        and applied.copy is TargetCopy.WHOLE
        and not table_life.has_snapshot_to_apply(record, applied)
    )


def _verdict(
    table: TableId, chosen: Chosen, first: _Round, rounds: Sequence[_Round], not_compared: tuple[str, ...]
) -> Verdict:
    counts = sum((one.counts for one in rounds), start=Counts())
    # The source was read somewhat later: how many rows it had at the position follows from what differs there.
    rows_target = first.rows_target
    described = [entry for one in rounds for entry in one.described][:DIFFERENCES_MAX]
    return Verdict(
        table=table,
        result=Result.DIFFERENT if counts.total else Result.EQUAL,
        scope=chosen.extent,
        sample=chosen.sample,
        keys=chosen.keys,
        position=first.position,
        rows_source=rows_target + counts.missing - counts.extra,
        rows_target=rows_target,
        counts=counts,
        differences=tuple(described),
        not_compared=not_compared,
        row_keys={id_: key for one in rounds for id_, key in one.row_keys.items()},
    )
