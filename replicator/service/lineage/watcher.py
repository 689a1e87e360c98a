"""Checks replicators, and sends the OpenLineage events that are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from uuid import UUID

from pydantic import ValidationError

from replicator.config import LoadedConfig
from replicator.model.counts import CounterName, Counts
from replicator.model.errors import ConfigError, StateUnavailableError
from replicator.model.processes.reports import RefusedReport
from replicator.model.schema import TableId
from replicator.observability import get_logger
from replicator.plugins.lineage import SupportsLineage
from replicator.plugins.registry import Registry
from replicator.projection.columns import NO_PROJECTION
from replicator.runtime import assembly
from replicator.service.configuring.stored_settings import stored_document
from replicator.service.lineage.advance import Due, LineageCursor, SeenTable, advance
from replicator.service.lineage.sinks import LineageQueue
from replicator.state import table_life
from replicator.state.records import AppliedRecord, ReplicatorRecord, TableRecord
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob

TTL_S = 60.0
_log = get_logger(__name__)


def has_lineage(config: str) -> bool:
    """Return whether a stored configuration has a block `lineage:`."""
    return "lineage" in config and bool(stored_document(config).values.get("lineage"))


class LineageWatcher:
    """Watches replicators of a state store. Another process may watch others.

    The cursor is stored when events are queued. A crash loses those that wait; the next periodic ones say the same again.

    Args:
        holder: This process, as `holder_id` names it.
        names: Replicators to watch; None: all.
    """

    def __init__(
        self, store: StateStore, holder: str, registry: Registry, names: Collection[str] | None = None
    ) -> None:
        self._store, self._holder, self._registry, self._names = store, holder, registry, names
        self._queues: dict[str, LineageQueue] = {}
        self._refused: set[tuple[str, str]] = set()

    def look(self) -> None:
        """Queue the events that are due. Waits for nobody.

        Raises:
            StateUnavailableError: The state store is unavailable.
        """
        for record in self._store.replicators():
            if (self._names is not None and record.name not in self._names) or not has_lineage(record.config):
                continue
            try:
                self._watch(record)
            except StateUnavailableError:
                raise
            except ConfigError as error:
                self._not_watched(record, error)
            except Exception:  # noqa: BLE001 - an error with one does not affect the others
                _log.exception("lineage_crashed", replicator=record.name)

    def close(self) -> None:
        """Send waiting events for a moment, then let others take the jobs."""
        for name, queue in self._queues.items():
            queue.close()
            with suppress(ConfigError):  # it was deleted meanwhile
                self._store.watches.release(name, WatchJob.LINEAGE, self._holder)

    def _watch(self, record: ReplicatorRecord) -> None:
        loaded = assembly.load(record, self._registry, without=("alerts",))
        source, target = loaded.source, loaded.target
        if not loaded.config.lineage.has_sink:
            return
        if find_spec("openlineage") is None:
            raise ConfigError(
                "Lineage needs openlineage-python, which is not installed.",
                code="missing_extra",
                action="Install `replicator[lineage]`.",
            )
        if not isinstance(source, SupportsLineage) or not isinstance(target, SupportsLineage):
            raise ConfigError(
                f"The plugins of {record.name} do not name their tables for lineage.",
                code="lineage_not_supported",
                action="Remove `lineage:`, or use plugins that do.",
            )
        if not self._store.watches.hold(record.name, WatchJob.LINEAGE, self._holder, TTL_S):
            return
        queue = self._queue(record.name, loaded)
        tables = {str(one.table): one for one in self._store.tables(record.name) if table_life.is_replicated(one)}
        cursor, now = self._cursor(record.name), self._store.now()
        after, due = advance(
            cursor,
            UUID(record.uuid),
            next(iter(self._store.runs.latest(record.name)), None),
            _seen(tables, {str(one): record for one, record in self._store.applied(record.name).items()}),
            now,
            loaded.config.lineage.every,
        )
        counts = queue.take_counts()
        if after != cursor or counts:
            counted: Counts = Counter(
                {(CounterName.LINEAGE_EVENTS, (what,)): number for what, number in counts.items()}
            )
            said = after.model_dump(mode="json")
            if not self._store.watches.remember(record.name, WatchJob.LINEAGE, self._holder, said, counted):
                return
        _put(queue, due, tables, loaded, source, target, now)

    def _queue(self, name: str, loaded: LoadedConfig) -> LineageQueue:
        """Return the queue of a replicator; another one once its settings have changed."""
        queue = self._queues.get(name)
        if queue is None or queue.config != loaded.config.lineage:
            if queue is not None:
                queue.close()
            queue = self._queues[name] = LineageQueue(loaded.config.lineage, name)
        return queue

    def _cursor(self, name: str) -> LineageCursor:
        try:
            return LineageCursor.model_validate(self._store.watches.record(name, WatchJob.LINEAGE))
        except ValidationError as error:
            _log.warning("lineage_begun_again", replicator=name, faults=error.error_count())
            return LineageCursor()

    def _not_watched(self, record: ReplicatorRecord, error: ConfigError) -> None:
        """Report once per configuration that it cannot be used here: another process may be able to."""
        if (record.name, record.config) not in self._refused:
            self._refused.add((record.name, record.config))
            self._store.put_report(record.name, RefusedReport.made("lineage", record.config, error))
            _log.warning("lineage_not_watched", replicator=record.name, code=error.code, error=str(error))


def _seen(tables: Mapping[str, TableRecord], applied: Mapping[str, AppliedRecord]) -> Mapping[str, SeenTable]:
    """Return the tables whose shape is known."""
    found = {}
    for name, table in tables.items():
        record = applied.get(name)
        error = table.error or (record.error if record is not None else None)
        has_failed = table_life.has_failed(table, record)
        if table.schema is not None:
            text = f"[{error.code}] {error.message}" if error is not None else "It failed."
            found[name] = SeenTable(fingerprint=table.schema.fingerprint, error=text if has_failed else None)
    return found


def _put(
    queue: LineageQueue,
    due: Collection[Due],
    tables: Mapping[str, TableRecord],
    loaded: LoadedConfig,
    source: SupportsLineage,
    target: SupportsLineage,
    now: datetime,
) -> None:
    from replicator.service.lineage import events  # needs replicator[lineage]

    for one in due:
        record = tables.get(one.table)
        table = TableId.parse(one.table)
        described = events.Table(
            table=table,
            source_table=(record.source_table if record is not None else None) or table,
            schema=None if record is None else record.schema,
            projection=NO_PROJECTION if record is None else record.projection,
            options=loaded.config.tables.options_for(table),
        )
        job = (loaded.config.lineage.namespace, loaded.config.name)
        event = events.make(one, described, source, target, job=job, now=now)
        queue.put(event, events.as_json(event))
