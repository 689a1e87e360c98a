"""Applies a batch by Spark: a MERGE, or an append where the batch allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replicator.model.errors import FatalError
from replicator.plugins.kit.ledger import fenced, not_ours
from replicator.plugins.target import Batch
from replicator_target_delta.errors import is_missing, refuse_columns_of_others
from replicator_target_delta.held import HeldTable
from replicator_target_delta.ledger import Entry, Transaction, check_last, claim_lost, exists, identified
from replicator_target_delta.log.table import UUID, read_log
from replicator_target_delta.storage import Storage

if TYPE_CHECKING:
    from replicator_target_delta.spark.merge import Merging


def check_claim(held: HeldTable, storage: Storage) -> int:
    """Verify our claim; return our ledger in the table's log, as Delta keeps it.

    Delta compares a statement's identifier with the log that it finds: one that was recreated has nothing to compare with.

    Raises:
        TableError: `not_ours`.
        TargetUnavailableError, FencedError: Our claim is not there, or not as we left it (`check_last`).
    """
    table, log = held.table, read_log(storage, held.path)
    if log is not None and log.properties.get(UUID) != table.uuid:
        raise not_ours(table.table, log.properties.get(UUID), "target.path")
    recorded = None if log is None else log.transactions.get(table.ledger_name)
    if recorded is None:
        raise claim_lost(table)
    check_last(table, Entry.of(recorded), held.last)
    assert log is not None, "it has our ledger"
    if exists(table, log.properties):
        refuse_columns_of_others(str(table.table), log.metadata)
    return recorded


def apply_batch(held: HeldTable, batch: Batch, uris: Sequence[str], storage: Storage) -> Mapping[str, Any] | None:
    """Write the batch; None if Delta skipped it."""
    from replicator.spark.journal import read_changes
    from replicator_target_delta.spark import statements as merge
    from replicator_target_delta.spark.merge import merging_of

    before = check_claim(held, storage)
    changes = read_changes(held.session, uris, batch.schema, skip_to=batch.skip_to)
    if batch.is_append:
        return _append(held, batch, changes, before, storage)
    merging = merging_of(held.session, held.path, held.table, batch, changes)
    merging.source.createOrReplaceTempView(merge.VIEW)
    try:
        counts = _merge(held, batch, merging)
    finally:
        held.session.catalog.dropTempView(merge.VIEW)
    return {"way": "merge", **counts[0].asDict()} if counts else None


def _merge(held: HeldTable, batch: Batch, merging: Merging) -> Any:
    """Run the merge; its counts, none if Delta skipped it.

    As long as nothing is missing, the merge itself sees that. One that fails because a row is missing has committed nothing: the
    missing rows are counted, and the batch is merged all the same.
    """
    if merging.checked is not None and not held.lacks_rows:
        try:
            with identified(held.session, held.table, batch.last):
                return held.session.sql(merging.checked).collect()
        except Exception as error:
            if not is_missing(error):
                raise
            held.lacks_rows = True
    with identified(held.session, held.table, batch.last, merging.note() if batch.expects_rows else None):
        return held.session.sql(merging.statement).collect()


def _append(held: HeldTable, batch: Batch, changes: Any, before: int, storage: Storage) -> Mapping[str, Any] | None:
    from replicator_target_delta.spark import statements as merge

    rows = merge.append_rows(changes, batch.schema, held.table.options)
    # Unlike a merge, an append does not say whether Delta skipped it: the log does, by the number it had before
    # and has now.
    version = Entry(held.table.epoch, batch.last).version
    if before >= version:
        return None
    with identified(held.session, held.table, batch.last):
        rows.write.format("delta").mode("append").save(held.path)
    return {"way": "append", "rows": batch.rows} if recorded(held, storage) == version else None


def recorded(held: HeldTable, storage: Storage) -> int | None:
    """Our ledger in the table's log now, as Delta keeps it; None if it has none."""
    log = read_log(storage, held.path)
    return log.transactions.get(held.table.ledger_name) if log else None


def check_applied(held: HeldTable, last: int) -> None:
    """Verify, after Delta skipped a write, that it had been written before.

    Raises:
        FencedError: A newer epoch holds the table.
        FatalError: It was not: ledger and statement disagree.
    """
    table = held.table
    entry = Entry.of(Transaction(held.session, held.path).transactions.get(table.ledger_name))
    if entry is not None and entry.epoch > table.epoch:
        raise fenced(table, entry.epoch, table.incarnation)
    if entry is None or entry.last < last:
        raise FatalError(
            f"Delta skipped a batch up to {last}, and the ledger says {entry}.",
            code="ledger_disagrees",
            table=str(table.table),
        )
