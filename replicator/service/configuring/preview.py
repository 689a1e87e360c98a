"""`preview`: some rows of a table as they would arrive in the target, through the projection that replicates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from replicator.capture.asking import describe
from replicator.config import LoadedConfig
from replicator.model.errors import ConfigError, SchemaConflictError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.plugins.source import ChunkRequest, DeltaSource
from replicator.projection.columns import Projection
from replicator.projection.rows import projected_rows
from replicator.projection.rules import rules_for
from replicator.runtime import assembly
from replicator.service.lifecycle import unknown_tables
from replicator.state.records import TableRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Rows of a table as they would arrive.

    Attributes:
        table: Its name in the source.
        schema: Its shape in the target.
        rows: Columns are those of `schema`, under their names in the target.
    """

    table: TableId
    schema: TableSchema
    rows: pa.RecordBatch


def preview(
    loaded: LoadedConfig, registry: Registry, name: str, *, rows: int, stored: Sequence[TableRecord] = ()
) -> Preview:
    """Read the first rows of a table, and project them; change nothing anywhere.

    Args:
        loaded: The configuration.
        registry: The plugins.
        name: The table, as `schema.table`.
        rows: The most rows.
        stored: The tables of the stored replicator, if there is one: columns that are left out as new ones stay out.

    Raises:
        ConfigError: `unknown_table`: the configuration selects no such table. Or its columns cannot be projected as the settings say.
    """
    known = next((record for record in stored if str(record.table) == name), None)
    source = assembly.make_source(loaded, registry)
    try:
        selected = {str(table): table for table in assembly.select_tables(source, loaded).tables}
        if name not in selected:
            raise unknown_tables(loaded.config.name, [name], selected)
        answer = describe(source, [selected[name]])
        for error in answer.refused.values():
            raise error
        schema = answer.found[selected[name]].schema
        rules = rules_for(schema.table, loaded.config.tables.settings)
        projection = Projection(
            columns=rules.project(schema)
            if known is None
            else rules.project(schema, before=known.projected, known=known.schema)
        )
        found = projected_rows(_read(source, schema, rows), schema, projection, rules)
    except SchemaConflictError as error:
        raise ConfigError(error.message, code=error.code, table=error.table, action=error.action) from error
    finally:
        source.close()
    return Preview(table=schema.table, schema=projection.in_target(schema), rows=found)


def _read(source: DeltaSource[Any], schema: TableSchema, rows: int) -> pa.RecordBatch:
    """Read the first rows of a table: in the order of its key, if it has one."""
    if schema.key:
        return source.read_chunk(ChunkRequest(schema=schema, limit=rows)).rows
    with source.read_whole(schema) as read:
        for batch in read.batches:
            if batch.num_rows:
                return batch.slice(0, rows)
    return pa.RecordBatch.from_pylist([], schema=pa.schema(list(schema.row_type)))


def plain_rows(found: Preview) -> Sequence[Mapping[str, Any]]:
    """Return the rows as JSON has them: dates and times in ISO form, exact numbers as text, bytes as hex digits."""
    return [{name: _plain(value) for name, value in row.items()} for row in found.rows.to_pylist()]


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            return format(value, "f")
        case date() | datetime() | time():
            return value.isoformat()
        case list():
            return [_plain(item) for item in value]
    return value
