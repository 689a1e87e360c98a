"""Checks of the journal and of the target's ledger, before and while a table is applied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from replicator.apply import restored
from replicator.apply.context import ApplyContext
from replicator.apply.plan import Item, last_number, told_phase
from replicator.model.errors import CorruptStreamError, FatalError, TableError
from replicator.model.events import SnapshotPhase
from replicator.model.schema import TableId
from replicator.plugins.target import EMPTY_LEDGER, Ledger
from replicator.state.records import AppliedRecord, SegmentFile


def check_store(context: ApplyContext, record: AppliedRecord, found: Ledger | None) -> None:
    """Refuse to continue if the target knows more than this state store, which then was restored from a backup.

    Raises:
        FencedError: The target knows more because another process has the lease by now.
        FatalError: `ledger_ahead`.
    """
    if found is None:
        return
    newest, sealed_by = (
        context.newest_number(),
        context.store.journal.sealed_by(context.name, found.last_applied),
    )
    reason = restored.proof(found, record, newest=newest, sealed_by=sealed_by)
    if reason is None:
        return
    context.check_lease()
    raise FatalError(
        f"The target {reason}: the state store is older than the target.",
        code="ledger_ahead",
        table=str(record.table),
        action=f"Restore the newest state store; or run `replicator delete {context.name} --drop-target`, and run its file again.",
    )


def missed(
    context: ApplyContext, record: AppliedRecord, upto: int
) -> tuple[Sequence[SegmentFile], SnapshotPhase | None]:
    """Return what the target has applied and the record lacks, because a process ended between the two.

    Returns:
        The files; the last phase of a snapshot, if any.
    """
    phase, after = None, record.last_applied
    files: list[SegmentFile] = []
    page = context.settings.feed_items
    while after < upto:
        window = context.reader.feed(record.table, after, page)
        for item in window:
            if item.incarnation != record.incarnation or last_number(item) > upto:
                continue
            if isinstance(item, SegmentFile):
                files.append(item)
            else:
                phase = told_phase(item) or phase
        if len(window) < page:
            break
        after = last_number(window[-1])
    return files, phase


def check_kept(context: ApplyContext, table: TableId, incarnation: int, ledger: int) -> None:
    """Check that the journal has everything of the table above the ledger.

    Raises:
        TableError: `journal_gap`.
    """
    if context.reader.is_lost(table, incarnation, ledger):
        raise TableError(
            f"The journal no longer has every change after number {ledger}, the last one that the target applied.",
            code="journal_gap",
            table=str(table),
            action=f"Run `replicator snapshot {context.name} {shlex.quote(str(table))}`.",
        )


def check_beginning(context: ApplyContext, table: TableId, items: Sequence[Item]) -> None:
    """Tell damage from retention where the beginning of the newest incarnation is missing.

    Raises:
        TableError: `journal_gap`: retention dropped it before it was applied.
    """
    if context.reader.is_lost(table, max(item.incarnation for item in items), EMPTY_LEDGER):
        raise TableError(
            "The journal no longer has the beginning of the table's newest snapshot.",
            code="journal_gap",
            table=str(table),
            action=f"Run `replicator snapshot {context.name} {shlex.quote(str(table))} --recreate`.",
        )


def check_file(context: ApplyContext, table: TableId, file: SegmentFile) -> None:
    """Check a file: one that is damaged or lacks values costs its table a new snapshot; other tables are not affected."""
    try:
        context.reader.check(file)
    except CorruptStreamError as error:
        raise TableError(
            error.message,
            code=error.code,
            table=str(table),
            action=f"Run `replicator snapshot {context.name} {shlex.quote(str(table))}`.",
        ) from error
    if file.has_absent and (count := context.reader.partial_inserts(file)):
        raise TableError(
            f"The log has {count} INSERT{'s' if count > 1 else ''} with missing column values. Only a new snapshot can read them.",
            code="insert_lacks_columns",
            table=str(table),
            action=f"Run `replicator snapshot {context.name} {shlex.quote(str(table))}`.",
        )


def position(context: ApplyContext, file: SegmentFile) -> str | None:
    """Return the position in the source's log after the commit that sealed a file; None if unknown."""
    found = context.store.journal.segments(context.name, file.seal - 1, 1)
    offset = found[0].offset if found and found[0].id == file.seal else None
    return None if offset is None else str(offset)
