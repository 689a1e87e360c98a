"""`history`: outcome of changes of tables' definitions, from the state store alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.target import EMPTY_LEDGER
from replicator.service.history.document import (
    HISTORY_VERSION,
    EventDocument,
    HistoryDocument,
    Outcome,
    ShapeDocument,
    TargetDocument,
)
from replicator.service.lifecycle import unknown_tables
from replicator.state.records import (
    AppliedRecord,
    Decision,
    HistoryEntry,
    ReplicatorRecord,
)
from replicator.state.store import StateStore

_LEAVES_THE_TARGET: Final = (Decision.IGNORE, Decision.RECORD, Decision.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A change of a table's definition, and its outcome in the target."""

    entry: HistoryEntry
    target: TargetDocument


def history(store: StateStore, record: ReplicatorRecord, *, table: str | None, limit: int) -> Sequence[Happened]:
    """Return the newest changes of a replicator's tables, or of one of them, oldest first.

    Raises:
        ConfigError: `unknown_table`: it never had a table of that name, or nothing is left of it.
    """
    wanted = None if table is None else _known(store, record.name, table)
    # In this order: what was sealed with the entries is among the journal's numbers, and those may be applied by then.
    entries = store.histories.latest(record.name, limit, table=wanted)
    newest = store.journal.feed_tables(record.name)
    applied = store.applied(record.name)
    return [
        Happened(
            entry=entry,
            target=_outcome(entry, applied.get(entry.table), newest=newest.get(entry.table, EMPTY_LEDGER)),
        )
        for entry in entries
    ]


def document(record: ReplicatorRecord, events: Sequence[Happened]) -> HistoryDocument:
    """Return the document that `history --json` prints."""
    return HistoryDocument(
        version=HISTORY_VERSION, name=record.name, uuid=record.uuid, events=tuple(_event(event) for event in events)
    )


def _known(store: StateStore, name: str, text: str) -> TableId:
    tables = {str(record.table): record.table for record in store.tables(name)}
    if text in tables:
        return tables[text]
    try:
        table = TableId.parse(text)
    except ValueError:
        raise unknown_tables(name, [text], tables) from None
    if not store.histories.latest(name, 1, table=table):
        raise unknown_tables(name, [text], tables)
    return table


def _outcome(entry: HistoryEntry, applied: AppliedRecord | None, *, newest: int) -> TargetDocument:
    """Return the outcome in the target by apply's last record of the table, which follows the target's ledger, never leads it."""
    if entry.decision in _LEAVES_THE_TARGET:
        return TargetDocument(state=Outcome.NOTHING, code=None)
    if applied is None:
        return TargetDocument(state=Outcome.WAITING, code=None)
    if _has_passed(entry, applied, newest):
        return TargetDocument(state=Outcome.APPLIED, code=None)
    if applied.has_failed and applied.error is not None:
        return TargetDocument(state=Outcome.FAILED, code=applied.error.code)
    return TargetDocument(state=Outcome.WAITING, code=None)


def _has_passed(entry: HistoryEntry, applied: AppliedRecord, newest: int) -> bool:
    """Return whether the target has the change. A later incarnation begins with it; a rebuilt one has it once it is whole.

    `newest`: Last number of the table in the journal. Not every change has an event there for the target to apply.
    """
    if entry.decision is Decision.REBUILD:
        return applied.whole > entry.incarnation
    is_replacement = entry.operation is DDLOperation.CREATE_TABLE and entry.incarnation > 1
    if is_replacement and applied.whole < entry.incarnation:
        # Readers see the table before it.
        return False
    if applied.incarnation != entry.incarnation:
        return applied.incarnation > entry.incarnation
    return applied.last_applied >= min(entry.sequence_num, newest)


def _event(event: Happened) -> EventDocument:
    entry = event.entry
    return EventDocument(
        sequence_num=entry.sequence_num,
        offset=None if entry.offset is None else entry.offset.text,
        table=str(entry.table),
        incarnation=entry.incarnation,
        at=entry.at,
        operation=entry.operation,
        changes=entry.changes,
        statement=entry.statement,
        before=ShapeDocument.of(entry.before),
        after=ShapeDocument.of(entry.after),
        new_table=None if entry.new_table is None else str(entry.new_table),
        decision=entry.decision,
        reason=entry.reason,
        target=event.target,
    )
