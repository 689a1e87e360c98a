"""One version of a table, read by DuckDB's SQL.

The log says which files there are, and which of their rows are deleted (`version`). Values are DuckDB's alone: it reads the files, and
computes texts and checksums in bounded memory.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from replicator.model.events import IS_DELETED
from replicator.model.schema import TableSchema
from replicator.plugins.kit.duckdb import canonical as sql
from replicator.plugins.kit.duckdb.canonical import stored_type
from replicator.plugins.kit.duckdb.state import DuckDBState
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.lake.vectors import numbers
from replicator.plugins.target import TargetTable
from replicator.plugins.verification import VerifiedState, order_of
from replicator_target_delta.errors import RECREATE, not_readable
from replicator_target_delta.lane import vectors
from replicator_target_delta.lane.vectors import Descriptor
from replicator_target_delta.shape.types import json_type
from replicator_target_delta.storage import Storage
from replicator_target_delta.verification.files import LakeFiles
from replicator_target_delta.verification.version import Version

_MEMORY: Final = "256MB"
_THREADS_MAX: Final = 4
_FILES_AT_ONCE: Final = 8
_SOFT: Final = "deleted"


@dataclass(frozen=True, slots=True)
class _Read:
    """A column: its name in the query, its name in the files, its type in the source."""

    alias: str
    physical: str
    type: pa.DataType


@dataclass(slots=True)
class _Group:
    """Data files that have the columns in the same types: the expression that selects these, and the table of deleted rows, if any."""

    columns: str
    paths: list[str] = field(default_factory=list)
    deleted: str | None = None


@contextmanager
def duckdb_state(
    storage: Storage, path: str, version: Version, table: TargetTable, schema: TableSchema, columns: Mapping[str, str]
) -> Iterator[VerifiedState]:
    """Open a version of the table at `path`, for as long as the context.

    Raises:
        EngineNeededError: It is not understood here.
        TableError: `state_not_readable`.
    """
    _check_columns({field["name"]: field["type"] for field in version.fields}, table, schema, columns)
    names, physical = order_of(list(columns), schema), version.physical
    reads = [_Read(f"c{i}", physical[columns[name]], schema.column(name).type) for i, name in enumerate(names)]
    is_soft = table.options.deletes == "soft"
    needed = [*reads, _Read(_SOFT, physical[IS_DELETED], pa.bool_())] if is_soft else reads
    with (
        tempfile.TemporaryDirectory(prefix="replicator-verify-") as folder,
        closing(_connect(folder, storage)) as connection,
    ):
        groups = _grouped(connection, storage, path, version.vectors(), needed)
        yield FilesState(connection, groups, dict(zip(names, reads, strict=True)), schema.key, table, is_soft=is_soft)


def _check_columns(
    found: Mapping[str, Any], table: TargetTable, schema: TableSchema, columns: Mapping[str, str]
) -> None:
    """Check that a version has the columns that are compared, in the types that they should have.

    Args:
        found: The types of its columns, as Delta's log spells them.
        table: The table.
        schema: The shape of the source's rows.
        columns: See `open_state`.

    Raises:
        TableError: `state_not_readable`.
    """
    for name, there in columns.items():
        if there not in found:
            raise not_readable(table, f"The table had no column {there} then")
        if found[there] != json_type(schema.column(name).type):
            raise not_readable(table, f"The column {there} had another type then")


class FilesState(DuckDBState):
    """Answers from the files of a version."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        groups: Sequence[_Group],
        columns: Mapping[str, _Read],
        key: Sequence[str],
        table: TargetTable,
        *,
        is_soft: bool,
    ) -> None:
        super().__init__(connection, {name: (read.alias, read.type) for name, read in columns.items()}, key)
        self._groups = groups
        self._is_soft = is_soft
        self._table = table

    def select(self, texts: Sequence[str], condition: str) -> str:
        """Read all groups of files."""
        parts = [self._select_from(number, group, texts, condition) for number, group in enumerate(self._groups)]
        return " UNION ALL ".join(parts)

    def run(self, statement: str, **parameters: Any) -> duckdb.DuckDBPyConnection:
        """Run a statement with the files' names."""
        for number, group in enumerate(self._groups):
            if group.paths:
                parameters[f"files{number}"] = group.paths
        try:
            return super().run(statement, **parameters)
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            # A file that VACUUM has removed, or rows that are too large.
            raise not_readable(self._table, f"DuckDB says: {error}") from error
        except duckdb.Error as error:
            # What it says may have a value: text that is not UTF-8, for one.
            reason = f"DuckDB cannot read a value that somebody has written ({type(error).__name__})"
            raise not_readable(self._table, reason, action=RECREATE) from error

    def _select_from(self, number: int, group: _Group, texts: Sequence[str], condition: str) -> str:
        source = f"read_parquet($files{number}, hive_partitioning = false) AS f"
        if not group.paths:
            source = "(SELECT 0 WHERE false)"
        elif group.deleted is not None:
            source += f" ANTI JOIN {group.deleted} AS d ON d.file = f.file_index AND d.row = f.file_row_number"
        where = f"{_SOFT} IS NOT TRUE AND {condition}" if self._is_soft else condition
        return f"SELECT {', '.join(texts)} FROM (SELECT {group.columns} FROM {source}) WHERE {where}"


def _connect(folder: str, storage: Storage) -> duckdb.DuckDBPyConnection:
    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": _MEMORY,
        "preserve_insertion_order": "false",
        "temp_directory": folder,
        "threads": min(_THREADS_MAX, os.cpu_count() or 1),
    }
    connection = duckdb.connect(":memory:", config=config)
    if not storage.is_local:
        connection.register_filesystem(LakeFiles(storage))
    return connection


def _grouped(
    connection: duckdb.DuckDBPyConnection,
    storage: Storage,
    table: str,
    files: Mapping[str, Descriptor | None],
    columns: Sequence[_Read],
) -> Sequence[_Group]:
    """The files by the types that they have the columns in; those with deleted rows apart."""

    def selected(found: Sequence[pa.DataType | None]) -> str:
        return ", ".join(f"{_as_stored(c, type_)} AS {c.alias}" for c, type_ in zip(columns, found, strict=True))

    def types(name: str) -> Sequence[pa.DataType | None]:
        try:
            with storage.open_input(f"{table}/{name}") as source:
                found = pq.ParquetFile(source).schema_arrow
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise EngineNeededError(f"its file {name} is missing or damaged") from error
        there = set(found.names)
        return [found.field(c.physical).type if c.physical in there else None for c in columns]

    groups: dict[str, _Group] = {}
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="delta-verify") as executor:
        for (name, vector), found in zip(files.items(), executor.map(types, files), strict=True):
            mark = f"{vector is not None} {found}"
            group = groups.get(mark) or groups.setdefault(mark, _Group(selected(found)))
            if vector is not None:
                group.deleted = group.deleted or f"deleted{len(groups)}"
                _note_deleted(connection, group, numbers(vectors.read(vector, storage, table)))
            path = f"{table}/{name}"
            group.paths.append(glob.escape(path) if storage.is_local else LakeFiles.path_of(path))
    return list(groups.values()) or [_Group(selected([None for _ in columns]))]


def _note_deleted(connection: duckdb.DuckDBPyConnection, group: _Group, rows: Any) -> None:
    """Put the rows of the group's next file that are deleted into its table."""
    connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {group.deleted} (file UBIGINT, row BIGINT)")
    connection.register("numbers", pa.table({"row": rows}))
    connection.execute(f"INSERT INTO {group.deleted} SELECT {len(group.paths)}, row FROM numbers")
    connection.unregister("numbers")


def _as_stored(read: _Read, found: pa.DataType | None) -> str:
    """A column of a file in the type that the table has it in; files that were there before it got a wider one have the older.

    Raises:
        EngineNeededError: The file has it in no type that may become it.
    """
    wanted, name = stored_type(read.type), f"f.{sql.quoted(read.physical)}"
    if found is None:
        return f"NULL::{sql.type_name(wanted)}"
    if _is_same(found, wanted):
        return name
    is_number = all(
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in (found, wanted)
    )
    if is_number or (pa.types.is_date(found) and wanted == pa.timestamp("us")):
        return f"{name}::{sql.type_name(wanted)}"
    raise EngineNeededError(f"a data file has a column as {found}")


def _is_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _is_same(found.value_type, wanted.value_type)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        # Spark may write a moment as INT96, which has no time zone.
        return bool(found.unit == "ns" or found == wanted)
    return bool(found == wanted)
