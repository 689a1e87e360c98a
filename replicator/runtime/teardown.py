"""Deletes a replicator: its objects in the source, its journal, its state; the target's tables only when asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from replicator.config import LoadedConfig
from replicator.journal import check_claim, remove_journal
from replicator.model.crash import crash_point
from replicator.model.deletion import Deletion, DeletionRequest
from replicator.model.errors import ReplicatorError, in_full
from replicator.plugins.registry import Registry
from replicator.plugins.target import TargetTable
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.state.records import Lease, Preparation, ReplicatorRecord, RequestKind
from replicator.state.store import StateStore

_NAMED: Final = 5


def tear_down(
    store: StateStore,
    registry: Registry,
    home: Home,
    record: ReplicatorRecord,
    lease: Lease,
    *,
    before_state: Callable[[Deletion], object] = lambda _: None,
) -> Deletion:
    """Delete everything, the state row last; return what was deleted and what stays.

    Steps: source's log resources → target tables (if asked) → journal → log files → `before_state`, which gets the result so far →
        state row. A crash after any of them leaves the row, desired = deleted, and a repetition continues: each step does nothing when
        there is nothing left. With `force` an unreachable source is skipped and its leftovers are named. Without it a copy of the state
        store is refused (`home_copied`), so that it does not delete what the original uses.
    """
    wishes = [DeletionRequest.read(r.payload) for r in store.requests.open(record.name) if r.kind is RequestKind.DELETE]
    is_forced = any(w.force for w in wishes)
    notes: list[str] = []
    done = Deletion()
    crash_point("delete.begun")
    loaded = _load(record, registry, notes, is_forced=is_forced)
    if not is_forced:
        if loaded is not None and loaded.config.journal.uri is None:
            home.check_journal(record.name, record.journal_uri)
        check_claim(store, record.name, record.journal_uri)
    if loaded is not None:
        done += _clean_source(loaded, registry, record, lease, notes, is_forced=is_forced)
    crash_point("delete.source_cleaned")
    if loaded is not None:
        done += _clean_target(
            store, loaded, registry, record, lease, notes, drops=any(w.drop_target for w in wishes), is_forced=is_forced
        )
    crash_point("delete.target_cleaned")
    done += _remove_journal(record, notes, is_forced=is_forced)
    crash_point("delete.journal_removed")
    own = home.log_file(record.name)
    for log in (own, Path(f"{own}.1"), home.logs / f"{record.name}.spark.log"):
        log.unlink(missing_ok=True)
    shutil.rmtree(home.folder / "spool" / record.name, ignore_errors=True)
    shutil.rmtree(home.folder / "scratch" / record.name, ignore_errors=True)
    done += Deletion(removed=("its state and logs",), notes=tuple(notes))
    crash_point("delete.before_state")
    before_state(done)
    store.delete_replicator(record.name, record.uuid)
    return done


def _load(record: ReplicatorRecord, registry: Registry, notes: list[str], *, is_forced: bool) -> LoadedConfig | None:
    try:
        return assembly.load(record, registry)
    except ReplicatorError as error:
        if not is_forced:
            raise
        notes.append(
            f"The stored configuration cannot be loaded ({in_full(error).message.rstrip('.')})."
            " Nothing was deleted in the source or the target; remove it there by hand."
        )
        return None


def _remove_journal(record: ReplicatorRecord, notes: list[str], *, is_forced: bool) -> Deletion:
    try:
        remove_journal(record.journal_uri, record.uuid)
    except ReplicatorError as error:
        if not is_forced:
            raise
        notes.append(f"The journal {record.journal_uri} was not removed ({error.message}).")
        return Deletion(kept=(f"journal {record.journal_uri}",))
    return Deletion(removed=(f"journal {record.journal_uri}",))


def _clean_source(
    loaded: LoadedConfig,
    registry: Registry,
    record: ReplicatorRecord,
    lease: Lease,
    notes: list[str],
    *,
    is_forced: bool,
) -> Deletion:
    if record.preparation is Preparation.NONE:
        return Deletion()
    source = assembly.make_source(loaded, registry, record, lease.epoch)
    try:
        done = source.remove()
    except ReplicatorError as error:
        if not is_forced:
            raise
        notes += [
            f"The objects in the source were not deleted ({error.message}). Run there: {line}"
            for line in source.leftovers()
        ]
        return Deletion()
    finally:
        source.close()
    removed, kept = ([f"{one} in the source" for one in phrases] for phrases in (done.removed, done.kept))
    return Deletion(removed=tuple(removed), kept=tuple(kept), notes=done.notes)


def _clean_target(
    store: StateStore,
    loaded: LoadedConfig,
    registry: Registry,
    record: ReplicatorRecord,
    lease: Lease,
    notes: list[str],
    *,
    drops: bool,
    is_forced: bool,
) -> Deletion:
    tables = store.tables(record.name)
    target = assembly.make_target(loaded, registry, uuid=record.uuid, epoch=lease.epoch)
    try:
        for table in tables:
            held = TargetTable(table=table.table, uuid=record.uuid, incarnation=table.incarnation, epoch=lease.epoch)
            if drops:
                target.drop(held)
            else:
                target.forget(held)
    except ReplicatorError as error:
        if drops or not is_forced:
            raise
        notes.append(f"The target's internal tables were not removed ({error.message}).")
    finally:
        target.close()
    if not tables:
        return Deletion()
    named = ", ".join(str(table.table) for table in tables[:_NAMED]) + (", …" if len(tables) > _NAMED else "")
    phrase = f"{len(tables)} target table{'' if len(tables) == 1 else 's'} ({named})"
    return Deletion(removed=(phrase,)) if drops else Deletion(kept=(phrase,))
