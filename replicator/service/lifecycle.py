"""`start`, `run`, `pause`, `resume`, `delete`, `snapshot`: writes to the desired state, and the worker that acts on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from replicator.config import LoadedConfig, nearest
from replicator.model.crash import crash_point
from replicator.model.deletion import Deletion, DeletionRequest
from replicator.model.errors import ConfigError, FencedError, ReplicatorError, StateUnavailableError
from replicator.model.events import SnapshotKind
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.registry import Registry
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.runtime.leases import LEASE_S, renewed
from replicator.runtime.logfile import LogFile
from replicator.runtime.policy import RetryBudget, RetryLimits
from replicator.runtime.supervisor import End, RunOutcome, Supervisor
from replicator.runtime.teardown import tear_down
from replicator.service.configuring.assess import Assessment, assess
from replicator.service.configuring.stored import being_deleted, find, find_kept
from replicator.state import holder_id, holder_in_words, table_life
from replicator.state.records import CHANGED_ONLY, Desired, Lease, ReplicatorRecord, RequestKind
from replicator.state.store import StateStore

_LOOK_S: Final = 0.5
_ANSWER_S: Final = 5.0
"""Time that a worker that has deleted a replicator waits until the command that asked has read the result."""
_log = get_logger(__name__)


def put(store: StateStore, home: Home, registry: Registry, loaded: LoadedConfig) -> tuple[ReplicatorRecord, Assessment]:
    """Assess a configuration, then store it: new, or in place of the one of the same name and identity.

    Raises:
        ConfigError: A blocking finding (once something was sealed: one that is not about single tables, which fail alone), or another
            identity under the same name. Nothing is stored then.
    """
    name = loaded.config.name
    record = store.replicator(name)
    if record and record.desired is Desired.DELETED:
        raise being_deleted(name)
    has_begun = record is not None and store.journal.last_segment(name) is not None
    assessment = assess(loaded, registry, home, uuid=record.uuid if record else "", may_retry=has_begun)
    if assessment.is_blocked_for_all if has_begun else assessment.is_blocked:
        raise ConfigError(
            f"{name} cannot be replicated as configured.", code="assessment_failed", problems=tuple(assessment.problems)
        )
    if record is None:
        record = store.create_replicator(name, loaded.document, loaded.config.journal.uri or home.journal_uri(name))
    else:
        if loaded.config.journal.uri is None:
            home.check_journal(name, record.journal_uri)
        _compare_journal(record, loaded.config.journal.uri)
        if record.identity and assessment.identity:
            _compare_identity(name, record.identity, assessment.identity)
    store.set_config(name, loaded.document)
    if assessment.identity and not record.identity:
        store.set_identity(name, assessment.identity)
    return find(store, name), assessment


def start(store: StateStore, record: ReplicatorRecord) -> None:
    """Ask for a replicator to run. A worker must exist to act on it."""
    store.set_error(record.name, None)
    crash_point("resume.error_cleared")
    store.set_desired(record.name, Desired.RUNNING)


def start_unless_paused(store: StateStore, record: ReplicatorRecord) -> None:
    """Start a replicator unless it is paused.

    Raises:
        ReplicatorError: `paused`: the operator paused the replicator, or its writes to the target.
    """
    if record.desired is Desired.PAUSED or record.apply_paused:
        what = "paused" if record.desired is Desired.PAUSED else "paused (writes to the target only)"
        raise ReplicatorError(
            f"{record.name} is {what}.", code="paused", action=f"Run: replicator resume {record.name}"
        )
    start(store, record)


def pause(store: StateStore, name: str, *, apply_only: bool) -> None:
    """Ask for a replicator to pause, keeping its position; with `apply_only` capture continues."""
    find_kept(store, name)
    store.set_desired(name, Desired.RUNNING if apply_only else Desired.PAUSED, apply_paused=apply_only)
    crash_point("pause.recorded")


def resume(store: StateStore, name: str) -> None:
    """Ask for a paused replicator to run again."""
    start(store, find_kept(store, name))


def snapshot(
    store: StateStore,
    name: str,
    tables: Sequence[str],
    *,
    restart: bool = False,
    changed_only: bool = False,
    recreate: bool = False,
    since: datetime | None = None,
) -> Sequence[TableId]:
    """Ask for new snapshots: of some tables, of all, or (`restart`) of all from a new log position.

    With `changed_only` the log begins at a new position, too, but only rows that differ are read. With `recreate` the target's tables are
    created again, with the current settings and columns; otherwise they are updated in place. With `since` tables for which this was
    requested since then are skipped, so that a call can be repeated.

    Returns the tables; ConfigError if one is not replicated.
    """
    record = find_kept(store, name)
    chosen = replicated_tables(store, name, tables)
    option = "--changed-only" if changed_only else "--restart"
    if (restart or changed_only) and tables:
        raise ConfigError(
            f"{option} applies to all tables. Leave the table names out.",
            code="restart_with_tables",
            action="To read rows of some tables again that differ, while the log is there: replicator verify NAME TABLE --repair.",
        )
    if (restart or changed_only) and recreate:
        raise ConfigError(
            f"{option} and --recreate cannot be combined. Run {option} first, then --recreate.",
            code="restart_with_recreate",
        )
    kind = RequestKind.RECREATE if recreate else RequestKind.SNAPSHOT
    if since is not None and (restart or changed_only):
        if _is_restarted_since(store, name, since):
            return ()
    elif since is not None:
        known = _snapshots_since(store, name, kind, since)
        chosen = [table for table in chosen if str(table) not in known]
        if not chosen:
            return ()
        tables = sorted(map(str, chosen))
    payload: dict[str, Any] = {"tables": list(tables) or sorted(map(str, chosen))}
    if restart or changed_only:
        kind = RequestKind.RESTART
        payload |= {CHANGED_ONLY: True} if changed_only else {}
    store.requests.add(name, kind, payload)
    if record.desired is Desired.RUNNING:
        store.set_error(name, None)
    return chosen


def _is_restarted_since(store: StateStore, name: str, since: datetime) -> bool:
    """Return whether a new position with new snapshots of all tables was requested, or taken, since a time."""
    # In this order: a request that is done by now is noted in the record.
    is_asked = any(
        request.kind is RequestKind.RESTART and request.created_at >= since and not request.payload.get(CHANGED_ONLY)
        for request in store.requests.open(name)
    )
    restarted_at = find(store, name).restarted_at
    return is_asked or (restarted_at is not None and restarted_at >= since)


def _snapshots_since(store: StateStore, name: str, kind: RequestKind, since: datetime) -> set[str]:
    """Return the tables for which a snapshot was requested, or has begun, since a time; for RECREATE only snapshots into new tables."""
    # In this order: a request that is done by now has its snapshot among the tables.
    requests = [
        request for request in store.requests.open(name) if request.kind is kind and request.created_at >= since
    ]
    kinds = (SnapshotKind.FIRST,) if kind is RequestKind.RECREATE else (SnapshotKind.FIRST, SnapshotKind.IN_PLACE)
    begun = {
        str(record.table)
        for record in store.tables(name)
        if (progress := record.snapshot) is not None
        and progress.started_at is not None
        and progress.started_at >= since
        and progress.kind in kinds
    }
    return begun.union(*(request.payload["tables"] for request in requests))


def replicated_tables(store: StateStore, name: str, tables: Sequence[str]) -> Sequence[TableId]:
    """Return the replicated tables of these names, or all; ConfigError if one is not replicated."""
    known = {str(t.table): t.table for t in store.tables(name) if table_life.is_replicated(t)}
    unknown = [t for t in tables if t not in known]
    if unknown:
        raise unknown_tables(name, unknown, known)
    return [known[t] for t in tables] if tables else list(known.values())


def unknown_tables(name: str, unknown: Sequence[str], known: Mapping[str, TableId]) -> ConfigError:
    """Return the error about tables that a replicator does not have; `known` are those that it has, by name."""
    near = nearest(unknown[0], [*known, *(t.name for t in known.values())])
    meant = next((text for text, t in known.items() if near in (text, t.name)), None)
    return ConfigError(
        f"{name} does not replicate {', '.join(unknown)}.",
        code="unknown_table",
        action=f"{f'Did you mean {meant}? ' if meant else ''}Its tables: {', '.join(sorted(known)) or 'none yet'}.",
    )


def take(store: StateStore, name: str) -> Lease:
    """Take the lease of a replicator, for `supervise`.

    Raises:
        ConfigError: `already_running`: another process holds it.
    """
    lease = store.leases.acquire(name, holder_id(), LEASE_S)
    if lease is None:
        raise _already_running(store, name)
    return lease


def supervise(
    store: StateStore,
    home: Home,
    registry: Registry,
    record: ReplicatorRecord,
    stop: threading.Event,
    *,
    until_caught_up: bool = False,
    refuse_first: bool = True,
    echo: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
    lease: Lease | None = None,
    verifies: bool = True,
) -> RunOutcome:
    """Run as the worker of one replicator until `stop`, or until there is nothing left to do.

    Once it has lost the lease it takes it again, unless another worker has taken it meanwhile: then it fails with a FencedError.
    With `verifies` its tables are verified as `verify.every` says, unless it ends once it has caught up. Tables that lost some of the log
    are compared in any case.

    Raises:
        ConfigError: `already_running`: another process holds the lease.
    """
    home.ensure()
    lease = lease or take(store, record.name)
    limits = RetryLimits.of(assembly.load(record, registry).config.retry)
    log = LogFile(home.log_file(record.name), echo)
    budget = RetryBudget(limits=limits)
    while True:
        try:
            supervisor = Supervisor(
                store,
                record.name,
                log=log,
                limits=limits,
                delete=lambda doomed, held: _delete_here(store, registry, home, doomed, held),
                environ={
                    "REPLICATOR_HOME": str(home.folder),
                    "REPLICATOR_STATE_URL": home.state_url,
                    **(environ or {}),
                },
                until_caught_up=until_caught_up,
                refuse_first=refuse_first,
                progressed=budget.progressed,
                verifies=_compares(
                    store, _has_schedule(registry) if verifies and not until_caught_up else lambda _: False
                ),
                read_limits=lambda changed: RetryLimits.of(assembly.load(changed, registry).config.retry),
            )
            outcome = supervisor.run(lease, stop)
        except StateUnavailableError as error:
            outcome = RunOutcome(end=End.FAILED, error=error)
        if not outcome.is_passing:
            return outcome
        try:
            regained = _regain_lease(store, lease, budget, stop)
        except FencedError as error:
            return RunOutcome(end=End.FAILED, error=error)
        if regained is None:
            return outcome
        lease = regained


def _compares(
    store: StateStore, has_schedule: Callable[[ReplicatorRecord], bool]
) -> Callable[[ReplicatorRecord], bool]:
    """Return a function that tells whether tables are to be compared: because a part of the log was lost, or by a schedule."""
    return lambda record: store.verifications.is_comparing(record.name) or has_schedule(record)


def _has_schedule(registry: Registry) -> Callable[[ReplicatorRecord], bool]:
    """Return a function that tells whether a replicator's configuration has `verify.every`."""
    known: dict[str, bool] = {}

    def has_schedule(record: ReplicatorRecord) -> bool:
        if record.config not in known:
            known.clear()
            try:
                known[record.config] = assembly.load(record, registry).config.verify.every is not None
            except ReplicatorError as error:
                # Capture and apply read it, too, and fail for it.
                _log.info("schedule_not_read", replicator=record.name, code=error.code)
                known[record.config] = False
        return known[record.config]

    return has_schedule


def _already_running(store: StateStore, name: str) -> ConfigError:
    """Return the error that names the process that runs it, and since when if known (the holder may have just ended)."""
    lease = store.leases.current(name)
    run = next((run for run in store.runs.latest(name) if lease is not None and run.epoch == lease.epoch), None)
    since = f" since {run.started_at.astimezone():%Y-%m-%d %H:%M:%S %Z}" if run is not None else ""
    return ConfigError(
        f"{name} is already run by {holder_in_words(lease.holder) if lease else 'another process'}{since}.",
        code="already_running",
        action=f"To see what it does: replicator status {name}. To run it here instead, stop that process first.",
    )


def _delete_here(store: StateStore, registry: Registry, home: Home, record: ReplicatorRecord, lease: Lease) -> None:
    done = tear_down(store, registry, home, record, lease, before_state=lambda done: _answer(store, record.name, done))
    for note in done.notes:
        _log.warning("not_deleted", replicator=record.name, note=note)


def _answer(store: StateStore, name: str, done: Deletion) -> None:
    """Tell the waiting commands what was deleted, while the state still holds their requests. A killed command does not answer."""
    end = time.monotonic() + _ANSWER_S
    while True:
        asked = {
            r.id: DeletionRequest.read(r.payload) for r in store.requests.open(name) if r.kind is RequestKind.DELETE
        }
        awaited = {id_: one for id_, one in asked.items() if one.is_awaited and not one.is_read}
        if not awaited or time.monotonic() > end:
            return
        for id_, one in awaited.items():
            if one.answer is None:
                store.requests.replace(id_, one.model_copy(update={"answer": done}).model_dump(mode="json"))
        time.sleep(_LOOK_S)


def _regain_lease(store: StateStore, lost: Lease, budget: RetryBudget, stop: threading.Event) -> Lease | None:
    """Take the lease again within the retry budget, after the state store was unavailable for longer than it, or the host was exhausted.

    A host that was asleep learns here, too, what happened meanwhile: FencedError if another worker has taken over.
    """
    name = lost.replicator
    while (delay := budget.delay(time.monotonic())) is not None and not stop.wait(delay):
        try:
            if lease := store.leases.acquire(name, holder_id(), LEASE_S):
                return lease
            store.leases.check_epoch(name, lost.epoch)
        except StateUnavailableError as error:
            _log.warning("state_store_unavailable", replicator=name, error=str(error), attempt=budget.attempts)
    return None


def request_delete(store: StateStore, name: str, *, drop_target: bool, force: bool, is_awaited: bool = False) -> int:
    """Ask for a replicator to be deleted; return the request's id. A worker must exist to act on it; see also `delete`."""
    find(store, name)
    asked = DeletionRequest(drop_target=drop_target, force=force, is_awaited=is_awaited)
    store.set_error(name, None)
    request = store.requests.add(name, RequestKind.DELETE, asked.model_dump(mode="json"))
    store.set_desired(name, Desired.DELETED)
    return request


def delete(
    store: StateStore,
    home: Home,
    registry: Registry,
    name: str,
    *,
    drop_target: bool,
    force: bool,
) -> Deletion:
    """Delete a replicator: by its live worker if it has one, else here. Can be repeated from any half-way point.

    Returns what was deleted and what stays.
    """
    record = find(store, name)
    request = request_delete(store, name, drop_target=drop_target, force=force, is_awaited=True)
    done = Deletion()
    while True:
        try:
            done = _read_answer(store, name, request) or done
            lease = store.leases.acquire(name, holder_id(), LEASE_S)
            current = find(store, name)
        except ConfigError:
            return done  # by its worker
        if current.uuid != record.uuid:
            # Deleted by its worker, and another one of this name was created.
            if lease is not None:
                store.leases.release(lease)
            return done
        if lease is not None:
            with renewed(store, lease, lambda error: _log.warning("lease_lost", replicator=name, error=str(error))):
                return tear_down(store, registry, home, current, lease)
        if error := current.error:
            raise ReplicatorError(
                f"The worker of {name} could not delete it: {error.message}", code=error.code, action=error.action
            )
        time.sleep(_LOOK_S)


def _read_answer(store: StateStore, name: str, request: int) -> Deletion | None:
    """Return what the worker says it has deleted, once it has; tell it that this was read."""
    asked = next((DeletionRequest.read(r.payload) for r in store.requests.open(name) if r.id == request), None)
    if asked is None or asked.answer is None:
        return None
    store.requests.replace(request, asked.model_copy(update={"is_read": True}).model_dump(mode="json"))
    return asked.answer


def _compare_journal(record: ReplicatorRecord, uri: str | None) -> None:
    """Refuse to abandon a journal: its contents are nowhere else."""
    if uri is not None and uri != record.journal_uri:
        raise ConfigError(
            f"{record.name} is stored with the journal {record.journal_uri}, now {uri}.",
            code="identity_changed",
            action=f"Restore the old journal.uri, or delete the stored one first: replicator delete {record.name}",
        )


def _compare_identity(name: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a file of the same name that means another source or target."""
    differences = [
        f"{side}.{key}: stored {stored[side].get(key)!r}, now {now[side].get(key)!r}"
        for side in ("source", "target")
        for key in sorted({*stored[side], *now[side]})
        if stored[side].get(key) != now[side].get(key)
    ]
    if differences:
        raise ConfigError(
            f"{name} is stored with another source or target: {'; '.join(differences)}.",
            code="identity_changed",
            action=f"Give the file another name, or delete the stored one first: replicator delete {name}",
        )
