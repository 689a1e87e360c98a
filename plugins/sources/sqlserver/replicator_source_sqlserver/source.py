"""SQL Server as a `DeltaSource`: its catalogue, and what `source.capture` chooses for the log and for reads of tables.

Nothing is made on the server, unless `manage_capture` allows it, and nothing is written but a row of the mark table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar, Final

import pyodbc
from pydantic import BaseModel
from typing_extensions import override

from replicator.model.deletion import Deletion
from replicator.model.errors import Problem
from replicator.model.identity import TableIdentity
from replicator.model.offset import Offset
from replicator.model.rules import Section
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.planning import RowSample, SourceStatistics, SupportsPlanning
from replicator.plugins.source import (
    Chunk,
    ChunkRequest,
    DeltaSource,
    LogReader,
    LogStatus,
    SourceContext,
    TableDescription,
    TableSummary,
    Visibility,
    WholeRead,
)
from replicator.plugins.verification import SourceState, SupportsSourceVerification
from replicator_source_sqlserver import rules
from replicator_source_sqlserver.assessment import server as assessment
from replicator_source_sqlserver.capture import Capture, Sessions
from replicator_source_sqlserver.catalogue import discovery
from replicator_source_sqlserver.catalogue import statistics as planning
from replicator_source_sqlserver.catalogue.server import read_lineage
from replicator_source_sqlserver.cdc.capture import ChangeDataCapture
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.tracking.capture import ChangeTracking

_CAPTURES: Final[Mapping[str, type[Capture]]] = {"cdc": ChangeDataCapture, "change_tracking": ChangeTracking}
"""The way to capture changes, by `source.capture`."""


class SqlServerSource(DeltaSource[SqlServerConfig], SupportsSourceVerification, SupportsPlanning):
    """A database of a SQL Server."""

    type_name: ClassVar[str] = "sqlserver"
    config_model: ClassVar[type[BaseModel]] = SqlServerConfig
    rules: ClassVar[Section | None] = rules.SECTION

    def __init__(self, config: SqlServerConfig, context: SourceContext) -> None:
        """Describe the source; nothing is connected yet."""
        super().__init__(config, context)
        self._sessions = Sessions.of(config)
        self._capture = _CAPTURES[config.capture](config, context, self._sessions)

    # -- the catalogue -------------------------------------------------------------------------------------------------

    @override
    def identity(self) -> Mapping[str, str]:
        """The part of the identity that stays when another server of the availability group takes over, or the database is restored."""
        with self._sessions.control.use("reading the database's identity") as connection:
            return {**read_lineage(connection), **self._capture.identity()}

    @override
    def list_tables(self) -> Sequence[TableSummary]:
        with self._sessions.control.use("reading the catalogue") as connection:
            found = discovery.list_tables(connection)
        mark_table = self.config.mark_table_id
        return [
            replace(summary, left_out="mark table") if summary.table == mark_table else summary for summary in found
        ]

    @override
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, TableDescription]:
        with self._sessions.control.use("reading the catalogue") as connection:
            read = self._capture.read_tables(connection, tables)
        found = {table: read[table].description for table in tables if table in read}
        self._capture.remember(found)
        return found

    @override
    def locate(self, tables: Sequence[TableId]) -> Mapping[TableId, TableId]:
        known = self._capture.numbers
        numbers = {known[table]: table for table in tables if table in known}
        with self._sessions.control.use("reading the catalogue") as connection:
            names = discovery.read_names(connection, numbers)
        return {numbers[number]: name for number, name in names.items() if name != numbers[number]}

    @override
    def check(self, tables: Sequence[TableId]) -> Sequence[Problem]:
        problems = assessment.assess_connection(self.config, pyodbc.drivers())
        if problems:
            return problems
        with self._sessions.control.use("reading the catalogue") as connection:
            return self._capture.assess(connection, tables)

    # -- the log -------------------------------------------------------------------------------------------------------

    @override
    def prepare(self, tables: Sequence[TableId], *, is_first: bool) -> Offset:
        return self._capture.prepare(tables, is_first=is_first)

    @override
    def status(self, since: Visibility | None = None) -> LogStatus:
        return self._capture.status(since)

    @override
    def remove(self) -> Deletion:
        return self._capture.remove()

    @override
    def leftovers(self) -> Sequence[str]:
        return self._capture.leftovers()

    @override
    def accept(self, identities: Mapping[TableId, TableIdentity]) -> None:
        self._capture.accept(identities)

    @override
    def open_log(self, after: Offset, schemas: Mapping[TableId, TableSchema]) -> LogReader:
        return self._capture.open_log(after, schemas)

    @override
    def mark(self) -> str:
        return self._capture.mark()

    @override
    def visibility(self) -> Visibility:
        return self._capture.visibility()

    # -- tables --------------------------------------------------------------------------------------------------------

    @override
    def read_chunk(self, request: ChunkRequest) -> Chunk:
        return self._capture.tables.read_chunk(request)

    @override
    def read_whole(self, schema: TableSchema) -> AbstractContextManager[WholeRead]:
        return self._capture.tables.read_whole(schema)

    @override
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> AbstractContextManager[SourceState]:
        return self._capture.open_state(schema, columns)

    @override
    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        with self._sessions.control.use("reading the server's statistics") as connection:
            return planning.read_statistics(connection, tables)

    @override
    def sample(self, schema: TableSchema, rows: int) -> RowSample:
        return self._capture.tables.sample(schema, rows)

    @override
    def close(self) -> None:
        self._sessions.close()
