"""The names that tables have in the source, where those differ from the names under which they are tracked.

A table is tracked under the name that it had when it was first replicated: in the journal, in the state store and in the target. What asks
the source, and what comes from it, passes through `NamedSource`: beyond it nothing knows other names than the tracked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from typing_extensions import override

from replicator.model.deletion import Deletion
from replicator.model.errors import ConfigError, Problem, ReplicatorError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.identity import TableIdentity
from replicator.model.isolation import TableFailedError
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import (
    Chunk,
    ChunkRequest,
    DeltaSource,
    LogBatch,
    LogReader,
    LogStatus,
    PullLimits,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator.projection.rules import NO_RULES, ColumnRules
from replicator.state import table_life
from replicator.state.records import TableRecord


class SourceNames:
    """The table of the source that each tracked one is. Written by the loop's thread alone, read by all."""

    def __init__(self) -> None:
        # Replaced, never changed: other threads read it.
        self._sources: Mapping[TableId, TableId] = {}
        self._tracked: Mapping[TableId, TableId] = {}

    @property
    def is_plain(self) -> bool:
        """Return whether every table has the name under which it is tracked."""
        return not self._sources

    def load(self, records: Iterable[TableRecord]) -> None:
        """Begin with what is durable."""
        self._set(
            {r.table: r.source_table for r in records if r.source_table is not None and table_life.is_replicated(r)}
        )

    def put(self, table: TableId, source: TableId) -> None:
        """A tracked table has this name in the source from here on."""
        others = {tracked: name for tracked, name in self._sources.items() if tracked != table}
        self._set(others if source == table else {**others, table: source})

    def source(self, table: TableId) -> TableId:
        """The name of a tracked table in the source."""
        return self._sources.get(table, table)

    def tracked(self, source: TableId) -> TableId | None:
        """The tracked table of this name in the source, if one is tracked; None: none is, its name belongs to one that was renamed."""
        table = self._tracked.get(source)
        if table is None and source not in self._sources:
            return source
        return table

    def owns(self, table: TableId) -> bool:
        """Return whether a name is that of a tracked table, and not one that a tracked table got."""
        return table in self._sources or table not in self._tracked

    def schema(self, schema: TableSchema) -> TableSchema:
        """The shape of a tracked table as the source knows it."""
        return with_table(schema, self.source(schema.table))

    def _set(self, sources: Mapping[TableId, TableId]) -> None:
        self._tracked = {source: table for table, source in sources.items()}
        self._sources = sources


def with_table(schema: TableSchema, table: TableId) -> TableSchema:
    """The same shape, of a table with this name."""
    return schema if schema.table == table else replace(schema, table=table)


class NamedSource(DeltaSource[Any]):
    """A source as capture sees it: every table has the name under which it is tracked. Threads: as `DeltaSource`."""

    def __init__(
        self,
        source: DeltaSource[Any],
        names: SourceNames,
        rules: Callable[[TableId], ColumnRules] = lambda _: NO_RULES,
    ) -> None:
        super().__init__(source.config, source.context)
        self._source = source
        self._names = names
        self._rules = rules

    # --- the catalogue ------------------------------------------------------------------------------------------------

    @override
    def identity(self) -> Mapping[str, str]:
        return self._source.identity()

    @override
    def list_tables(self) -> Sequence[TableSummary]:
        return self._source.list_tables()

    @override
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        named = self._named(tables)
        with _tracked_errors(self._names):
            found = self._source.describe(list(named.values()))
        return {
            table: _without_defaults(
                _description(found[source], table) if table != source else found[source], self._rules(table)
            )
            for table, source in named.items()
            if source in found
        }

    def existing(self, names: Sequence[TableId]) -> frozenset[TableId]:
        """Return those of these names, as the source has them, that it has tables of."""
        return frozenset(self._source.describe(names)) if names else frozenset()

    @override
    def locate(self, tables: Sequence[TableId]) -> Mapping[TableId, TableId]:
        named = self._named(tables)
        located = self._source.locate(list(named.values()))
        return {table: located[source] for table, source in named.items() if source in located}

    @override
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        named = self._named(tables)
        with _tracked_errors(self._names):
            problems = self._source.check(list(named.values()))
        texts = {str(source): str(table) for table, source in named.items() if table != source}
        return [_problem(problem, texts) for problem in problems] if texts else problems

    # --- the log ------------------------------------------------------------------------------------------------------

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        """Also tables that have another name by now, of which the log did not tell yet."""
        named = list(self._named(tables).values())
        moved = self._source.locate(named)
        with _tracked_errors(self._names):
            return self._source.prepare([moved.get(source, source) for source in named], is_first=is_first)

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        return self._source.status(since)

    @override
    def remove(self) -> Deletion:
        return self._source.remove()

    @override
    def leftovers(self) -> Sequence[str]:
        return self._source.leftovers()

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        self._source.accept({self._names.source(table): identity for table, identity in identities.items()})

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        named = [self._names.schema(schema) for schema in schemas.values()]
        with _tracked_errors(self._names):
            reader = self._source.open_log(after, {schema.table: schema for schema in named})
        return NamedReader(reader, self._names)

    @override
    def mark(self) -> str:
        return self._source.mark()

    @override
    def visibility(self) -> Visibility:
        return self._source.visibility()

    # --- chunks -------------------------------------------------------------------------------------------------------

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        schema = self._names.schema(request.schema)
        with _tracked_errors(self._names):
            return self._source.read_chunk(request if schema is request.schema else replace(request, schema=schema))

    @override
    @contextmanager
    def read_whole(self, schema: TableSchema) -> Iterator[WholeRead]:
        with _tracked_errors(self._names), self._source.read_whole(self._names.schema(schema)) as read:
            yield read

    @override
    def close(self) -> None:
        self._source.close()

    # --- names --------------------------------------------------------------------------------------------------------

    def _named(self, tables: Iterable[TableId]) -> dict[TableId, TableId]:
        return {table: self._names.source(table) for table in tables}


class NamedReader(LogReader):
    """An open log whose tables have the names under which they are tracked.

    Behind a RENAME_TABLE the rest of its pull is about the same tracked table. Whether that is so from the next pull on, the loop decides
    in between (`renaming.py`).
    """

    def __init__(self, reader: LogReader, names: SourceNames) -> None:
        self._reader = reader
        self._names = names

    @override
    def pull(self, limits: PullLimits) -> LogBatch:
        with _tracked_errors(self._names):
            batch = self._reader.pull(limits)
        if self._names.is_plain and not any(e.operation is DDLOperation.RENAME_TABLE for e in batch.ddl):
            return batch
        return self._batch(batch)

    @override
    def acknowledge(self, offset: Offset) -> None:
        self._reader.acknowledge(offset)

    @override
    def keep_alive(self) -> None:
        self._reader.keep_alive()

    @override
    def close(self) -> None:
        self._reader.close()

    def _batch(self, batch: LogBatch) -> LogBatch:
        tracked = self._names.tracked
        changes = [
            changes if changes.schema.table == table else replace(changes, schema=with_table(changes.schema, table))
            for changes in batch.changes
            if (table := tracked(changes.schema.table)) is not None
        ]
        moved: dict[TableId, TableId] = {}
        ddl = [self._event(event, moved) for event in batch.ddl]
        errors = {
            table: _table_error(e, table)
            for source, e in batch.table_errors.items()
            if (table := moved.get(source) or tracked(source))
        }
        unlogged = {
            table: ordinal
            for source, ordinal in batch.unlogged.items()
            if (table := moved.get(source) or tracked(source))
        }
        refusals = {
            table: _table_error(e, table)
            for source, e in batch.unlogged_errors.items()
            if (table := moved.get(source) or tracked(source))
        }
        return replace(
            batch, changes=changes, ddl=ddl, table_errors=errors, unlogged=unlogged, unlogged_errors=refusals
        )

    def _event(self, event: DDLEvent, moved: dict[TableId, TableId]) -> DDLEvent:
        table = self._names.tracked(event.table)
        if event.operation is not DDLOperation.CREATE_TABLE:
            table = moved.get(event.table, table)
        if table is None:
            # Its ordinal stays: it is an event that concerns no table.
            return DDLEvent(operation=DDLOperation.CREATE_DATABASE, table=event.table)
        if event.operation is DDLOperation.RENAME_TABLE and event.new_table is not None:
            moved[event.new_table] = table
        if table == event.table:
            return event
        before = None if event.before is None else with_table(event.before, table)
        schema = None if event.schema is None else with_table(event.schema, table)
        return replace(event, table=table, before=before, schema=schema)


@contextmanager
def _tracked_errors(names: SourceNames) -> Iterator[None]:
    """An error of the source about a table is about the tracked one."""
    try:
        yield
    except (ReplicatorError, TableFailedError) as error:
        if not names.is_plain:
            _rename(error, names)
        raise


def _without_defaults(found: TableDescription, rules: ColumnRules) -> TableDescription:
    """Return a description without the defaults of columns whose values must stay in the source: they would be stored."""
    if not rules.protects:
        return found
    hidden = {str(column.id) for column in found.schema.columns if rules.hides(column.name)}
    constraints = {
        id_: replace(one, default=None) if id_ in hidden else one for id_, one in found.identity.constraints.items()
    }
    return replace(found, identity=replace(found.identity, constraints=constraints))


def _description(found: TableDescription, table: TableId) -> TableDescription:
    return replace(found, schema=with_table(found.schema, table))


def _problem(problem: Problem, texts: Mapping[str, str]) -> Problem:
    if problem.table is None or problem.table not in texts:
        return problem
    name = texts[problem.table]
    return replace(problem, table=name, location=name if problem.location == problem.table else problem.location)


def _table_error(error: TableError, table: TableId) -> TableError:
    error.table = str(table)
    return error


def _rename(error: ReplicatorError | TableFailedError, names: SourceNames) -> None:
    """Have an error name the tracked table instead of the source's."""
    if isinstance(error, TableFailedError):
        table = names.tracked(error.table)
        if table is not None:
            error.table = table
            error.error.table = str(table)
        return
    error.table = _text(error.table, names)
    if isinstance(error, ConfigError):
        error.problems = tuple(replace(p, table=_text(p.table, names)) for p in error.problems)


def _text(name: str | None, names: SourceNames) -> str | None:
    if name is None:
        return None
    try:
        table = names.tracked(TableId.parse(name))
    except ValueError:
        return name
    return name if table is None else str(table)
