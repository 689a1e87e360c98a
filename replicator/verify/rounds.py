"""One comparison of both sides of a table: the source's rows as one read sees them, the target's as they were at a barrier.

All its questions, about all rows or some, are asked one after another and answered from the same two states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from replicator.journal.reader import JournalReader
from replicator.model.documents.verdict import Result
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.canonical import digest_of, values
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import Cursor, DeltaSource, Seen, Visibility
from replicator.plugins.target import DeltaTarget, TableOptions, TargetTable
from replicator.plugins.verification import (
    IDS_MAX,
    Among,
    Bound,
    Checksum,
    Ids,
    KeyRange,
    SourceState,
    SupportsSourceVerification,
    SupportsTargetVerification,
    VerifiedState,
    order_of,
)
from replicator.state.records import TableRecord
from replicator.verify.barriers import Barrier, Barriers, NotVerifiedError
from replicator.verify.comparing import FoundDifferences, compare_rows, differing
from replicator.verify.moving import Moving
from replicator.verify.verdicts import DIFFERENCES_MAX, Counts, Difference, Kind, in_order, shown

_DIGITS: Final = 3
"""Hex digits of a row's id that select its checksum group: a row that differs costs the rows of one group."""
_DIGITS_OF_RANGE: Final = 2
_DIGITS_OF_IDS: Final = 4


CHANGES_TOO_MUCH: Final = "Verify it again when fewer of its rows change."
AGAIN_SOON: Final = "Verify it again in a minute or two: by then the replicator knows what became of the table."


class AgainError(Exception):
    """The round is void: something changed during it. `action` is the operator's next step if that continues."""

    def __init__(self, reason: str, action: str = AGAIN_SOON) -> None:
        super().__init__(reason)
        self.reason, self.action = reason, action


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Definition of a table under which it is compared.

    Attributes:
        schema: The table's schema in the source.
        in_target: Its schema in the target and the journal.
        columns: Names in the target, by the source's names.
        not_compared: Columns that the target has from the source, but that cannot be compared: their names there.
    """

    record: TableRecord
    schema: TableSchema
    in_target: TableSchema
    columns: Mapping[str, str]
    not_compared: tuple[str, ...]

    @property
    def equal(self) -> Result:
        """Return the result if nothing differs."""
        return Result.EQUAL_IN_PART if self.not_compared else Result.EQUAL

    @property
    def names(self) -> Sequence[str]:
        """Return the source's names, in the order of the row text."""
        return order_of(list(self.columns), self.schema)

    def is_as(self, other: Compared) -> bool:
        """Return whether the table had the same definition then, and no snapshot of it has begun since.

        The log lacks changes that such a snapshot replaces, so nothing shows that the table was changed while both sides were compared.
        """
        ours, theirs = ((c.schema, c.columns, c.record.incarnation, c.snapshot) for c in (self, other))
        return ours == theirs

    def moving(self, reader: JournalReader) -> Moving:
        """Return the reader of the table's part of the journal."""
        return Moving(reader=reader, schema=self.in_target, columns=frozenset(self.columns.values()))

    @property
    def snapshot(self) -> tuple[int | None, datetime | None] | None:
        """Return the identity of the table's last snapshot: its start number and time; None if there was none."""
        last = self.record.snapshot
        return None if last is None else (last.start_number, last.started_at)

    def definition(self, columns: Sequence[str]) -> str:
        """Return a digest of the definition that ranges over these columns of the key belong to; any change of the table changes it."""
        parts = [self.record.incarnation, self.schema.fingerprint, dict(self.columns), list(columns)]
        return digest_of(json.dumps(parts, sort_keys=True))


@dataclass(slots=True, kw_only=True)
class Round:
    """Result of one round.

    Attributes:
        row_keys: See `Verdict`.
        moved: Rows that differ, and that the source's read may have seen newer than the target's state is.
    """

    position: int
    rows_target: int
    counts: Counts = field(default_factory=Counts)
    described: list[Difference] = field(default_factory=list)
    row_keys: dict[str, Cursor] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Opens the states of source and target. Attributes as those of `Judge`."""

    source: DeltaSource[Any]
    target: DeltaTarget[Any]
    reader: JournalReader
    uuid: str
    options: Callable[[TableId], TableOptions]
    barriers: Barriers
    with_values: bool = False
    keys_max: int = 0

    @contextmanager
    def open(self, compared: Compared) -> Iterator[States]:
        """Yield the states of a table in source and target, at the next barrier.

        Raises:
            NotVerifiedError: The table cannot be compared.
            AgainError: The table cannot be compared now.
            ReplicatorError: Source, target or state store cannot be asked.
        """
        with self.barriers.held() as barrier, self._source_state(compared) as ours:
            self._check_seen(barrier, ours.visibility)
            with _Worker() as worker:
                theirs = worker.enter(lambda: self._target_state(compared, barrier))
                yield States(self, compared, barrier, ours, theirs, worker)

    def _source_state(self, compared: Compared) -> Any:
        if not isinstance(self.source, SupportsSourceVerification):
            raise NotVerifiedError(f"sources of the type {self.source.type_name} cannot be verified")
        return self.source.open_state(compared.schema, compared.names)

    @contextmanager
    def _target_state(self, compared: Compared, barrier: Barrier) -> Iterator[VerifiedState]:
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
        """Check that the read of the source saw everything that was delivered up to the barrier."""
        if barrier.ring:
            seen = visibility.classify(pa.array(barrier.ring, pa.string())).to_numpy(zero_copy_only=False)
            if np.any(seen != int(Seen.SEEN)):
                raise AgainError("a transaction was in the log before other sessions could see it", CHANGES_TOO_MUCH)


class States:
    """The states of a table in source and target, while they are open. Used from one thread."""

    def __init__(
        self,
        sides: Sides,
        compared: Compared,
        barrier: Barrier,
        ours: SourceState,
        theirs: Callable[[], VerifiedState],
        worker: _Worker,
    ) -> None:
        self._sides = sides
        self._compared = compared
        self._barrier = barrier
        self._ours = ours
        self._theirs = theirs
        self._worker = worker

    @cached_property
    def range_key(self) -> tuple[str, ...]:
        """Return the first columns of the key by which both sides can be asked for ranges."""
        ours, theirs = self._ours.range_key, self._worker.submit(lambda: self._theirs().range_key)()
        return tuple(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))

    def bound(self, after: Bound | None, rows: int) -> Bound | None:
        """Return the upper bound of a range of about this many rows; None if fewer are left."""
        return self._ours.bound(self.range_key, after, rows)

    def compare(
        self, among: Among | None, within: KeyRange | None = None, *, described: int = 0, keys: int = 0
    ) -> Round:
        """Compare the table's rows, or those that are among some ids and within a range.

        Args:
            among: Ids to compare; None: all.
            within: Range of keys; None: all.
            described: Differences of the table that are described already.
            keys: Keys that were collected already.
        """
        ours, theirs, worker = self._ours, self._theirs, self._worker
        ids = among.ids if isinstance(among, Ids) else None
        asked = None if ids is not None and len(ids) > IDS_MAX else among
        digits = _DIGITS_OF_IDS if ids is not None else _DIGITS if within is None else _DIGITS_OF_RANGE
        their_sums = worker.submit(lambda: _checksums(theirs(), digits, asked, within))
        our_sums = _checksums(ours, digits, asked, within)
        sums = their_sums()
        if ids is not None and asked is None:
            groups = {id_[:digits] for id_ in ids}
            our_sums = {group: one for group, one in our_sums.items() if group in groups}
            sums = {group: one for group, one in sums.items() if group in groups}
        one = Round(position=self._barrier.position, rows_target=sum(s.rows for s in sums.values()))
        for groups_at_once in differing(our_sums, sums):
            wanted = _asked_for(asked, groups_at_once)
            their_rows = worker.submit(lambda at=wanted: theirs().rows(at, within))  # type: ignore[misc]
            our_rows = ours.rows(wanted, within)
            rows = compare_rows(our_rows, their_rows(), only=among)
            self._note(one, rows, within, described=described, keys=keys)
        if ours.identity() != self._compared.record.identity:
            raise AgainError("the source's table was altered meanwhile")
        return one

    @cached_property
    def _moving(self) -> frozenset[str]:
        """Return the ids of rows that the source's read may have seen newer than they were at the barrier."""
        record, barriers, reader = self._compared.record, self._sides.barriers, self._sides.reader
        with barriers.held() as later:
            moving = self._compared.moving(reader)
            found = moving.ids(self._barrier.position, later.position, self._ours.visibility)
        if reader.is_lost(record.table, record.incarnation, self._barrier.position):
            raise AgainError("the journal does not keep changes as long as the comparison takes", CHANGES_TOO_MUCH)
        return found

    def _note(
        self, one: Round, rows: Sequence[FoundDifferences], within: KeyRange | None, *, described: int, keys: int
    ) -> None:
        """Add rows that differ to the round, with a description while there is room for it."""
        if not rows:
            return
        schema = self._compared.schema
        one.moved.update(found.id for found in rows if found.id in self._moving)
        found = [entry for entry in rows if entry.id not in self._moving]
        one.counts += Counts(**{kind.value: sum(f.rows for f in found if f.kind is kind) for kind in Kind})
        room = max(0, DIFFERENCES_MAX - described - len(one.described))
        to_collect = self._sides.keys_max - keys - len(one.row_keys) if schema.key else 0
        wanted = found[: max(room, to_collect)]
        for start in range(0, len(wanted), DIFFERENCES_MAX):
            entries = wanted[start : start + DIFFERENCES_MAX]
            ids = {entry.id for entry in entries}
            source = self._ours.texts(ids, within)
            target = self._worker.submit(lambda at=ids: self._theirs().texts(at, within))()  # type: ignore[misc]
            shown_now = entries[: max(0, DIFFERENCES_MAX - described - len(one.described))]
            one.described += [self._describe(entry, source, target) for entry in shown_now]
            if to_collect > 0:
                texts = {id_: source.get(id_) or target[id_] for id_ in ids}
                one.row_keys.update(zip(texts, _cursors(schema, list(texts.values())), strict=True))

    def _describe(
        self,
        found: FoundDifferences,
        source: Mapping[str, Mapping[str, str | None]],
        target: Mapping[str, Mapping[str, str | None]],
    ) -> Difference:
        compared = self._compared
        ours, theirs = source.get(found.id, {}), target.get(found.id, {})
        types = {column.name: column.type for column in compared.schema.columns}

        def values(side: Mapping[str, str | None], names: Sequence[str]) -> Mapping[str, str | None]:
            return {name: shown(side.get(name), types[name]) for name in names if name in side}

        key = compared.schema.key or compared.names
        columns: tuple[str, ...] = ()
        if found.kind is Kind.DIFFERENT:
            columns = tuple(name for name in compared.names if ours.get(name) != theirs.get(name))
        with_values = (columns or compared.names) if self._sides.with_values else ()
        return Difference(
            key=values(ours or theirs, key),
            kind=found.kind,
            rows=found.rows,
            columns=columns,
            source=values(ours, with_values),
            target=values(theirs, with_values),
            order=tuple(in_order((ours or theirs).get(name), types[name]) for name in key),
        )


class _Worker:
    """Thread for the target's state."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verify-target")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.submit(self._stack.close).result()
        self._pool.shutdown()

    def enter(self, make: Callable[[], Any]) -> Callable[[], VerifiedState]:
        """Open a context in the thread; return a call that waits for what it yields."""
        future = self._pool.submit(lambda: self._stack.enter_context(make()))
        return future.result

    def submit(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Run a call in the thread; return a call that waits for the answer."""
        return self._pool.submit(call).result


def _cursors(schema: TableSchema, rows: Sequence[Mapping[str, str | None]]) -> Sequence[Cursor]:
    """Return the cursors of rows in canonical form; empty where a part of the key is NULL, or no value of its type.

    A target that stores a type as text may have any text there.
    """
    if not any(row[name] is None for row in rows for name in schema.key):
        with suppress(ValueError, ArithmeticError):
            return cursors([values([row[name] for row in rows], schema.column(name).type) for name in schema.key])
    return [()] if len(rows) == 1 else [cursor for row in rows for cursor in _cursors(schema, [row])]


def _checksums(
    state: VerifiedState, digits: int, among: Among | None, within: KeyRange | None
) -> Mapping[str, Checksum]:
    """Return a side's checksums by group; nothing is read for an empty set of ids."""
    return {} if isinstance(among, Ids) and not among.ids else state.checksums(digits, among, within)


def _asked_for(among: Among | None, groups: Sequence[str]) -> Sequence[str]:
    """Return what to ask for the rows in these groups: their ids, if known, otherwise the groups."""
    if not isinstance(among, Ids):
        return tuple(groups)
    digits, wanted = len(groups[0]), set(groups)
    return tuple(sorted(id_ for id_ in among.ids if id_[:digits] in wanted))
