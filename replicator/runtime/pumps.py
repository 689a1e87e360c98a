"""Puts a pump together from the stored configuration, and runs it in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from replicator.apply import Apply, ApplySettings, BatchLimits
from replicator.capture import Capture, CaptureSettings
from replicator.config import LoadedConfig
from replicator.journal import JournalReader, JournalWriter, Retention, WriterLimits
from replicator.model.control import Control
from replicator.model.errors import ConfigError, FencedError, Problem, ReplicatorError, Severity
from replicator.model.naming import check_columns
from replicator.model.schema import TableId, TableSchema
from replicator.observability import get_logger
from replicator.plugins.registry import Registry
from replicator.plugins.source import SourceCatalogue
from replicator.plugins.target import SparkNeeds, TableOptions
from replicator.runtime import assembly
from replicator.runtime.home import Home
from replicator.runtime.policy import RetryBudget, RetryLimits
from replicator.spark import SparkHost, SparkSettings
from replicator.state.records import ReplicatorRecord
from replicator.state.store import StateStore

_CORES: Final = os.cpu_count() or 1
_log = get_logger(__name__)


def run_capture(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, epoch: int, control: Control
) -> None:
    """Capture until told to stop, or (`snapshot.mode: only`) until every snapshot is complete."""
    loaded = _load(home, registry, record)
    source = assembly.make_source(loaded, registry, record, epoch)
    try:
        selection = assembly.select_tables(source, loaded)
        # Behind the first seal a finding about a table is that table's (capture sees to it).
        names = {str(table) for table in selection.tables} if store.last_segment(record.name) else set[str]()
        blocking = [p for p in selection.problems if p.severity is Severity.BLOCKING and p.place not in names]
        if blocking:
            raise ConfigError(
                blocking[0].message, code=blocking[0].code, action=blocking[0].action, problems=tuple(blocking)
            )
        lease = store.lease(record.name)
        if lease is None or lease.epoch != epoch:
            raise FencedError(f"epoch {epoch} of {record.name} is over", code="fenced")
        journal = loaded.config.journal
        limits = WriterLimits(
            segment_rows=journal.segment_rows, segment_bytes=journal.segment_bytes, bytes_max=journal.bytes_max
        )
        capture = Capture(
            source,
            store,
            lease=lease,
            writer=JournalWriter(store, name=record.name, epoch=epoch, uri=record.journal_uri, limits=limits),
            retention=Retention(
                store, record.name, epoch=epoch, keep_s=journal.keep.total_seconds(), bytes_max=journal.bytes_max
            ),
            tables=selection.tables,
            settings=_capture_settings(loaded, home),
            select=_selector(source, loaded) if loaded.config.ddl.create_table == "apply" else None,
            assess=_assessor(loaded, registry, record),
        )
        capture.run(control)
    finally:
        source.close()


def _load(home: Home, registry: Registry, record: ReplicatorRecord) -> LoadedConfig:
    loaded = assembly.load(record, registry)
    if loaded.config.journal.uri is None:
        home.check_journal(record.name, record.journal_uri)
    return loaded


def _selector(source: SourceCatalogue, loaded: LoadedConfig) -> Callable[[], Sequence[TableId]]:
    """Says which tables the configuration selects by now."""

    def select() -> Sequence[TableId]:
        return assembly.select_tables(source, loaded).tables

    return select


def _assessor(
    loaded: LoadedConfig, registry: Registry, record: ReplicatorRecord
) -> Callable[[Sequence[TableSchema]], Sequence[Problem]]:
    """Says what we and the target find against tables. A target that cannot be asked now finds nothing: apply will meet it."""

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


def run_apply(
    store: StateStore, home: Home, registry: Registry, record: ReplicatorRecord, epoch: int, control: Control
) -> None:
    """Apply until told to stop."""
    loaded = _load(home, registry, record)
    needs = registry.target(loaded.target_type).spark_needs or SparkNeeds()
    spark = SparkHost(_spark_settings(loaded, home, needs), cores=_CORES)
    target = assembly.make_target(loaded, registry, uuid=record.uuid, epoch=epoch, spark=spark.session)
    try:
        reader = JournalReader(store, record.name)
        settings = _apply_settings(loaded, target.context.max_wait_s)
        Apply(target, store, reader, name=record.name, uuid=record.uuid, epoch=epoch, settings=settings).run(control)
    finally:
        target.close()
        spark.stop()


def _capture_settings(loaded: LoadedConfig, home: Home) -> CaptureSettings:
    config = loaded.config
    spool = home.folder / "spool" / config.name
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    return CaptureSettings(
        snapshot_mode=config.snapshot.mode,
        chunk_rows=config.snapshot.chunk_rows,
        give_up_after_s=config.retry.give_up_after.total_seconds(),
        seal_every_s=config.journal.seal_every.total_seconds(),
        seal_gap_s=config.journal.seal_every.total_seconds(),
        unexplained_change=config.snapshot.unexplained_change,
        truncate=config.ddl.truncate_table,
        drop_table=config.ddl.drop_table,
        spool=spool,
    )


def _apply_settings(loaded: LoadedConfig, max_wait_s: float) -> ApplySettings:
    tables = loaded.config.tables
    apply = loaded.config.apply

    def options(table: TableId) -> TableOptions:
        settings = tables.settings_for(table)
        return TableOptions(deletes=settings.deletes, source_timestamp=settings.source_timestamp)

    limits = RetryLimits.of(loaded.config.retry)
    return ApplySettings(
        tables_parallel=apply.tables_parallel,
        max_wait_s=max_wait_s,
        batch=BatchLimits(rows=apply.batch_rows_max, bytes=apply.batch_bytes_max),
        options=options,
        selects=cache(lambda table: bool(tables.select([table]).tables)),
        patience=lambda: RetryBudget(limits=limits),
    )


def _spark_settings(loaded: LoadedConfig, home: Home, needs: SparkNeeds) -> SparkSettings:
    spark = loaded.config.spark
    return SparkSettings(
        master=spark.master,
        needs=needs,
        packages=spark.packages,
        jars=spark.jars,
        settings=spark.settings,
        log_file=home.logs / f"{loaded.config.name}.spark.log",
        scratch=home.folder / "scratch" / loaded.config.name,
        executors_timeout_s=spark.executors_timeout.total_seconds(),
    )
