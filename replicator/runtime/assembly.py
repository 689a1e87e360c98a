"""Builds source and target of a replicator from its stored configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from replicator.config import LoadedConfig
from replicator.model.errors import Problem
from replicator.model.naming import check_names
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.plugins.source import DeltaSource, SourceCatalogue, SourceContext, TableSummary
from replicator.plugins.target import DeltaTarget, TargetContext
from replicator.runtime.reloading import ON_THE_SIDE
from replicator.state.records import ReplicatorRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTables:
    """The tables that a configuration names.

    `left_out` are tables that the patterns match but that cannot be replicated as tables of their own (views, partitions, …).
    """

    tables: tuple[TableId, ...]
    left_out: tuple[TableSummary, ...]
    problems: tuple[Problem, ...]


def load(record: ReplicatorRecord, registry: Registry, *, without: Collection[str] = ON_THE_SIDE) -> LoadedConfig:
    """Read a stored YAML document with the models of the installed plugins.

    Processes that move data leave out the sections that only the watching process needs: a variable missing there stops no data.
    """
    return registry.load(record.config, origin=f"{record.name} (stored)", without=without)


def make_source(
    loaded: LoadedConfig, registry: Registry, record: ReplicatorRecord | None = None, epoch: int = 0
) -> DeltaSource[Any]:
    """The source plugin, not connected yet."""
    context = SourceContext(replicator=loaded.config.name, uuid=record.uuid if record else "", epoch=epoch)
    return registry.source(loaded.source_type)(loaded.source, context)


def make_target(
    loaded: LoadedConfig,
    registry: Registry,
    *,
    uuid: str = "",
    epoch: int = 0,
    spark: Callable[[], Any] | None = None,
) -> DeltaTarget[Any]:
    """The target plugin, not connected yet."""
    made = registry.target(loaded.target_type)
    context = TargetContext(
        replicator=loaded.config.name,
        uuid=uuid,
        epoch=epoch,
        spark=spark,
        max_wait_s=max_wait_s(loaded, registry),
    )
    return made(loaded.target, context)


def max_wait_s(loaded: LoadedConfig, registry: Registry) -> float:
    """Return `apply.max_wait` in seconds: the configuration's, or else the target's default."""
    wait = loaded.config.apply.max_wait
    return (
        registry.target(loaded.target_type).default_max_wait_s(loaded.target) if wait is None else wait.total_seconds()
    )


def select_tables(source: SourceCatalogue, loaded: LoadedConfig) -> SelectedTables:
    """Apply the patterns of `tables:` to the tables that the source offers; report a problem if nothing is left or names clash."""
    offered = source.list_tables()
    by_table = {summary.table: summary for summary in offered}
    replicable = [s.table for s in offered if s.left_out is None]
    chosen = loaded.config.tables.select(replicable)
    left_out = loaded.config.tables.select([s.table for s in offered if s.left_out is not None]).tables
    return SelectedTables(
        tables=chosen.tables,
        left_out=tuple(by_table[t] for t in left_out),
        problems=(*chosen.problems, *check_names(chosen.tables)),
    )
