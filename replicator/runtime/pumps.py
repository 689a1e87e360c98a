"""Builds a pump from the stored configuration, and runs it in this process."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from replicator.config import LoadedConfig
from replicator.journal import (
    JournalClaim,
    JournalReader,
    JournalWriter,
    Retention,
    WriterLimits,
    check_claim,
    check_present,
)
from replicator.model.errors import ConfigError, FencedError, Problem, ReplicatorError, Severity
from replicator.model.naming import check_columns
from replicator.model.processes.control import Control
from replicator.model.schema import TableId, TableSchema
from replicator.observability import get_logger
from replicator.plugins.registry import Registry
from replicator.plugins.source import SourceCatalogue
from replicator.plugins.target import SparkNeeds
from replicator.runtime import assembly, messages
from replicator.runtime.home import Home
from replicator.runtime.policy import RetryBudget, RetryLimits
from replicator.spark import SparkHost
from replicator.state.records import ReplicatorRecord
from replicator.state.store import StateStore

_CORES: Final = os.cpu_count() or 1
_M_MMAP_THRESHOLD: Final = -3  # of malloc.h
_MAPPED_FROM_BYTES: Final = 128 << 10
_log = get_logger(__name__)


def run_capture(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, epoch: int, control: Control
) -> None:
    """Capture until told to stop, or (`snapshot.mode: only`) until every snapshot is complete."""
    from replicator.capture import Capture, CaptureSettings  # a process that applies does without it

    loaded = _load(store, home, registry, record)
    source = assembly.make_source(loaded, registry, record, epoch)
    try:
        selection = assembly.select_tables(source, loaded)
        # After the first seal a finding about a table is that table's (capture sees to it).
        names = {str(table) for table in selection.tables} if store.journal.last_segment(record.name) else set[str]()
        blocking = [p for p in selection.problems if p.severity is Severity.BLOCKING and p.table not in names]
        if blocking:
            raise ConfigError(
                blocking[0].message, code=blocking[0].code, action=blocking[0].action, problems=tuple(blocking)
            )
        lease = store.leases.current(record.name)
        if lease is None or lease.epoch != epoch:
            raise FencedError(f"Another worker has taken over {record.name}. This one stops.", code="fenced")
        journal = loaded.config.journal
        limits = WriterLimits.of(journal)
        capture = Capture(
            source,
            store,
            lease=lease,
            writer=JournalWriter(store, name=record.name, epoch=epoch, uri=record.journal_uri, limits=limits),
            retention=Retention(
                store, record.name, epoch=epoch, keep_s=journal.keep.total_seconds(), bytes_max=journal.bytes_max
            ),
            tables=selection.tables,
            settings=replace(
                CaptureSettings.of(loaded.config, spool=_spool(home, record.name)),
                widens=_widener(loaded, registry, record),
            ),
            select=_selector(source, loaded) if loaded.config.ddl.create_table == "apply" else None,
            assess=_assessor(loaded, registry, record),
        )
        claim = JournalClaim(store=store, lease=lease, uri=record.journal_uri)
        claim.renew()
        with claim.renewed(lambda error: _end(control, error)):
            capture.run(control)
    finally:
        source.close()


def _load(store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord) -> LoadedConfig:
    loaded = assembly.load(record, registry)
    if loaded.config.journal.uri is None:
        home.check_journal(record.name, record.journal_uri)
    check_present(store, record.name, record.journal_uri)
    check_claim(store, record.name, record.journal_uri)
    return loaded


def _end(control: Control, error: ReplicatorError) -> None:
    """End the process at once, as `kill -9` would, with the reason: anything it writes could be useless or harmful."""
    _log.error("journal_lost", code=error.code, error=str(error))
    control.announce(messages.ERROR, **messages.encode_error(error))
    sys.stderr.flush()
    os._exit(1)


def _selector(source: SourceCatalogue, loaded: LoadedConfig) -> Callable[[], Sequence[TableId]]:
    """Return a function that lists the tables that the configuration selects by now."""

    def select() -> Sequence[TableId]:
        return assembly.select_tables(source, loaded).tables

    return select


def _assessor(
    loaded: LoadedConfig, registry: Registry, record: ReplicatorRecord
) -> Callable[[Sequence[TableSchema]], Sequence[Problem]]:
    """Return a function that lists our and the target's findings about tables. A target that cannot be asked now is left to apply."""

    def assess(shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        problems = [problem for schema in shapes for problem in check_columns(schema)]
        target = assembly.make_target(loaded, registry, uuid=record.uuid)
        try:
            problems += target.check(shapes)
        except ReplicatorError as error:
            _log.warning("target_not_checked", code=error.code, reason=error.message, table=error.table)
        finally:
            target.close()
        return problems

    return assess


def _widener(
    loaded: LoadedConfig, registry: Registry, record: ReplicatorRecord
) -> Callable[[pa.DataType, pa.DataType], bool]:
    """Return a function that tells which types the target widens in place."""

    def widens(before: pa.DataType, after: pa.DataType) -> bool:
        target = assembly.make_target(loaded, registry, uuid=record.uuid)
        try:
            return target.widens(before, after)
        finally:
            target.close()

    return widens


def run_apply(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, epoch: int, control: Control
) -> None:
    """Apply until told to stop."""
    from replicator.apply import Apply, ApplySettings  # a process that captures does without it

    return_unused_memory()
    loaded = _load(store, home, registry, record)
    needs = registry.target(loaded.target_type).spark_needs or SparkNeeds()
    spark = SparkHost(
        loaded.config.spark,
        needs,
        cores=_CORES,
        log_file=home.logs / f"{record.name}.spark.log",
        scratch=home.folder / "scratch" / record.name,
    )
    target = assembly.make_target(loaded, registry, uuid=record.uuid, epoch=epoch, spark=spark.session)
    try:
        reader = JournalReader(store, record.name)
        limits = RetryLimits.of(loaded.config.retry)
        settings = ApplySettings.of(
            loaded.config,
            max_wait_s=assembly.max_wait_s(loaded, registry),
            patience=lambda: RetryBudget(limits=limits),
        )
        if target.spark_needs is not None and not store.applied(record.name):
            threading.Thread(target=_start_early, args=(spark,), name="spark-start", daemon=True).start()
        apply = Apply(target, store, reader, name=record.name, uuid=record.uuid, epoch=epoch, settings=settings)
        _log.info("apply_started", target=loaded.target_type)
        apply.run(control)
    finally:
        target.close()
        spark.stop()


def return_unused_memory() -> None:
    """Return a large batch's memory to the system at once: Arrow's own pools keep hundreds of MiB.

    Large buffers get mappings of their own. This costs a fifth of a large batch's processor time (page faults). A user who sets
    `ARROW_DEFAULT_MEMORY_POOL` chooses another pool.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return
    if mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES):
        pa.set_memory_pool(pa.system_memory_pool())


def _start_early(spark: SparkHost) -> None:
    """Start Spark while capture reads the first rows. If that fails, the first table that needs Spark reports it."""
    try:
        spark.session()
    except ReplicatorError as error:
        _log.info("spark_not_started_early", code=error.code)


def _spool(home: Home, name: str) -> Path:
    spool = home.folder / "spool" / name
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    return spool
