"""`replicator verify`: compares source and target."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from replicator.journal import JournalReader
from replicator.model.errors import ConfigError, ReplicatorError
from replicator.plugins.registry import Registry
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.runtime.leases import LEASE_S
from replicator.runtime.supervisor import RunOutcome
from replicator.service.configuring.stored import find
from replicator.service.lifecycle import replicated_tables, supervise
from replicator.service.verify.document import (
    VERSION,
    CountsDocument,
    DifferenceDocument,
    VerifiedTableDocument,
    VerifyDocument,
)
from replicator.service.verify.scope import AskedScope
from replicator.state import holder_id
from replicator.state.records import Desired, ReplicatorRecord
from replicator.state.store import StateStore
from replicator.verify import Counts, Judge, Proofs, Repair, Result, Verdict
from replicator.verify.barriers import Barriers, NotVerifiedError

_LOOK_S: Final = 0.1
_REPORTS: Final = (".json", ".md")


def check_report(path: Path) -> None:
    """Refuse a report file of an unknown kind, or one that cannot be written."""
    if path.suffix not in _REPORTS:
        raise ConfigError(
            f"{path} is neither .json nor .md.", code="unknown_report", action="Choose one of these endings."
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path.parent} is not a folder.", code="unknown_report", action="Create it, or choose another."
        )


def verify(
    store: StateStore,
    home: Home,
    registry: Registry,
    name: str,
    tables: Sequence[str],
    *,
    asked: AskedScope = AskedScope(),  # noqa: B008 - frozen
    with_values: bool = False,
    repairs: bool = False,
    tell: Callable[[Verdict], None] = lambda _: None,
    log: Callable[[str], None] = lambda _: None,
) -> Sequence[Verdict]:
    """Compare tables, or all of them, one after the other, while the replicator's worker continues. Without a worker this process is one.

    Args:
        store: The state store.
        home: The home of this host.
        registry: The plugins.
        name: Name of the replicator.
        tables: Names of the tables; none: all.
        asked: Rows to compare, and pace.
        with_values: Describe differences with the values of source and target.
        repairs: Repair rows that differ from the source.
        tell: Called with each table's verdict as soon as there is one.
        log: Called with log lines of a worker that runs here.

    Raises:
        ConfigError: `unknown_replicator`, `unknown_table`, `unknown_row_key`, `journal_too_short`.
        ReplicatorError: `paused`, or source, target or state store cannot be asked.
    """
    record = find(store, name)
    chosen = replicated_tables(store, name, tables)
    if record.desired is not Desired.RUNNING or record.apply_paused:
        raise ReplicatorError(f"{name} is paused.", code="paused", action=f"Run: replicator resume {name}")
    loaded = assembly.load(record, registry)
    scope = asked.scope(store, name, chosen, loaded.config.journal.keep)
    rows_max = loaded.config.verify.repair_rows_max
    with _worked_on(store, home, registry, record, log) as check:
        source = assembly.make_source(loaded, registry, record)
        target = assembly.make_target(loaded, registry, uuid=record.uuid)
        moment = threading.Event()
        barriers = Barriers(store=store, name=name, check=check, wait=lambda: moment.wait(_LOOK_S))
        barriers.forget_old()
        judge = Judge(
            source=source,
            target=target,
            store=store,
            reader=JournalReader(store, name),
            name=name,
            uuid=record.uuid,
            options=loaded.config.tables.options_for,
            barriers=barriers,
            with_values=with_values,
            keys_max=rows_max if repairs else 0,
        )
        visit = asked.visit(store, loaded.config.verify.every, barriers, moment.wait)
        repair = Repair(judge=judge, rows_max=rows_max) if repairs else None
        proofs = Proofs(judge=judge, repair=repair, visit=visit)
        verdicts = list[Verdict]()
        try:
            for table in chosen:
                verdicts.append(proofs.verify(table, scope))
                tell(verdicts[-1])
        finally:
            source.close()
            target.close()
    return verdicts


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 3 if something differs, 1 if a table could not be compared, otherwise 0."""
    results = {verdict.result for verdict in verdicts}
    if Result.DIFFERENT in results:
        return 3
    return 1 if Result.NOT_VERIFIED in results else 0


def document(name: str, verdicts: Sequence[Verdict], *, with_values: bool) -> VerifyDocument:
    """Return the verdicts as `--json` prints them."""
    return VerifyDocument(
        version=VERSION, name=name, tables=tuple(_table(verdict, with_values=with_values) for verdict in verdicts)
    )


def _table(verdict: Verdict, *, with_values: bool) -> VerifiedTableDocument:
    differences = tuple(
        DifferenceDocument(
            key=dict(one.key),
            kind=one.kind.value,
            columns=one.columns,
            source=dict(one.source) if with_values else None,
            target=dict(one.target) if with_values else None,
        )
        for one in verdict.differences
    )
    return VerifiedTableDocument(
        table=str(verdict.table),
        result=verdict.result.value,
        scope=verdict.scope.value,
        sample=verdict.sample,
        keys=verdict.keys,
        reason=verdict.reason,
        action=verdict.action,
        position=verdict.position,
        last_position=verdict.last_position,
        ranges=verdict.ranges,
        ranges_kept=verdict.ranges_kept,
        rows_source=verdict.rows_source,
        rows_target=verdict.rows_target,
        counts=_counts(verdict.counts),
        repaired=None if verdict.repaired is None else _counts(verdict.repaired),
        differences=differences,
        truncated=verdict.is_truncated,
        not_compared=verdict.not_compared,
    )


def _counts(counts: Counts) -> CountsDocument:
    return CountsDocument(missing=counts.missing, extra=counts.extra, different=counts.different)


@contextmanager
def _worked_on(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, log: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Ensure a worker: the one that runs, or one in this process. Yields a check that raises once the worker has stopped."""
    lease = store.leases.acquire(record.name, holder_id(), LEASE_S)
    if lease is None:
        yield lambda: _check_running(store, record.name)
        return
    stop, outcomes = threading.Event(), list[RunOutcome | BaseException]()

    def run() -> None:
        try:
            outcomes.append(
                supervise(
                    store, home, registry, record, stop, refuse_first=False, echo=log, lease=lease, verifies=False
                )
            )
        except BaseException as error:  # noqa: BLE001 - it is raised where the worker is waited for
            outcomes.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    try:
        yield lambda: _check_ended(record.name, outcomes)
    finally:
        stop.set()
        thread.join()


def _check_running(store: StateStore, name: str) -> None:
    record = store.replicator(name)
    if record is None or record.desired is not Desired.RUNNING or record.apply_paused:
        raise NotVerifiedError(f"{name} was paused or deleted meanwhile")
    if record.error is not None or store.leases.current(name) is None:
        raise NotVerifiedError(f"the worker of {name} has ended", f"To see why: replicator status {name}")


def _check_ended(name: str, outcomes: Sequence[RunOutcome | BaseException]) -> None:
    if not outcomes:
        return
    ended = outcomes[0]
    if isinstance(ended, BaseException):
        raise ended
    reason = f": {ended.error}" if ended.error else ""
    raise NotVerifiedError(f"the worker of {name} has ended{reason}", f"To see why: replicator status {name}")
