"""Alters a table by one version of its log: its metadata, its ledger, and its rows where new columns have values in them.

1. **Read** the log, and decide on its new metadata (`alteration`).
2. **Rewrite**, where a new column has a value in rows that are there already, or a column gets a wider type and the table's files are
   not to be of several types: Delta's own writer writes the rows into new files, and commits nothing.
3. **Put** the next version, if no other writer has; otherwise begin again at 1.

A crash before 3 leaves the table as it was, and perhaps files that no version names, which VACUUM removes; after it everything stands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it
from pyspark.sql import types as T  # noqa: N812

from replicator.model.alteration import steps
from replicator.model.crash import crash_point
from replicator.model.errors import TargetUnavailableError
from replicator.model.schema import TableSchema
from replicator.plugins.kit.findings import key_findings
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.definition.metadata import Action, Altered, RefusedError, altered, widened
from replicator_target_delta.held import HeldTable
from replicator_target_delta.lane.actions import removal
from replicator_target_delta.lane.known import columns_as_found
from replicator_target_delta.lane.log import DeltaLakeLogReader, LiveFile
from replicator_target_delta.lane.values import as_stored
from replicator_target_delta.log.store import LogStore, commit
from replicator_target_delta.log.table import TableLog, read_log
from replicator_target_delta.scala import Scala
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.shape.tables import quoted
from replicator_target_delta.storage import Storage

_PUTS_MAX: Final = 10
_OPERATION: Final = "REPLACE COLUMNS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The alteration of a version of the table: its new metadata, and the ledger entries to record with it."""

    altered: Altered
    ledgers: Mapping[str, int]


def alter_table(
    held: HeldTable,
    storage: Storage,
    actual: TableSchema,
    wanted: TableSchema,
    fill: pa.RecordBatch,
    claim: Callable[[TableLog | None], Mapping[str, int]],
    *,
    may_mix: bool,
) -> Mapping[str, str]:
    """Change the table from one shape to the other; return its properties afterwards.

    Args:
        held: The table.
        storage: File system of the target.
        actual: Its shape.
        wanted: The shape that it is to have.
        fill: Values of new columns in existing rows.
        claim: Returns the ledger entries to record after a version; it refuses one that may not be altered.
        may_mix: Data files may have a column in the type that it had before.

    Raises:
        RefusedError: The table is not one that can be altered so.
        EngineNeededError: The same, of its data files.
        Exception: See `alter`.
    """
    path = steps(actual, wanted)
    if [path.origin[name] for name in wanted.key] != list(actual.key):
        raise RefusedError("the table would get another key")
    if key_findings(wanted) and not key_findings(actual):
        raise RefusedError("a column of the key would become a float")
    values = fill_values(wanted, path.added, fill)
    before, after = (ddl.new_table(held.table, schema, clustering=False) for schema in (actual, wanted))
    rewrites = bool(values.num_columns) or (not may_mix and bool(widened(before, after, path)))

    def plan(log: TableLog | None) -> Planned:
        ledgers = claim(log)
        assert log is not None, "there is nothing to alter where no table is"
        return Planned(altered=altered(log, before, after, path, keeps_files=not rewrites), ledgers=ledgers)

    return alter(held, storage, plan, values, rewrites=rewrites)


def fill_values(schema: TableSchema, added: Collection[str], fill: pa.RecordBatch) -> pa.Table:
    """One row, as data files hold it, with the values of new columns in existing rows, where they are not NULL.

    Raises:
        EngineNeededError: A column has a type that data files do not hold.
    """
    values = {name: fill.column(name).cast(schema.column(name).type) for name in fill.schema.names if name in added}
    return pa.table({name: as_stored(value) for name, value in values.items() if not value.null_count})


def alter(
    held: HeldTable,
    storage: Storage,
    plan: Callable[[TableLog | None], Planned],
    values: pa.Table,
    *,
    rewrites: bool,
) -> Mapping[str, str]:
    """Alter the table; return its properties afterwards.

    Args:
        held: The table.
        storage: File system of the target.
        plan: Plans the alteration, for each version that it must follow.
        values: One row, as data files hold it: values of new columns in existing rows. No column: NULL in all of them.
        rewrites: All rows are written again; always where there are values.

    Raises:
        RefusedError: The table is not one that can be altered so.
        EngineNeededError: The same, of its data files.
        TargetUnavailableError: Others commit all the time.
        Exception: Errors of `plan`, and Spark's.
    """
    for _ in range(_PUTS_MAX):
        log = read_log(storage, held.path)
        planned = plan(log)
        assert log is not None, "there is nothing to plan where no table is"
        files = _rewritten(held, storage, log, planned.altered, values) if rewrites else []
        if files is None:
            continue
        now = int(time.time() * 1000)
        ledgers = [
            {"txn": {"appId": name, "version": version, "lastUpdated": now}}
            for name, version in planned.ledgers.items()
        ]
        info = {
            "operationParameters": {"columns": json.dumps(list(planned.altered.origin), ensure_ascii=False)},
            "isBlindAppend": not files,
        }
        store = LogStore(held.session, held.path)
        if commit(store, storage, held.path, log, [*planned.altered.actions, *ledgers, *files], _OPERATION, **info):
            return planned.altered.properties
        _remove(files, storage, held.path)
    raise TargetUnavailableError(
        "Others commit to the table all the time.",
        code="target_busy",
        table=str(held.table.table),
        action="It is retried automatically.",
    )


def _rewritten(
    held: HeldTable, storage: Storage, log: TableLog, altered: Altered, values: pa.Table
) -> Sequence[Action] | None:
    """All rows in new files, in the new types and with values in new columns, for the old ones; None: the version is not the newest.

    Raises:
        EngineNeededError: The log's description of its data files is not understood, or differs from what Spark found.
    """
    state = DeltaLakeLogReader(storage, held.path).refresh()
    columns_as_found(state)
    if state.version != log.version:
        return None
    files = list(state.files.values())
    living = sum(file.rows - (0 if file.vector is None else file.vector.cardinality) for file in files)
    written = _written(held, log.version, altered, values) if living else []
    if written is None:
        return None
    crash_point("target.rows_filled")
    now = int(time.time() * 1000)
    changes = [*(removal(file, now) for file in files), *({"add": add} for add in written)]
    if (found := sum(LiveFile.of(add).rows for add in written)) != living:
        _remove(changes, storage, held.path)
        raise EngineNeededError(f"Spark found {found} rows, the log says {living}")
    return changes


def _written(held: HeldTable, version: int, altered: Altered, values: pa.Table) -> Sequence[Action] | None:
    """The rows of a version in the new shape, in files that no version names: their `add` actions."""
    session = held.session
    rows = session.read.format("delta").option("versionAsOf", version).load(held.path)
    types = {
        field.name: field.dataType for field in T.StructType.fromJson({"type": "struct", "fields": altered.fields})
    }
    # No column of the table is called so.
    row = f"fill-{uuid4()}"
    fills = {name: F.col(quoted(f"{row}-{i}")) for i, name in enumerate(values.column_names)}
    columns = [
        (F.col(quoted(old)) if old is not None else fills.get(name, F.lit(None))).cast(types[name]).alias(name)
        for name, old in altered.origin.items()
    ]
    if values.num_columns:
        given = session.createDataFrame(values.rename_columns([f"{row}-{i}" for i in range(values.num_columns)]))
        rows = rows.crossJoin(F.broadcast(given))
    frame = rows.select(*columns)
    scala = Scala(session)
    log = scala.delta.DeltaLog.forTable(session._jsparkSession, held.path)  # noqa: SLF001 - as `ledger.Transaction`
    transaction = log.startTransaction()
    if transaction.readVersion() != version:
        return None
    actions = {kind: scala.action(action) for action in altered.actions for kind in action}
    if "protocol" in actions:
        # Delta would ask to enable the feature by hand.
        transaction.updateProtocol(actions["protocol"])
    transaction.updateMetadata(actions["metaData"], False)
    written = scala.list(transaction.writeFiles(frame._jdf))  # noqa: SLF001 - Java's frame has no public name
    return [json.loads(file.json())["add"] for file in written]


def _remove(files: Sequence[Action], storage: Storage, path: str) -> None:
    """Remove new files that no version names."""
    for action in files:
        if "add" in action:
            storage.remove(f"{path}/{unquote(action['add']['path'])}")
